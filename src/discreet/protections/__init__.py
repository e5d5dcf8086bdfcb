"""Protections: each alters a private thing before it leaves, at one place, and says what that costs."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.protections.base import Conditions as Conditions
    from discreet.protections.base import GradientProtection as GradientProtection
    from discreet.protections.base import Protection as Protection
    from discreet.protections.base import RepresentationProtection as RepresentationProtection
    from discreet.protections.base import TextProtection as TextProtection
    from discreet.protections.dir_dp_sgd import DirDPSGD as DirDPSGD
    from discreet.protections.dp_sgd import DPSGD as DPSGD
    from discreet.protections.instance_encoding import InstanceEncoding as InstanceEncoding
    from discreet.protections.local.decoys import Decoys as Decoys
    from discreet.protections.local.layer import LDPLayer as LDPLayer
    from discreet.protections.local.protection import LocalPrivacy as LocalPrivacy
    from discreet.protections.texthide import TextHide as TextHide
    from discreet.protections.words.swap import NoisyWords as NoisyWords
    from discreet.protections.words.swap import SanText as SanText
    from discreet.protections.words.swap import SanTextPlus as SanTextPlus
    from discreet.protections.words.swap import WordSwap as WordSwap
    from discreet.protections.words.table import WordTable as WordTable
    from discreet.protections.words.table import listed_words as listed_words
    from discreet.protections.words.table import rare_words as rare_words
    from discreet.protections.words.token_noise import TokenNoise as TokenNoise

_NAMES = {
    "discreet.protections.base": (
        "Conditions",
        "GradientProtection",
        "Protection",
        "RepresentationProtection",
        "TextProtection",
    ),
    "discreet.protections.dir_dp_sgd": ("DirDPSGD",),
    "discreet.protections.dp_sgd": ("DPSGD",),
    "discreet.protections.instance_encoding": ("InstanceEncoding",),
    "discreet.protections.local.decoys": ("Decoys",),
    "discreet.protections.local.layer": ("LDPLayer",),
    "discreet.protections.local.protection": ("LocalPrivacy",),
    "discreet.protections.texthide": ("TextHide",),
    "discreet.protections.words.swap": ("NoisyWords", "SanText", "SanTextPlus", "WordSwap"),
    "discreet.protections.words.table": ("WordTable", "listed_words", "rare_words"),
    "discreet.protections.words.token_noise": ("TokenNoise",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
