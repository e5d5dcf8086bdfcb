"""ServerApp and ClientApp for Flower, and a grid that runs both in one process.

Only this module, `accountant`, `node` and `processes` know Flower. A message holds up to four records: `values` (the
stage, the task, a token and the layout of arrays), `weights` (of the model), and `request` and `scalars` (of the
aggregation).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity

from discreet.core.errors import DataError, DiscreetError, LedgerError, UnsupportedError
from discreet.core.files import write_atomic
from discreet.federated.aggregation import Array, Payload
from discreet.federated.client import FINISH, HELLO, Client, note_error
from discreet.federated.server import ERROR, FAILED, PID, Outgoing, RoundReport, Server
from discreet.federated.settings import FILES, Federation
from discreet.protections.base import trust_in

WHO = "who"  # asks a node for its client number
_VALUES, _WEIGHTS, _REQUEST, _SCALARS = "values", "weights", "request", "scalars"
_STAGE, _TOKEN = "stage", "token"
_KINDS = {WHO: MessageType.QUERY, HELLO: MessageType.QUERY, FINISH: MessageType.QUERY}
_DELTA = 1e-5  # largest delta that a node with a limit accepts, besides the default for its number of units
_SHORTEST, _LONGEST_PAUSE = 0.01, 0.5  # seconds between looks for answers
_CHECK_SECONDS = 2.0  # between looks for nodes that are gone or back
_START_SECONDS = 120.0  # to wait for clients
_SILENCE_SECONDS = 600.0  # a round without any answer is given up


def to_records(stage: str, message: Outgoing) -> RecordDict:
    """Return a message as Flower's records."""
    layouts: dict[str, str] = {}
    records = RecordDict()
    for name, arrays in ((_WEIGHTS, message.weights), (_REQUEST, message.request.arrays)):
        if arrays:
            records[name], layouts[f"{name}.layout"] = packed(arrays)
    if message.request.values:
        records[_SCALARS] = ConfigRecord(dict(message.request.values))
    records[_VALUES] = ConfigRecord({_STAGE: stage, **layouts, **message.values})
    return records


def from_records(records: RecordDict) -> tuple[str, Outgoing]:
    """Return the stage and the message of Flower's records."""
    values = dict(records.config_records.get(_VALUES, ConfigRecord()))
    stage = str(values.pop(_STAGE, ""))
    arrays = {}
    for name in (_WEIGHTS, _REQUEST):
        layout = values.pop(f"{name}.layout", None)
        arrays[name] = {} if layout is None else unpacked(records.array_records[name], str(layout))
    request = Payload(arrays[_REQUEST], dict(records.config_records.get(_SCALARS, ConfigRecord())))
    return stage, Outgoing(values, arrays[_WEIGHTS], request)


def packed(arrays: Mapping[str, Array]) -> tuple[ArrayRecord, str]:
    """Return one array per type of number, and the layout of the named arrays in them as JSON.

    Flower sends every array in requests of its own, and a model has hundreds of arrays.
    """
    parts: dict[str, list[Array]] = {}
    layout = []
    for name, value in arrays.items():
        parts.setdefault(value.dtype.str, []).append(np.ascontiguousarray(value).reshape(-1))
        layout.append([name, value.dtype.str, list(value.shape)])
    return ArrayRecord({kind: FlowerArray(np.concatenate(part)) for kind, part in parts.items()}), json.dumps(layout)


def unpacked(record: ArrayRecord, layout: str) -> dict[str, Array]:
    """Return the named arrays of a record; a layout that does not fit is rejected."""
    parts = {kind: value.numpy() for kind, value in record.items()}
    starts = dict.fromkeys(parts, 0)
    arrays: dict[str, Array] = {}
    for name, kind, shape in json.loads(layout):
        size = math.prod(shape)
        if kind not in parts or min(shape, default=0) < 0 or starts[kind] + size > parts[kind].size:
            raise DataError("Expected the arrays that the layout of the message names, got fewer numbers.")
        arrays[str(name)] = parts[kind][starts[kind] : starts[kind] + size].reshape(shape)
        starts[kind] += size
    return arrays


