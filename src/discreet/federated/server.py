"""The server of a federated run: it sends weights, collects updates, moves the model and saves every round.

    FOLDER/checkpoint.safetensors  weights, state of the optimizer and number of the last saved round
    FOLDER/schedule.json           steps, batch sizes and weights of the clients, decided before the first round
    FOLDER/ledger.jsonl            with client-level noise, what was spent for each client
    FOLDER/answers.jsonl           with client-level noise, which of the planned rounds were begun
    FOLDER/progress.jsonl          one line per round
    FOLDER/log.txt                 drop-outs, rejected updates, restarts
    FOLDER/private.txt             if it is secret who takes part in a round: what happened to single clients
    FOLDER/result.json             the final table of clients

A round that was not saved before the server stopped is repeated after a restart. All files can be read by their owner
only.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from discreet.accounting.ledger import Budget, Ledger, Terms
from discreet.core.errors import BudgetError, DataError, DiscreetError, invalid, setting
from discreet.core.files import save_tensors, write_atomic
from discreet.core.guarantee import Adjacency, Caveat
from discreet.core.randomness import Rng, digest
from discreet.federated.aggregation import UPDATE, Aggregation, Arrays, Payload, Round, RoundError, Total, numbers_of
from discreet.federated.client import (
    CLIENT_UNIT,
    FINISH,
    HELLO,
    LOSS,
    STOPPED,
    Assignment,
    PlannedLedger,
    add_line,
    add_to_log,
)
from discreet.federated.record import Recorder
from discreet.federated.settings import GRADIENTS, Federation
from discreet.protections.base import Protection, trust_in
from discreet.runs import checkpoint
from discreet.runs.checkpoint import LEDGER, Progress, trained
from discreet.training.loop import optimizer_for, set_rate

SCHEDULE, PROGRESS, LOG, RESULT, FINAL = (
    "schedule.json",
    "progress.jsonl",
    "log.txt",
    "result.json",
    "final.safetensors",
)
PRIVATE = "private.txt"
PID, FAILED = "pid", "failed.txt"  # of a ServerApp: its process, and why it failed
_RECORDED_MESSAGES = "the recorded messages of the clients, in server/record, are not released: they have no noise"
_TOKEN = "token"
_TRIES = 5  # times that a round is tried before the run stops
_SMALL = 4_000_000  # weights that are saved after every round


class StoppedError(DiscreetError):
    """The run was stopped by its user, after a saved round."""


@dataclass(frozen=True)
class Outgoing:
    """One message to a client: the task, the weights, and the request of the aggregation."""

    values: Mapping[str, Any]
    weights: Arrays = field(default_factory=dict)
    request: Payload = field(default_factory=Payload)


# Sends the message of a stage to each of some clients, and returns the answers that arrived.
Send = Callable[[str, Mapping[int, Outgoing]], dict[int, Payload]]
# Returns the clients that can be reached, after waiting for so many of them.
Lookup = Callable[[int], tuple[int, ...]]


@dataclass(frozen=True)
class Schedule:
    """Length of the run and the size of each client's batches, from the public sizes of their data."""

    steps: int
    rounds: int
    local_steps: int
    sizes: dict[int, int]
    batches: dict[int, int]

    @classmethod
    def make(cls, settings: Federation, sizes: Mapping[int, int], width: int) -> Schedule:
        """Return the schedule in which all clients together read their rows as a central training run would.

        >>> from discreet.data.sources import TextSource
        >>> from discreet.models.settings import ModelSettings
        >>> from discreet.models.settings import TrainSettings
        >>> train = TrainSettings(epochs=2, batch_size=8)
        >>> settings = Federation(TextSource("notes"), ModelSettings(), train, clients=2)
        >>> Schedule.make(settings, {0: 30, 1: 10}, 384)
        Schedule(steps=10, rounds=10, local_steps=1, sizes={0: 30, 1: 10}, batches={0: 6, 1: 2})
        """
        total, train = sum(sizes.values()), settings.completed_train(sum(sizes.values()), width)
        size = min(train.size, total)
        steps = max(1, round(train.passes * -(-total // size)))
        rounds = max(1, round(steps / settings.local_steps))
        batches = {client: max(1, round(size * count / total)) for client, count in sizes.items()}
        return cls(rounds * settings.local_steps, rounds, settings.local_steps, dict(sizes), batches)

    def check(self, protect: Protection | None) -> None:
        """Reject batches of a client that are too small for its protection, which would fail in every round."""
        if protect is None:
            return
        for client, size in self.batches.items():
            if protect.mixes > (rows := min(size, self.sizes[client])):
                remedy = f"Use larger batches ({setting('batch_size')}), or mix fewer sentences ({setting('mix')})."
                raise invalid("mix", protect.mixes, f"<= {rows}, the rows in a batch of client {client}", remedy)

    def task(self, client: int, number: int) -> Assignment:
        """Return the task of a client in a round, counted from 1."""
        first = (number - 1) * self.local_steps
        return Assignment(number, first, self.local_steps, self.steps, self.batches[client])

    @classmethod
    def read(cls, folder: Path) -> Schedule:
        """Return the schedule that is stored in a server's folder."""
        values = json.loads((folder / SCHEDULE).read_text(encoding="utf-8"))
        for name in ("sizes", "batches"):
            values[name] = {int(client): count for client, count in values[name].items()}
        return cls(**values)


@dataclass(frozen=True)
class RoundReport:
    """Progress of a federated run: the round, how many took part and who did not, and the mean loss if it is public.

    If it is secret who takes part, `clients`, `missing` and `seconds_left` are left out.
    """

    round: int
    rounds: int
    clients: int | None
    loss: float | None
    seconds_left: float | None
    missing: tuple[int, ...] = ()


class Server:
    """The server: model, optimizer, aggregation, ledger and log."""

    def __init__(
        self,
        settings: Federation,
        folder: Path,
        send: Send,
        lookup: Lookup,
        watch: Callable[[RoundReport], None] = lambda report: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare the model; nothing is sent yet."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.settings, self.folder, self.send, self.lookup = settings, folder, send, lookup
        self.watch, self.should_stop = watch, should_stop
        self.model = settings.build()
        self.recorder = Recorder(folder) if settings.record else None
        self.losses: dict[int, float] = {}
        self.stopped: dict[int, str] = {}

    def log(self, text: str, name: str = LOG) -> None:
        """Write a line into the log, with the time."""
        add_to_log(self.folder / name, text)

    def log_client(self, text: str) -> None:
        """Write what happened to a client into the log, or into a file of its own if that may depend on a secret."""
        self.log(text, PRIVATE if self.settings.aggregation.secret_clients else LOG)

    def run(self) -> dict[str, Any]:
        """Run all rounds that are left, and return the final table of clients.

        Guarantee: that of the clients' ledgers for their units and, with client-level noise, that of the server's
            ledger for clients; both are in the result.
        """
        schedule = self.schedule()
        parameters = sum(p.numel() for p in trained(self.model).values())
        aggregation = self.settings.aggregation.resolve(len(schedule.sizes), schedule.rounds, parameters)
        train = self.settings.completed_train(sum(schedule.sizes.values()), self.model.width)
        optimizer = optimizer_for(self.model, train)
        name = digest("federation", self.settings, schedule)
        at = checkpoint.load(self.folder, name, self.model, optimizer)
        if at.step:
            self.log(f"Resumed after round {at.step} of {schedule.rounds}.")
        start, began, saved = time.monotonic(), at.step, time.monotonic()
        small = parameters <= _SMALL
        with self._ledger(aggregation, schedule) as ledger:
            for number in range(at.step + 1, schedule.rounds + 1):
                try:
                    total = self.round(number, schedule, aggregation, ledger)
                except BudgetError as error:  # repeated rounds are counted again
                    if at.step == 0:
                        raise
                    self.log(f"The run ends after round {at.step} of {schedule.rounds}: {error}")
                    break
                self.apply(total, optimizer, train, number, schedule)
                losses = [self.losses[client] for client in total.clients if client in self.losses]
                mean = float(np.mean(losses)) if losses else None
                left = (time.monotonic() - start) / (number - began) * (schedule.rounds - number)
                missing = tuple(sorted(set(schedule.sizes) - set(total.clients)))
                report = RoundReport(number, schedule.rounds, len(total.clients), mean, left, missing)
                if aggregation.secret_clients:
                    report = RoundReport(number, schedule.rounds, None, None, None)
                at, stops = Progress(step=number), number < schedule.rounds and self.should_stop()
                if small or stops or time.monotonic() - saved > _SAVE_SECONDS or number == schedule.rounds:
                    checkpoint.save(self.folder, name, self.model, optimizer, at)
                    saved = time.monotonic()
                add_line(self.folder / PROGRESS, json.dumps(asdict(report)))
                self.watch(report)
                if stops:
                    raise StoppedError(f"The run was stopped after round {number} of {schedule.rounds}. Resume it.")
            return self.finish(schedule, aggregation, ledger, at.step)

    def schedule(self) -> Schedule:
        """Return the schedule of the run: the stored one, or a new one for the clients that say hello."""
        present = self.lookup(self.settings.clients)
        if (self.folder / SCHEDULE).exists():
            return Schedule.read(self.folder)
        facts = self.ask(HELLO, {client: Outgoing({}) for client in present})
        missing = set(range(self.settings.clients)) - set(facts)
        if missing:
            raise DataError(
                f"Expected {self.settings.clients} clients to begin with, but {numbers_of(tuple(missing))} did not "
                "answer. Start them (errors.txt in a client's folder may say why), or use fewer clients."
            )
        counts_units = self.settings.protect is not None and self.settings.protect.samples_units
        sizes = {client: int(one.values["units" if counts_units else "rows"]) for client, one in sorted(facts.items())}  # type: ignore[arg-type]
        schedule = Schedule.make(self.settings, sizes, self.model.width)
        schedule.check(self.settings.protect)
        write_atomic(self.folder / SCHEDULE, json.dumps(asdict(schedule), indent=2) + "\n")
        return schedule

    def round(self, number: int, schedule: Schedule, aggregation: Aggregation, ledger: Ledger | None) -> Total:
        """Return the total of one round; a failed round is tried again with the clients that are there."""
        weights = self.weights()
        template = {name: np.zeros_like(value) for name, value in weights.items()}
        everyone = tuple(client for client in sorted(schedule.sizes) if client not in self.stopped)
        failure: RoundError | None = None
        for attempt in range(_TRIES):
            if not everyone:
                reasons = "; ".join(sorted(set(self.stopped.values())))
                raise RoundError(f"Expected clients in round {number}, but all of them stopped. {reasons}")
            if attempt:
                self.lookup(max(aggregation.fewest, 1))
            # Noise for clients comes from a new secret in every attempt, and every attempt is counted.
            secret = Rng.secret()
            clients = aggregation.choose(everyone, secret.fork("choose"))

            def ask(stage: str, requests: Mapping[int, Payload], number: int = number) -> dict[int, Payload]:
                messages = {
                    client: Outgoing(
                        schedule.task(client, number).values(), weights if stage == UPDATE else {}, request
                    )
                    for client, request in requests.items()
                }
                return self.ask(stage, messages)

            sizes = {client: float(schedule.sizes[client]) for client in clients}
            about = Round(number, clients, sizes, template, ask, self.log_client)
            if ledger is not None and aggregation.event is not None:
                terms = self._terms(aggregation)
                ledger.spend(aggregation.event, f"attempt of round {number}", secure=True, terms=terms)
            try:
                total = aggregation.collect(about, secret)
                if self.recorder is not None:
                    self.recorder.add_total(number, total)
            except RoundError as error:
                self.log_client(f"Round {number} failed and is tried again: {error}")
                failure = error
                everyone = tuple(client for client in everyone if client not in self.stopped)
                continue
            missing = set(clients) - set(total.clients)
            if missing:
                self.log_client(f"Round {number}: without client {numbers_of(tuple(missing))}.")
            return total
        assert failure is not None
        raise failure

    def ask(self, stage: str, messages: Mapping[int, Outgoing]) -> dict[int, Payload]:
        """Send messages, record them, and return the answers to these messages; old answers are rejected."""
        tokens = {client: secrets.token_hex(16) for client in messages}
        sent = {
            client: Outgoing({**one.values, _TOKEN: tokens[client]}, one.weights, one.request)
            for client, one in messages.items()
        }
        answers = {}
        for client, answer in sorted(self.send(stage, sent).items()):
            values = dict(answer.values)
            if values.pop(_TOKEN, None) != tokens.get(client):
                text = f"Stage {stage}: the answer of client {client} was rejected: it answers another message."
                self.log_client(text)
                continue
            if STOPPED in values:
                self.stopped[client] = str(values[STOPPED])
                self.log_client(f"Client {client} takes no further part: {values[STOPPED]!s}")
                continue
            if ERROR in values:
                self.log_client(f"Stage {stage}: client {client} reported an error: {values[ERROR]!s}")
                continue
            if LOSS in values:
                self.losses[client] = float(values[LOSS])  # type: ignore[arg-type]
            answers[client] = Payload(answer.arrays, values)
        if self.recorder is not None:
            self.recorder.add(stage, messages, answers)
        return answers

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the trainable weights."""
        return {name: np.array(p.detach().to(torch.float32).cpu().numpy()) for name, p in trained(self.model).items()}

    def apply(
        self, total: Total, optimizer: torch.optim.Optimizer, train: Any, number: int, schedule: Schedule
    ) -> None:
        """Move the model: one step of the optimizer along the mean gradient, or by the mean change of weights."""
        mean = total.mean()
        if self.settings.exchange == GRADIENTS:
            set_rate(optimizer, train.rate_at(number - 1, schedule.rounds, train.learning_rate))
            for name, parameter in trained(self.model).items():
                parameter.grad = torch.from_numpy(mean[name]).to(parameter)
            optimizer.step()
            return
        for name, parameter in trained(self.model).items():
            parameter.data.add_(torch.from_numpy(mean[name]).to(parameter))

    def finish(
        self, schedule: Schedule, aggregation: Aggregation, ledger: Ledger | None, rounds: int
    ) -> dict[str, Any]:
        """Ask every client for its last row, and write the final weights and the result."""
        weights = self.weights()
        messages = {
            client: Outgoing(schedule.task(client, schedule.rounds).values(), weights) for client in schedule.sizes
        }
        self.lookup(len(schedule.sizes))
        rows = self.ask(FINISH, messages)
        for client in sorted(set(schedule.sizes) - set(rows)):
            self.log(f"Client {client} did not answer at the end; its guarantee is in its own ledger.")
        result: dict[str, Any] = {
            "rounds": rounds,
            "steps": rounds * schedule.local_steps,
            "clients": {
                str(client): {**answer.values, **self._loss(client), **self._rounds(client, rounds)}
                for client, answer in sorted(rows.items())
            },
        }
        if ledger is not None:
            unshared = (_RECORDED_MESSAGES,) if self.recorder is not None and aggregation.visible == "each" else ()
            stated = ledger.guarantee(aggregation.delta, assumptions=(*aggregation.assumptions, *unshared))
            result["client_guarantee"] = stated.with_caveats(self._terms(aggregation).caveats).as_dict()
        save_tensors({name: torch.from_numpy(value) for name, value in weights.items()}, self.folder / FINAL)
        write_atomic(self.folder / RESULT, json.dumps(result, indent=2) + "\n")
        return result

    def _terms(self, aggregation: Aggregation) -> Terms:
        """Return why the guarantee of the clients is an estimate, if it is, for the ledger from the first round on."""
        names = {Caveat.PRIVATE_CLASSES} if self.settings.names_read else set()
        caveats = trust_in(aggregation) | names
        return Terms(aggregation.assumptions, caveats) if caveats else Terms()

    def _rounds(self, client: int, rounds: int) -> dict[str, int]:
        """Return the number of rounds with an update of a client, if that is public; a repeated one counts once."""
        if self.settings.aggregation.secret_clients:
            return {}
        path = self.folder / PROGRESS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        missing = {one["round"]: one.get("missing", ()) for one in map(json.loads, lines)}
        return {"rounds": rounds - sum(client in clients for clients in missing.values())}

    def _loss(self, client: int) -> dict[str, float]:
        return {LOSS: self.losses[client]} if client in self.losses else {}

    def _ledger(self, aggregation: Aggregation, schedule: Schedule) -> Any:
        """Return the ledger for clients: it holds all planned rounds before the first, and every attempt beyond them.

        A round is repeated because a side failed, never because of what the server has seen.
        """
        if aggregation.event is None:
            return nullcontext()
        budget = None if aggregation.epsilon is None else Budget(aggregation.epsilon, aggregation.delta)
        path = self.folder / LEDGER
        ledger = PlannedLedger.open(path, unit=CLIENT_UNIT, adjacency=Adjacency.ZERO_OUT, budget=budget)
        ledger.plan("round", schedule.rounds, self.folder, trusted=True)
        return ledger


ERROR = "error"
_SAVE_SECONDS = 30.0
