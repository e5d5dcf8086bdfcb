"""Membership attacks that compare a loss with a threshold: one for all examples, or one for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from discreet.attacks.base import Need
from discreet.attacks.membership.likelihood import without_ties
from discreet.attacks.membership.signals import Floats, MembershipAttack, Signals
from discreet.core.errors import whole
from discreet.core.randomness import Rng


@dataclass(frozen=True)
class LossThreshold(MembershipAttack):
    """Call an example a member if the model's loss on it is small.

    Paper: Yeom et al. 2018, Privacy risk in machine learning: analyzing the connection to overfitting, adversary 2.
    Differs: the paper's threshold is the mean training loss, which it assumes to be published; here it is the median
        loss of the examples asked about.
    """

    name: ClassVar[str] = "loss"

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return minus the loss."""
        return -signals.target.losses


@dataclass(frozen=True)
class Population(MembershipAttack):
    """Compare the loss of an example with the losses of known non-members.

    The score is the share of known non-members with a larger loss, so that calling examples above 1 - a members wrongly
    accuses a share a of non-members.

    Paper: Ye et al. 2022, Enhanced membership inference attacks against machine learning models, attack P.
    """

    name: ClassVar[str] = "population"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.POPULATION})

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the share of known non-members with a larger loss; equal shares are in the order of the loss."""
        assert signals.population is not None
        known, losses = np.sort(signals.population.losses), signals.target.losses
        larger = len(known) - np.searchsorted(known, losses, side="left")
        return without_ties(larger / len(known), np.exp(-losses), len(known))

    def cut(self, signals: Signals, scores: Floats) -> float:
        """Return one half: half of the known non-members have a larger loss."""
        return 0.5


@dataclass(frozen=True)
class Neighbourhood(MembershipAttack):
    """Compare the loss of an example with its loss after single words were replaced by similar ones.

    Needs no reference models: a model that memorized a text prefers it to its neighbours. `neighbours` is their number.

    Paper: Mattern et al. 2023, Membership inference attacks against language models via neighbourhood comparison.
    Differs: where no masked language model is at hand, replacements are words whose vectors are close in the model's
        own vocabulary. For a classifier the label of a neighbour is taken to be that of the text; a replaced
        word may change the label, so that the AUC can lie far below one half.
    """

    name: ClassVar[str] = "mia-n"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.NEIGHBOURS})

    neighbours: int = 25

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("neighbours", self.neighbours, 1, "It is the number of altered versions of each text.")

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the mean loss of the neighbours minus the loss of the example."""
        assert signals.neighbours is not None
        return np.asarray(signals.neighbours.mean(axis=1) - signals.target.losses)
