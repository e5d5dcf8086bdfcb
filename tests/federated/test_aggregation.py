"""The mean of updates, and which updates are rejected."""

from dataclasses import replace

import numpy as np
import pytest
from tests.federated.rounds import random_updates, run_round

from discreet.federated.aggregation import Mean, RoundError, Update


def expected_mean(updates: dict[int, Update]) -> dict[str, np.ndarray]:
    total = sum(update.weight for update in updates.values())
    names = next(iter(updates.values())).arrays
    return {n: sum(u.weight * u.arrays[n].astype(np.float64) for u in updates.values()) / total for n in names}


def test_the_mean_is_weighted() -> None:
    updates = random_updates(4)
    total = run_round(Mean(), updates)
    assert total.clients == (0, 1, 2, 3) and total.weight == 46
    for name, value in expected_mean(updates).items():
        np.testing.assert_allclose(total.mean()[name], value, rtol=1e-6)


def test_a_client_that_drops_out_is_left_out() -> None:
    updates = random_updates(4)
    total = run_round(Mean(), updates, drop={"update": {1}})
    rest = {client: update for client, update in updates.items() if client != 1}
    assert total.clients == (0, 2, 3)
    np.testing.assert_allclose(total.mean()["a"], expected_mean(rest)["a"], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: {**a, "a": a["a"] * np.float32("nan")}, "NaN"),
        (lambda a: {**a, "b": a["b"][:1]}, "shape"),
        (lambda a: {**a, "b": a["b"].astype(np.float64)}, "float64"),
        (lambda a: {"a": a["a"]}, "arrays"),
        (lambda a: {"a": a["a"], "c": a["b"]}, "names"),
        (lambda a: {name: value * np.float32(1e6) for name, value in a.items()}, "norm"),
    ],
)
def test_a_wrong_update_is_rejected_and_the_round_survives(change, reason) -> None:  # type: ignore[no-untyped-def]
    updates = random_updates(3)
    updates[1] = replace(updates[1], arrays=change(updates[1].arrays))
    log: list[str] = []
    total = run_round(Mean(), dict(sorted(updates.items())), log=log)
    assert total.clients == (0, 2)
    assert len(log) == 1 and "client 1" in log[0] and reason in log[0]


def test_a_round_without_updates_fails() -> None:
    with pytest.raises(RoundError):
        run_round(Mean(), random_updates(2), drop={"update": {0, 1}})
