"""Attack once: each family of attacks is one entry of a table, and all are run by the same function."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from discreet.attacks.base import Family
from discreet.core.errors import UnsupportedError
from discreet.experiment.attack import extraction, identification, people
from discreet.experiment.attack.membership import attack_members
from discreet.experiment.attack.reconstruction import reconstruct
from discreet.experiment.attack.request import (
    AttackRequest,
    AttackResult,
    Callbacks,
    Example,
    Findings,
    Progress,
    Source,
)
from discreet.experiment.attack.scene import Scene
from discreet.metrics.membership import ADVANTAGE, AUC, RATES, tpr_metric
from discreet.releases.protected import misfit


@dataclass(frozen=True)
class Runner:
    """How the attacks of a family are run: on a scene, or on the trained model in it.

    `metrics` are those that they may report; empty if the request chooses them.
    """

    run: Callable[[AttackRequest, Scene, Callbacks], Findings]
    metrics: tuple[str, ...] = ()
    needs_target: bool = False


FAMILIES: dict[Family, Runner] = {
    Family.RECONSTRUCTION: Runner(reconstruct),
    Family.IDENTIFICATION: Runner(identification.identify, identification.METRICS),
    Family.MEMBERSHIP: Runner(attack_members, (AUC, *map(tpr_metric, RATES), ADVANTAGE), needs_target=True),
    Family.EXTRACTION: Runner(extraction.extract, extraction.METRICS, needs_target=True),
    Family.PEOPLE: Runner(people.attack_people, people.METRICS),
}


def attack_once(
    request: AttackRequest,
    source: Scene | Source,
    *,
    watch: Callable[[Example], None] = lambda example: None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Progress = lambda stage, done, total: None,
) -> AttackResult:
    """Run an attack on a source, and score its guesses: rows or a trained model in a scene, or recorded messages.

    The same seed attacks the same rows of a scene under every protection, so that results can be compared.

    Args:
        request: The attack, the protection and the number of texts.
        source: What is attacked: a scene, or something that was recorded.
        watch: Called with each attacked text.
        should_stop: Called before each release but the first; if it returns True, the attack ends.
        progress: Called with a stage, how much of it is done, and of how much.

    Guarantee: none for the result, which holds private texts, or says who was in the training data; it states the
        guarantee of the release.

    ```python
    scene = load_scene(SceneRequest("notes"))
    result = attack_once(AttackRequest(Dager(), examples=4), scene)
    print(result.leakages[0])
    ```
    """
    start, callbacks = time.monotonic(), Callbacks(watch, should_stop, progress)
    if isinstance(source, Source):
        findings = source.attacked(request, callbacks)
    else:
        findings = _on_scene(request, source, callbacks)
    return AttackResult(attack=request.label, seconds=time.monotonic() - start, **vars(findings))


def _on_scene(request: AttackRequest, scene: Scene, callbacks: Callbacks) -> Findings:
    """Run an attack on a scene by its family, unless it does not fit what it is given."""
    attack, runner = request.attack, FAMILIES[request.attack.family]
    if runner.needs_target and scene.target is None:
        raise UnsupportedError(
            f"Expected a trained model and its own training text for {request.label}, got {scene.origin}. Name the "
            "folder of a finished run, and no other text."
        )
    found = None if runner.needs_target else misfit(attack.sees.kind, request.protect, identifies=attack.identifies)
    if found is not None:
        raise found.error(request.label)
    return runner.run(request, scene, callbacks)
