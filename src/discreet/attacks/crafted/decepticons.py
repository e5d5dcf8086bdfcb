"""Decepticons: a malicious server sends crafted weights, and reads whole sentences out of the gradient they give.

States of single tokens are read out of the gradients of crafted layers, each state is decoded to a token and a
position, and states are grouped into sentences: by a tag that they share, or by running means.
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

from discreet.attacks.base import Attack, Need
from discreet.attacks.crafted.weights import Layout, craft, residual, sources
from discreet.attacks.encoder_layers import Anatomy, Block, blocks_of, dissect, model_of
from discreet.core.errors import UnsupportedError, positive, probability, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, Release
from discreet.models.classifier import Classifier
from discreet.models.language_model import LanguageModel

_NAME = "Decepticons"
_ROWS = 4  # neighbouring bins that a state may show in, as the steps are not quite sharp
_AT_ONCE = 512  # states compared with the whole vocabulary at one time
_ROUNDING = 1e-5  # a bin's part of the largest sum below which it holds rounding errors alone
Words = dict[int, int]  # position to token
_ALIKE = (0.02, 0.05, 0.1, 0.2, 0.4)  # distances of tags, relative to their usual length, tried for one sentence
_SAME = 0.02  # how far two running sums may differ, relative to their length, and be the same
_MOST = 0.8  # the part of the clear states that the sentences together must hold


@dataclass(frozen=True)
class Decepticons(Attack):
    """An active attack in two acts: `craft` makes the weights that the server sends, `run` reads what comes back.

    `sharpness` makes the activation a step: a state is either above a threshold or below it. A state counts if it
    correlates with its token and its position at least by `least_match`; those above `clear_match` form the sentences.
    At most `states` states are read from each layer. Lengths are used if the release has them, and no label is.

    Paper: Fowl et al. 2023, "Decepticons: Corrupted Transformers Breach Privacy in Federated Learning for Language
    Models".
    Differs: every block measures along a direction of its own, so that states which share a bin in one are alone in
    another; words and positions have coordinates of their own, so that both are read exactly through any LayerNorm;
    a sentence's tag is the mean over its tokens, as the first token of a BERT is always the same; the second
    feed-forward layers alternate in sign; masked tokens are read from the language head's gradient.
    """

    sharpness: float = 1e3
    least_match: float = 0.6
    clear_match: float = 0.99
    states: int = 2048

    name: ClassVar[str] = "decepticons"
    sees: ClassVar[type[Release]] = GradientRelease
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CRAFTED_MODEL})

    def __post_init__(self) -> None:
        """Check the settings."""
        positive("sharpness", self.sharpness)
        probability("least_match", self.least_match, "It is a correlation.")
        probability("clear_match", self.clear_match, "It is a correlation.")
        whole("states", self.states)

    def craft(self, model: Classifier, rng: Rng) -> Classifier:
        """Return a copy of a model with the weights that the server sends to its clients."""
        return craft(model, self.sharpness, rng)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the sentences of a batch from the gradient of the crafted model; nothing here is random.

        `details` has the token ids, the number of states that were read, and how well each sentence's matched.
        """
        model = model_of(knows, _NAME)
        anatomy, blocks, layout = dissect(model), blocks_of(model), Layout.of(model.width)
        _require_crafted(blocks)
        longest = max(seen.lengths) if seen.lengths else model.max_length
        most = min(self.states, _ROWS * sum(seen.lengths)) if seen.lengths else self.states
        parts: list[Imprints] = []
        for block in blocks:
            states = feed_forward_rows(seen, block, layout, most, _NAME)
            if len(states):
                parts.append(decode(states, model, anatomy, blocks[0], layout, longest))
        if isinstance(model, LanguageModel) and model.objective == "masked":
            parts = [_less_sure(part, int(model.tokenizer.mask_token_id)) for part in parts]
            tokens, states = decoder_rows(seen, model.head, layout, most)
            if len(states):
                asked = decode(states, model, anatomy, blocks[0], layout, longest)
                parts.append(replace(asked, tokens=tokens.to(asked.tokens)))
        if not parts:
            return Guess(details={"tokens": (), "states": 0})
        found = joined(parts)
        found = found.take((found.matches >= self.least_match).nonzero().flatten())
        words = chains(found, seen.batch_size) if anatomy.causal else groups(found, seen.batch_size, self.clear_match)
        rows = sentences(words)
        details: dict[str, Any] = {"tokens": rows, "states": len(found)}
        texts = tuple(model.tokenizer.decode(list(row), skip_special_tokens=True) for row in rows)
        return Guess(texts=texts, details=details)


def _less_sure(part: Imprints, mask: int) -> Imprints:
    """Let a hidden token's own state give way to what the language head says stood there."""
    return replace(part, matches=torch.where(part.tokens == mask, 0.97 * part.matches, part.matches))


