"""Pairs of texts that one encoder reads separately: how far the two agree, in a few numbers that a small head weighs.

The numbers are functions of one pair and of the encoder: cosines, how well each token of one text is matched by a token
of the other, shared tokens, lengths and digits. The first is the cosine of the two sentence vectors, from which the
head starts, so that an untrained model predicts as well as the public encoder does.

Paper: Reimers and Gurevych 2019, Sentence-BERT: sentence embeddings using Siamese BERT-networks; Zhang et al. 2020,
BERTScore: evaluating text generation with BERT (tokens matched by cosine).
Differs: the head reads these numbers, not the vectors u, v, |u - v| and u * v: with 25 weights in place of 1,500, noise
costs next to nothing, and a few thousand pairs are enough (docs/decisions/small_corpora.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.core.errors import ModelError, setting
from discreet.core.task import Task
from discreet.models.settings import JOINT
from discreet.models.settings import SEPARATE as SEPARATE

# Cosine above which two texts are taken to say the same, and the slope of the log-odds there.
THRESHOLD, SLOPE = 0.7, 10.0
LARGEST = 4.0  # features lie within this distance of 0
# Public centres and scales, rounded by hand: about where a feature lies, and how far it varies, for any English pairs.
_COSINES, _SHARES = (THRESHOLD, 0.3), (0.5, 0.3)
_RANGES = (
    *(_COSINES,) * 13,  # cosine of three layers, tokens matched in three layers
    *(_SHARES,) * 4,  # shared tokens and bigrams
    (0.8, 0.2),  # shorter over longer
    (0.2, 1.0),  # difference of the lengths
    (0.6, 1.0),  # sum of the lengths
    *((0.5, 1.0),) * 5,  # digits: the same, different, how many are in one text only
)
# The 25 numbers are followed by zeros: on some CPUs the rounding of a product with 25 columns depends on the position
# of a row in its batch, and the guarantee of a private run would be an estimate. With 32 columns it does not.
PAIR_WIDTH = 32
_MOST_DIGITS = 5


def separate(inputs: Mapping[str, Tensor], first_token: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the inputs of the first and of the second text, from tokens of both in one row.

    Token types tell the two apart. The second text gets the first token of every text in front; both keep the width of
    the row, so that shapes do not depend on the texts.

    >>> ids = torch.tensor([[101, 7, 8, 102, 9, 102, 0]])
    >>> types, mask = torch.tensor([[0, 0, 0, 0, 1, 1, 0]]), torch.tensor([[1, 1, 1, 1, 1, 1, 0]])
    >>> one, two = separate({"input_ids": ids, "token_type_ids": types, "attention_mask": mask}, 101)
    >>> two["input_ids"][0, :3].tolist(), one["attention_mask"].tolist(), two["attention_mask"].tolist()
    ([101, 9, 102], [[1, 1, 1, 1, 0, 0, 0]], [[1, 1, 1, 0, 0, 0, 0]])
    """
    if "token_type_ids" not in inputs:
        raise ModelError(
            "Expected a tokenizer with token types for pairs of texts that are read separately, got one without. Read "
            f"them together ({setting('pairs', JOINT)}), or use another encoder."
        )
    ids, mask, types = inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"]
    in_second = (types == 1) & (mask == 1)
    in_first = (types == 0) & (mask == 1)
    length = in_first.sum(dim=1, keepdim=True)
    places = torch.arange(ids.shape[1], device=ids.device)[None, :]
    ids_second = ids.gather(1, (places + length - 1).clamp(0, ids.shape[1] - 1))
    ids_second = torch.where(places == 0, first_token, ids_second)
    mask_second = (places <= in_second.sum(dim=1, keepdim=True)).to(mask.dtype)
    none = torch.zeros_like(types)
    return (
        {"input_ids": ids, "attention_mask": in_first.to(mask.dtype), "token_type_ids": none},
        {"input_ids": ids_second, "attention_mask": mask_second, "token_type_ids": none},
    )


def pair_features(
    texts: Sequence[Mapping[str, Tensor]], layers: Sequence[Sequence[Tensor]], vectors: Sequence[Tensor], digits: Tensor
) -> Tensor:
    """Return the features of pairs, (batch, PAIR_WIDTH), centred and scaled by public constants.

    `texts` are the inputs of both texts, `layers` their hidden states after the embeddings, before the last block and
    after it, `vectors` their sentence vectors, and `digits` tells which tokens of the vocabulary hold a digit.
    """
    inner = [_inner(text["attention_mask"]) for text in texts]
    shared = [_means(states, text["attention_mask"]) for states, text in zip(layers, texts, strict=True)]
    columns = [_cosine(vectors[0], vectors[1])]
    columns += [_cosine(one, two) for one, two in zip(shared[0][:2], shared[1][:2], strict=True)]
    for layer, lowest in ((2, True), (1, True), (0, False)):
        columns += _matched(layers[0][layer], layers[1][layer], inner[0], inner[1], lowest)
    columns += _tokens(texts[0]["input_ids"], texts[1]["input_ids"], inner[0], inner[1], digits)
    scaled = [(column.float() - centre) / scale for column, (centre, scale) in zip(columns, _RANGES, strict=True)]
    features = torch.stack(scaled, dim=1)
    return F.pad(features.clamp(-LARGEST, LARGEST), (0, PAIR_WIDTH - len(_RANGES)))