def client_app(
    client_of: Callable[[Context], Client],
    number_of: Callable[[Context], int],
    folder_of: Callable[[Context], Path],
) -> ClientApp:
    """Return a ClientApp that answers for one client; text, masks and ledger stay with that client.

    `client_of` returns the client of a node, and is called for the first message that needs its data. An error is
    reported by its type only, because its message may hold a text or a value of an update; the message is written into
    the client's own folder.
    """
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        stage, seen = from_records(message.content)
        token = seen.values.get(_TOKEN, "")
        try:
            if stage == WHO:
                answer = Payload(values={"client": number_of(context)})
            else:
                values = {name: value for name, value in seen.values.items() if name != _TOKEN}
                answer = client_of(context).answer(stage, values, seen.weights, seen.request)
        except Exception as error:
            note_error(folder_of(context), stage, error)
            answer = Payload(values={ERROR: type(error).__name__})
        sent = Outgoing({_TOKEN: token}, request=answer)
        return Message(to_records(stage, sent), reply_to=message)

    app.train()(handle)
    app.query()(handle)
    return app


def app_of_file(path: Path) -> ClientApp:
    """Return the ClientApp for the settings in a file; a node's own configuration names its client and folder."""
    clients: dict[tuple[int, str], Client] = {}

    def number_of(context: Context) -> int:
        return int(context.node_config["client"])

    def client_of(context: Context) -> Client:
        number, folder = number_of(context), str(context.node_config["folder"])
        if (number, folder) not in clients:
            settings = with_own_settings(Federation.read(path), number, context.node_config)
            cache = context.node_config.get("cache")
            clients[number, folder] = Client(
                settings, number, Path(folder), cache=None if cache is None else Path(str(cache))
            )
        return clients[number, folder]

    return client_app(client_of, number_of, lambda context: Path(str(context.node_config["folder"])))


def with_own_settings(settings: Federation, number: int, node: Mapping[str, Any]) -> Federation:
    """Return the settings with what a node decides for itself: where its text is, and its largest epsilon.

    A node with a limit takes no part in a run without a budget, with a larger one, with a delta above its own limit
    (1e-5 unless it sets another), with a protection of another package, or with a fixed seed of the noise: whoever
    wrote the settings would know the noise.
    """
    if "data" in node:
        files = tuple(str(node["data"]) if one == number else "" for one in range(settings.clients))
        settings = replace(settings, partition=FILES, files=files)
    if "epsilon" in node:
        limit, budget = float(node["epsilon"]), None if settings.protect is None else settings.protect.epsilon
        if budget is None or budget > limit:
            raise LedgerError(f"Expected a budget of at most {limit:g} for this client, got {budget}. It stays out.")
        most, delta = float(node.get("delta", _DELTA)), None if settings.protect is None else settings.protect.delta
        if delta is not None and delta > most:
            raise LedgerError(f"Expected a delta of at most {most:g} for this client, got {delta:g}. It stays out.")
        if settings.protect is not None and trust_in(settings.protect):
            raise LedgerError(
                f"Expected a protection of discreet, got {settings.protect.found_by}, whose cost nobody has checked. "
                "It stays out."
            )
        if settings.noise_seed is not None:
            raise LedgerError("Expected noise from this client's own secret, got a fixed seed. It stays out.")
    return settings


def server_app(path: Path) -> ServerApp:
    """Return the ServerApp for the settings in a file; its run configuration names the server's folder."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        settings, folder = Federation.read(path), Path(str(context.run_config["folder"]))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(folder / PID, str(os.getpid()))
        try:
            serve(settings, folder, grid)
        except DiscreetError as error:
            write_atomic(folder / FAILED, f"{type(error).__name__}: {error}")
            raise

    app.main()(main)
    return app


def serve(
    settings: Federation,
    folder: Path,
    grid: Grid,
    watch: Callable[[RoundReport], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run the server of a federation on a grid, and return its result."""
    transport = Transport(grid, settings.wait_seconds)
    server = Server(settings, folder, transport.send, transport.lookup, watch, should_stop)
    transport.log = server.log_client
    return server.run()


