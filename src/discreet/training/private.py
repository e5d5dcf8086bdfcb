"""One step of private training: draw units, count the step, gather protected gradients, let the sum go, move on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.accounting.ledger import Ledger, Terms
from discreet.clipping.independence import check_independent
from discreet.clipping.tape import Tape
from discreet.core.errors import LedgerError, invalid, setting
from discreet.core.guarantee import FLOATING_POINT, Adjacency, Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.data.samplers import Poisson
from discreet.models.base import TextModel
from discreet.protections.base import GradientProtection
from discreet.training.parts import Part, PrivateParts
from discreet.training.plan import TrainingPlan
from discreet.training.steps import Parts

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Rows = npt.NDArray[np.int64]

_TRIED_ROWS, _TRIED_TOKENS = 6, 6  # of the made-up batch on which a model is tried for mixing its rows

SECRET_SEED = "batches and noise come from a secret seed, drawn by the operating system and deleted afterwards"
_PUBLIC = "the number of units, the names of the labels, the settings and the encoder's first weights are public"
_POPULATION = (
    "the population {population:,} was given beforehand; it, the names of the labels, the settings and the encoder's "
    "first weights are public"
)
ASSUMPTIONS = (
    _PUBLIC,
    "held-out rows are not protected: utility figures are computed on them",
    "sums of clipped gradients are formed in float32 and treated as exact: how the last bits of a sum are rounded may "
    "depend on all of its terms, while each unit's own term, rounding counted in, depends on that unit alone",
    "how long a step takes, and how much memory, is not released",
    FLOATING_POINT,
)


@dataclass(frozen=True)
class Grouped:
    """The rows of a corpus by unit of privacy: unit u owns `rows[starts[u] : starts[u + 1]]`."""

    rows: Rows
    starts: Rows

    @classmethod
    def of(cls, unit_index: Rows) -> Grouped:
        """Return the rows grouped by the number of their unit."""
        count = int(unit_index.max(initial=-1)) + 1
        sizes = np.bincount(unit_index, minlength=count)
        return cls(np.argsort(unit_index, kind="stable"), np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.starts) - 1

    def of_units(self, units: Rows) -> tuple[Rows, Rows]:
        """Return the rows of these units, one unit after the other, and where each unit's rows begin and end."""
        sizes = self.starts[units + 1] - self.starts[units]
        first = np.concatenate([[0], np.cumsum(sizes)])
        return self.rows[np.repeat(self.starts[units] - first[:-1], sizes) + np.arange(first[-1])], first


