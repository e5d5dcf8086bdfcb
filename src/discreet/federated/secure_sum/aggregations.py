"""Aggregation by a secure sum: the server sees the sum of the clients' updates and no single one.

The server side asks the clients for the five stages of `secure_sum/protocol.py`; the client side keeps its state
between two stages in its own memory, because every request may be answered by another process. With noise, every
client clips its update and adds its share of integer noise (`secure_sum/noise.py`), so the sum is private against the
server too.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, SettingError, UnsupportedError, invalid, one_of, positive, setting, whole
from discreet.core.guarantee import HELD_OUT
from discreet.core.randomness import Rng
from discreet.core.settings import option_field
from discreet.federated.aggregation import (
    ANSWERS_ALWAYS,
    PUBLIC_SIZES,
    UPDATE,
    Aggregation,
    Arrays,
    Local,
    Payload,
    Round,
    RoundError,
    Total,
    Visible,
)
from discreet.federated.secure_sum.keys import named
from discreet.federated.secure_sum.messages import SESSION_BYTES, Message, Stage, SumSettings
from discreet.federated.secure_sum.noise import MECHANISMS, DistributedNoise
from discreet.federated.secure_sum.protocol import SumClient, SumServer
from discreet.federated.secure_sum.ring import FixedPoint, Ring, Words

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

_PANEL = "Aggregation"
_STAGES = {"keys": Stage.KEYS, "shares": Stage.SHARES, UPDATE: Stage.MASKED, "confirm": Stage.CONFIRM}
_STAGES["reveal"] = Stage.REVEAL
_MESSAGE, _MASKED, _STATE, _FACTS, _REVEALED = "message", "masked", "secure-sum", "secure-sum-facts", "revealed"
_FACTS_FORMAT = struct.Struct("<16sQQQdd")  # session, clients, rounds, numbers, sum of weights, noise multiplier


@dataclass(frozen=True)
class SecureSum(Aggregation):
    """Mask every update so that the server learns the weighted sum of the survivors' updates only.

    `threshold` clients must stay until the end of a round, by default more than two thirds. Without noise an update is
    rounded to multiples of 2^-fraction_bits. With `noise_multiplier`, or `epsilon` at `delta`, every client has the
    same weight, its update is clipped to `clip_norm`, and the noise of threshold - `colluding` clients together has a
    standard deviation of noise_multiplier times the clip norm.

    Guarantee: without noise, that of `SumClient` for servers that follow the protocol: no single update is seen, but
        the sum may reveal it. With noise also `DistributedNoise.guarantee` for each client, against the server and
        `colluding` other clients.
    Paper: Bonawitz et al. 2017; Kairouz, Liu and Steinke 2021.
    """

    threshold: int | None = option_field(None, "Clients that must stay until the end of a round.", _PANEL, "over 2/3")
    bits: int = option_field(32, "Size of a masked number in bits.", _PANEL)
    fraction_bits: int = option_field(24, "Bits after the binary point without noise.", _PANEL)
    epsilon: float | None = option_field(None, "Privacy budget of one client for the whole run.", _PANEL)
    delta: float = option_field(1e-3, "Delta of the guarantee for clients.", _PANEL)
    noise_multiplier: float | None = option_field(
        None, "Standard deviation of the noise of the survivors over the clip norm.", _PANEL
    )
    clip_norm: float = option_field(1.0, "With noise, updates are clipped to this norm by the clients.", _PANEL)
    mechanism: str = option_field("discrete-gaussian", "Noise of the clients: discrete-gaussian or skellam.", _PANEL)
    colluding: int = option_field(0, "Clients that may tell the server their noise.", _PANEL)
    rotate: bool = option_field(False, "With noise, rotate updates so that a small ring has room for them.", _PANEL)
    clients: int | None = None  # set by `resolve`, as are the following
    rounds: int | None = None
    parameters: int | None = None
    name: ClassVar[str] = "secure-sum"
    visible: ClassVar[Visible] = "sum"

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        FixedPoint(Ring(self.bits), self.fraction_bits)
        one_of("mechanism", self.mechanism, MECHANISMS)
        whole("colluding", self.colluding, 0)
        if self.threshold is not None:
            whole("threshold", self.threshold, 2, "A sum of one client is its update.")
        for name, value in (("epsilon", self.epsilon), ("noise_multiplier", self.noise_multiplier)):
            if value is not None:
                positive(name, value)
        positive("clip_norm", self.clip_norm)

    @property
    def is_noisy(self) -> bool:
        """Whether clients add noise."""
        return self.epsilon is not None or self.noise_multiplier is not None

    @property
    def fewest(self) -> int:
        """Number of clients that must stay until the end of a round."""
        return 2 if self.clients is None else self.survivors_of(self.clients)

    def survivors_of(self, clients: int) -> int:
        """Return the threshold for a number of clients."""
        if clients < 2:
            raise invalid("clients", clients, ">= 2 for a secure sum", "The sum of one client is its update.")
        threshold = max(2, 2 * clients // 3 + 1) if self.threshold is None else self.threshold
        if not clients / 2 < threshold <= clients:
            raise invalid("threshold", threshold, f"at most {clients}, the number of clients, and more than half of it")
        if self.colluding >= threshold - 1:
            raise invalid("colluding", self.colluding, f"below {threshold - 1}", "Their sum would be one update.")
        return threshold

    def resolve(self, clients: int, rounds: int, parameters: int) -> SecureSum:
        """Return the aggregation for so many clients, rounds and trained numbers, with noise for the budget."""
        resolved = replace(self, clients=clients, rounds=rounds, parameters=parameters)
        if self.noise_multiplier is not None or self.epsilon is None:
            return resolved
        noise = DistributedNoise.for_budget(self.epsilon, self.delta, rounds=rounds, **resolved._noise_settings())
        return replace(resolved, noise_multiplier=noise.noise_multiplier)

    @property
    def event(self) -> DpEvent | None:
        """Privacy event of one round for a client, under zero-out; None without noise."""
        return self.noise.event if self.is_noisy else None

    def error_std(self, clients: int) -> float:
        """Return the standard deviation of the error in each number of a mean: of noise, or of rounding to the step."""
        if self.is_noisy:
            return self.noise.sigma * self.noise.step / math.sqrt(clients)
        return math.sqrt(clients / 12) * 2.0**-self.fraction_bits

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee for a client assumes."""
        if not self.is_noisy:
            return ("the server follows the protocol of the secure sum",)
        return (
            "the server follows the protocol of the secure sum; it sees which clients take part in a round",
            f"in every round {self.noise.survivors} clients added their noise and keep it secret",
            HELD_OUT,
            ANSWERS_ALWAYS,
            PUBLIC_SIZES,
        )

    @property
    def noise(self) -> DistributedNoise:
        """The noise of the clients."""
        if self.noise_multiplier is None:
            raise UnsupportedError("Expected a resolved aggregation with noise, got one without. Call resolve.")
        return DistributedNoise(noise_multiplier=self.noise_multiplier, **self._noise_settings())

    def _noise_settings(self) -> dict[str, Any]:
        if self.clients is None or self.parameters is None:
            raise UnsupportedError("Expected a resolved aggregation, got one for any number of clients. Call resolve.")
        return {
            "clip_norm": self.clip_norm,
            "dimension": self.parameters,
            "clients": self.clients,
            "survivors": self.survivors_of(self.clients) - self.colluding,
            "mechanism": self.mechanism,
            "ring": Ring(self.bits),
            "rotate": self.rotate,
        }

    # The client's side

    def respond(self, stage: str, request: Payload, local: Local) -> Payload:
        """Return the client's message of one stage; what it must remember stays in its memory.

        Guarantee: that of `SumClient`, for one session at a time. After a client revealed its shares, another session
            of the same round needs the same survivors, unless noise is added: two sums over different clients would
            reveal the difference.
        """
        if stage not in _STAGES:
            raise UnsupportedError(f"Expected stage to be one of {', '.join(_STAGES)} for {self.name}, got {stage!r}.")
        if stage == "keys":
            local.memory[_FACTS] = _value(request, "facts")
            plan = _Plan.of(self, local.memory[_FACTS], local.round)
            client = SumClient(local.client, plan.settings)  # its keys come from the operating system
            return self._answer(client.keys(), client, local)
        if _STATE not in local.memory:
            raise DataError("Expected an unfinished round in this client's memory, got none. Wait for the next round.")
        plan = _Plan.of(self, local.memory[_FACTS], local.round)
        client = SumClient.resumed(local.client, plan.settings, local.memory[_STATE])
        message = Message.from_bytes(_value(request, _MESSAGE))
        if stage == "shares":
            answer = client.shares(message)
        elif stage == UPDATE:
            self._check_budget(plan.noise, local.memory[_FACTS])
            update = local.update()
            if plan.noise is not None:
                local.spend(plan.noise.event)
            answer = client.masked(message, plan.encode(update.arrays, update.weight))
        elif stage == "confirm":
            answer = client.confirm(message)
            self._check_same(client.survivors, local)
        else:
            local.memory[_REVEALED] = named(client.survivors)
            answer = client.reveal(message)
        return self._answer(answer, client, local)

    def _answer(self, message: Message, client: SumClient, local: Local) -> Payload:
        local.memory[_STATE] = client.saved()  # before anything is sent
        if message.stage is not Stage.MASKED:
            return Payload(values={_MESSAGE: message.to_bytes()})
        words = np.frombuffer(message.body, dtype=Ring(self.bits).dtype)
        return Payload({_MASKED: words}, {_MESSAGE: replace(message, body=b"").to_bytes()})

    def _check_budget(self, noise: DistributedNoise | None, facts: bytes) -> None:
        """Reject less noise than the budget of this client needs for the announced rounds."""
        if noise is not None and self.epsilon is not None:
            rounds = _FACTS_FORMAT.unpack(facts)[2]
            if noise.epsilon(self.delta, rounds) > self.epsilon * (1 + 1e-6):
                raise DataError(
                    f"Expected noise for {setting('epsilon', self.epsilon)} over {rounds} rounds, got a multiplier of "
                    f"{noise.noise_multiplier:g} from the server, which is too little."
                )

    def _check_same(self, survivors: frozenset[int], local: Local) -> None:
        earlier = local.memory.get(_REVEALED)
        if earlier is not None and earlier != named(survivors) and not self.is_noisy:
            raise DataError(
                "Expected the clients of the earlier attempt of this round, whose sum may be known, got others. Two "
                "sums over different clients would reveal the difference. Start the missing clients again."
            )

    # The server's side

    def collect(self, about: Round, secret: Rng) -> Total:
        """Run the stages with the clients that answer, and return the sum of the survivors.

        Guarantee: with noise, that of `event`, which the caller recorded; the noise is the clients'.
        """
        weights = {client: 1.0 if self.is_noisy else about.weights[client] for client in about.clients}
        facts = _FACTS_FORMAT.pack(
            secret.fork("session").bytes(SESSION_BYTES),
            len(about.clients) if self.clients is None else self.clients,
            self.rounds or 1,
            sum(value.size for value in about.template.values()),
            math.fsum(weights.values()),
            self.noise_multiplier or 0.0,
        )
        try:
            plan = _Plan.of(self, facts, about.number)
        except SettingError as error:
            raise RoundError(str(error)) from None
        server = SumServer(plan.settings, invited=about.clients)
        requests = {client: Payload(values={"facts": facts}) for client in about.clients}
        try:
            for stage in _STAGES:
                for client, answer in sorted(about.ask(stage, requests).items()):
                    self._receive(server, client, answer, about)
                requests = {
                    client: Payload(values={_MESSAGE: message.to_bytes()})
                    for client, message in server.advance().items()
                }
            words = server.result()
        except DataError as error:
            raise RoundError(str(error)) from None
        survivors = tuple(sorted(server.survivors))
        arrays = _unflattened(plan.decode(words), about.template)
        return Total(arrays, math.fsum(weights[client] for client in survivors), survivors)

    def _receive(self, server: SumServer, client: int, answer: Payload, about: Round) -> None:
        try:
            message = Message.from_bytes(_value(answer, _MESSAGE))
            if message.client != client:
                raise DataError(f"Expected a message of client {client}, got one of client {message.client}.")
            if server.stage is Stage.MASKED:
                words = answer.arrays.get(_MASKED)
                if words is None or words.dtype != server.settings.ring.dtype:
                    raise DataError(f"Expected masked numbers of type {server.settings.ring.dtype}.")
                message = replace(message, body=np.ascontiguousarray(words).tobytes())
            server.receive(message)
        except DataError as error:
            about.log(f"Round {about.number}: a message of client {client} was rejected: {error}")


