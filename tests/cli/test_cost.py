"""What a mechanism costs and what a budget allows."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from discreet.cli.main import main

TRAINING = ["cost", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "1000", "--delta", "1e-5"]
BUDGET = ["cost", "--epsilon", "3", "--sampling-rate", "0.01"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_words_and_a_table_of_at_most_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAINING) == 0
    out = capsys.readouterr().out
    assert "Certified: differential privacy with epsilon = 1.829" in out
    assert "one record is present or absent" in out.replace("\n", " ")
    assert "at most 2.92% true positives at 1% false positives" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_holds_the_whole_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *TRAINING)
    assert found["epsilon"] == pytest.approx(1.829, abs=1e-3)
    assert {k: found[k] for k in ("delta", "accountant", "adjacency", "certified", "unit", "reason")} == {
        "delta": 1e-5,
        "accountant": "pld",
        "adjacency": "add/remove",
        "certified": True,
        "unit": "record",
        "reason": None,
    }
    estimate = answer(capsys, *TRAINING, "--accountant", "gdp", "--unit", "note")
    assert estimate["certified"] is False
    assert estimate["epsilon"] == pytest.approx(1.618, abs=1e-3)
    assert estimate["unit"] == "note"


@pytest.mark.parametrize(
    ("options", "adjacency", "epsilon"),
    [
        (["--mechanism", "gaussian", "--noise-multiplier", "1"], "add/remove", 4.377),
        (["--mechanism", "laplace", "--noise-multiplier", "2", "--delta", "0"], "add/remove", 0.5),
        (["--mechanism", "vmf", "--kappa", "300", "--dimension", "592130"], "replace-one", 3.289),
        (["--mechanism", "privunit", "--local-epsilon", "2", "--delta", "0"], "replace-one", 2.0),
        (["--mechanism", "randomized-response", "--bias", "0.25", "--delta", "0"], "replace-one", math.log(3)),
        (
            ["--mechanism", "randomized-response", "--local-epsilon", "1.5", "--choices", "7", "--delta", "0"],
            "replace-one",
            1.5,
        ),
    ],
)
def test_every_mechanism_has_its_own_default_adjacency(
    capsys: pytest.CaptureFixture[str], options: list[str], adjacency: str, epsilon: float
) -> None:
    found = answer(capsys, "cost", *options)
    assert found["adjacency"] == adjacency
    assert found["epsilon"] == pytest.approx(epsilon, abs=1e-3)


def test_adjacency_and_visibility_change_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    replaced = answer(capsys, *TRAINING, "--adjacency", "replace-one")
    assert replaced["epsilon"] == pytest.approx(2.844, abs=1e-3)
    seen = answer(capsys, *TRAINING, "--adjacency", "replace-one", "--visible", "vectors")
    assert seen["epsilon"] == pytest.approx(14.82, abs=0.01)
    zeroed = answer(
        capsys, "cost", "--mechanism", "vmf", "--kappa", "300", "--dimension", "592130", "--adjacency", "zero-out"
    )
    assert zeroed["epsilon"] == pytest.approx(1.511, abs=1e-3)
    assert answer(capsys, *TRAINING, "--adjacency", "add-remove")["adjacency"] == "add/remove"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--noise-multiplier", "1", "--sampling-rate", "1.7"], "Expected --sampling-rate to be in [0, 1]"),
        (["--noise-multiplier", "-1"], "Expected --noise-multiplier to be > 0"),
        (["--noise-multiplier", "nan"], "Expected --noise-multiplier to be"),
        (["--noise-multiplier", "1", "--delta", "0"], "Expected --delta to be in (0, 1)"),
        (["--mechanism", "vmf", "--kappa", "inf", "--dimension", "10"], "Expected --kappa to be"),
        (["--mechanism", "vmf", "--kappa", "1"], "Add --dimension"),
        (["--mechanism", "randomized-response", "--bias", "0.5"], "Expected --bias to be in (0, 0.5)"),
        (["--mechanism", "gausian", "--noise-multiplier", "1"], "Did you mean 'gaussian'"),
        (["--noise-multiplier", "1", "--adjacency", "replace"], "Did you mean 'replace-one'"),
        (["--noise-multiplier", "1", "--steps", "0"], "Expected --steps to be"),
        ([], "Add --noise-multiplier"),
        (["--mechanism", "vmf", "--kappa", "1", "--dimension", "9", "--adjacency", "add/remove"], "VonMisesFisher"),
        (["--noise-multiplier", "1", "--visible", "vectors"], "VisibleVectors of ClippedSum"),
        (
            ["--noise-multiplier", "1", "--visible", "vectors", "--sampling-rate", "0.99"],
            "VisibleVectors of ClippedSum",
        ),
        (["--mechanism", "privunit", "--local-epsilon", "1", "--adjacency", "add/remove"], "VisibleVectors of Local"),
        (
            ["--mechanism", "privunit", "--local-epsilon", "1", "--adjacency", "add/remove", "--visible", "sum"],
            "got Local. The release of an absent record is visibly missing",
        ),
        (
            [
                "--mechanism",
                "privunit",
                "--local-epsilon",
                "1",
                "--adjacency",
                "add/remove",
                "--visible",
                "sum",
                "--sampling-rate",
                "0.01",
            ],
            "PoissonSampled of Local. Each release is visible",
        ),
        (
            [
                "--mechanism",
                "randomized-response",
                "--local-epsilon",
                "1",
                "--visible",
                "sum",
                "--sampling-rate",
                "0.01",
            ],
            "PoissonSampled of RandomizedResponse",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_value_rule_and_remedy(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["cost", *options]) == 2
    caught = capsys.readouterr()
    assert said in " ".join(caught.err.split())
    assert caught.out == ""


def test_the_answer_comes_without_the_slow_imports() -> None:
    """About a second and a half of computing; torch and transformers alone would take several."""
    command = [sys.executable, "-X", "importtime", "-m", "discreet", *TRAINING]
    traced = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1.829" in traced.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in traced.stderr.splitlines()}
    assert "dp_accounting" in imported
    assert not imported & {"torch", "transformers", "tokenizers", "sklearn", "pyarrow", "faiss", "pandas"}


def test_json_has_the_bound_for_any_attack_that_the_table_has(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["cost", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "100"],
        ["cost", "--epsilon", "3", "--sampling-rate", "0.01", "--steps", "100"],
    ):
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["any_attack"]
        assert found["at_false_positives"] == 0.01 and 0.01 < found["most_true_positives"] < 1
        assert main(command) == 0
        shown = " ".join(capsys.readouterr().out.split())
        percent = float(shown.partition("any attack at most ")[2].partition("%")[0])
        assert 0 <= percent / 100 - found["most_true_positives"] < 1e-3


def test_the_command_alone_shows_its_help_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "sanitize" in capsys.readouterr().out


def test_the_least_noise_is_found_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *BUDGET, "--steps", "10000")
    assert found["noise_multiplier"] == pytest.approx(1.567, abs=2e-3)
    assert 2.99 < found["epsilon"] <= 3.0
    assert found["certified"] is True
    assert main([*BUDGET, "--steps", "10000"]) == 0
    out = capsys.readouterr().out
    assert "noise multiplier" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--sampling-rate", "0.01", "--steps", "10000"], "noise_multiplier"),  # 1.56704…, and not 1.567
        (["--mechanism", "privunit", "--delta", "1e-9"], "local_epsilon"),  # 2.99988, and not 2.9999
        (["--noise-multiplier", "1", "--steps", "1000", "--for", "rate"], "sampling_rate"),
    ],
)
def test_what_is_printed_keeps_the_budget_too(capsys: pytest.CaptureFixture[str], options: list[str], key: str) -> None:
    exact = answer(capsys, "cost", "--epsilon", "3", *options)[key]
    assert main(["cost", "--epsilon", "3", *options]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    name = key.replace("_", " ")
    told = float(next(line for line in lines if line.startswith(name)).removeprefix(name))
    assert told == pytest.approx(exact, rel=1e-4)
    assert told >= exact if key == "noise_multiplier" else told <= exact


def test_steps_and_rates_are_found_too(capsys: pytest.CaptureFixture[str]) -> None:
    steps = answer(capsys, *BUDGET, "--noise-multiplier", "1", "--for", "steps")
    assert steps["steps"] == 2664
    assert steps["epsilon"] <= 3.0
    rate = answer(capsys, "cost", "--epsilon", "3", "--noise-multiplier", "1", "--steps", "1000", "--for", "rate")
    assert rate["sampling_rate"] == pytest.approx(0.01576, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (["--mechanism", "laplace", "--delta", "1e-9"], "noise_multiplier", 1 / 3),
        (["--mechanism", "vmf", "--dimension", "592130"], "kappa", 276.7),
        (["--mechanism", "privunit", "--delta", "1e-9"], "local_epsilon", 3.0),
        (["--mechanism", "randomized-response", "--steps", "10", "--delta", "1e-9"], "local_epsilon", 0.3),
    ],
)
def test_every_mechanism_can_be_solved_for(
    capsys: pytest.CaptureFixture[str], options: list[str], key: str, value: float
) -> None:
    found = answer(capsys, "cost", "--epsilon", "3", *options)
    assert found[key] == pytest.approx(value, rel=0.01)
    assert found["epsilon"] <= 3.0 + 1e-9


def test_a_risk_can_be_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "cost", "--true-positive-rate", "0.05", "--false-positive-rate", "0.01")
    assert found["noise_multiplier"] == pytest.approx(1.467, abs=1e-3)
    sharp = answer(
        capsys,
        "cost",
        "--true-positive-rate",
        "0.05",
        "--mechanism",
        "vmf",
        "--dimension",
        "1000",
        "--adjacency",
        "zero-out",
    )
    assert sharp["kappa"] == pytest.approx(21.5, abs=0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--for", "noise"], "Add --epsilon 3"),
        (
            ["--epsilon", "3", "--true-positive-rate", "0.05"],
            "Expected --epsilon to be given where --true-positive-rate is not",
        ),
        (["--epsilon", "-3"], "Expected --epsilon to be > 0"),
        (["--epsilon", "3", "--delta", "0"], "Expected --delta to be in (0, 1), got 0.0"),
        (["--epsilon", "3", "--for", "money"], "Expected --for to be one of noise, steps, rate, got 'money'"),
        (["--epsilon", "3", "--for", "steps"], "Add --noise-multiplier"),
        (["--true-positive-rate", "0.05", "--for", "steps"], "Use --epsilon"),
        (["--true-positive-rate", "0.005"], "Random guessing"),
        (["--epsilon", "3", "--noise-multiplier", "1"], "left out when solving for the noise"),
    ],
)
def test_what_cannot_be_solved_is_refused(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main(["cost", *options]) == 2
    assert said in capsys.readouterr().err


def test_cost_without_noise_or_budget_says_what_to_add(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost"]) == 2
    assert "Add --noise-multiplier" in capsys.readouterr().err
    assert main(["cost", "--for", "steps", "--noise-multiplier", "1"]) == 2
    assert "Add --epsilon 3" in capsys.readouterr().err


def test_the_overview_names_cost_and_not_its_old_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert " cost " in out and " spend " not in out and " solve " not in out
