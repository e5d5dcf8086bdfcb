"""Secure sum: a server learns the sum of the clients' vectors and no single one, even if clients drop out.

Each pair of clients agrees on a mask that one adds and the other subtracts, so that masks cancel in the sum. Each
client also adds a mask of its own. It shares the secrets of both masks among all clients, so that for a client that
drops out before its vector arrives the pairwise masks can be restored, and for one whose vector arrived its own mask,
never both. One round has five stages; a client may stop at any of them:

    client → server                                   server → client
    keys      two fresh public keys                   roster      the public keys of all
    shares    sealed shares of both secrets           inbox       the shares for this client
    masked    the masked vector                       survivors   whose vectors arrived
    confirm   a tag over survivors for each peer      confirmed   the tags for this client
    reveal    one share for each peer

`SumClient` and `SumServer` only turn messages into messages; `run_sum` runs them in one process.

Paper: Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning.
Differs: clients confirm the survivors to each other with tags of their pairwise channels, not with signatures; keys are
    bound to the hash of the round and of all participants; seeds have commitments, so that wrong shares are noticed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from discreet.core.errors import DataError, invalid
from discreet.core.randomness import Rng
from discreet.federated.secure_sum import keys, shamir
from discreet.federated.secure_sum.messages import MOST_CLIENTS, Message, Stage, SumSettings, checked
from discreet.federated.secure_sum.ring import Words

_KEYS_BYTES = 2 * keys.PUBLIC_BYTES
_SEED, _KEY = b"s", b"k"  # which secret a revealed share belongs to
_TABLES = ("roster", "shares", "senders", "survivors")
_MOST_TRIES = 500  # subsets of shares that are tried if some of them are wrong


@dataclass
class SumClient:
    """One client in one round. Every method takes the server's last message and can be called once, in order.

    `identity` is the client's long-term signing key and `known` the public keys of all clients, given out by someone
    other than the server. Without them the server must follow the protocol: it could invent participants.

    Guarantee: the server together with c < threshold of n clients learns the sum of the vectors of the other survivors,
        at least threshold - c of them, and nothing else about a vector. A server that does not follow the protocol
        learns no more if `identity` and `known` are set, threshold > 2 n / 3 and c < n / 3. Both hold for parties that
        cannot break X25519, AES-256 and SHA-256, and for a secret `rng`. The sum itself may reveal a client's vector:
        add noise to it (`discreet.federated.secure_sum.noise`).
    """

    client: int
    settings: SumSettings
    rng: Rng = field(default_factory=Rng.secure, repr=False)
    identity: bytes | None = field(default=None, repr=False)
    known: Mapping[int, bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Make fresh keys for this round."""
        if not isinstance(self.client, int) or not 0 <= self.client < 2**64:
            raise invalid("client", self.client, "an integer in [0, 2^64)")
        if (self.identity is None) != (self.known is None):
            raise invalid("known", self.known, "set together with identity", "A signature is checked by all others.")
        self._channel, self._mask = keys.KeyPair.generate(self.rng), keys.KeyPair.generate(self.rng)
        self._seed = self.rng.bytes(shamir.SECRET_BYTES)
        self._expected: Stage | None = None
        self._roster: dict[int, bytes] = {}
        self._context = b""
        self._agreed: dict[int, bytes] = {}  # channel secrets by peer
        self._shares: dict[int, bytes] = {}  # both shares of each peer, 66 bytes
        self._senders: frozenset[int] = frozenset()
        self._survivors: frozenset[int] = frozenset()

    @property
    def survivors(self) -> frozenset[int]:
        """The clients whose vectors are in the sum, as the server named them; empty before `confirm`."""
        return self._survivors

    def saved(self) -> bytes:
        """Return the state between two stages as bytes that `resumed` reads, for a client that is another process.

        It holds the secrets of the round. Keep one copy and replace it before a message is sent: a client that is
        resumed twice from the same state could reveal both shares of a peer.
        """
        tables = {
            "roster": self._roster,
            "shares": self._shares,
            "senders": dict.fromkeys(self._senders, b""),
            "survivors": dict.fromkeys(self._survivors, b""),
        }
        secrets = b"" if self._expected is Stage.KEYS else self._channel.private + self._mask.private + self._seed
        following = Stage.KEYS if self._expected is None else self._expected
        parts = [self._message(following, tables[name]).to_bytes() for name in _TABLES]
        return b"".join(len(part).to_bytes(8, "little") + part for part in [secrets, *parts])

    @classmethod
    def resumed(
        cls,
        client: int,
        settings: SumSettings,
        state: bytes,
        rng: Rng | None = None,
        identity: bytes | None = None,
        known: Mapping[int, bytes] | None = None,
    ) -> SumClient:
        """Return the client whose state was saved after a stage of the same round."""
        parts, position = [], 0
        while position < len(state):
            length = int.from_bytes(state[position : position + 8], "little")
            parts.append(state[position + 8 : position + 8 + length])
            position += 8 + length
        if len(parts) != 1 + len(_TABLES) or len(parts[0]) != 96:
            raise DataError("Expected the state of an unfinished round, got another one. Wait for the next round.")
        resumed = cls(client, settings, rng or Rng.secure(), identity, known)
        tables = [Message.from_bytes(part) for part in parts[1:]]
        resumed._expected = tables[0].stage
        for table in tables:
            checked(table, tables[0].stage, settings, client)
        resumed._channel, resumed._mask = keys.KeyPair.of(parts[0][:32]), keys.KeyPair.of(parts[0][32:64])
        resumed._seed = parts[0][64:]
        resumed._roster, resumed._shares = dict(tables[0].entries), dict(tables[1].entries)
        resumed._senders, resumed._survivors = frozenset(tables[2].entries), frozenset(tables[3].entries)
        resumed._context = keys.context_of(settings, resumed._roster)
        return resumed

    def keys(self) -> Message:
        """Return the public keys of this round, signed if the client has an identity."""
        self._enter(None, Stage.ROSTER)
        public = self._channel.public + self._mask.public
        signature = b"" if self.identity is None else keys.sign(self.identity, self._signed(self.client, public))
        return self._message(Stage.KEYS, body=public + signature)

    def shares(self, roster: Message) -> Message:
        """Return sealed shares of this client's secrets for all participants, after checking who takes part."""
        self._enter(roster, Stage.INBOX)
        self._roster = dict(roster.entries)
        self._check_roster()
        self._context = keys.context_of(self.settings, self._roster)
        points = _points(self._roster)
        seeds = shamir.split(self._seed, list(points.values()), self.settings.threshold, self.rng)
        privates = shamir.split(self._mask.private, list(points.values()), self.settings.threshold, self.rng)
        entries = {}
        for peer, point in points.items():
            both = seeds[point] + privates[point]
            if peer == self.client:
                self._shares[peer] = both
                continue
            entries[peer] = keys.seal(self._pair(peer, b"shares"), both, self._context, self.client, peer)
        committed = keys.commitment(self._seed, self._context, self.client)
        return self._message(Stage.SHARES, entries, committed)

    def masked(self, inbox: Message, words: Words) -> Message:
        """Return the vector, in numbers of the ring, under all masks; it is uniform to everyone else."""
        settings = self.settings
        if words.shape != (settings.length,) or words.dtype != settings.ring.dtype:
            raise DataError(
                f"Expected {settings.length} numbers of type {settings.ring.dtype}, got shape {words.shape} of "
                f"{words.dtype}. Encode the vector for the ring of this round."
            )
        self._enter(inbox, Stage.SURVIVORS)
        self._senders = frozenset(inbox.entries) | {self.client}
        self._check_subset(self._senders, self._roster, "senders of shares")
        for peer, sealed in inbox.entries.items():
            if peer == self.client:
                continue
            both = keys.unseal(self._pair(peer, b"shares"), sealed, self._context, peer, self.client)
            if both is not None and len(both) == 2 * shamir.SHARE_BYTES:
                self._shares[peer] = both
        hidden = settings.ring.reduced(words).copy()
        settings.ring.add_mask(hidden, keys.derived(self._seed, self._context, b"self", self.client))
        for peer in sorted(self._senders - {self.client}):
            key = _pair_key(self._mask, self._roster[peer], self._context, self.client, peer)
            settings.ring.add_mask(hidden, key, subtract=self.client > peer)
        return self._message(Stage.MASKED, body=hidden.tobytes())

    def confirm(self, survivors: Message) -> Message:
        """Return a tag over the survivors for each of them, so that the server cannot name different sets."""
        self._enter(survivors, Stage.CONFIRMED)
        self._survivors = frozenset(survivors.entries)
        self._check_subset(self._survivors, self._senders, "survivors")
        peers = self._survivors - {self.client}
        return self._message(Stage.CONFIRM, {peer: self._tag(self.client, peer) for peer in peers})

    def reveal(self, confirmed: Message) -> Message:
        """Return one share for each peer: of its own mask if it survived, of its pairwise masks if it dropped out.

        Guarantee: never both shares of one peer, and none before `threshold` clients confirmed the same survivors.
        """
        self._enter(confirmed, Stage.KEYS)  # nothing is expected after this
        valid = {self.client} | {
            peer
            for peer, tag in confirmed.entries.items()
            if peer in self._survivors and peer != self.client and keys.same(tag, self._tag(peer, self.client))
        }
        if len(valid) < self.settings.threshold:
            raise DataError(
                f"Expected {self.settings.threshold} clients to confirm the same survivors, got {len(valid)}. The "
                "server may have named different survivors to others; nothing is revealed."
            )
        entries = {}
        for peer, both in self._shares.items():
            seed, private = both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES :]
            if peer in self._survivors:
                entries[peer] = _SEED + seed
            elif peer in self._senders:
                entries[peer] = _KEY + private
        self._shares, self._agreed, self._seed = {}, {}, b""
        return self._message(Stage.REVEAL, entries)

    def _enter(self, message: Message | None, following: Stage) -> None:
        """Check that a message is the expected one and move to the following stage; a stage cannot be repeated."""
        if message is None:
            if self._expected is not None:
                raise DataError("Expected keys to be sent once. Start another round with another SumClient.")
        else:
            if self._expected is None or self._expected is Stage.KEYS:
                raise DataError("Expected a client that takes part, got one that has not begun or has ended its round.")
            checked(message, self._expected, self.settings, self.client)
        self._expected = following

    def _check_roster(self) -> None:
        count, threshold = len(self._roster), self.settings.threshold
        own = self._roster.get(self.client, b"")
        if own[:_KEYS_BYTES] != self._channel.public + self._mask.public:
            raise DataError("Expected this client's own keys in the roster, got others. The server is not honest.")
        least = 3 * threshold > 2 * count if self.known is not None else 2 * threshold > count
        if count < threshold or not least:
            rule = "2/3" if self.known is not None else "1/2"
            raise DataError(
                f"Expected a threshold of at most {count} and more than {rule} of the {count} clients, got {threshold}."
            )
        lengths = {_KEYS_BYTES + keys.SIGNATURE_BYTES} | (set() if self.known is not None else {_KEYS_BYTES})
        public = [key for entry in self._roster.values() for key in (_channel_key(entry), _mask_key(entry))]
        if len(set(public)) != len(public) or not {len(entry) for entry in self._roster.values()} <= lengths:
            raise DataError("Expected two different keys of each client, got a roster with others. Reject the round.")
        for peer, entry in self._roster.items():
            text = self._signed(peer, entry[:_KEYS_BYTES])
            if self.known is not None and not keys.is_signed(self.known.get(peer, b""), entry[_KEYS_BYTES:], text):
                raise DataError(f"Expected keys signed by client {peer}, got others. The server may have made them.")

    def _check_subset(self, clients: Collection[int], allowed: Collection[int], what: str) -> None:
        if not set(clients) <= set(allowed) or self.client not in clients or len(clients) < self.settings.threshold:
            raise DataError(
                f"Expected {self.settings.threshold} or more {what} of this round with this client, got "
                f"{len(clients)}. Reject the round."
            )

    def _tag(self, sender: int, receiver: int) -> bytes:
        peer = receiver if sender == self.client else sender
        sets = keys.named(self._senders) + b"/" + keys.named(self._survivors)
        return keys.tag(self._pair(peer, b"confirm"), self._context + sets, sender, receiver)

    def _pair(self, peer: int, purpose: bytes) -> bytes:
        """Return the key of the channel to a peer for one purpose."""
        if peer not in self._agreed:
            self._agreed[peer] = self._channel.agree(_channel_key(self._roster[peer]))
        return keys.derived(self._agreed[peer], self._context, purpose, self.client, peer)

    def _signed(self, client: int, public: bytes) -> bytes:
        return self.settings.digest() + keys.listed({client: public})

    def _message(self, stage: Stage, entries: Mapping[int, bytes] | None = None, body: bytes = b"") -> Message:
        return Message(stage, self.settings.session, self.settings.round, self.client, entries or {}, body)


