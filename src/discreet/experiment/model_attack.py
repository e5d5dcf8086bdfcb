"""Attacks on a trained model: what was in its training data, and what it has memorized of it.

Each family of attacks has one function here that prepares the attacker's knowledge, runs the attack, and measures its
guess.
"""

from __future__ import annotations

from collections.abc import Callable

from discreet.attacks.base import Family
from discreet.core.errors import UnsupportedError
from discreet.experiment import extraction, people
from discreet.experiment.attack import AttackRequest, AttackResult, Progress
from discreet.experiment.membership import attack_members
from discreet.experiment.scene import Scene
from discreet.metrics.membership import ADVANTAGE, AUC, RATES, tpr_metric

# What runs the attacks of a family.
FAMILIES: dict[Family, Callable[[AttackRequest, Scene, Progress], AttackResult]] = {
    Family.MEMBERSHIP: attack_members,
    Family.EXTRACTION: extraction.extract,
}
# The metrics that the attacks of a family may report.
METRICS_OF: dict[Family, tuple[str, ...]] = {
    Family.MEMBERSHIP: (AUC, *map(tpr_metric, RATES), ADVANTAGE),
    Family.EXTRACTION: extraction.METRICS,
    Family.PEOPLE: people.METRICS,
}


def attack_model(request: AttackRequest, scene: Scene, progress: Progress) -> AttackResult:
    """Attack the trained model of a scene.

    Guarantee: none for the result, which says who was in the training data; it states the guarantee of the model.
    """
    if scene.target is None:
        raise UnsupportedError(
            f"Expected a trained model and its own training text for {request.label}, got {scene.origin}. Name the "
            "folder of a finished run, and no other text."
        )
    return FAMILIES[request.attack.family](request, scene, progress)
