"""Client-level noise: clipped where the noise is added, counted before it is used, and Flower's accountant protocol."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp import PrivacyAccountant
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from tests.federated.rounds import random_updates, run_round

from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon
from discreet.accounting.ledger import Budget, Ledger
from discreet.core.errors import LedgerError, SettingError
from discreet.core.randomness import Rng
from discreet.data.sources import TextSource
from discreet.federated.accountant import LedgerAccountant
from discreet.federated.aggregation import Update, norm_of
from discreet.federated.central import CentralDP, clipped
from discreet.federated.run import run_in_process
from discreet.federated.settings import Federation
from discreet.runs.checkpoint import LEDGER


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e12])
def test_one_client_moves_the_sum_by_at_most_the_clip_norm(size: float) -> None:
    """With and without a client, without noise, whatever it sends: the sensitivity that the event assumes."""
    almost_silent = CentralDP(noise_multiplier=1e-9, clip_norm=0.5).resolve(4, 1, 10)
    updates = random_updates(4)
    updates[2] = Update({name: (value * size).astype(np.float32) for name, value in updates[2].arrays.items()}, 1e9)
    everyone = run_round(almost_silent, updates)
    without = run_round(almost_silent, updates, drop={"update": {2}})
    moved = {name: everyone.arrays[name] - without.arrays[name] for name in everyone.arrays}
    assert norm_of(moved) <= 0.5 * (1 + 1e-5)
    assert everyone.weight == without.weight == 4  # the divisor does not show who was there


def test_a_wrong_update_counts_as_zero_and_no_update_is_judged_by_others() -> None:
    aggregation = CentralDP(noise_multiplier=1e-9, clip_norm=0.5).resolve(3, 1, 10)
    updates = random_updates(3)
    log: list[str] = []
    updates[1] = Update({name: value * np.float32("inf") for name, value in updates[1].arrays.items()}, 1.0)
    with np.errstate(all="ignore"):
        total = run_round(aggregation, updates, log=log)
    assert total.clients == (0, 1, 2) and "counts as zero" in log[0]  # it answered, and who did is all that this says
    alone = clipped(updates[0].arrays, 0.5)["a"] + clipped(updates[2].arrays, 0.5)["a"]
    np.testing.assert_allclose(total.arrays["a"], alone, atol=1e-6)


def test_the_noise_has_the_scale_of_the_event() -> None:
    aggregation = CentralDP(noise_multiplier=2.0, clip_norm=0.5).resolve(2, 1, 10)
    zeros = {c: Update({"a": np.zeros(20_000, np.float32)}, 1.0) for c in range(2)}
    total = run_round(aggregation, zeros)
    assert total.arrays["a"].std() == pytest.approx(1.0, rel=0.03)


def test_clients_are_sampled_independently() -> None:
    aggregation = CentralDP(noise_multiplier=1.0, rate=0.3).resolve(10, 1, 10)
    taken = [aggregation.choose(range(10), Rng(number)) for number in range(400)]
    assert sum(map(len, taken)) / 4000 == pytest.approx(0.3, abs=0.03)
    assert {len(one) for one in taken} >= {1, 2, 3, 4, 5}


def test_the_budget_of_clients_is_met_and_every_attempt_is_counted(
    tiny: Callable[..., Federation], tmp_path: Path
) -> None:
    settings = tiny(aggregation=CentralDP(epsilon=3.0, delta=1e-3, rate=0.8), exchange="weights", local_steps=2)
    result = run_in_process(settings, tmp_path)
    statement = Ledger.read(tmp_path / "server" / LEDGER)
    stated = result["client_guarantee"]
    assert statement.unit == "client" and statement.spends == result["rounds"]
    assert stated["certified"] and 2.5 < stated["epsilon"] <= 3.0
    lost = tmp_path / "server" / "checkpoint.safetensors"
    lost.unlink()
    ledger_before = statement.spends
    with pytest.raises(Exception, match="budget"):
        run_in_process(settings, tmp_path)  # the same rounds again, with new noise, are other releases
    assert Ledger.read(tmp_path / "server" / LEDGER).spends >= ledger_before


def test_losses_of_clients_are_not_sent_if_noise_protects_clients(
    tiny: Callable[..., Federation], tmp_path: Path
) -> None:
    result = run_in_process(tiny(aggregation=CentralDP(noise_multiplier=1.0)), tmp_path)
    assert len(result["clients"]) == 3 and not any("loss" in values for values in result["clients"].values())
    assert '"loss": null' in (tmp_path / "server" / "progress.jsonl").read_text()


def test_a_run_without_budget_for_all_rounds_ends_with_the_rounds_that_it_has(
    tiny: Callable[..., Federation], tmp_path: Path
) -> None:
    settings = tiny(aggregation=CentralDP(epsilon=3.0))
    rounds = run_in_process(settings, tmp_path / "all")["rounds"]
    (tmp_path / "less" / "server").mkdir(parents=True)
    event = settings.aggregation.resolve(3, rounds, 10).event
    ledger = Ledger.open(
        tmp_path / "less" / "server" / LEDGER, unit="client", adjacency="zero-out", budget=Budget(3.0, 1e-3)
    )
    with ledger:
        for number in (1, 2):  # rounds that were lost when the server was killed
            ledger.spend(event, f"round {number}", secure=True)
    result = run_in_process(settings, tmp_path / "less")
    assert result["rounds"] == rounds - 2 and result["client_guarantee"]["epsilon"] <= 3.0
    assert f"ends after round {rounds - 2}" in (tmp_path / "less" / "server" / "log.txt").read_text()


def test_a_budget_or_a_noise_is_needed() -> None:
    with pytest.raises(SettingError, match="epsilon"):
        CentralDP()
    with pytest.raises(SettingError, match="rate"):
        CentralDP(noise_multiplier=1.0, rate=0.0)


def config(method: SamplingMethod, relation: NeighboringRelation, limit: float | None = None) -> PrivacyConfig:
    return PrivacyConfig(1e-5, 100, relation, method, limit)


POISSON = config(SamplingMethod.POISSON, NeighboringRelation.ADD_OR_REMOVE_ONE, 3.0)
EVENT = GaussianPrivacyEvent(1.0, 10, 100)


def test_the_ledger_is_an_accountant_of_flower(tmp_path: Path) -> None:
    accountant: PrivacyAccountant = LedgerAccountant(POISSON, tmp_path / "ledger.jsonl")
    assert accountant.get_epsilon(1e-5) == 0 and not accountant.would_exceed(EVENT)
    accountant.compose(EVENT, count=15)
    expected = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, ClippedSumDpEvent(1.0)), 15)
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon(expected, delta=1e-5))
    assert accountant.get_delta(accountant.get_epsilon(1e-5)) <= 1e-5 * (1 + 1e-3)
    assert accountant.would_exceed(EVENT, count=100) and not accountant.would_exceed(EVENT, max_epsilon=50.0)
    spent = accountant.get_privacy_spent()
    assert (spent.num_releases, spent.delta) == (15, 1e-5)
    assert Ledger.read(tmp_path / "ledger.jsonl").spends == 15


def test_the_state_of_an_accountant_survives_and_never_takes_releases_back() -> None:
    first, second = LedgerAccountant(POISSON), LedgerAccountant(POISSON)
    first.compose(EVENT, count=4)
    state = json.loads(json.dumps(first.state_dict()))
    first.compose(EVENT)
    second.load_state_dict(state)
    assert second.num_releases == 4 and second.get_epsilon(1e-5) < first.get_epsilon(1e-5)
    first.load_state_dict(state)
    assert first.num_releases == 5
    with pytest.raises(LedgerError):
        LedgerAccountant(dataclasses.replace(POISSON, population_size=7)).load_state_dict(state)


@pytest.mark.parametrize(
    ("method", "relation"),
    [
        (SamplingMethod.NO_AMPLIFICATION, NeighboringRelation.ADD_OR_REMOVE_ONE),
        (SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE),
    ],
)
def test_other_sampling_costs_more_than_poisson(method: SamplingMethod, relation: NeighboringRelation) -> None:
    poisson, other = LedgerAccountant(POISSON), LedgerAccountant(config(method, relation))
    for accountant in (poisson, other):
        accountant.compose(EVENT, count=3)
    assert other.get_epsilon(1e-5) > poisson.get_epsilon(1e-5)


def test_a_population_that_changes_is_rejected() -> None:
    with pytest.raises(SettingError, match="population_size"):
        LedgerAccountant(POISSON).compose(GaussianPrivacyEvent(1.0, 10, 200))


def test_class_names_read_from_the_labels_of_clients_make_the_figure_an_estimate(
    tiny: Callable[..., Federation], toy_csv: Path, tmp_path: Path
) -> None:
    central = CentralDP(epsilon=3.0, delta=1e-3)
    result = run_in_process(tiny(aggregation=central, data=TextSource(str(toy_csv)), epochs=1), tmp_path)
    assert result["client_guarantee"]["caveats"] == ["private-classes"]
    assert not Ledger.read(tmp_path / "server" / LEDGER).guarantee().certified
