"""What a protection that is not at the gradient has spent, and what that guarantees."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from discreet.accounting.ledger import Ledger
from discreet.core.checks import open_probability
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.protections.representation import TRAINED_ENCODER, Live, Once, TextProtection
from discreet.training.private import as_drawn, delta_for, refuse_unit

ASSUMPTIONS = (
    "noise and partners come from a secret seed, drawn by the operating system and deleted afterwards",
    "the number of rows of every unit, the settings and the encoder's first weights are public",
    "held-out rows are not protected: utility figures are computed on them",
)


@dataclass
class Account:
    """What a protection that is not at the gradient has spent, and what that guarantees."""

    ledger: Ledger
    secret: Rng
    delta: float
    about: Once | Live | TextProtection
    paid: bool = True  # whether all that depends on private text is in the ledger

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        secret: Rng,
        delta: float | None,
        corpus: Corpus,
        about: Once | Live | TextProtection,
        paid: bool = True,
    ) -> Account:
        """Return the account of a training."""
        refuse_unit(ledger, corpus)
        at = delta_for(corpus.unit_count) if delta is None else open_probability("delta", delta)
        return cls(ledger, secret, at, about, paid)

    def epsilon(self) -> float:
        """Return a bound on what was spent so far, infinite if nothing is guaranteed."""
        return self.ledger.epsilon(self.delta) if self.paid else math.inf

    def guarantee(self) -> Guarantee:
        """Return what was spent so far guarantees: a bound only for a frozen encoder and a secret seed."""
        found = as_drawn(self.ledger.guarantee(self.delta, assumptions=ASSUMPTIONS), self.secret)
        if found.exists and not self.paid:
            found = replace(found, certified=False, reason=TRAINED_ENCODER)
        return self.about.stated(found)
