"""How the updates of one round become one sum: what a client sends, and what the server may see.

An aggregation has two sides that run in different processes. The server side asks the clients one or several times per
round and returns the total. The client side answers each request. Both sides exchange `Payload` values; whatever is in
a payload crosses the boundary, and can be read by the server and, without TLS, by everyone on the wire.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.settings import as_dict

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

Array = npt.NDArray[np.generic]
Arrays = Mapping[str, Array]
Scalar = int | float | str | bytes | bool
Value = Scalar | list[int] | list[float] | list[str] | list[bytes]
Visible = Literal["each", "sum"]  # whether the server sees each update, or only their sum

# Assumptions of guarantees of several aggregations and of clients.
ANSWERS_ALWAYS = "whether a client answers, and the type of its errors, do not depend on its text"
PUBLIC_SIZES = "the number of clients, the size of each client's data and the settings are public"

UPDATE = "update"  # the stage in which a client computes its update
_HUGE = 100.0  # an update is rejected if its norm is this many times the lower median of the round


@dataclass(frozen=True)
class Update:
    """A client's update before it leaves: a gradient or a change of weights, and its public weight in the mean."""

    arrays: dict[str, npt.NDArray[np.float32]]
    weight: float


@dataclass(frozen=True)
class Payload:
    """The content of one message: named arrays, and named numbers, strings or bytes."""

    arrays: Arrays = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return names and shapes, not the contents."""
        shapes = {name: value.shape for name, value in self.arrays.items()}
        return f"Payload(arrays={shapes}, values={sorted(self.values)})"


@dataclass(frozen=True)
class Local:
    """A client's side of one request.

    `update` computes the update of this round and records its cost in the client's ledger; called again for the same
    round and the same weights, it returns the same update and costs nothing. `memory` keeps bytes between the requests
    of one round; it is emptied when another round begins, and stored only in the client's own folder, because the next
    request may be answered by a new process. `secret` is a fresh secret source, different for every request. `spend`
    records the cost of noise that protects this client as a whole, before it is used, in a ledger of the client; it
    raises BudgetError if the budget of the aggregation does not allow it, however many rounds the server announced.
    """

    round: int
    client: int
    update: Callable[[], Update]
    memory: MutableMapping[str, bytes]
    secret: Rng
    spend: Callable[[DpEvent], None]


# Sends the requests of a stage to clients, by client number, and returns the answers that arrived in time. A client
# that dropped out, timed out or reported an error is missing in the answers; the log says why.
Ask = Callable[[str, Mapping[int, Payload]], dict[int, Payload]]


@dataclass(frozen=True)
class Round:
    """The server's side of one round.

    `template` holds an array of zeros for every array of an update. `clients` are the numbers of the clients that take
    part. `weights` are their public weights in the mean. `log` records what happened to single clients, for the owner
    of the server.
    """

    number: int
    clients: tuple[int, ...]
    weights: Mapping[int, float]
    template: Mapping[str, npt.NDArray[np.float32]]
    ask: Ask
    log: Callable[[str], None]


@dataclass(frozen=True)
class Total:
    """The sum of weighted updates, the sum of their weights, and the clients that are in it."""

    arrays: dict[str, npt.NDArray[np.float64]]
    weight: float
    clients: tuple[int, ...]

    def mean(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weighted mean of the updates."""
        return {name: (value / self.weight).astype(np.float32) for name, value in self.arrays.items()}


class Aggregation(ABC):
    """Base class of how the updates of a round become one sum.

    An instance is a frozen dataclass of public settings, equal on all sides. What a round must remember is in
    `Local.memory` at the client and in local variables of `collect` at the server.
    """

    name: ClassVar[str]
    visible: ClassVar[Visible]  # what the server sees of a round

    def as_table(self) -> dict[str, Any]:
        """Return the name and the settings as plain values, for a settings file."""
        return {"name": self.name, **as_dict(self)}

    @property
    def event(self) -> DpEvent | None:
        """Privacy event of one round for the unit "client", sampling included; None if it adds no noise of its own.

        The server records it in its ledger before `collect` is called.
        """
        return None

    @property
    def is_noisy(self) -> bool:
        """Whether noise protects clients; clients then send no loss, which nothing protects."""
        return False

    @property
    def secret_clients(self) -> bool:
        """Whether the guarantee needs it to be secret which clients take part in a round.

        Then nothing that the run writes for others or prints may depend on it: no rounds and no errors of a client, and
        no durations.
        """
        return False

    def recorded(self) -> Aggregation:
        """Return the aggregation if all messages are recorded, which shows who took part in each round."""
        return self

    @property
    def epsilon(self) -> float | None:
        """Largest epsilon for the unit "client" over all rounds, which the server's ledger enforces; None if unset."""
        return None

    @property
    def delta(self) -> float:
        """Delta of the guarantee for the unit "client"."""
        return 0.0

    def error_std(self, clients: int) -> float:
        """Return the standard deviation of the error in each number of a mean of so many updates: noise, rounding."""
        return 0.0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee for the unit "client" assumes, as sentences."""
        return (
            "the server is trusted: it sees every update and which clients take part in a round",
            PUBLIC_SIZES,
        )

    def resolve(self, clients: int, rounds: int, parameters: int) -> Aggregation:
        """Return the aggregation that runs, with its noise calibrated to a budget for so many clients and rounds.

        `parameters` is the number of trained numbers, the length of an update.
        """
        return self

    def choose(self, clients: Sequence[int], secret: Rng) -> tuple[int, ...]:
        """Return the clients that take part in a round: by default all."""
        return tuple(clients)

    @property
    def fewest(self) -> int:
        """Number of clients without which a round cannot be completed."""
        return 1

    @abstractmethod
    def respond(self, stage: str, request: Payload, local: Local) -> Payload:
        """Return the client's answer to a request of the server; the stage `UPDATE` is the first that has an update."""

    @abstractmethod
    def collect(self, about: Round, secret: Rng) -> Total:
        """Ask the clients for their updates and return the total; raise `RoundError` if too few answered."""


