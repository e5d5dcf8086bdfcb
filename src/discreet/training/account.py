"""The account of a run: its ledger, its limit, its secret, the name of its spends, and what its guarantee rests on.

Every run that spends privacy has one: training with protected gradients, vectors or texts, a search for settings, a
federated client, and a loop of a user's own. The planned spends of a federation are written by
`federated.client.PlannedLedger`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.accounting.ledger import Ledger, Terms
from discreet.core.errors import LedgerError, invalid, setting
from discreet.core.guarantee import CHOICE, FLOATING_POINT, HELD_OUT, Adjacency, Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.protections.base import Live, Once, TextProtection, trust_in, trusted
from discreet.runs.people import FIXED_SEED, TRAINING, About, Entry, Marks, People, Spent
from discreet.training.plan import PrivatePlan, check_hides_absence

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    Cost = tuple[DpEvent, str]  # an event, and the name of its spend within the run

SECRET_SEED = "batches and noise come from a secret seed, drawn by the operating system and deleted afterwards"
# The assumptions of every sum of clipped gradients.
SUMS = (
    "sums of clipped gradients are formed in float32 and treated as exact: how the last bits of a sum are rounded may "
    "depend on all of its terms, while each unit's own term, rounding counted in, depends on that unit alone",
    "how long a step takes, and how much memory, is not released",
    FLOATING_POINT,
)
# Those of a run that protects texts or vectors, not gradients.
RELEASED = (
    "the number of rows of every unit, the settings and the encoder's first weights are public",
    HELD_OUT,
    CHOICE,
    FLOATING_POINT,
)


def of_gradients(plan: PrivatePlan) -> tuple[str, ...]:
    """Return the assumptions of a training run that protects gradients."""
    names = "" if Caveat.PRIVATE_CLASSES in plan.caveats else "the names of the labels, "
    return (public_facts(plan, f"{names}the settings and the encoder's first weights"), HELD_OUT, CHOICE, *SUMS)


def public_facts(plan: PrivatePlan, others: str) -> str:
    """Return the assumption that the number of units, or the population, and other facts are public."""
    if plan.population is None:
        return f"the number of units, {others} are public"
    return f"the population {plan.population:,} was given beforehand; it, {others} are public"


@dataclass
class Account:
    """Everything that one run spends and guarantees.

    `assumptions` are those of its kind of run. `release` adds its own assumptions and caveats. `paid` says whether
    everything that depends on private text is in the ledger, which is not so for a trained encoder. `run` is the name
    of the run's spends: a hash of everything that determines its batches and noise. `caveats` are what turned out while
    the run was going on. `limit` enforces the budget of the run if the ledger does not.
    """

    plan: PrivatePlan
    ledger: Ledger
    secret: Rng
    assumptions: tuple[str, ...] = RELEASED
    release: Once | Live | TextProtection | None = None
    paid: bool = True
    run: str = ""
    caveats: set[Caveat] = field(default_factory=set)
    limit: Ledger | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Open a ledger in memory for the budget, if the ledger does not enforce it."""
        self.delta = self.plan.delta
        self.limit = self.plan.limit_beside(self.ledger)
        statement = self.ledger.statement
        self._example = Guarantee(1.0, self.delta, statement.unit, statement.adjacency, "pld")

    @property
    def source(self) -> Rng:
        """Source of batches and noise, different for every run with the same secret.

        A fixed seed is there to repeat a run, and its guarantee is an estimate in any case.
        """
        return self.secret.fork("training", self.run) if self.secret.is_secret and self.run else self.secret

    @property
    def terms(self) -> Terms:
        """Assumptions and caveats of the guarantee, as written into the ledger.

        The caveat of a published calibration is left out: the ledger computes the proven cost of the actual noise.
        """
        own = self._own_terms
        if self.release is None:
            return own
        example = replace(self._example, assumptions=own.assumptions)
        terms = own | Terms.of(self.release.stated(example.with_caveats(own.caveats)))
        return Terms(terms.assumptions, terms.caveats - {Caveat.PAPER_CALIBRATION})

    @property
    def _own_terms(self) -> Terms:
        assumptions = (*self.assumptions, *self.plan.facts)
        caveats = self.plan.caveats | self.caveats | trust_in(self.plan.protect) | trust_in(self.plan.sampler)
        if not self.paid:
            caveats |= {Caveat.TRAINED_ENCODER}
        if self.secret.is_secret:
            return Terms((SECRET_SEED, *assumptions), frozenset(caveats))
        return Terms(assumptions, frozenset(caveats | {Caveat.FIXED_SEED}))

    def spend(self, cost: Cost) -> None:
        """Write a cost into the ledger, with the terms of its guarantee, before its noise is used."""
        event, name = cost[0], self._named(cost[1])
        if self.limit is not None:
            self.limit.spend(event, name)
        self.ledger.spend(event, name, terms=self.terms)

    def reserve(self, costs: Iterable[Cost]) -> int:
        """Count the planned steps of the run before the first of them is taken; return how many are allowed.

        When a run stops may be decided by looking at the noisy model, or by a crash. The epsilon of the steps so far is
        proven only for a number of steps that was fixed in advance, so a run that is cut short costs as much as its
        plan, and its ledger holds that from the beginning.

        Guarantee: afterwards the ledger holds all of them, or as many as its budget or that of `limit` allows: the plan
            could not have taken more.
        """
        spends = [(event, self._named(name)) for event, name in costs]
        if self.limit is not None:
            spends = spends[: self.limit.spend_all(spends)]
        return self.ledger.spend_all(spends, terms=self.terms)

    def check(self, costs: Iterable[Cost]) -> None:
        """Reject a checkpoint if a step of it is missing in the ledger; record its steps in `limit` if there is one."""
        for step, (event, name) in enumerate(costs):
            if not self.ledger.holds(self._named(name)):
                raise LedgerError(
                    f"Expected step {step} of this training run in its ledger, because the checkpoint is past it. The "
                    "ledger is another one, or was lost; without it nothing is guaranteed. Start again."
                )
            if self.limit is not None:
                self.limit.spend(event, self._named(name))

    def state(self) -> None:
        """Write the terms into the ledger for what is already counted."""
        self.ledger.state(self.terms)

    def epsilon(self) -> float:
        """Return an upper bound on the epsilon of everything counted, infinite if nothing is guaranteed."""
        return self.ledger.epsilon(self.delta) if self.paid else math.inf

    def guarantee(self) -> Guarantee:
        """Return the guarantee of everything counted: a bound only for a secret seed, and where everything is paid."""
        own = self._own_terms
        stated = self.ledger.guarantee(self.delta, assumptions=own.assumptions).with_caveats(own.caveats)
        return stated if self.release is None else trusted(self.plan.protect, self.release.stated(stated))

    def _named(self, name: str) -> str:
        return f"{self.run} {name}".strip()


