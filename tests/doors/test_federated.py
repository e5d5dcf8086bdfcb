"""The doors of federated training: a client with dp-sgd, and a server with central-dp."""

import dataclasses
import json
import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door

from discreet.accounting.events import ClippedSumDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon
from discreet.accounting.ledger import Ledger
from discreet.core.errors import BudgetError, DataError, LedgerError, ModelError, UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.data.sources import TextSource
from discreet.federated.aggregation import Payload
from discreet.federated.central import CentralDP
from discreet.federated.client import ANSWERS, CLIENT_LEDGER, Assignment, Client
from discreet.federated.flower import serve
from discreet.federated.run import FederateOptions, client_folder, federate, local_grid, private_folder, run_in_process
from discreet.federated.secure_sum.aggregations import SecureSum
from discreet.federated.settings import Federation
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.checkpoint import LEDGER, trained
from discreet.statement.facts import read_facts

Settings = Callable[..., Federation]
TASK = Assignment(round=1, first=0, local_steps=1, steps=4, batch_size=10)
STEP = {"round": 1, "first": 0, "local_steps": 1, "steps": 4, "batch_size": 10}
PRIVATE = CentralDP(epsilon=2.0, delta=1e-3, rate=0.4)


@pytest.fixture(scope="module")
def settings(tiny_encoder: Callable[[str], Path], toy_csv: Path) -> Settings:
    """Return a function from changed settings to those of a federation of three clients and four rounds."""

    def make(**changes: Any) -> Federation:
        model = ModelSettings(encoder=str(tiny_encoder("bert")), train="head", dropout=0.0)
        values: dict[str, Any] = {
            "data": TextSource(str(toy_csv), classes=("clinic", "ward")),
            "model": model,
            "training": TrainSettings(epochs=1, batch_size=30, learning_rate=0.01),
            "clients": 3,
            "task": "classification",
            "classes": ("clinic", "ward"),
        }
        return Federation(**(values | changes))

    return make


@pytest.fixture
def client(settings: Settings, tmp_path: Path) -> Client:
    """Return a client with a budget of 4."""
    return Client(settings(protect=DPSGD(epsilon=4.0)), 0, tmp_path / "client")


def weights_of(client: Client, more: float = 0.0) -> dict[str, Any]:
    return {name: p.detach().numpy().copy() + np.float32(more) for name, p in trained(client.model).items()}


def ask(client: Client, stage: str = "update", more: float = 0.0, **task: int) -> Payload:
    return client.answer(stage, {**STEP, **task}, weights_of(client, more), Payload())


def planned(client: Client) -> float:
    """Return the epsilon of all planned steps, computed by the accountant alone."""
    plan = client.training(TASK).plan
    assert plan.delta is not None
    return epsilon(plan.training_cost(), plan.delta, "zero-out")


def in_ledger(folder: Path, delta: float) -> float:
    return Ledger.read(folder / LEDGER).guarantee(delta).epsilon


# The client


@door("federated client", "unit", REJECTED)
def test_a_person_at_two_clients_is_rejected(settings: Settings, tmp_path: Path) -> None:
    files = []
    for number in range(3):
        path = tmp_path / f"{number}.csv"
        path.write_text(
            "text,label,who\n" + "".join(f"heart {number} {i},ward,{i}\nknee,clinic,{i}\n" for i in range(60))
        )
        files.append(str(path))
    data = TextSource(files[0], unit="who")
    federation = settings(protect=DPSGD(epsilon=4.0), partition="files", files=tuple(files), data=data)
    with pytest.raises(DataError, match="every who in the file of one client"):
        federate(federation, tmp_path / "fed", FederateOptions(in_process=True))


@door("federated client", "unit", CERTIFIED)
def test_without_a_unit_the_figure_is_that_of_a_row_and_says_so(client: Client) -> None:
    ask(client)
    stated = Guarantee.from_dict(json.loads(str(ask(client, "finish").values["guarantee"])))
    assert stated.unit == "row" and "for each row" in stated.sentence() and stated.certified
    assert stated.epsilon == pytest.approx(planned(client)) and stated.epsilon <= 4.0


