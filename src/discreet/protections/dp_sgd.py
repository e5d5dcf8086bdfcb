"""DP-SGD: every unit's gradient is clipped to a norm, and Gaussian noise hides the sum.

Paper: Abadi et al. 2016, Deep learning with differential privacy.
Differs: clipping in one backward pass; automatic and per-layer clipping; the divisor is the expected batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from discreet.clipping.clip import Automatic, Clip, Flat, PerLayer, clipped_sum
from discreet.clipping.record import Record
from discreet.core.errors import (
    SettingError,
    UnsupportedError,
    invalid,
    non_negative,
    one_of,
    open_probability,
    positive,
    probability,
    setting,
    whole,
)
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.settings import option
from discreet.mechanisms.normals import add_normals
from discreet.protections.base import (
    DELTA,
    FROZEN,
    Conditions,
    GradientProtection,
    TrainDefaults,
    Visible,
    check_budget,
)

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

CLIPPINGS = ("flat", "per-layer", "automatic")


@dataclass(frozen=True)
class DPSGD(GradientProtection):
    """Clip each unit's gradient to `clip_norm` and add Gaussian noise of noise_multiplier * clip_norm to the sum.

    Ask for it with a budget (`epsilon`, at `delta` or the default one), with the most any membership attack may reach
    (`true_positive_rate` at `false_positive_rate`), or with its noise; with several, the largest noise is taken. An
    epsilon beside a noise is a limit at which training stops.

    Guarantee: for one unit (the rows of one person, summed and clipped once), what its event says after the sampler and
        the number of steps: certified under zero-out with Poisson batches, if batches and noise stay secret. The rate,
        the divisor, delta and the number of steps are functions of the number of units, which is therefore public.
        Where they come from a number that was given beforehand (`population`), the same figure holds under add/remove.
        The divisor must be the expected batch size, never the realised one.

    >>> DPSGD(noise_multiplier=1.0).event
    ClippedSumDpEvent(noise_multiplier=1.0, occurrences=1)
    >>> round(DPSGD.for_budget(epsilon=3, delta=1e-5, sampling_rate=0.01, steps=10_000).noise_multiplier, 2)
    1.57
    """

    noise_multiplier: float | None = field(
        default=None,
        metadata=option(
            "Standard deviation of the noise over the clip norm; with epsilon too, training stops at that budget.",
            "Budget",
        ),
    )
    clip_norm: float = field(default=0.1, metadata=option("Gradients of a unit are clipped to this norm.", "Method"))
    clipping: str = field(
        default="flat", metadata=option("flat (one norm for all layers), per-layer or automatic.", "Method")
    )
    epsilon: float | None = field(
        default=None, metadata=option("Privacy budget of the whole training, for one unit.", "Budget")
    )
    delta: float | None = field(default=None, metadata=DELTA)
    true_positive_rate: float | None = field(
        default=None,
        metadata=option(
            "Instead of epsilon: the highest true positive rate that any membership attack may reach.", "Budget"
        ),
    )
    false_positive_rate: float = field(
        default=0.01,
        repr=False,
        metadata=option("False positive rate at which the true positive rate is limited.", "Budget"),
    )
    name: ClassVar[str] = "dp-sgd"
    learns_little: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject settings outside their range, and none that says how much noise."""
        check_budget(self.epsilon, self.delta)
        if self.noise_multiplier is not None:
            remedy = "It is the noise's standard deviation over clip_norm."
            non_negative("noise_multiplier", self.noise_multiplier, remedy)
        if self.true_positive_rate is not None:
            open_probability("true_positive_rate", self.true_positive_rate)
            open_probability("false_positive_rate", self.false_positive_rate)
        positive("clip_norm", self.clip_norm, "It bounds what one unit adds to the sum.")
        one_of("clipping", self.clipping, CLIPPINGS)
        if self.noise_multiplier is None and self.epsilon is None and self.true_positive_rate is None:
            raise SettingError(
                f"Expected {setting('epsilon')}, {setting('noise_multiplier')} or {setting('true_positive_rate')} for "
                f"dp-sgd. One of them sets the noise; {setting('epsilon', 3)} is a common start."
            )

    def resolve(self, conditions: Conditions) -> DPSGD:
        """Return the protection with the noise that was asked for, or the largest that a target needs."""
        if self.noise_multiplier is not None:
            return self.without_budget()
        candidates: list[DPSGD] = []
        shared: dict[str, Any] = {
            "sampling_rate": conditions.sampling_rate,
            "steps": conditions.steps,
            "clip_norm": self.clip_norm,
            "clipping": self.clipping,
        }
        if self.epsilon is not None:
            candidates.append(DPSGD.for_budget(self.epsilon, conditions.delta, **shared).without_budget())
        if self.true_positive_rate is not None:
            candidates.append(DPSGD.for_risk(self.true_positive_rate, self.false_positive_rate, **shared))
        return max(candidates, key=lambda one: one.noise)

    def without_budget(self) -> DPSGD:
        """Return the noise alone, as it runs; the budget is the plan's."""
        return DPSGD(self.noise_multiplier, self.clip_norm, self.clipping)

    def defaults(self, part: str, units: int, width: int) -> TrainDefaults:
        """Return large batches, so that many gradients share one noise, but not so large that few steps are left.

        >>> DPSGD(epsilon=3).defaults("all", 67349, 384).batch_size
        4096
        """
        frozen, batch = part in FROZEN, max(64, min(4096, units // 8))
        return TrainDefaults(40.0 if frozen else 15.0, batch, 2e-2 if frozen else 1e-3, 0.0, 0.0, False)

    def identity(self) -> object:
        """Return what decides its draws."""
        kept = ("noise_multiplier", "clip_norm", "clipping")
        return "DPSGD", {name: getattr(self, name) for name in kept}

    @property
    def noise(self) -> float:
        """The noise multiplier of a resolved protection."""
        if self.noise_multiplier is None:
            raise UnsupportedError(
                "Expected a resolved dp-sgd, found one asked for with a budget. Its noise depends on the number of "
                "units and steps; make a training plan, or call resolve(conditions)."
            )
        return self.noise_multiplier

    @property
    def signal_norm(self) -> float:
        """The clip norm."""
        return self.clip_norm

    @property
    def noise_scale(self) -> float:
        """The standard deviation of the noise on each coordinate of a sum."""
        return self.noise * self.clip_norm

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
        """Return the protection with the least noise that keeps a whole training within epsilon at delta.

        It carries the budget, at which a training of other steps or batches stops.
        """
        from discreet.accounting.calibrate import least_noise

        positive("epsilon", epsilon, "It is the budget of the whole training.")
        noise = least_noise(_training(sampling_rate, steps), epsilon=epsilon, delta=delta, adjacency=adjacency)
        return cls(noise, clip_norm, clipping, epsilon, delta)

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

        if self.noise == 0:
            return NoGuaranteeDpEvent("no noise was added")
        return ClippedSumDpEvent(self.noise)

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
        """The rule by which a unit's gradient is clipped."""
        if self.clipping == "per-layer":
            return PerLayer(self.clip_norm)
        return Automatic(self.clip_norm) if self.clipping == "automatic" else Flat(self.clip_norm)

    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add the clipped gradients of some units to the sums, and free their record."""
        clipped_sum(record, self.clip, into=sums)

    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        """Return the sums with noise added, each parameter's from a stream of its own."""
        return add_normals(sums, self.noise * self.clip.sensitivity, rng)


def _training(sampling_rate: float, steps: int) -> Callable[[float], DpEvent]:
    """Return the event of a whole training as a function of its noise."""
    from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    if not probability("sampling_rate", sampling_rate, "It is expected batch size / number of units.") > 0:
        raise invalid("sampling_rate", sampling_rate, "in (0, 1]", "It is expected batch size / number of units.")
    whole("steps", steps)

    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(sampling_rate, ClippedSumDpEvent(noise)), steps)

    return event
