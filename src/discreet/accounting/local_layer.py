"""What a clipping-and-noise layer on the user's side costs: the server sees every vector, not a sum.

Sound, under replace-one: two clipped vectors are at most 2C apart. Sent once, all vectors cost one Gaussian release.
Drawn anew at each step, a fixed m of n without replacement and shuffled, a step costs
delta(eps) = q delta0(ln(1 + (e^eps - 1)/q)), q = m/n, and steps are composed; decoys count into n. Drawn by independent
coins the number sent is public, and the step is the average over it. The same holds for any mechanism that is applied
to each record alone, such as PrivUnit, von Mises–Fisher noise, or randomized response for a label: see `Sending`.

Paper: anonymous, Local Differential Privacy for Privacy-Preserving NLP Tasks (LDP-NLP), equations 5 to 9.
Differs: the paper's figures are kept as calibration="paper", and as "paper-vector" without the factor |x| of its
equation 7, with which nothing is learned. They are not bounds: the paper takes C for the distance 2C, |x| C/sigma for a
step, a central-limit formula that lies below the truth, and for decoys a sampling rate of q p where independent coins
send every true query with probability p.
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
from discreet.accounting.interpret import guarantee
from discreet.core.errors import invalid, one_of, positive, whole
from discreet.core.guarantee import Adjacency, Caveat, Guarantee

SAMPLINGS = ("once", "fixed", "coins")
CALIBRATIONS = ("sound", "paper", "paper-vector")
_ENCODER = "the encoder is frozen and public, or its training is counted in the same ledger"
_LABELS = "labels are public and not protected"
_ALONE = "vectors are sent alone: a label beside one would show among whom it was drawn"
_REASON = (
    "the published calibration halves the distance of two clipped vectors and adds up steps by a central-limit formula "
    "that lies below the true cost"
)


@dataclass(frozen=True)
class Sending:
    """How often a record's own release is sent, and hidden among how many.

    `sampling` is once (everything is sent one time and stored), fixed (`drawn` of the pool at each step, shuffled) or
    coins (each record of the pool is sent at each step with probability drawn / pool). The pool is the population and
    the decoys. Where records are drawn, the receiver must not learn which, nor in what order, nor anything of them that
    `event` does not count, such as a label.

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
        """Refuse unknown names and draws larger than the pool."""
        whole("drawn", self.drawn)
        whole("steps", self.steps)
        whole("decoys", self.decoys, 0)
        whole("population", self.population)
        whole("pool", self.pool, self.drawn, "It cannot be smaller than the number drawn.")
        one_of("sampling", self.sampling, SAMPLINGS)

    @property
    def pool(self) -> int:
        """How many records could be drawn, decoys included."""
        return self.population + self.decoys

    def step(self, one: DpEvent) -> DpEvent:
        """Return the cost of one step in which each drawn record is released through `one`."""
        if self.sampling == "once":
            return one
        if self.sampling == "fixed":
            return VisibleVectorsDpEvent(one, self.drawn, self.pool)
        return PoissonSampledDpEvent(self.drawn / self.pool, VisibleVectorsDpEvent(one, self.pool, self.pool))

    def event(self, one: DpEvent) -> DpEvent:
        """Return the cost of everything that is sent, when each sent record is released through `one`."""
        return one if self.sampling == "once" else SelfComposedDpEvent(self.step(one), self.steps)

    def strongest(self, make: Callable[[float], DpEvent], epsilon: float, delta: float, high: float) -> float:
        """Return the largest parameter, such as kappa, whose releases all together stay within epsilon at delta.

        Guarantee: the returned parameter's event is within epsilon at delta under replace-one; it is rounded down.

        >>> from discreet.accounting.events import LocalDpEvent
        >>> round(Sending(population=100).strongest(LocalDpEvent, 4.0, 1e-6, high=16.0), 3)
        4.0
        """
        guess = epsilon / 2
        if self.sampling == "coins":  # its curve is dear, and close to that of a fixed number
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

    `sampling` is once (everything is sent one time and stored), fixed (`drawn` of the pool at each step) or coins (each
    vector of the pool is sent at each step with probability drawn / pool). The pool is the population and the decoys.

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
        """Refuse unknown names and draws larger than the pool."""
        positive("clip_norm", self.clip_norm)
        _ = self.sending  # its own rules
        one_of("calibration", self.calibration, CALIBRATIONS)

    @property
    def sending(self) -> Sending:
        """How often a vector is sent, and hidden among how many."""
        return Sending(self.population, self.drawn, self.steps, self.decoys, self.sampling)

    @property
    def pool(self) -> int:
        """How many vectors could be drawn, decoys included."""
        return self.population + self.decoys

    def vector(self, noise_std: float) -> DpEvent:
        """Return what one clipped and noised vector costs, exchanged for any other."""
        return GaussianDpEvent(positive("noise_std", noise_std) / (2 * self.clip_norm))

    def event(self, noise_std: float) -> DpEvent:
        """Return what really happens at this noise, under replace-one, whatever the calibration claims."""
        return self.sending.event(self.vector(noise_std))

    def step_noise(self, epsilon: float, delta: float, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return the noise of every step, given how many vectors each one sends: the paper's Algorithms 2 and 3.

        By the paper, sigma_t = |x_t| C / mu for a step of |x_t| vectors, dynamic because coins draw batches of many
        sizes; a step that sends nothing needs none. The sound calibration is the same at every step.

        >>> cost = LocalLayerCost(0.5, 1000, drawn=10, steps=3, sampling="coins", calibration="paper")
        >>> [round(s / cost.step_noise(2.0, 1e-4, [10, 10, 10])[0], 2) for s in cost.step_noise(2.0, 1e-4, [8, 0, 14])]
        [0.8, 0.0, 1.4]
        """
        if len(sizes) != self.steps:
            raise invalid("sizes", len(sizes), f"one for each of {self.steps} steps", "Draw the steps first.")
        usual = self.noise_std(epsilon, delta)
        if self.calibration != "paper":
            return (usual,) * self.steps
        return tuple(usual * whole("size", size, 0) / self.drawn for size in sizes)

    def scheduled_noise(self, relative: Sequence[float], epsilon: float, delta: float) -> tuple[float, ...]:
        """Return noise in given proportions over the steps, all together within the budget, certified.

        A training may want more noise in its first steps than in its last: `relative` holds one weight for each step.
        """
        if len(relative) != self.steps:
            raise invalid("relative", len(relative), f"one for each of {self.steps} steps", "Give a weight a step.")
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
        """Return the standard deviation that the calibration asks for."""
        if self.calibration != "sound":
            step = central_limit_step(gaussian_mu(epsilon, delta), self._paper_rate, self.steps)
            return self._paper_size * self.clip_norm / step
        if self.sampling == "once":
            return gaussian_noise(epsilon, delta, 2 * self.clip_norm) * (1 + ROUNDING)
        if self.sampling == "coins":  # its curve is dear, and close to that of a fixed number
            near = replace(self, sampling="fixed").noise_std(epsilon, delta)

            def cost(noise_std: float) -> float:
                return epsilon_of(self.event(noise_std), delta, Adjacency.REPLACE_ONE)

            return least(cost, epsilon, low=near / 2, high=1e6, guess=near, tolerance=1e-3)
        return least_noise(self.event, epsilon=epsilon, delta=delta, adjacency=Adjacency.REPLACE_ONE)

    def guarantee(self, noise_std: float, *, delta: float, unit: str = "record") -> Guarantee:
        """Return the guarantee at this noise: proven, or as the paper claims it and not certified."""
        if self.calibration == "sound":
            return guarantee(
                self.event(noise_std),
                delta=delta,
                adjacency=Adjacency.REPLACE_ONE,
                unit=unit,
                assumptions=(_ENCODER, _LABELS if self.sampling == "once" else _ALONE),
            )
        step = self._paper_size * self.clip_norm / positive("noise_std", noise_std)
        claimed = gaussian_epsilon(central_limit_mu(step, self._paper_rate, self.steps), delta)
        stated, caveats = (_ENCODER, _LABELS), frozenset({Caveat.PAPER_CALIBRATION})
        return Guarantee(claimed, delta, unit, Adjacency.REPLACE_ONE, "paper", False, stated, _REASON, caveats)

    @property
    def _paper_size(self) -> int:
        """How many vectors the paper adds up in a step: all that are sent, by its equation 7; one, by equation 6."""
        return self.drawn if self.calibration == "paper" else 1

    @property
    def _paper_rate(self) -> float:
        """The paper's rate: the coin's probability times the share of true queries, though decoys change no coin."""
        return self.drawn / self.pool * (self.population / self.pool if self.decoys else 1.0)
