"""Attacks on the recorded messages of a federated run, in each view."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from discreet.attacks.identification import OneOfN
from discreet.attacks.rows import EmbeddingRows
from discreet.cli.main import main
from discreet.core.errors import DataError, SettingError, UnsupportedError
from discreet.data.sources import TextSource
from discreet.experiment.attack.recorded import Recorded, has_record
from discreet.experiment.attack.request import AttackRequest
from discreet.experiment.attack.runner import attack_once
from discreet.federated.run import FederateOptions, federate
from discreet.federated.secure_sum.aggregations import SecureSum
from discreet.federated.settings import Federation
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.protections.dp_sgd import DPSGD

Run = Callable[..., Path]


@pytest.fixture
def recorded_run(tiny_encoder: Callable[[str], Path], toy_csv: Path, tmp_path: Path) -> Run:
    """Return a function that trains a tiny federation of three clients with recorded messages."""

    def run(name: str = "fed", optimizer: str = "sgd", **changes: Any) -> Path:
        train = TrainSettings(
            epochs=0.2, batch_size=6, learning_rate=0.05, optimizer=optimizer, gradient_norm=1e6, warmup=0.0
        )
        model = ModelSettings(encoder=str(tiny_encoder("bert")), dropout=0.0)
        values: dict[str, Any] = {"clients": 3, "record": True, "classes": ("clinic", "ward")}
        settings = Federation(TextSource(str(toy_csv)), model, train, **(values | changes))
        federate(settings, tmp_path / name, FederateOptions(in_process=True))
        return tmp_path / name

    return run


def test_the_server_reads_a_plain_run(recorded_run: Run) -> None:
    folder = recorded_run()
    assert has_record(folder)
    found = attack_once(AttackRequest(EmbeddingRows(), name="embedding-rows", examples=4), Recorded(folder))
    assert found.release["view"] == "server" and found.leakages[0].value == 1.0
    named = attack_once(AttackRequest(OneOfN(), name="one-of-n", examples=6, candidates=8), Recorded(folder))
    assert named.leakages[0].value == 1.0 and named.leakages[0].chance == 1 / 8
    json.dumps(found.as_dict(), allow_nan=False)


def test_recorded_messages_are_attacked_until_there_are_the_requested_examples(recorded_run: Run) -> None:
    recorded = Recorded(recorded_run())
    for examples in (1, 2, 3):
        request = AttackRequest(EmbeddingRows(), name="embedding-rows", examples=examples)
        found = attack_once(request, recorded).examples
        before_last = [one for one in found if one.batch != found[-1].batch]
        assert len(before_last) < examples <= len(found)


def test_noise_of_the_clients_is_in_the_messages(recorded_run: Run) -> None:
    folder = recorded_run(protect=DPSGD(epsilon=2.0, clip_norm=0.1))
    recorded = Recorded(folder)
    one = recorded.observed()[0]
    protect = recorded.protection(one.clients[0])
    flat = torch.cat([value.reshape(-1) for value in one.gradients.values()])
    assert flat.std().item() == pytest.approx(recorded.noise(one), rel=0.1)
    assert recorded.noise(one) == pytest.approx(protect.noise_scale / recorded.schedule.batches[one.clients[0]])
    named = attack_once(AttackRequest(OneOfN(), name="one-of-n", examples=12, candidates=16), Recorded(folder))
    assert named.leakages[0].value <= 0.5


def test_a_client_computes_the_gradient_of_the_others_from_weights(recorded_run: Run) -> None:
    folder = recorded_run()
    recorded = Recorded(folder, "client-1")
    seen = recorded.observed()
    assert [one.round for one in seen] == list(range(1, recorded.schedule.rounds + 1))
    for one in seen:
        assert one.clients == (0, 2)
        answers = next(r for r in recorded.rounds if r.number == one.round).answers
        sizes = recorded.schedule.sizes
        for name, value in one.gradients.items():
            mean = sum(sizes[c] * answers["update", c][name] for c in one.clients) / sum(sizes[c] for c in one.clients)
            torch.testing.assert_close(value, mean, rtol=1e-2, atol=20 * one.rounding)
    with pytest.raises(SettingError, match="view"):
        Recorded(folder, "client-7").observed()


def test_adaptive_steps_do_not_show_a_client_the_gradient(recorded_run: Run) -> None:
    with pytest.raises(UnsupportedError, match="sgd"):
        Recorded(recorded_run(optimizer="adamw"), "client-0").observed()


def test_a_secure_sum_shows_the_server_only_the_sum_and_the_wire_nothing(recorded_run: Run) -> None:
    folder = recorded_run(aggregation=SecureSum())
    recorded = Recorded(folder)
    seen = recorded.observed()
    assert seen and all(one.clients == (0, 1, 2) for one in seen) and Recorded(folder, "wire").observed() == []
    with pytest.raises(UnsupportedError, match="masked"):
        attack_once(AttackRequest(OneOfN(), name="one-of-n", examples=2, candidates=4), Recorded(folder, "wire"))


def test_the_command_attacks_the_record(recorded_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded_run()
    words = ["attack", str(folder), "--attack", "embedding-rows", "--examples", "2", "--json"]
    assert main([*words, "--view", "wire"]) == 0
    assert json.loads(capsys.readouterr().out)["release"]["view"] == "wire"
    assert main(["attack", "--view", "server"]) == 2


def test_a_run_without_a_record_is_rejected(recorded_run: Run) -> None:
    folder = recorded_run(record=False)
    assert not has_record(folder)
    with pytest.raises(DataError, match="Record"):
        Recorded(folder)
