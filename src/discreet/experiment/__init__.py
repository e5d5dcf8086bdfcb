"""Experiments: train once (`run`; `tune` searches for settings first), and attack once (`attack`), on a `scene`."""

from discreet.experiment.attack.request import AttackRequest, AttackResult, Example
from discreet.experiment.attack.runner import attack_once
from discreet.experiment.attack.scene import Scene, SceneRequest, load_scene
from discreet.experiment.run import RunOptions, RunRequest, TrainedRun, choose_model, load_corpus, train_once
from discreet.experiment.tune import TuneRequest

__all__ = [
    "AttackRequest",
    "AttackResult",
    "Example",
    "RunOptions",
    "RunRequest",
    "Scene",
    "SceneRequest",
    "TrainedRun",
    "TuneRequest",
    "attack_once",
    "choose_model",
    "load_corpus",
    "load_scene",
    "train_once",
]
