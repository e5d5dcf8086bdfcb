"""Samplers: the units in the batch of a step, and the privacy amplification of that sampling.

A sampler has no state: the batch of step 17 is a function of the step and the generator, so a resumed training samples
the same batches. `n` is the number of privacy units, never of rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from discreet.core.errors import UnsupportedError, invalid, probability, whole
from discreet.core.randomness import Rng

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

Indices = npt.NDArray[np.int64]
Visible = Literal["sum", "each"]


class Sampler(ABC):
    """Base class of samplers: selects the units of each batch and accounts for the sampling.

    `name` tells its settings from those of `Poisson` and `FixedSize`, which have none. `drawing` says in a statement
    how units are drawn, by the names of the settings.
    """

    name: ClassVar[str] = ""
    drawing: ClassVar[str] = "In every step each {unit} is drawn with probability {rate}."
    separate_steps: ClassVar[bool] = True  # whether the batch of a step does not depend on those of other steps

    @abstractmethod
    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the units, of n, in the batch of a step."""

    @abstractmethod
    def expected_size(self, n: int) -> float:
        """Return the expected number of units in a batch."""

    @abstractmethod
    def steps_per_epoch(self, n: int) -> int:
        """Return the number of steps in which each unit is sampled once, on average or exactly."""

    @abstractmethod
    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Return the event of one step under this sampling, if its sum or each vector of it is visible."""

    @property
    def hides_absence(self) -> bool:
        """Whether all other units are sampled as before if one unit is removed, as add/remove requires."""
        return False

    def spend(self, event: DpEvent, step: int, n: int, visible: Visible = "sum") -> tuple[DpEvent, str]:
        """Return the event to record before a step, and its name; steps of the same name are counted once."""
        return self.amplify(event, n, visible), f"step {step}"

    def spends(self, steps: int, n: int) -> int:
        """Return the number of names under which so many steps are recorded."""
        return steps

    @property
    def facts(self) -> dict[str, float | int | str]:
        """The public settings, for the results of a run, with the name if it has one."""
        return {**({"name": self.name} if self.name else {}), **vars(self)}


@dataclass(frozen=True)
class Poisson(Sampler):
    """Each unit is in the batch with probability `rate`, independently of all others; a batch may be empty.

    Guarantee: the amplification is that of the clipped and noised *sum* of a batch divided by the expected size; it
    holds under add/remove and zero-out as long as the sampled units stay secret.

    >>> Poisson(0.25).draw(step=3, n=12, rng=Rng(7))
    array([ 0,  3,  5,  8,  9, 10])
    >>> Poisson(0.25).expected_size(12)
    3.0
    """

    rate: float

    def __post_init__(self) -> None:
        """Reject an invalid sampling rate."""
        remedy = "It is a probability: expected batch size / number of units."
        if not probability("rate", self.rate, remedy) > 0:
            raise invalid("rate", self.rate, "in (0, 1]", remedy)

    @classmethod
    def expecting(cls, size: float, n: int) -> Poisson:
        """Return the sampler with an expected batch size of `size` of `n` units."""
        whole("n", n)
        if not 0 < size <= n:
            raise invalid("size", size, f"in (0, {n}]", "A batch holds at most all units.")
        return cls(size / n)

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the sampled units of a step in increasing order; the batch may be empty."""
        source = rng.fork("batch", step)
        if self.rate == 1:
            return np.arange(n, dtype=np.int64)
        # A unit is sampled if 64 random bits, as a fraction, are below the rate. One byte decides for 255 of 256 units;
        # the other 7 bytes are generated only for ties: an eighth of the random numbers, the same distribution.
        first, rest = divmod(int(self.rate * 2**64), 2**56)
        lead = np.frombuffer(source.bytes(n), dtype=np.uint8)
        ties = np.flatnonzero(lead == first)
        within = ties[(source.words(len(ties)) >> np.uint64(8)) < np.uint64(rest)]
        sampled = lead < first
        sampled[within] = True
        return np.flatnonzero(sampled).astype(np.int64, copy=False)

    @property
    def hides_absence(self) -> bool:
        """Return True: units are sampled independently."""
        return True

    def expected_size(self, n: int) -> float:
        """Return n times the rate: the divisor of the noisy sum, never the actual size."""
        return n * self.rate

    def steps_per_epoch(self, n: int) -> int:
        """Return the number of steps in which each unit is sampled once on average."""
        return math.ceil(round(1 / self.rate, 9))

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Return `event` under Poisson sampling of a sum; raise an error if each vector is visible."""
        from discreet.accounting.events import PoissonSampledDpEvent

        if visible == "each":
            raise UnsupportedError(
                f"Expected sampler={self!r} to be FixedSize if each vector is visible. The size of a Poisson batch "
                "would reveal an absent vector; use a fixed size."
            )
        return PoissonSampledDpEvent(self.rate, event)


@dataclass(frozen=True)
class FixedSize(Sampler):
    """Each batch is a new sample of `size` distinct units.

    Guarantee: the amplification is that of the clipped and noised sum under replace-one, where the number of units is
    public; it holds as long as the sampled units stay secret.

    >>> FixedSize(4).draw(step=3, n=12, rng=Rng(7))
    array([ 6,  7,  8, 10])
    """

    size: int

    def __post_init__(self) -> None:
        """Reject an empty batch."""
        whole("size", self.size, remedy="It is the number of units in a batch.")

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the sampled units of a step in increasing order."""
        self._check(n)
        source = rng.fork("batch", step)
        # Sample the batch or its complement, whichever is smaller.
        fewer = min(self.size, n - self.size)
        units = _distinct(fewer, n, source)
        if fewer == self.size:
            return np.sort(units)
        sampled = np.ones(n, dtype=bool)
        sampled[units] = False
        return np.flatnonzero(sampled).astype(np.int64, copy=False)

    def expected_size(self, n: int) -> float:
        """Return the size."""
        self._check(n)
        return float(self.size)

    def steps_per_epoch(self, n: int) -> int:
        """Return the number of steps in which each unit is sampled about once on average."""
        self._check(n)
        return math.ceil(n / self.size)

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Return `event` under sampling without replacement, for a sum or for visible vectors."""
        from discreet.accounting.events import SampledWithoutReplacementDpEvent, VisibleVectorsDpEvent

        self._check(n)
        if visible == "each":
            return VisibleVectorsDpEvent(event, self.size, n)
        return SampledWithoutReplacementDpEvent(n, self.size, event)

    def _check(self, n: int) -> None:
        if self.size > n:
            raise invalid("size", self.size, f"<= {n}, the number of units", "Use a smaller batch.")


@dataclass(frozen=True)
class Shuffled(Sampler):
    """Each epoch is a new permutation of all units, divided into batches of `size`; the last may be smaller.

    Guarantee: no amplification. The batches of an epoch are disjoint, so under zero-out and replace-one an epoch costs
    what one use of each unit costs (`per_epoch`), whatever the number of steps.

    >>> [Shuffled(2).draw(step, 5, Rng(7)).tolist() for step in range(3)]
    [[0, 4], [2, 1], [3]]
    """

    size: int

    def __post_init__(self) -> None:
        """Reject an empty batch."""
        whole("size", self.size, remedy="It is the number of units in a batch.")

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the units of a step, in the order of the epoch."""
        if rng.is_secure:
            raise invalid(
                "rng", rng, "seeded", "The order of an epoch is recomputed at every step; use Poisson or FixedSize."
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
        """Raise an error: shuffled batches have no proven amplification for a step."""
        raise UnsupportedError(
            f"Expected sampler={self!r} to be Poisson or FixedSize. Shuffled batches have no amplification: each epoch "
            "costs one use of the event (Shuffled.per_epoch), under zero-out or replace-one."
        )

    def per_epoch(self, event: DpEvent) -> DpEvent:
        """Return the event of an epoch under zero-out or replace-one: one use, because the batches are disjoint."""
        return event

    def spend(self, event: DpEvent, step: int, n: int, visible: Visible = "sum") -> tuple[DpEvent, str]:
        """Return the event of the epoch of a step, under the name of the epoch."""
        return self.per_epoch(event), f"epoch {step // self.steps_per_epoch(n)}"

    def spends(self, steps: int, n: int) -> int:
        """Return the number of epochs that so many steps begin."""
        return -(-steps // self.steps_per_epoch(n))


@dataclass(frozen=True)
class TruncatedPoisson(Sampler):
    """Poisson batches of at most `largest` units: of a larger one, a uniform subset remains.

    Guarantee: that of the clipped and noised sum under zero-out, where an emptied unit keeps its place in a batch and
    the number of units is public; it holds as long as the sampled units stay secret.

    >>> TruncatedPoisson(0.25, largest=4).draw(step=3, n=12, rng=Rng(7))  # of 0, 3, 5, 8, 9, 10
    array([ 0,  5,  9, 10])
    """

    name: ClassVar[str] = "truncated-poisson"
    drawing: ClassVar[str] = (
        "In every step each {unit} is drawn with probability {rate}; of more than {largest} of them, {largest} remain, "
        "chosen at random."
    )

    rate: float
    largest: int

    def __post_init__(self) -> None:
        """Reject an invalid sampling rate and an empty batch."""
        Poisson(self.rate)
        whole("largest", self.largest, remedy="It is the largest number of units in a batch.")

    @classmethod
    def expecting(cls, size: int, n: int) -> TruncatedPoisson:
        """Return the sampler with this expected size, truncated six standard deviations above, where it costs nothing.

        >>> TruncatedPoisson.expecting(4096, 67349).largest
        4472
        """
        rate = Poisson.expecting(size, n).rate
        above = math.ceil((size + 6 * math.sqrt(size * (1 - rate))) / 8) * 8
        return cls(rate, min(above, n))

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the sampled units of a step in increasing order; the batch may be empty."""
        units = Poisson(self.rate).draw(step, n, rng)
        if len(units) <= self.largest:
            return units
        kept = _distinct(self.largest, len(units), rng.fork("truncate", step))
        return np.sort(units[kept])

    def expected_size(self, n: int) -> float:
        """Return n times the rate; truncation is so rare that it does not change the divisor."""
        return n * self.rate

    def steps_per_epoch(self, n: int) -> int:
        """Return the number of steps in which each unit is sampled once on average."""
        return Poisson(self.rate).steps_per_epoch(n)

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Return the event of a truncated batch; raise an error for anything but a noisy sum of clipped vectors."""
        from discreet.accounting.events import TruncatedSubsampledGaussianDpEvent

        noise = _noise_of(event, self, visible)
        return TruncatedSubsampledGaussianDpEvent(n, self.rate, self.largest, noise)


@dataclass(frozen=True)
class RandomAllocation(Sampler):
    """Each unit is in exactly one of the `bins` batches of an epoch, chosen at random and independently of the others.

    Guarantee: the amplification is that of the clipped and noised sums of an epoch, each divided by the expected size;
    it holds under add/remove and zero-out as long as the assignment stays secret.

    >>> [RandomAllocation(3).draw(step, 5, Rng(7)).tolist() for step in range(3)]
    [[0, 2, 4], [1], [3]]
    """

    name: ClassVar[str] = "random-allocation"
    drawing: ClassVar[str] = "In every {bins} steps each {unit} is drawn for exactly one of them, at random."
    separate_steps: ClassVar[bool] = False

    bins: int

    def __post_init__(self) -> None:
        """Reject an epoch without batches."""
        whole("bins", self.bins, remedy="It is the number of batches in an epoch.")

    @classmethod
    def expecting(cls, size: int, n: int) -> RandomAllocation:
        """Return the sampler with batches of at most this expected size."""
        return cls(math.ceil(n / whole("size", size)))

    @property
    def hides_absence(self) -> bool:
        """Return True: units are assigned independently."""
        return True

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the units of a step in increasing order; the batch may be empty."""
        _check_repeatable(rng)
        epoch, place = divmod(step, self.bins)
        return np.flatnonzero(_bins(rng.fork("epoch", epoch).bytes(16), n, self.bins) == place).astype(np.int64)

    def expected_size(self, n: int) -> float:
        """Return the expected number of units in a batch: the divisor of the noisy sum, never the actual size."""
        return n / self.bins

    def steps_per_epoch(self, n: int) -> int:
        """Return the number of batches."""
        return self.bins

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Raise an error: the cost of an epoch is not a composition of the costs of its steps."""
        raise UnsupportedError(f"Expected sampler={self!r} to account for whole epochs (RandomAllocation.spend).")

    def spend(self, event: DpEvent, step: int, n: int, visible: Visible = "sum") -> tuple[DpEvent, str]:
        """Return the event of the epoch of a step, under the name of the epoch."""
        from discreet.accounting.events import NoGuaranteeDpEvent, RandomAllocationDpEvent

        if visible == "each":
            raise _only_sums(self)
        allocated = event if isinstance(event, NoGuaranteeDpEvent) else RandomAllocationDpEvent(event, self.bins)
        return allocated, f"epoch {step // self.bins}"

    def spends(self, steps: int, n: int) -> int:
        """Return the number of epochs that so many steps begin."""
        return -(-steps // self.bins)


@dataclass(frozen=True)
class CyclicPoisson(Sampler):
    """Units are divided once into `groups` of equal size; step t samples group t mod `groups`, each unit at `rate`.

    At rate 1 every unit is in the same batch of every cycle.

    Guarantee: under zero-out, where the number of units is public, a unit can be in one step of a cycle only, so a
    cycle costs one Poisson-sampled use. Noise that is correlated over at most `groups` steps has the same cost with
    the norm of a column of its matrix (docs/accounting.md).

    >>> [CyclicPoisson(3, 1.0).draw(step, 5, Rng(7)).tolist() for step in range(4)]
    [[1, 2], [0, 4], [3], [1, 2]]
    """

    name: ClassVar[str] = "cyclic-poisson"
    drawing: ClassVar[str] = (
        "The {unit}s are divided once, at random, into {groups} groups, which the steps take in turn. Each {unit} of a "
        "step's group is drawn with probability {rate}."
    )
    separate_steps: ClassVar[bool] = False

    groups: int
    rate: float

    def __post_init__(self) -> None:
        """Reject an invalid sampling rate and no groups."""
        Poisson(self.rate)
        whole("groups", self.groups)

    def draw(self, step: int, n: int, rng: Rng) -> Indices:
        """Return the units of a step in increasing order."""
        _check_repeatable(rng)
        group = np.sort(_order(rng.fork("groups").bytes(16), n)[step % self.groups :: self.groups])
        return group[Poisson(self.rate).draw(step, len(group), rng)] if len(group) else group

    def expected_size(self, n: int) -> float:
        """Return the average number of units in a batch."""
        return n * self.rate / self.groups

    def steps_per_epoch(self, n: int) -> int:
        """Return the number of steps in which each unit is sampled once on average."""
        return math.ceil(round(self.groups / self.rate, 9))

    def amplify(self, event: DpEvent, n: int, visible: Visible = "sum") -> DpEvent:
        """Return the event of a cycle, in which a unit can be sampled once."""
        return Poisson(self.rate).amplify(event, n, visible)

    def spend(self, event: DpEvent, step: int, n: int, visible: Visible = "sum") -> tuple[DpEvent, str]:
        """Return the event of the cycle of a step, under the name of the cycle."""
        return self.amplify(event, n, visible), f"cycle {step // self.groups}"

    def spends(self, steps: int, n: int) -> int:
        """Return the number of cycles that so many steps begin."""
        return -(-steps // self.groups)


# Those that a user chooses by name, with batches of an expected size (`expecting`).
SAMPLERS: dict[str, type[Poisson | TruncatedPoisson | RandomAllocation]] = {
    "poisson": Poisson,
    TruncatedPoisson.name: TruncatedPoisson,
    RandomAllocation.name: RandomAllocation,
}
KINDS: tuple[type[Sampler], ...] = (*SAMPLERS.values(), FixedSize, Shuffled, CyclicPoisson)


def sampler_kind(facts: Mapping[str, Any]) -> type[Sampler]:
    """Return the class of the sampler with these facts; without a name, that of Poisson batches."""
    return next((kind for kind in KINDS if kind.name and kind.name == facts.get("name")), Poisson)


def _noise_of(event: DpEvent, sampler: Sampler, visible: Visible) -> float:
    """Return the noise multiplier of a sum of clipped vectors; raise an error for any other event."""
    from discreet.accounting.events import ClippedSumDpEvent, NoGuaranteeDpEvent

    if isinstance(event, NoGuaranteeDpEvent):
        return 0.0
    if visible == "each" or not isinstance(event, ClippedSumDpEvent) or event.occurrences != 1:
        raise _only_sums(sampler)
    return event.noise_multiplier


def _only_sums(sampler: Sampler) -> UnsupportedError:
    return UnsupportedError(
        f"Expected sampler={sampler!r} to be Poisson or FixedSize. Its cost is proven only for a noisy sum of clipped "
        "vectors."
    )


def _check_repeatable(rng: Rng) -> None:
    if rng.is_secure:
        remedy = "The batches of an epoch are recomputed at every step; use Rng.secret(), or Poisson batches."
        raise invalid("rng", rng, "reproducible", remedy)


def _distinct(count: int, n: int, source: Rng) -> Indices:
    """Return `count` distinct numbers below n: the first distinct ones of a stream of uniform samples."""
    distinct: Indices = np.empty(0, dtype=np.int64)
    while len(distinct) < count:
        # n * 2^-53 bounds the bias of any number: below 2e-9 for ten million units.
        more = (source.uniform(count - len(distinct) + 8) * n).astype(np.int64)
        stream = np.concatenate([distinct, more])
        _, where = np.unique(stream, return_index=True)
        distinct = stream[np.sort(where)]
    return distinct[:count]


@lru_cache(maxsize=4)
def _bins(tag: bytes, n: int, bins: int) -> Indices:
    # n * 2^-53 bounds the bias of any number: below 2e-9 for ten million units.
    places = (Rng(int.from_bytes(tag, "little")).uniform(n) * bins).astype(np.int64)
    places.setflags(write=False)
    return places


@lru_cache(maxsize=4)
def _order(tag: bytes, n: int) -> Indices:
    order = Rng(int.from_bytes(tag, "little")).permutation(n)
    order.setflags(write=False)
    return order