@dataclass
class SumServer:
    """The server in one round: `receive` takes the clients' messages, `advance` closes a stage and returns its own.

    It keeps the running sum of masked vectors only. With `keep_record` it also keeps every message that it received, in
    `record`: the server's view, for attacks.
    """

    settings: SumSettings
    invited: Collection[int] | None = None
    keep_record: bool = False
    record: list[Message] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        """Wait for keys."""
        self.stage = Stage.KEYS
        self._received: dict[int, Message] = {}
        self._roster: dict[int, bytes] = {}
        self._context = b""
        self._commitments: dict[int, bytes] = {}
        self._sealed: dict[int, Mapping[int, bytes]] = {}
        self._survivors: frozenset[int] = frozenset()
        self._total = np.zeros(self.settings.length, dtype=self.settings.ring.dtype)
        self._result: Words | None = None

    def receive(self, message: Message) -> None:
        """Take a message of the current stage; a wrong, repeated or uninvited one raises DataError and changes nothing.

        The sum of a client's vector is final when its message is taken.
        """
        checked(message, self.stage, self.settings)
        allowed = self._allowed()
        if allowed is not None and message.client not in allowed:
            raise DataError(f"Expected a message of a participant of this stage, got one of client {message.client}.")
        if message.client in self._received:
            raise DataError(f"Expected one message of client {message.client}, got another one. The first one counts.")
        self._check(message)
        if self.stage is Stage.MASKED:
            words = np.frombuffer(message.body, dtype=self.settings.ring.dtype)
            np.add(self._total, words, out=self._total)
            self._received[message.client] = Message(message.stage, message.session, message.round, message.client)
        else:
            self._received[message.client] = message
        if self.keep_record:
            self.record.append(message)

    def advance(self) -> dict[int, Message]:
        """Close the current stage and return the message for each remaining client; with the last stage, none.

        Raises DataError if fewer than `threshold` clients are left: the round has no result.
        """
        received, self._received = self._received, {}
        if len(received) < self.settings.threshold:
            raise DataError(
                f"Expected {self.settings.threshold} clients at the stage {self.stage.name.lower()}, got "
                f"{len(received)}. The round has no result; start another one."
            )
        if self.stage is Stage.KEYS:
            self._roster = {client: message.body for client, message in received.items()}
            self._context = keys.context_of(self.settings, self._roster)
            return self._send(Stage.ROSTER, dict.fromkeys(received, self._roster))
        if self.stage is Stage.SHARES:
            self._commitments = {client: message.body for client, message in received.items()}
            self._sealed = {client: message.entries for client, message in received.items()}
            return self._send(
                Stage.INBOX,
                {
                    client: {peer: self._sealed[peer][client] for peer in received if peer != client}
                    for client in received
                },
            )
        if self.stage is Stage.MASKED:
            self._survivors = frozenset(received)
            entries = dict.fromkeys(self._survivors, b"")
            return self._send(Stage.SURVIVORS, dict.fromkeys(received, entries))
        if self.stage is Stage.CONFIRM:
            tags = {client: message.entries for client, message in received.items()}
            return self._send(
                Stage.CONFIRMED,
                {client: {peer: tags[peer][client] for peer in tags if peer != client} for client in received},
            )
        if self._result is None:
            self._result = self._unmasked({client: message.entries for client, message in received.items()})
        return {}

    def result(self) -> Words:
        """Return the sum of the survivors' vectors, in numbers of the ring."""
        if self._result is None:
            raise DataError("Expected a finished round. Call advance after the clients revealed their shares.")
        return self._result

    @property
    def survivors(self) -> frozenset[int]:
        """The clients whose vectors are in the sum, known after the masked vectors arrived."""
        return self._survivors

    def _allowed(self) -> frozenset[int] | None:
        if self.stage is Stage.KEYS:
            return None if self.invited is None else frozenset(self.invited)
        if self.stage is Stage.SHARES:
            return frozenset(self._roster)
        if self.stage is Stage.MASKED:
            return frozenset(self._commitments)
        return self._survivors

    def _check(self, message: Message) -> None:
        """Check the form of a message, so that one client cannot stop the round."""
        peers: Collection[int] = ()
        sizes: Iterable[int]
        if self.stage is Stage.KEYS:
            if len(self._received) >= MOST_CLIENTS:
                raise DataError(f"Expected at most {MOST_CLIENTS} clients.")
            sizes = (_KEYS_BYTES, _KEYS_BYTES + keys.SIGNATURE_BYTES)
        elif self.stage is Stage.SHARES:
            peers, sizes = self._roster.keys() - {message.client}, (keys.TAG_BYTES,)
        elif self.stage is Stage.MASKED:
            sizes = (self.settings.length * self.settings.ring.dtype.itemsize,)
        elif self.stage is Stage.CONFIRM:
            peers, sizes = self._survivors - {message.client}, (0,)
        else:
            peers, sizes = message.entries.keys() & self._commitments.keys(), (0,)
        if len(message.body) not in sizes or set(message.entries) != set(peers):
            raise DataError(f"Expected a complete message of client {message.client}, got one of another form.")
        if self.stage is Stage.MASKED and self.settings.ring.bits not in (16, 32, 64):
            words = np.frombuffer(message.body, dtype=self.settings.ring.dtype)
            if int(words.max(initial=0)) >> self.settings.ring.bits:
                raise DataError(f"Expected numbers below 2^{self.settings.ring.bits} of client {message.client}.")

    def _send(self, stage: Stage, entries: Mapping[int, Mapping[int, bytes]]) -> dict[int, Message]:
        self.stage = Stage(stage + 1)
        session, number = self.settings.session, self.settings.round
        return {client: Message(stage, session, number, client, own) for client, own in entries.items()}

    def _unmasked(self, revealed: Mapping[int, Mapping[int, bytes]]) -> Words:
        ring = self.settings.ring
        total = ring.reduced(self._total).copy()
        for client in self._survivors:
            seed = self._restored(client, _SEED, revealed)
            ring.add_mask(total, keys.derived(seed, self._context, b"self", client), subtract=True)
        for client in self._commitments.keys() - self._survivors:
            pair = keys.KeyPair.of(self._restored(client, _KEY, revealed))
            for peer in self._survivors:  # add what the missing vector would have held
                key = _pair_key(pair, self._roster[peer], self._context, client, peer)
                ring.add_mask(total, key, subtract=client > peer)
        return total

    def _restored(self, client: int, kind: bytes, revealed: Mapping[int, Mapping[int, bytes]]) -> bytes:
        """Return a secret of a client that matches its commitment or public key, from any shares that do."""
        points = _points(self._roster)
        shares = {
            points[peer]: entries[client][1:]
            for peer, entries in revealed.items()
            if entries.get(client, b"")[:1] == kind and len(entries[client]) == 1 + shamir.SHARE_BYTES
        }
        chosen = itertools.combinations(sorted(shares), self.settings.threshold)
        for subset in itertools.islice(chosen, _MOST_TRIES):
            try:
                secret = shamir.combine({point: shares[point] for point in subset})
            except DataError:
                continue
            if kind == _SEED:
                right = keys.commitment(secret, self._context, client) == self._commitments[client]
            else:
                right = keys.KeyPair.of(secret).public == _mask_key(self._roster[client])
            if right:
                return secret
        raise DataError(
            f"Expected {self.settings.threshold} shares that restore a secret of client {client}, got {len(shares)} "
            "shares, and none of their combinations does. The round has no result; start another one."
        )


