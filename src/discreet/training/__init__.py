"""The only training loop, its plan, search for settings, and evaluation."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.models.settings import TrainSettings as TrainSettings
    from discreet.training.evaluation import Assessment as Assessment
    from discreet.training.evaluation import Predictions as Predictions
    from discreet.training.evaluation import assess as assess
    from discreet.training.evaluation import evaluate as evaluate
    from discreet.training.evaluation import predict as predict
    from discreet.training.loop import Job as Job
    from discreet.training.loop import Trained as Trained
    from discreet.training.loop import train as train
    from discreet.training.plan import PrivatePlan as PrivatePlan
    from discreet.training.plan import PublicRow as PublicRow
    from discreet.training.plan import TrainingPlan as TrainingPlan
    from discreet.training.tuning import SearchPlan as SearchPlan
    from discreet.training.tuning import Tuned as Tuned
    from discreet.training.tuning import tune as tune

_NAMES = {
    "discreet.models.settings": ("TrainSettings",),
    "discreet.training.evaluation": ("Assessment", "Predictions", "assess", "evaluate", "predict"),
    "discreet.training.loop": ("Job", "Trained", "train"),
    "discreet.training.plan": ("PrivatePlan", "PublicRow", "TrainingPlan"),
    "discreet.training.tuning": ("SearchPlan", "Tuned", "tune"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