@dataclass(frozen=True)
class _Plan:
    """The public facts of one round, the same on all sides: settings of the sum, and how a vector is encoded."""

    settings: SumSettings
    clients: int
    weight: float
    fixed: FixedPoint
    noise: DistributedNoise | None

    @classmethod
    def of(cls, aggregation: SecureSum, facts: bytes, number: int) -> _Plan:
        """Return the plan of the facts that the server announced; unusable facts are rejected."""
        try:
            session, clients, rounds, length, weight, multiplier = _FACTS_FORMAT.unpack(facts)
        except struct.error:
            raise DataError(f"Expected the facts of a secure sum, got {len(facts)} bytes of another form.") from None
        whole("clients", clients, 2)
        positive("weight", weight)
        noise = None
        if aggregation.is_noisy:
            asked = replace(aggregation, clients=clients, rounds=rounds, parameters=whole("parameters", length))
            if asked.noise_multiplier not in (None, multiplier):
                raise DataError(
                    f"Expected a noise multiplier of {asked.noise_multiplier:g}, got {multiplier:g} from the server."
                )
            noise = replace(asked, noise_multiplier=multiplier).noise
        threshold = aggregation.survivors_of(clients)
        size = length if noise is None else noise.padded
        settings = SumSettings(session, number, threshold, size, Ring(aggregation.bits), facts)
        return cls(settings, clients, weight, FixedPoint(settings.ring, aggregation.fraction_bits), noise)

    def encode(self, arrays: Arrays, weight: float) -> Words:
        """Return an update in numbers of the ring: its share of the weighted mean, or with noise its clipped sum."""
        vector = np.concatenate([arrays[name].reshape(-1) for name in sorted(arrays)])
        if self.noise is not None:
            return self.noise.encode(vector, Rng.secure(), self.settings.session)
        # The shares of all clients sum to at most 1, so that the sum is at most the largest number.
        largest = float(np.abs(vector).max(initial=0.0))
        limit = (self.fixed.ring.limit - self.clients) * self.fixed.step
        if not largest <= limit or not 0 < weight <= self.weight:
            raise DataError(
                f"Expected finite numbers of size at most {limit:g}, got larger ones or NaN. Use fewer "
                f"{setting('fraction_bits')} or more {setting('bits')}."
            )
        return self.fixed.encode(vector, weight / self.weight)

    def decode(self, words: Words) -> npt.NDArray[np.float64]:
        """Return the weighted sum of the survivors' updates."""
        if self.noise is not None:
            return self.noise.decode(words, self.settings.session)
        return self.fixed.decode(words) * self.weight


def _unflattened(vector: npt.NDArray[np.float64], template: Arrays) -> dict[str, npt.NDArray[np.float64]]:
    arrays, position = {}, 0
    for name in sorted(template):
        size = template[name].size
        arrays[name] = vector[position : position + size].reshape(template[name].shape)
        position += size
    return {name: arrays[name] for name in template}


def _value(payload: Payload, name: str) -> bytes:
    value = payload.values.get(name)
    if not isinstance(value, bytes):
        raise DataError(f"Expected {name} as bytes, got {type(value).__name__}. The message is damaged.")
    return value
