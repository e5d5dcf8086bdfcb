"""What an attacker sees of a whole training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from discreet.accounting.events import DpEvent
from discreet.core.guarantee import Caveat
from discreet.data.samplers import FixedSize, Poisson

if TYPE_CHECKING:
    from discreet.data.samplers import Sampler


@dataclass(frozen=True)
class Updates:
    """All updates of one training: how many, how often a unit is in one, and the event of all of them together.

    `per_step` is the number of units expected in an update, `certified` whether what the event costs is proven for it,
    and `caveats` are those of the training that it was taken from.
    """

    steps: int
    rate: float
    event: DpEvent = field(repr=False)
    per_step: float = 1.0
    certified: bool = True
    caveats: frozenset[Caveat] = frozenset()


def rate_of(sampler: Sampler | None, units: int) -> float | None:
    """Return how likely a unit is to be in one update, where the sampler draws every update afresh."""
    if isinstance(sampler, Poisson):
        return sampler.rate
    return sampler.size / units if isinstance(sampler, FixedSize) else None
