"""Samplers: which units are in the batch of a step, and what that does to a step's privacy cost.

A sampler remembers nothing: the batch of step 17 is a function of the step and the source of randomness, so a training
that was stopped draws the same batches when it is resumed. `n` counts units of privacy, never rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from discreet.core.errors import UnsupportedError, invalid, probability, whole
from discreet.core.randomness import Rng

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

Indices = npt.NDArray[np.int64]
Visible = Literal["sum", "each"]


@runtime_checkable
class Sampler(Protocol):
    """What every sampler can do."""

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the units, of n, in the batch of a step."""
        ...

    def expected_size(self, n: int) -> float:
        """Return the expected number of units in a batch."""
        ...

    def steps_per_epoch(self, n: int) -> int:
        """Return after how many steps each unit has been drawn once, on average or exactly."""
        ...

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Return the event of one step, given how the batch was drawn and whether its sum or each vector is seen."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Each unit is in the batch with probability `rate`, independently of all others; a batch may be empty.

    Guarantee: the amplification is that of the clipped and noised *sum* of a batch divided by the expected size; it
    holds under add/remove and zero-out as long as nobody sees which units were drawn.

    >>> Poisson(0.25).draw(step=3, n=12, rng=Rng(7))
    array([ 0,  3,  5,  8,  9, 10])
    >>> Poisson(0.25).expected_size(12)
    3.0
    """

    rate: float

    def __post_init__(self) -> None:
        """Refuse what is no sampling rate."""
        remedy = "It is a probability: expected batch size / number of units."
        if not probability("rate", self.rate, remedy) > 0:
            raise invalid("rate", self.rate, "in (0, 1]", remedy)

    @classmethod
    def expecting(cls, size: float, n: int) -> Poisson:
        """Return the sampler whose batches hold `size` of `n` units on average."""
        whole("n", n)
        if not 0 < size <= n:
            raise invalid("size", size, f"in (0, {n}]", "A batch holds at most all units.")
        return cls(size / n)

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the units drawn at a step, in increasing order; perhaps none."""
        source = rng.fork("batch", step)
        if self.rate == 1:
            return np.arange(n, dtype=np.int64)
        # A unit is in if 64 random bits, read as a fraction, fall below the rate. One byte settles 255 of 256 units,
        # the other 7 bytes are drawn only where the first ties: an eighth of the random numbers, the same distribution.
        first, rest = divmod(int(self.rate * 2**64), 2**56)
        lead = np.frombuffer(source.bytes(n), dtype=np.uint8)
        ties = np.flatnonzero(lead == first)
        within = ties[(source.words(len(ties)) >> np.uint64(8)) < np.uint64(rest)]
        drawn = lead < first
        drawn[within] = True
        return np.flatnonzero(drawn).astype(np.int64, copy=False)

    def expected_size(self, n: int) -> float:
        """Return n times the rate: the divisor of the noisy sum, never the realised size."""
        return n * self.rate

    def steps_per_epoch(self, n: int) -> int:
        """Return after how many steps each unit has been drawn once on average."""
        return math.ceil(round(1 / self.rate, 9))

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Return `event` under Poisson sampling, of a sum; where each vector is seen, there is no proven figure."""
        from discreet.accounting.events import PoissonSampledDpEvent

        if visible == "each":
            raise UnsupportedError(
                f"Expected sampler={self!r} to be FixedSize where each vector is seen. The size of a Poisson batch, "
                "and a vector that is absent, would show; draw a fixed number."
            )
        return PoissonSampledDpEvent(self.rate, event)


@dataclass(frozen=True)
class FixedSize:
    """Each batch is `size` different units, drawn afresh at every step.

    Guarantee: the amplification is that of the clipped and noised sum under replace-one, where the number of units is
    public; it holds as long as nobody sees which units were drawn.

    >>> FixedSize(4).draw(step=3, n=12, rng=Rng(7))
    array([ 6,  7,  8, 10])
    """

    size: int

    def __post_init__(self) -> None:
        """Refuse a batch of nothing."""
        whole("size", self.size, remedy="It is the number of units in a batch.")

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the units drawn at a step, in increasing order."""
        self._check(n)
        source = rng.fork("batch", step)
        # Of the two, the drawn and the left out, the smaller is sampled.
        fewer = min(self.size, n - self.size)
        chosen = _distinct(fewer, n, source)
        if fewer == self.size:
            return np.sort(chosen)
        out = np.ones(n, dtype=bool)
        out[chosen] = False
        return np.flatnonzero(out).astype(np.int64, copy=False)

    def expected_size(self, n: int) -> float:
        """Return the size."""
        self._check(n)
        return float(self.size)

    def steps_per_epoch(self, n: int) -> int:
        """Return after how many steps each unit has been drawn about once on average."""
        self._check(n)
        return math.ceil(n / self.size)

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Return `event` under sampling without replacement, for a sum or for vectors that are seen one by one."""
        from discreet.accounting.events import SampledWithoutReplacementDpEvent, VisibleVectorsDpEvent

        self._check(n)
        if visible == "each":
            return VisibleVectorsDpEvent(event, self.size, n)
        return SampledWithoutReplacementDpEvent(n, self.size, event)

    def _check(self, n: int) -> None:
        if self.size > n:
            raise invalid("size", self.size, f"<= {n}, the number of units", "Take a smaller batch.")


@dataclass(frozen=True)
class Shuffled:
    """Each epoch is a new order of all units, cut into batches of `size`; the last may be smaller.

    Guarantee: no amplification. The batches of an epoch are disjoint, so under zero-out and replace-one an epoch costs
    what one use of each unit costs (`per_epoch`), whatever the number of steps.

    >>> [Shuffled(2).draw(step, 5, Rng(7)).tolist() for step in range(3)]
    [[0, 4], [2, 1], [3]]
    """

    size: int

    def __post_init__(self) -> None:
        """Refuse a batch of nothing."""
        whole("size", self.size, remedy="It is the number of units in a batch.")

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the units of a step, in the epoch's order."""
        if rng.is_secure:
            raise invalid(
                "rng", rng, "seeded", "An epoch's order is drawn again at every step; use Poisson or FixedSize."
            )
        epoch, batch = divmod(step, self.steps_per_epoch(n))
        order = _order(rng.fork("epoch", epoch).bytes(16), n)
        return order[batch * self.size : (batch + 1) * self.size].copy()

    def expected_size(self, n: int) -> float:
        """Return the average size of a batch."""
        return n / self.steps_per_epoch(n)

    def steps_per_epoch(self, n: int) -> int:
        """Return the number of batches in an epoch."""
        whole("n", n)
        return math.ceil(n / self.size)

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Refuse: shuffled batches have no proven amplification for a step."""
        raise UnsupportedError(
            f"Expected sampler={self!r} to be Poisson or FixedSize. Shuffled batches have no amplification: each epoch "
            "costs one full use of the event (Shuffled.per_epoch), under zero-out or replace-one."
        )

    def per_epoch(self, event: DpEvent) -> DpEvent:
        """Return the event of a whole epoch under zero-out or replace-one: one use, as the batches are disjoint."""
        return event


def _distinct(count: int, n: int, source: Rng) -> Indices:
    """Return `count` different numbers below n: the first different ones of a stream of uniform draws."""
    found: Indices = np.empty(0, dtype=np.int64)
    while len(found) < count:
        # n * 2^-53 is the largest bias of any number: below 2e-9 for ten million units.
        more = (source.uniform(count - len(found) + 8) * n).astype(np.int64)
        stream = np.concatenate([found, more])
        _, where = np.unique(stream, return_index=True)
        found = stream[np.sort(where)]
    return found[:count]


@lru_cache(maxsize=4)
def _order(tag: bytes, n: int) -> Indices:
    order = Rng(int.from_bytes(tag, "little")).permutation(n)
    order.setflags(write=False)
    return order
