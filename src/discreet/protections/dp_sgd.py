"""DP-SGD: clip the gradient of every unit and add Gaussian noise to the sum.

Paper: Abadi et al. 2016, Deep learning with differential privacy.
Differs: clipping in one backward pass; automatic and per-layer clipping; the divisor is the expected batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from discreet.clipping.record import Record
from discreet.clipping.tape import Automatic, Clip, Flat, PerLayer, clipped_sum
from discreet.core.errors import (
    SettingError,
    UnsupportedError,
    invalid,
    positive,
    probability,
    setting,
    whole,
)
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.rules import NonNegative, OneOf, OpenProbability, Positive, check_fields
from discreet.core.settings import option_field
from discreet.data.samplers import SAMPLERS, CyclicPoisson, Poisson, Sampler
from discreet.mechanisms.correlated import (
    BANDED,
    CORRELATIONS,
    INDEPENDENT,
    LAMBDA_CGD,
    REMEDY,
    Banded,
    CorrelatedNormals,
    Correlation,
    Floats,
    LambdaCGD,
)
from discreet.mechanisms.normals import add_normals
from discreet.models.pairs import PAIR_WIDTH
from discreet.models.settings import TrainDefaults
from discreet.protections.base import (
    BUDGET,
    DELTA,
    FROZEN,
    Conditions,
    GradientProtection,
    Release,
    Visible,
)

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

_DECAY, _BANDS = 0.9, 4
HEAD_SHARE = 0.2  # share of the steps of the head alone, before all layers: docs/decisions/private_training.md
_CLIPPINGS: dict[str, Callable[[float], Clip]] = {"flat": Flat, "per-layer": PerLayer, "automatic": Automatic}


@dataclass(frozen=True)
class DPSGD(GradientProtection):
    """Clip each unit's gradient to `clip_norm` and add Gaussian noise of noise_multiplier * clip_norm to the sum.

    Set a budget (`epsilon`, at `delta` or its default), a limit on membership attacks (`true_positive_rate` at
    `false_positive_rate`), or the noise itself. With a budget and a limit, the larger noise is used. With a noise and
    an epsilon, training stops at that epsilon.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm; if epsilon is also set, training stops at
            that budget.
        clip_norm: Gradients of a unit are clipped to this norm.
        clipping: flat (one norm for all layers), per-layer or automatic.
        epsilon: Privacy budget of one unit for the whole run.
        delta: Delta of the guarantee; well below 1 / number of units. By default 0.1 / number of units, at most 1e-5.
        true_positive_rate: Instead of epsilon: the highest true positive rate that any membership attack may reach.
        false_positive_rate: False positive rate at which the true positive rate is limited.
        sampler: poisson, truncated-poisson, random-allocation. By default poisson; set by the correlation.
        correlation: Noise between steps: independent, lambda-cgd or banded. By default independent.
        decay: Share of the last step's noise that lambda-cgd subtracts. By default 0.9.
        bands: Steps over which banded noise is correlated. By default 4.
        public: Public text with the same labels, a corpus or file: train on it first, without noise.

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
        rule=NonNegative("It is the noise's standard deviation over clip_norm."),
    )
    clip_norm: float = option_field(
        0.1,
        "Gradients of a unit are clipped to this norm.",
        "Method",
        rule=Positive("It bounds what one unit adds to the sum."),
    )
    clipping: str = option_field(
        "flat", "flat (one norm for all layers), per-layer or automatic.", "Method", rule=OneOf(tuple(_CLIPPINGS))
    )
    epsilon: float | None = option_field(None, "Privacy budget of one unit for the whole run.", "Budget", rule=BUDGET)
    delta: float | None = field(default=None, metadata=DELTA)
    true_positive_rate: float | None = option_field(
        None,
        "Instead of epsilon: the highest true positive rate that any membership attack may reach.",
        "Budget",
        rule=OpenProbability(),
    )
    false_positive_rate: float = option_field(
        0.01,
        "False positive rate at which the true positive rate is limited.",
        "Budget",
        show=False,
        rule=OpenProbability(),
    )
    sampler: str | None = option_field(
        None, f"{', '.join(SAMPLERS)}.", "Method", "poisson; set by the correlation", rule=OneOf(tuple(SAMPLERS))
    )
    correlation: str | None = option_field(
        None,
        "Noise between steps: independent, lambda-cgd or banded.",
        "Method",
        "independent",
        rule=OneOf(tuple(CORRELATIONS)),
    )
    decay: float | None = option_field(
        None, "Share of the last step's noise that lambda-cgd subtracts.", "Method", str(_DECAY)
    )
    bands: int | None = option_field(None, "Steps over which banded noise is correlated.", "Method", str(_BANDS))
    public: str | None = option_field(
        None, "Public text with the same labels, a corpus or file: train on it first, without noise.", "Method"
    )
    name: ClassVar[str] = "dp-sgd"
    visible: ClassVar[Visible] = "sum"
    # The rows of a unit are emptied: the number of units is public, unless a population is set instead.
    adjacency: ClassVar[Adjacency] = Adjacency.ZERO_OUT
    learns_little: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject settings outside their range, and settings that do not determine the noise."""
        check_fields(self)
        self._check_correlation()
        if self.noise_multiplier is None and self.epsilon is None and self.true_positive_rate is None:
            raise SettingError(
                f"Expected {setting('epsilon')}, {setting('noise_multiplier')} or {setting('true_positive_rate')} for "
                f"dp-sgd. One of them sets the noise; {setting('epsilon', 3)} is a common start."
            )

    def _check_correlation(self) -> None:
        correlated = self.correlated  # rejects a decay or a number of bands outside its range
        if self.sampler is not None and correlated is not None:
            remedy = "Correlated noise has batches of its own; the amplification of other batches does not hold for it."
            raise invalid("sampler", self.sampler, f"left out with {setting('correlation', self.correlation)}", remedy)
        for name, needed in (("decay", LAMBDA_CGD), ("bands", BANDED)):
            if getattr(self, name) is not None and self.correlation != needed:
                remedy = "Add it, or leave this out."
                raise invalid(name, getattr(self, name), f"used with {setting('correlation', needed)}", remedy)

    def resolve(self, conditions: Conditions) -> DPSGD:
        """Return the protection with its noise: the one that was set, or the largest that a target needs."""
        if self.noise_multiplier is not None:
            return self.with_noise(self.noise_multiplier)  # without its budget, which the plan keeps
        from discreet.accounting.calibrate import least_noise
        from discreet.accounting.risk import least_noise_for_risk

        sampler = conditions.sampler or self.sampler_for(conditions.batch_size, conditions.units)
        self._check_groups(sampler)

        def training(noise: float) -> DpEvent:
            return self.with_noise(noise).training_cost(sampler, conditions.steps, conditions.units)

        noises = []
        if self.epsilon is not None:
            noises.append(
                least_noise(training, epsilon=self.epsilon, delta=conditions.delta, adjacency=Adjacency.ZERO_OUT)
            )
        if self.true_positive_rate is not None:
            noises.append(
                least_noise_for_risk(
                    training,
                    true_positive_rate=self.true_positive_rate,
                    false_positive_rate=self.false_positive_rate,
                    adjacency=Adjacency.ZERO_OUT,
                )
            )
        return self.with_noise(max(noises))

    def with_noise(self, noise_multiplier: float) -> DPSGD:
        """Return the same method with this noise and without a budget."""
        return replace(
            self,
            noise_multiplier=noise_multiplier,
            epsilon=None,
            delta=None,
            true_positive_rate=None,
            false_positive_rate=DPSGD.false_positive_rate,
        )

    def defaults(self, part: str, units: int, width: int) -> TrainDefaults:
        """Return large batches, so that many gradients share one noise, but not so large that few steps remain.

        >>> DPSGD(epsilon=3).defaults("all", 67349, 384).batch_size
        4096
        """
        if part in FROZEN and width == PAIR_WIDTH:  # a few numbers of each pair: every step reads all of them
            return TrainDefaults(200.0, units, 0.1, 0.0, 0.0, False)
        frozen, batch = part in FROZEN, max(64, min(4096, units // 8))
        # Adapters: of the rates 1e-3, 2e-3, 3e-3, 5e-3 and 1e-2 the last but one is best (docs/results.md).
        rate = 2e-2 if frozen else 5e-3 if part.startswith("lora") else 1e-3
        # A model that knows the task from public text needs fewer steps (docs/decisions/private_training.md).
        epochs = 40.0 if frozen else 10.0 if self.public is not None and part == "all" else 15.0
        return TrainDefaults(epochs, batch, rate, 0.0, 0.0, False, 0.0 if frozen else HEAD_SHARE)

    @property
    def trains_parts(self) -> bool:
        """Whether the noise of a step depends on no other step: other parameters may then be trained later."""
        return self.correlation in (None, INDEPENDENT)

    def public_settings(self) -> dict[str, Any]:
        """Return the settings that may be published, with the default of a correlation where it was left out.

        >>> DPSGD(noise_multiplier=1.0, correlation="banded").facts()["bands"]
        4
        """
        correlated = self.correlated
        return {**super().public_settings(), **({} if correlated is None else vars(correlated))}

    def identity(self) -> object:
        """Return the settings that determine its random values."""
        names = ("noise_multiplier", "clip_norm", "clipping")
        described = "DPSGD", {name: getattr(self, name) for name in names}
        return described if self.correlated is None else (*described, self.correlated)

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
        return self.noise * self.clip_norm * (1.0 if self.correlated is None else self.correlated.deviation)

    @property
    def correlated(self) -> Correlation | None:
        """How the noise of different steps is correlated, or None if it is independent."""
        if self.correlation in (None, INDEPENDENT):
            return None
        if self.correlation == LAMBDA_CGD:
            return LambdaCGD(_DECAY if self.decay is None else self.decay)
        return Banded(_BANDS if self.bands is None else self.bands)

    def check_at_client(self) -> None:
        """Reject noise and batches that depend on those of other steps: rounds are separate releases."""
        remedy = "Rounds are separate releases, whose batches and noise cannot depend on each other; leave it out."
        if self.correlated is not None:
            raise invalid("correlation", self.correlation, "left out at a client", remedy)
        if self.sampler is not None and not SAMPLERS[self.sampler].separate_steps:
            raise invalid("sampler", self.sampler, "left out at a client", remedy)

    def check_own_loop(self) -> None:
        """Reject correlated noise."""
        if self.correlated is not None:
            remedy = "Correlated noise is implemented for discreet's own training loop; use independent noise here."
            raise invalid("correlation", self.correlation, "independent in your own training loop", remedy)
        super().check_own_loop()

    def sampler_for(self, size: int, units: int, rows: int | None = None) -> Sampler:
        """Return the sampler of a training run: the one that was chosen, or the one that the correlation needs."""
        size = min(size, units)
        if self.correlated is not None:
            return CyclicPoisson(*self.correlated.groups_for(size, units))
        return SAMPLERS[self.sampler or "poisson"].expecting(size, units)

    def check_sampler(self, sampler: Sampler, counted: Sampler) -> None:
        """Reject a sampler under which noise of this correlation has no proof."""
        self._check_groups(sampler)

    def _check_groups(self, sampler: Sampler) -> None:
        if self.correlated is None:
            return
        if not isinstance(sampler, CyclicPoisson):
            raise invalid("sampler", sampler, f"CyclicPoisson with {self.correlation}", REMEDY)
        self.correlated.check_groups(sampler.groups, sampler.rate)

    def _squared_cycles(self, sampler: Sampler, cycles: int) -> Floats | None:
        """Return what each cycle of steps adds to the squared sensitivity, or None if each step has its own cost."""
        self._check_groups(sampler)
        if self.correlated is None or self.noise == 0 or not isinstance(sampler, CyclicPoisson):
            return None
        return self.correlated.squared_cycles(sampler.groups, cycles)

    def step_cost(self, sampler: Sampler, step: int, units: int) -> tuple[DpEvent, str]:
        """Return the event of a step and its name; with lambda-cgd what its cycle adds to the squared sensitivity.

        Gaussian costs add up in the square, so the cycles so far compose to exactly the sensitivity of all their rows.
        """
        cycle = step // sampler.groups if isinstance(sampler, CyclicPoisson) else 0
        squared = self._squared_cycles(sampler, cycle + 1)
        if squared is not None:
            return _sum_event(self.noise / math.sqrt(float(squared[-1]))), f"cycle {cycle}"
        return super().step_cost(sampler, step, units)

    def training_cost(self, sampler: Sampler, steps: int, units: int) -> DpEvent:
        """Return the event of so many steps together."""
        squared = self._squared_cycles(sampler, sampler.spends(steps, units))
        if squared is not None:
            return _sum_event(self.noise / math.sqrt(float(squared.sum())))
        return super().training_cost(sampler, steps, units)

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

        Args:
            epsilon: The budget of the whole training.
            delta: Its delta.
            sampling_rate: The expected size of a batch over the number of units.
            steps: The number of steps.
            clip_norm: Gradients of a unit are clipped to this norm.
            clipping: flat, per-layer or automatic.
            adjacency: zero-out, add/remove or replace-one.
        """
        from discreet.accounting.calibrate import least_noise

        positive("epsilon", epsilon, "It is the budget of the whole training.")
        remedy = "It is expected batch size / number of units."
        if not probability("sampling_rate", sampling_rate, remedy) > 0:
            raise invalid("sampling_rate", sampling_rate, "in (0, 1]", remedy)
        sampler, steps = Poisson(sampling_rate), whole("steps", steps)

        def training(noise: float) -> DpEvent:
            return DPSGD(noise).training_cost(sampler, steps, 1)

        noise = least_noise(training, epsilon=epsilon, delta=delta, adjacency=adjacency)
        return cls(noise, clip_norm, clipping, epsilon, delta)

    @property
    def event(self) -> DpEvent:
        """Privacy event of one noisy sum, for a unit that is in it with certainty.

        Correlated noise also shows the unit in later sums: the event is that of all of them, for one use.
        """
        from discreet.accounting.events import NoGuaranteeDpEvent

        if self.noise == 0:
            return NoGuaranteeDpEvent("no noise was added")
        return _sum_event(self.noise / (1.0 if self.correlated is None else self.correlated.column_norm))

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

    @property
    def step_noise(self) -> float | None:
        """Standard deviation of the noise of a step; None if it is correlated or zero, or `release` is overridden."""
        own = type(self).release is DPSGD.release and type(self).releaser is DPSGD.releaser
        simple = own and self.correlated is None and self.noise > 0
        return self.noise * self.clip.sensitivity if simple else None

    def releaser(self, source: Rng) -> Release:
        """Return the function that adds the noise of a step, which correlated noise computes from earlier ones."""
        if self.correlated is None or self.noise == 0:
            return super().releaser(source)
        return CorrelatedNormals(self.correlated, self.noise * self.clip.sensitivity, source).add


def _sum_event(noise: float) -> DpEvent:
    from discreet.accounting.events import ClippedSumDpEvent

    return ClippedSumDpEvent(noise)
