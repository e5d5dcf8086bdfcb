"""Attacks: what an attacker can say about private text from a release and from what it knows."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.attacks.base import Attack as Attack
    from discreet.attacks.base import ExtractionAttack as ExtractionAttack
    from discreet.attacks.base import Family as Family
    from discreet.attacks.base import GradientAttack as GradientAttack
    from discreet.attacks.base import Mixing as Mixing
    from discreet.attacks.base import Need as Need
    from discreet.attacks.base import PeopleAttack as PeopleAttack
    from discreet.attacks.base import Returns as Returns
    from discreet.attacks.base import TimeLimit as TimeLimit
    from discreet.attacks.base import VectorAttack as VectorAttack
    from discreet.attacks.crafted.decepticons import Decepticons as Decepticons
    from discreet.attacks.extraction.attribute import AttributeInference as AttributeInference
    from discreet.attacks.extraction.class_inversion import ClassInversion as ClassInversion
    from discreet.attacks.extraction.discoverable import DiscoverableExtraction as DiscoverableExtraction
    from discreet.attacks.extraction.discoverable import Sampling as Sampling
    from discreet.attacks.extraction.exposure import CanaryExposure as CanaryExposure
    from discreet.attacks.extraction.linkage import Linkage as Linkage
    from discreet.attacks.extraction.linkage import Register as Register
    from discreet.attacks.extraction.pseudonyms import PseudonymDictionary as PseudonymDictionary
    from discreet.attacks.extraction.pseudonyms import pseudonymizer as pseudonymizer
    from discreet.attacks.identification import OneOfN as OneOfN
    from discreet.attacks.matching.lamp_tag_dlg import Dlg as Dlg
    from discreet.attacks.matching.lamp_tag_dlg import Lamp as Lamp
    from discreet.attacks.matching.lamp_tag_dlg import Tag as Tag
    from discreet.attacks.matching.masked_dlg import MaskedDLG as MaskedDLG
    from discreet.attacks.matching.word_draws import WordDraws as WordDraws
    from discreet.attacks.membership.language import ErrorZone as ErrorZone
    from discreet.attacks.membership.language import MinK as MinK
    from discreet.attacks.membership.likelihood import Lira as Lira
    from discreet.attacks.membership.likelihood import ReferenceThreshold as ReferenceThreshold
    from discreet.attacks.membership.likelihood import Rmia as Rmia
    from discreet.attacks.membership.shadow import Author as Author
    from discreet.attacks.membership.shadow import ShadowClassifier as ShadowClassifier
    from discreet.attacks.membership.signals import MembershipAttack as MembershipAttack
    from discreet.attacks.membership.signals import Outputs as Outputs
    from discreet.attacks.membership.signals import References as References
    from discreet.attacks.membership.signals import Signals as Signals
    from discreet.attacks.membership.thresholds import LossThreshold as LossThreshold
    from discreet.attacks.membership.thresholds import Neighbourhood as Neighbourhood
    from discreet.attacks.membership.thresholds import Population as Population
    from discreet.attacks.representation.blind import BlindReconstruction as BlindReconstruction
    from discreet.attacks.representation.instance import InstanceReconstruction as InstanceReconstruction
    from discreet.attacks.representation.inversion import EmbeddingInversion as EmbeddingInversion
    from discreet.attacks.representation.reprecon import RepRecon as RepRecon
    from discreet.attacks.representation.similarity import Similarity as Similarity
    from discreet.attacks.rows import EmbeddingRows as EmbeddingRows
    from discreet.attacks.rows import PositionRows as PositionRows
    from discreet.attacks.span.dager import Dager as Dager
    from discreet.attacks.span.subspace import Subspace as Subspace
    from discreet.core.types import Guess as Guess
    from discreet.core.types import Knowledge as Knowledge
    from discreet.core.types import Leakage as Leakage

_NAMES = {
    "discreet.attacks.base": (
        "Attack",
        "ExtractionAttack",
        "Family",
        "GradientAttack",
        "Mixing",
        "Need",
        "PeopleAttack",
        "Returns",
        "TimeLimit",
        "VectorAttack",
    ),
    "discreet.attacks.crafted.decepticons": ("Decepticons",),
    "discreet.attacks.extraction.attribute": ("AttributeInference",),
    "discreet.attacks.extraction.class_inversion": ("ClassInversion",),
    "discreet.attacks.extraction.discoverable": ("DiscoverableExtraction", "Sampling"),
    "discreet.attacks.extraction.exposure": ("CanaryExposure",),
    "discreet.attacks.extraction.linkage": ("Linkage", "Register"),
    "discreet.attacks.extraction.pseudonyms": ("PseudonymDictionary", "pseudonymizer"),
    "discreet.attacks.identification": ("OneOfN",),
    "discreet.attacks.matching.lamp_tag_dlg": ("Dlg", "Lamp", "Tag"),
    "discreet.attacks.matching.masked_dlg": ("MaskedDLG",),
    "discreet.attacks.matching.word_draws": ("WordDraws",),
    "discreet.attacks.membership.language": ("ErrorZone", "MinK"),
    "discreet.attacks.membership.likelihood": ("Lira", "ReferenceThreshold", "Rmia"),
    "discreet.attacks.membership.shadow": ("Author", "ShadowClassifier"),
    "discreet.attacks.membership.signals": ("MembershipAttack", "Outputs", "References", "Signals"),
    "discreet.attacks.membership.thresholds": ("LossThreshold", "Neighbourhood", "Population"),
    "discreet.attacks.representation.blind": ("BlindReconstruction",),
    "discreet.attacks.representation.instance": ("InstanceReconstruction",),
    "discreet.attacks.representation.inversion": ("EmbeddingInversion",),
    "discreet.attacks.representation.reprecon": ("RepRecon",),
    "discreet.attacks.representation.similarity": ("Similarity",),
    "discreet.attacks.rows": ("EmbeddingRows", "PositionRows"),
    "discreet.attacks.span.dager": ("Dager",),
    "discreet.attacks.span.subspace": ("Subspace",),
    "discreet.core.types": ("Guess", "Knowledge", "Leakage"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
