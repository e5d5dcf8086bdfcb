"""The span of a layer's inputs, from its weight gradients, and the distance of a state from it.

`token_sets` tests the whole vocabulary at every position against the span of the first block's inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from discreet.attacks.encoder_layers import Embeddings, Projection
from discreet.core.errors import UnsupportedError
from discreet.core.types import GradientRelease

_MOST_SLACK = 0.05
_TINY = 1e-300
_GREY = 8.0  # the widest gap between singular values is searched up to this factor above `rounding`
_CHUNK = 16  # positions whose distances are computed at once
_SCREEN = 0.05  # float32 squared distances are exact to about 1e-6: tokens below this are tested again in float64


@dataclass(frozen=True)
class Span:
    """An orthonormal basis, (rank, width), in float64, and the weight of each direction in the gradients.

    `slack` bounds the rotation of the span by noise or by the client's rounding errors.
    """

    basis: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)
    slack: float = 0.0

    @property
    def rank(self) -> int:
        """The number of independent directions."""
        return self.basis.shape[0]

    @property
    def fills_the_width(self) -> bool:
        """Whether every state lies in the span, or nearly so, so that states cannot be distinguished.

        A rank of the width minus one is full: after a LayerNorm with initial weights no state has more dimensions.
        """
        return self.basis.shape[0] >= self.basis.shape[1] - 1

    def distance(self, states: Tensor) -> Tensor:
        """Return the sine of the angle between states and the span: 0 inside, 1 if orthogonal."""
        unit = torch.nn.functional.normalize(states.to(self.basis.dtype), dim=-1)
        residual: Tensor = unit - (unit @ self.basis.mT) @ self.basis
        distances: Tensor = torch.linalg.vector_norm(residual, dim=-1)
        return distances


def shares(span: Span, states: Tensor, rounds: int = 60) -> Tensor:
    """Return the share of each state in a span, in the sparsest combination of states that explains it.

    If a token occurs at two positions, other tokens of one position lie in the span at the other as well (aliases).
    There are then more states than dimensions, and lying in the span does not tell which of them produced it. Among all
    ways to write the gradients as sums over the states, the one with the smallest sum of norms gives most aliases a
    small share (iteratively reweighted least squares; p = 1).
    """
    unit = torch.nn.functional.normalize(states.to(span.basis.dtype), dim=-1)
    parts = (unit @ span.basis.mT).mT  # (rank, states)
    identity = torch.eye(span.rank, dtype=parts.dtype, device=parts.device)
    target = torch.diag(span.weights)
    lengths = torch.ones(parts.shape[1], dtype=parts.dtype, device=parts.device)
    for _ in range(rounds):
        weighted = parts * lengths
        normal = weighted @ parts.mT
        ridge = 1e-14 * normal.diagonal().mean() * identity
        lengths = (weighted.mT @ torch.linalg.solve(normal + ridge, target)).norm(dim=1) + 1e-12
    return lengths


def span_of(seen: GradientRelease, projections: Sequence[Projection], rounding: float, attack: str) -> Span:
    """Return the span of the shared inputs of projections, from their released gradients.

    A weight gradient is the sum over tokens of (output gradient) x (input), so its rows are combinations of the inputs.
    Without noise, singular values below `rounding` times the largest are rounding errors, and so are slightly larger
    ones below a wider gap; with noise, those below the largest singular value of the noise.
    """
    present = [p for p in projections if p.name in seen.gradients]
    if not present:
        raise UnsupportedError(
            f"Expected gradients of {projections[0].name!r} or its neighbours for {attack}, got none in the release. "
            "A head alone, or the last blocks alone, do not contain the inputs of the first ones."
        )
    rows = [p.rows(seen.gradients[p.name]).detach().double() for p in present]
    if seen.noise_std == 0 and any(".lora_A." in p.name for p in present) and not any(bool(r.any()) for r in rows):
        raise UnsupportedError(
            f"Expected nonzero gradients of {present[0].name!r} for {attack}. Before the first step an adapter's "
            "second factor is zero, and so is the gradient of the first; attack a later step."
        )
    if not all(bool(torch.isfinite(part).all()) for part in rows):
        raise UnsupportedError(f"Expected finite gradients for {attack}, got NaN or infinite values.")
    if seen.noise_std > 0:
        matrix = torch.cat(rows)
        edge = seen.noise_std * (math.sqrt(matrix.shape[0]) + math.sqrt(matrix.shape[1]))
    else:  # normalize each part, as rounding errors are relative to it
        matrix = torch.cat([part / part.norm().clamp_min(torch.finfo(part.dtype).tiny) for part in rows])
        edge = 0.0
    values, basis = torch.linalg.svd(matrix, full_matrices=False)[1:]
    rank = _rank(values, rounding) if edge == 0 else int((values > max(edge, rounding * float(values[0]))).sum())
    lost = max(edge, float(values[rank])) if rank < len(values) else edge
    if rank == matrix.shape[0] < matrix.shape[1] and seen.noise_std == 0 and seen.guarantee is None:
        raise UnsupportedError(
            f"Expected fewer than {rank} tokens for {attack}, got gradients of {present[0].name!r} and its neighbours "
            f"of {rank} rows, all independent. Low-rank adapters reveal at most as many states as they have rows; "
            "attack a smaller batch."
        )
    # The rotation is at most the noise over the smallest kept singular value; the cap is just below wrong tokens.
    slack = min(_MOST_SLACK, lost / float(values[rank - 1])) if rank else 0.0
    return Span(basis[:rank], values[:rank], slack)


def _rank(values: Tensor, rounding: float) -> int:
    """Return the number of singular values above rounding errors: the cutoff is the widest gap near `rounding`.

    Rounding errors differ between machines by a small factor, and a fixed threshold would count some of them as
    directions on one machine and not on another. True values are far above them, so the gap is wide.

    >>> _rank(torch.tensor([1.0, 1e-3, 5e-7, 3e-7, 1e-8]), 4e-7)
    2
    >>> _rank(torch.tensor([1.0, 1e-3, 5e-4, 3e-8]), 4e-7), _rank(torch.zeros(3), 4e-7)
    (3, 0)
    """
    largest = float(values[0])
    most, fewest = (int((values > times * rounding * largest).sum()) for times in (1.0, _GREY))
    if not most:
        return 0
    below = [*values.tolist(), rounding * largest]
    return max(range(max(1, fewest), most + 1), key=lambda count: below[count - 1] / max(below[count], _TINY))


def is_informative(seen: GradientRelease, span: Span, attack: str) -> bool:
    """Return whether a span can distinguish states; raise if it cannot although the release is not protected."""
    total, width = sum(seen.lengths or ()), span.basis.shape[1]
    if total >= width:
        raise UnsupportedError(
            f"Expected a batch of fewer than {width} tokens for {attack}, got {total}. Their states span the model's "
            "whole width, so every state lies in their span; attack a smaller batch."
        )
    if not span.fills_the_width:
        return True
    if seen.noise_std == 0 and seen.guarantee is None:
        raise UnsupportedError(
            f"Expected a batch of fewer than {width} tokens for {attack}, got gradients of rank {span.rank}. The "
            "inputs span the model's whole width, so every token lies in their span; attack a smaller batch."
        )
    return False


def token_sets(embeddings: Embeddings, span: Span, distance: float, longest: int) -> list[list[int]]:
    """Return the tokens whose first-block input lies in the span, for each position up to the first without any."""
    if span.rank == 0:
        return []
    screen = _Screen(embeddings, span)
    sets: list[list[int]] = []
    limit = min(longest, embeddings.positions.shape[0])
    if not embeddings.has_positions:  # a token that may stand at one position may stand at all
        first = token_sets(replace(embeddings, position_name="none"), span, distance, 1)
        return first * limit
    for start in range(0, limit, _CHUNK):
        places = torch.arange(start, min(start + _CHUNK, limit), device=embeddings.words.device)
        near = screen.squares(places) <= max(distance, _SCREEN) ** 2
        for column, place in enumerate(places.tolist()):
            tokens = near[:, column].nonzero().flatten()
            inside = span.distance(embeddings.inputs(tokens, torch.full_like(tokens, place))) <= distance
            if not bool(inside.any()):
                return sets
            sets.append(tokens[inside].tolist())
    return sets


class _Screen:
    """Squared distances of every token at many positions, from a few matrix products.

    With u = word + position + constant, centred, the input is z = w * u / s + b. Its projection and its norm are
    quadratic in u, and u is a sum. So the (tokens, width) matrix is only multiplied by matrices with one column per
    position or direction of the span, and is never formed again for each position.
    """

    def __init__(self, embeddings: Embeddings, span: Span) -> None:
        norm = embeddings.norm
        self.eps = norm.eps or 0.0
        self.scale = norm.weight.detach()
        self.words = embeddings.words + embeddings.constant
        self.places = embeddings.positions
        if isinstance(norm, torch.nn.LayerNorm):  # an RMSNorm neither centres nor shifts
            self.bias = norm.bias.detach()
            self.words = self.words - self.words.mean(dim=1, keepdim=True)
            self.places = self.places - self.places.mean(dim=1, keepdim=True)
        else:
            self.bias = torch.zeros_like(self.scale)
        self.basis = span.basis.to(self.words.dtype)
        self.onto = (self.basis * self.scale).mT  # (width, rank)
        self.shift = self.basis @ self.bias
        self.word_parts = self.words @ self.onto
        self.word_squares = self.words.square().sum(dim=1)
        self.word_lengths = (self.words * self.scale).square().sum(dim=1)
        self.word_bias = self.words @ (self.scale * self.bias)

    def squares(self, places: Tensor) -> Tensor:
        """Return squared distances, (tokens, positions)."""
        rows = self.places[places]
        width = rows.shape[1]
        spread = self.word_squares[:, None] + rows.square().sum(dim=1) + 2 * (self.words @ rows.mT)
        deviation = (spread / width + self.eps).clamp_min(torch.finfo(spread.dtype).tiny).sqrt()
        scaled = rows * self.scale
        length = self.word_lengths[:, None] + scaled.square().sum(dim=1) + 2 * (self.words @ (scaled * self.scale).mT)
        length = length / deviation.square()
        length += 2 * (self.word_bias[:, None] + rows @ (self.scale * self.bias)) / deviation + self.bias.square().sum()
        parts = rows @ self.onto  # (positions, rank)
        inside = self.word_parts.square().sum(dim=1)[:, None] + parts.square().sum(dim=1)
        inside = (inside + 2 * (self.word_parts @ parts.mT)) / deviation.square()
        inside += 2 * ((self.word_parts @ self.shift)[:, None] + parts @ self.shift) / deviation
        inside += self.shift.square().sum()
        return 1 - inside / length.clamp_min(torch.finfo(length.dtype).tiny)


def nearest_tokens(embeddings: Embeddings, span: Span, length: int, count: int) -> tuple[Tensor, Tensor]:
    """Return, for each position of a length, the tokens closest to the span and their distances, (length, count)."""
    screen = _Screen(embeddings, span)
    tokens: list[Tensor] = []
    distances: list[Tensor] = []
    for start in range(0, length, _CHUNK):
        places = torch.arange(start, min(start + _CHUNK, length), device=embeddings.words.device)
        near = screen.squares(places).clamp_min(0).topk(min(count, embeddings.words.shape[0]), dim=0, largest=False)
        tokens.append(near.indices.mT)
        distances.append(near.values.mT.sqrt())
    return torch.cat(tokens), torch.cat(distances)