def _require_crafted(blocks: tuple[Block, ...]) -> None:
    for block in blocks:
        weight = block.inner.rows(block.inner.module.weight)  # type: ignore[arg-type]
        if not torch.equal(weight, weight[:1].expand_as(weight)):
            raise UnsupportedError(
                f"Expected the crafted model in Knowledge(model=…) for {_NAME}, found ordinary weights in "
                f"{block.inner.name!r}. Send out Decepticons().craft(model, rng) first; it is an active attack."
            )


@dataclass(frozen=True)
class Imprints:
    """States that were read, one to a row: token, position, how well it matches, and its sentence's tag.

    `source` is what the token itself adds to the tag's mean.
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


def joined(parts: Sequence[Imprints]) -> Imprints:
    """Return the states of several readings together."""
    return Imprints(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Imprints)))


def feed_forward_rows(seen: GradientRelease, block: Block, layout: Layout, most: int, attack: str) -> Tensor:
    """Return the states that a crafted feed-forward layer's gradient holds, at most some, (states, width).

    A row sums up all states above its threshold, so two neighbours differ by the states between theirs: the difference
    of the weight's gradient over that of the bias's is the state itself, if it is alone there, whatever its own weight.
    """
    name = block.inner.name
    bias = f"{name.removesuffix('.weight')}.bias"
    missing = [n for n in (name, bias) if n not in seen.gradients]
    if missing:
        raise UnsupportedError(
            f"Expected the gradient of {missing[0]!r} for {attack}, found none in the release. The feed-forward layers "
            "are frozen or not shared; a head alone carries no single state."
        )
    thresholds = block.inner.module.bias
    assert isinstance(thresholds, Tensor)
    lift = block.outer.rows(_weight(block.outer.module))[layout.free].double()
    rows = block.inner.rows(seen.gradients[name]).detach().double() / lift[:, None]
    sums = seen.gradients[bias].detach().double() / lift
    if not (bool(torch.isfinite(rows).all()) and bool(torch.isfinite(sums).all())):
        raise UnsupportedError(f"Expected finite gradients for {attack}, found others. Nothing can be read from them.")
    order = thresholds.detach().argsort()  # the lowest bias is the highest threshold
    rows, sums = rows[order], sums[order]
    first = torch.zeros_like(rows[:1])
    between = torch.diff(rows, dim=0, prepend=first)
    weights = torch.diff(sums, prepend=first[:, 0])
    held = (weights.abs() > _ROUNDING * sums.abs().max()).nonzero().flatten()
    held = held[weights[held].abs().argsort(descending=True)[:most]]
    return (between[held] / weights[held, None]).float()


def decoder_rows(seen: GradientRelease, head: nn.Module, layout: Layout, most: int) -> tuple[Tensor, Tensor]:
    """Return the tokens that a crafted language head was asked for, and the states at which it was, (states, width).

    Tokens that were not asked for have the same gradient if their sign is the same; it is the median of a sign's rows.
    """
    names = ("head.weight", "head.bias")
    if any(n not in seen.gradients for n in names):
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, layout.width)
    rows, sums = (seen.gradients[n].detach().double() for n in names)
    positive = _weight(head)[:, layout.free] > 0
    for sign in (positive, ~positive):
        rows, sums = rows.clone(), sums.clone()
        rows[sign] -= rows[sign].median(dim=0).values
        sums[sign] -= sums[sign].median()
    asked = (sums < -_ROUNDING * sums.abs().max()).nonzero().flatten()
    asked = asked[sums[asked].argsort()[:most]]
    return asked, (rows[asked] / sums[asked, None]).float()


def decode(states: Tensor, model: Classifier, anatomy: Anatomy, block: Block, layout: Layout, longest: int) -> Imprints:
    """Return which token at which position each state is, by correlation within the coordinates of either.

    A norm only shifts and stretches all coordinates of a state together, so it leaves correlations as they are. The
    same shift and stretch, found by comparing the state with what the token gives, are taken away from the tag.
    """
    embeddings = anatomy.embeddings
    words = _standard(embeddings.words[:, layout.words])
    codes = _standard(embeddings.positions[:longest, layout.places])
    found = [
        _decode(part, words, codes, model, anatomy, layout)
        for part in torch.split(states.to(embeddings.words), _AT_ONCE)
    ]
    tokens, places, matches, tags = (torch.cat(column) for column in zip(*found, strict=True))
    return Imprints(tokens, places, matches, tags, sources(anatomy, block, layout, tokens, places))


def _decode(
    states: Tensor, words: Tensor, codes: Tensor, model: Classifier, anatomy: Anatomy, layout: Layout
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_word, tokens = (_standard(states[:, layout.words]) @ words.mT).max(dim=1)
    by_place, places = (_standard(states[:, layout.places]) @ codes.mT).max(dim=1)
    full = slice(layout.tag, layout.free)
    given = residual(model, anatomy, tokens, places)[:, full]
    found = states[:, full]
    centred = given - given.mean(dim=1, keepdim=True)
    stretch = (found * centred).sum(dim=1, keepdim=True) / centred.square().sum(dim=1, keepdim=True)
    shift = found.mean(dim=1, keepdim=True) - stretch * given.mean(dim=1, keepdim=True)
    tags = (states[:, layout.tags] - shift) / stretch
    return tokens, places, torch.minimum(by_word, by_place), tags


def _standard(rows: Tensor) -> Tensor:
    return nn.functional.normalize(rows - rows.mean(dim=1, keepdim=True), dim=1)


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def groups(found: Imprints, count: int, sure: float) -> list[Words]:
    """Return at most `count` sentences whose states share a tag, the largest first.

    Clear states form the groups; the others join the nearest. Within a group, states are assigned to positions so that
    the total match is largest, one to a position.
    """
    if not len(found):
        return []
    tags, matches = found.tags.double().cpu().numpy(), found.matches.double().cpu().numpy()
    clear = np.flatnonzero(matches >= min(sure, float(np.median(matches))))
    labels = _clusters(tags[clear], count)
    largest = np.argsort(-np.bincount(labels), kind="stable")[:count]  # what is left over are mixtures of states
    centres = np.stack([np.median(tags[clear][labels == k], axis=0) for k in largest])
    away = np.linalg.norm(tags[:, None] - centres, axis=2)
    nearest = np.where(away.min(axis=1) <= _reach(centres), away.argmin(axis=1), -1)
    made = [_placed(found, np.flatnonzero(nearest == k), matches) for k in range(len(centres))]
    return sorted((words for words in made if words), key=len, reverse=True)[:count]


def _reach(centres: npt.NDArray[np.float64]) -> float:
    """Return how far from its group's tag a state may lie: half of the way to the next group."""
    if len(centres) < 2:
        return math.inf
    apart = np.linalg.norm(centres[:, None] - centres, axis=2)
    return float(apart[apart > 0].min(initial=math.inf)) / 2


