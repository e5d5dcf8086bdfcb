"""A federated run with a secure sum: the same model as with a plain mean, and the server's record."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet.accounting.ledger import Ledger
from discreet.core.files import load_tensors
from discreet.federated.aggregation import RoundError
from discreet.federated.client import CLIENT_LEDGER
from discreet.federated.run import run_in_process
from discreet.federated.secure_sum.aggregations import SecureSum
from discreet.federated.settings import Federation
from discreet.runs.checkpoint import LEDGER

Tiny = Callable[..., Federation]


def final(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "server" / "final.safetensors")[0]


@pytest.mark.parametrize("exchange", ["gradients", "weights"])
def test_the_model_is_that_of_the_plain_mean(tiny: Tiny, tmp_path: Path, exchange: str) -> None:
    options = {"exchange": exchange, "local_steps": 2 if exchange == "weights" else 1, "epochs": 2}
    run_in_process(tiny(**options), tmp_path / "mean")
    settings = tiny(**options, aggregation=SecureSum(), record=True)
    run_in_process(settings, tmp_path / "secure")
    plain, secure = final(tmp_path / "mean"), final(tmp_path / "secure")
    for name, value in plain.items():
        torch.testing.assert_close(secure[name], value, rtol=0, atol=2e-5)
    assert Federation.from_values({**_values(settings)}).aggregation == SecureSum()


def _values(settings: Federation) -> dict[str, object]:
    import tomllib

    return tomllib.loads(settings.text())


def test_the_record_holds_uniform_numbers_and_no_update(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(train="all", aggregation=SecureSum(), record=True, epochs=0.1)
    run_in_process(settings, tmp_path)
    files = sorted((tmp_path / "server" / "record").rglob("update-client-*.safetensors"))
    assert len(files) >= 3
    for path in files:
        tensors, _ = load_tensors(path)
        words = tensors["masked"].numpy().view(np.uint8)
        counts = np.bincount(words.ravel(), minlength=256)
        expected = counts.sum() / 256
        degrees_of_freedom = 255
        deviation = (((counts - expected) ** 2 / expected).sum() - degrees_of_freedom) / (2 * degrees_of_freedom) ** 0.5
        assert abs(deviation) < 6
        assert set(tensors) == {"masked"}


def test_noise_of_the_clients_is_in_the_ledger_of_the_server(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(aggregation=SecureSum(epsilon=5.0, delta=1e-3, clip_norm=0.1), epochs=1)
    run_in_process(settings, tmp_path)
    result = json.loads((tmp_path / "server" / "result.json").read_text())
    stated = result["client_guarantee"]
    assert stated["certified"] and 4.9 < stated["epsilon"] <= 5.0 and stated["unit"] == "client"
    assert any("keep it secret" in one for one in stated["assumptions"])
    assert not any("trusted" in one for one in stated["assumptions"])
    # the server learns how large a client's data is, and neither its loss nor its score
    assert all(set(row) == {"client", "units", "unit", "rows", "rounds"} for row in result["clients"].values())
    own = Ledger.read(tmp_path / "client-1" / CLIENT_LEDGER)
    assert own.unit == "client" and own.spends == result["rounds"]
    assert own.guarantee(1e-3).epsilon == pytest.approx(stated["epsilon"])
    # A server that forgets what it spent, and asks for as many rounds again, gets no more updates.
    for name in ("schedule.json", "checkpoint.safetensors", LEDGER):
        (tmp_path / "server" / name).unlink()
    with pytest.raises(RoundError):
        run_in_process(settings, tmp_path)
    assert "Client 1 takes no further part" in (tmp_path / "server" / "log.txt").read_text()
    assert Ledger.read(tmp_path / "client-1" / CLIENT_LEDGER).spends == own.spends


def test_a_round_goes_on_without_a_client_whose_update_is_nan(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from discreet.federated.aggregation import Update
    from discreet.federated.client import Client

    honest = Client.update

    def update(self: Client, *arguments: Any) -> Update:
        result = honest(self, *arguments)
        if self.number == 2:
            for array in result.arrays.values():
                array.fill(np.nan)
        return result

    monkeypatch.setattr(Client, "update", update)
    run_in_process(tiny(clients=4, aggregation=SecureSum(), epochs=1), tmp_path)
    log = (tmp_path / "server" / "log.txt").read_text()
    assert "without client 2" in log and "DataError" in log and "finite numbers" not in log
    assert "finite numbers" in (tmp_path / "client-2" / "errors.txt").read_text()
    assert all(bool(torch.isfinite(value).all()) for value in final(tmp_path).values())
    # with one client more than may drop out, the round has no result
    monkeypatch.setattr(Client, "update", lambda self, *arguments: update(self, *arguments) if self.number else 1 / 0)
    with pytest.raises(RoundError):
        run_in_process(tiny(clients=4, aggregation=SecureSum(), epochs=1), tmp_path / "again")


def test_a_client_whose_update_is_nan_answers_as_always_if_noise_protects_clients(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That an update is invalid depends on the client's text, and the noise of a sum without it would not hide that."""
    from discreet.federated.client import Client

    honest = Client.update

    def update(self: Client, *arguments: Any) -> Any:
        result = honest(self, *arguments)
        for array in result.arrays.values() if self.number == 2 else ():
            array.fill(np.nan)
        return result

    monkeypatch.setattr(Client, "update", update)
    result = run_in_process(tiny(aggregation=SecureSum(noise_multiplier=1.0), epochs=0.5), tmp_path)
    assert [row["rounds"] for row in result["clients"].values()] == [result["rounds"]] * 3
    assert not (tmp_path / "server" / "log.txt").exists()
    assert "counts as zero" in (tmp_path / "client-2" / "errors.txt").read_text()
