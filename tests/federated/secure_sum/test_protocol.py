"""The secure sum: exact for any drop-outs, uniform masked vectors, wrong and replayed messages rejected."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Rng
from discreet.core.errors import DataError, SettingError
from discreet.federated.secure_sum import keys as sum_keys
from discreet.federated.secure_sum.messages import Message, Stage, SumSettings
from discreet.federated.secure_sum.protocol import SumClient, SumServer, run_sum
from discreet.federated.secure_sum.ring import FixedPoint, Ring

STAGES = (Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.CONFIRM, Stage.REVEAL)
SESSION = bytes(range(16))


def about(threshold: int = 2, length: int = 4, bits: int = 32, number: int = 1) -> SumSettings:
    return SumSettings(SESSION, number, threshold, length, Ring(bits))


def vectors_of(count: int, length: int = 4, bits: int = 32, seed: int = 0) -> dict[int, np.ndarray]:
    ring, rng = Ring(bits), np.random.default_rng(seed)
    return {10 + 3 * i: ring.words(rng.integers(-1000, 1000, length)) for i in range(count)}


def total_of(vectors: dict[int, np.ndarray], clients: frozenset[int], ring: Ring) -> np.ndarray:
    total = np.zeros_like(next(iter(vectors.values())))
    for client in clients:
        total = ring.reduced(total + vectors[client])
    return total


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_drop_outs_that_leave_the_threshold_give_the_exact_sum(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 8))
    threshold = data.draw(st.integers(max(2, count // 2 + 1), count))
    bits = data.draw(st.sampled_from([16, 24, 32, 64]))
    vectors = vectors_of(count, bits=bits)
    gone = data.draw(st.permutations(sorted(vectors)))[: data.draw(st.integers(0, count - threshold))]
    # those that never send keys are no participants: the threshold of the others is then above one half of fewer
    when = {client: data.draw(st.sampled_from(STAGES)) for client in gone}
    dropped = {stage: [client for client in gone if when[client] is stage] for stage in STAGES}
    server = run_sum(about(threshold, bits=bits), vectors, dropped=dropped, rng=Rng(3))
    never = {client for client in gone if when[client] <= Stage.MASKED}
    assert server.survivors == frozenset(vectors) - never
    np.testing.assert_array_equal(server.result(), total_of(vectors, server.survivors, Ring(bits)))


@pytest.mark.parametrize("stage", STAGES)
def test_eight_clients_and_every_two_that_drop_out_at_a_stage(stage: Stage) -> None:
    fixed = FixedPoint(Ring(32), 16, terms=8)
    numbers = np.random.default_rng(1).normal(size=(8, 50))
    vectors = {client: fixed.encode(numbers[client]) for client in range(8)}
    for gone in itertools.combinations(range(8), 2):
        server = run_sum(about(6, 50), vectors, dropped={stage: gone}, rng=Rng(4))
        kept = [c for c in range(8) if stage > Stage.MASKED or c not in gone]
        assert sorted(server.survivors) == kept
        exact = np.rint(numbers[kept] * 2**16).sum(0) / 2**16
        np.testing.assert_array_equal(fixed.decode(server.result()), exact)
        assert np.abs(exact - numbers[kept].sum(0)).max() <= len(kept) * fixed.step / 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_round_with_too_few_clients_has_no_result(stage: Stage) -> None:
    with pytest.raises(DataError, match="no result"):
        run_sum(about(6), vectors_of(8), dropped={stage: [10, 13, 16]}, rng=Rng(4))


def test_the_record_of_the_server_holds_no_update() -> None:
    """Zeros, ones and a random vector: every masked vector is uniform (chi-square of its bytes), and sums are right."""
    length, clients = 40_000, 4
    ring = Ring(32)
    vectors = {c: ring.words(np.full(length, c // 2, dtype=np.int64)) for c in range(clients)}
    server = run_sum(about(3, length), vectors, rng=Rng(8), keep_record=True)
    masked = [np.frombuffer(m.body, dtype="<u4") for m in server.record if m.stage is Stage.MASKED]
    assert len(masked) == clients
    differences = [masked[a] - masked[b] for a, b in itertools.combinations(range(clients), 2)]
    for words in [*masked, *differences]:
        counts = np.bincount(words.view(np.uint8) if words.flags.c_contiguous else words, minlength=256)
        expected = 4 * length / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert 150 < chi_square < 380  # 255 degrees of freedom: outside with probability 1e-6
        assert np.abs(np.corrcoef(words[:-1].astype(float), words[1:].astype(float))[0, 1]) < 0.03
    np.testing.assert_array_equal(server.result(), total_of(vectors, frozenset(vectors), ring))
    # no message but the masked vectors is long enough to hold an update
    assert all(len(m.to_bytes()) < 4096 for m in server.record if m.stage is not Stage.MASKED)


def test_the_sum_of_some_masked_vectors_stays_masked() -> None:
    ring = Ring(32)
    vectors = {c: ring.words(np.zeros(2000, dtype=np.int64)) for c in range(4)}
    server = run_sum(about(3, 2000), vectors, rng=Rng(8), keep_record=True)
    masked = {m.client: np.frombuffer(m.body, dtype="<u4") for m in server.record if m.stage is Stage.MASKED}
    for size in (1, 2, 3, 4):  # also all four: the masks of the clients' own seeds remain
        for subset in itertools.combinations(range(4), size):
            total = sum((masked[c] for c in subset), np.zeros(2000, dtype="<u4"))
            assert (total == 0).mean() < 0.01


class Talk:
    """Clients and a server that can be stopped before any stage."""

    def __init__(self, count: int = 3, threshold: int = 2, **options: object) -> None:
        self.settings = about(threshold)
        self.vectors = vectors_of(count)
        self.ids = sorted(self.vectors)
        self.clients = {c: SumClient(c, self.settings, Rng(c), **options) for c in self.ids}  # type: ignore[arg-type]
        self.server = SumServer(self.settings, self.ids)
        self.sent: dict[tuple[int, Stage], Message] = {}
        self.inbox: dict[int, Message] = {}

    def say(self, client: int, stage: Stage) -> Message:
        one = self.clients[client]
        if stage is Stage.KEYS:
            return one.keys()
        message = self.inbox[client]
        if stage is Stage.SHARES:
            return one.shares(message)
        if stage is Stage.MASKED:
            return one.masked(message, self.vectors[client])
        return one.confirm(message) if stage is Stage.CONFIRM else one.reveal(message)

    def until(self, last: Stage) -> "Talk":
        """Run all stages before `last`."""
        for stage in STAGES[: STAGES.index(last)]:
            for client in self.ids:
                self.sent[client, stage] = self.say(client, stage)
                self.server.receive(self.sent[client, stage])
            self.inbox = self.server.advance()
        return self


@pytest.mark.parametrize("stage", STAGES)
def test_the_server_rejects_wrong_messages_and_the_round_survives(stage: Stage) -> None:
    talk = Talk().until(stage)
    first, second, third = talk.ids
    right = talk.say(first, stage)
    other_stage = Stage.MASKED if stage is not Stage.MASKED else Stage.KEYS
    wrong = [
        replace(right, round=2),  # replayed from another round
        replace(right, session=bytes(16)),
        replace(right, stage=other_stage),
        replace(right, client=99),  # not invited
        replace(right, body=right.body + b"x"),
        replace(right, entries={**right.entries, 77: b"x"}),
    ]
    if stage is not Stage.KEYS:  # the keys of the stage before
        wrong.append(talk.sent[first, STAGES[STAGES.index(stage) - 1]])
    for message in wrong:
        with pytest.raises(DataError):
            talk.server.receive(message)
    talk.server.receive(right)
    with pytest.raises(DataError, match="another one"):
        talk.server.receive(right)
    for client in (second, third):
        talk.server.receive(talk.say(client, stage))
    talk.inbox = talk.server.advance()
    for later in STAGES[STAGES.index(stage) + 1 :]:
        for client in talk.ids:
            talk.server.receive(talk.say(client, later))
        talk.inbox = talk.server.advance()
    np.testing.assert_array_equal(talk.server.result(), total_of(talk.vectors, frozenset(talk.ids), Ring(32)))


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_client_rejects_messages_of_others_and_answers_once(stage: Stage) -> None:
    talk = Talk().until(stage)
    first, second, _ = talk.ids
    right = talk.inbox[first]
    wrong = [replace(right, round=7), replace(right, session=bytes(16)), talk.inbox[second]]
    for message in [*wrong, replace(right, stage=Stage.REVEAL)]:
        talk.inbox[first] = message
        with pytest.raises(DataError):
            talk.say(first, stage)
    talk.inbox[first] = right
    talk.say(first, stage)
    with pytest.raises(DataError):
        talk.say(first, stage)


def test_a_client_never_gives_both_shares_of_a_peer() -> None:
    """A server that names other survivors to one client gets nothing from it, and both kinds from nobody."""
    talk = Talk(4, 3).until(Stage.CONFIRM)
    first, *others = talk.ids
    honest = {client: talk.say(client, Stage.CONFIRM) for client in others}
    fewer = replace(talk.inbox[first], entries=dict.fromkeys(talk.ids[:3], b""))  # the last one "dropped out"
    told = talk.clients[first].confirm(fewer)
    assert set(told.entries) == set(talk.ids[1:3])
    confirmed = Message(Stage.CONFIRMED, SESSION, 1, first, {c: honest[c].entries[first] for c in others})
    with pytest.raises(DataError, match="same survivors"):
        talk.clients[first].reveal(confirmed)
    with pytest.raises(DataError):  # the round has ended for this client
        talk.clients[first].reveal(confirmed)
    # the others agree without it: three of four confirmed the same set
    for client in others:
        tags = {peer: honest[peer].entries[client] for peer in others if peer != client}
        tags[first] = told.entries.get(client, bytes(32))  # a tag over another set does not count
        shares = talk.clients[client].reveal(Message(Stage.CONFIRMED, SESSION, 1, client, tags))
        assert {share[:1] for share in shares.entries.values()} == {b"s"}


def test_a_dropped_client_gets_the_other_kind_of_share() -> None:
    vectors = vectors_of(4)
    server = run_sum(about(3), vectors, dropped={Stage.MASKED: [10]}, rng=Rng(1), keep_record=True)
    for message in server.record:
        if message.stage is Stage.REVEAL:
            kinds = {client: share[:1] for client, share in message.entries.items()}
            assert kinds == {10: b"k", 13: b"s", 16: b"s", 19: b"s"}


def test_tags_of_another_set_or_of_an_outsider_do_not_count() -> None:
    talk = Talk(3, 3).until(Stage.REVEAL)
    first = talk.ids[0]
    right = talk.inbox[first]
    damaged = {client: bytes(32) for client in right.entries}
    with pytest.raises(DataError, match="same survivors"):
        talk.clients[first].reveal(replace(right, entries={**damaged, 55: bytes(32)}))


@pytest.mark.parametrize("change", ["own", "twice", "few", "short"])
def test_a_client_checks_the_roster(change: str) -> None:
    talk = Talk(3, 2).until(Stage.SHARES)
    first, second, third = talk.ids
    roster = dict(talk.inbox[first].entries)
    if change == "own":
        roster[first] = roster[second]
    elif change == "twice":
        roster[third] = roster[second]
    elif change == "few":
        roster = {c: roster.get(c, bytes([c]) * 64) for c in (first, second, third, 50, 51)}  # 2 of 5 is below one half
    else:
        roster[third] = roster[third][:40]
    with pytest.raises(DataError):
        talk.clients[first].shares(replace(talk.inbox[first], entries=roster))


def test_survivors_must_be_participants_with_the_client_itself() -> None:
    for survivors in ([13, 16], [10, 13, 99], [10]):
        talk = Talk(3, 2).until(Stage.CONFIRM)
        message = replace(talk.inbox[10], entries=dict.fromkeys(survivors, b""))
        with pytest.raises(DataError, match="survivors"):
            talk.clients[10].confirm(message)


def test_a_vector_of_another_shape_is_rejected_before_anything_is_sent() -> None:
    talk = Talk().until(Stage.MASKED)
    for words in (np.zeros(3, np.uint32), np.zeros(4, np.uint64), np.zeros((4, 1), np.uint32)):
        with pytest.raises(DataError):
            talk.clients[10].masked(talk.inbox[10], words)
    talk.clients[10].masked(talk.inbox[10], np.zeros(4, np.uint32))


def test_signed_keys_keep_a_server_from_inventing_a_client() -> None:
    identities = {client: bytes([client]) * 32 for client in (10, 13, 16)}
    known = {client: sum_keys.identity_of(identity) for client, identity in identities.items()}

    def talk_with(threshold: int) -> Talk:
        talk = Talk(3, threshold)
        talk.clients = {c: SumClient(c, talk.settings, Rng(c), identity=identities[c], known=known) for c in identities}
        return talk

    talk = talk_with(3).until(Stage.REVEAL)
    for client in talk.ids:
        talk.server.receive(talk.say(client, Stage.REVEAL))
    talk.server.advance()
    np.testing.assert_array_equal(talk.server.result(), total_of(talk.vectors, frozenset(talk.ids), Ring(32)))

    talk = talk_with(3).until(Stage.SHARES)
    forged = SumClient(16, talk.settings, Rng(99), identity=b"\x63" * 32, known=known).keys()
    roster = {**talk.inbox[10].entries, 16: forged.body}
    with pytest.raises(DataError, match="signed"):
        talk.clients[10].shares(replace(talk.inbox[10], entries=roster))
    with pytest.raises(DataError, match="2/3"):
        talk_with(2).until(Stage.MASKED)
    with pytest.raises(SettingError):
        SumClient(1, about(), identity=bytes(32))


def test_wrong_shares_of_one_client_are_noticed_and_left_out() -> None:
    for spoiled, ends in ((1, True), (2, False)):
        talk = Talk(4, 3).until(Stage.REVEAL)
        for position, client in enumerate(talk.ids):
            message = talk.say(client, Stage.REVEAL)
            if position < spoiled:
                entries = {c: share[:-1] + bytes([share[-1] ^ 1]) for c, share in message.entries.items()}
                message = replace(message, entries=entries)
            talk.server.receive(message)
        if ends:
            talk.server.advance()
            np.testing.assert_array_equal(talk.server.result(), total_of(talk.vectors, frozenset(talk.ids), Ring(32)))
        else:
            with pytest.raises(DataError, match="shares"):
                talk.server.advance()


def test_keys_are_fresh_in_every_round() -> None:
    first, second = (SumClient(1, about(number=number)).keys().body for number in (1, 2))
    assert first[:32] != second[:32] and first[32:] != second[32:] and first[:32] != first[32:]


def test_a_client_resumes_from_its_saved_state_at_every_stage() -> None:
    talk = Talk(3, 2)
    for stage in STAGES:
        for client in talk.ids:
            message = talk.say(client, stage)
            state = talk.clients[client].saved()
            if stage is not Stage.REVEAL:
                talk.clients[client] = SumClient.resumed(client, talk.settings, state)
            else:
                with pytest.raises(DataError):
                    SumClient.resumed(client, talk.settings, state)
            talk.server.receive(message)
        talk.inbox = talk.server.advance()
    np.testing.assert_array_equal(talk.server.result(), total_of(talk.vectors, frozenset(talk.ids), Ring(32)))
    with pytest.raises(DataError):
        SumClient.resumed(10, talk.settings, b"damaged")


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(Stage),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.integers(0, 2**64 - 1), st.binary(max_size=80), max_size=5),
    st.binary(max_size=200),
)
def test_messages_come_back_from_their_bytes(
    stage: Stage, session: bytes, number: int, client: int, entries: dict[int, bytes], body: bytes
) -> None:
    message = Message(stage, session, number, client, entries, body)
    data = message.to_bytes()
    assert Message.from_bytes(data) == message
    for damaged in (data[:-1], data + b"x", b"X" + data[1:], data[:4] + b"\x63" + data[5:], b"", data[:20]):
        with pytest.raises(DataError):
            Message.from_bytes(damaged)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120))
def test_random_bytes_are_no_message(data: bytes) -> None:
    with pytest.raises(DataError):
        Message.from_bytes(b"DSS1" + data)


def test_settings_are_checked_and_bound_to_the_keys() -> None:
    for wrong in ({"session": b"short"}, {"threshold": 1}, {"length": 0}, {"round": -1}):
        with pytest.raises(SettingError):
            replace(about(), **wrong)
    digests = {replace(about(), **one).digest() for one in ({}, {"round": 2}, {"about": b"w"}, {"ring": Ring(31)})}
    assert len(digests) == 4
