"""One step of private training: sample units, record the cost, sum protected gradients, release the sum, update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.accounting.ledger import Ledger, Terms
from discreet.clipping.independence import check_independent
from discreet.clipping.tape import Tape
from discreet.core.errors import LedgerError, invalid, setting
from discreet.core.guarantee import CHOICE, FLOATING_POINT, HELD_OUT, Adjacency, Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.data.sources import EACH_ROW
from discreet.models.base import HEAD_NAMES, TextModel
from discreet.protections.base import GradientProtection, Release
from discreet.training.encode import encode
from discreet.training.parts import Part, PrivateParts
from discreet.training.plan import TrainingPlan, check_hides_absence
from discreet.training.steps import Parts, Step, StepCanaries, Taken

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Rows = npt.NDArray[np.int64]

_TEST_ROWS, _TEST_TOKENS = 6, 6  # size of the synthetic batch that shows whether a model mixes its rows

SECRET_SEED = "batches and noise come from a secret seed, drawn by the operating system and deleted afterwards"
_PUBLIC = "the number of units, the names of the labels, the settings and the encoder's first weights are public"
_POPULATION = (
    "the population {population:,} was given beforehand; it, the names of the labels, the settings and the encoder's "
    "first weights are public"
)
ASSUMPTIONS = (
    _PUBLIC,
    HELD_OUT,
    CHOICE,
    "sums of clipped gradients are formed in float32 and treated as exact: how the last bits of a sum are rounded may "
    "depend on all of its terms, while each unit's own term, rounding counted in, depends on that unit alone",
    "how long a step takes, and how much memory, is not released",
    FLOATING_POINT,
)


@dataclass(frozen=True)
class Grouped:
    """Rows of a corpus grouped by privacy unit: unit u owns `rows[starts[u] : starts[u + 1]]`."""

    rows: Rows
    starts: Rows

    @classmethod
    def of(cls, unit_index: Rows) -> Grouped:
        """Return the rows grouped by unit index."""
        count = int(unit_index.max(initial=-1)) + 1
        sizes = np.bincount(unit_index, minlength=count)
        return cls(np.argsort(unit_index, kind="stable"), np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.starts) - 1

    def of_units(self, units: Rows) -> tuple[Rows, Rows]:
        """Return the rows of these units, one unit after the other, and the offsets of each unit's rows."""
        sizes = self.starts[units + 1] - self.starts[units]
        first = np.concatenate([[0], np.cumsum(sizes)])
        return self.rows[np.repeat(self.starts[units] - first[:-1], sizes) + np.arange(first[-1])], first


