"""Encoders, classifiers and language models."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.models.base import TextModel as TextModel
    from discreet.models.bilstm import BiLSTM as BiLSTM
    from discreet.models.build import build_model as build_model
    from discreet.models.causal_prior import CausalPrior as CausalPrior
    from discreet.models.classifier import Classifier as Classifier
    from discreet.models.encoder import Encoder as Encoder
    from discreet.models.encoder import load_encoder as load_encoder
    from discreet.models.language_model import LanguageModel as LanguageModel
    from discreet.models.ngram import NGram as NGram
    from discreet.models.pretrained import save_pretrained as save_pretrained
    from discreet.models.settings import ModelSettings as ModelSettings
    from discreet.models.settings import TrainSettings as TrainSettings
    from discreet.models.smollm2 import install_smollm2 as install_smollm2
    from discreet.models.token_classifier import TokenClassifier as TokenClassifier

_NAMES = {
    "discreet.models.base": ("TextModel",),
    "discreet.models.bilstm": ("BiLSTM",),
    "discreet.models.build": ("build_model",),
    "discreet.models.causal_prior": ("CausalPrior",),
    "discreet.models.classifier": ("Classifier",),
    "discreet.models.encoder": ("Encoder", "load_encoder"),
    "discreet.models.language_model": ("LanguageModel",),
    "discreet.models.ngram": ("NGram",),
    "discreet.models.pretrained": ("save_pretrained",),
    "discreet.models.settings": ("ModelSettings", "TrainSettings"),
    "discreet.models.smollm2": ("install_smollm2",),
    "discreet.models.token_classifier": ("TokenClassifier",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