class RoundError(DataError):
    """A round has no result, because too few clients answered; the model stays as it is."""


@dataclass(frozen=True)
class Mean(Aggregation):
    """The weighted mean of updates that the server sees one by one.

    Guarantee: none of its own; an update is as private as the client made it.
    """

    name: ClassVar[str] = "mean"
    visible: ClassVar[Visible] = "each"

    def respond(self, stage: str, request: Payload, local: Local) -> Payload:
        """Return the update as it is, with its weight."""
        if stage != UPDATE:
            raise UnsupportedError(f"Expected stage to be {UPDATE!r} for {self.name}, got {stage!r}.")
        update = local.update()
        return Payload(update.arrays, {"weight": update.weight})

    def collect(self, about: Round, secret: Rng) -> Total:
        """Return the sum of the valid updates, in the order of the clients."""
        return add_up(about, received(about))


def received(about: Round) -> dict[int, dict[str, npt.NDArray[np.float32]]]:
    """Ask every client for its update and return the valid ones; the log names those that were rejected and why."""
    answers = about.ask(UPDATE, {client: Payload() for client in about.clients})
    valid: dict[int, dict[str, npt.NDArray[np.float32]]] = {}
    for client in sorted(answers):
        reason = why_invalid(answers[client].arrays, about.template)
        if reason is None:
            valid[client] = {name: np.asarray(answers[client].arrays[name]) for name in about.template}
        else:
            about.log(f"Round {about.number}: the update of client {client} was rejected: {reason}.")
    norms = {client: norm_of(arrays) for client, arrays in valid.items()}
    for client, reason in too_large(norms).items():
        about.log(f"Round {about.number}: the update of client {client} was rejected: {reason}.")
        del valid[client]
    return valid


def add_up(about: Round, updates: Mapping[int, Arrays]) -> Total:
    """Return the sum of updates times their public weights."""
    if not updates:
        raise RoundError(f"Expected a valid update in round {about.number}, got none. Start the clients again.")
    sums = {name: np.zeros(value.shape, dtype=np.float64) for name, value in about.template.items()}
    for client in sorted(updates):
        for name, total in sums.items():
            total += about.weights[client] * updates[client][name].astype(np.float64)
    return Total(sums, float(sum(about.weights[client] for client in updates)), tuple(sorted(updates)))


def why_invalid(arrays: Arrays, template: Arrays) -> str | None:
    """Return why the arrays of an update cannot be used, or None.

    >>> zeros = {"a": np.zeros(2, np.float32)}
    >>> why_invalid({"a": np.array([1, np.nan], np.float32)}, zeros), why_invalid({}, zeros)
    ('1 of 2 values of a are NaN or infinite', 'expected 1 arrays, got 0')
    """
    if set(arrays) != set(template):
        return f"expected {len(template)} arrays, got {len(arrays)}" + (
            "" if len(arrays) != len(template) else " with other names"
        )
    for name, like in template.items():
        value = arrays[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            return f"expected {name} of shape {like.shape} and {like.dtype}, got {value.shape} and {value.dtype}"
        wrong = int(np.count_nonzero(~np.isfinite(value.astype(np.float64))))
        if wrong:
            return f"{wrong} of {value.size} values of {name} are NaN or infinite"
    return None


def norm_of(arrays: Arrays) -> float:
    """Return the Euclidean norm of all arrays together."""
    return math.sqrt(sum(float(np.sum(np.square(value.astype(np.float64)))) for value in arrays.values()))


def too_large(norms: Mapping[int, float]) -> dict[int, str]:
    """Return the clients whose update is far larger than those of the others, and why.

    >>> too_large({0: 1.0, 1: 1.2, 2: 4000.0})
    {2: 'its norm 4e+03 is above 120, 100 times the lower median of the round'}
    """
    if len(norms) < 2:
        return {}
    limit = _HUGE * sorted(norms.values())[(len(norms) - 1) // 2]
    rule = f"is above {limit:.3g}, {_HUGE:g} times the lower median of the round"
    return {client: f"its norm {norm:.3g} {rule}" for client, norm in norms.items() if norm > limit > 0}


def numbers_of(clients: Sequence[int]) -> str:
    """Return client numbers as text.

    >>> numbers_of([3, 1]), numbers_of([])
    ('1, 3', 'none')
    """
    return ", ".join(map(str, sorted(clients))) or "none"
