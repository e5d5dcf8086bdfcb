"""Whole stories: from a corpus to a trained model, and from a release to what an attacker reads in it."""

from discreet.experiment.attack import AttackRequest, AttackResult, run_attack
from discreet.experiment.scene import Scene, SceneRequest, load_scene
from discreet.experiment.scoring import Example
from discreet.experiment.training import RunOptions, RunRequest, load_corpus, run_training

__all__ = [
    "AttackRequest",
    "AttackResult",
    "Example",
    "RunOptions",
    "RunRequest",
    "Scene",
    "SceneRequest",
    "load_corpus",
    "load_scene",
    "run_attack",
    "run_training",
]