def _points(roster: Mapping[int, bytes]) -> dict[int, int]:
    """Return the point of each client's shares: its rank, from 1."""
    return {client: rank for rank, client in enumerate(sorted(roster), start=1)}


def _channel_key(entry: bytes) -> bytes:
    return entry[: keys.PUBLIC_BYTES]


def _mask_key(entry: bytes) -> bytes:
    return entry[keys.PUBLIC_BYTES : _KEYS_BYTES]


def _pair_key(pair: keys.KeyPair, entry: bytes, context: bytes, client: int, peer: int) -> bytes:
    return keys.derived(pair.agree(_mask_key(entry)), context, b"mask", client, peer)


def run_sum(
    settings: SumSettings,
    vectors: Mapping[int, Words],
    *,
    dropped: Mapping[Stage, Collection[int]] | None = None,
    rng: Rng | None = None,
    keep_record: bool = False,
) -> SumServer:
    """Run one round in this process and return the server; clients in `dropped[stage]` do not send that stage.

    Messages pass through their bytes, as over a network.

    Args:
        settings: The settings of the round.
        vectors: The vector of each client.
        dropped: The clients that do not send a stage, by stage.
        rng: The source of keys and masks; by default the operating system.
        keep_record: Whether the server keeps the messages.

    >>> from discreet.federated.secure_sum.ring import FixedPoint, Ring
    >>> fixed = FixedPoint(Ring(32), fraction_bits=16, terms=3)
    >>> settings = SumSettings(bytes(16), round=1, threshold=2, length=2)
    >>> vectors = {client: fixed.encode(np.array([client, 0.25])) for client in (1, 2, 3)}
    >>> server = run_sum(settings, vectors, dropped={Stage.MASKED: [3]})
    >>> fixed.decode(server.result()).tolist(), sorted(server.survivors)
    ([3.0, 0.5], [1, 2])
    """
    source = rng or Rng.secure()
    server = SumServer(settings, invited=frozenset(vectors), keep_record=keep_record)
    clients = {client: SumClient(client, settings, source.fork("client", client)) for client in vectors}
    gone: set[int] = set()
    inbox: dict[int, Message | None] = dict.fromkeys(vectors)
    for stage in (Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.CONFIRM, Stage.REVEAL):
        gone |= set((dropped or {}).get(stage, ()))
        for client, message in inbox.items():
            if client not in gone:
                reply = _reply(clients[client], stage, message, vectors[client])
                server.receive(Message.from_bytes(reply.to_bytes()))
        inbox = {
            client: Message.from_bytes(message.to_bytes())
            for client, message in server.advance().items()
            if client not in gone
        }
    return server


def _reply(client: SumClient, stage: Stage, message: Message | None, words: Words) -> Message:
    if message is None:
        return client.keys()
    if stage is Stage.SHARES:
        return client.shares(message)
    if stage is Stage.MASKED:
        return client.masked(message, words)
    return client.confirm(message) if stage is Stage.CONFIRM else client.reveal(message)
