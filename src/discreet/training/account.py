"""What a protection that is not at the gradient has spent, and what that guarantees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from discreet.accounting.ledger import Ledger, Terms
from discreet.core.guarantee import FLOATING_POINT, Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.protections.base import Live, Once, TextProtection
from discreet.training.plan import TrainingPlan
from discreet.training.private import terms_of

ASSUMPTIONS = (
    "the number of rows of every unit, the settings and the encoder's first weights are public",
    "held-out rows are not protected: utility figures are computed on them",
    FLOATING_POINT,
)


@dataclass
class Account:
    """What a protection that is not at the gradient has spent, and what that guarantees."""

    ledger: Ledger
    secret: Rng
    delta: float
    about: Once | Live | TextProtection
    paid: bool = True  # whether all that depends on private text is in the ledger
    limit: Ledger | None = None  # what holds the training to its budget, where the ledger does not

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        secret: Rng,
        plan: TrainingPlan,
        corpus: Corpus,
        about: Once | Live | TextProtection,
        paid: bool = True,
    ) -> Account:
        """Return the account of a training."""
        assert plan.delta is not None
        return cls(ledger, secret, plan.delta, about, paid, plan.limit_beside(ledger))

    def epsilon(self) -> float:
        """Return a bound on what was spent so far, infinite if nothing is guaranteed."""
        return self.ledger.epsilon(self.delta) if self.paid else math.inf

    def guarantee(self) -> Guarantee:
        """Return what was spent so far guarantees: a bound only for a frozen encoder and a secret seed."""
        terms = self._drawn
        found = self.ledger.guarantee(self.delta, assumptions=terms.assumptions).with_caveats(terms.caveats)
        return self.about.stated(found)

    def spend(self, event: Any, name: str) -> None:
        """Count one use in the ledger, with what its guarantee rests on."""
        if self.limit is not None:
            self.limit.spend(event, name)
        self.ledger.spend(event, name, terms=self.terms)

    @cached_property
    def terms(self) -> Terms:
        """What the guarantee rests on, as it is written into the ledger: all that is stated for any figure.

        A published calibration that is no bound is left out: the ledger prices the noise that was drawn, by a proof.
        """
        drawn, told = self._drawn, self.ledger.statement
        one = Guarantee(1.0, self.delta, told.unit, told.adjacency, "pld", assumptions=drawn.assumptions)
        found = drawn | Terms.of(self.about.stated(one.with_caveats(drawn.caveats)))
        return Terms(found.assumptions, found.caveats - {Caveat.PAPER_CALIBRATION})

    @property
    def _drawn(self) -> Terms:
        found = terms_of(self.secret, ASSUMPTIONS)
        return found if self.paid else Terms(found.assumptions, found.caveats | {Caveat.TRAINED_ENCODER})
