"""Rounds of a federation in one process: the same result as central steps, and what happens if a side fails."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet.accounting.ledger import Ledger
from discreet.core.errors import DataError, ModelError, OutputError, SettingError, UnsupportedError
from discreet.core.guarantee import Adjacency, Caveat, Guarantee
from discreet.data.sources import TextSource
from discreet.federated.aggregation import Payload, RoundError
from discreet.federated.central import CentralDP
from discreet.federated.client import Assignment, Client
from discreet.federated.flower import serve
from discreet.federated.run import FederateOptions, client_folder, federate, joint, local_grid, run_in_process
from discreet.federated.server import Outgoing, Schedule, Server
from discreet.federated.settings import Federation
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.protections.base import plain_defaults
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.texthide import AllMasks, TextHide
from discreet.runs.checkpoint import LEDGER, trained
from discreet.runs.folder import load_run
from discreet.statement.facts import read_facts
from discreet.statement.statement import statement_of
from discreet.training.loop import optimizer_for, set_rate

Tiny = Callable[..., Federation]


def clients_of(settings: Federation, folder: Path) -> list[Client]:
    return [Client(settings, number, client_folder(folder, number)) for number in range(settings.clients)]


def final(folder: Path) -> dict[str, torch.Tensor]:
    from discreet.core.files import load_tensors

    return load_tensors(folder / "server" / "final.safetensors")[0]


def log_of(folder: Path) -> str:
    path = folder / "server" / "log.txt"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(("part", "optimizer"), [("head", "sgd"), ("all", "sgd"), ("head", "adamw")])
def test_federated_sgd_takes_the_steps_of_central_training(
    tiny: Tiny, tmp_path: Path, part: str, optimizer: str
) -> None:
    """The mean of the clients' gradients is the gradient of their batches together.

    AdamW divides by the size of a gradient. Where the exact gradient is zero, as in some biases of attention, that
    turns rounding errors into whole steps, so it is compared for the head alone.
    """
    settings = tiny(train=part)
    train = dataclasses.replace(settings.training, gradient_norm=1e6, optimizer=optimizer)
    settings = dataclasses.replace(settings, training=train)
    run_in_process(settings, tmp_path)
    clients = clients_of(settings, tmp_path / "again")
    model = settings.build()
    schedule = Schedule.make(settings, {c.number: len(c.split) for c in clients}, model.width)
    train = settings.training.completed(clients[0].training(schedule.task(0, 1)).plan.settings)  # type: ignore[arg-type]
    steps = optimizer_for(model, train)
    model.train()
    largest, smallest, additions = 0.0, math.inf, 0
    for step in range(schedule.steps):
        steps.zero_grad()
        set_rate(steps, train.rate_at(step, schedule.steps, train.learning_rate or 0.0))
        total = sum(schedule.sizes.values())
        terms = 0
        for client in clients:
            training = client.training(schedule.task(client.number, 1))
            rows = training.plan.sampler.draw(step, len(client.split), training.plan.rng.fork("sampler"))
            batch = training.job.step.rows.batch(rows)
            loss = model.losses(batch.inputs, batch.targets).mean() * len(client.split) / total
            loss.backward()
            terms += next(iter(batch.inputs.values())).numel() if part == "all" else len(rows)
        gradients = torch.cat([p.grad.reshape(-1) for p in trained(model).values() if p.grad is not None])
        largest = max(largest, float(gradients.abs().max()))
        steps.step()
        squares = [float(s["exp_avg_sq"].min()) for s in steps.state.values() if "exp_avg_sq" in s]
        smallest = min([smallest, *(value / (1 - 0.999 ** (step + 1)) for value in squares)])
        additions = max(additions, terms)
    # A number of a gradient is a sum over the rows and their tokens, of products that went forward and backward through
    # sums as long as the sides of each layer. Every addition rounds by at most half of eps, and two orders differ by
    # twice that. A step moves a weight by the rate times the gradient, with AdamW over the root of its mean square, and
    # rounds the weight.
    layers = [one.weight for one in model.modules() if isinstance(one, torch.nn.Linear)]
    additions += sum(sum(weight.shape) for weight in layers if weight.requires_grad)
    smallest = 1.0 if optimizer == "sgd" else smallest
    eps, rate = torch.finfo(torch.float32).eps, train.learning_rate or 0.0
    size = max(float(p.detach().abs().max()) for p in trained(model).values())
    bound = schedule.steps * eps * (rate * additions * largest / math.sqrt(smallest) + size)
    moved = 0.0
    for name, value in final(tmp_path).items():
        torch.testing.assert_close(value, trained(model)[name].detach(), rtol=0, atol=bound)
        moved = max(moved, float((value - trained(settings.build())[name].detach()).abs().max()))
    assert bound < moved / 50  # a client with a wrong weight in the mean would show


def test_a_run_folder_is_written_and_can_be_used(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(epochs=6, exchange="weights", local_steps=3)
    reports: list[Any] = []
    result = federate(settings, tmp_path / "fed", FederateOptions(in_process=True, watch=reports.append))
    assert [report.round for report in reports] == list(range(1, result["rounds"] + 1))
    assert result["utility"]["accuracy"] > 0.6 and result["guarantee"] is None
    assert {c["rows"] for c in result["clients"].values()} <= {34, 35, 36, 37} and result["clients"][0]["loss"] > 0
    run = load_run(tmp_path / "fed")
    assert run.settings.classes == ("clinic", "ward") and run.metrics["rounds"] == result["rounds"]
    left = {path.name for path in (tmp_path / "fed").rglob("*")}
    assert not left & {"secret", "answer.safetensors", "vectors", "memory", "checkpoint.safetensors"}


def test_the_same_seed_gives_the_same_model_and_another_seed_another(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(protect=DPSGD(noise_multiplier=1.0), noise_seed=3)
    for number, one in enumerate((settings, settings, dataclasses.replace(settings, noise_seed=4))):
        run_in_process(one, tmp_path / str(number))
    first, same, other = (final(tmp_path / str(number)) for number in range(3))
    for name, value in first.items():
        assert torch.equal(value, same[name]) and not torch.equal(value, other[name])


def test_every_client_keeps_its_own_ledger_within_the_budget(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(protect=DPSGD(epsilon=4.0))
    result = run_in_process(settings, tmp_path)
    for number in range(3):
        statement = Ledger.read(client_folder(tmp_path, number) / LEDGER)
        stated = json.loads(result["clients"][str(number)]["guarantee"])
        assert statement.spends == result["steps"]
        assert stated["certified"] and stated["epsilon"] <= 4.0
        assert statement.guarantee(stated["delta"]).epsilon == pytest.approx(stated["epsilon"])
        assert "loss" not in result["clients"][str(number)]


@pytest.mark.parametrize("protect", [TextHide(masks=6, mix=2), DirDPSGD(kappa=50.0)])
def test_other_protections_run_at_the_clients(tiny: Tiny, tmp_path: Path, protect: Any) -> None:
    settings = tiny(protect=protect)
    result = run_in_process(settings, tmp_path)
    assert len(result["clients"]) == 3
    client = Client(settings, 0, client_folder(tmp_path, 0))
    if isinstance(protect, TextHide):
        training = client.training(Assignment(1, 0, 1, result["steps"], 10))
        assert training.plan.protect.mask_count == 2  # type: ignore[union-attr]
        weights = {name: value.numpy() for name, value in final(tmp_path).items()}
        row, views = result["clients"]["0"], training.views()
        assert row["averaged_accuracy"] == client.evaluate(weights, views)["accuracy"]
        assert isinstance(views, AllMasks) and len(views.masks) == 2
    client.close()


def test_clients_with_few_pairs_train_with_the_defaults_of_the_server(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(train="all")
    settings = dataclasses.replace(settings, training=TrainSettings())
    rows = settings.corpus_of(0)
    client = Client(settings, 0, tmp_path / "client", corpus=dataclasses.replace(rows, second=rows.texts))
    plan = client.training(Assignment(1, 0, 1, 4, 10)).plan
    expected = plain_defaults("all", 20, client.model.width)
    assert (plan.settings.learning_rate, plan.settings.head_rate) == (expected.learning_rate, expected.head_rate)
    client.close()


def test_batches_of_a_client_that_are_too_small_to_mix_are_rejected(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="mix to be <= 3, the rows in a batch of client 0"):
        run_in_process(tiny(protect=TextHide(masks=6, mix=4), batch_size=9), tmp_path)


def test_a_language_model_with_adapters(tmp_path: Path, tiny_causal: Callable[[str], Path], toy_csv: Path) -> None:
    model = ModelSettings(encoder=str(tiny_causal("llama")), train="lora-2", dropout=0.0)
    data = TextSource(str(toy_csv), task="unlabelled", rows=40)
    settings = Federation(data, model, TrainSettings(epochs=1, batch_size=16), 2, DPSGD(epsilon=8.0), task="lm")
    result = federate(settings, tmp_path / "fed", FederateOptions(in_process=True))
    assert result["utility"]["perplexity"] > 1 and result["guarantee"]["certified"]
    assert all("lora" in name for name in trained(settings.build()))


def test_a_protection_that_cannot_be_repeated_safely_is_rejected(tiny: Tiny) -> None:
    with pytest.raises(UnsupportedError, match="dp-ie"):
        tiny(protect=InstanceEncoding(epsilon=3.0))
    with pytest.raises(SettingError, match="local_steps"):
        tiny(local_steps=2)


def test_settings_survive_a_file(tiny: Tiny, tmp_path: Path) -> None:
    for settings in (
        tiny(),
        tiny(protect=DPSGD(epsilon=3.0), aggregation=CentralDP(epsilon=2.0), exchange="weights", local_steps=4),
        tiny(partition="files", files=("a.csv", "b.csv", "c.csv"), noise_seed=0, record=True),
    ):
        path = tmp_path / "federation.toml"
        path.write_text(settings.text())
        assert Federation.read(path) == settings


@pytest.mark.parametrize(("partition", "extra"), [("equal", {}), ("dirichlet", {"concentration": 5.0}), ("unit", {})])
def test_every_row_is_at_one_client(tiny: Tiny, partition: str, extra: dict[str, Any]) -> None:
    settings = tiny(partition=partition, **extra)
    corpora = [settings.corpus_of(client).split("train") for client in range(3)]
    whole = settings.data.load().split("train")
    assert sorted(text for corpus in corpora for text in corpus.texts) == sorted(whole.texts)


def test_a_unit_is_never_divided(tiny: Tiny, tmp_path: Path, toy_rows: list[tuple[str, str]]) -> None:
    path = tmp_path / "units.csv"
    path.write_text("text,label,who\n" + "".join(f"{t},{y},{i % 40}\n" for i, (t, y) in enumerate(toy_rows)))
    data = TextSource(str(path), unit="who")
    remarks: list[str] = []
    options = FederateOptions(in_process=True, say=remarks.append, should_stop=lambda: True)
    federate(tiny(data=data), tmp_path / "fed", options)
    assert any("All rows of one who are at one client" in remark for remark in remarks)
    for partition in ("equal", "unit"):
        settings = tiny(data=data, partition=partition)
        units = [set(settings.corpus_of(client).split("train").units or ()) for client in range(3)]
        assert not units[0] & units[1] and not units[1] & units[2] and not units[0] & units[2]
    with pytest.raises(SettingError, match="partition"):
        tiny(data=data, partition="dirichlet").corpus_of(0)


def test_a_client_that_is_gone_at_the_end_still_counts(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Client.finish

    def gone(client: Client, task: Assignment, weights: Any) -> Any:
        if client.number == 1:
            raise DataError("gone")
        return finish(client, task, weights)

    monkeypatch.setattr(Client, "finish", gone)
    result = federate(tiny(protect=DPSGD(epsilon=4.0)), tmp_path / "fed", FederateOptions(in_process=True))
    own = Ledger.read(client_folder(tmp_path / "fed", 1) / LEDGER)
    assert set(result["clients"]) == {0, 2} and own.spends == result["steps"]
    assert result["guarantee"]["epsilon"] >= own.guarantee(own.budget.delta).epsilon  # type: ignore[union-attr]


def test_the_guarantee_holds_for_the_units_of_every_client(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(protect=DPSGD(epsilon=4.0), partition="dirichlet", concentration=0.5)
    result = federate(settings, tmp_path / "fed", FederateOptions(in_process=True))
    each = [client["guarantee"] for client in result["clients"].values()]
    assert len({one["epsilon"] for one in each}) > 1  # clients with fewer units sample them at other rates
    for key in ("epsilon", "delta"):
        assert result["guarantee"][key] == max(one[key] for one in each)
    facts = read_facts(tmp_path / "fed")
    assert len(facts.ledgers) == 3 and facts.guarantee is not None
    found = statement_of(facts)
    stated = facts.guarantee
    assert found["releases"]["ledger"]["guarantee"]["epsilon"] <= stated.epsilon
    profile = {row["epsilon"]: row["delta"] for row in found["parameters"]["privacy_profile"]}
    assert profile[round(stated.epsilon, 6)] <= 1.001 * stated.delta


def test_one_estimate_makes_the_guarantee_of_all_clients_an_estimate() -> None:
    certified = Guarantee(3.0, 1e-5, "note", Adjacency.ZERO_OUT, "pld", assumptions=("a", "b"))
    estimate = Guarantee(2.0, 1e-5, "note", Adjacency.ZERO_OUT, "pld", assumptions=("b", "c")).with_caveats(
        {Caveat.UNSTEADY_KERNELS}
    )
    both = joint([certified, estimate])
    assert both is not None and not both.certified and both.caveats == {Caveat.UNSTEADY_KERNELS}
    assert both.epsilon == 3.0 and both.assumptions == ("a", "b", "c") and joint([None]) is None


def test_a_unit_in_the_files_of_two_clients_is_rejected(
    tiny: Tiny, tmp_path: Path, toy_rows: list[tuple[str, str]]
) -> None:
    files = []
    for client in range(3):
        path = tmp_path / f"{client}.csv"
        rows = "".join(f"{t},{y},{(client + i) % 13}\n" for i, (t, y) in enumerate(toy_rows[client::3]))
        path.write_text("text,label,patient\n" + rows)
        files.append(str(path))
    settings = tiny(partition="files", files=tuple(files), data=TextSource(files[0], unit="patient"))
    settings = dataclasses.replace(settings, protect=DPSGD(epsilon=4.0))
    with pytest.raises(DataError, match=r"every patient in the file of one client, got \d+ in"):
        federate(settings, tmp_path / "fed", FederateOptions(in_process=True))


def test_each_client_reads_its_own_file(tiny: Tiny, tmp_path: Path, toy_rows: list[tuple[str, str]]) -> None:
    files = []
    for client in range(3):
        path = tmp_path / f"{client}.csv"
        path.write_text("text,label\n" + "".join(f"{t},{y}\n" for t, y in toy_rows[client::3]))
        files.append(str(path))
    settings = tiny(partition="files", files=tuple(files))
    result = federate(settings, tmp_path / "fed", FederateOptions(in_process=True))
    assert len(result["clients"]) == 3


class Faulty:
    """Replace the answers of one client in some rounds."""

    def __init__(self, client: Client, rounds: Mapping[int, Callable[[Payload], Payload]]) -> None:
        self.client, self.rounds = client, rounds
        self.number, self.folder = client.number, client.folder

    def answer(self, stage: str, values: Any, weights: Any, request: Payload) -> Payload:
        answer = self.client.answer(stage, values, weights, request)
        change = self.rounds.get(values.get("round", 0)) if stage == "update" else None
        return answer if change is None else change(answer)

    def close(self) -> None:
        self.client.close()


def _times(factor: float) -> Callable[[Payload], Payload]:
    def change(answer: Payload) -> Payload:
        arrays = {name: (value * factor).astype(value.dtype) for name, value in answer.arrays.items()}  # type: ignore[operator]
        return Payload(arrays, answer.values)

    return change


def _fails(answer: Payload) -> Payload:
    raise ValueError("irena rybak called")  # an error of another library may hold a text


def _fails_here(answer: Payload) -> Payload:
    raise DataError("Expected a class, got 'irena rybak called'.")  # so may an error of our own


def _short(answer: Payload) -> Payload:
    return Payload({name: value[:1] for name, value in answer.arrays.items()}, answer.values)


def _other_names(answer: Payload) -> Payload:
    return Payload({}, answer.values)


def test_a_round_survives_wrong_updates_and_the_ledger_stays_true(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(protect=DPSGD(noise_multiplier=1.0))
    clients: list[Any] = clients_of(settings, tmp_path)
    faults = {1: _times(float("nan")), 2: _short, 3: _times(1e9), 4: _fails, 5: _other_names, 6: _fails_here}
    clients[1] = Faulty(clients[1], faults)
    result = serve(settings, tmp_path / "server", local_grid(clients))
    log = log_of(tmp_path)
    for word in ("NaN", "shape", "norm", "ValueError", "arrays", "DataError"):
        assert word in log
    assert "irena" not in log and result["rounds"] >= 6
    assert (client_folder(tmp_path, 1) / "errors.txt").read_text().count("irena") == 2  # for the client alone
    spends = Ledger.read(client_folder(tmp_path, 1) / LEDGER).spends
    assert spends == result["steps"]  # what was computed is counted, whether the server used it or not
    assert result["clients"]["1"]["rounds"] == result["rounds"] - 6
    assert result["clients"]["0"]["rounds"] == result["rounds"]


def test_an_old_answer_is_rejected(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny()
    clients = clients_of(settings, tmp_path)
    grid = local_grid(clients)
    from discreet.federated.flower import Transport, from_records, to_records

    transport, kept = Transport(grid, 1.0), {}

    def send(stage: str, messages: Mapping[int, Outgoing]) -> dict[int, Payload]:
        answers = transport.send(stage, messages)
        number = next(iter(messages.values())).values.get("round", 0)
        if stage == "update" and number == 1:
            kept[2] = answers[2]
        if stage == "update" and number == 3:
            answers[2] = kept[2]
        return answers

    server = Server(settings, tmp_path / "server", send, transport.lookup)
    server.run()
    assert "Stage update: the answer of client 2 was rejected" in log_of(tmp_path)
    assert from_records(to_records("update", Outgoing({"round": 1})))[1].values == {"round": 1}


def test_a_registered_node_that_comes_back_is_recognized_and_may_answer_late(tiny: Tiny, tmp_path: Path) -> None:
    from discreet.federated.flower import LocalGrid, Transport

    grid = local_grid(clients_of(tiny(), tmp_path))

    class Unsteady(LocalGrid):
        present: tuple[int, ...] = (1, 2)
        slow = True

        def get_node_ids(self) -> tuple[int, ...]:
            return self.present

        def pull_messages(self, message_ids: Any) -> Any:
            self.slow = not self.slow
            return super().pull_messages(message_ids) if self.slow else []

    unsteady = Unsteady(grid.apps, grid.contexts)
    transport = Transport(unsteady, 1.0)
    seen = []
    for present in ((1, 2), (1, 2), (2,), (1, 2), (1, 2)):
        unsteady.present = present
        transport.refresh()
        seen.append(dict(transport.nodes))
    assert seen == [{}, {0: 1, 1: 2}, {1: 2}, {1: 2}, {0: 1, 1: 2}] and unsteady.sent == 3


def test_a_client_without_budget_leaves_and_the_others_go_on(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(protect=DPSGD(epsilon=8.0))
    clients = clients_of(settings, tmp_path)
    run_in_process(settings, tmp_path)  # spends the budget
    for name in ("schedule.json", "checkpoint.safetensors"):
        (tmp_path / "server" / name).unlink()
    other = dataclasses.replace(settings, seed=1)  # other initial weights are other releases
    clients = [Client(other, 0, client_folder(tmp_path, 0)), *(Client(other, n, tmp_path / f"new-{n}") for n in (1, 2))]
    result = serve(other, tmp_path / "server", local_grid(clients))
    assert "Client 0 takes no further part" in log_of(tmp_path)
    assert json.loads(result["clients"]["0"]["guarantee"])["epsilon"] <= 8.0


class StoppedError(Exception):
    pass


def test_a_server_that_restarts_continues_and_costs_nothing_twice(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(protect=DPSGD(noise_multiplier=1.0))
    run_in_process(settings, tmp_path / "whole")
    for number in range(3):  # the same secrets, so that the results can be compared
        folder = client_folder(tmp_path / "parts", number)
        folder.mkdir(parents=True)
        (folder / "secret").write_text((client_folder(tmp_path / "whole", number) / "secret").read_text())

    apply = Server.apply

    def dies(server: Server, total: Any, optimizer: Any, train: Any, number: int, schedule: Schedule) -> None:
        if number in deaths:  # the clients have answered and spent, and the server has saved nothing of it
            deaths.remove(number)
            raise StoppedError
        apply(server, total, optimizer, train, number, schedule)

    deaths = [1, 3, 6]
    monkeypatch.setattr(Server, "apply", dies)
    for _ in range(3):
        with pytest.raises(StoppedError):
            run_in_process(settings, tmp_path / "parts")
    result = run_in_process(settings, tmp_path / "parts")
    for name, value in final(tmp_path / "whole").items():
        assert torch.equal(value, final(tmp_path / "parts")[name])
    for number in range(3):
        assert Ledger.read(client_folder(tmp_path / "parts", number) / LEDGER).spends == result["steps"]


def test_the_same_weights_get_the_same_answer_and_others_new_noise_at_a_cost(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(protect=DPSGD(noise_multiplier=1.0))
    client = Client(settings, 0, tmp_path / "client")
    weights = {n: p.detach().numpy().copy() for n, p in trained(client.model).items()}
    other = {name: value + np.float32(1e-3) for name, value in weights.items()}
    task = Assignment(1, 0, 1, 1, 10)  # a plan of one step
    first = client.update(task, weights).arrays
    client.close()
    client = Client(settings, 0, tmp_path / "client")  # a client that was restarted
    again = client.update(task, weights).arrays
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert Ledger.read(tmp_path / "client" / LEDGER).spends == 1
    moved = client.update(task, other).arrays
    back = client.update(task, weights).arrays  # computed again, with the noise of the first time
    assert Ledger.read(tmp_path / "client" / LEDGER).spends == 2
    stated = client.training(task).job.step.guarantee()
    assert stated is not None and stated.caveats == {Caveat.UNPLANNED_STEPS}  # no budget limits what a server may ask
    scale = client.training(task).plan.protect.noise_scale / 10  # type: ignore[union-attr]
    name = "head.weight"
    assert np.abs(moved[name] - first[name]).std() > 0.5 * scale  # the noise does not cancel
    np.testing.assert_allclose(back[name], first[name], atol=1e-6)
    client.close()


def test_weights_of_another_model_are_rejected(tiny: Tiny, tmp_path: Path) -> None:
    client = Client(tiny(), 0, tmp_path / "client")
    with pytest.raises(DataError, match="weights"):
        client.update(Assignment(1, 0, 1, 8, 10), {"head.weight": np.zeros((2, 2), np.float32)})


def test_an_interrupted_run_is_not_deleted_and_resumes(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(protect=DPSGD(noise_multiplier=1.0))

    reports: list[Any] = []
    options = FederateOptions(in_process=True, watch=reports.append, should_stop=lambda: len(reports) == 2)
    assert federate(settings, tmp_path / "fed", options) == {"out": str(tmp_path / "fed"), "finished": False}
    assert [report.round for report in reports] == [1, 2, 3]
    with pytest.raises(OutputError, match="unfinished"):
        federate(settings, tmp_path / "fed", FederateOptions(in_process=True))
    result = federate(settings, tmp_path / "fed", FederateOptions(in_process=True, resume=True))
    assert any("Resumed after round 3" in line for line in result["log"])
    assert "log" not in load_run(tmp_path / "fed").metrics
    for number in range(3):
        assert Ledger.read(client_folder(tmp_path / "fed", number) / LEDGER).spends == result["steps"]


def test_clients_are_in_the_record_of_the_same_people(tiny: Tiny, tmp_path: Path) -> None:
    from discreet.runs.people import People

    settings = tiny(protect=DPSGD(noise_multiplier=1.0))
    result = federate(settings, tmp_path / "fed", FederateOptions(in_process=True))
    records = People().records()
    assert len(records) == 3 and all(one.finished and one.spends == result["steps"] for one in records)


def test_changed_settings_are_not_resumed(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny()
    (tmp_path / "fed.unfinished" / "server").mkdir(parents=True)
    (tmp_path / "fed.unfinished" / "federation.toml").write_text(tiny(epochs=3).text())
    with pytest.raises(ModelError, match="changed"):
        federate(settings, tmp_path / "fed", FederateOptions(in_process=True, resume=True))


def test_a_round_without_any_client_ends_the_run(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(clients=1)
    clients: list[Any] = [Faulty(Client(settings, 0, tmp_path / "client-0"), {2: _fails})]
    with pytest.raises(RoundError):
        serve(settings, tmp_path / "server", local_grid(clients))
    assert log_of(tmp_path).count("tried again") == 5
