"""DP-SGD: clip the gradient of every unit and add Gaussian noise to the sum.

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
from discreet.core.settings import option_field
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

_CLIPPINGS: dict[str, Callable[[float], Clip]] = {"flat": Flat, "per-layer": PerLayer, "automatic": Automatic}


@dataclass(frozen=True)
class DPSGD(GradientProtection):
    """Clip each unit's gradient to `clip_norm` and add Gaussian noise of noise_multiplier * clip_norm to the sum.

    Set a budget (`epsilon`, at `delta` or its default), a limit on membership attacks (`true_positive_rate` at
    `false_positive_rate`), or the noise itself. With a budget and a limit, the larger noise is used. With a noise and
    an epsilon, training stops at that epsilon.

    Guarantee: for one unit (the rows of one person, summed and clipped once), the epsilon of its event composed over
        sampler and steps: certified under zero-out with Poisson batches, if batches and noise stay secret. The rate,
        the divisor, delta and the number of steps are functions of the number of units, which is therefore public.
        If they are computed from a public number instead (`population`), the same figure holds under add/remove.
        The divisor must be the expected batch size, never the actual one.

    >>> DPSGD(noise_multiplier=1.0).event
    ClippedSumDpEvent(noise_multiplier=1.0, occurrences=1)
    >>> round(DPSGD.for_budget(epsilon=3, delta=1e-5, sampling_rate=0.01, steps=10_000).noise_multiplier, 2)
    1.57
    """

    noise_multiplier: float | None = option_field(
        None,
        "Standard deviation of the noise over the clip norm; if epsilon is also set, training stops at that budget.",
        "Budget",
    )
    clip_norm: float = option_field(0.1, "Gradients of a unit are clipped to this norm.", "Method")
    clipping: str = option_field("flat", "flat (one norm for all layers), per-layer or automatic.", "Method")
    epsilon: float | None = option_field(None, "Privacy budget of one unit for the whole run.", "Budget")
    delta: float | None = field(default=None, metadata=DELTA)
    true_positive_rate: float | None = option_field(
        None, "Instead of epsilon: the highest true positive rate that any membership attack may reach.", "Budget"
    )
    false_positive_rate: float = option_field(
        0.01, "False positive rate at which the true positive rate is limited.", "Budget", show=False
    )
    name: ClassVar[str] = "dp-sgd"
    learns_little: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject settings outside their range, and settings that do not determine the noise."""
        check_budget(self.epsilon, self.delta)
        if self.noise_multiplier is not None:
            remedy = "It is the noise's standard deviation over clip_norm."
            non_negative("noise_multiplier", self.noise_multiplier, remedy)
        if self.true_positive_rate is not None:
            open_probability("true_positive_rate", self.true_positive_rate)
            open_probability("false_positive_rate", self.false_positive_rate)
        positive("clip_norm", self.clip_norm, "It bounds what one unit adds to the sum.")
        one_of("clipping", self.clipping, _CLIPPINGS)
        if self.noise_multiplier is None and self.epsilon is None and self.true_positive_rate is None:
            raise SettingError(
                f"Expected {setting('epsilon')}, {setting('noise_multiplier')} or {setting('true_positive_rate')} for "
                f"dp-sgd. One of them sets the noise; {setting('epsilon', 3)} is a common start."
            )

    def resolve(self, conditions: Conditions) -> DPSGD:
        """Return the protection with its noise: the one that was set, or the largest that a target needs."""
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
        """Return the same protection without its budget, which the plan keeps."""
        return DPSGD(self.noise_multiplier, self.clip_norm, self.clipping)

    def defaults(self, part: str, units: int, width: int) -> TrainDefaults:
        """Return large batches, so that many gradients share one noise, but not so large that few steps remain.

        >>> DPSGD(epsilon=3).defaults("all", 67349, 384).batch_size
        4096
        """
        frozen, batch = part in FROZEN, max(64, min(4096, units // 8))
        # Adapters: of the rates 1e-3, 2e-3, 3e-3, 5e-3 and 1e-2 the last but one is best (docs/results.md).
        rate = 2e-2 if frozen else 5e-3 if part.startswith("lora") else 1e-3
        return TrainDefaults(40.0 if frozen else 15.0, batch, rate, 0.0, 0.0, False)

    def identity(self) -> object:
        """Return the settings that determine its random values."""
        names = ("noise_multiplier", "clip_norm", "clipping")
        return "DPSGD", {name: getattr(self, name) for name in names}

    @property
    def noise(self) -> float:
        """Noise multiplier of a resolved protection."""
        if self.noise_multiplier is None:
            raise UnsupportedError(
                "Expected a resolved dp-sgd, got one with a budget only. Its noise depends on the number of units and "
                "steps; make a training plan, or call resolve(conditions)."
            )
        return self.noise_multiplier

    @property
    def signal_norm(self) -> float:
        """Clip norm."""
        return self.clip_norm

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on each coordinate of a sum."""
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
        """Return the protection with the least noise that keeps the whole training within epsilon at delta.

        It keeps the budget, so that a training run with more steps or larger batches stops there.
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
        """Return the protection with the least noise under which no membership attack exceeds these rates."""
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
        """Privacy event of one noisy sum, for a unit that is in it with certainty."""
        from discreet.accounting.events import ClippedSumDpEvent, NoGuaranteeDpEvent

        if self.noise == 0:
            return NoGuaranteeDpEvent("no noise was added")
        return ClippedSumDpEvent(self.noise)

    @property
    def visible(self) -> Visible:
        """Only the noisy sum of a batch is visible."""
        return "sum"

    @property
    def adjacency(self) -> Adjacency:
        """The rows of a unit are emptied: the number of units is public, unless a population is set instead."""
        return Adjacency.ZERO_OUT

    @property
    def clip(self) -> Clip:
        """Clipping rule for the gradient of a unit."""
        return _CLIPPINGS[self.clipping](self.clip_norm)

    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add the clipped gradients of the recorded units to the sums, and free the record."""
        clipped_sum(record, self.clip, into=sums)

    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        """Return the sums with noise added; each parameter has its own stream of noise."""
        return add_normals(sums, self.noise * self.clip.sensitivity, rng)


def _training(sampling_rate: float, steps: int) -> Callable[[float], DpEvent]:
    """Return the event of the whole training as a function of its noise."""
    from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    remedy = "It is expected batch size / number of units."
    if not probability("sampling_rate", sampling_rate, remedy) > 0:
        raise invalid("sampling_rate", sampling_rate, "in (0, 1]", remedy)
    whole("steps", steps)

    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(sampling_rate, ClippedSumDpEvent(noise)), steps)

    return event
