"""What a clipping-and-noise layer on the user's side costs: the server sees every vector, not a sum.

Sound, under replace-one: two clipped vectors are at most 2C apart. Sent once, all vectors cost one Gaussian release.
Drawn anew at each step, a fixed m of n without replacement and shuffled, a step costs
delta(eps) = q delta0(ln(1 + (e^eps - 1)/q)), q = m/n, and steps are composed; decoys count into n. Drawn by independent
coins the number sent is public, and the step is the average over it.

Paper: anonymous, Local Differential Privacy for Privacy-Preserving NLP Tasks (LDP-NLP), equations 5 to 9.
Differs: the paper's figures are kept as calibration="paper" and are not bounds: it takes C for the distance 2C,
|x| C/sigma for a step, a central-limit formula that lies below the truth, and for decoys a sampling rate of q p where
independent coins send every true query with probability p.
"""

from __future__ import annotations

from dataclasses import dataclass

from discreet.accounting.calibrate import least_noise
from discreet.accounting.events import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
)
from discreet.accounting.gdp import (
    central_limit_mu,
    central_limit_step,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_noise,
)
from discreet.accounting.interpret import guarantee
from discreet.core.checks import one_of, positive, whole
from discreet.core.guarantee import Adjacency, Guarantee

SAMPLINGS = ("once", "fixed", "coins")
_ENCODER = "the encoder is frozen and public, or its training is counted in the same ledger"
_LABELS = "labels are public and not protected"
_REASON = (
    "the published calibration halves the distance of two clipped vectors and adds up steps by a central-limit formula "
    "that lies below the true cost"
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
        whole("drawn", self.drawn)
        whole("steps", self.steps)
        whole("decoys", self.decoys, 0)
        whole("population", self.population)
        whole("pool", self.pool, self.drawn, "It cannot be smaller than the number drawn.")
        one_of("sampling", self.sampling, SAMPLINGS)
        one_of("calibration", self.calibration, ("sound", "paper"))

    @property
    def pool(self) -> int:
        """How many vectors could be drawn, decoys included."""
        return self.population + self.decoys

    def event(self, noise_std: float) -> DpEvent:
        """Return what really happens at this noise, under replace-one, whatever the calibration claims."""
        vector = GaussianDpEvent(positive("noise_std", noise_std) / (2 * self.clip_norm))
        if self.sampling == "once":
            return vector
        if self.sampling == "fixed":
            step: DpEvent = VisibleVectorsDpEvent(vector, self.drawn, self.pool)
        else:
            step = PoissonSampledDpEvent(self.drawn / self.pool, VisibleVectorsDpEvent(vector, self.pool, self.pool))
        return SelfComposedDpEvent(step, self.steps)

    def noise_std(self, epsilon: float, delta: float) -> float:
        """Return the standard deviation that the calibration asks for."""
        if self.calibration == "paper":
            step = central_limit_step(gaussian_mu(epsilon, delta), self._paper_rate, self.steps)
            return self.drawn * self.clip_norm / step
        if self.sampling == "once":
            return gaussian_noise(epsilon, delta, 2 * self.clip_norm)
        return least_noise(self.event, epsilon=epsilon, delta=delta, adjacency=Adjacency.REPLACE_ONE)

    def guarantee(self, noise_std: float, *, delta: float, unit: str = "record") -> Guarantee:
        """Return the guarantee at this noise: proven, or as the paper claims it and not certified."""
        if self.calibration == "sound":
            return guarantee(
                self.event(noise_std),
                delta=delta,
                adjacency=Adjacency.REPLACE_ONE,
                unit=unit,
                assumptions=(_ENCODER, _LABELS),
            )
        step = self.drawn * self.clip_norm / positive("noise_std", noise_std)
        claimed = gaussian_epsilon(central_limit_mu(step, self._paper_rate, self.steps), delta)
        return Guarantee(claimed, delta, unit, Adjacency.REPLACE_ONE, "paper", False, (_ENCODER, _LABELS), _REASON)

    @property
    def _paper_rate(self) -> float:
        """The paper's rate: the coin's probability times the share of true queries, though decoys change no coin."""
        return self.drawn / self.pool * (self.population / self.pool if self.decoys else 1.0)
