"""Pairs of texts that one encoder reads separately: two vectors, how they agree, and what that says without training.

Paper: Reimers and Gurevych 2019, Sentence-BERT: sentence embeddings using Siamese BERT-networks.
Differs: the vectors are normalized, their cosine is a feature of its own, and the head starts from it, so that an
untrained model predicts as well as the public encoder does.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.core.errors import ModelError, setting
from discreet.models.model_settings import JOINT
from discreet.models.model_settings import SEPARATE as SEPARATE

# Cosine above which two texts are taken to say the same, and the slope of the log-odds there. The threshold is that of
# the best accuracy of all-MiniLM-L6-v2 on public paraphrases, rounded; the slope is the order of a fitted one.
THRESHOLD, SLOPE = 0.7, 10.0


def pair_width(width: int) -> int:
    """Return the number of features of a pair of vectors of this width.

    >>> pair_width(384)
    769
    """
    return 2 * width + 1


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


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """Return the features of pairs of vectors: the cosine, the products and the differences of their coordinates.

    All are functions of the pair alone, and bounded: the cosine by 1, the products together by 1, the differences
    together by 2.

    >>> pair_features(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.0]]))[0].tolist()[0]
    1.0
    """
    one, two = F.normalize(first.float(), dim=-1), F.normalize(second.float(), dim=-1)
    products = one * two
    return torch.cat([products.sum(dim=-1, keepdim=True), products, (one - two).abs()], dim=-1)


def start_from_cosine(head: nn.Linear, task: str, score_range: tuple[float, float] = (0.0, 1.0)) -> None:
    """Set a head on `pair_features` so that it predicts from the cosine alone; with more than two classes, nothing."""
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        if task == "regression":
            low, high = score_range
            head.weight[0, 0], head.bias[0] = high - low, low
        elif head.out_features == 2:
            for label, sign in ((0, -0.5), (1, 0.5)):
                head.weight[label, 0] = sign * SLOPE
                head.bias[label] = -sign * SLOPE * THRESHOLD
