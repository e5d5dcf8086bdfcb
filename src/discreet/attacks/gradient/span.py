"""The span of a layer's inputs as its weight gradients show it, and how far a state lies outside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from discreet.attacks.gradient.layers import Projection
from discreet.core.errors import UnsupportedError
from discreet.core.types import GradientRelease

_MOST_SLACK = 0.05
_TINY = 1e-300
_GREY = 8.0  # how far above `rounding` the widest gap between singular values is looked for


@dataclass(frozen=True)
class Span:
    """An orthonormal basis, (rank, width), in float64, and the weight of each of its directions in the gradients.

    `slack` is how far noise, or what the client's arithmetic lost, may have turned it away from true states.
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
        """Whether every state lies inside or nearly so, so that nothing can be told apart.

        One direction short of the width is full: behind a LayerNorm with fresh weights no state has more.
        """
        return self.basis.shape[0] >= self.basis.shape[1] - 1

    def distance(self, states: Tensor) -> Tensor:
        """Return the sine of the angle between states and the span: 0 inside, 1 at right angles to it."""
        unit = torch.nn.functional.normalize(states.to(self.basis.dtype), dim=-1)
        away: Tensor = unit - (unit @ self.basis.mT) @ self.basis
        lengths: Tensor = torch.linalg.vector_norm(away, dim=-1)
        return lengths


def shares(span: Span, states: Tensor, rounds: int = 60) -> Tensor:
    """Return how much of a span each of many states inside it must carry, if as few states as can be carry it all.

    Where a token stands at two positions, other tokens of the one position lie in the span at the other as well: the
    states are then more than the dimensions, and which of them made the span is not told by lying in it. Among all ways
    to write the gradients as sums over the states, the one with the least sum of lengths gives most of the aliases a
    small share (iteratively reweighted least squares; p = 1).
    """
    unit = torch.nn.functional.normalize(states.to(span.basis.dtype), dim=-1)
    parts = (unit @ span.basis.mT).mT  # (rank, states)
    identity = torch.eye(span.rank, dtype=parts.dtype, device=parts.device)
    wanted = torch.diag(span.weights)
    lengths = torch.ones(parts.shape[1], dtype=parts.dtype, device=parts.device)
    for _ in range(rounds):
        weighted = parts * lengths
        normal = weighted @ parts.mT
        ridge = 1e-14 * normal.diagonal().mean() * identity
        lengths = (weighted.mT @ torch.linalg.solve(normal + ridge, wanted)).norm(dim=1) + 1e-12
    return lengths


def span_of(seen: GradientRelease, projections: Sequence[Projection], rounding: float, attack: str) -> Span:
    """Return the span of the inputs of projections that share them, from those of their gradients that were released.

    A weight gradient is the sum over tokens of (output gradient) x (input), so its rows are combinations of the inputs.
    Without noise, singular values below `rounding` times the largest are rounding errors, and so are larger ones where
    a gap that is wider than the one at `rounding` lies not far above; with noise, those below the largest that the
    noise alone would have.
    """
    present = [p for p in projections if p.name in seen.gradients]
    if not present:
        raise UnsupportedError(
            f"Expected gradients of {projections[0].name!r} or its neighbours for {attack}, found none in the release. "
            "A head alone, or the last blocks alone, do not carry the inputs of the first ones."
        )
    rows = [p.rows(seen.gradients[p.name]).detach().double() for p in present]
    if seen.noise_std == 0 and any(".lora_A." in p.name for p in present) and not any(bool(r.any()) for r in rows):
        raise UnsupportedError(
            f"Expected gradients of {present[0].name!r} other than zero for {attack}. Before its first step an "
            "adapter's second factor is zero, and so is the gradient of the first; attack a later step."
        )
    if not all(bool(torch.isfinite(part).all()) for part in rows):
        raise UnsupportedError(f"Expected finite gradients for {attack}, found others. Nothing can be read from them.")
    if seen.noise_std > 0:
        matrix = torch.cat(rows)
        edge = seen.noise_std * (math.sqrt(matrix.shape[0]) + math.sqrt(matrix.shape[1]))
    else:  # each part to the same size, as rounding errors go with a part's own
        matrix = torch.cat([part / part.norm().clamp_min(torch.finfo(part.dtype).tiny) for part in rows])
        edge = 0.0
    values, basis = torch.linalg.svd(matrix, full_matrices=False)[1:]
    rank = _rank(values, rounding) if edge == 0 else int((values > max(edge, rounding * float(values[0]))).sum())
    lost = max(edge, float(values[rank])) if rank < len(values) else edge
    if rank == matrix.shape[0] < matrix.shape[1] and seen.noise_std == 0 and seen.guarantee is None:
        raise UnsupportedError(
            f"Expected fewer than {rank} tokens for {attack}, found gradients of {present[0].name!r} and its "
            f"neighbours of {rank} rows, all independent. Low-rank adapters show no more states than they have rows; "
            "attack a smaller batch."
        )
    # The turn is at most the noise over the weakest direction kept; wrong tokens begin not far above the cap.
    slack = min(_MOST_SLACK, lost / float(values[rank - 1])) if rank else 0.0
    return Span(basis[:rank], values[:rank], slack)


def _rank(values: Tensor, rounding: float) -> int:
    """Return how many singular values are more than rounding errors: the cut is at the widest gap near `rounding`.

    Rounding differs from one machine to another by a few times, and a fixed threshold would count some of it as
    directions on one and not on the other. True values end far above it, so the gap is wide.

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


def require_room(seen: GradientRelease, span: Span, attack: str) -> bool:
    """Return whether a span tells states apart; refuse one that does not though nothing protects the release."""
    total, width = sum(seen.lengths or ()), span.basis.shape[1]
    if total >= width:
        raise UnsupportedError(
            f"Expected a batch of fewer than {width} tokens for {attack}, found {total}. Their states fill the model's "
            "width, so every state lies in their span; attack a smaller batch."
        )
    if not span.fills_the_width:
        return True
    if seen.noise_std == 0 and seen.guarantee is None:
        raise UnsupportedError(
            f"Expected a batch of fewer than {width} tokens for {attack}, found gradients of rank {span.rank}. "
            "The span of the inputs fills the model's width, so every token lies in it; attack a smaller batch."
        )
    return False
