"""A short run of the fuzzer over every target, and each kind of input that it has broken something with, kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tools.fuzz import Found, explore, in_child
from tools.fuzz import main as fuzz
from tools.fuzz_mutations import mutated
from tools.fuzz_targets import TARGETS, Case, Target

from discreet.core.errors import DataError, DiscreetError, LedgerError, SettingError

INPUTS = {"readers": 300, "toml": 300, "http": 600, "ledgers": 300, "runs": 120}


@pytest.mark.parametrize("name", list(TARGETS))
def test_hostile_inputs_are_read_or_rejected(name: str, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    target = TARGETS[name](tmp_path / "scratch")
    found = explore(target, 3, 0, INPUTS[name], float("inf"), tmp_path / "failures")
    target.close()
    assert not found.failures
    assert found.inputs == INPUTS[name]
    assert len(found.outcomes) > 1  # some are read and some are not


def test_inputs_depend_on_seed_and_number_alone(tmp_path: Path) -> None:
    import random

    for name in ("readers", "toml", "http", "ledgers"):
        (tmp_path / name).mkdir()
        target = TARGETS[name](tmp_path / name)
        assert [target.case(1, n) for n in range(20)] == [target.case(1, n) for n in range(20)]
        assert target.case(1, 0) != target.case(2, 0)
        target.close()
    assert mutated([b"a,b\n"], random.Random(5)) == mutated([b"a,b\n"], random.Random(5))


class Bad(Target):
    """Does what no target should, so that the fuzzer is seen to notice."""

    name = "bad"

    def case(self, seed: int, number: int) -> Case:
        return Case(bytes([number]), "bad")

    def give(self, case: Case) -> str:
        what = case.data[0]
        if what == 1:
            raise KeyError("raw")
        if what == 2:
            raise DataError("one\ntwo")
        if what == 3:
            return "x" * len([None] * (1 << 40))
        if what == 4:
            import os

            os.abort()
        if what == 5:
            while True:
                pass
        if what == 6:
            (self.scratch / "torn").write_bytes(b"half")
        return "read"

    def check(self, case: Case) -> None:
        if (self.scratch / "torn").exists():
            (self.scratch / "torn").unlink()
            raise AssertionError("left behind")


def test_the_fuzzer_notices_every_kind_of_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.fuzz.SECONDS", 0.2)
    found: Found = in_child(Bad(tmp_path), 0, 0, 8, float("inf"), tmp_path / "failures")
    assert found.inputs == 8
    kinds = " ".join(found.failures)
    for kind in ("KeyError", "AssertionError", "MemoryError", "ends with -6", "Hang"):
        assert kind in kinds, kinds
    assert found.outcomes["failure"] == 6
    saved = {Path(failure["saved"]).read_bytes() for failure in found.failures.values()}
    assert {b"\x01", b"\x03", b"\x04", b"\x05"} <= saved


def test_the_command_reports_and_exits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert fuzz(["--target", "http", "--inputs", "50", "--failures", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["inputs"], told["failures"]) == (50, {})


@pytest.mark.parametrize(
    "text",
    [
        "epochs = " + "9" * 5000,
        "a = " + "[" * 3000 + "]" * 3000,
        "name = 'x'\nseeds = 0x" + "f" * 6000,
        "name = 'x'\n" + "A" * 9000 + " = 1",
        "[data]\nsource = 'notes'\n[[protect]]\nname = ['dp-sgd']",
    ],
)
def test_toml_that_breaks_its_reader_is_rejected(tmp_path: Path, text: str) -> None:
    from discreet.runs.folder import read_settings
    from discreet.study.file import read_study

    path = tmp_path / "a.toml"
    for read, first in ((read_study, ""), (read_settings, "format = 5\n")):
        path.write_text(first + text, encoding="utf-8")
        with pytest.raises(SettingError) as error:
            read(path)
        assert len(str(error.value)) < 3000
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "table",
    [
        {"metrics": 7},
        {"metrics": [7]},
        {"metrics": [["rouge_l"]]},
        {"candidates": float("inf")},
        {"examples": "many"},
        {"examples": None},
    ],
)
def test_a_study_with_values_of_another_kind_is_rejected(table: dict[str, Any]) -> None:
    from discreet.study.file import Study, check

    study = Study("x", {"source": "notes"}, ({"name": "none"},), ({"name": "one-of-n", **table},))
    with pytest.raises(SettingError):
        check(study)


def test_numbers_that_no_float_holds_are_rejected() -> None:
    from discreet.core.errors import one_of, positive, shown, whole
    from discreet.data.labels import outcome

    for value in (float("inf"), float("nan"), "x", None, [1]):
        with pytest.raises(SettingError):
            whole("n", value)  # type: ignore[arg-type]
        with pytest.raises(SettingError):
            positive("x", value)  # type: ignore[arg-type]
    with pytest.raises(SettingError):
        positive("x", 10**400)
    with pytest.raises(SettingError):
        one_of("name", 3, ["a"])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="finite"):
        outcome([("a.jsonl", [0.5, 10**400])])
    assert shown(10**5000) == "a int that is too long to show"


@pytest.mark.parametrize(
    "fields",
    [
        {"unit": 7},
        {"unit": None},
        {"adjacency": "sideways"},
        {"adjacency": ["add/remove"]},
        {"budget": {"epsilon": 1.0, "delta": 1e-5, "more": 1}},
        {"budget": [1]},
        {"budget": {"epsilon": -1, "delta": 2}},
    ],
)
def test_a_ledger_with_a_forged_first_line_is_rejected(tmp_path: Path, fields: dict[str, Any]) -> None:
    from discreet.accounting.ledger import Ledger
    from discreet.accounting.ledger_file import seal

    values = {"discreet-ledger": 1, "name": "a", "unit": "note", "adjacency": "add/remove", "budget": None, **fields}
    body = json.dumps(values, separators=(",", ":")).encode()[:-1] + b',"check":'
    path = tmp_path / "a.jsonl"
    path.write_bytes(seal(b"", body, b"}"))
    with pytest.raises(LedgerError, match="line 1"):
        Ledger.read(path)


@pytest.mark.parametrize(
    "body", [b'["\xec",0,', b'{"event":' + b"[" * 100000 + b',"check":', b'{"event":1e999,"check":']
)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_ledger_with_a_forged_later_line_is_rejected(tmp_path: Path, body: bytes, end: bytes) -> None:
    from discreet.accounting.events import GaussianDpEvent
    from discreet.accounting.ledger import Ledger
    from discreet.accounting.ledger_file import seal

    path = tmp_path / "a.jsonl"
    with Ledger.open(path, unit="note", adjacency="add/remove") as ledger:
        ledger.spend(GaussianDpEvent(1.0), "one")
    held = path.read_bytes()
    line = seal(held[-19:-3], body, b"]" if body[:1] == b"[" else b"}")
    path.write_bytes(held + line.rstrip(b"\n") + end)
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.read(path)


def test_parquet_with_bytes_that_are_no_text_or_values_of_two_kinds_is_rejected(tmp_path: Path) -> None:
    from discreet.data.tables import read_columns, read_table, render

    seed = (Path(__file__).parents[3] / "tools" / "fuzz_seeds" / "plain.parquet").read_bytes()
    path = tmp_path / "a.parquet"
    for old, new in ((b"a knee", b"a \xf7\xff\xfee"), (b"\x04text", b"\x04\xf7\xff\xfet"), (b"text", b"\xf7\xfe\xfdt")):
        path.write_bytes(seed.replace(old, new))
        with pytest.raises(DataError):
            table = read_table(path)
            for name in table.names:
                table.column(name, "text")
    mixed = tmp_path / "a.jsonl"
    mixed.write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "x"}\n', encoding="utf-8")
    found = read_columns(str(mixed), ".jsonl", ("text",))
    with pytest.raises(DataError, match="values of one type in column 'n' for Parquet"):
        render(found, found.texts, ".parquet")


@pytest.mark.parametrize("row", [{"n": "\ud800"}, {"n\ud800": "x"}])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_half_a_surrogate_pair_is_never_written(tmp_path: Path, row: dict[str, Any], suffix: str) -> None:
    from discreet.data.tables import read_columns, render

    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a", **row}) + "\n", encoding="utf-8")
    found = read_columns(str(path), ".jsonl", ("text",))
    with pytest.raises(DataError, match="half a surrogate pair"):
        render(found, found.texts, suffix)


def test_a_label_that_is_no_unicode_is_rejected() -> None:
    from discreet.data.labels import outcome

    with pytest.raises(DataError, match="valid Unicode in row 2"):
        outcome([("a.jsonl", ["a", "b\ud800"])])


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert"},  # of its usual size, 110 million weights
        {"model_type": "bert", "hidden_size": 10**6, "num_attention_heads": 1},
        {"model_type": "bert", "num_hidden_layers": 10**9, "hidden_size": 8, "num_attention_heads": 1},
        {"model_type": "bert", "vocab_size": 10**12},
        {"model_type": "bert", "intermediate_size": float("-inf")},
        {"model_type": ["bert"]},
        {},
        [],
    ],
)
def test_an_encoder_that_is_described_as_huge_is_rejected_before_it_is_made(config: Any) -> None:
    import torch

    from discreet.core.errors import ModelError
    from discreet.models.encoder import fresh_module

    for kind in ("transformers", "bilstm"):
        with pytest.raises(ModelError, match=r"encoder\.json"):
            fresh_module({"kind": kind, "config": config}, {"a": torch.zeros(100)})


def test_an_error_lists_some_of_many_columns(tmp_path: Path) -> None:
    from discreet.data.tables import read_table

    path = tmp_path / "a.csv"
    path.write_text(",".join(f"c{i}{'x' * 300}" for i in range(500)) + "\n" + ",".join("1" * 500) + "\n")
    with pytest.raises(DataError, match="and 460 more") as error:
        read_table(path).column("text", "text")
    assert len(str(error.value)) < 3000


def test_a_long_message_keeps_its_beginning_and_its_remedy() -> None:
    said = str(DiscreetError("Expected " + "x" * 9000 + ". Mend it."))
    assert said.startswith("Expected x")
    assert said.endswith(" Mend it.".strip())
    assert len(said) < 2600


@pytest.mark.parametrize(
    ("body", "rejected"),
    [
        (b'{"vectors": [[0.5, 1, 2, 3, 4, 5]]}', False),
        (b'\t{"vectors" :\r\n[[ 5e-1, 1E+0, -2, 3, 4, 5]]} ', False),
        (b'{"vectors": [[true, 0.5, 1, 2, 3, 4]]}', True),
        (b'{"vectors": [[0.5, 1, 2, 3, 4, false]]}', True),
        (b'{"vectors": [[1, 1, 1, 1, 1, 1]], "vectors": [[0, 0, 0, 0, 0, 0]]}', True),
        (b'{"vectors": "a text", "vectors": [[0, 0, 0, 0, 0, 0]]}', True),
    ],
)
def test_a_body_with_truth_values_or_a_key_twice_is_rejected(tmp_path: Path, body: bytes, rejected: bool) -> None:
    target: Any = TARGETS["http"](tmp_path)
    headers = [(b"host", b"127.0.0.1:8766"), (b"content-type", b"application/json"), (b"x-discreet-key", b"key")]
    extra = {"path": "/v1/answers", "method": "POST", "headers": headers, "cuts": [], "gone": False}
    assert target.give(Case(body, "serve", extra)) == ("422" if rejected else "200")
    target.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"sentence": "a cough"}', "200"),
        (b'{"sentence": "a cough", "sentence": "another"}', "400"),
        (b'{"sentence": "a", "dials": {"epsilon": 1, "epsilon": 2}}', "400"),
        (b'{"sentence": "a", "label": "x' + b"y" * 9000 + b'", "more": 1}', "422"),
    ],
)
def test_the_explorer_rejects_a_key_twice(tmp_path: Path, body: bytes, status: str) -> None:
    target: Any = TARGETS["http"](tmp_path)
    headers = [(b"host", b"127.0.0.1:8766"), (b"content-type", b"application/json"), (b"x-discreet-key", b"key")]
    extra = {"path": "/v1/readings", "method": "POST", "headers": headers, "cuts": [], "gone": False}
    assert target.give(Case(body, "explore", extra)) == status
    target.close()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda line: {**line, "settings": {}}, "line 1"),
        (lambda line: {**line, "settings": {"protect": 7}}, "line 1"),
        (lambda line: {**line, "utility": {"accuracy": "x"}}, "line 1"),
        (lambda line: {**line, "utility": [1]}, "line 1"),
        (lambda line: {**line, "leakages": [{"metric": "a/b"}]}, "line 1"),
        (lambda line: {**line, "leakages": 7}, "line 1"),
        (lambda line: {**line, "details": []}, "line 1"),
        (lambda line: {**line, "seed": 1e999}, "line 1"),
    ],
)
def test_a_trial_of_another_shape_is_rejected(tmp_path: Path, change: Any, what: str) -> None:
    from tools.fuzz_folders import save_sweep

    from discreet.study import read_result

    save_sweep(tmp_path)
    read_result(tmp_path)
    lines = (tmp_path / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    lines[0] = json.dumps(change(json.loads(lines[0])))
    (tmp_path / "trials.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=what):
        read_result(tmp_path)
    for name in ("trials.jsonl", "study.json"):
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(DataError, match="Expected to read"):
            read_result(tmp_path)
        (tmp_path / name).rmdir()
        (tmp_path / name).write_text("{}\n", encoding="utf-8")
