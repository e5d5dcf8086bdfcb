"""Every sentence that states a guarantee says the same: the terminal, the card, the metrics, the ledger and Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discreet.accounting.ledger import Ledger
from discreet.cli.main import main
from discreet.core.guarantee import Caveat, Guarantee
from discreet.local.client import UserSide

HEAD = ("--train", "head")
RUNS: dict[str, tuple[str, ...]] = {
    "dp-sgd": ("--protect", "dp-sgd", "--noise-multiplier", "1", *HEAD),
    "dp-sgd budget": ("--protect", "dp-sgd", "--epsilon", "4", *HEAD),
    "dp-sgd all": ("--protect", "dp-sgd", "--noise-multiplier", "1", "--train", "all"),
    "dir-dp-sgd": ("--protect", "dir-dp-sgd", "--kappa", "5", *HEAD),
    "texthide": ("--protect", "texthide", "--masks", "4", "--mix", "2", *HEAD),
    "dp-ie": ("--protect", "dp-ie", "--epsilon", "8", *HEAD),
    "dp-ie trained encoder": ("--protect", "dp-ie", "--epsilon", "8", "--train", "all"),
    "ldp": ("--protect", "ldp", "--epsilon", "8", "--dimension", "8", "--query-dimension", "8"),
    "ldp fixed": (
        "--protect", "ldp", "--epsilon", "8", "--dimension", "8", "--query-dimension", "8", "--sampling", "fixed",
        "--mechanism", "gaussian", "--label-epsilon", "2",
    ),
    "ldp visible labels": (
        "--protect", "ldp", "--epsilon", "8", "--dimension", "8", "--query-dimension", "8", "--sampling", "fixed",
        "--mechanism", "gaussian",
    ),
    "santext": ("--protect", "santext", "--epsilon-per-word", "4", *HEAD),
    "word-noise": ("--protect", "word-noise", "--epsilon-per-word", "4", *HEAD),
}  # fmt: skip
# Where a run cannot have a proof, and why; with a fixed seed that is added.
CAVEATS = {
    "dp-ie trained encoder": {Caveat.TRAINED_ENCODER},
    "ldp visible labels": {Caveat.VISIBLE_LABELS},
}
NONE = {"texthide"}


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCREET_HOME", str(tmp_path / "home"))


@pytest.fixture
def trained(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, own_home: None
) -> Callable[[str, bool], Path]:
    """Return a function that trains on the command line and returns the run folder."""

    def go(name: str, fixed: bool) -> Path:
        public = tmp_path / "public.csv"
        public.write_text("text,label\n" + "".join(f"a slow film {i},{i % 2}\n" for i in range(40)), encoding="utf-8")
        more = ["--public", str(public)] if name.startswith("ldp") else []
        more += ["--noise-seed", "3"] if fixed else []
        model = ["--model", str(tiny_encoder("bert")), "--epochs", "1", "--batch-size", "20"]
        model += ["--classes", "clinic,ward"]
        assert main(["train", str(toy_csv), "--out", str(tmp_path / "run"), *model, *RUNS[name], *more]) == 0
        return tmp_path / "run"

    return go


def facts(values: dict[str, Any]) -> tuple[Any, ...]:
    """Return what every statement must agree on."""
    figure = None if values["epsilon"] is None else pytest.approx(values["epsilon"])
    return (values["certified"], figure, values["delta"], values["unit"], values["adjacency"], values["caveats"])


@pytest.mark.parametrize("fixed", [False, True], ids=["secret", "fixed seed"])
@pytest.mark.parametrize("name", list(RUNS))
def test_all_statements_of_a_run_agree(
    name: str, fixed: bool, trained: Callable[[str, bool], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(name, fixed)
    shown = " ".join(capsys.readouterr().out.split())
    metrics = json.loads((run / "metrics.json").read_text())["guarantee"]
    card = " ".join((run / "README.md").read_text().split())
    # What it should say.
    caveats = CAVEATS.get(name, set()) | ({Caveat.FIXED_SEED} if fixed else set())
    assert set(metrics["caveats"]) == caveats
    assert (metrics["epsilon"] is None) is (name in NONE)
    assert metrics["certified"] is (not caveats and name not in NONE)
    assert any("secret seed" in said for said in metrics["assumptions"]) is not fixed
    # The terminal and the card say it in the same words.
    sentence = " ".join(metrics["sentence"].split())
    assert sentence in shown and sentence in card
    opening = "No guarantee" if name in NONE else "Certified" if metrics["certified"] else "Estimate, not a bound"
    assert sentence.startswith(opening)
    # The ledger says it, on the command line and in Python, without being told anything.
    assert main(["ledger", str(run), "--delta", repr(metrics["delta"]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["guarantee"]
    assert facts(told) == facts(metrics)
    read = Ledger.read(run / "ledger.jsonl").guarantee(metrics["delta"])
    assert facts(read.as_dict()) == facts(metrics)
    if name not in NONE:
        assert set(metrics["assumptions"]) == set(told["assumptions"]) == set(read.assumptions)
    assert main(["ledger", str(run), "--delta", repr(metrics["delta"])]) == 0
    assert opening in " ".join(capsys.readouterr().out.split())


def test_a_paper_calibration_is_an_estimate_beside_a_ledger_that_prices_the_noise(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, own_home: None
) -> None:
    model = ["--model", str(tiny_encoder("bert")), "--epochs", "1", "--batch-size", "20", *HEAD]
    paper = ["--protect", "dp-ie", "--epsilon", "8", "--calibration", "paper"]
    assert main(["train", str(toy_csv), "--out", str(tmp_path / "run"), *model, *paper]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())["guarantee"]
    read = Ledger.read(tmp_path / "run" / "ledger.jsonl").guarantee(metrics["delta"])
    assert not metrics["certified"] and metrics["caveats"] == [Caveat.PAPER_CALIBRATION]
    assert read.certified and read.epsilon > metrics["epsilon"]


def test_a_fixed_seed_taints_every_later_statement_of_a_shared_ledger(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(tiny_encoder("bert")), "--epochs", "1", "--batch-size", "20", *RUNS["dp-sgd"]]
    shared = ["--classes", "clinic,ward", "--ledger", str(tmp_path / "all.jsonl")]
    for name, more in (("a", []), ("b", ["--noise-seed", "3"]), ("c", [])):
        assert main(["train", str(toy_csv), "--out", str(tmp_path / name), *model, *shared, *more]) == 0
        assert main(["ledger", str(tmp_path / "all.jsonl"), "--delta", "1e-5"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert ("Estimate, not a bound: differential privacy" in shown.split("all.jsonl: for each")[1]) is (name != "a")


def test_a_client_and_its_ledger_agree(
    trained: Callable[[str, bool], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("ldp", False)
    with UserSide.load(run / "client") as user:
        user.protect(["the heart was calm"])
        spent = user.spent()
    assert spent.certified
    capsys.readouterr()
    assert main(["ledger", str(run / "client"), "--delta", repr(spent.delta), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["guarantee"]
    assert facts(told) == facts(spent.as_dict()) and set(told["assumptions"]) == set(spent.assumptions)


def test_a_client_with_a_fixed_seed_or_a_private_encoder_says_so_in_its_ledger(
    trained: Callable[[str, bool], Path],
) -> None:
    run = trained("ldp", False)

    def asked(**changes: Any) -> tuple[Guarantee, Guarantee]:
        from dataclasses import replace

        from discreet.core.randomness import Rng

        with UserSide.load(run / "client") as loaded:
            user = replace(loaded, rng=Rng(3)) if changes.get("fixed") else replace(loaded, public=False, reason="why")
            user.protect(["the heart was calm"])
            return user.spent(), user.ledger.guarantee(user.delta)

    for changes, caveat in (({"fixed": True}, Caveat.FIXED_SEED), ({}, Caveat.PRIVATE_CLIENT)):
        said, held = asked(**changes)
        assert not said.certified and not held.certified and caveat in said.caveats and caveat in held.caveats
