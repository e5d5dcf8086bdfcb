"""The secure sum as an aggregation: the same mean, no single update, drop-outs at every stage, noise of all clients."""

import itertools
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from tests.federated.rounds import random_updates, run_round

from discreet.core.errors import DataError, SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.federated.aggregation import Local, Payload, RoundError, Update
from discreet.federated.secure_sum.aggregations import SecureSum
from discreet.federated.secure_sum.messages import Message
from discreet.federated.secure_sum.ring import Ring

STAGES = ("keys", "shares", "update", "confirm", "reveal")


def mean_of(updates: dict[int, Update]) -> dict[str, np.ndarray]:
    total = sum(update.weight for update in updates.values())
    names = next(iter(updates.values())).arrays
    return {n: sum(u.weight * u.arrays[n].astype(np.float64) for u in updates.values()) / total for n in names}


def values_of(aggregation: SecureSum) -> dict[str, Any]:
    return {field.name: getattr(aggregation, field.name) for field in fields(aggregation)}


@pytest.mark.parametrize("stage", STAGES)
def test_eight_clients_two_of_which_drop_out(stage: str) -> None:
    updates = random_updates(8)
    for gone in itertools.islice(itertools.combinations(range(8), 2), 0, None, 9):
        total = run_round(SecureSum(), updates, drop={stage: gone})
        kept = {c: u for c, u in updates.items() if STAGES.index(stage) > 2 or c not in gone}
        assert total.clients == tuple(kept) and total.weight == sum(u.weight for u in kept.values())
        step = 2.0**-24 * sum(u.weight for u in updates.values())
        for name, value in mean_of(kept).items():
            assert (
                np.abs(total.arrays[name] / total.weight - value).max() <= len(kept) * step / 2 / total.weight + 1e-12
            )
            assert total.arrays[name].shape == updates[0].arrays[name].shape


def test_what_the_server_receives_is_the_same_for_other_updates() -> None:
    """The server's view holds keys, sealed shares and uniform numbers; only the sum depends on the updates."""
    updates = random_updates(4, size=2000)
    seen: list[tuple[str, int, Payload]] = []
    run_round(SecureSum(), updates, seen=seen)
    masked = [payload.arrays["masked"] for stage, _, payload in seen if stage == "update"]
    assert len(masked) == 4
    for words in masked:
        counts = np.bincount(np.ascontiguousarray(words).view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert 150 < ((counts - expected) ** 2 / expected).sum() < 380  # 255 degrees of freedom
    for stage, client, payload in seen:
        assert set(payload.arrays) == ({"masked"} if stage == "update" else set())
        assert set(payload.values) == {"message"}
        assert Message.from_bytes(payload.values["message"]).client == client  # type: ignore[arg-type]


def test_too_few_clients_give_no_result() -> None:
    for stage in STAGES:
        with pytest.raises(RoundError):
            run_round(SecureSum(), random_updates(8), drop={stage: {0, 1, 2}})
    with pytest.raises(RoundError):
        run_round(SecureSum(threshold=4), random_updates(3))


def test_an_update_with_nan_or_of_huge_size_takes_no_part() -> None:
    updates = random_updates(4)
    for wrong in (np.nan, 1e9):
        arrays = {name: np.full_like(value, wrong) for name, value in updates[2].arrays.items()}
        spoiled = {**updates, 2: replace(updates[2], arrays=arrays)}
        with pytest.raises(DataError):  # the harness does not catch a client's error; Flower counts it as a drop-out
            run_round(SecureSum(), spoiled)


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "skellam"])
def test_noise_of_all_clients_is_in_the_sum(mechanism: str) -> None:
    updates = random_updates(8, size=4000)
    length = sum(value.size for value in updates[0].arrays.values())
    aggregation = SecureSum(noise_multiplier=3.0, clip_norm=2.0, mechanism=mechanism).resolve(8, 5, length)
    assert aggregation.fewest == 6 and aggregation.event is not None
    spent: list[Any] = []
    total = run_round(aggregation, updates, drop={"update": {1, 4}}, spent=spent)
    assert total.weight == 6 and total.clients == (0, 2, 3, 5, 6, 7)
    assert spent == 6 * [aggregation.event]  # each of them records the cost for itself too
    exact = {name: np.zeros(value.shape) for name, value in total.arrays.items()}
    for client in total.clients:
        norm = math.sqrt(sum(float((v.astype(float) ** 2).sum()) for v in updates[client].arrays.values()))
        for name, value in updates[client].arrays.items():
            exact[name] += value * min(1, 2.0 / norm)
    error = np.concatenate([(total.arrays[name] - exact[name]).ravel() for name in exact])
    assert abs(error.std() / 6.0 - 1) < 6 / math.sqrt(2 * len(error))
    assert 6 * aggregation.error_std(6) == pytest.approx(6.0)  # what an attacker may know of it


