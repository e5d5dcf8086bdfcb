"""Privacy accounting: events, accountants, calibration and the ledger, without tensors."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.accounting.calibrate import largest_rate as largest_rate
    from discreet.accounting.calibrate import least_noise as least_noise
    from discreet.accounting.calibrate import most_steps as most_steps
    from discreet.accounting.composition import advanced_composition as advanced_composition
    from discreet.accounting.composition import basic_composition as basic_composition
    from discreet.accounting.composition import group_privacy as group_privacy
    from discreet.accounting.events import ClippedSumDpEvent as ClippedSumDpEvent
    from discreet.accounting.events import ComposedDpEvent as ComposedDpEvent
    from discreet.accounting.events import DiscreteGaussianDpEvent as DiscreteGaussianDpEvent
    from discreet.accounting.events import DiscreteGaussianSumDpEvent as DiscreteGaussianSumDpEvent
    from discreet.accounting.events import DiscreteLaplaceDpEvent as DiscreteLaplaceDpEvent
    from discreet.accounting.events import DpEvent as DpEvent
    from discreet.accounting.events import EpsilonDeltaDpEvent as EpsilonDeltaDpEvent
    from discreet.accounting.events import GaussianDpEvent as GaussianDpEvent
    from discreet.accounting.events import LaplaceDpEvent as LaplaceDpEvent
    from discreet.accounting.events import LocalDpEvent as LocalDpEvent
    from discreet.accounting.events import MetricDpEvent as MetricDpEvent
    from discreet.accounting.events import NoGuaranteeDpEvent as NoGuaranteeDpEvent
    from discreet.accounting.events import NonPrivateDpEvent as NonPrivateDpEvent
    from discreet.accounting.events import NoOpDpEvent as NoOpDpEvent
    from discreet.accounting.events import OneOfDpEvent as OneOfDpEvent
    from discreet.accounting.events import PoissonSampledDpEvent as PoissonSampledDpEvent
    from discreet.accounting.events import RandomAllocationDpEvent as RandomAllocationDpEvent
    from discreet.accounting.events import RandomizedResponseDpEvent as RandomizedResponseDpEvent
    from discreet.accounting.events import RepeatAndSelectDpEvent as RepeatAndSelectDpEvent
    from discreet.accounting.events import SampledWithoutReplacementDpEvent as SampledWithoutReplacementDpEvent
    from discreet.accounting.events import SelfComposedDpEvent as SelfComposedDpEvent
    from discreet.accounting.events import SkellamDpEvent as SkellamDpEvent
    from discreet.accounting.events import TruncatedSubsampledGaussianDpEvent as TruncatedSubsampledGaussianDpEvent
    from discreet.accounting.events import VisibleVectorsDpEvent as VisibleVectorsDpEvent
    from discreet.accounting.events import VonMisesFisherDpEvent as VonMisesFisherDpEvent
    from discreet.accounting.events import ZCDpEvent as ZCDpEvent
    from discreet.accounting.events import event_from_json as event_from_json
    from discreet.accounting.events import event_to_json as event_to_json
    from discreet.accounting.interpret import Meter as Meter
    from discreet.accounting.interpret import delta as delta
    from discreet.accounting.interpret import epsilon as epsilon
    from discreet.accounting.interpret import guarantee_of as guarantee_of
    from discreet.accounting.ledger import Allowance as Allowance
    from discreet.accounting.ledger import Ledger as Ledger
    from discreet.accounting.ledger import Receipt as Receipt
    from discreet.accounting.ledger_file import Budget as Budget
    from discreet.accounting.ledger_file import Statement as Statement
    from discreet.accounting.ledger_file import Terms as Terms
    from discreet.accounting.risk import least_noise_for_risk as least_noise_for_risk
    from discreet.accounting.risk import most_exposure as most_exposure
    from discreet.accounting.risk import most_identified as most_identified
    from discreet.accounting.risk import most_named as most_named
    from discreet.accounting.risk import most_true_positives as most_true_positives
    from discreet.core.guarantee import Adjacency as Adjacency
    from discreet.core.guarantee import Caveat as Caveat
    from discreet.core.guarantee import Guarantee as Guarantee

_NAMES = {
    "discreet.accounting.calibrate": ("largest_rate", "least_noise", "most_steps"),
    "discreet.accounting.composition": ("advanced_composition", "basic_composition", "group_privacy"),
    "discreet.accounting.events": (
        "ClippedSumDpEvent",
        "ComposedDpEvent",
        "DiscreteGaussianDpEvent",
        "DiscreteGaussianSumDpEvent",
        "DiscreteLaplaceDpEvent",
        "DpEvent",
        "EpsilonDeltaDpEvent",
        "GaussianDpEvent",
        "LaplaceDpEvent",
        "LocalDpEvent",
        "MetricDpEvent",
        "NoGuaranteeDpEvent",
        "NoOpDpEvent",
        "NonPrivateDpEvent",
        "OneOfDpEvent",
        "PoissonSampledDpEvent",
        "RandomAllocationDpEvent",
        "RandomizedResponseDpEvent",
        "RepeatAndSelectDpEvent",
        "SampledWithoutReplacementDpEvent",
        "SelfComposedDpEvent",
        "SkellamDpEvent",
        "TruncatedSubsampledGaussianDpEvent",
        "VisibleVectorsDpEvent",
        "VonMisesFisherDpEvent",
        "ZCDpEvent",
        "event_from_json",
        "event_to_json",
    ),
    "discreet.accounting.interpret": ("Meter", "delta", "epsilon", "guarantee_of"),
    "discreet.accounting.ledger": ("Allowance", "Ledger", "Receipt"),
    "discreet.accounting.ledger_file": ("Budget", "Statement", "Terms"),
    "discreet.accounting.risk": (
        "least_noise_for_risk",
        "most_exposure",
        "most_identified",
        "most_named",
        "most_true_positives",
    ),
    "discreet.core.guarantee": ("Adjacency", "Caveat", "Guarantee"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
