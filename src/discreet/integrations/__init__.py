"""Private training of other people's models: own PyTorch loops, and the Hugging Face Trainer."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.integrations.torch import PrivateTraining as PrivateTraining
    from discreet.integrations.torch import make_private as make_private
    from discreet.integrations.transformers import PrivateTrainer as PrivateTrainer
    from discreet.integrations.transformers import PrivateTrainerMixin as PrivateTrainerMixin

_NAMES = {
    "discreet.integrations.torch": ("PrivateTraining", "make_private"),
    "discreet.integrations.transformers": ("PrivateTrainer", "PrivateTrainerMixin"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
