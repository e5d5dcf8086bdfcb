"""Decepticons: a malicious server sends crafted weights and recovers whole sentences from the resulting gradient.

States of single tokens are extracted from the gradients of crafted layers, each state is decoded to a token and a
position, and states are grouped into sentences by a shared tag, or by running means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from discreet.attacks.base import GradientAttack, Need
from discreet.attacks.crafted.weights import Layout, craft, residual, sources
from discreet.attacks.encoder_layers import Anatomy, Block, blocks_of, dissect, model_of, weight_of
from discreet.core.errors import UnsupportedError, positive, probability, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.base import TextModel
from discreet.models.language_model import LanguageModel

_NAME = "Decepticons"
Words = dict[int, int]  # position to token
_ROWS = 4  # adjacent bins in which one state may appear, as the steps are not perfectly sharp
_CHUNK = 512  # states compared with the whole vocabulary at once
_ROUNDING = 1e-5  # share of the largest sum below which a bin contains only rounding errors
_ALIKE = (0.02, 0.05, 0.1, 0.2, 0.4)  # distances of tags in one sentence to try, relative to their median norm
_SAME = 0.02  # relative tolerance of equal running sums
_MOST = 0.8  # share of the clear states that the sentences together must contain


@dataclass(frozen=True)
class Decepticons(GradientAttack):
    """An active attack in two steps: `craft` returns the weights that the server sends, `run` decodes the gradient.

    `sharpness` makes the activation a step: a state is either above or below a threshold. A state is used if its
    correlation with its token and position is at least `least_match`; those above `clear_match` form the sentences. At
    most `states` states are extracted from each layer. Lengths are used if the release has them; labels are not used.

    Paper: Fowl et al. 2023, "Decepticons: Corrupted Transformers Breach Privacy in Federated Learning for Language
    Models".
    Differs: every block uses its own direction, so that states that share a bin in one block are separate in another;
    words and positions have separate coordinates, so that both are decoded exactly through any LayerNorm; a sentence's
    tag is the mean over its tokens, as the first token of BERT is always the same; the second feed-forward layers
    alternate in sign; masked tokens are decoded from the language head's gradient.
    """

    sharpness: float = 1e3
    least_match: float = 0.6
    clear_match: float = 0.99
    states: int = 2048

    name: ClassVar[str] = "decepticons"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CRAFTED_MODEL})

    def __post_init__(self) -> None:
        """Check the settings."""
        positive("sharpness", self.sharpness)
        probability("least_match", self.least_match, "It is a correlation.")
        probability("clear_match", self.clear_match, "It is a correlation.")
        whole("states", self.states)

    def craft(self, model: TextModel, rng: Rng) -> TextModel:
        """Return a copy of a model with the weights that the server sends to its clients."""
        return craft(model, self.sharpness, rng)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the sentences of a batch from the gradient of the crafted model; decoding is deterministic.

        `details` has the token ids and the number of decoded states.
        """
        model = model_of(knows, _NAME)
        anatomy, blocks, layout = dissect(model), blocks_of(model), Layout.of(model.width)
        _check_crafted(blocks)
        longest = max(seen.lengths) if seen.lengths else model.max_length
        most = min(self.states, _ROWS * sum(seen.lengths)) if seen.lengths else self.states
        parts: list[Imprints] = []
        for block in blocks:
            states = feed_forward_rows(seen, block, layout, most, _NAME)
            if len(states):
                parts.append(decode(states, model, anatomy, blocks[0], layout, longest))
        if isinstance(model, LanguageModel) and model.objective == "masked":
            mask = int(model.tokenizer.mask_token_id)
            # At a masked position, prefer the token from the language head to the mask token.
            parts = [
                replace(part, matches=torch.where(part.tokens == mask, 0.97 * part.matches, part.matches))
                for part in parts
            ]
            tokens, states = decoder_rows(seen, model.head, layout, most)
            if len(states):
                targets = decode(states, model, anatomy, blocks[0], layout, longest)
                parts.append(replace(targets, tokens=tokens.to(targets.tokens)))
        if not parts:
            return Guess(details={"tokens": (), "states": 0})
        imprints = concatenate(parts)
        imprints = imprints.take((imprints.matches >= self.least_match).nonzero().flatten())
        if anatomy.causal:
            words = chains(imprints, seen.batch_size)
        else:
            words = groups(imprints, seen.batch_size, self.clear_match)
        rows = sentences(words)
        details: dict[str, Any] = {"tokens": rows, "states": len(imprints)}
        texts = tuple(model.tokenizer.decode(list(row), skip_special_tokens=True) for row in rows)
        return Guess(texts=texts, details=details)


def _check_crafted(blocks: tuple[Block, ...]) -> None:
    for block in blocks:
        weight = block.inner.rows(weight_of(block.inner.module))
        if not torch.equal(weight, weight[:1].expand_as(weight)):
            raise UnsupportedError(
                f"Expected the crafted model in Knowledge(model=…) for {_NAME}, got ordinary weights in "
                f"{block.inner.name!r}. Send Decepticons().craft(model, rng) to clients first."
            )


