"""Privacy cost of a clipping-and-noise layer on the user's side, where the server sees every vector, not a sum.

The sound calibration is for replace-one: two clipped vectors are at most 2C apart. If every vector is sent once, all
together cost one Gaussian release. If each step samples a fixed m of n vectors without replacement, shuffled, a step
costs delta(eps) = q delta0(ln(1 + (e^eps - 1)/q)) with q = m/n, and steps are composed; decoys count towards n. With
independent (Bernoulli) sampling the number of vectors sent is public, and the cost is the average over it. The same
holds for any mechanism that is applied to each record on its own, such as PrivUnit, von Mises–Fisher noise, or
randomized response for a label: see `Sending`.

Paper: anonymous, Local Differential Privacy for Privacy-Preserving NLP Tasks (LDP-NLP), equations 5 to 9.
Differs: the paper's figures are available as calibration="paper", and as "paper-vector" without the factor |x| of its
equation 7, with which nothing is learned. They are not bounds: the paper uses C for the distance 2C, |x| C/sigma for a
step, a central-limit formula that lies below the true cost, and for decoys a sampling rate of q p although independent
sampling sends every true query with probability p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from discreet.accounting.calibrate import largest_rate, least, least_noise
from discreet.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
)
from discreet.accounting.gdp import (
    ROUNDING,
    central_limit_mu,
    central_limit_step,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_noise,
)
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.accounting.interpret import guarantee_of
from discreet.core.errors import invalid, one_of, positive, whole
from discreet.core.guarantee import Adjacency, Caveat, Guarantee

SAMPLINGS = ("once", "fixed", "coins")
CALIBRATIONS = ("sound", "paper", "paper-vector")
_ENCODER = "the encoder is frozen and public, or its training is counted in the same ledger"
LABELS_PUBLIC = "labels are public and not protected"
_ALONE = "vectors are sent alone: a label beside one would show among whom it was drawn"
_REASON = (
    "the published calibration halves the distance of two clipped vectors and adds up steps by a central-limit formula "
    "that lies below the true cost"
)


@dataclass(frozen=True)
class Sending:
    """How often the release of each record is sent, and the pool it is sampled from.

    `sampling` is "once" (everything is sent one time and stored), "fixed" (`drawn` records of the pool at each step,
    shuffled) or "coins" (each record of the pool is sent at each step with probability drawn / pool). The pool is the
    population and the decoys. With sampling, the receiver must not learn which records were sampled, their order, or
    anything about them that `event` does not cover, such as a label.

    >>> from discreet.accounting.events import LocalDpEvent
    >>> Sending(population=1000).event(LocalDpEvent(4.0))
    LocalDpEvent(epsilon=4.0, delta=0.0)
    """

    population: int
    drawn: int = 1
    steps: int = 1
    decoys: int = 0
    sampling: str = "once"

    def __post_init__(self) -> None:
        """Check the fields."""
        whole("drawn", self.drawn)
        whole("steps", self.steps)
        whole("decoys", self.decoys, 0)
        whole("population", self.population)
        whole("pool", self.pool, self.drawn, "It must be at least `drawn`.")
        one_of("sampling", self.sampling, SAMPLINGS)

    @property
    def pool(self) -> int:
        """The number of records that can be sampled, including decoys."""
        return self.population + self.decoys

    def step(self, one: DpEvent) -> DpEvent:
        """Return the event of one step in which each sampled record is released through `one`."""
        if self.sampling == "once":
            return one
        if self.sampling == "fixed":
            return VisibleVectorsDpEvent(one, self.drawn, self.pool)
        return PoissonSampledDpEvent(self.drawn / self.pool, VisibleVectorsDpEvent(one, self.pool, self.pool))

    def event(self, one: DpEvent) -> DpEvent:
        """Return the event of everything that is sent, if each sent record is released through `one`."""
        return one if self.sampling == "once" else SelfComposedDpEvent(self.step(one), self.steps)

    def strongest(self, make: Callable[[float], DpEvent], epsilon: float, delta: float, high: float) -> float:
        """Return the largest parameter, such as kappa, for which all releases together are within epsilon at delta.

        Guarantee: the event of the returned parameter, rounded down, is within epsilon at delta under replace-one.

        >>> from discreet.accounting.events import LocalDpEvent
        >>> round(Sending(population=100).strongest(LocalDpEvent, 4.0, 1e-6, high=16.0), 3)
        4.0
        """
        guess = epsilon / 2
        if self.sampling == "coins":  # its curve is expensive, and close to that of a fixed-size sample
            guess = replace(self, sampling="fixed").strongest(make, epsilon, delta, high)
        return largest_rate(
            lambda parameter: self.event(make(parameter)),
            epsilon=epsilon,
            delta=delta,
            adjacency=Adjacency.REPLACE_ONE,
            high=high,
            guess=guess,
            tolerance=1e-5,
        )


@dataclass(frozen=True)
class LocalLayerCost:
    """The cost of a local layer under replace-one, by the sound or by the published calibration.

    `population`, `drawn`, `steps`, `decoys` and `sampling` are as in `Sending`.

    >>> once = LocalLayerCost(clip_norm=1.0, population=1000)
    >>> round(once.noise_std(epsilon=4.0, delta=1e-5), 2)
    2.16
    """

    clip_norm: float
    population: int
    drawn: int = 1
    steps: int = 1
    decoys: int = 0
    sampling: str = "once"
    calibration: str = "sound"

    def __post_init__(self) -> None:
        """Check the fields."""
        positive("clip_norm", self.clip_norm)
        _ = self.sending  # checks its own fields
        one_of("calibration", self.calibration, CALIBRATIONS)

    @property
    def sending(self) -> Sending:
        """How often a vector is sent, and the pool it is sampled from."""
        return Sending(self.population, self.drawn, self.steps, self.decoys, self.sampling)

    def vector(self, noise_std: float) -> DpEvent:
        """Return the event of one clipped vector with noise, under replace-one."""
        return GaussianDpEvent(positive("noise_std", noise_std) / (2 * self.clip_norm))

    def event(self, noise_std: float) -> DpEvent:
        """Return the event at this noise under replace-one, regardless of the calibration."""
        return self.sending.event(self.vector(noise_std))

    def step_noise(self, epsilon: float, delta: float, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return the noise of every step, given the number of vectors it sends: the paper's Algorithms 2 and 3.

        In the paper, sigma_t = |x_t| C / mu for a step of |x_t| vectors, because independent sampling gives batches of
        varying size; an empty step needs no noise. The sound calibration uses the same noise at every step.

        >>> cost = LocalLayerCost(0.5, 1000, drawn=10, steps=3, sampling="coins", calibration="paper")
        >>> [round(s / cost.step_noise(2.0, 1e-4, [10, 10, 10])[0], 2) for s in cost.step_noise(2.0, 1e-4, [8, 0, 14])]
        [0.8, 0.0, 1.4]
        """
        if len(sizes) != self.steps:
            raise invalid("sizes", len(sizes), f"one for each of {self.steps} steps", "Sample the batches first.")
        noise_std = self.noise_std(epsilon, delta)
        if self.calibration != "paper":
            return (noise_std,) * self.steps
        return tuple(noise_std * whole("size", size, 0) / self.drawn for size in sizes)

    def scheduled_noise(self, relative: Sequence[float], epsilon: float, delta: float) -> tuple[float, ...]:
        """Return noise for every step in the proportions of `relative`, certified to meet the budget in total.

        Training may need more noise in its first steps than in its last: `relative` holds one weight per step.
        """
        if len(relative) != self.steps:
            raise invalid("relative", len(relative), f"one for each of {self.steps} steps", "Give one weight per step.")
        weights = [positive("relative", weight) for weight in relative]
        counts = {weight: weights.count(weight) for weight in dict.fromkeys(weights)}

        def event(noise_std: float) -> DpEvent:
            steps = [
                SelfComposedDpEvent(self.sending.step(self.vector(noise_std * weight)), count)
                for weight, count in counts.items()
            ]
            return ComposedDpEvent(steps)

        base = least_noise(event, epsilon=epsilon, delta=delta, adjacency=Adjacency.REPLACE_ONE)
        return tuple(base * weight for weight in weights)

    def noise_std(self, epsilon: float, delta: float) -> float:
        """Return the standard deviation by the calibration."""
        if self.calibration != "sound":
            step = central_limit_step(gaussian_mu(epsilon, delta), self._paper_rate, self.steps)
            return self._paper_size * self.clip_norm / step
        if self.sampling == "once":
            return gaussian_noise(epsilon, delta, 2 * self.clip_norm) * (1 + ROUNDING)
        if self.sampling == "coins":  # its curve is expensive, and close to that of a fixed-size sample
            close = replace(self, sampling="fixed").noise_std(epsilon, delta)

            def cost(noise_std: float) -> float:
                return epsilon_of(self.event(noise_std), delta, Adjacency.REPLACE_ONE)

            return least(cost, epsilon, low=close / 2, high=1e6, guess=close, tolerance=1e-3)
        return least_noise(self.event, epsilon=epsilon, delta=delta, adjacency=Adjacency.REPLACE_ONE)

    def guarantee(self, noise_std: float, *, delta: float, unit: str = "record") -> Guarantee:
        """Return the guarantee at this noise: proven, or the uncertified claim of the paper."""
        if self.calibration == "sound":
            return guarantee_of(
                self.event(noise_std),
                delta=delta,
                adjacency=Adjacency.REPLACE_ONE,
                unit=unit,
                assumptions=(_ENCODER, LABELS_PUBLIC if self.sampling == "once" else _ALONE),
            )
        step = self._paper_size * self.clip_norm / positive("noise_std", noise_std)
        claimed = gaussian_epsilon(central_limit_mu(step, self._paper_rate, self.steps), delta)
        stated, caveats = (_ENCODER, LABELS_PUBLIC), frozenset({Caveat.PAPER_CALIBRATION})
        return Guarantee(claimed, delta, unit, Adjacency.REPLACE_ONE, "paper", False, stated, _REASON, caveats)

    @property
    def _paper_size(self) -> int:
        """The number of vectors in a step of the paper: all that are sent by equation 7, one by equation 6."""
        return self.drawn if self.calibration == "paper" else 1

    @property
    def _paper_rate(self) -> float:
        """The rate in the paper: probability times fraction of true queries, although decoys do not change the rate."""
        pool = self.sending.pool
        return self.drawn / pool * (self.population / pool if self.decoys else 1.0)
