"""What holds for every way of summing the updates of a federated round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.federated.rounds import random_updates, run_round

from discreet.catalog import AGGREGATIONS, aggregation_from_table
from discreet.core.errors import SettingError
from discreet.federated.aggregation import Aggregation, RoundError, Update

# Settings with which an aggregation adds next to nothing to the sum, and those that it needs.
QUIET: dict[str, dict[str, Any]] = {"central-dp": {"noise_multiplier": 1e-9, "clip_norm": 100.0}}


def quiet(name: str, clients: int) -> Aggregation:
    table = {"name": name, **QUIET.get(name, {})}
    return aggregation_from_table(table).resolve(clients, 3, 21)


def equal_weights(clients: int) -> dict[int, Update]:
    return {client: Update(update.arrays, 5.0) for client, update in random_updates(clients).items()}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_the_mean_of_all_updates_comes_out(name: str) -> None:
    updates = equal_weights(4)
    total = run_round(quiet(name, 4), updates)
    assert total.clients == (0, 1, 2, 3)
    for key in ("a", "b"):
        expected = np.mean([update.arrays[key].astype(np.float64) for update in updates.values()], axis=0)
        np.testing.assert_allclose(total.mean()[key], expected, atol=1e-5)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_client_that_drops_out_is_not_in_the_sum(name: str) -> None:
    updates = equal_weights(4)
    total = run_round(quiet(name, 4), updates, drop={"update": {3}})
    assert 3 not in total.clients
    expected = np.sum([updates[client].arrays["a"].astype(np.float64) for client in range(3)], axis=0)
    scale = total.weight / 5.0 if name != "central-dp" else total.weight
    np.testing.assert_allclose(total.mean()["a"] * scale, expected, atol=1e-4)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_a_round_without_clients_has_no_update(name: str) -> None:
    aggregation = quiet(name, 3)
    try:
        total = run_round(aggregation, equal_weights(3), drop={"update": {0, 1, 2}})
    except RoundError:
        return
    assert aggregation.event is not None and total.clients == ()  # only noise hides that nobody was there


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_its_settings_survive_a_table_and_unknown_ones_are_rejected(name: str) -> None:
    aggregation = quiet(name, 3)
    assert aggregation_from_table(aggregation.as_table()) == aggregation
    assert aggregation.name == name and aggregation.visible in ("each", "sum")
    with pytest.raises(SettingError, match="no_such_setting"):
        aggregation_from_table({"name": name, **QUIET.get(name, {}), "no_such_setting": 1})


@pytest.mark.parametrize("name", [name for name, entry in AGGREGATIONS.items() if entry.load().visible == "sum"])
def test_an_update_that_the_server_may_not_see_is_in_no_message(name: str) -> None:
    updates = equal_weights(4)
    seen: list[Any] = []
    run_round(quiet(name, 4), updates, seen=seen)
    for _, client, payload in seen:
        for update in updates[client].arrays.values():
            wanted = [update.tobytes(), (update * np.float32(5.0)).tobytes()]
            for value in (*payload.arrays.values(), *payload.values.values()):
                data = value.tobytes() if isinstance(value, np.ndarray) else value
                assert not isinstance(data, bytes) or not any(one in data for one in wanted)