@dataclass
class PrivateStep:
    """A step whose gradient passes through a protection before anything is done with it.

    Guarantee: that of the ledger, which holds every step before its noise is drawn. Batches, dropout and noise come
        from `secret`, which nobody else may know.
    """

    model: TextModel
    optimizer: torch.optim.Optimizer
    protect: GradientProtection
    rows: Tokens | Vectors
    units: Grouped
    plan: TrainingPlan
    ledger: Ledger
    secret: Rng
    delta: float
    run: str = ""

    def __post_init__(self) -> None:
        """Find the layers to clip, or refuse the model by name."""
        self.tape = Tape(self.model)
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        expected = max(1, math.ceil(self.plan.sampler.expected_size(self.count)))
        self.parts = PrivateParts.of(self.model, self.tape, self.rows, self.plan.settings.precision, expected)
        self.limit = self.plan.limit_beside(self.ledger)

    @classmethod
    def of(cls, parts: Parts, ledger: Ledger, secret: Rng) -> PrivateStep:
        """Return the step of a training at the gradient, whose units are drawn; a model that mixes rows is rejected."""
        plan = parts.plan
        assert isinstance(plan.protect, GradientProtection) and plan.delta is not None
        units = Grouped.of(numbered(parts.corpus))
        step = cls(parts.model, parts.optimizer, plan.protect, parts.rows, units, plan, ledger, secret, plan.delta)
        step.check_independent()
        plan.protect.check_parameters({name: p.numel() for name, p in step.parameters.items()})
        return step

    def check_independent(self) -> None:
        """Reject a model that mixes the rows of a batch, which shapes cannot show; tried on rows that are made up."""
        width = min(_TRIED_TOKENS, self.model.max_length)
        tried = self.rows.made_up(_TRIED_ROWS, width, len(self.model.tokenizer), self.model.classes, Rng(0))

        def losses_of(chosen: Tensor) -> Tensor:
            at = chosen.to(tried.targets.device)
            return self.model.losses({name: value[at] for name, value in tried.inputs.items()}, tried.targets[at])

        check_independent(self.tape, losses_of, rows=_TRIED_ROWS)

    @property
    def protection(self) -> str:
        """The name of the protection, as it is asked for."""
        return self.protect.name

    @property
    def per_epoch(self) -> int:
        """How many steps draw every unit once, on average or exactly."""
        return self.plan.sampler.steps_per_epoch(self.count)

    @property
    def steps(self) -> int:
        """How many steps the training takes."""
        return self.plan.steps

    @property
    def count(self) -> int:
        """The number of units that is public: their own, or the population."""
        return self.plan.units

    def describe(self) -> object:
        """Return the sampler, the protection, who owns which row, the population and the secret, which are hashed."""
        return self.plan.sampler, self.protect.identity(), self.units, self.plan.population, self.secret

    def check(self, steps: int) -> None:
        """Refuse to resume from a checkpoint whose steps the ledger does not hold."""
        refuse_unbilled(self.ledger, self.run, map(self.plan.step_cost, range(steps)), self.limit)

    def epsilon(self) -> float:
        """Return a bound on what was spent so far."""
        return self.ledger.epsilon(self.delta)

    def guarantee(self) -> Guarantee:
        """Return what all steps so far guarantee: a bound only if nobody could know the seed of the noise."""
        terms = self.terms
        return self.ledger.guarantee(self.delta, assumptions=terms.assumptions).with_caveats(terms.caveats)

    @property
    def terms(self) -> Terms:
        """What the guarantee of every step rests on, as it is written into the ledger."""
        found = terms_of(self.secret, assumptions(self.plan.population))
        if not self.parts.unsteady and (isinstance(self.rows, Tokens) or self.rows.steady):
            return found
        return Terms(found.assumptions, found.caveats | {Caveat.UNSTEADY_KERNELS})

    @property
    def source(self) -> Rng:
        """Where batches and noise come from: another training with the same secret draws other ones.

        A seed that was given is for repeating, and what it guarantees is an estimate in any case.
        """
        return self.secret.fork("training", self.run) if self.secret.is_secret and self.run else self.secret

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Take one step and return its mean loss, still on the device, and the number of its rows."""
        drawn = self.plan.sampler.draw(step, len(self.units), self.source.fork("sampler"))
        event, name = self.plan.step_cost(step)
        gathered = None
        while gathered is None:
            with suppress(torch.OutOfMemoryError):
                self.parts_of(drawn)  # what a new shape shows belongs to the terms of the spend
                # The name holds what decides the draw: with another secret, corpus or setting it is another spend, and
                # the same again, in smaller parts after memory ran out, is none.
                named = f"{self.run} {name}".strip()
                if self.limit is not None:
                    self.limit.spend(event, named)
                self.ledger.spend(event, named, terms=self.terms)
                gathered = self.gather(drawn, step)
            if gathered is None:
                self.parts.shrink()
        sums, loss, count = gathered
        released = self.protect.release(sums, self.source.fork("noise", step))
        divisor = self.plan.sampler.expected_size(self.count)
        for parameter_name, parameter in self.parameters.items():
            parameter.grad = (released[parameter_name] / divisor).to(parameter.dtype)
        self.optimizer.step()
        return loss, count

    def gather(self, drawn: Rows, step: int) -> tuple[dict[str, Tensor], Tensor | None, int]:
        """Return the protected sum over the drawn units before its release, the mean loss and the number of rows."""
        sums: dict[str, Tensor] = {}
        total, count = torch.zeros((), device=self.model.device), 0
        parts = self.parts_of(drawn)
        self.source.fork("dropout", step).seed_torch(self.model.device)
        for number, part in enumerate(parts):
            record, losses = self.parts.record(part)
            self.protect.gather(record, sums, self.source.fork("directions", step, number))
            total += losses.sum()
            count += int((part.rows >= 0).sum())
        if not count:
            self.protect.gather(self.tape.empty(), sums, self.source.fork("directions", step))
        return sums, (total / count if count else None), count

    def parts_of(self, drawn: Rows) -> list[Part]:
        """Return the drawn units in parts whose shapes were tried out."""
        return self.parts.of_units(*self.units.of_units(drawn)) if len(drawn) else []

    def layout(self) -> dict[str, Any]:
        """Return in what parts batches are read."""
        return self.parts.layout()

    def restore(self, layout: dict[str, Any]) -> None:
        """Read batches in the parts in which a stopped training read them."""
        self.parts.restore(layout)


def assumptions(population: int | None = None) -> tuple[str, ...]:
    """Return what a training's certificate rests on: which numbers are public, and who is not protected."""
    told = _PUBLIC if population is None else _POPULATION.format(population=population)
    return tuple(told if text is _PUBLIC else text for text in ASSUMPTIONS)