def test_the_error_of_rounding_is_known() -> None:
    updates = random_updates(8, size=4000)
    mean, exact = run_round(SecureSum(fraction_bits=12), updates), mean_of(updates)
    error = np.concatenate([(mean.arrays[name] / mean.weight - exact[name]).ravel() for name in exact])
    assert abs(error.std() / SecureSum(fraction_bits=12).error_std(8) - 1) < 6 / math.sqrt(2 * len(error))


def test_a_budget_is_met_and_checked_by_the_clients() -> None:
    updates = random_updates(6)
    asked = SecureSum(epsilon=4.0, delta=1e-3)
    resolved = asked.resolve(6, 10, 21)
    assert resolved.noise.epsilon(1e-3, 10) <= 4.0
    run_round(resolved, updates)
    facts: list[Payload] = []

    class Spy(SecureSum):
        def respond(self, stage: str, request: Payload, local: Local) -> Payload:
            facts.append(request)
            return asked.respond(stage, request, local)  # a client knows the budget, not the server's noise

    run_round(Spy(**values_of(resolved)), updates)
    weak = replace(resolved, noise_multiplier=resolved.noise_multiplier / 2)
    with pytest.raises(DataError, match="too little"):
        run_round(Spy(**values_of(weak)), updates)


def client_memory(aggregation: SecureSum, updates: dict[int, Update], drop: dict[str, set[int]]) -> dict:
    memories: dict[int, dict[str, bytes]] = {}

    class Keeping(SecureSum):
        def respond(self, stage: str, request: Payload, local: Local) -> Payload:
            memories[local.client] = local.memory  # type: ignore[assignment]
            return super().respond(stage, request, local)

    run_round(Keeping(**values_of(aggregation)), updates, drop)
    return memories


def test_a_second_sum_of_a_round_needs_the_same_clients() -> None:
    updates = random_updates(6)
    memories = client_memory(SecureSum(), updates, {})

    def again(aggregation: SecureSum, gone: set[int]) -> None:
        def respond(stage: str, request: Payload, client: int) -> Payload:
            local = Local(1, client, lambda: updates[client], memories[client], Rng.secret(), print)
            return aggregation.respond(stage, request, local)

        from discreet.federated.aggregation import Round

        about = Round(
            1,
            tuple(range(6)),
            {c: u.weight for c, u in updates.items()},
            {n: np.zeros_like(v) for n, v in updates[0].arrays.items()},
            lambda stage, requests: {c: respond(stage, r, c) for c, r in requests.items() if c not in gone},
            lambda text: None,
        )
        aggregation.collect(about, Rng.secret())

    again(SecureSum(), set())
    with pytest.raises(DataError, match="earlier attempt"):
        again(SecureSum(), {5})
    again(SecureSum(noise_multiplier=1.0).resolve(6, 1, 21), {5})


def test_a_client_without_memory_of_the_round_does_not_answer() -> None:
    local = Local(1, 0, lambda: random_updates(1)[0], {}, Rng.secret(), print)
    for stage in STAGES[1:]:
        with pytest.raises(DataError):
            SecureSum().respond(stage, Payload(), local)
    with pytest.raises(DataError):
        SecureSum().respond("keys", Payload(values={"facts": b"short"}), local)
    with pytest.raises(UnsupportedError):
        SecureSum().respond("gradient", Payload(), local)


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 1},
        {"bits": 65},
        {"fraction_bits": 40},
        {"mechanism": "laplace"},
        {"noise_multiplier": -1.0},
        {"epsilon": 0.0},
        {"clip_norm": 0.0},
        {"colluding": -1},
    ],
)
def test_settings_outside_their_range_are_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        SecureSum(**changes)  # type: ignore[arg-type]


def test_the_threshold_is_checked_against_the_clients() -> None:
    assert [SecureSum().survivors_of(n) for n in (2, 3, 4, 8, 9)] == [2, 3, 3, 6, 7]
    with pytest.raises(SettingError, match="clients"):
        SecureSum().survivors_of(1)
    for threshold, clients in ((4, 8), (9, 8)):
        with pytest.raises(SettingError):
            SecureSum(threshold=threshold).survivors_of(clients)
    with pytest.raises(SettingError):
        SecureSum(colluding=5).survivors_of(8)
    noise = SecureSum(noise_multiplier=1.0, colluding=2).resolve(8, 1, 10).noise
    assert noise.survivors == 4 and noise.ring == Ring(32)