def _clusters(tags: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the number of each tag's group, cut as finely as leaves most tags in `count` groups."""
    if len(tags) == 1:
        return np.zeros(1, dtype=np.int64)
    length = float(np.median(np.linalg.norm(tags, axis=1)))
    tree = linkage(tags, "average")
    for alike in _ALIKE:
        labels = np.asarray(fcluster(tree, alike * length, "distance") - 1, dtype=np.int64)
        if np.sort(np.bincount(labels))[-count:].sum() >= _MOST * len(tags):
            break
    return labels


def _placed(found: Imprints, rows: npt.NDArray[np.int64], matches: npt.NDArray[np.float64]) -> Words:
    """Return the tokens of one group by position: the assignment of states to positions with the best total match."""
    if not len(rows):
        return {}
    tokens, places = found.tokens[rows].tolist(), found.places[rows].tolist()
    positions = sorted(set(places))
    scores = np.zeros((len(rows), len(positions)))
    for i, place in enumerate(places):
        scores[i, positions.index(place)] = matches[rows[i]]
    taken, columns = linear_sum_assignment(scores, maximize=True)
    return {positions[j]: tokens[i] for i, j in zip(taken, columns, strict=True) if scores[i, j] > 0}


def chains(found: Imprints, count: int) -> list[Words]:
    """Return at most `count` sentences of a causal model, the longest first.

    There a tag is the mean over the tokens up to a state's own. What is left of its sum without the state's own part is
    the sum at the position before: each state follows the one whose sum that is. Sentences that begin alike share
    states, so the states form a tree, and a sentence is a way from the root to a leaf.
    """
    if not len(found):
        return []
    places = found.places.cpu().numpy()
    sums = found.tags.double().cpu().numpy() * (places[:, None] + 1)
    before = sums - found.sources.double().cpu().numpy()
    matches = found.matches.double().cpu().numpy()
    tokens = found.tokens.tolist()
    ways: dict[int, Words] = {}  # the way to each state at the position before
    ended: list[Words] = []
    for place in range(int(places.max()) + 1):
        longer: dict[int, Words] = {}
        followed: set[int] = set()
        for row in _distinct(np.flatnonzero(places == place), sums, matches):
            way: Words = {}
            if ways:
                last = min(ways, key=lambda k: float(np.linalg.norm(before[row] - sums[k])))
                if _close(before[row], sums[last]):
                    way = ways[last]
                    followed.add(last)
            longer[row] = {**way, place: tokens[row]}
        ended += [way for row, way in ways.items() if row not in followed]
        ways = longer
    return sorted([*ended, *ways.values()], key=len, reverse=True)[:count]


def _close(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> bool:
    return bool(np.linalg.norm(first - second) <= _SAME * np.linalg.norm(second))


def _distinct(
    rows: npt.NDArray[np.int64], sums: npt.NDArray[np.float64], matches: npt.NDArray[np.float64]
) -> list[int]:
    """Return one row of each that have the same sums: the one that matches best."""
    kept: list[int] = []
    for row in rows[np.argsort(-matches[rows], kind="stable")].tolist():
        if not any(_close(sums[row], sums[k]) for k in kept):
            kept.append(row)
    return kept


def sentences(words: Sequence[Words]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each sentence in order.

    >>> sentences([{2: 30, 0: 10, 1: 20}])
    ((10, 20, 30),)
    """
    return tuple(tuple(one[place] for place in sorted(one)) for one in words)
