"""A client of a federated run: it keeps its text, its masks, its noise and its ledger, and answers the server.

    FOLDER/ledger.jsonl       what was spent for each unit of this client, written before its noise is used
    FOLDER/client.jsonl       with noise in a secure sum, what was spent for this client as a whole
    FOLDER/secret             seed of batches, masks and noise, readable by the owner only
    FOLDER/answers.jsonl      which of the planned steps were taken, and for which weights
    FOLDER/answer.safetensors the last protected update, which is sent again if the server asks again
    FOLDER/vectors/           outputs of a frozen encoder, deleted at the end
    FOLDER/memory/            what an aggregation keeps between the requests of one round
    FOLDER/errors.txt         messages of errors; the server gets only their types
    FOLDER/utility.json       scores of the final weights on the held-out rows of this client
    FOLDER/batches.jsonl      with `record`, the rows of each batch, for scoring attacks; never sent

The noise of a round depends on the weights that the server sent. If the server asks for the same round with the same
weights, because it was restarted, it receives the same update again and nothing is spent. If it asks for the same round
with other weights, the noise is new and its cost is counted: equal noise on two gradients would reveal their
difference.

When a run stops may be decided by looking at its noisy models, by the server or by its owner. The cost of the steps so
far is proven only for a number of steps that was fixed in advance, and a client cannot know whether the server will ask
again. So all planned steps are in the ledger before the first update leaves (`PlannedLedger`), and each step that is
taken uses one of them: a run that is cut short costs as much as its plan. No noise is added to the scores of held-out
rows, so the server gets them once in a run, for the weights of its first request at the end, and not at all if it sees
only sums.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import UserDict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from discreet.accounting.events import DpEvent, event_to_json
from discreet.accounting.ledger import Budget, Ledger, Receipt, Terms
from discreet.core.errors import BudgetError, DataError, UnsupportedError, invalid, whole
from discreet.core.files import load_tensors, save_tensors, sync_path, write_all, write_atomic
from discreet.core.guarantee import Adjacency, Caveat, Guarantee
from discreet.core.randomness import Rng, digest, weights_digest
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.federated.aggregation import ANSWERS_ALWAYS, UPDATE, Arrays, Local, Payload, Update, Value, why_invalid
from discreet.federated.settings import GRADIENTS, Federation
from discreet.models.build import matched_split, ready
from discreet.releases.hidden import draw_hidden
from discreet.runs.checkpoint import LEDGER, spend_name, trained
from discreet.runs.folder import secret_of
from discreet.training.engine import PrivateStep
from discreet.training.evaluation import evaluate
from discreet.training.hidden import HiddenStep
from discreet.training.loop import Job, open_job, set_rate
from discreet.training.plan import PrivatePlan, TrainingPlan

ANSWERS = "answers.jsonl"


class PlannedLedger(Ledger):
    """A ledger whose spends are numbered places of a plan: all planned ones are written with the first step.

    Guarantee: the ledger never holds fewer spends than the plan or, if its budget is smaller, than that allows, and
        never fewer than there are different steps. `answers.jsonl` next to it names the step of each place that is in
        use, and is on disk before the noise is used; if it is lost, all places count as used.

    >>> import tempfile
    >>> from discreet.accounting.events import GaussianDpEvent
    >>> with PlannedLedger.open(None, unit="note", adjacency="zero-out") as ledger:
    ...     ledger.plan("run", 3, Path(tempfile.mkdtemp()))
    ...     for name in ("step 0", "step 0", "step 1"):
    ...         receipt = ledger.spend(GaussianDpEvent(2.0), name)
    ...     ledger.statement.spends, receipt.id
    (3, 'run 2')
    """

    name_of_plan = ""
    planned = 0
    trusted = False

    def plan(self, name: str, planned: int, folder: Path, *, trusted: bool = False) -> None:
        """Set the name of the plan, its number of spends, and the folder that says which of them are in use.

        `trusted` says that no step beyond the plan is taken because of what an earlier step released.
        """
        self.name_of_plan, self.planned, self.trusted = name, planned, trusted
        self._file = folder / ANSWERS
        self._reserved = False
        self._places: dict[str, int] = {}
        lines = self._file.read_bytes().splitlines(keepends=True) if self._file.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            self._append_text("\n")
        own = [one for one in map(_entry, lines) if one.get("plan") == name]
        if own:
            self._first = int(own[0]["first"])
            self._places = {str(one["id"]): self._first + n for n, one in enumerate(own[1:])}
            return
        self._first = 0
        while self.holds(self.place(self._first)):
            self._first += 1
        self._append({"plan": name, "first": self._first})

    def place(self, number: int) -> str:
        """Return the id of a place; the first is number 1."""
        return f"{self.name_of_plan} {number + 1}"

    def spend(
        self,
        event: Any,
        id: str,  # noqa: A002
        *,
        secure: bool = False,
        terms: Terms | None = None,
    ) -> Receipt:
        """Count a step: it takes the next place of the plan, or one more spend if the plan is used up.

        A step that has a place keeps it, unless `secure` says that its randomness is new. Without `trusted`, more steps
        than planned were the choice of someone who saw the results: then the whole budget is counted, and without a
        budget the figure is an estimate.

        Guarantee: that of `Ledger.spend`, for the whole plan.
        """
        number = None if secure else self._places.get(id)
        if number is not None:
            return super().spend(event, self.place(number), terms=terms)
        number = self._first + len(self._places)
        if number >= self.planned and not self.trusted and self.budget is None:
            terms = (terms or Terms()) | Terms(caveats=frozenset({Caveat.UNPLANNED_STEPS}))
        receipt = super().spend(event, self.place(number), terms=terms)
        self.reserve(event, terms)
        if number >= self.planned and not self.trusted and self.budget is not None:
            further = range(number + 1, number + 1 + self.remaining(event))
            self.spend_all([(event, self.place(more)) for more in further], terms=terms)
        key = f"{id} {number}" if secure else id
        self._append({"plan": self.name_of_plan, "id": key})
        self._places[key] = number
        return receipt

    def reserve(self, event: Any, terms: Terms | None = None) -> None:
        """Count all planned steps, or as many as the budget allows: the plan could not take more."""
        if not self._reserved:
            self.spend_all([(event, self.place(number)) for number in range(self.planned)], terms=terms)
            self._reserved = True

    def _append(self, entry: dict[str, Any]) -> None:
        self._append_text(json.dumps(entry) + "\n")

    def _append_text(self, text: str) -> None:
        new = not self._file.exists()
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            write_all(handle, text.encode())
        finally:
            os.close(handle)
        sync_path(self._file)
        if new:
            sync_path(self._file.parent)


def _entry(line: bytes) -> dict[str, Any]:
    """Return a line; a torn one was not on disk when the noise would have been used, so its place is free."""
    try:
        return dict(json.loads(line)) if line.endswith(b"\n") else {}
    except ValueError:
        return {}


HELLO, EVALUATE, FINISH = "hello", "evaluate", "finish"  # requests besides those of the aggregation
STOPPED = "stopped"  # key of an answer that explains why a client takes no further part
LOSS, GUARANTEE = "loss", "guarantee"
AVERAGED = "averaged_"  # begins the name of a score whose predictions are averaged over the client's masks
CLIENT_UNIT, CLIENT_LEDGER = "client", "client.jsonl"
BATCHES, ERRORS, UTILITY = "batches.jsonl", "errors.txt", "utility.json"
_ANSWER, _MEMORY, _CACHE, _OWN = "answer.safetensors", "memory", "vectors", "whole"
_NAME_DIGITS = 16
_MOST_STEPS = 1_000_000  # of a plan: each is a line in the ledger before the first one is taken


@dataclass(frozen=True)
class Assignment:
    """What a client is asked to compute: `local_steps` steps from step `first` of `steps`, with its own batch size."""

    round: int
    first: int
    local_steps: int
    steps: int
    batch_size: int

    def values(self) -> dict[str, Value]:
        """Return the task as values of a message."""
        return dict(vars(self))

    @property
    def rounds(self) -> int:
        """Number of rounds of the run."""
        return -(-self.steps // self.local_steps)

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Assignment:
        """Return the task of a message; reject a task outside its range."""
        names = ("round", "first", "local_steps", "steps", "batch_size")
        numbers = {name: whole(name, values.get(name, -1), 0) for name in names}  # type: ignore[arg-type]
        task = cls(**numbers)
        whole("batch_size", task.batch_size)
        whole("local_steps", task.local_steps)
        if task.steps > _MOST_STEPS:
            raise invalid("steps", task.steps, f"<= {_MOST_STEPS}", "Use fewer epochs or larger batches.")
        if task.first + task.local_steps > task.steps:
            raise invalid("steps", task.steps, f">= {task.first + task.local_steps}", "The round would exceed it.")
        return task


class Client:
    """One client: its corpus, its model, its plan, its ledger and its secret."""

    def __init__(
        self,
        settings: Federation,
        number: int,
        folder: Path,
        corpus: Corpus | None = None,
        cache: Path | None = None,
    ) -> None:
        """Read the client's text, unless it is passed, and prepare the model.

        Outputs of a frozen encoder are stored in the client's folder until the end, or in `cache` for other runs.
        """
        self.settings, self.number, self.folder = settings, number, folder
        self.cache = folder / _CACHE if cache is None else cache
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.corpus = settings.corpus_of(number) if corpus is None else corpus
        self.model = settings.build()
        self.split = matched_split(self.corpus, self.model, "train")
        self.memory = FolderMemory(folder / _MEMORY)
        self.start = weights_digest(self.model, leave_out="encoder" if self.model.settings.frozen else None)
        self._training: _Training | None = None
        self._own: PlannedLedger | None = None
        self._held_out: Tokens | Vectors | None = None
        self.loss: float | None = None  # of the last update, if it is not protected

    def answer(self, stage: str, values: Mapping[str, Value], weights: Arrays, request: Payload) -> Payload:
        """Return the answer to one message of the server.

        Guarantee: with a protection, what the ledger in the client's folder states; without one, none.
        """
        if stage == HELLO:
            return Payload(values=self.describe())
        if stage == EVALUATE:
            raise UnsupportedError(
                f"Expected a round or the stage {FINISH!r}, got {EVALUATE!r}. Held-out rows have no noise, so they are "
                "scored once, at the end of a run."
            )
        if stage == FINISH:
            return Payload(values=self.finish(Assignment.of(values), weights))
        number = whole("round", values.get("round", -1), 0)  # type: ignore[arg-type]
        self.memory.begin(number)

        def update() -> Update:
            return self._valid(self.update(Assignment.of(values), weights))

        def spend(event: DpEvent) -> None:
            self.spend(Assignment.of(values), event)

        local = Local(number, self.number, update, self.memory, Rng.secret(), spend)
        self.loss = None
        try:
            answer = self.settings.aggregation.respond(stage, request, local)
        except BudgetError as error:
            return Payload(values={STOPPED: str(error)})
        return self._with_loss(answer)

    def spend(self, task: Assignment, event: DpEvent) -> None:
        """Record the cost of noise that protects this client as a whole; raise BudgetError beyond the budget.

        Guarantee: that of the client's own ledger, which counts all rounds that the server announced, and every answer
            beyond them.
        """
        if self._own is None:
            aggregation = self.settings.aggregation
            budget = None if aggregation.epsilon is None else Budget(aggregation.epsilon, aggregation.delta)
            path = self.folder / CLIENT_LEDGER
            self._own = PlannedLedger.open(path, unit=CLIENT_UNIT, adjacency=Adjacency.ZERO_OUT, budget=budget)
        name = f"{_OWN} {digest(event_to_json(event), task.rounds)[:_NAME_DIGITS]}"
        if self._own.name_of_plan != name:
            self._own.plan(name, task.rounds, self.folder)
        self._own.spend(event, f"round {task.round}", secure=True)

    def _valid(self, update: Update) -> Update:
        """Return an update, with zeros in place of one that has NaN if noise protects clients.

        That an update is invalid depends on private text, and noise hides it only if the client answers as always.
        """
        reason = why_invalid(update.arrays, {name: np.zeros_like(value) for name, value in update.arrays.items()})
        if reason is None or not self.settings.aggregation.is_noisy:
            return update
        note_error(self.folder, UPDATE, DataError(f"The update counts as zero: {reason}."))
        return Update({name: np.zeros_like(value) for name, value in update.arrays.items()}, update.weight)

    def _with_loss(self, answer: Payload) -> Payload:
        """Return an answer with the loss of the update that it holds, if there is one and the server may see it."""
        if self.loss is None or not self.is_seen or self.settings.aggregation.is_noisy:
            return answer
        return Payload(answer.arrays, {**answer.values, LOSS: self.loss})

    def describe(self) -> dict[str, Value]:
        """Return the public facts about the client's data: how many units there are, never a text.

        The number of rows is public only if every row is a unit, or nothing protects units.
        """
        facts: dict[str, Value] = {"client": self.number, "units": self.split.unit_count, "unit": self.split.unit_name}
        return facts if self.counts_units and self.split.units is not None else {**facts, "rows": len(self.split)}

    @property
    def is_seen(self) -> bool:
        """Whether the server sees this client's updates one by one; if not, it gets no loss and no score either."""
        return self.settings.aggregation.visible == "each"

    @property
    def counts_units(self) -> bool:
        """Whether batches are samples of units, not of rows."""
        return self.settings.protect is not None and self.settings.protect.samples_units

    @property
    def size(self) -> int:
        """Public size of the client's data, its weight in the mean: its number of units if those are protected."""
        return self.split.unit_count if self.counts_units else len(self.split)

    def update(self, task: Assignment, weights: Arrays) -> Update:
        """Return the client's update for a task on the received weights, and record its cost before noise is used.

        Guarantee: that of the client's ledger, which counts every update that was computed with its own noise.
        """
        parameters = trained(self.model)
        template = {name: np.zeros(tuple(p.shape), np.float32) for name, p in parameters.items()}
        reason = why_invalid(weights, template)
        if reason is not None:
            raise DataError(f"Expected the weights of this model from the server: {reason}.")
        training = self.training(task)
        request = digest(task, dict(weights))
        stored = training.stored(request)
        if stored is None:
            self.load(weights)
            arrays, loss = training.take(task, request)
            training.store(request, arrays)
        else:
            arrays, loss = stored, None
        self.loss = loss
        return Update(arrays, float(self.size))

    def training(self, task: Assignment) -> _Training:
        """Return the training state for the length and batch size of a task."""
        if self._training is None or (self._training.steps, self._training.size) != (task.steps, task.batch_size):
            if self._training is not None:
                self._training.close()
            self._training = _Training(self, task.steps, task.batch_size)
        return self._training

    def evaluate(self, weights: Arrays, views: nn.Module | None = None) -> dict[str, Value]:
        """Return the utility of the received weights on the client's held-out rows, with its own mask.

        With several `views` of a row, as under all masks of a pool, predictions are averaged.
        """
        if "validation" not in self.corpus.split_names:
            return {}
        if self._held_out is None:
            held_out = matched_split(self.corpus, self.model, "validation")
            self._held_out = ready(self.model, held_out, self.cache, self.settings.training.precision)
        self.load(weights)
        scores = evaluate(self.model, self._held_out, self.settings.training.precision, views)
        return {name: float(value) for name, value in scores.items() if math.isfinite(value)}

    def load(self, weights: Arrays) -> None:
        """Load received weights into the model."""
        for name, parameter in trained(self.model).items():
            parameter.data.copy_(torch.from_numpy(np.array(weights[name])))

    def finish(self, task: Assignment, weights: Arrays) -> dict[str, Value]:
        """Return the client's row of the final table: its facts, the guarantee of its ledger and its utility.

        If the server sees only sums, or was told the utility of other weights in this run, the row has no utility.

        Guarantee: that of the ledger, which has all planned steps; held-out rows are not protected.
        """
        training = self.training(task)
        training.reserve()
        stated = training.job.step.guarantee()
        values: dict[str, Value] = {**self.describe(), **self._scores(training, weights)}
        if stated is not None:
            stated = replace(stated, assumptions=(*stated.assumptions, ANSWERS_ALWAYS))
            values[GUARANTEE] = json.dumps(stated.as_dict())
        self.close(finished=True)
        shutil.rmtree(self.folder / _CACHE, ignore_errors=True)
        return values

    def _scores(self, training: _Training, weights: Arrays) -> dict[str, Value]:
        """Return the utility of the weights for the server: once for a plan, and only if it sees single updates.

        The scores are exact. For weights that the server chooses, any number of them would reveal the held-out rows.
        """
        path, request = self.folder / UTILITY, digest(dict(weights))
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        entry = known.get(training.plan_name)
        if entry is None:
            scores = self.evaluate(weights)
            if (views := training.views()) is not None:
                scores |= {AVERAGED + name: value for name, value in self.evaluate(weights, views).items()}
            entry = {"weights": request, "scores": scores}
            write_atomic(path, json.dumps({**known, training.plan_name: entry}, indent=2) + "\n")
        return dict(entry["scores"]) if self.is_seen and entry["weights"] == request else {}

    def close(self, *, finished: bool = False) -> None:
        """Close the ledger; the next request opens it again."""
        if self._training is not None:
            self._training.close(finished=finished)
            self._training = None
        if self._own is not None:
            self._own.close()
            self._own = None