def as_drawn(found: Guarantee, source: Rng) -> Guarantee:
    """Return a guarantee as it stands for noise from this source: an estimate where its seed is fixed."""
    return found if source.is_secret or not found.exists else found.with_caveats({Caveat.FIXED_SEED})


def terms_of(source: Rng, assumptions: tuple[str, ...]) -> Terms:
    """Return what a spend rests on whose noise comes from this source: that its seed is secret, or that it is not."""
    return (
        Terms((SECRET_SEED, *assumptions)) if source.is_secret else Terms(assumptions, frozenset({Caveat.FIXED_SEED}))
    )


def numbered(corpus: Corpus) -> Rows:
    """Return the number of each row's unit, units counted in the order of their names.

    The order of appearance would change, and with it who is drawn, where one unit's first row changes.
    """
    if corpus.units is None:
        return corpus.unit_index
    rank = np.empty(corpus.unit_count, dtype=np.int64)
    rank[sorted(range(corpus.unit_count), key=corpus.unit_names.__getitem__)] = np.arange(corpus.unit_count)
    return np.asarray(rank[corpus.unit_index])


def check_ledger(plan: TrainingPlan, ledger: Ledger) -> None:
    """Reject a ledger that was opened for another unit, or under an adjacency that the plan does not keep.

    Under add/remove, absence is what must be hidden: rate, divisor, delta and steps that are functions of the number of
    units would show it, as would a sampler that draws otherwise than each unit by itself.
    """
    told = ledger.statement
    if told.unit != plan.unit:
        remedy = f"The corpus's unit of privacy is the {plan.unit}; open the ledger for it."
        raise invalid("unit", told.unit, f"{plan.unit!r} in the ledger", remedy)
    if told.adjacency is not Adjacency.ADD_REMOVE:
        return
    if not isinstance(plan.protect, GradientProtection):
        remedy = "Each text or vector is seen, and so is that one is absent; open the ledger as the plan does."
        raise invalid("adjacency", told.adjacency.value, f"{plan.adjacency!s} in the ledger", remedy)
    if not isinstance(plan.sampler, Poisson):
        remedy = "One unit less would move all batches; draw by Poisson, or account under zero-out."
        raise invalid("sampler", plan.sampler, "Poisson under add/remove", remedy)
    if plan.population is None:
        remedy = (
            "Rate, divisor, delta and steps would tell how many units there are; give a public number "
            f"({setting('population')}), or open the ledger under zero-out."
        )
        raise invalid("population", None, "given under add/remove", remedy)


def refuse_unbilled(
    ledger: Ledger, run: str, spent: Iterable[tuple[DpEvent, str]], limit: Ledger | None = None
) -> None:
    """Reject a checkpoint if the ledger does not hold each of its steps, by the names they count by.

    What limits the training beside the ledger, if anything does, counts them as well.
    """
    for step, (event, name) in enumerate(spent):
        if not ledger.holds(f"{run} {name}"):
            raise LedgerError(
                f"Expected step {step} of this training in its ledger, as the checkpoint is past it. The ledger is "
                "another one, or was lost; without it nothing is guaranteed. Begin again."
            )
        if limit is not None:
            limit.spend(event, f"{run} {name}")
