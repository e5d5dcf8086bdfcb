"""Membership attacks that compare a loss with a threshold: one for all examples, or one for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from discreet.attacks.base import Need
from discreet.attacks.membership.signals import Floats, MembershipAttack, Signals
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

    The score is the share of known non-members with a larger loss, so that calling members above 1 - a wrongly accuses
    a share a of non-members.

    Paper: Ye et al. 2022, Enhanced membership inference attacks against machine learning models, attack P.
    """

    name: ClassVar[str] = "population"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.POPULATION})

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the share of known non-members with a larger loss; equal ones count one half."""
        assert signals.population is not None
        known = np.sort(signals.population.losses)
        losses = signals.target.losses
        larger = len(known) - np.searchsorted(known, losses, side="right")
        equal = np.searchsorted(known, losses, side="right") - np.searchsorted(known, losses, side="left")
        return np.asarray((larger + equal / 2) / len(known))
