"""Experiments: train a model once (`training`), attack once (`attack`), on the data and model of a `scene`."""

from discreet.experiment.attack import AttackRequest, AttackResult, Example, run_attack
from discreet.experiment.scene import Scene, SceneRequest, load_scene
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
