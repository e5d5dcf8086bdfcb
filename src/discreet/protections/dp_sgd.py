"""DP-SGD: every unit's gradient is cut to a norm, and Gaussian noise hides the sum.

Paper: Abadi et al. 2016, Deep learning with differential privacy.
Differs: clipping in one backward pass; automatic and per-layer clipping; the divisor is the expected batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from discreet.clipping.clip import Automatic, Clip, Flat, PerLayer, clipped_sum
from discreet.clipping.record import Record
from discreet.core.checks import non_negative, one_of, positive, probability, refuse, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.mechanisms.normals import add_normals
from discreet.protections.gradient import Visible

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

CLIPPINGS = ("flat", "per-layer", "automatic")


@dataclass(frozen=True)
class DPSGD:
    """Cut each unit's gradient to `clip_norm` and add Gaussian noise of noise_multiplier * clip_norm to the sum.

    Guarantee: for one unit (the rows of one person, summed and cut once), what its event says after the sampler and the
        number of steps: certified under zero-out with Poisson batches, if batches and noise stay secret. The rate, the
        divisor, delta and the number of steps are functions of the number of units, which is therefore public. Where
        they come from a number that was given beforehand (`population`), the same figure holds under add/remove. The
        divisor must be the expected batch size, never the realised one.

    >>> DPSGD(noise_multiplier=1.0).event
    ClippedSumDpEvent(noise_multiplier=1.0, occurrences=1)
    >>> round(DPSGD.for_budget(epsilon=3, delta=1e-5, sampling_rate=0.01, steps=10_000).noise_multiplier, 2)
    1.57
    """

    noise_multiplier: float
    clip_norm: float = 0.1
    clipping: str = "flat"
    name: ClassVar[str] = "dp-sgd"

    def __post_init__(self) -> None:
        """Refuse noise and norms that are none."""
        non_negative("noise_multiplier", self.noise_multiplier, "It is the noise's standard deviation over clip_norm.")
        positive("clip_norm", self.clip_norm, "It bounds what one unit adds to the sum.")
        one_of("clipping", self.clipping, CLIPPINGS)

    @classmethod
    def for_budget(
        cls,
        epsilon: float,
        delta: float,
        *,
        sampling_rate: float,
        steps: int,
        clip_norm: float = 0.1,
        clipping: str = "flat",
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    ) -> DPSGD:
        """Return the protection with the least noise that keeps a whole training within epsilon at delta."""
        from discreet.accounting.calibrate import least_noise

        positive("epsilon", epsilon, "It is the budget of the whole training.")
        noise = least_noise(_training(sampling_rate, steps), epsilon=epsilon, delta=delta, adjacency=adjacency)
        return cls(noise, clip_norm, clipping)

    @classmethod
    def for_risk(
        cls,
        true_positive_rate: float,
        false_positive_rate: float,
        *,
        sampling_rate: float,
        steps: int,
        clip_norm: float = 0.1,
        clipping: str = "flat",
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    ) -> DPSGD:
        """Return the protection with the least noise under which no membership attack does better than these rates."""
        from discreet.accounting.risk import least_noise_for_risk

        noise = least_noise_for_risk(
            _training(sampling_rate, steps),
            true_positive_rate=true_positive_rate,
            false_positive_rate=false_positive_rate,
            adjacency=adjacency,
        )
        return cls(noise, clip_norm, clipping)

    @property
    def event(self) -> DpEvent:
        """What one noisy sum costs a unit that is certainly in it."""
        from discreet.accounting.events import ClippedSumDpEvent, NoGuaranteeDpEvent

        if self.noise_multiplier == 0:
            return NoGuaranteeDpEvent("no noise was added")
        return ClippedSumDpEvent(self.noise_multiplier)

    @property
    def visible(self) -> Visible:
        """The noise hides the sum of a batch."""
        return "sum"

    @property
    def adjacency(self) -> Adjacency:
        """A unit is made empty: the number of units is public, unless a population is given instead."""
        return Adjacency.ZERO_OUT

    @property
    def clip(self) -> Clip:
        """The rule by which a unit's gradient is cut."""
        if self.clipping == "per-layer":
            return PerLayer(self.clip_norm)
        return Automatic(self.clip_norm) if self.clipping == "automatic" else Flat(self.clip_norm)

    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add the clipped gradients of some units to the sums, and free their record."""
        clipped_sum(record, self.clip, into=sums)

    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        """Return the sums with noise added, each parameter's from a stream of its own."""
        return add_normals(sums, self.noise_multiplier * self.clip.sensitivity, rng)


def _training(sampling_rate: float, steps: int) -> Callable[[float], DpEvent]:
    """Return the event of a whole training as a function of its noise."""
    from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    if not probability("sampling_rate", sampling_rate, "It is expected batch size / number of units.") > 0:
        raise refuse("sampling_rate", sampling_rate, "in (0, 1]", "It is expected batch size / number of units.")
    whole("steps", steps)

    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(sampling_rate, ClippedSumDpEvent(noise)), steps)

    return event
