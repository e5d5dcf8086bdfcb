"""Use language models on sensitive text without giving the text away.

The names that most programs need are here; each topic has a package with all of its names, such as `discreet.attacks`,
`discreet.protections`, `discreet.audit` and `discreet.federated`. Everything is imported on first use.
"""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

__version__ = "0.1.0"

if TYPE_CHECKING:
    from discreet import accounting as accounting
    from discreet import attacks as attacks
    from discreet import audit as audit
    from discreet import catalog as catalog
    from discreet import clipping as clipping
    from discreet import core as core
    from discreet import data as data
    from discreet import experiment as experiment
    from discreet import federated as federated
    from discreet import integrations as integrations
    from discreet import local as local
    from discreet import mechanisms as mechanisms
    from discreet import metrics as metrics
    from discreet import models as models
    from discreet import protections as protections
    from discreet import releases as releases
    from discreet import report as report
    from discreet import runs as runs
    from discreet import statement as statement
    from discreet import study as study
    from discreet import training as training
    from discreet.accounting.interpret import guarantee_of as guarantee_of
    from discreet.accounting.ledger import Ledger as Ledger
    from discreet.attacks.base import Attack as Attack
    from discreet.core.errors import BudgetError as BudgetError
    from discreet.core.errors import DiscreetError as DiscreetError
    from discreet.core.guarantee import Adjacency as Adjacency
    from discreet.core.guarantee import Caveat as Caveat
    from discreet.core.guarantee import Guarantee as Guarantee
    from discreet.core.randomness import Rng as Rng
    from discreet.core.types import Guess as Guess
    from discreet.core.types import Leakage as Leakage
    from discreet.data.corpus import Corpus as Corpus
    from discreet.data.sources import TextSource as TextSource
    from discreet.data.sources import load as load
    from discreet.estimator import TextClassifier as TextClassifier
    from discreet.experiment.attack.own_model import attack_model as attack_model
    from discreet.experiment.attack.request import AttackRequest as AttackRequest
    from discreet.experiment.attack.request import AttackResult as AttackResult
    from discreet.experiment.attack.runner import attack_once as attack_once
    from discreet.experiment.run import RunOptions as RunOptions
    from discreet.experiment.run import RunRequest as RunRequest
    from discreet.experiment.run import TrainedRun as TrainedRun
    from discreet.experiment.run import train_once as train_once
    from discreet.integrations.torch import PrivateTraining as PrivateTraining
    from discreet.integrations.torch import make_private as make_private
    from discreet.integrations.transformers import PrivateTrainer as PrivateTrainer
    from discreet.models.settings import ModelSettings as ModelSettings
    from discreet.models.settings import TrainSettings as TrainSettings
    from discreet.protections.dir_dp_sgd import DirDPSGD as DirDPSGD
    from discreet.protections.dp_sgd import DPSGD as DPSGD
    from discreet.protections.instance_encoding import InstanceEncoding as InstanceEncoding
    from discreet.protections.local.protection import LocalPrivacy as LocalPrivacy
    from discreet.protections.texthide import TextHide as TextHide
    from discreet.protections.words.swap import NoisyWords as NoisyWords
    from discreet.protections.words.swap import SanText as SanText
    from discreet.protections.words.swap import SanTextPlus as SanTextPlus
    from discreet.runs.folder import load_run as load_run
    from discreet.runs.people import people_totals as people_totals

_NAMES = {
    # Train and use a model
    "discreet.estimator": ("TextClassifier",),
    "discreet.integrations.torch": ("make_private", "PrivateTraining"),
    "discreet.integrations.transformers": ("PrivateTrainer",),
    "discreet.experiment.run": ("train_once", "RunRequest", "RunOptions", "TrainedRun"),
    "discreet.models.settings": ("TrainSettings", "ModelSettings"),
    "discreet.runs.folder": ("load_run",),
    # Text
    "discreet.data.sources": ("load", "TextSource"),
    "discreet.data.corpus": ("Corpus",),
    # Protections
    "discreet.protections.dp_sgd": ("DPSGD",),
    "discreet.protections.dir_dp_sgd": ("DirDPSGD",),
    "discreet.protections.texthide": ("TextHide",),
    "discreet.protections.instance_encoding": ("InstanceEncoding",),
    "discreet.protections.local.protection": ("LocalPrivacy",),
    "discreet.protections.words.swap": ("SanText", "SanTextPlus", "NoisyWords"),
    # Guarantees and ledgers
    "discreet.core.guarantee": ("Guarantee", "Adjacency", "Caveat"),
    "discreet.accounting.interpret": ("guarantee_of",),
    "discreet.accounting.ledger": ("Ledger",),
    "discreet.runs.people": ("people_totals",),
    # Attacks
    "discreet.attacks.base": ("Attack",),
    "discreet.experiment.attack.request": ("AttackRequest", "AttackResult"),
    "discreet.experiment.attack.runner": ("attack_once",),
    "discreet.experiment.attack.own_model": ("attack_model",),
    "discreet.core.types": ("Guess", "Leakage"),
    # The rest
    "discreet.core.randomness": ("Rng",),
    "discreet.core.errors": ("DiscreetError", "BudgetError"),
}

# Packages with names of their own: `discreet.attacks.Lira`, `discreet.study.run("study.toml")`.
_PACKAGES = (
    "accounting",
    "attacks",
    "audit",
    "catalog",
    "clipping",
    "core",
    "data",
    "experiment",
    "federated",
    "integrations",
    "local",
    "mechanisms",
    "metrics",
    "models",
    "protections",
    "releases",
    "report",
    "runs",
    "statement",
    "study",
    "training",
)

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES, _PACKAGES)