@door("federated client", "again", REJECTED)
def test_a_second_run_on_the_same_people_gets_no_update_beyond_the_budget(
    client: Client, settings: Settings, tmp_path: Path
) -> None:
    assert "stopped" not in ask(client).values
    client.close()
    spent = in_ledger(client.folder, client.training(TASK).plan.delta or 0.0)
    client.close()
    again = Client(settings(protect=DPSGD(epsilon=4.0), seed=1), 0, client.folder)
    assert "budget" in str(ask(again).values["stopped"])
    assert in_ledger(client.folder, again.training(TASK).plan.delta or 0.0) == spent
    again.close()


@door("federated client", "stop", CERTIFIED)
def test_a_server_that_stops_after_one_round_does_not_make_the_figure_of_a_client_smaller(client: Client) -> None:
    """The ledger has all planned steps before the first update leaves: the server may never ask again."""
    ask(client)
    cost, delta = planned(client), client.training(TASK).plan.delta or 0.0
    one = epsilon(client.training(TASK).plan.training_cost(1), delta, "zero-out")
    client.close()
    assert Ledger.read(client.folder / LEDGER).spends == TASK.steps
    assert in_ledger(client.folder, delta) == pytest.approx(cost) and one < 0.8 * cost


def test_a_server_that_stops_a_noisy_secure_sum_does_not_make_the_figure_of_a_client_smaller(
    settings: Settings, tmp_path: Path
) -> None:
    federation = settings(aggregation=SecureSum(epsilon=5.0, delta=1e-3, clip_norm=0.1))
    options = FederateOptions(in_process=True, should_stop=lambda: True)
    assert not federate(federation, tmp_path / "fed", options)["finished"]
    for number in range(3):
        own = Ledger.read(client_folder(tmp_path / "fed.unfinished", number) / CLIENT_LEDGER)
        assert own.spends == 4 and 4.9 < own.guarantee(1e-3).epsilon <= 5.0


