"""`discreet check` and `discreet statement` believe no figure that the files of a release do not agree about."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.doors.edits import (
    ESTIMATE_EDITS,
    RUN_EDITS,
    changed,
    other_weights,
    restated,
    without_digests,
    without_lines,
)
from tests.statement.releases import rows_with_people
from tests.statement.releases import run_of as run_of

from discreet.accounting.events import GaussianDpEvent
from discreet.accounting.ledger import Ledger
from discreet.cli.main import main
from discreet.core.errors import LedgerError, ModelError
from discreet.core.guarantee import in_digits
from discreet.estimator import TextClassifier
from discreet.models.settings import TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.folder import guarantee_with_digests
from discreet.statement.facts import read_facts


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that checks a release against a policy that any figure meets, with its status and words."""
    policy = tmp_path / "policy.toml"
    policy.write_text("[guarantee]\nepsilon = 1e9\n")

    def of(path: Path, *more: str) -> tuple[int, str]:
        status = main(["check", str(path), "--policy", str(policy), *more])
        return status, " ".join(capsys.readouterr().err.split())

    return of


Check = Callable[..., tuple[int, str]]


@pytest.mark.parametrize("name", RUN_EDITS)
def test_an_edit_of_one_file_fails_the_gate(name: str, run_of: Callable[..., Path], check: Check) -> None:
    run = run_of("dp-sgd")
    assert check(run)[0] == 0
    RUN_EDITS[name](run)
    status, words = check(run)
    assert status == 2 and "Expected" in words
    assert main(["statement", str(run)]) == 2


@pytest.mark.parametrize("name", ESTIMATE_EDITS)
def test_an_estimate_cannot_be_edited_into_a_bound(name: str, run_of: Callable[..., Path], check: Check) -> None:
    run = run_of("dp-sgd", noise_seed=1)
    assert check(run)[0] == 0
    ESTIMATE_EDITS[name](run)
    assert check(run)[0] == 2
    restated(run, json.loads((run / "metrics.json").read_text()))  # digests that fit: the ledger still disagrees
    status, words = check(run)
    assert status == 2 and ("fixed-seed" in words or "an estimate" in words)


def test_the_error_names_both_figures(run_of: Callable[..., Path], check: Check) -> None:
    run = run_of("dp-sgd")
    true = json.loads((run / "metrics.json").read_text())["guarantee"]["epsilon"]
    changed(run / "metrics.json", guarantee__epsilon=0.1)
    _, words = check(run)
    assert "epsilon" in words and "0.1 at delta" in words and f"{in_digits(true)} at delta" in words
    run = run_of("dp-sgd")
    count = Ledger.read(run / "ledger.jsonl").spends
    without_lines(run / "ledger.jsonl", -1, 1)
    _, words = check(run)
    assert f"the {count} spends" in words and f"got {count - 1} in" in words