class _Training:
    """Plan, step, ledger and secret of a client, for a number of steps and a batch size set by the server."""

    def __init__(self, client: Client, steps: int, size: int) -> None:
        settings = client.settings
        self.client, self.steps, self.size = client, steps, size
        self.model, self.folder = client.model, client.folder
        self.plan = TrainingPlan.for_client(
            self.model,
            client.corpus,
            protect=settings.protect and settings.protect.at_client(settings.clients),
            training=settings.training,
            steps=steps,
            batch_size=size,
            seed=Rng(settings.seed).fork("client", client.number).seed(),
            noise_seed=settings.noise_seed,
        )
        self.peak = self.plan.settings.learning_rate or 0.0
        self.gradients = settings.exchange == GRADIENTS
        # A step with rate 0 leaves the weights as they are, and the gradient that would have been used.
        optimizer = torch.optim.SGD(trained(self.model).values(), lr=0.0) if self.gradients else None
        self.ledger: PlannedLedger | None = None
        with ExitStack() as opened:  # an error on the way closes the ledger
            self._open(opened, optimizer)
            self._opened = opened.pop_all()

    def _open(self, opened: ExitStack, optimizer: torch.optim.Optimizer | None) -> None:
        """Open the ledger and the job, until the stack is closed, and plan all steps in the ledger."""
        client, settings = self.client, self.client.settings
        secret: Rng | None = None
        if isinstance(self.plan, PrivatePlan):
            secret = secret_of(self.folder)
            if settings.noise_seed is not None:
                secret = Rng(settings.noise_seed).fork("secret", client.number)
            self.ledger = opened.enter_context(
                PlannedLedger.open(
                    self.folder / LEDGER, unit=self.plan.unit, adjacency=self.plan.adjacency, budget=self.plan.budget
                )
            )
        job = open_job(
            self.model,
            client.split,
            self.plan,
            Job(self.folder, client.cache),
            ledger=self.ledger,
            secret=secret,
            optimizer=optimizer,
            start=client.start,
            command="train",
        )
        self.job = opened.enter_context(job)
        name = digest("plan", self.job.identity, self.steps)
        self.plan_name = name[:_NAME_DIGITS]
        if self.ledger is not None and self.job.secret is not None and isinstance(self.plan, PrivatePlan):
            self.plan_name = spend_name(name, self.job.secret, self.ledger)
            planned = 0  # without a cost of its own (TextHide), every step is recorded as it is taken
            if self.plan.protect.samples_units:
                names = {(step // settings.local_steps, self.plan.step_cost(step)[1]) for step in range(self.steps)}
                planned = len(names)
            self.ledger.plan(self.plan_name, planned, self.folder, trusted=not planned)

    def reserve(self) -> None:
        """Count all planned steps in the ledger."""
        if self.ledger is not None and isinstance(self.plan, PrivatePlan) and isinstance(self.job.step, PrivateStep):
            self.ledger.reserve(self.plan.step_cost(0)[0], self.job.step.account.terms)

    def take(self, task: Assignment, request: str) -> tuple[dict[str, npt.NDArray[np.float32]], float | None]:
        """Return the update of a task, and the mean loss if it is not protected."""
        account, optimizer = self.job.step.account, self.job.optimizer
        if account is not None:
            # The weights are in the name: other weights are another release, with other noise and its own cost.
            account.run = spend_name(digest(self.job.identity, request), account.secret, account.ledger)
        parameters = trained(self.model)
        before = {name: p.detach().clone() for name, p in parameters.items()}
        optimizer.state.clear()
        self.model.train()
        losses = []
        with torch.random.fork_rng(devices=[]):
            for step in range(task.first, task.first + task.local_steps):
                for parameter in parameters.values():
                    parameter.grad = None
                if not self.gradients:
                    set_rate(optimizer, self.plan.settings.rate_at(step, task.steps, self.peak))
                self.record(task, step)
                loss, _ = self.job.step(step)
                if loss is not None and self.plan.protect is None:
                    losses.append(float(loss))
        changes = {}
        for name, parameter in parameters.items():
            change = parameter.detach() - before[name]
            if self.gradients:
                change = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            changes[name] = np.array(change.detach().to(torch.float32).cpu().numpy())
        return changes, float(np.mean(losses)) if losses else None

    def record(self, task: Assignment, step: int) -> None:
        """Write the rows of a batch into the client's own folder, for scoring attacks on recorded messages."""
        if not self.client.settings.record:
            return
        sampler, own = self.plan.sampler, self.job.step
        if isinstance(own, PrivateStep):
            rows, _ = own.units.of_units(sampler.draw(step, len(own.units), own.source.fork("sampler")))
        elif isinstance(own, HiddenStep):
            rows = draw_hidden(sampler, step, len(own.rows), own.source)
        else:
            rows = sampler.draw(step, len(own.rows), self.plan.rng.fork("sampler"))
        entry = {"round": task.round, "step": step, "rows": rows.tolist()}
        add_line(self.folder / BATCHES, json.dumps(entry))

    def stored(self, request: str) -> dict[str, npt.NDArray[np.float32]] | None:
        """Return the last protected update, if it answers the same request."""
        path = self.folder / _ANSWER
        if self.plan.protect is None or not path.exists():
            return None
        tensors, about = load_tensors(path)
        return {name: value.numpy() for name, value in tensors.items()} if about.get("request") == request else None

    def store(self, request: str, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Store a protected update, so that a repeated request gets the same bytes."""
        if self.plan.protect is not None:
            tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
            save_tensors(tensors, self.folder / _ANSWER, {"request": request})

    def views(self) -> nn.Module | None:
        """Return a module that applies all masks of the client's pool, or None if there is no pool."""
        if self.plan.protect is None or self.job.secret is None:
            return None
        return self.plan.protect.views(self.model.width, self.job.secret)

    def close(self, *, finished: bool = False) -> None:
        """Close the ledger, and the record of the same people on this machine."""
        self.job.ended = finished
        self._opened.close()


class FolderMemory(UserDict[str, bytes]):
    """Bytes by name, of one round, which are kept in a folder that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        """Use a folder, which is created when something is stored."""
        super().__init__()
        self.folder = self.round = folder

    def begin(self, number: int) -> None:
        """Read what this round stored, and delete what other rounds did."""
        self.round = self.folder / str(number)
        for path in self.folder.glob("*"):
            if path != self.round:
                shutil.rmtree(path)
        # A file that begins with a dot was not written to its end.
        self.data = {bytes.fromhex(path.name).decode(): path.read_bytes() for path in self.round.glob("[!.]*")}

    def __setitem__(self, name: str, value: bytes) -> None:
        """Store bytes, on disk before this returns."""
        self.round.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(self.round / name.encode().hex(), bytes(value))
        super().__setitem__(name, bytes(value))

    def __delitem__(self, name: str) -> None:
        """Delete stored bytes."""
        super().__delitem__(name)
        (self.round / name.encode().hex()).unlink()


def note_error(folder: Path, stage: str, error: Exception) -> None:
    """Write an error into the client's own folder, which the server cannot read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    add_to_log(folder / ERRORS, f"{stage}: {type(error).__name__}: {error}")


def add_to_log(path: Path, text: str) -> None:
    """Append a line to a log, with the time."""
    add_line(path, f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}")


def add_line(path: Path, text: str) -> None:
    """Append a line to a file that only its owner can read."""
    with open(path, "a", encoding="utf-8", opener=owner_only) as file:
        file.write(text + "\n")


def owner_only(path: str, flags: int) -> int:
    """Open a file that only its owner can read, for `open`."""
    return os.open(path, flags, 0o600)


def stated_guarantee(values: Mapping[str, Any]) -> Guarantee | None:
    """Return the guarantee in a client's last answer."""
    return Guarantee.from_dict(json.loads(values[GUARANTEE])) if GUARANTEE in values else None