class Transport:
    """Send messages to clients over a grid, whatever node they are at the moment.

    A client that was restarted is another node for Flower. It is asked for its number, and a message that it has not
    answered is sent again.
    """

    def __init__(self, grid: Grid, patience: float) -> None:
        """Use a grid; nobody is known yet."""
        self.grid, self.patience = grid, patience
        self.nodes: dict[int, int] = {}  # node of each client
        self.asked: set[int] = set()  # nodes that were asked for their client number
        self.questions: dict[str, int] = {}  # node of each question that has no answer yet
        self.log: Callable[[str], None] = lambda text: None

    def lookup(self, wanted: int) -> tuple[int, ...]:
        """Return the clients that can be reached, after waiting for `wanted` of them for up to two minutes."""
        end, pause = time.monotonic() + _START_SECONDS, _SHORTEST
        while True:
            self.refresh()
            if len(self.nodes) >= wanted or time.monotonic() > end:
                return tuple(sorted(self.nodes))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def refresh(self) -> None:
        """Ask new nodes for their client number, read the answers so far, and forget nodes that are gone.

        An answer may take long: Flower's own SuperNode starts a process for it, which imports torch.
        """
        present = set(self.grid.get_node_ids())
        for client, node in list(self.nodes.items()):
            if node not in present:
                self.log(f"Client {client} cannot be reached.")
                del self.nodes[client]
        self.asked &= present  # a registered node has the same number when it is back
        self.questions = {name: node for name, node in self.questions.items() if node in present}
        for node in sorted(present - self.asked):
            self.asked.add(node)
            question = Message(to_records(WHO, Outgoing({})), node, MessageType.QUERY)
            self.questions |= dict.fromkeys(self.grid.push_messages([question]), node)
        for reply in self.grid.pull_messages(list(self.questions)) if self.questions else ():
            node = self.questions.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                self.asked.discard(node)  # so that it is asked again
                continue
            number = from_records(reply.content)[1].request.values.get("client")
            if isinstance(number, int):
                if number in self.nodes:
                    self.log(f"Client {number} is back.")
                self.nodes[number] = node

    def send(self, stage: str, messages: Mapping[int, Outgoing]) -> dict[int, Payload]:
        """Send one message to each client and return the answers that arrived in time."""
        pending: dict[str, int] = {}
        answers: dict[int, Payload] = {}
        sent_to: dict[int, int] = {}

        def push(clients: Iterable[int]) -> None:
            for client in sorted(clients):
                if client in self.nodes and sent_to.get(client) != self.nodes[client]:
                    sent_to[client] = self.nodes[client]
                    records, kind = to_records(stage, messages[client]), _KINDS.get(stage, MessageType.TRAIN)
                    group = str(messages[client].values.get("round", ""))
                    message = Message(records, self.nodes[client], kind, group_id=group)
                    for name in self.grid.push_messages([message]):
                        pending[name] = client

        start = checked = time.monotonic()
        deadline, pause, waiting = start + _SILENCE_SECONDS, _SHORTEST, False
        push(messages)
        while len(answers) < len(messages) and time.monotonic() < deadline:
            replies = list(self.grid.pull_messages(list(pending))) if pending else []
            for reply in replies:
                client = pending.pop(reply.metadata.reply_to_message_id, None)
                if client is None or client in answers:
                    continue
                if reply.has_error():
                    self.log(f"Stage {stage}: client {client} sent an error: {reply.error.reason}")
                    continue
                answer = from_records(reply.content)[1]
                answers[client] = Payload(answer.request.arrays, {**answer.request.values, **answer.values})
            if not waiting and 2 * len(answers) >= len(messages):
                elapsed, waiting = time.monotonic() - start, True
                deadline = start + elapsed + max(self.patience, 2 * elapsed)
            if len(answers) == len(messages):
                break
            if time.monotonic() - checked > _CHECK_SECONDS:
                self.refresh()
                push(set(messages) - set(answers))
                checked = time.monotonic()
            pause = _SHORTEST if replies else min(2 * pause, _LONGEST_PAUSE)
            time.sleep(pause)
        return answers


class LocalGrid(Grid):  # type: ignore[misc]
    """A grid without a network: every node is a ClientApp of this process, and answers when it is asked."""

    def __init__(self, apps: Sequence[ClientApp], contexts: Sequence[Context]) -> None:
        """Take one ClientApp and one context per node; node n is number n + 1."""
        self.apps, self.contexts = apps, contexts
        self.replies: dict[str, Message] = {}
        self.sent = 0
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # which every message names

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of all nodes."""
        return range(1, len(self.apps) + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer each message at once, and return their names."""
        names = []
        for message in messages:
            self.sent += 1
            name = f"message {self.sent}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id - 1
            self.replies[name] = self.apps[node](message, self.contexts[node])
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to messages, once."""
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the answers to messages."""
        return self.pull_messages(self.push_messages(messages))

    def get_nodes(self) -> Any:
        """Raise an error: there are no node details in one process."""
        raise UnsupportedError("Expected Flower's processes for node details, got one process. Start processes.")

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """Raise an error: there is no Flower run in one process."""
        raise UnsupportedError("Expected Flower's processes for a Flower run, got one process. Start processes.")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Raise an error: messages are made with `Message`."""
        raise UnsupportedError("Expected Flower's processes for create_message, got one process. Start processes.")