@door("federated client", "error", CERTIFIED)
def test_an_error_at_a_client_is_told_by_its_type_and_the_step_stays_counted(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Client.update

    def fails(self: Client, task: Assignment, weights: Any) -> Any:
        answer = update(self, task, weights)
        if self.number == 1 and task.round == 2:
            raise DataError("Expected a class, got 'irena rybak called'.")
        return answer

    monkeypatch.setattr(Client, "update", fails)
    result = federate(settings(protect=DPSGD(epsilon=4.0)), tmp_path / "fed", FederateOptions(in_process=True))
    row = result["clients"][1]
    assert row["rounds"] == 3 and row["guarantee"]["certified"] and 3.5 < row["guarantee"]["epsilon"] <= 4.0
    assert Ledger.read(tmp_path / "fed" / "client-1" / LEDGER).spends == 4
    holding = [path for path in (tmp_path / "fed").rglob("*") if path.is_file() and b"irena" in path.read_bytes()]
    assert [path.relative_to(tmp_path / "fed").as_posix() for path in holding] == ["client-1/errors.txt"]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600
    assert any("type of its errors" in one for one in row["guarantee"]["assumptions"])


@door("federated client", "state", CERTIFIED)
def test_nothing_but_the_noisy_update_leaves_a_client_whatever_its_model_keeps(client: Client) -> None:
    rows = client.training(TASK).job.step.rows
    client.model.register_buffer("seen", rows.vectors.mean(0))  # type: ignore[union-attr]
    client.model.memory = list(client.split.texts)  # type: ignore[assignment]
    answer = ask(client)
    assert set(answer.arrays) == {"head.weight", "head.bias"} and set(answer.values) == {"weight"}
    final = ask(client, "finish")
    assert not final.arrays
    assert set(final.values) == {"client", "units", "unit", "rows", "guarantee", "accuracy", "f1", "matthews"}


@door("federated client", "log", CERTIFIED)
def test_no_loss_and_no_batch_of_a_protected_client_is_logged_outside_its_own_folder(
    settings: Settings, tmp_path: Path
) -> None:
    reports: list[Any] = []
    federation = settings(protect=DPSGD(epsilon=4.0), record=True)
    options = FederateOptions(in_process=True, watch=reports.append)
    result = federate(federation, tmp_path / "fed", options)
    assert all(report.loss is None for report in reports)
    metrics = json.loads((tmp_path / "fed" / "metrics.json").read_text())
    assert "log" not in metrics and not any("loss" in row for row in metrics["clients"].values())
    batches = [*(tmp_path / "fed").rglob("batches.jsonl")]
    assert {path.parent.name for path in batches} == {"client-0", "client-1", "client-2"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in batches)
    assert result["guarantee"]["certified"] and result["guarantee"]["epsilon"] <= 4.0


@door("federated client", "resume", CERTIFIED)
def test_a_round_with_other_weights_has_other_noise_and_is_counted(client: Client) -> None:
    """Equal noise on two gradients would cancel. The budget is for four steps, and every other weights are a step."""
    answers = [ask(client, more=1e-3 * number) for number in range(5)]
    assert ["stopped" in answer.values for answer in answers] == [False, False, False, False, True]
    plan = client.training(TASK).plan
    scale = plan.protect.noise_scale / 10  # type: ignore[union-attr]
    sent = [answer.arrays["head.weight"].astype(np.float64) for answer in answers[:4]]
    for number in range(1, 4):
        assert (sent[number] - sent[0]).std() > 0.5 * scale
    cost = planned(client)
    client.close()
    assert in_ledger(client.folder, plan.delta or 0.0) == pytest.approx(cost) and cost <= 4.0


@door("federated client", "resume", ESTIMATE)
def test_more_rounds_than_planned_without_a_budget_are_an_estimate(settings: Settings, tmp_path: Path) -> None:
    client = Client(settings(protect=DPSGD(noise_multiplier=1.0)), 0, tmp_path / "client")
    first, again = ask(client, steps=1), ask(client, steps=1)
    assert np.array_equal(first.arrays["head.weight"], again.arrays["head.weight"])
    task = Assignment(1, 0, 1, 1, 10)
    stated = client.training(task).job.step.guarantee()
    assert stated is not None and stated.certified
    moved = ask(client, more=1e-3, steps=1)
    scale = client.training(task).plan.protect.noise_scale / 10  # type: ignore[union-attr]
    difference = moved.arrays["head.weight"].astype(float) - first.arrays["head.weight"].astype(float)
    assert difference.std() > 0.5 * scale  # the noise does not cancel
    stated = client.training(task).job.step.guarantee()
    assert stated is not None and stated.caveats == {Caveat.UNPLANNED_STEPS}
    client.close()
    assert Ledger.read(client.folder / LEDGER).spends == 2


@door("federated client", "edit", REJECTED)
@door("federated server", "edit", REJECTED)
@pytest.mark.parametrize("who", ["client", "server"])
def test_an_edited_ledger_is_rejected(settings: Settings, tmp_path: Path, who: str) -> None:
    private = {"protect": DPSGD(epsilon=4.0)} if who == "client" else {"aggregation": PRIVATE}
    federate(settings(**private), tmp_path / "fed", FederateOptions(in_process=True))
    folder = tmp_path / "fed" / ("client-0" if who == "client" else "server")
    read_facts(tmp_path / "fed")
    lines = (folder / LEDGER).read_text().splitlines(keepends=True)
    (folder / LEDGER).write_text("".join(lines[:-2] + lines[-1:]))  # one spend fewer
    with pytest.raises(LedgerError, match="unchanged"):
        read_facts(tmp_path / "fed")


@door("federated client", "evaluate", REJECTED)
@pytest.mark.parametrize("aggregation", ["mean", "secure-sum"])
def test_held_out_rows_are_scored_once_and_not_for_any_weights(
    settings: Settings, tmp_path: Path, aggregation: str
) -> None:
    chosen = {} if aggregation == "mean" else {"aggregation": SecureSum()}
    client = Client(settings(**chosen), 0, tmp_path / "client")
    with pytest.raises(UnsupportedError, match="scored once"):
        ask(client, "evaluate")
    first, other, again = (ask(client, "finish", more).values for more in (0.0, 1.0, 0.0))
    seen = aggregation == "mean"  # under a secure sum the server gets no score of a client
    assert ("accuracy" in first, "accuracy" in other, "accuracy" in again) == (seen, False, seen)
    assert first.get("accuracy") == again.get("accuracy")
    own = json.loads((client.folder / "utility.json").read_text())
    assert len(own) == 1 and "accuracy" in next(iter(own.values()))["scores"]  # its owner has it


# The server


def cost(noise: float, rounds: int, rate: float) -> float:
    from discreet.accounting.events import PoissonSampledDpEvent

    event: Any = ClippedSumDpEvent(noise)
    event = event if rate == 1 else PoissonSampledDpEvent(rate, event)
    return epsilon(SelfComposedDpEvent(event, rounds), 1e-3, "zero-out")


@door("federated server", "unit", CERTIFIED)
def test_noise_for_clients_claims_nothing_for_people_with_rows_at_several(settings: Settings, tmp_path: Path) -> None:
    result = federate(settings(aggregation=PRIVATE), tmp_path / "fed", FederateOptions(in_process=True))
    stated = Guarantee.from_dict(result["client_guarantee"])
    assert result["guarantee"] is None and stated.unit == "client" and "for each client" in stated.sentence()
    noise = PRIVATE.resolve(3, 4, 34).noise_multiplier
    assert noise is not None and stated.epsilon == pytest.approx(cost(noise, 4, 0.4)) and stated.epsilon <= 2.0


@door("federated server", "again", REJECTED)
def test_a_server_that_forgets_its_rounds_gets_no_second_run_from_the_same_budget(
    settings: Settings, tmp_path: Path
) -> None:
    federation = settings(aggregation=PRIVATE)
    run_in_process(federation, tmp_path)
    (tmp_path / "server" / "checkpoint.safetensors").unlink()
    with pytest.raises(BudgetError):
        run_in_process(federation, tmp_path)
    (tmp_path / "server" / ANSWERS).unlink()  # which rounds were begun: now all planned ones count as begun
    with pytest.raises(BudgetError):
        run_in_process(federation, tmp_path)


@door("federated server", "stop", CERTIFIED)
def test_a_run_that_is_stopped_costs_as_much_as_its_plan(settings: Settings, tmp_path: Path) -> None:
    federation = settings(aggregation=PRIVATE)
    options = FederateOptions(in_process=True, should_stop=lambda: True)
    assert not federate(federation, tmp_path / "fed", options)["finished"]
    noise = PRIVATE.resolve(3, 4, 34).noise_multiplier or 0.0
    stated = Ledger.read(tmp_path / "fed.unfinished" / "server" / LEDGER).guarantee(1e-3).epsilon
    assert stated == pytest.approx(cost(noise, 4, 0.4)) and cost(noise, 1, 0.4) < 0.8 * stated
    result = federate(federation, tmp_path / "fed", FederateOptions(in_process=True, resume=True))
    assert result["client_guarantee"]["epsilon"] == pytest.approx(stated)  # a resumed run costs nothing twice


@door("federated server", "error", CERTIFIED)
@door("federated server", "state", CERTIFIED)
@door("federated server", "log", CERTIFIED)
def test_nothing_that_is_written_or_printed_depends_on_who_took_part_or_failed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Client 1 takes part in every round and client 0 in none, and the other way round; and client 2 fails or not."""
    from discreet.cli import federate as command

    update = Client.update
    shared, printed, private = [], [], []
    for case, (chosen, fault) in enumerate([((0,), None), ((1, 2), None), ((1, 2), "error"), ((1, 2), "nan")]):

        def broken(self: Client, task: Assignment, weights: Any, fault: str | None = fault) -> Any:
            answer = update(self, task, weights)
            if fault == "error" and self.number == 2:
                raise DataError("irena")
            for array in answer.arrays.values() if fault == "nan" and self.number == 2 else ():
                array.fill(np.nan)
            return answer

        monkeypatch.setattr(Client, "update", broken)
        monkeypatch.setattr(CentralDP, "choose", lambda self, clients, secret, chosen=chosen: chosen)
        out = tmp_path / str(case) / "fed"
        federation = settings(aggregation=PRIVATE)
        reports: list[Any] = []
        result = federate(federation, out, FederateOptions(in_process=True, watch=reports.append))
        command._print({**result, "utility": {}, "quality": None}, federation, Path("fed"))
        printed.append(capsys.readouterr())
        metrics = json.loads((out / "metrics.json").read_text())
        for row in metrics["clients"].values():
            for score in ("accuracy", "f1", "matthews"):
                row.pop(score, None)
        for name in ("out", "utility", "quality", "utility_by_class", "digests"):
            metrics.pop(name, None)  # of the noisy model, but for the first
        names = sorted((path.relative_to(out).as_posix(), path.stat().st_mode) for path in out.rglob("*"))
        texts = [(out / "server" / name).read_text() for name in ("progress.jsonl", "schedule.json")]
        spends = [line.split('"')[1] for line in (out / "server" / LEDGER).read_text().splitlines() if line[0] == "["]
        shared.append((metrics, names, texts, spends, reports))
        folders = [path for path in out.rglob("*") if path.parent != out and "tokenizer" not in path.parts]
        assert len({path.stat().st_mtime_ns for path in folders}) == 1
        own = private_folder(out)
        assert not own.exists() or stat.S_IMODE(own.stat().st_mode) == 0o700
        private.append([path.read_text() for path in sorted(own.rglob("*"))] if own.exists() else None)
        assert "irena" not in (tmp_path / str(case) / "fed" / "README.md").read_text()
    assert all(one == shared[0] for one in shared) and all(one == printed[0] for one in printed)
    assert private[0] is private[1] is None and private[2] and private[3]
    assert "irena" in "".join(private[2]) and "counts as zero" in "".join(private[3])
    assert shared[0][0]["client_guarantee"]["epsilon"] <= 2.0


@door("federated server", "log", CERTIFIED)
@pytest.mark.parametrize("record", [False, True])
def test_if_it_is_public_who_took_part_sampling_does_not_reduce_epsilon(
    settings: Settings, tmp_path: Path, record: bool
) -> None:
    aggregation = CentralDP(noise_multiplier=2.0, rate=0.4, public_clients=not record)
    result = federate(
        settings(aggregation=aggregation, record=record), tmp_path / "fed", FederateOptions(in_process=True)
    )
    stated = Guarantee.from_dict(result["client_guarantee"])
    assert stated.epsilon == pytest.approx(cost(2.0, 4, 1.0)) and cost(2.0, 4, 0.4) < 0.8 * stated.epsilon
    assert not any("drawn" in one or ("secret" in one and "take part" in one) for one in stated.assumptions)
    assert all("rounds" in row for row in result["clients"].values()) and not private_folder(tmp_path / "fed").exists()


@door("federated server", "resume", REJECTED)
def test_a_stopped_run_is_not_resumed_with_other_settings(settings: Settings, tmp_path: Path) -> None:
    options = FederateOptions(in_process=True, should_stop=lambda: True)
    federate(settings(aggregation=PRIVATE), tmp_path / "fed", options)
    other = settings(aggregation=dataclasses.replace(PRIVATE, epsilon=1.0))
    with pytest.raises(ModelError, match="changed"):
        federate(other, tmp_path / "fed", FederateOptions(in_process=True, resume=True))


@door("federated server", "resume", CERTIFIED)
def test_a_round_that_is_repeated_after_a_crash_is_counted_again(settings: Settings, tmp_path: Path) -> None:
    federation = settings(aggregation=CentralDP(noise_multiplier=2.0, rate=0.4))
    run_in_process(federation, tmp_path)
    (tmp_path / "server" / "checkpoint.safetensors").unlink()  # the model of the repeated rounds is another one
    result = run_in_process(federation, tmp_path)
    assert result["client_guarantee"]["epsilon"] == pytest.approx(cost(2.0, 8, 0.4))


@door("federated server", "evaluate", CERTIFIED)
def test_the_scores_are_those_of_held_out_rows_which_the_guarantee_leaves_out(
    settings: Settings, tmp_path: Path
) -> None:
    federation = settings(aggregation=PRIVATE)
    result = federate(federation, tmp_path / "fed", FederateOptions(in_process=True))
    rows = len(federation.data.load().split("validation"))
    assert result["evaluated_on"] == "validation" and result["quality"]["rows"] == rows
    assert any(one.startswith("held-out rows are not protected") for one in result["client_guarantee"]["assumptions"])
    assert math.isfinite(result["client_guarantee"]["epsilon"])


def test_a_client_that_is_asked_late_and_one_that_is_never_asked_have_the_same_ledger(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dp-sgd at the clients too, their ledgers lie in the run folder and must not show who took part."""
    monkeypatch.setattr(CentralDP, "choose", lambda self, clients, secret: (0,))
    federation = settings(aggregation=PRIVATE, protect=DPSGD(epsilon=4.0), clients=2)
    clients = [Client(federation, number, client_folder(tmp_path, number)) for number in range(2)]
    serve(federation, tmp_path / "server", local_grid(clients))
    ledgers = [Ledger.read(client_folder(tmp_path, number) / LEDGER) for number in range(2)]
    assert [ledger.spends for ledger in ledgers] == [4, 4]
