"""Experiments: train once (`training`), search for settings (`tuning`), attack once (`attack`), on a `scene`."""

from discreet.experiment.attack.request import AttackRequest, AttackResult, Example
from discreet.experiment.attack.runner import run_attack
from discreet.experiment.attack.scene import Scene, SceneRequest, load_scene
from discreet.experiment.training import RunOptions, RunRequest, load_corpus, run_training
from discreet.experiment.tuning import TuneRequest, run_tuning

__all__ = [
    "AttackRequest",
    "AttackResult",
    "Example",
    "RunOptions",
    "RunRequest",
    "Scene",
    "SceneRequest",
    "TuneRequest",
    "load_corpus",
    "load_scene",
    "run_attack",
    "run_training",
    "run_tuning",
]