@dataclass(frozen=True)
class Imprints:
    """Decoded states, one per row: token, position, quality of the match, and the sentence's tag.

    `sources` are the tokens' own contributions to the mean in the tag.
    """

    tokens: Tensor
    places: Tensor
    matches: Tensor = field(repr=False)
    tags: Tensor = field(repr=False)
    sources: Tensor = field(repr=False)

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.tokens)

    def take(self, rows: Tensor) -> Imprints:
        """Return some of the states."""
        return Imprints(*(getattr(self, f.name)[rows] for f in fields(self)))


def concatenate(parts: Sequence[Imprints]) -> Imprints:
    """Concatenate decoded states."""
    return Imprints(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Imprints)))


def feed_forward_rows(seen: GradientRelease, block: Block, layout: Layout, most: int, attack: str) -> Tensor:
    """Return at most `most` states from the gradient of a crafted feed-forward layer, (states, width).

    A row sums all states above its threshold, so two adjacent rows differ by the states between their thresholds. A
    single state between them is the difference of the weight gradients divided by that of the bias gradients,
    regardless of its factor in the sum.
    """
    name = block.inner.name
    bias = f"{name.removesuffix('.weight')}.bias"
    missing = [n for n in (name, bias) if n not in seen.gradients]
    if missing:
        raise UnsupportedError(
            f"Expected the gradient of {missing[0]!r} for {attack}, got none in the release. The feed-forward layers "
            "are frozen or not shared; the gradient of a head alone contains no single state."
        )
    thresholds = block.inner.module.bias
    assert isinstance(thresholds, Tensor)
    lift = block.outer.rows(weight_of(block.outer.module))[layout.free].double()
    rows = block.inner.rows(seen.gradients[name]).detach().double() / lift[:, None]
    sums = seen.gradients[bias].detach().double() / lift
    if not (bool(torch.isfinite(rows).all()) and bool(torch.isfinite(sums).all())):
        raise UnsupportedError(f"Expected finite gradients for {attack}, got NaN or infinite values.")
    order = thresholds.detach().argsort()  # the lowest bias is the highest threshold
    rows, sums = rows[order], sums[order]
    first = torch.zeros_like(rows[:1])
    between = torch.diff(rows, dim=0, prepend=first)
    weights = torch.diff(sums, prepend=first[:, 0])
    used = (weights.abs() > _ROUNDING * sums.abs().max()).nonzero().flatten()
    used = used[weights[used].abs().argsort(descending=True)[:most]]
    return (between[used] / weights[used, None]).float()


def decoder_rows(seen: GradientRelease, head: nn.Module, layout: Layout, most: int) -> tuple[Tensor, Tensor]:
    """Return the target tokens of a crafted language head, and their states, (states, width).

    All other tokens of one sign have the same gradient, which is the median of the rows of that sign.
    """
    names = ("head.weight", "head.bias")
    if any(n not in seen.gradients for n in names):
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, layout.width)
    rows, sums = (seen.gradients[n].detach().double() for n in names)
    positive = weight_of(head)[:, layout.free] > 0
    for sign in (positive, ~positive):
        rows, sums = rows.clone(), sums.clone()
        rows[sign] -= rows[sign].median(dim=0).values
        sums[sign] -= sums[sign].median()
    targets = (sums < -_ROUNDING * sums.abs().max()).nonzero().flatten()
    targets = targets[sums[targets].argsort()[:most]]
    return targets, (rows[targets] / sums[targets, None]).float()


def decode(states: Tensor, model: TextModel, anatomy: Anatomy, block: Block, layout: Layout, longest: int) -> Imprints:
    """Return the token and position of each state, by correlation within the coordinates of each.

    A norm shifts and scales all coordinates of a state together, so it preserves correlations. Comparing a state with
    that of its token gives the shift and scale, which are then removed from the tag.
    """
    embeddings = anatomy.embeddings
    words = _standard(embeddings.words[:, layout.words])
    codes = _standard(embeddings.positions[:longest, layout.places])
    chunks = [
        _decode(part, words, codes, model, anatomy, layout) for part in torch.split(states.to(embeddings.words), _CHUNK)
    ]
    tokens, places, matches, tags = (torch.cat(column) for column in zip(*chunks, strict=True))
    return Imprints(tokens, places, matches, tags, sources(anatomy, block, layout, tokens, places))


