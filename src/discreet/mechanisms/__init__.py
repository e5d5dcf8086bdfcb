"""Mechanisms: frozen dataclasses with public parameters that randomize a value and have a cost, `.event`."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.mechanisms.correlated import Banded as Banded
    from discreet.mechanisms.correlated import CorrelatedNormals as CorrelatedNormals
    from discreet.mechanisms.correlated import LambdaCGD as LambdaCGD
    from discreet.mechanisms.discrete import DiscreteGaussian as DiscreteGaussian
    from discreet.mechanisms.discrete import DiscreteLaplace as DiscreteLaplace
    from discreet.mechanisms.gaussian import Gaussian as Gaussian
    from discreet.mechanisms.laplace import L2Laplace as L2Laplace
    from discreet.mechanisms.laplace import Laplace as Laplace
    from discreet.mechanisms.priv_unit import PrivUnit as PrivUnit
    from discreet.mechanisms.randomized_response import RandomizedResponse as RandomizedResponse
    from discreet.mechanisms.von_mises_fisher import VonMisesFisher as VonMisesFisher
    from discreet.mechanisms.word_metric import WordChoice as WordChoice
    from discreet.mechanisms.word_metric import WordNoise as WordNoise

_NAMES = {
    "discreet.mechanisms.correlated": ("Banded", "CorrelatedNormals", "LambdaCGD"),
    "discreet.mechanisms.discrete": ("DiscreteGaussian", "DiscreteLaplace"),
    "discreet.mechanisms.gaussian": ("Gaussian",),
    "discreet.mechanisms.laplace": ("L2Laplace", "Laplace"),
    "discreet.mechanisms.priv_unit": ("PrivUnit",),
    "discreet.mechanisms.randomized_response": ("RandomizedResponse",),
    "discreet.mechanisms.von_mises_fisher": ("VonMisesFisher",),
    "discreet.mechanisms.word_metric": ("WordChoice", "WordNoise"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
