import json
import math
import subprocess
import sys

import pytest

from discreet.cli.main import main

TRAINING = ["spend", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "1000", "--delta", "1e-5"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_words_and_a_table_of_at_most_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAINING) == 0
    out = capsys.readouterr().out
    assert "Certified: differential privacy with epsilon = 1.829" in out
    assert "one record is present or absent" in out.replace("\n", " ")
    assert "at most 2.92% found at 1% false alarms" in out
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
    found = answer(capsys, "spend", *options)
    assert found["adjacency"] == adjacency
    assert found["epsilon"] == pytest.approx(epsilon, abs=1e-3)


def test_adjacency_and_visibility_change_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    replaced = answer(capsys, *TRAINING, "--adjacency", "replace-one")
    assert replaced["epsilon"] == pytest.approx(2.844, abs=1e-3)
    seen = answer(capsys, *TRAINING, "--adjacency", "replace-one", "--visible", "vectors")
    assert seen["epsilon"] == pytest.approx(14.82, abs=0.01)
    zeroed = answer(
        capsys, "spend", "--mechanism", "vmf", "--kappa", "300", "--dimension", "592130", "--adjacency", "zero-out"
    )
    assert zeroed["epsilon"] == pytest.approx(1.511, abs=1e-3)
    assert answer(capsys, *TRAINING, "--adjacency", "add-remove")["adjacency"] == "add/remove"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--noise-multiplier", "1", "--sampling-rate", "1.7"], "Expected sampling_rate=1.7 in [0, 1]"),
        (["--noise-multiplier", "-1"], "Expected noise_multiplier=-1.0 > 0"),
        (["--noise-multiplier", "nan"], "Expected noise_multiplier=nan"),
        (["--noise-multiplier", "1", "--delta", "0"], "Expected delta=0.0 in (0, 1)"),
        (["--mechanism", "vmf", "--kappa", "inf", "--dimension", "10"], "Expected kappa=inf"),
        (["--mechanism", "vmf", "--kappa", "1"], "Add --dimension"),
        (["--mechanism", "randomized-response", "--bias", "0.5"], "Expected bias=0.5 in (0, 0.5)"),
        (["--mechanism", "gausian", "--noise-multiplier", "1"], "Did you mean 'gaussian'"),
        (["--noise-multiplier", "1", "--adjacency", "replace"], "Did you mean 'replace-one'"),
        (["--noise-multiplier", "1", "--steps", "0"], "Expected steps=0"),
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
            "found Local. The release of a record that is absent would be missed",
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
    assert main(["spend", *options]) == 2
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
        ["spend", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "100"],
        ["solve", "--epsilon", "3", "--sampling-rate", "0.01", "--steps", "100"],
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