def _decode(
    states: Tensor, words: Tensor, codes: Tensor, model: TextModel, anatomy: Anatomy, layout: Layout
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_word, tokens = (_standard(states[:, layout.words]) @ words.mT).max(dim=1)
    by_place, places = (_standard(states[:, layout.places]) @ codes.mT).max(dim=1)
    full = slice(layout.tag, layout.free)
    expected = residual(model, anatomy, tokens, places)[:, full]
    actual = states[:, full]
    centred = expected - expected.mean(dim=1, keepdim=True)
    scale = (actual * centred).sum(dim=1, keepdim=True) / centred.square().sum(dim=1, keepdim=True)
    shift = actual.mean(dim=1, keepdim=True) - scale * expected.mean(dim=1, keepdim=True)
    tags = (states[:, layout.tags] - shift) / scale
    return tokens, places, torch.minimum(by_word, by_place), tags


def _standard(rows: Tensor) -> Tensor:
    return nn.functional.normalize(rows - rows.mean(dim=1, keepdim=True), dim=1)


def groups(imprints: Imprints, count: int, clear_match: float) -> list[Words]:
    """Return at most `count` sentences whose states share a tag, the largest first.

    Clear states form the groups; the others join the nearest group. Within a group, one state is assigned to each
    position so that the total match is largest.
    """
    if not len(imprints):
        return []
    tags, matches = imprints.tags.double().cpu().numpy(), imprints.matches.double().cpu().numpy()
    clear = np.flatnonzero(matches >= min(clear_match, float(np.median(matches))))
    labels = _clusters(tags[clear], count)
    largest = np.argsort(-np.bincount(labels), kind="stable")[:count]  # the remaining groups are mixtures of states
    centres = np.stack([np.median(tags[clear][labels == k], axis=0) for k in largest])
    distances = np.linalg.norm(tags[:, None] - centres, axis=2)
    nearest = np.where(distances.min(axis=1) <= _reach(centres), distances.argmin(axis=1), -1)
    by_group = [_words_of(imprints, np.flatnonzero(nearest == k), matches) for k in range(len(centres))]
    return sorted((words for words in by_group if words), key=len, reverse=True)[:count]


def _reach(centres: npt.NDArray[np.float64]) -> float:
    """Return the largest distance of a state from its group's tag: half the distance between the closest groups."""
    if len(centres) < 2:
        return math.inf
    distances = np.linalg.norm(centres[:, None] - centres, axis=2)
    return float(distances[distances > 0].min(initial=math.inf)) / 2


def _clusters(tags: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the group of each tag, by the finest clustering with most tags in `count` groups."""
    if len(tags) == 1:
        return np.zeros(1, dtype=np.int64)
    length = float(np.median(np.linalg.norm(tags, axis=1)))
    tree = linkage(tags, "average")
    for alike in _ALIKE:
        labels = np.asarray(fcluster(tree, alike * length, "distance") - 1, dtype=np.int64)
        if np.sort(np.bincount(labels))[-count:].sum() >= _MOST * len(tags):
            break
    return labels


def _words_of(imprints: Imprints, rows: npt.NDArray[np.int64], matches: npt.NDArray[np.float64]) -> Words:
    """Return the tokens of one group by position: the assignment of states to positions with the best total match."""
    if not len(rows):
        return {}
    tokens, places = imprints.tokens[rows].tolist(), imprints.places[rows].tolist()
    positions = sorted(set(places))
    scores = np.zeros((len(rows), len(positions)))
    for i, place in enumerate(places):
        scores[i, positions.index(place)] = matches[rows[i]]
    states, columns = linear_sum_assignment(scores, maximize=True)
    return {positions[j]: tokens[i] for i, j in zip(states, columns, strict=True) if scores[i, j] > 0}


def chains(imprints: Imprints, count: int) -> list[Words]:
    """Return at most `count` sentences of a causal model, the longest first.

    In a causal model a tag is the mean over the tokens up to a state's own. Subtracting the state's own contribution
    from its sum gives the sum at the previous position, so each state follows the state with that sum. Sentences with
    the same beginning share states, so the states form a tree, and a sentence is a path from the root to a leaf.
    """
    if not len(imprints):
        return []
    places = imprints.places.cpu().numpy()
    sums = imprints.tags.double().cpu().numpy() * (places[:, None] + 1)
    before = sums - imprints.sources.double().cpu().numpy()
    matches = imprints.matches.double().cpu().numpy()
    tokens = imprints.tokens.tolist()
    paths: dict[int, Words] = {}  # the path to each state at the previous position
    ended: list[Words] = []
    for place in range(int(places.max()) + 1):
        longer: dict[int, Words] = {}
        followed: set[int] = set()
        for row in _distinct(np.flatnonzero(places == place), sums, matches):
            path: Words = {}
            if paths:
                last = min(paths, key=lambda k: float(np.linalg.norm(before[row] - sums[k])))
                if _close(before[row], sums[last]):
                    path = paths[last]
                    followed.add(last)
            longer[row] = {**path, place: tokens[row]}
        ended += [path for row, path in paths.items() if row not in followed]
        paths = longer
    return sorted([*ended, *paths.values()], key=len, reverse=True)[:count]


def _close(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> bool:
    return bool(np.linalg.norm(first - second) <= _SAME * np.linalg.norm(second))


def _distinct(
    rows: npt.NDArray[np.int64], sums: npt.NDArray[np.float64], matches: npt.NDArray[np.float64]
) -> list[int]:
    """Return one row for each distinct sum: the one with the best match."""
    distinct: list[int] = []
    for row in rows[np.argsort(-matches[rows], kind="stable")].tolist():
        if not any(_close(sums[row], sums[k]) for k in distinct):
            distinct.append(row)
    return distinct


def sentences(words: Sequence[Words]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each sentence in order.

    >>> sentences([{2: 30, 0: 10, 1: 20}])
    ((10, 20, 30),)
    """
    return tuple(tuple(one[place] for place in sorted(one)) for one in words)