# Runs whose printed figure is not just the composition of one kind of step, or which write more than others.
HONEST: dict[str, tuple[str, dict[str, Any]]] = {
    "without a budget": ("dp-sgd", {"protect": {"epsilon": None, "noise_multiplier": 1.0}}),
    "a noise and a budget": ("dp-sgd", {"protect": {"epsilon": 6.0, "noise_multiplier": 1.0}}),
    "random allocation": ("dp-sgd", {"protect": {"sampler": "random-allocation"}}),
    "correlated noise": ("dp-sgd", {"protect": {"correlation": "lambda-cgd", "decay": 0.7}}),
    "add/remove": ("dp-sgd", {"population": 30}),
    "no step": ("dp-sgd", {"protect": {"epsilon": 2.0, "noise_multiplier": 1.0}}),
    "an audit": ("dp-sgd", {"audit": 100, "protect": {"epsilon": 2.0}}),
    "the paper of dp-ie": ("dp-ie", {"protect": {"calibration": "paper"}}),
    "dp-ie in every step": ("dp-ie", {"part": "all", "unit": "row"}),
    "the paper of ldp": ("ldp", {"protect": {"calibration": "paper", "mechanism": "gaussian"}}),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_runs_pass(name: str, run_of: Callable[..., Path], check: Check) -> None:
    kind, more = HONEST[name]
    assert check(run_of(kind, **more)) == (0, "")


def test_the_claim_of_a_paper_is_no_way_to_a_smaller_figure(run_of: Callable[..., Path], check: Check) -> None:
    run = run_of("dp-ie", protect={"calibration": "paper"})
    assert read_facts(run).guarantee is not None
    changed(run / "metrics.json", guarantee__epsilon=0.1)
    assert check(run)[0] == 2


def test_a_shared_ledger_may_hold_more_and_the_own_one_decides(
    run_of: Callable[..., Path], tmp_path: Path, check: Check
) -> None:
    shared = tmp_path / "shared.jsonl"
    with Ledger.open(shared, unit="patient", adjacency="zero-out") as ledger:
        ledger.spend(GaussianDpEvent(3.0), "another release")
    run = run_of("dp-sgd", ledger=shared)
    assert check(run) == (0, "") and check(run, "--ledger", str(shared)) == (0, "")
    changed(run / "metrics.json", guarantee__epsilon=0.1)
    assert check(run, "--ledger", str(shared))[0] == 2
    run = run_of("dp-sgd", ledger=shared)
    (run / "ledger.jsonl").unlink()
    assert check(run, "--ledger", str(shared))[0] == 2  # which of its spends are those of the run, nobody knows


def test_a_ledger_of_a_run_that_was_moved_is_recognized(
    run_of: Callable[..., Path], tmp_path: Path, check: Check
) -> None:
    run, elsewhere = run_of("dp-sgd"), tmp_path / "moved.jsonl"
    shutil.move(run / "ledger.jsonl", elsewhere)
    assert check(run)[0] == 2 and check(run, "--ledger", str(elsewhere)) == (0, "")
    without_lines(elsewhere, -1, 1)
    assert check(run, "--ledger", str(elsewhere))[0] == 2


def test_a_classifier_is_saved_with_its_ledger(
    tmp_path: Path, tiny_encoder: Callable[[str], Path], toy_rows: list[tuple[str, str]], check: Check
) -> None:
    texts, labels = zip(*toy_rows[:40], strict=True)
    settings = TrainSettings(epochs=1, batch_size=8)
    made = TextClassifier(str(tiny_encoder("bert")), protect=DPSGD(epsilon=6.0), training=settings, train="head")
    made.fit(texts, labels, groups=[row // 2 for row in range(40)]).save(tmp_path / "first")
    assert check(tmp_path / "first") == (0, "")
    TextClassifier.load(tmp_path / "first").save(tmp_path / "again")
    assert check(tmp_path / "again") == (0, "")
    changed(tmp_path / "again" / "metrics.json", guarantee__epsilon=0.1)
    assert check(tmp_path / "again")[0] == 2
    with pytest.raises(ModelError, match="It was edited"):
        TextClassifier.load(tmp_path / "again")


def test_weights_without_the_files_that_state_their_guarantee_do_not_pass_as_a_ledger(
    run_of: Callable[..., Path], check: Check
) -> None:
    run = run_of("dp-sgd")
    for name in ("metrics.json", "settings.toml"):
        (run / name).unlink()
    status, words = check(run, "--delta", "1e-5")
    assert status == 2 and "holds model.safetensors" in words
    assert main(["statement", str(run), "--delta", "1e-5"]) == 2


def test_the_ledger_of_an_unfinished_run_is_no_release(
    tmp_path: Path, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run.unfinished" / "client-0"
    folder.mkdir(parents=True)
    with Ledger.open(folder / "ledger.jsonl", unit="patient", adjacency="zero-out") as ledger:
        ledger.spend(GaussianDpEvent(2.0), "step 0")
    for path in (folder, folder / "ledger.jsonl"):
        status, words = check(path, "--delta", "1e-5")
        assert status == 2 and "got an unfinished run" in words
        assert main(["statement", str(path), "--delta", "1e-5"]) == 2
    folder.parent.rename(tmp_path / "run")
    assert not capsys.readouterr().out
    assert check(tmp_path / "run" / "client-0", "--delta", "1e-5") == (0, "")


def test_an_edited_figure_is_not_exported(run_of: Callable[..., Path], tmp_path: Path) -> None:
    run = run_of("dp-sgd")
    changed(run / "metrics.json", guarantee__epsilon=0.1)
    assert main(["export", str(run), "--out", str(tmp_path / "exported")]) == 2
    assert not (tmp_path / "exported").exists()


def test_a_sanitized_file_is_compared_with_its_statement(
    tmp_path: Path, tiny_encoder: Callable[[str], Path], check: Check
) -> None:
    rows = rows_with_people(tmp_path / "rows.csv", [("the heart was dull", "a"), ("a knee", "b")] * 4)
    out, stated = tmp_path / "clean.csv", tmp_path / "clean.csv.privacy.json"
    command = ["sanitize", str(rows), "--epsilon-per-word", "4", "--out", str(out), "--unit", "patient_id"]
    assert main([*command, "--model", str(tiny_encoder("bert"))]) == 0
    assert check(out)[0] == 0
    shutil.copy(out, tmp_path / "renamed.csv")
    shutil.copy(stated, tmp_path / "renamed.csv.privacy.json")
    assert check(tmp_path / "renamed.csv")[0] == 0
    kept = stated.read_text()
    for edit in (
        lambda: changed(stated, guarantee__epsilon=0.1),
        lambda: without_digests(stated, guarantee__epsilon=0.1),
        lambda: without_digests(stated, units=3),
        lambda: changed(stated, guarantee__assumptions=[]),
        lambda: changed(stated, unit="word"),
        lambda: changed(stated, spent={}),
        lambda: out.write_text(out.read_text() + "another,row,p9,f\n"),
    ):
        edit()
        assert check(out)[0] == 2
        stated.write_text(kept)


def test_a_folder_next_to_a_growing_ledger_keeps_its_figure(tmp_path: Path, check: Check) -> None:
    """As a checkpoint of the Trainer: the ledger lies in the folder above, and later steps are counted in it."""
    folder = tmp_path / "out" / "checkpoint-2"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    with Ledger.open(tmp_path / "out" / "ledger.jsonl", unit="patient", adjacency="zero-out") as ledger:
        for step in range(2):
            ledger.spend(GaussianDpEvent(2.0), f"step {step}")
        stated = ledger.guarantee(1e-5)
        values = guarantee_with_digests(stated, folder, ledger.statement)
        for step in range(2, 4):
            ledger.spend(GaussianDpEvent(2.0), f"step {step}")
    file = folder / "guarantee.json"
    file.write_text(json.dumps(values))
    assert check(folder) == (0, "")
    whole = replace(stated, epsilon=2 * stated.epsilon)  # the whole plan, before its last step: never too little
    file.write_text(json.dumps(guarantee_with_digests(whole, folder, Ledger.read(tmp_path / "out" / "ledger.jsonl"))))
    assert check(folder) == (0, "")
    without_digests(file, assumptions=[*stated.assumptions, "one more"])  # agrees with the ledger, but for any weights
    status, words = check(folder)
    assert status == 2 and "Expected 'digests'" in words
    for edit in (
        lambda: changed(file, epsilon=0.1),
        lambda: without_digests(file, epsilon=0.1),
        lambda: (folder / "model.safetensors").write_bytes(b"others"),
        lambda: without_lines(tmp_path / "out" / "ledger.jsonl", -3, 3),
    ):
        file.write_text(json.dumps(values))
        edit()
        assert check(folder)[0] == 2
        (folder / "model.safetensors").write_bytes(b"weights")


def test_a_federated_guarantee_holds_for_every_client(run_of: Callable[..., Path]) -> None:
    run = run_of("dp-sgd")
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "client-0").mkdir()
    shutil.move(run / "ledger.jsonl", run / "client-0")
    (run / "federation.toml").write_text('clients = 1\n[aggregation]\nname = "mean"\n[protect]\nname = "dp-sgd"\n')
    stated, client = metrics["guarantee"], {"client": 0, "units": 9, "guarantee": metrics["guarantee"]}
    restated(run, {**metrics, "clients": {"0": client}})
    read_facts(run)
    small = {**stated, "epsilon": 0.1}
    restated(run, {**metrics, "clients": {"0": client}, "guarantee": small})
    with pytest.raises(LedgerError, match="its client 0 to agree, got 0.1"):
        read_facts(run)
    restated(run, {**metrics, "clients": {"0": {**client, "guarantee": small}}, "guarantee": small})
    with pytest.raises(LedgerError, match="the ledger ledger.jsonl to agree, got 0.1"):
        read_facts(run)
    restated(run, {**metrics, "clients": {}, "guarantee": small})
    with pytest.raises(LedgerError, match="the ledger of client 0 to agree, got 0.1"):
        read_facts(run)
    restated(run, {**metrics, "clients": {"0": client}})
    without_lines(run / "client-0" / "ledger.jsonl", -1, 1)
    with pytest.raises(LedgerError, match="spends that metrics.json records"):
        read_facts(run)


EDITED: dict[str, dict[str, Any]] = {
    "digests are a text": {"digests": "none"},
    "ledgers are a list": {"digests__ledgers": []},
    "a ledger is a number": {"digests__ledgers": {"ledger.jsonl": 3}},
    "files are a list": {"digests__files": [1]},
    "epsilon is a word": {"guarantee__epsilon": "three"},
    "delta is a list": {"guarantee__delta": []},
    "the guarantee is a number": {"guarantee": 3},
    "the protection is a number": {"protection": 3},
}


@pytest.mark.parametrize("name", EDITED)
def test_values_of_another_kind_are_bad_input(name: str, run_of: Callable[..., Path], check: Check) -> None:
    run = run_of("dp-sgd")
    changed(run / "metrics.json", **EDITED[name])
    status, words = check(run)
    assert status == 2 and "Expected" in words
    assert main(["statement", str(run)]) == 2


@pytest.mark.parametrize("result", [{"lower_bound": "low"}, {"lower_bound": 1, "checks": [3]}, {"attack": "loss",
                         "leakage": [{}]}, {"lower_bound": 1, "not_tested": 3}])  # fmt: skip
def test_results_of_another_kind_are_bad_input(
    result: dict[str, Any], run_of: Callable[..., Path], tmp_path: Path, check: Check
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(result))
    status, words = check(run_of("dp-sgd"), "--results", str(tmp_path / "result.json"))
    assert status == 2 and "Expected the result of an attack or an audit" in words


@pytest.mark.parametrize("command", [["attack", "--attack", "loss"], ["audit"], ["evaluate"], ["predict"]])
def test_no_command_states_an_edited_figure(
    command: list[str], run_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.txt").write_text("the heart was dull\n")
    more = [str(tmp_path / "rows.txt")] if command == ["predict"] else []
    for edit in (lambda run: changed(run / "metrics.json", guarantee__epsilon=0.1), other_weights):
        run = run_of("dp-sgd", audit=100, protect={"epsilon": 2.0})
        whole = [command[0], str(run), *more, *command[1:], "--device", "cpu"]
        assert main(whole) == 0
        edit(run)
        capsys.readouterr()
        assert main(whole) == 2
        assert "to have the SHA-256" in " ".join(capsys.readouterr().err.split())


def test_digests_that_are_no_digests_are_named(run_of: Callable[..., Path]) -> None:
    run = run_of("plain")
    changed(run / "metrics.json", digests={"files": 3})
    with pytest.raises(ModelError, match="Expected digests of files and values"):
        read_facts(run)
