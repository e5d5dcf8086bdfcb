"""Experiments: train once (`run`; `tune` searches for settings first), and attack once (`attack`), on a `scene`."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.experiment.attack.own_model import attack_model as attack_model
    from discreet.experiment.attack.request import AttackRequest as AttackRequest
    from discreet.experiment.attack.request import AttackResult as AttackResult
    from discreet.experiment.attack.request import Callbacks as Callbacks
    from discreet.experiment.attack.request import Example as Example
    from discreet.experiment.attack.request import Source as Source
    from discreet.experiment.attack.request import Updates as Updates
    from discreet.experiment.attack.runner import attack_once as attack_once
    from discreet.experiment.attack.scene import Scene as Scene
    from discreet.experiment.attack.scene import SceneRequest as SceneRequest
    from discreet.experiment.attack.scene import load_scene as load_scene
    from discreet.experiment.attack.signals import GivenReferences as GivenReferences
    from discreet.experiment.attack.signals import ReferenceTraining as ReferenceTraining
    from discreet.experiment.run import RunOptions as RunOptions
    from discreet.experiment.run import RunRequest as RunRequest
    from discreet.experiment.run import TrainedRun as TrainedRun
    from discreet.experiment.run import choose_model as choose_model
    from discreet.experiment.run import load_corpus as load_corpus
    from discreet.experiment.run import train_once as train_once
    from discreet.experiment.tune import TuneRequest as TuneRequest

_NAMES = {
    "discreet.experiment.attack.own_model": ("attack_model",),
    "discreet.experiment.attack.request": (
        "AttackRequest",
        "AttackResult",
        "Callbacks",
        "Example",
        "Source",
        "Updates",
    ),
    "discreet.experiment.attack.runner": ("attack_once",),
    "discreet.experiment.attack.scene": ("Scene", "SceneRequest", "load_scene"),
    "discreet.experiment.attack.signals": ("GivenReferences", "ReferenceTraining"),
    "discreet.experiment.run": ("RunOptions", "RunRequest", "TrainedRun", "choose_model", "load_corpus", "train_once"),
    "discreet.experiment.tune": ("TuneRequest",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
