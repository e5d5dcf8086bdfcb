"""Reads states of single tokens out of the gradients of crafted layers, and says which token each was, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from discreet.attacks.gradient.crafted import Layout, residual, sources
from discreet.attacks.gradient.layers import Anatomy, Block
from discreet.core.errors import UnsupportedError
from discreet.core.types import GradientRelease
from discreet.models.classifier import Classifier

_AT_ONCE = 512  # states compared with the whole vocabulary at one time
_ROUNDING = 1e-5  # a bin's part of the largest sum below which it holds rounding errors alone


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
