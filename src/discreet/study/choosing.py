"""What choosing a setting by a study costs, in addition to the epsilon of the setting itself.

A study trains many times on the same text and attacks the results. The epsilon of the recommended setting is that of
one training with it, as if it had been fixed in advance. Choosing it looked at all other trials too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from discreet.catalog import CORPORA
from discreet.core.guarantee import in_digits
from discreet.core.types import Trial


@dataclass(frozen=True)
class Choosing:
    """The cost of choosing by the trials of a study: epsilon and delta of all of them, by basic composition.

    `unbounded` counts the trials without a guarantee; with one of them, or with several adjacencies or units, epsilon
    is infinite. `public` text belongs to nobody, and choosing on it costs nothing.

    Guarantee: none; attacks that were measured on the text are in no epsilon.
    """

    trials: int
    unbounded: int
    epsilon: float
    delta: float
    public: bool = False

    def sentence(self) -> str:
        """Return the cost of choosing as text.

        >>> Choosing(6, 0, 18.0, 6e-5).sentence().partition(" together")[0]
        'Choosing it is not in this epsilon: the 6 trials on the same text have epsilon 18 at delta 6e-05'
        """
        if self.public:
            return "Choosing costs nothing here, because the text of the study is made up or public."
        count = "1 trial" if self.trials == 1 else f"{self.trials:,} trials"
        if self.unbounded:
            verb = "has" if self.unbounded == 1 else "have"
            cost = f"{count} on the same text were compared, and {self.unbounded:,} of them {verb} no guarantee: the "
            cost += "choice has no bound"
        elif not math.isfinite(self.epsilon):
            cost = f"{count} under several adjacencies or units were compared, which cannot be added up"
        else:
            figures = f"epsilon {in_digits(self.epsilon)} at delta {in_digits(self.delta)}"
            cost = f"the {count} on the same text have {figures} together (basic composition), attacks not counted"
        return (
            f"Choosing it is not in this epsilon: {cost}. Compare settings on public or made-up text, or search with "
            "`discreet tune`, whose epsilon includes the choice."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the cost as plain values for JSON; an infinite epsilon is None."""
        finite = math.isfinite(self.epsilon)
        values = {"trials": self.trials, "without_guarantee": self.unbounded, "public_text": self.public}
        return {**values, "epsilon": self.epsilon if finite else None, "delta": self.delta if finite else None}


def cost_of_choosing(study: Mapping[str, Any], trials: Iterable[Trial]) -> Choosing:
    """Return the cost of choosing by the trials of a study."""
    from discreet.accounting.composition import basic_composition  # here: a sweep starts without the accountant

    guarantees = [trial.guarantee for trial in trials]
    bounded = [one for one in guarantees if one is not None and one.exists]
    unbounded = len(guarantees) - len(bounded)
    alike = len({(one.unit, one.adjacency) for one in bounded}) <= 1
    epsilon, delta = basic_composition([(one.epsilon, one.delta) for one in bounded])
    data = study.get("data")
    public = isinstance(data, Mapping) and CORPORA.owns(data.get("source"))
    if public:
        return Choosing(len(guarantees), unbounded, 0.0, 0.0, True)
    if unbounded or not alike:
        return Choosing(len(guarantees), unbounded, math.inf, 1.0)
    return Choosing(len(guarantees), 0, epsilon, delta)