@dataclass
class PrivateStep(Step):
    """A step whose gradient passes through a protection before it is used.

    Guarantee: that of the ledger, which records every step before its noise is sampled. Batches, dropout and noise come
        from `secret`, which must stay secret.
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
    canaries: StepCanaries | None = None
    zeroed: npt.NDArray[np.bool_] | None = None  # units that are empty records, for an audit
    corpus: Corpus | None = None  # of the rows, if the head is trained first
    first: PrivateStep | None = None  # the step of the head alone, once it is made

    def __post_init__(self) -> None:
        """Find the layers to clip; a model with unsupported layers is rejected."""
        self.tape = Tape(self.model)
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        expected = max(1, math.ceil(self.plan.sampler.expected_size(self.count)))
        most_rows = 1 if self.plan.unit == EACH_ROW else self.plan.max_per_unit
        precision = self.plan.settings.precision
        self.parts = PrivateParts.of(self.model, self.tape, self.rows, precision, expected, most_rows)
        self.limit = self.plan.limit_beside(self.ledger)
        self._releaser: tuple[str, Release] | None = None

    @classmethod
    def of(cls, parts: Parts, ledger: Ledger, secret: Rng) -> PrivateStep:
        """Return the step of a training run that protects gradients; a model that mixes rows is rejected."""
        plan = parts.plan
        assert isinstance(plan.protect, GradientProtection) and plan.delta is not None
        units = Grouped.of(unit_numbers(parts.corpus))
        step = cls(parts.model, parts.optimizer, plan.protect, parts.rows, units, plan, ledger, secret, plan.delta)
        step.canaries, step.corpus = parts.canaries, parts.corpus if plan.head_steps else None
        if parts.canaries is not None and parts.canaries.zeroed:
            step.zeroed = np.zeros(len(units), dtype=bool)
            step.zeroed[unit_numbers(parts.corpus)[list(parts.canaries.zeroed)]] = True
        step.check_independent()
        plan.protect.check_parameters({name: p.numel() for name, p in step.parameters.items()})
        return step

    def check_independent(self) -> None:
        """Reject a model that mixes the rows of a batch, by a test on synthetic rows."""
        width = min(_TEST_TOKENS, self.model.max_length)
        batch = self.rows.made_up(_TEST_ROWS, width, len(self.model.tokenizer), self.model.classes, Rng(0))

        def losses_of(chosen: Tensor) -> Tensor:
            at = chosen.to(batch.targets.device)
            return self.model.losses({name: value[at] for name, value in batch.inputs.items()}, batch.targets[at])

        check_independent(self.tape, losses_of, rows=_TEST_ROWS)

    @property
    def per_epoch(self) -> int:
        """Number of steps that sample every unit once, exactly or on average."""
        return self.plan.sampler.steps_per_epoch(self.count)

    @property
    def count(self) -> int:
        """Public number of units: the actual number, or the population."""
        return self.plan.units

    def describe(self) -> object:
        """Return the sampler, the protection, the units, the population and the secret, all of which are hashed."""
        described = self.plan.sampler, self.protect.identity(), self.units, self.plan.population, self.secret
        return described if self.canaries is None else (*described, self.canaries.describe())

    def canary_state(self) -> dict[str, Tensor]:
        """Return what an audit has read so far."""
        return {} if self.canaries is None else self.canaries.state()

    def restore_canaries(self, state: dict[str, Tensor]) -> None:
        """Continue an audit from what a stopped training run had read."""
        if self.canaries is not None:
            self.canaries.restore(state)

    def check(self, steps: int) -> None:
        """Reject resuming from a checkpoint whose steps are not in the ledger."""
        check_spent(self.ledger, self.run, map(self.plan.step_cost, range(steps)), self.limit)

    def reserve(self, first: int) -> int:
        """Count all planned steps from `first` on, before the first of them; return how many are allowed."""
        costs = map(self.plan.step_cost, range(first, self.steps))
        return spend_all(self.ledger, self.run, costs, self.terms, self.limit)

    def epsilon(self) -> float:
        """Return an upper bound on the epsilon of everything counted, which is that of all planned steps."""
        return self.ledger.epsilon(self.delta)

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all planned steps: a bound only if the seed of the noise is secret."""
        terms = self.terms
        return self.ledger.guarantee(self.delta, assumptions=terms.assumptions).with_caveats(terms.caveats)

    @property
    def terms(self) -> Terms:
        """Assumptions and caveats of the guarantee of every step, as written into the ledger."""
        terms = terms_of(self.secret, (*assumptions(self.plan.population), *self.plan.facts), self.plan.caveats)
        if not self.parts.unsteady and (isinstance(self.rows, Tokens) or self.rows.steady):
            return terms
        return Terms(terms.assumptions, terms.caveats | {Caveat.UNSTEADY_KERNELS})

    @property
    def source(self) -> Rng:
        """Source of batches and noise, different for every training run with the same secret.

        A fixed seed is there to repeat a training run, and its guarantee is an estimate in any case.
        """
        return self.secret.fork("training", self.run) if self.secret.is_secret and self.run else self.secret

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Take one step; return its mean loss, still on the device, and its number of rows."""
        if step < self.plan.head_steps and self.corpus is not None:
            with only_head(self.model):
                return self.head_step()(step)
        self.first = None
        units = drawn = self.plan.sampler.draw(step, len(self.units), self.source.fork("sampler"))
        if self.zeroed is not None:
            units = units[~self.zeroed[units]]
        event, name = self.plan.step_cost(step)
        self.parts.prepare()  # an empty batch has no shapes to test
        gathered = None
        while gathered is None:
            with suppress(torch.OutOfMemoryError):
                self.parts_of(units)  # tests new shapes, whose results belong to the terms of the spend
                # The name is a hash of everything that determines the batch and the noise. Another secret, corpus or
                # setting is another spend; the same step in smaller parts, after memory ran out, is not.
                spend = f"{self.run} {name}".strip()
                if self.limit is not None:
                    self.limit.spend(event, spend)
                self.ledger.spend(event, spend, terms=self.terms)
                gathered = self.gather(units, step)
            if gathered is None:
                self.parts.shrink()
        sums, loss, count = gathered
        if self.canaries is not None:
            self.canaries.plant(sums, step, self.source.fork("canaries"))
        released = self.released(sums, step)
        if self.canaries is not None:
            self.canaries.read(released, sums)
            rows = len(self.units.of_units(units)[0]), count
            self.canaries.watch(Taken(step, drawn, len(self.units), rows, partial(self.measure, units, step)))
        divisor = self.plan.sampler.expected_size(self.count)
        means = torch._foreach_div([released[name] for name in self.parameters], divisor)
        for parameter, mean in zip(self.parameters.values(), means, strict=True):
            parameter.grad = mean.to(parameter.dtype)
        self.optimizer.step()
        return loss, count

    def released(self, sums: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """Return the protected sums of a step; noise may depend on that of earlier steps of the same run."""
        if self._releaser is None or self._releaser[0] != self.run:
            self._releaser = self.run, self.protect.releaser(self.source)
        return self._releaser[1](sums, step)

    def head_step(self) -> PrivateStep:
        """Return the step that trains the head alone, on the outputs of the encoder, which is not trained yet."""
        assert self.corpus is not None
        if self.first is None:
            rows = encode(self.model, self.corpus, None, self.plan.settings.precision)
            self.model.train()
            self.first = replace(self, rows=rows, corpus=None, first=None)
            self.first.limit = self.limit
            for parameter in self.model.parameters():
                parameter.grad = None
        self.first.run = self.run
        return self.first

    def gather(self, units: Rows, step: int) -> tuple[dict[str, Tensor], Tensor | None, int]:
        """Return the protected sum over the sampled units before its release, the mean loss and the number of rows."""
        sums: dict[str, Tensor] = {}
        total, count = torch.zeros((), device=self.model.device), 0
        parts = self.parts_of(units)
        self.source.fork("dropout", step).seed_torch(self.model.device)
        for number, part in enumerate(parts):
            record, losses = self.parts.record(part)
            self.protect.gather(record, sums, self.source.fork("directions", step, number))
            total += losses.sum()
            count += int((part.rows >= 0).sum())
        if not count:
            self.protect.gather(self.tape.empty(), sums, self.source.fork("directions", step))
        return sums, (total / count if count else None), count

    def measure(self, units: Rows, step: int, scales: tuple[float, ...]) -> tuple[list[dict[str, Tensor]], int]:
        """Return the protected sums of the fullest part of a batch, with the loss of one unit times each of `scales`.

        Also return the number of units in that part: 0 if the batch is empty or memory ran out. Training is not
        affected.

        Guarantee: none; it is for the audit of the owner.
        """
        part = max(self.parts_of(units), key=lambda one: one.real, default=None)
        if part is None:
            return [], 0
        unit, measured = step % part.real, []
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for scale in scales:
                self.source.fork("dropout", step).seed_torch(device)
                weights = np.ones(len(part.rows), dtype=np.float32)
                weights[unit * part.rows_each : (unit + 1) * part.rows_each] = scale
                sums: dict[str, Tensor] = {}
                try:
                    record, _ = self.parts.record(part, weights)
                    self.protect.gather(record, sums, self.source.fork("directions", step, 0))
                except torch.OutOfMemoryError:
                    return [], 0
                measured.append(sums)
        return measured, part.real

    def parts_of(self, units: Rows) -> list[Part]:
        """Return the sampled units in parts whose shapes were tested."""
        return self.parts.of_units(*self.units.of_units(units)) if len(units) else []

    def layout(self) -> dict[str, Any]:
        """Return how batches are divided into parts."""
        return self.parts.layout()

    def restore(self, layout: dict[str, Any]) -> None:
        """Divide batches into parts as a stopped training run did."""
        self.parts.restore(layout)


@contextmanager
def only_head(model: TextModel) -> Iterator[None]:
    """Make the head and the pooler the only trainable parts of a model, as long as the context lasts."""
    others = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith(HEAD_NAMES)]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


def assumptions(population: int | None = None) -> tuple[str, ...]:
    """Return the assumptions of a certificate: which numbers are public, and which rows are not protected."""
    public = _PUBLIC if population is None else _POPULATION.format(population=population)
    return tuple(public if text is _PUBLIC else text for text in ASSUMPTIONS)


def with_seed_caveat(guarantee: Guarantee, source: Rng) -> Guarantee:
    """Return the guarantee of noise from this source: an estimate if its seed is fixed."""
    return guarantee if source.is_secret or not guarantee.exists else guarantee.with_caveats({Caveat.FIXED_SEED})


def terms_of(source: Rng, assumptions: tuple[str, ...], caveats: frozenset[Caveat] = frozenset()) -> Terms:
    """Return assumptions and caveats with the assumption of a secret seed, or with the caveat of a fixed one."""
    if source.is_secret:
        return Terms((SECRET_SEED, *assumptions), caveats)
    return Terms(assumptions, caveats | {Caveat.FIXED_SEED})


def unit_numbers(corpus: Corpus) -> Rows:
    """Return the unit number of each row, where units are numbered in the order of their names.

    In the order of appearance, a change of one unit's first row would change which units are sampled.
    """
    if corpus.units is None:
        return corpus.unit_index
    rank = np.empty(corpus.unit_count, dtype=np.int64)
    rank[sorted(range(corpus.unit_count), key=corpus.unit_names.__getitem__)] = np.arange(corpus.unit_count)
    return np.asarray(rank[corpus.unit_index])


def check_ledger(plan: TrainingPlan, ledger: Ledger) -> None:
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
    if not isinstance(plan.protect, GradientProtection):
        remedy = "Each text or vector is visible, and so is its absence; open the ledger as the plan does."
        raise invalid("adjacency", statement.adjacency.value, f"{plan.adjacency!s} in the ledger", remedy)
    check_hides_absence(plan.sampler)
    if plan.population is None:
        remedy = (
            "Rate, divisor, delta and steps would reveal the number of units; set a public number "
            f"({setting('population')}), or open the ledger under zero-out."
        )
        raise invalid("population", None, "set under add/remove", remedy)


def spend_all(
    ledger: Ledger, run: str, spends: Iterable[tuple[DpEvent, str]], terms: Terms, limit: Ledger | None = None
) -> int:
    """Count the planned steps of a run before the first of them is taken; return how many are allowed.

    When a run stops may be decided by looking at the noisy model, or by a crash. The epsilon of the steps so far is
    proven only for a number of steps that was fixed in advance, so a run that is cut short costs as much as its plan,
    and its ledger holds that from the beginning.

    Guarantee: afterwards the ledger holds all of them under the name `run`, or as many as its budget or that of `limit`
        allows: the plan could not have taken more.
    """
    named = [(event, f"{run} {name}".strip()) for event, name in spends]
    if limit is not None:
        named = named[: limit.spend_all(named)]
    return ledger.spend_all(named, terms=terms)


def check_spent(ledger: Ledger, run: str, spends: Iterable[tuple[DpEvent, str]], limit: Ledger | None = None) -> None:
    """Reject a checkpoint if a step of it is missing in the ledger; record its steps in `limit`, if there is one."""
    for step, (event, name) in enumerate(spends):
        if not ledger.holds(f"{run} {name}"):
            raise LedgerError(
                f"Expected step {step} of this training run in its ledger, because the checkpoint is past it. The "
                "ledger is another one, or was lost; without it nothing is guaranteed. Start again."
            )
        if limit is not None:
            limit.spend(event, f"{run} {name}")
