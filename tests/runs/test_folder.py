import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from safetensors import SafetensorError

from discreet.accounting.events import GaussianDpEvent
from discreet.accounting.ledger import Ledger
from discreet.core.errors import LedgerError, ModelError, OutputError, SettingError
from discreet.core.files import save_tensors
from discreet.core.randomness import Rng
from discreet.data.sources import TextSource, load
from discreet.experiment import RunRequest, SceneRequest, load_scene, train_once
from discreet.models.build import encode
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.texthide import TextHide
from discreet.runs.checkpoint import LEDGER
from discreet.runs.folder import begin, in_yaml, load_run, prepared, read_settings, workspace_of
from discreet.training.evaluation import predict


def request(toy_csv: Path, encoder: str, **changes: object) -> RunRequest:
    return RunRequest(
        TextSource(str(toy_csv)), ModelSettings(encoder=encoder, **changes), TrainSettings(epochs=2, learning_rate=1e-2)
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "gpt2", "bilstm"])
def test_a_run_comes_back_from_disk_as_it_was(
    kind: str, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    encoder = "bilstm" if kind == "bilstm" else str(tiny_encoder(kind))
    parts = {"bert": "pooler+head", "gpt2": "top-1", "bilstm": "head"}.get(kind, "all")
    asked = request(toy_csv, encoder, train=parts, pooling="last" if kind == "gpt2" else "mean")
    done = train_once(asked, tmp_path / "a").values()
    run = load_run(tmp_path / "a")
    assert run.settings.model == asked.model
    assert run.metrics["utility"] == done["utility"]
    rows = load(toy_csv).split("validation")
    found = predict(run.model, rows)
    again = predict(load_run(tmp_path / "a").model, rows)
    np.testing.assert_array_equal(found.values, again.values)
    accuracy = np.mean(found.best == np.array(rows.labels))
    assert accuracy == pytest.approx(done["utility"]["accuracy"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_a_run_of_another_format_is_rejected(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    train_once(request(toy_csv, str(tiny_encoder("bert")), train="head"), tmp_path / "a")
    path = tmp_path / "a" / "settings.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("format = 5", "format = 4"), encoding="utf-8")
    with pytest.raises(ModelError, match="Expected a run of format 5 in .*, got 4"):
        load_run(tmp_path / "a")
    with pytest.raises(ModelError, match="Expected a run of format 5"):
        load_scene(SceneRequest(run=tmp_path / "a"))


def test_the_card_and_settings_hold_no_word_of_the_texts(
    toy_csv: Path, toy_rows: list[tuple[str, str]], tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    train_once(request(toy_csv, str(tiny_encoder("bert")), train="head"), tmp_path / "a")
    for name in ("README.md", "settings.toml", "metrics.json"):
        words = set((tmp_path / "a" / name).read_text(encoding="utf-8").lower().replace("`", " ").split())
        assert not {"heart", "knee"} & words, name


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OutputError, match="It exists; choose another out"):
        workspace_of(tmp_path / "a", resume=False)
    assert not (tmp_path / "a.unfinished").exists()


def test_an_unfinished_run_is_neither_lost_nor_invented(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="There is none; start without resume"):
        workspace_of(tmp_path / "a", resume=True)
    workspace = workspace_of(tmp_path / "a", resume=False)
    begin(workspace)
    (workspace / "checkpoint.safetensors").write_bytes(b"x")
    with pytest.raises(OutputError, match=r"Resume it \(resume=True\)"):
        workspace_of(tmp_path / "a", resume=False)
    assert workspace_of(tmp_path / "a", resume=True) == workspace
    with pytest.raises(ModelError, match="unfinished: resume it with the command"):
        load_run(tmp_path / "a")


def test_a_refused_run_leaves_nothing_but_what_was_saved_or_spent(tmp_path: Path) -> None:
    def refused(workspace: Path, first: Callable[[], object] = lambda: None) -> None:
        with pytest.raises(SettingError), prepared(workspace):
            first()
            raise SettingError("Mix fewer.")

    workspace = workspace_of(tmp_path / "a", resume=False)
    refused(workspace)
    assert not workspace.exists()
    refused(workspace, lambda: Ledger.open(workspace / LEDGER, unit="note", adjacency="add/remove").close())
    assert not workspace.exists()

    def spend() -> None:
        with Ledger.open(workspace / LEDGER, unit="note", adjacency="add/remove") as ledger:
            ledger.spend(GaussianDpEvent(2.0), id="step 1")

    refused(workspace, spend)
    assert (workspace / LEDGER).exists()
    workspace = workspace_of(tmp_path / "b", resume=False)
    refused(workspace, lambda: (workspace / "checkpoint.safetensors").write_bytes(b"x"))
    assert workspace.exists()


def test_a_refused_run_leaves_alone_the_folder_of_a_run_that_has_not_spent_yet(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path / "a", resume=False)
    with prepared(workspace), Ledger.open(workspace / LEDGER, unit="note", adjacency="add/remove") as running:
        (workspace / "secret").write_text("00", encoding="ascii")
        second = workspace_of(tmp_path / "a", resume=True)
        with pytest.raises(LedgerError, match="to be unlocked"), prepared(second):
            Ledger.open(second / LEDGER, unit="note", adjacency="add/remove")
        running.spend(GaussianDpEvent(2.0), id="step 1")
        assert (workspace / "secret").exists()
        assert Ledger.read(workspace / LEDGER).spends == 1


def test_settings_that_do_not_fit_leave_no_folder(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    asked = replace(request(toy_csv, str(tiny_encoder("bert")), head="mlp"), protect=TextHide(mix=1000))
    with pytest.raises(SettingError, match="mix to be .*, got 1000"):
        train_once(asked, tmp_path / "a")
    assert list(tmp_path.glob("a*")) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("No space left on device (os error 28)"),
    ],
    ids=["by the system", "by safetensors"],
)
def test_no_space_leaves_no_run_behind(
    error: Exception,
    toy_csv: Path,
    tiny_encoder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OutputError, match="No space left on device.*Free some space"):
        train_once(request(toy_csv, str(tiny_encoder("bert")), train="head"), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="Check the path and its permissions"):
        begin(workspace_of(tmp_path / "file" / "a", resume=False))


def test_what_is_no_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Expected a run folder.*Check the path"):
        load_run(tmp_path)


def test_cut_off_weights_are_refused(toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    train_once(request(toy_csv, str(tiny_encoder("bert")), train="head"), tmp_path / "a")
    weights = tmp_path / "a" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="Expected a complete safetensors file"):
        load_run(tmp_path / "a")


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_run_needs_a_name(name: str) -> None:
    with pytest.raises(OutputError, match="Give it a name"):
        workspace_of(Path(name), resume=False)


def test_a_cache_that_is_full_or_damaged_only_costs_time(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    rows = load(toy_csv).split("train")
    model = Classifier.build(rows, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    expected = encode(model, rows, tmp_path).vectors
    (kept,) = tmp_path.glob("*.safetensors")
    kept.write_bytes(b"damaged")
    assert torch.equal(encode(model, rows, tmp_path).vectors, expected)
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    assert torch.equal(encode(model, rows, blocked / "cache").vectors, expected)


def test_a_damaged_run_is_refused(toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    train_once(request(toy_csv, str(tiny_encoder("bert")), train="head"), tmp_path / "a")
    (tmp_path / "a" / "encoder.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="Expected a complete run folder"):
        load_run(tmp_path / "a")


def test_tensors_are_never_readable_by_others_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    save = safetensors.torch.save_file

    def watched(values: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
        seen.append(path.stat().st_mode & 0o777)
        save(values, path, metadata=metadata)
        seen.append(path.stat().st_mode & 0o777)

    monkeypatch.setattr(safetensors.torch, "save_file", watched)
    save_tensors({"vectors": torch.ones(3)}, tmp_path / "a.safetensors")
    assert seen == [0o600, 0o600]


@pytest.mark.parametrize("found", ["", 'format = "4"\n', "format = 3\n"])
def test_settings_of_another_format_are_rejected(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, found: str
) -> None:
    train_once(request(toy_csv, str(tiny_encoder("bert")), train="head"), tmp_path / "a")
    path = tmp_path / "a" / "settings.toml"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert any(line.startswith("format = ") for line in lines)
    path.write_text("".join(found if line.startswith("format = ") else line for line in lines), encoding="utf-8")
    with pytest.raises(ModelError, match="Expected a run of format"):
        read_settings(path)


@pytest.mark.parametrize(
    "text", ["1e-05", "yes", "", "- a: b # c\n\n  d\n", 'say "no"\\', "naïve 😀\u2028\x07", "0o17", "~"]
)
def test_front_matter_is_read_back_by_every_version_of_yaml(text: str) -> None:
    shared = [1e-05, 12345678901234567890, True, None, -0.5]
    values = {"name": text, "nested": {"list": [text, {"deep": text}], "one": shared, "two": shared}}
    written = in_yaml(values)
    assert yaml.safe_load(written) == values
    # YAML 1.2 reads more plain words as numbers than 1.1, and fewer as booleans: no text is plain, and nothing is
    # an alias, which some readers of model cards reject
    assert f"name: {yaml.dump(text, default_style=chr(34), allow_unicode=True, width=1e9)}" in written
    assert "&" not in written and "*" not in written
