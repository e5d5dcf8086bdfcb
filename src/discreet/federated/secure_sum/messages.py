"""The messages of a secure sum as frozen values, and their bytes: fixed headers and lengths, nothing is executed.

A message is `DSS1`, the stage (1 byte), the session (16 bytes), the round and the client (8 bytes each), the number of
entries (4 bytes), each entry as a client (8 bytes), a length (4 bytes) and its bytes, then the length of the body
(8 bytes) and the body. Integers are little-endian. Entries are sorted by client, each client once.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from discreet.core.errors import DataError, invalid, shown, whole
from discreet.federated.secure_sum.ring import Ring

SESSION_BYTES = 16
MOST_CLIENTS = 4096
_MAGIC = b"DSS1"
_HEAD = struct.Struct("<4sB16sQQI")
_ENTRY = struct.Struct("<QI")
_BODY = struct.Struct("<Q")
_LARGEST_ENTRY = 1 << 12


class Stage(enum.IntEnum):
    """The stages of a round in order: odd ones go to the server, even ones to a client."""

    KEYS = 1
    ROSTER = 2
    SHARES = 3
    INBOX = 4
    MASKED = 5
    SURVIVORS = 6
    CONFIRM = 7
    CONFIRMED = 8
    REVEAL = 9


@dataclass(frozen=True)
class SumSettings:
    """The public facts of one sum, the same for all clients: which round, how many numbers, how many must survive.

    `threshold` clients must stay until the end; fewer than that learn nothing together about another one. A server
    that follows the protocol needs threshold > n / 2, one that does not threshold > 2 n / 3. `about` holds other facts
    that must be the same for all, such as the sum of their weights.
    """

    session: bytes
    round: int
    threshold: int
    length: int
    ring: Ring = field(default_factory=Ring)
    about: bytes = b""

    def __post_init__(self) -> None:
        """Check the fields."""
        if not isinstance(self.session, bytes) or len(self.session) != SESSION_BYTES:
            raise invalid("session", self.session, f"{SESSION_BYTES} random bytes", "Use a new one for every run.")
        whole("round", self.round, 0)
        whole("threshold", self.threshold, 2, "A sum of one client is its update.")
        whole("length", self.length)

    def digest(self) -> bytes:
        """Return a hash of all fields."""
        numbers = struct.pack("<QQQQ", self.round, self.threshold, self.length, self.ring.bits)
        return hashlib.sha256(b"discreet secure sum 1" + self.session + numbers + self.about).digest()


@dataclass(frozen=True)
class Message:
    """One message of a round: `client` sends it to the server (odd stages) or receives it (even stages)."""

    stage: Stage
    session: bytes
    round: int
    client: int
    entries: Mapping[int, bytes] = field(default_factory=dict)
    body: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        parts = [
            _HEAD.pack(_MAGIC, self.stage, self.session, self.round, self.client, len(self.entries)),
            *(_ENTRY.pack(client, len(self.entries[client])) + self.entries[client] for client in sorted(self.entries)),
            _BODY.pack(len(self.body)),
            self.body,
        ]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """Return the message of `to_bytes`; anything else raises DataError."""
        try:
            magic, stage, session, number, client, count = _HEAD.unpack_from(data)
            if magic != _MAGIC or count > MOST_CLIENTS:
                raise _malformed(data)
            position, entries, last = _HEAD.size, {}, -1
            for _ in range(count):
                peer, length = _ENTRY.unpack_from(data, position)
                position += _ENTRY.size
                value = data[position : position + length]
                if peer <= last or length > _LARGEST_ENTRY or len(value) != length:
                    raise _malformed(data)
                entries[peer], last, position = bytes(value), peer, position + length
            (length,) = _BODY.unpack_from(data, position)
            body = bytes(data[position + _BODY.size :])
            if len(body) != length:
                raise _malformed(data)
            return cls(Stage(stage), session, number, client, entries, body)
        except (struct.error, ValueError, TypeError):
            raise _malformed(data) from None


def _malformed(data: object) -> DataError:
    size = f"{len(data)} bytes" if isinstance(data, bytes) else shown(data, 40)
    return DataError(f"Expected a message of a secure sum, got {size} of another form. It is damaged; reject it.")


def checked(message: Message, stage: Stage, settings: SumSettings, client: int | None = None) -> Message:
    """Return a message of this stage, session and round, and of this client if given; else raise DataError."""
    if not isinstance(message, Message) or message.stage is not stage:
        got = message.stage.name.lower() if isinstance(message, Message) else type(message).__name__
        raise DataError(f"Expected a message of the stage {stage.name.lower()}, got {got}. Reject it.")
    if message.session != settings.session or message.round != settings.round:
        raise DataError(
            f"Expected a message of round {settings.round} of this session, got round {message.round}. A message of "
            "another round is not accepted again."
        )
    if client is not None and message.client != client:
        raise DataError(f"Expected a message for client {client}, got one for client {message.client}.")
    return message
