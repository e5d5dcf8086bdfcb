"""Clipping rules, and the sum of clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from discreet.clipping.norms import capturing
from discreet.clipping.record import Record
from discreet.core.errors import invalid, positive

# Relative margin for rounding that no slot includes: the sums of squares and the division (measured below 2e-7).
_MARGIN = 2.0**-21
_LEAST = 1e-12


class Clip(Protocol):
    """A rule that computes a factor for every unit, so that no unit adds more than `sensitivity` to the sum."""

    @property
    def sensitivity(self) -> float:
        """The largest Euclidean norm of one unit's contribution to the sum."""
        ...

    def factors(self, record: Record) -> Tensor | dict[str, Tensor]:
        """Return each unit's factor, for all layers or by layer."""
        ...


@dataclass(frozen=True)
class Flat:
    """Clip the gradient of a unit, over all layers, to norm at most `norm`.

    >>> Flat(0.0)
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected norm to be > 0 and finite, got 0.0. It bounds ...
    """

    norm: float

    def __post_init__(self) -> None:
        """Check the norm."""
        _bound("norm", self.norm)

    @property
    def sensitivity(self) -> float:
        """The largest norm of one unit's contribution to the sum."""
        return self.norm

    def factors(self, record: Record) -> Tensor:
        """Return each unit's factor."""
        return _factors(record.upper_norms(), self.norm)


@dataclass(frozen=True)
class PerLayer:
    """Clip each layer's gradient of a unit separately: all layers to norm/sqrt(layers), or each to its own bound.

    >>> PerLayer(bounds={"encoder": 3.0, "head": 4.0}).sensitivity
    5.0
    """

    norm: float | None = None
    bounds: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        """Check that exactly one of norm and bounds is set, and its values."""
        if (self.norm is None) == (self.bounds is None):
            raise invalid(
                "norm",
                self.norm,
                "set if bounds is None, and None otherwise",
                "Set exactly one of the two.",
            )
        if self.norm is not None:
            _bound("norm", self.norm)
        for layer, bound in (self.bounds or {}).items():
            _bound(f"bounds[{layer!r}]", bound)

    @property
    def sensitivity(self) -> float:
        """The largest norm of one unit's contribution to the sum, over all layers."""
        if self.norm is not None:
            return self.norm
        return math.sqrt(sum(bound**2 for bound in (self.bounds or {}).values()))

    def factors(self, record: Record) -> dict[str, Tensor]:
        """Return each unit's factor, by layer."""
        layers = record.layers
        if self.norm is not None:
            bounds: Mapping[str, float] = dict.fromkeys(layers, self.norm / math.sqrt(max(len(layers), 1)))
        else:
            bounds = self.bounds or {}
            mismatched = sorted(set(bounds) ^ set(layers))
            if mismatched:
                raise invalid(
                    "bounds",
                    mismatched[0],
                    "names of every trainable layer and no other",
                    f"Layers: {', '.join(layers)}.",
                )
        return {layer: _factors(record.upper_norms(layer), bounds[layer]) for layer in layers}


@dataclass(frozen=True)
class Automatic:
    """Normalize instead of clipping: divide every gradient by its norm plus `stability`, and scale it to `norm`.

    Paper: Bu et al. 2023, Automatic clipping: differentially private deep learning made easier and stronger.
    """

    norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        """Check norm and stability."""
        _bound("norm", self.norm)
        positive("stability", self.stability, "It keeps small gradients small; the paper uses 0.01.")

    @property
    def sensitivity(self) -> float:
        """The largest norm of one unit's contribution to the sum."""
        return self.norm

    def factors(self, record: Record) -> Tensor:
        """Return each unit's factor."""
        return self.norm / (record.upper_norms() * (1 + _MARGIN) + self.stability)


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped gradients by parameter name, with each unit's norm before clipping and its factor.

    Guarantee: none by itself. No unit adds more than the clip's sensitivity to `gradients`, to which noise can be
    calibrated. `norms` and `factors` are private, with one number per unit.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    factors: Tensor | dict[str, Tensor]

    def __len__(self) -> int:
        """Return the number of units."""
        return self.norms.shape[0]

    def __add__(self, other: ClippedSum) -> ClippedSum:
        """Return the sum of two parts of a large batch. No unit may be in both."""
        gradients = {
            name: g if g is other.gradients[name] else g + other.gradients[name] for name, g in self.gradients.items()
        }
        return ClippedSum(gradients, torch.cat((self.norms, other.norms)), _joined(self.factors, other.factors))


def clipped_sum(record: Record, clip: Clip, *, keep: bool = False, into: dict[str, Tensor] | None = None) -> ClippedSum:
    """Return the sum over units of their clipped gradients, and free the record unless `keep` is set.

    A unit whose gradient is not finite adds nothing. Like any clip, this rule depends on that unit alone. With `into`,
    the sum is added to those tensors, which are returned, for a large batch in parts.

    Guarantee: none by itself. No unit adds more than `clip.sensitivity` to the sum, including the rounding of the
    scaled products. The sum is private until noise is added.
    """
    with torch.no_grad():
        norms = record.norms()
        if not capturing(norms):  # the code that replays a captured graph checks the norms
            not_finite = ~torch.isfinite(norms)
            if bool(not_finite.any()):
                record.zero(not_finite)
        factors = clip.factors(record)
        gradients = record.weighted_sum(factors, keep=keep, into=into)
    return ClippedSum(gradients, norms, factors)


def _bound(name: str, value: float) -> None:
    positive(name, value, "It bounds the contribution of one unit to the sum.")
    if value < _LEAST:
        raise invalid(name, value, f">= {_LEAST}", "Squares of smaller norms underflow in float32.")


def _factors(norms: Tensor, bound: float) -> Tensor:
    return (bound * (1 - _MARGIN) / norms).clamp_max(1.0)


def _joined(one: Tensor | dict[str, Tensor], other: Tensor | dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.cat((one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return {layer: torch.cat((f, other[layer])) for layer, f in one.items()}
    raise invalid("factors", "both kinds", "from one kind of clip", "Add parts that were clipped by the same rule.")