def ledger_for(plan: PrivatePlan, ledger: Ledger | str | os.PathLike[str] | None) -> Ledger:
    """Return the open ledger of a run: the one given, or that at a path, or one in memory; reject an unsuitable one.

    The caller closes one that is opened here.
    """
    opened = ledger if isinstance(ledger, Ledger) else plan.open_ledger(None if ledger is None else Path(ledger))
    try:
        check_ledger(plan, opened)
    except BaseException:
        if opened is not ledger:
            opened.close()
        raise
    return opened


def check_ledger(plan: PrivatePlan, ledger: Ledger) -> None:
    """Reject a ledger of another unit, or of an adjacency that the plan does not satisfy.

    Under add/remove, the absence of a unit must be hidden. It would be visible if rate, divisor, delta or steps were
    functions of the number of units, or if the sampler did not sample each unit independently.
    """
    statement = ledger.statement
    if statement.unit != plan.unit:
        remedy = f"The privacy unit of the corpus is the {plan.unit}; open the ledger for it."
        raise invalid("unit", statement.unit, f"{plan.unit!r} in the ledger", remedy)
    if statement.adjacency is not Adjacency.ADD_REMOVE:
        return
    if not plan.protect.samples_units:
        remedy = "Each text or vector is visible, and so is its absence; open the ledger as the plan does."
        raise invalid("adjacency", statement.adjacency.value, f"{plan.adjacency!s} in the ledger", remedy)
    check_hides_absence(plan.sampler)
    if plan.population is None:
        remedy = (
            "Rate, divisor, delta and steps would reveal the number of units; set a public number "
            f"({setting('population')}), or open the ledger under zero-out."
        )
        raise invalid("population", None, "set under add/remove", remedy)


def entry_of(
    plan: PrivatePlan,
    who: Corpus | Marks,
    ledger: Ledger,
    *,
    out: Path | None,
    secret: bool,
    command: str = "train",
    planned: Spent | None = None,
    budget: float | None = None,
) -> Entry:
    """Return the entry of a protected training in the record of its people; `secret` is whether its seed is.

    `planned` are its spends, by default those of its steps.
    """
    if planned is None:
        planned = {}
        if plan.protect.step_kind == "sum":
            spends = plan.gradients.spends(plan, None, None)
            if len(spends) == 1:  # otherwise every cycle has a cost of its own
                planned = spends
    about = About(TRAINING if secret else FIXED_SEED, plan.delta, out, plan.protect.name, command)
    return Entry.of(People(), who, ledger, about, planned, budget)


def attach(
    plan: PrivatePlan,
    who: Corpus | Marks,
    ledger: Ledger,
    *,
    out: Path | None,
    secret: bool,
    command: str,
    planned: Spent | None = None,
) -> Entry | None:
    """Count what a ledger spends in the record of people too; None if something counts it already.

    Guarantee: the record of these people holds every later spend of the ledger before its noise is used.
    """
    if ledger.also is None:
        entry = entry_of(plan, who, ledger, out=out, secret=secret, command=command, planned=planned)
        ledger.also = entry
        return entry
    if isinstance(ledger.also, Entry):
        ledger.also.include(ledger.also.people.marks_of(who) if isinstance(who, Corpus) else who)
    return None
