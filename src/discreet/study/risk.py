"""Noise by risk for a corpus and a model: the least that is proven to keep a ceiling beside the least measured to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.accounting.events import ClippedSumDpEvent, DpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from discreet.attacks.identification import gaussian_sweep, training_sweep
from discreet.core.checks import refuse
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.types import TRAINING, UPDATE, Trial
from discreet.experiment.scene import Scene
from discreet.study.file import IDENTIFIED, OF_UPDATE
from discreet.study.noise_for_risk import RiskFirst, certified_noise, measured_noise
from discreet.study.shared import scene_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RiskRequest:
    """A ceiling on naming the right one of n, for one release and, with a rate and steps, for a whole training.

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
    """Inner products of the sets of candidates that choose and of those that check; no text is in both."""

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


def risk_first(scene: Scene, request: RiskRequest, trained: Scene | None = None) -> list[RiskFirst]:
    """Return both recommendations for one release and, if its rate and steps are given, for a whole training.

    `trained` is the scene of what is trained, where that is not what is released in the scene.

    Guarantee: the certified one is a proven bound on any attack under the adjacency that the request names, add/remove
        or zero-out, whose figures are the same for a sum; the measured one is an estimate.
    """
    found = groups_of(scene, request)
    rng = Rng(request.seed)

    def release(grams: Sequence[Floats], noise: float) -> tuple[int, int]:
        each = [
            gaussian_sweep(gram, [noise], rng.fork("release", i), clip_norm=request.clip_norm, draws=request.draws)[0]
            for i, gram in enumerate(grams)
        ]
        return sum(one.hits for one in each), sum(one.draws for one in each)

    results = [_both(request, found, ClippedSumDpEvent, release, "one update", UPDATE)]
    if request.sampling_rate is None or request.steps is None:
        return results
    rate, steps = request.sampling_rate, request.steps
    if not 0 < rate <= 1:
        raise refuse("sampling_rate", rate, "in (0, 1]", "It is expected batch size / number of units.")

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

    if trained is not None:
        found = groups_of(trained, request)
    name = f"a whole training ({steps} steps, rate {rate:.4g})"
    return [*results, _both(request, found, event, training, name, TRAINING)]


def _both(
    request: RiskRequest,
    found: Groups,
    event: Callable[[float], DpEvent],
    attempt: Callable[[Sequence[Floats], float], tuple[int, int]],
    name: str,
    scope: str,
) -> RiskFirst:
    near = Adjacency(request.adjacency)
    proven = certified_noise(event, ceiling=request.ceiling, candidates=request.candidates, event=name, adjacency=near)
    measured = measured_noise(
        lambda noise: attempt(found.chosen, noise),
        lambda noise: attempt(found.checked, noise),
        ceiling=request.ceiling,
        event=name,
        texts=found.texts,
        adjacency=near,
        guess=proven.noise / 2,
        proven=proven,
    )
    return RiskFirst(request.ceiling, request.candidates, proven, measured, scope)


ONE_OF_N = "one-of-n"


def risk_of_study(study: Mapping[str, Any], trials: Iterable[Trial]) -> list[RiskFirst]:
    """Return the noise that a study's ceiling on 1-of-n asks for, or nothing where it has no such ceiling or DP-SGD.

    Guarantee: as `risk_first`.
    """
    goal = study.get("goal") or {}
    attack = next((table for table in study.get("attacks", ()) if table["name"] == ONE_OF_N), None)
    private = next((t for t in trials if (t.details.get("protection") or {}).get("name") == "dp-sgd"), None)
    if attack is None or private is None or goal.get("leakage") not in (IDENTIFIED, IDENTIFIED + OF_UPDATE):
        return []
    candidates = int(attack.get("candidates", 64))
    if goal.get("ceiling") is None or goal["ceiling"] <= 1 / candidates:
        return []
    settings = {"model": {}, "release": {}, **private.settings}
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
    shared = {**settings["release"], "train": settings["model"].get("train", "all")}
    trained = scene_of({**settings, "release": shared}, private.seed, "gradient")
    return risk_first(scene_of(settings, private.seed, "gradient"), request, trained)
