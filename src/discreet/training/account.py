"""Spending and guarantee of a training run that protects texts or vectors, not gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from discreet.accounting.ledger import Ledger, Terms
from discreet.core.guarantee import CHOICE, FLOATING_POINT, HELD_OUT, Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.protections.base import Live, Once, TextProtection
from discreet.training.plan import TrainingPlan
from discreet.training.private import terms_of

ASSUMPTIONS = (
    "the number of rows of every unit, the settings and the encoder's first weights are public",
    HELD_OUT,
    CHOICE,
    FLOATING_POINT,
)


@dataclass
class Account:
    """Spending and guarantee of a training run that protects texts or vectors, not gradients.

    `release` adds its own assumptions and caveats to the guarantee. `paid` says whether everything that depends on
    private text is in the ledger, which is not so for a trained encoder. `limit` enforces the budget of the training if
    the ledger does not. `facts` are sentences that the plan adds to the guarantee, and `caveats` its reasons why the
    figure is an estimate.
    """

    ledger: Ledger
    secret: Rng
    delta: float
    release: Once | Live | TextProtection
    paid: bool = True
    limit: Ledger | None = None
    facts: tuple[str, ...] = ()
    caveats: frozenset[Caveat] = frozenset()

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        secret: Rng,
        plan: TrainingPlan,
        release: Once | Live | TextProtection,
        paid: bool = True,
    ) -> Account:
        """Return the account of a training run."""
        assert plan.delta is not None
        limit = plan.limit_beside(ledger)
        return cls(ledger, secret, plan.delta, release, paid, limit, plan.facts, plan.caveats)

    def epsilon(self) -> float:
        """Return an upper bound on the epsilon spent so far, infinite if nothing is guaranteed."""
        return self.ledger.epsilon(self.delta) if self.paid else math.inf

    def guarantee(self) -> Guarantee:
        """Return the guarantee of everything spent so far: a bound only for a frozen encoder and a secret seed."""
        terms = self._base_terms
        guarantee = self.ledger.guarantee(self.delta, assumptions=terms.assumptions)
        return self.release.stated(guarantee.with_caveats(terms.caveats))

    def spend(self, event: Any, name: str) -> None:
        """Record one use in the ledger, with the terms of its guarantee."""
        if self.limit is not None:
            self.limit.spend(event, name)
        self.ledger.spend(event, name, terms=self.terms)

    @cached_property
    def terms(self) -> Terms:
        """Assumptions and caveats of the guarantee, as written into the ledger.

        The caveat of a published calibration is left out: the ledger computes the proven cost of the actual noise.
        """
        base, statement = self._base_terms, self.ledger.statement
        example = Guarantee(1.0, self.delta, statement.unit, statement.adjacency, "pld", assumptions=base.assumptions)
        terms = base | Terms.of(self.release.stated(example.with_caveats(base.caveats)))
        return Terms(terms.assumptions, terms.caveats - {Caveat.PAPER_CALIBRATION})

    @property
    def _base_terms(self) -> Terms:
        terms = terms_of(self.secret, (*ASSUMPTIONS, *self.facts), self.caveats)
        return terms if self.paid else Terms(terms.assumptions, terms.caveats | {Caveat.TRAINED_ENCODER})
