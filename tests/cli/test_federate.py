"""`discreet federate`: one command from data or a study to a run folder, and an app to deploy."""

import dataclasses
import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.federated.settings import Federation
from discreet.runs.folder import load_run


def test_a_file_becomes_a_federated_run(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fed"
    words = ["federate", str(toy_csv), "--model", str(tiny_encoder("bert")), "--train", "head", "--epochs", "2"]
    words += ["--clients", "3", "--protect", "dp-sgd", "--epsilon", "8", "--in-process", "--out", str(out)]
    words += ["--classes", "clinic,ward"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Clients" in shown and "The server saw each update." in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if not line.startswith("Written to"))
    assert load_run(out).metrics["guarantee"]["certified"]
    assert main(words) == 2 and "Expected no folder" in capsys.readouterr().err
    assert main(["evaluate", str(out)]) == 0
    assert main(["ledger", str(out)]) == 2 and "client-0" in capsys.readouterr().err
    assert main(["ledger", str(out / "client-0")]) == 0
    assert main(["statement", str(out)]) == 0 and "client with the largest epsilon" in capsys.readouterr().out


def test_defaults_of_the_training_are_written_with_the_run(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "fed"
    words = ["federate", str(toy_csv), "--model", str(tiny_encoder("bert")), "--train", "head", "--clients", "2"]
    assert main([*words, "--protect", "dp-sgd", "--epsilon", "8", "--in-process", "--out", str(out)]) == 0
    train = load_run(out).settings.training
    assert train.epochs == 40 and train.batch_size == 64 and train.learning_rate == 0.02
    assert "| epochs, batch, rate | 40, 64, 0.02 |" in (out / "README.md").read_text()


def test_a_study_becomes_a_federated_run(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        f'name = "toy"\n[data]\nsource = "{toy_csv}"\n[model]\nencoder = "{tiny_encoder("bert")}"\ntrain = "head"\n'
        '[training]\nepochs = 1\n[[protect]]\nname = "none"\n[[protect]]\nname = "dp-sgd"\nepsilon = [2, 8]\n'
    )
    words = ["federate", str(study), "--clients", "2", "--in-process", "--json", "--out", str(tmp_path / "fed")]
    assert main(words) == 2 and "one protection" in capsys.readouterr().err
    words += ["--protect", "dp-sgd", "--epsilon", "4"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["clients"]) == 2 and result["guarantee"]["epsilon"] <= 4


def test_equal_parts_are_rejected_where_a_column_names_units(
    toy_rows: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "units.csv"
    path.write_text("text,label,who\n" + "".join(f"{t},{y},{i % 40}\n" for i, (t, y) in enumerate(toy_rows)))
    words = ["federate", str(path), "--unit", "who", "--partition", "equal", "--in-process"]
    assert main([*words, "--out", str(tmp_path / "fed")]) == 2
    error = capsys.readouterr().err
    assert "--partition" in error and "Rows of one who stay at one client" in " ".join(error.split())


@pytest.mark.filterwarnings("error")
def test_a_setting_of_the_protection_does_not_hide_the_partition(tmp_path: Path) -> None:
    folder = tmp_path / "my-app"
    words = ["federate", "app", str(folder), "--classes", "a,b", "--clients", "2", "--partition", "files"]
    assert main([*words, "--protect", "dp-sgd", "--noise-multiplier", "1"]) == 0
    assert Federation.read(folder / "discreet_federation" / "federation.toml").protect is not None


def test_an_app_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my-app"
    words = ["federate", "app", str(folder), "--clients", "3", "--protect", "dp-sgd", "--epsilon", "3"]
    assert main(words) == 2 and "--classes" in capsys.readouterr().err
    central = ["federate", "app", str(folder), "--classes", "a,b", "--aggregation", "central-dp", "--epsilon", "8"]
    assert main(central) == 2 and "--aggregation-set epsilon=8" in capsys.readouterr().err
    assert main([*words, "--classes", "a,b"]) == 0
    assert "flwr run" in capsys.readouterr().out
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["components"]["clientapp"] == "discreet_federation.client_app:app"
    settings = Federation.read(folder / "discreet_federation" / "federation.toml")
    assert settings.clients == 3 and settings.classes == ("a", "b") and settings.partition == "files"
    from flwr.cli.config_utils import load_and_validate

    _, warnings = load_and_validate(folder / "pyproject.toml")
    assert not warnings


def test_a_node_with_a_limit_stays_out_of_a_run_that_exceeds_it() -> None:
    from discreet.core.errors import LedgerError
    from discreet.data.sources import TextSource
    from discreet.federated.flower import with_own_settings
    from discreet.models.settings import ModelSettings, TrainSettings
    from discreet.protections.dp_sgd import DPSGD

    settings = Federation(TextSource("notes"), ModelSettings(), TrainSettings(), 2, DPSGD(epsilon=4.0))
    own = with_own_settings(settings, 1, {"data": "mine.csv", "epsilon": 5.0})
    assert own.source_of(1).source == "mine.csv" and own.protect == settings.protect
    with pytest.raises(LedgerError, match="at most 3"):
        with_own_settings(settings, 1, {"epsilon": 3.0})
    loose = dataclasses.replace(settings, protect=DPSGD(epsilon=4.0, delta=1e-3))
    with pytest.raises(LedgerError, match="delta"):
        with_own_settings(loose, 1, {"epsilon": 5.0})
    assert with_own_settings(loose, 1, {"epsilon": 5.0, "delta": 1e-3}) == loose
    with pytest.raises(LedgerError, match="secret"):
        with_own_settings(dataclasses.replace(settings, noise_seed=0), 1, {"epsilon": 5.0})


@pytest.mark.parametrize("option", ["--clients", "--local-steps"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_no_client_and_no_step_are_rejected(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    words = ["federate", str(toy_csv), "--exchange", "weights", "--in-process", "--out", str(tmp_path / "fed")]
    assert main([*words, option, value]) == 2
    assert f"Expected {option} to be an integer >= 1" in capsys.readouterr().err
    assert not (tmp_path / "fed").exists()
