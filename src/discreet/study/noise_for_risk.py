"""Choose noise by a ceiling on risk: the least noise proven to keep it, the least measured to, and their ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from discreet.accounting.calibrate import least
from discreet.accounting.events import ClippedSumDpEvent, DpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from discreet.accounting.risk import most_identified
from discreet.core.errors import invalid, open_probability, whole
from discreet.core.guarantee import Adjacency, in_digits
from discreet.core.randomness import Rng
from discreet.core.types import TRAINING, UPDATE, Trial
from discreet.metrics.intervals import clopper_pearson
from discreet.study.file import IDENTIFIED, OF_UPDATE

if TYPE_CHECKING:
    from discreet.experiment.attack.scene import Scene

_RAISE = 1.05  # the factor by which a measured noise is raised until held-out texts keep the ceiling too
# From a noise to correct guesses and attempts, with the same random numbers for every noise.
Attempt = Callable[[float], tuple[int, int]]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recommendation:
    """A noise multiplier that keeps a ceiling, and the evidence for it.

    `certified` means a proven bound for every attack on this release. Otherwise it is an estimate from one attack and
    one kind of text; `limit` is then its upper 95% confidence limit on texts that the choice did not use, unless the
    noise was `raised` for those texts.
    """

    noise: float
    limit: float
    certified: bool
    event: str
    adjacency: str
    checked_on: int = 0
    raised: int = 0

    def sentence(self, ceiling: float, candidates: int) -> str:
        """Return the recommendation in words, both figures rounded up: less noise would not keep the limit.

        >>> Recommendation(1.96543, 0.049871, True, "one release", "add/remove").sentence(0.05, 64)[:83]
        'Certified: noise multiplier 1.966 for one release. No attack reaches more than 4.99'
        """
        noise, limit = in_digits(self.noise), in_digits(100 * self.limit, 3)
        what = f"identifying one of {candidates} candidates"
        if self.certified:
            return (
                f"Certified: noise multiplier {noise} for {self.event}. No attack reaches more than "
                f"{limit}% at {what} (ceiling {100 * ceiling:g}%, {self.adjacency})."
            )
        return (
            f"Estimate, not a bound: noise multiplier {noise} for {self.event}. The best attack run "
            f"stays, with 95% confidence, within {limit}% at {what} on {self.checked_on} held-out texts "
            f"(ceiling {100 * ceiling:g}%). Other text and stronger knowledge may do better."
            + (f" It was raised by 5% {self.raised} times, because those texts needed more." if self.raised else "")
        )


@dataclass(frozen=True)
class NoiseForRisk:
    """The certified and the measured noise for one ceiling; `scope` is the release: an update or the whole training."""

    ceiling: float
    candidates: int
    certified: Recommendation
    measured: Recommendation
    scope: str = UPDATE

    @property
    def ratio(self) -> float:
        """The certified noise divided by the measured noise."""
        return self.certified.noise / self.measured.noise

    def as_dict(self) -> dict[str, Any]:
        """Return both as plain values, with their sentences."""
        both = {
            kind: {**asdict(one), "sentence": one.sentence(self.ceiling, self.candidates)}
            for kind, one in (("certified", self.certified), ("measured", self.measured))
        }
        common = {"ceiling": self.ceiling, "candidates": self.candidates, "scope": self.scope}
        return {**common, **both, "ratio": self.ratio}


def certified_noise(
    make: Callable[[float], DpEvent],
    *,
    ceiling: float,
    candidates: int,
    event: str,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    tolerance: float = 1e-3,
) -> Recommendation:
    """Return the least noise under which no attack identifies one of n candidates more often than the ceiling.

    Guarantee: the bound holds for any attack on the event, under the adjacency; the noise is within `tolerance` of the
        least whose bound meets the ceiling, on the safe side.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> round(certified_noise(GaussianDpEvent, ceiling=0.05, candidates=64, event="one release").noise, 3)
    1.965
    """
    chance = 1 / whole("candidates", candidates, 2)
    open_probability("ceiling", ceiling)
    if ceiling <= chance:
        raise invalid("ceiling", ceiling, f"> {chance:.4g}", "Random guessing already reaches one in the candidates.")

    def excess(noise: float) -> float:
        return most_identified(make(noise), candidates, adjacency) - chance

    noise = least(excess, ceiling - chance, low=1e-3, high=1e6, guess=1.0, tolerance=tolerance)
    return Recommendation(noise, excess(noise) + chance, True, event, str(Adjacency(adjacency)))


def upper_limit(hits: int, attempts: int) -> float:
    """Return the upper end of the exact one-sided 95% interval of a rate."""
    return clopper_pearson(hits, attempts, 0.90)[1]


def measured_noise(
    chosen_on: Attempt,
    checked_on: Attempt,
    *,
    ceiling: float,
    event: str,
    texts: int,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    margin: float = 1.1,
    guess: float = 1.0,
    proven: Recommendation | None = None,
    tolerance: float = 0.02,
) -> Recommendation:
    """Return the least noise whose measured success keeps a ceiling, chosen on some texts and checked on others.

    The noise is solved for on the texts of `chosen_on`: the least at which the upper limit is under the ceiling, times
    a `margin` for other texts. Then the held-out texts of `checked_on` are attacked; where their upper limit is above
    the ceiling the noise is raised in steps of 5%, and the recommendation says how often. It is never more than a
    `proven` recommendation, which no attack beats.

    Guarantee: none, an estimate: a stronger attack, other texts or other knowledge may do better.
    """

    def limit(attempt: Attempt, noise: float) -> float:
        return upper_limit(*attempt(noise))

    noise = margin * least(lambda x: limit(chosen_on, x), ceiling, low=1e-3, high=1e4, guess=guess, tolerance=tolerance)
    raised = 0
    while (proven is None or noise < proven.noise) and (measured := limit(checked_on, noise)) > ceiling:
        noise, raised = noise * _RAISE, raised + 1
    if proven is not None and noise >= proven.noise:
        # The attack comes so close to the bound that a measured limit would need more noise than the proof does.
        noise, measured = proven.noise, min(proven.limit, limit(checked_on, proven.noise))
    return Recommendation(noise, measured, False, event, str(Adjacency(adjacency)), texts, raised)


@dataclass(frozen=True)
class RiskRequest:
    """A ceiling on identifying one of n candidates, for one update and, with a rate and steps, for a whole training.

    `groups` sets of candidates choose the noise and as many others, of other texts, check it.
    """

    ceiling: float = 0.05
    candidates: int = 64
    clip_norm: float = 1.0
    sampling_rate: float | None = None
    steps: int | None = None
    groups: int = 2
    draws: int = 8000
    training_draws: int = 2000
    seed: int = 0
    adjacency: str = "zero-out"


@dataclass(frozen=True)
class Groups:
    """Inner products of the gradients of candidates: sets that choose the noise, and sets of other texts that check."""

    chosen: Sequence[Floats] = field(repr=False)
    checked: Sequence[Floats] = field(repr=False)
    texts: int


def groups_of(scene: Scene, request: RiskRequest) -> Groups:
    """Return candidates' inner products, the texts of the checking half held out from the choosing half.

    Guarantee: none, an attacker's view of private rows.
    """
    count = 2 * request.groups * request.candidates
    rows = scene.draw(count, Rng(request.seed).fork("rows"), what="candidates")
    grams = [
        scene.gram(rows.take(range(i * request.candidates, (i + 1) * request.candidates)))
        for i in range(2 * request.groups)
    ]
    return Groups(grams[: request.groups], grams[request.groups :], request.groups * request.candidates)


def noise_for_risk(scene: Scene, request: RiskRequest, trained: Scene | None = None) -> list[NoiseForRisk]:
    """Return both recommendations for one update and, if its rate and steps are given, for a whole training.

    `trained` is the scene of the layers that are trained, where those are not the ones released in `scene`.

    Guarantee: the certified one is a proven bound on any attack under the adjacency that the request names, add/remove
        or zero-out, whose figures are the same for a sum; the measured one is an estimate.
    """
    from discreet.attacks.identification import gaussian_sweep, training_sweep

    groups, rng = groups_of(scene, request), Rng(request.seed)

    def update(grams: Sequence[Floats], noise: float) -> tuple[int, int]:
        each = [
            gaussian_sweep(gram, [noise], rng.fork("release", i), clip_norm=request.clip_norm, draws=request.draws)[0]
            for i, gram in enumerate(grams)
        ]
        return sum(one.hits for one in each), sum(one.draws for one in each)

    results = [_both(request, groups, _Release("one update", UPDATE, ClippedSumDpEvent, update))]
    if request.sampling_rate is None or request.steps is None:
        return results
    rate, steps = request.sampling_rate, request.steps
    if not 0 < rate <= 1:
        raise invalid("sampling_rate", rate, "in (0, 1]", "It is expected batch size / number of units.")

    def training(grams: Sequence[Floats], noise: float) -> tuple[int, int]:
        each = [
            training_sweep(
                gram,
                [noise],
                rng.fork("training", i),
                sampling_rate=rate,
                steps=steps,
                clip_norm=request.clip_norm,
                draws=request.training_draws,
            )[0]
            for i, gram in enumerate(grams)
        ]
        return sum(one.hits for one in each), sum(one.draws for one in each)

    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(rate, ClippedSumDpEvent(noise)), steps)

    name = f"a whole training ({steps} steps, rate {rate:.4g})"
    groups = groups if trained is None else groups_of(trained, request)
    return [*results, _both(request, groups, _Release(name, TRAINING, event, training))]


@dataclass(frozen=True)
class _Release:
    """What is released: its name in words, its scope, its privacy event and its attack, both by noise multiplier."""

    name: str
    scope: str
    event: Callable[[float], DpEvent]
    attack: Callable[[Sequence[Floats], float], tuple[int, int]]


def _both(request: RiskRequest, groups: Groups, release: _Release) -> NoiseForRisk:
    adjacency = Adjacency(request.adjacency)
    proven = certified_noise(
        release.event,
        ceiling=request.ceiling,
        candidates=request.candidates,
        event=release.name,
        adjacency=adjacency,
    )
    measured = measured_noise(
        lambda noise: release.attack(groups.chosen, noise),
        lambda noise: release.attack(groups.checked, noise),
        ceiling=request.ceiling,
        event=release.name,
        texts=groups.texts,
        adjacency=adjacency,
        guess=proven.noise / 2,
        proven=proven,
    )
    return NoiseForRisk(request.ceiling, request.candidates, proven, measured, release.scope)


def noise_for_study(study: Mapping[str, Any], trials: Iterable[Trial]) -> list[NoiseForRisk]:
    """Return the noise that keeps a study's ceiling on 1-of-n, or nothing where it has no such ceiling or no DP-SGD.

    Guarantee: as `noise_for_risk`.
    """
    from discreet.study.trial import scene_of, with_trained_layers

    goal = study.get("goal") or {}
    attack = next((table for table in study.get("attack", ()) if table["name"] == "one-of-n"), None)
    private = next((t for t in trials if (t.details.get("protection") or {}).get("name") == "dp-sgd"), None)
    if attack is None or private is None or goal.get("leakage") not in (IDENTIFIED, IDENTIFIED + OF_UPDATE):
        return []
    candidates = int(attack.get("candidates", 64))
    if goal.get("ceiling") is None or goal["ceiling"] <= 1 / candidates:
        return []
    rate = private.details.get("sampling_rate")
    request = RiskRequest(
        ceiling=float(goal["ceiling"]),
        candidates=candidates,
        clip_norm=float(private.details["protection"]["clip_norm"]),
        sampling_rate=rate,
        steps=int(private.details["steps"]) if rate is not None else None,
        groups=1,
        seed=private.seed,
        adjacency=str(private.details.get("adjacency", Adjacency.ZERO_OUT)),
    )
    released = scene_of(private.settings, private.seed, "gradient")
    trained = scene_of(with_trained_layers(private.settings, private.details["trained"]), private.seed, "gradient")
    return noise_for_risk(released, request, trained)