def start_from_cosine(head: nn.Linear, task: str, score_range: tuple[float, float] = (0.0, 1.0)) -> None:
    """Set a head on `pair_features` so that it predicts from the cosine alone; with more than two classes, nothing."""
    centre, scale = _RANGES[0]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        if Task(task).has_scores:
            low, high = score_range
            head.weight[0, 0], head.bias[0] = (high - low) * scale, low + (high - low) * centre
        elif head.out_features == 2:
            for label, sign in ((0, -0.5), (1, 0.5)):
                head.weight[label, 0] = sign * SLOPE * scale
                head.bias[label] = sign * SLOPE * (centre - THRESHOLD)


def _inner(mask: Tensor) -> Tensor:
    """Return the mask of a text's tokens without the first and the last, which every text has."""
    places = torch.arange(mask.shape[1], device=mask.device)[None, :]
    last = mask.sum(dim=1, keepdim=True) - 1
    return (places > 0) & (places < last)


def _means(states: Sequence[Tensor], mask: Tensor) -> list[Tensor]:
    weights = mask.unsqueeze(-1).float()
    return [(one.float() * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1) for one in states]


def _cosine(one: Tensor, two: Tensor) -> Tensor:
    return (F.normalize(one.float(), dim=-1) * F.normalize(two.float(), dim=-1)).sum(dim=-1)


def _matched(one: Tensor, two: Tensor, own: Tensor, other: Tensor, lowest: bool) -> list[Tensor]:
    """Return how well the tokens of each text are matched in the other, by cosine: the means, and perhaps the least."""
    cosines = F.normalize(one.float(), dim=-1) @ F.normalize(two.float(), dim=-1).transpose(1, 2)
    both = own[:, :, None] & other[:, None, :]
    cosines = cosines.masked_fill(~both, -1.0)
    columns: list[Tensor] = []
    least: list[Tensor] = []
    for best, mask in ((cosines.amax(dim=2), own), (cosines.amax(dim=1), other)):
        columns.append((best * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1))
        least.append(best.masked_fill(~mask, 1.0).amin(dim=1))
    return [*columns, *least] if lowest else columns


def _tokens(one: Tensor, two: Tensor, own: Tensor, other: Tensor, digits: Tensor) -> list[Tensor]:
    """Return shares of common tokens and bigrams, the lengths, and what digits the texts have in common."""
    same = (one[:, :, None] == two[:, None, :]) & own[:, :, None] & other[:, None, :]
    pairs = same[:, :-1, :-1] & same[:, 1:, 1:]
    found = same.any(dim=2), same.any(dim=1)
    columns = [_share(found[0], own), _share(found[1], other)]
    columns += [
        _share(pairs.any(dim=2), own[:, :-1] & own[:, 1:]),
        _share(pairs.any(dim=1), other[:, :-1] & other[:, 1:]),
    ]
    lengths = own.sum(dim=1).float(), other.sum(dim=1).float()
    longest = torch.maximum(*lengths)
    columns.append(torch.minimum(*lengths) / longest.clamp_min(1))
    columns.append(((lengths[0] - lengths[1]).abs() / 20).clamp_max(2))
    columns.append(((lengths[0] + lengths[1]) / 80).clamp_max(2))
    numbers = digits[one] & own, digits[two] & other
    alone = [(number & ~common).sum(dim=1) for number, common in zip(numbers, found, strict=True)]
    some = [number.any(dim=1) for number in numbers]
    agree = (alone[0] == 0) & (alone[1] == 0)
    columns += [agree, some[0] & some[1] & ~agree]
    counts = [count.clamp_max(_MOST_DIGITS) / 2 for count in alone]
    return [*columns, *counts, torch.minimum(*counts)]


def _share(found: Tensor, mask: Tensor) -> Tensor:
    return (found & mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1)


def tokens_with_digits(vocabulary: Mapping[str, int], size: int) -> Tensor:
    """Return which token numbers stand for text with a digit.

    >>> tokens_with_digits({"a": 0, "##7": 1}, 2).tolist()
    [False, True]
    """
    table = torch.zeros(size, dtype=torch.bool)
    for token, number in vocabulary.items():
        if any(character.isdigit() for character in token) and number < size:
            table[number] = True
    return table
