"""Federated training on Flower: clients keep their text and send updates; a server sums them."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.federated.accountant import LedgerAccountant as LedgerAccountant
    from discreet.federated.aggregation import Aggregation as Aggregation
    from discreet.federated.aggregation import Mean as Mean
    from discreet.federated.aggregation import Round as Round
    from discreet.federated.aggregation import Total as Total
    from discreet.federated.aggregation import Update as Update
    from discreet.federated.app import write_app as write_app
    from discreet.federated.central import CentralDP as CentralDP
    from discreet.federated.record import RecordedRound as RecordedRound
    from discreet.federated.record import read_rounds as read_rounds
    from discreet.federated.run import FederateOptions as FederateOptions
    from discreet.federated.run import federate as federate
    from discreet.federated.secure_sum.aggregations import SecureSum as SecureSum
    from discreet.federated.secure_sum.encrypted import EncryptedSum as EncryptedSum
    from discreet.federated.secure_sum.messages import SumSettings as SumSettings
    from discreet.federated.secure_sum.noise import DistributedNoise as DistributedNoise
    from discreet.federated.secure_sum.protocol import run_sum as run_sum
    from discreet.federated.server import RoundReport as RoundReport
    from discreet.federated.settings import Federation as Federation
    from discreet.federated.settings import divided as divided

_NAMES = {
    "discreet.federated.accountant": ("LedgerAccountant",),
    "discreet.federated.aggregation": ("Aggregation", "Mean", "Round", "Total", "Update"),
    "discreet.federated.app": ("write_app",),
    "discreet.federated.central": ("CentralDP",),
    "discreet.federated.record": ("RecordedRound", "read_rounds"),
    "discreet.federated.run": ("FederateOptions", "federate"),
    "discreet.federated.secure_sum.aggregations": ("SecureSum",),
    "discreet.federated.secure_sum.encrypted": ("EncryptedSum",),
    "discreet.federated.secure_sum.messages": ("SumSettings",),
    "discreet.federated.secure_sum.noise": ("DistributedNoise",),
    "discreet.federated.secure_sum.protocol": ("run_sum",),
    "discreet.federated.server": ("RoundReport",),
    "discreet.federated.settings": ("Federation", "divided"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
