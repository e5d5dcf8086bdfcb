"""Private training of any PyTorch module in the user's own loop.

    with make_private(model, DPSGD(epsilon=8), num_units=len(rows), batch_size=256, steps=2000) as private:
        private.check(losses_of, made_up)
        for part in private.batches(rows):
            private.step(losses_of, optimizer)

The loss function computes one loss for each row. Everything else is decided here: which units are in a batch, what a
step costs, how gradients are clipped, what noise is added, and when the optimizer steps.

A unit's contribution to a sum must be a function of that unit alone. So a batch is read in parts of fixed sizes, and
what is missing in a part is filled up with rows whose losses have weight zero; `check` tries on made-up rows that
units do not change each other in parts of such a size. Dropout, and whatever else draws from torch's generators in the
loop body, draws from the secret of the training: known dropout masks would show at which place of a batch a row stood.

A sum is released only if every part of its batch was taken. What a stopped loop cannot undo is counted: the guarantee
is always that of all planned steps, for when to stop may be decided by looking at the model.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from discreet.accounting.ledger import Ledger
from discreet.clipping.tape import Tape
from discreet.core.errors import BudgetError, DataError, UnsupportedError, invalid, setting, whole
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import NOISE_FORMAT, Rng, digest
from discreet.data.batches import Part
from discreet.integrations.account import LoopAccount
from discreet.integrations.rows import Dataset, Handed, Rows
from discreet.protections.base import Protection, step_optimizer
from discreet.training.changes import ChangeWatch
from discreet.training.engine import Engine, Processes
from discreet.training.independence import IndependenceCheck
from discreet.training.plan import PrivatePlan, TrainingPlan
from discreet.training.recording import Modes, Recording, Shape

Losses = Callable[[Any], Tensor]  # of a collated part, one for each row

# Rows of a part, at most, where nothing else is said. Larger parts are no faster on a CPU.
_ROWS = {"cpu": 16, "cuda": 64}
_PARTS = 4  # of a batch, on a CPU: a part is filled up, so few large parts waste more than several small ones
_LEAST_ROWS = 8  # of a part by default: smaller ones take as long


def make_private(
    model: nn.Module,
    protect: Protection,
    *,
    batch_size: int,
    num_units: int | None = None,
    population: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    unit: str = "unit",
    ledger: Ledger | str | os.PathLike[str] | None = None,
    secret: Rng | str | os.PathLike[str] | None = None,
) -> PrivateTraining:
    """Return the private training of a module, in a loop of your own; use it as a context manager.

    The model is rejected by name if one of its trainable layers cannot be clipped, mixes the rows of a batch (batch
    normalization) or is compiled. Nothing is trained then.

    Args:
        model: The module; the weights with `requires_grad` are trained.
        protect: `DPSGD` or `DirDPSGD`, with a budget or with its noise.
        batch_size: The expected number of units in a batch.
        num_units: The number of units of privacy: rows, or people with several rows each; it is then public (zero-out).
        population: Instead of `num_units`, where their number must be hidden: a public number (add/remove).
        steps: The number of steps; or give `epochs`.
        epochs: How often every unit is sampled on average; or give `steps`.
        unit: The word for a unit in the guarantee, such as patient.
        ledger: Where every step is counted before it is computed: a path, an open `Ledger`, or None for one in memory,
            from which a training cannot be resumed. Every step is also added to this machine's record of the people
            whose rows are trained on (`people_totals`, `discreet ledger`), recognized by their ids in `batches`, or
            else by their rows.
        secret: The source of batches and noise: None for a fresh one; a path to keep it in a file that only you can
            read until the training has ended, so that a resumed training repeats what it did; or an `Rng`, of which one
            with a fixed seed makes the figure an estimate.

    Guarantee: that of the protection over all steps, for each unit, in `PrivateTraining.guarantee`.

    >>> from discreet.protections.dp_sgd import DPSGD
    >>> model = nn.Linear(2, 1)
    >>> rows = [(torch.tensor([i % 5, i % 7.0]), torch.tensor([i % 3.0])) for i in range(40)]
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> def losses_of(part):
    ...     return (model(part[0]) - part[1]).square().sum(1)
    >>> with make_private(model, DPSGD(epsilon=8), num_units=40, batch_size=8, steps=5) as private:
    ...     private.check(losses_of, rows[:8])
    ...     for part in private.batches(rows):
    ...         moved = private.step(losses_of, optimizer)
    >>> private.position, private.guarantee.epsilon <= 8, private.guarantee.certified
    (5, True, True)
    """
    _check_plain(model)
    tape = Tape(model)  # rejects the model before anything else is done
    plan = TrainingPlan.for_loop(
        model,
        protect,
        batch_size=batch_size,
        num_units=num_units,
        population=population,
        steps=steps,
        epochs=epochs,
        unit=unit,
    )
    return PrivateTraining(model, tape, plan, ledger, secret)


@dataclass
class _Open:
    """A part that was handed out, until its losses come back."""

    part: Part
    number: int
    last: bool
    handed: Handed
    collate: Callable[[list[Any]], Any]


class PrivateTraining:
    """A training of one module whose gradients pass through a protection; `make_private` returns it.

    Args:
        model: The module that is trained.
        tape: The recording of its layers.
        plan: Steps, batches and noise; `make_private` makes it.
        ledger: Where steps are counted, as in `make_private`.
        secret: The source of batches and noise, as in `make_private`.

    Guarantee: `guarantee`, the cost of all planned steps at any time. Every step is in the ledger before anything of it
        is computed; `close` counts the steps that a stopped loop did not take. With `check` the figure is certified
        under the assumptions it states; otherwise it is an estimate. A step in which anything raised an error is never
        released. If the model is changed by anything but the private steps before `close`, the figure is an estimate
        (`Caveat.UNPROTECTED_STATE`).

    ```python
    with make_private(model, DPSGD(epsilon=8), num_units=n, batch_size=256, steps=2000, unit="patient") as private:
        private.check(losses_of, made_up_rows)
        for part in private.batches(dataset, groups=patients):
            if private.step(losses_of, optimizer):
                scheduler.step()
    print(private.guarantee)
    ```
    """

    def __init__(
        self,
        model: nn.Module,
        tape: Tape,
        plan: PrivatePlan,
        ledger: Ledger | str | os.PathLike[str] | None,
        secret: Rng | str | os.PathLike[str] | None,
    ) -> None:
        """Open the ledger and the secret; `make_private` says what they are."""
        self.model, self.tape, self.plan, self.protect, self.delta = model, tape, plan, plan.gradients, plan.delta
        self._processes = Processes()
        self._engine = Engine(tape, self.protect, plan.sampler.expected_size(plan.units), self._processes)
        self._engine.check_parameters()
        self.parameters = self._engine.parameters
        self.position = 0  # steps that were released
        self.out_of_budget = False
        self._account = LoopAccount(plan, self._processes, ledger, secret, self._identity())
        self._max_rows: int | None = None  # of a part
        self._check: IndependenceCheck | None = None
        self._recording: Recording | None = None
        self._open: _Open | None = None
        self._begun = False  # whether the step at `position` is counted
        self._optimizer: torch.optim.Optimizer | None = None
        self._broken: str | None = None  # the error in a part of the step at `position`
        self._turn = 0  # how often a step was begun
        self._closed = False
        self._watch = ChangeWatch(model, self.parameters, self._meet)
        self._processes.start_equal([*model.parameters(), *model.buffers()])

    # The loop

    def batches(
        self,
        dataset: Dataset,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        groups: Sequence[Any] | str | None = None,
        max_rows: int | None = None,
    ) -> Iterator[Any]:
        """Return an iterator over the parts of all remaining batches, each collated as a `DataLoader` would.

        Parts of one size always have the same number of rows: missing ones are filled with rows whose losses `step`
        weighs with zero. Between a part and its `step`, the forward pass of the model is recorded.

        A batch without units releases its noise without a part. The iterator ends when the budget is used up
        (`out_of_budget`).

        Args:
            dataset: The rows, in a map-style dataset.
            collate: Makes a part of a list of rows; by default as a `DataLoader` does.
            groups: The id of each row's unit, as a sequence or as the name of a column of the dataset; without it every
                row is a unit.
            max_rows: The most rows of a part, unless one unit has more; by default as many as fit a GPU, where `check`
                was called, and few elsewhere.
        """
        return self._generate(self.rows(dataset, collate, groups=groups, max_rows=max_rows))

    def step(self, losses: Losses | Tensor, optimizer: torch.optim.Optimizer) -> bool:
        """Take the losses of the current part, one for each row; on the last part of a batch, step the optimizer.

        Returns whether the optimizer moved, which is when a learning rate scheduler should. After an error, the step
        cannot be released: every later call says so.

        Args:
            losses: The function that was given to `check`; it is called with the part as it was collated. Losses that
                the loop computed are taken too, but nobody checked how: the guarantee is then an estimate, also if
                parts hold one unit each, for a loop may carry values from one part to the next. So it is if the loop
                has written into the tensors of the part.
            optimizer: An optimizer of the trainable weights of the model, and of nothing else.
        """
        opened = self._close_part(optimizer)
        with self._taking():
            checked = self._is_checked(losses, opened.collate)
            if not isinstance(losses, Tensor) and callable(losses):
                checked = self._is_as_collated(opened) and checked
                losses = losses(opened.handed.kept)
            self._take(losses, opened.number, opened.part, checked=checked)
            return self._end_part(opened, optimizer)

    def capture(self, losses_of: Losses) -> Callable[[Any, torch.optim.Optimizer], bool]:
        """Return a function `take(part, optimizer)` that does what `step(losses_of, optimizer)` does for a part.

        On a GPU the forward and backward pass and the clipped sum of a part are captured as a CUDA graph the second
        time that a part of its shape occurs, and replayed from then on: the same sums to rounding, without the time
        that the host takes to launch every kernel. Elsewhere, and for units of several rows and `DirDPSGD`, parts are
        computed eagerly.

        With `check`, which must be given the same function, units are tried again in the graph, bit for bit. A training
        captures one function: a second `capture` with another one is rejected.

        Args:
            losses_of: The loss function. It must compute with the tensors of the part alone, which are on the model's
                device, and read no value back from it (`item`, `cpu`). Whatever else it reads, such as random numbers
                that are not torch's on the GPU, is fixed when the graph is captured.
        """
        self._engine.capture(losses_of)
        return partial(self._take_captured, losses_of)

    def check(
        self,
        losses_of: Losses,
        rows: Dataset,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """Check on made-up or public rows that every row's loss and gradient depend on that row alone.

        A loss that mixes rows is rejected here. For each size of part that the training uses, it is then tried whether
        a unit's gradient is the same, bit for bit, whatever other units are in the part; `collate` must give parts of
        one size the same shape (pad to a fixed length). If all of this holds the guarantee is certified, otherwise it
        is an estimate that says why.

        The model is checked in the mode it is in, with dropout and other random numbers replaced by constants, and once
        more if it is trained in another mode. One row is tried with very large numbers, and with numbers that are not
        numbers. A forward pass that writes rows into saved buffers is rejected.

        Args:
            losses_of: Takes a collated batch and returns its losses; pass the same function to `step`, `capture` or
                `gradients`.
            rows: At least four rows as the dataset has them, of different lengths where rows have lengths; nobody's.
            collate: The function that is given to `batches`.
        """
        self._check_open()
        chosen = [rows[index] for index in range(len(rows))]
        self._check = IndependenceCheck(self.tape, losses_of, chosen, collate or default_collate)

    # With batches of the caller

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the forward pass of a batch, or of a part of one, that the caller drew.

        The first `record` of a step counts the step. Then call `accumulate`, and after the last part `release`. The
        guarantee is an estimate: that every unit was drawn as the plan says is known to the caller alone. After an
        error in a recorded part, the step cannot be released.
        """
        self._check_open()
        self._check_whole()
        if self._open is not None:
            raise UnsupportedError(
                "Expected private.step for the current part first. Use batches, or record, not both."
            )
        if self._recording is not None:
            raise UnsupportedError(
                "Expected private.accumulate for the recorded part first, got another private.record(). A part that is "
                "left out is not a private batch."
            )
        self._account.caveats.add(Caveat.OWN_BATCHES)
        if not self._begun:
            self._begin()
        with self._taking():
            self._record(self._next_number)
            yield
            self._stop_recording()

    def accumulate(self, losses: Losses | Tensor, groups: Tensor | None = None, *, batch: Any = None) -> None:
        """Add the clipped gradients of a part. All rows of a unit must be in one part.

        Args:
            losses: Those of the part that was recorded, or the function that was given to `check`, which is then called
                with `batch` and recorded here.
            groups: The number of each row's unit, from 0; without it each row is a unit.
            batch: The part, for a function.
        """
        if not isinstance(losses, Tensor) and callable(losses):
            with self.record():
                values = losses(batch)
        else:
            values = losses
        self._check_whole()
        if self._recording is None or self._open is not None:
            raise UnsupportedError("Expected a forward pass inside `with private.record():` before accumulate.")
        with self._taking():
            self._take(values, self._next_number, owners=groups, checked=self._is_checked(losses))

    def release(self, optimizer: torch.optim.Optimizer) -> None:
        """Add the noise to what was accumulated since the last release, and step the optimizer.

        Args:
            optimizer: An optimizer of the trainable weights of the model, and of nothing else.
        """
        self._check_whole()
        if self._recording is not None or self._open is not None:
            raise UnsupportedError(
                "Expected private.accumulate for the recorded part before private.release(optimizer), got none. A part "
                "that is left out is not a private batch."
            )
        if not self._begun:
            raise UnsupportedError(
                "Expected private.record() and private.accumulate(losses) before private.release(optimizer)."
            )
        self.check_optimizer(optimizer)
        with self._taking():
            self._finish(optimizer)

    # Step by step

    def rows(
        self,
        dataset: Dataset,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        groups: Sequence[Any] | str | None = None,
        max_rows: int | None = None,
    ) -> Rows:
        """Return the rows of a dataset, to draw from with `gradients`.

        A step in which an error was raised is taken again from its first part.

        Args:
            dataset: The rows, as for `batches`.
            collate: As for `batches`.
            groups: The id of each row's unit, as for `batches`.
            max_rows: The most rows of a part, as for `batches`.
        """
        self._check_open()
        if self._broken is not None:
            self._abandon()
            self._broken = None
        self._max_rows = self._processes.from_first(lambda: self._rows_of_a_part(max_rows))
        rows = Rows.of(dataset, collate or default_collate, groups, self._max_rows)
        self._processes.check_equal("the dataset and its units", digest(rows.units))
        if self.plan.population is None and len(rows.units) != self.plan.units:
            raise DataError(
                f"Expected {self.plan.units:,} {self.plan.unit}s, as make_private was told, got {len(rows.units):,} in "
                f"the dataset. Pass {setting('num_units', len(rows.units))}; sampling rate and noise follow from it."
            )
        self._account.know(dataset, groups)
        return rows

    def gradients(self, rows: Rows, losses_of: Losses) -> bool:
        """Draw the next batch and leave its protected mean gradient in `.grad`, for a caller who steps the optimizer.

        Returns False, with no gradient, if the budget is used up. Apply the gradients as they are: what changes them,
        also by scaling (`clip_grad_norm_`), or changes the weights, makes the guarantee an estimate.

        Args:
            rows: What `rows` returned.
            losses_of: Returns the losses of a collated part.
        """
        self._check_open()
        self._check_whole()
        self._prepare(rows)
        if not self._begin_within_budget():
            return False
        with self._taking():
            try:
                checked = self._is_checked(losses_of, rows.collate)
                for number, part in self._own_parts(rows):
                    batch = self._record(number, partial(rows.batch, part))
                    self._take(losses_of(batch), number, part, checked=checked)
                self._set_gradients()
            finally:
                self._abandon()
        self._watch.expect(self._given_gradients(), self._compares_values(self.position))
        return True

    # What it costs

    @property
    def ledger(self) -> Ledger:
        """The ledger in which every step is counted; on rank 0 only."""
        return self._account.account.ledger

    @property
    def guarantee(self) -> Guarantee:
        """What all planned steps guarantee, from the first one on, with everything else that the ledger holds.

        A training that is left early costs as much as its plan: when to leave may have been decided by looking at the
        model. One that its budget ends (`out_of_budget`) costs the steps that it took.
        """
        self._look()
        return self._account.account.guarantee()

    @property
    def caveats(self) -> frozenset[Caveat]:
        """Why the figures so far are estimates; empty if they are proven bounds."""
        self._look()
        account = self._account.account
        return account.terms.caveats | account.ledger.statement.terms.caveats

    @property
    def epsilon(self) -> float:
        """A bound on the epsilon of all planned steps that is cheap enough for a progress bar; `guarantee` is exact."""
        return self._account.account.epsilon()

    @property
    def steps(self) -> int:
        """How many steps the training takes."""
        return self.plan.steps

    # Stop and resume

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs besides the weights and the optimizer: plain values, no secret.

        Save it with the weights and the optimizer's state of the same moment: it holds keyed digests of them.
        """
        return self._account.state(self.position, self._max_rows, self.model, self._optimizer)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume after the steps of a `state_dict`; load the weights and the optimizer's state of the same moment.

        The ledger must be the one that counted those steps. With the same secret, steps that are taken again draw the
        same batches and the same noise and are counted once: give the same data, code and settings. Weights are
        compared with those of the state at the first step, the optimizer before it steps. With another secret, other
        weights or another optimizer, steps are drawn anew and counted again.

        Args:
            state: What `state_dict` returned.
        """
        self._check_open()
        if self._begun or self.position:
            raise UnsupportedError("Expected load_state_dict before the first batch. Call it after make_private.")
        self.position = self._account.load(state)
        if self._account.repeats:
            self._max_rows = state["max_rows"]

    def close(self) -> None:
        """Stop recording, and close the ledger if it was opened here.

        After the last step the secret's file is deleted.
        """
        if self._closed:
            return
        self._abandon()
        self._watch.close()
        self._look()
        self._closed = True  # from now on nothing private is computed, and the model is the caller's
        self._account.close(self.position, self._turn > 0)

    def __enter__(self) -> Self:
        """Return the training itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the training."""
        self.close()

    def __repr__(self) -> str:
        """Return the protection and how far the training has come; never the secret."""
        return f"PrivateTraining({self.protect.name}, step {self.position} of {self.steps})"

    # How it works

    def _close_part(self, optimizer: torch.optim.Optimizer) -> _Open:
        """Return the current part, whose losses are given now."""
        self._check_whole()
        if self._open is None:
            raise UnsupportedError(
                "Expected a part of private.batches(...) before private.step(losses_of, optimizer), got none. Call "
                "step once for each part, inside the loop over the parts."
            )
        self.check_optimizer(optimizer)
        opened, self._open = self._open, None
        return opened

    def _end_part(self, opened: _Open, optimizer: torch.optim.Optimizer) -> bool:
        self._optimizer = optimizer
        if opened.last:
            self._finish(optimizer)
        return opened.last

    def _take_captured(self, losses_of: Losses, batch: Any, optimizer: torch.optim.Optimizer) -> bool:
        opened = self._close_part(optimizer)
        with self._taking():
            checked = self._is_checked(losses_of, opened.collate) and batch is opened.handed.given
            if batch is opened.handed.given:
                checked, batch = self._is_as_collated(opened) and checked, opened.handed.kept
            if not self._take_by_graph(batch, opened, checked):
                with self._engine.stream():
                    self._take(losses_of(batch), opened.number, opened.part, checked=checked)
            return self._end_part(opened, optimizer)

    def _take_by_graph(self, batch: Any, opened: _Open, checked: bool) -> bool:
        """Add a part by a graph, where its shape repeats; return whether."""
        graphs, recording, plain = self._engine.graphs, self._recording, self._plain_attention
        if graphs is None or recording is None:
            return False
        recording.pause()
        captured = graphs.find(batch, opened.part, plain, self._check)
        if captured is not None:
            self._engine.replay(captured, batch, opened.part)
            if not self._engine.merge():
                # A unit that is not finite decides that the units next to it are computed by eager kernels.
                self._account.caveats.add(Caveat.UNSTEADY_KERNELS)
                captured = None
        if captured is None:
            recording.start()
            return False
        self._recording = None
        recording.close()
        self._judge(opened.part, captured.shape, captured.modes, checked, captured.independent)
        return True

    def _generate(self, rows: Rows) -> Iterator[Any]:
        turn = -1
        try:
            self._prepare(rows)
            while self.position < self.steps:
                self._check_whole()
                if not self._begin_within_budget():
                    return
                turn, parts = self._turn, self._own_parts(rows)
                if not parts and self._optimizer is not None:
                    self._finish(self._optimizer)
                    continue
                parts = parts or [(self._processes.rank, rows.filler())]  # to be told the optimizer
                for number, part in parts:
                    with self._taking():
                        batch = self._record(number, partial(rows.batch, part))
                        handed = Handed(batch)
                    self._open = _Open(part, number, part is parts[-1][1], handed, rows.collate)
                    yield batch
                    self._check_whole()
                    if not self._is_taken(turn):
                        self._break("no private.step for a part")
                        raise UnsupportedError(
                            "Expected private.step(losses_of, optimizer) for every part of private.batches(...), got "
                            "none for the last one. Call it once in the loop body; an unused part is not a private "
                            "batch."
                        )
        finally:
            if turn == self._turn:  # a loop that was left long ago does not end the step of another one
                self._abandon()

    def _is_taken(self, turn: int) -> bool:
        """Return whether the last part was given to `step`, in the step that was begun as this one."""
        return self._open is None and turn == self._turn

    def _own_parts(self, rows: Rows) -> list[tuple[int, Part]]:
        """Return the parts of the current batch that this process takes, each with its number in the batch."""
        drawn = self.plan.sampler.draw(self.position, len(rows.units), self._source.fork("sampler"))
        return list(enumerate(rows.parts(drawn)))[self._processes.rank :: self._processes.size]

    def _prepare(self, rows: Rows) -> None:
        """Choose the kernels for parts of all sizes that can occur, before a batch is drawn."""
        if self._check is not None:
            self._check.prepare(rows.sizes)

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """Take something of a step: after an error in it, other units are missing, and the step is never released."""
        try:
            yield
        except BaseException as error:
            self._break(type(error).__name__)
            raise

    def _break(self, reason: str) -> None:
        self._abandon()
        self._broken = reason

    def _check_whole(self) -> None:
        """Reject whatever comes after an error in a part of a step, for all ways to take one."""
        if self._broken is not None:
            raise UnsupportedError(
                f"Expected all parts of step {self.position} to be taken, got {self._broken} in one of them. Without "
                "that part, and all units in it, its sum is not the one that was counted, so it is never released. Do "
                "not catch errors of a part: fix what raised it (rows that cannot be read, too little memory for "
                f"{setting('max_rows')}), then call private.batches(...) or private.rows(...) again, which takes the "
                "step from its first part, or resume from a checkpoint."
            )

    def _is_checked(self, losses_of: Any, collate: Callable[[list[Any]], Any] | None = None) -> bool:
        """Return whether losses come from the functions that were checked; own batches have no collate function."""
        tried = self._check
        if tried is None or isinstance(losses_of, Tensor) or losses_of != tried.losses_of:
            return False
        return collate is None or collate == tried.collate

    def _is_as_collated(self, opened: _Open) -> bool:
        """Return whether the tensors of a part are those of the collate function; warn about others in their place."""
        if opened.handed.is_rearranged:
            warnings.warn(
                "Expected the part as it was collated, got other tensors in it. They are not used: the loss function "
                "is given the tensors that the collate function made. Change them in one of these functions.",
                stacklevel=4,
            )
        return opened.handed.is_same

    def _meet(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare an optimizer with that of the checkpoint before it moves for the first time."""
        self._optimizer = optimizer
        self._account.confirm_optimizer(self.position, optimizer)

    def _look(self, values: bool = True) -> None:
        """Record a caveat if anything but a private step changed the model."""
        writes = self._check is not None and self._check.writes
        if not self._closed and (self._watch.compare(values) or writes):
            self._account.caveats.add(Caveat.UNPROTECTED_STATE)

    def _begin_within_budget(self) -> bool:
        try:
            self._begin()
        except BudgetError as error:
            if not self._turn:  # also of a resumed training: what was lost, or not taken, is counted already
                raise self._account.explained(error) from None
            self.out_of_budget = self._account.ended = True
            return False
        return True

    def _begin(self) -> None:
        """Count the step at the current position, before anything of it is drawn or computed."""
        if self.position >= self.steps:
            raise BudgetError(
                f"Expected at most {self.steps} steps, as the noise was chosen for. Call make_private with more steps."
            )
        self._account.confirm_weights(self.position, self.model)
        self._account.spend(self.position)
        self._watch.start()
        self._turn += 1
        self._begun = True
        self._engine.begin(self._source, self.position, self._account.runs[-1][0])

    def _record(self, number: int, batch: Callable[[], Any] = lambda: None) -> Any:
        """Start to record, and return the batch, made with random numbers from the secret."""
        source = self._source.fork("dropout", self.position, number)
        self._recording = Recording(self.tape, source, batch, self._plain_attention)
        return self._recording.batch

    @property
    def _plain_attention(self) -> bool:
        return self._check is not None and self._check.plain_attention

    @property
    def _next_number(self) -> int:
        """The number in the batch of the next part that this process takes."""
        return self._engine.parts * self._processes.size + self._processes.rank

    def _stop_recording(self) -> None:
        assert self._recording is not None
        self._recording.stop()

    def _take(
        self,
        losses: Tensor,
        number: int,
        part: Part | None = None,
        owners: Tensor | None = None,
        checked: bool = False,
    ) -> None:
        """Let the engine add a part from the losses of the recorded forward pass."""
        assert self._recording is not None
        recording, self._recording = self._recording, None
        with recording.ended(losses, None if part is None else len(part.rows)) as given:
            self._engine.add(given, number, part, owners)
        if part is not None:
            self._judge(part, recording.shape, recording.modes, checked)
        elif not checked:
            self._account.caveats.add(Caveat.UNCHECKED_LOSSES)

    def _finish(self, optimizer: torch.optim.Optimizer) -> None:
        """Release the sums of the step and step the optimizer."""
        self._set_gradients()
        with self._watch.stepping(self._given_gradients(), self._compares_values(self.position)):
            step_optimizer(optimizer)
        for parameter in self.parameters.values():
            parameter.grad = None

    def _set_gradients(self) -> None:
        """Release the sums of the step, divided by the expected size of a batch, into `.grad`."""
        sums = self._engine.sums()
        self._look(self._compares_values(self.position))
        self._account.state_caveats()
        self._engine.set_gradients(self._engine.released({name: sums[name] for name in self.parameters}))
        self.position += 1
        self._begun = False

    def _given_gradients(self) -> dict[nn.Parameter, Tensor]:
        return {p: p.grad for p in self.parameters.values() if p.grad is not None}

    def _compares_values(self, position: int) -> bool:
        """Return whether the weights after so many steps are compared by their values: at 0, 1, 2, 4, … and the end."""
        return position & (position - 1) == 0 or position == self.steps

    def _judge(self, part: Part, shape: Shape, modes: set[Modes], checked: bool, independent: bool = True) -> None:
        """Record a caveat where units of this part, given in this shape, may have changed each other."""
        if not checked:
            self._account.caveats.add(Caveat.UNCHECKED_LOSSES)
        if self._check is None:
            return
        if not (independent and self._check.is_independent((part.units, part.rows_each), shape, modes)):
            writes = self._check.writes  # then what a unit changes is kept, whatever the kernels do
            self._account.caveats.add(Caveat.UNPROTECTED_STATE if writes else Caveat.UNSTEADY_KERNELS)

    def _abandon(self) -> None:
        """Stop recording and forget what was gathered of an unfinished step; it is counted and releases nothing."""
        if self._recording is not None:
            self._recording.close()
            self._recording = None
        self._open = None
        self._begun = False
        self._engine.abandon()

    def _rows_of_a_part(self, max_rows: int | None) -> int:
        """Return the most rows of a part: as given, as before a resume, or by the memory; never by private rows."""
        if self._account.repeats and self._max_rows is not None:
            if max_rows not in (None, self._max_rows):
                remedy = "A resumed training reads its batches in the parts in which it read them before."
                raise invalid("max_rows", max_rows, f"{self._max_rows}, as in the checkpoint", remedy)
            return self._max_rows
        if max_rows is not None:
            return whole("max_rows", max_rows)
        expected = self.plan.sampler.expected_size(self.plan.units)
        spread = math.sqrt(expected * (1 - expected / self.plan.units))  # of the size of a Poisson batch
        fit = None if self._check is None else self._check.rows_that_fit()
        return _default_rows(self._engine.device.type, expected, spread, fit)

    @property
    def _source(self) -> Rng:
        """Where batches and noise come from."""
        return self._account.source

    def _identity(self) -> str:
        plan = self.plan
        shapes = {name: tuple(p.shape) for name, p in self.parameters.items()}
        about = (plan.sampler, plan.steps, plan.units, plan.unit, plan.delta, str(plan.adjacency), plan.population)
        return digest(NOISE_FORMAT, self.protect.identity(), about, plan.budget, shapes)

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Reject an optimizer that moves parameters whose gradients are not protected, or none of the model's.

        Args:
            optimizer: The optimizer that the loop will step.
        """
        own = {id(parameter) for parameter in self.parameters.values()}
        found = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found = found or id(parameter) in own
                if id(parameter) not in own and (parameter.requires_grad or parameter.grad is not None):
                    raise UnsupportedError(
                        "Expected an optimizer of the model's trainable parameters alone, got one with another "
                        f"parameter of shape {tuple(parameter.shape)}. Its gradients are not protected; leave it out."
                    )
        if not found:
            raise UnsupportedError(
                "Expected an optimizer of the model's trainable parameters, got one with none of them. Make the "
                "optimizer after the model has its final parameters."
            )

    def _check_open(self) -> None:
        if self._closed:
            raise UnsupportedError("Expected an open private training. It was closed; call make_private again.")


def _check_plain(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise invalid("model", type(model).__name__, "a torch.nn.Module", "")
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise UnsupportedError(
            f"Expected the module itself, got {type(model).__name__}. It averages gradients that are not clipped yet; "
            "pass model.module: make_private adds up the ranks by itself."
        )


def _default_rows(device: str, expected: float, spread: float, fit: int | None = None) -> int:
    """Return how many rows a part holds if nothing is said; `fit` is how many are known to fit the memory of a GPU.

    On a GPU that is a whole batch, of any size but one in a thousand, or as few equal parts as fit: the host takes as
    long to launch a small part as a large one.

    >>> _default_rows("cpu", 8, 2.8), _default_rows("cuda", 128, 11.3)
    (8, 64)
    >>> _default_rows("cuda", 32, 0.0, fit=400), _default_rows("cuda", 1024, 32.0, fit=400)
    (32, 374)
    """
    if device != "cuda":
        return min(_ROWS.get(device, 16), max(_LEAST_ROWS, math.ceil(expected / _PARTS)))
    most = max(1, math.ceil(expected + 3 * spread))
    return min(most, _ROWS["cuda"]) if fit is None else math.ceil(most / math.ceil(most / fit))
