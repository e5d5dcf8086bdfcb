import json

import pytest

from discreet.cli.main import main

TRAINING = ["solve", "--epsilon", "3", "--sampling-rate", "0.01"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, float] = json.loads(capsys.readouterr().out)
    return found


def test_the_least_noise_is_found_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *TRAINING, "--steps", "10000")
    assert found["noise_multiplier"] == pytest.approx(1.567, abs=2e-3)
    assert 2.99 < found["epsilon"] <= 3.0
    assert found["certified"] is True
    assert main([*TRAINING, "--steps", "10000"]) == 0
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
    exact = answer(capsys, "solve", "--epsilon", "3", *options)[key]
    assert main(["solve", "--epsilon", "3", *options]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    name = key.replace("_", " ")
    told = float(next(line for line in lines if line.startswith(name)).removeprefix(name))
    assert told == pytest.approx(exact, rel=1e-4)
    assert told >= exact if key == "noise_multiplier" else told <= exact


def test_steps_and_rates_are_found_too(capsys: pytest.CaptureFixture[str]) -> None:
    steps = answer(capsys, *TRAINING, "--noise-multiplier", "1", "--for", "steps")
    assert steps["steps"] == 2664
    assert steps["epsilon"] <= 3.0
    rate = answer(capsys, "solve", "--epsilon", "3", "--noise-multiplier", "1", "--steps", "1000", "--for", "rate")
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
    found = answer(capsys, "solve", "--epsilon", "3", *options)
    assert found[key] == pytest.approx(value, rel=0.01)
    assert found["epsilon"] <= 3.0 + 1e-9


def test_a_risk_can_be_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "solve", "--true-positive-rate", "0.05", "--false-positive-rate", "0.01")
    assert found["noise_multiplier"] == pytest.approx(1.467, abs=1e-3)
    sharp = answer(
        capsys,
        "solve",
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
        ([], "Add --epsilon 3"),
        (
            ["--epsilon", "3", "--true-positive-rate", "0.05"],
            "Expected epsilon=3.0 or else true_positive_rate",
        ),
        (["--epsilon", "-3"], "Expected epsilon=-3.0 > 0"),
        (["--epsilon", "3", "--delta", "0"], "Expected delta=0.0"),
        (["--epsilon", "3", "--for", "money"], "Expected for='money' in noise, steps, rate"),
        (["--epsilon", "3", "--for", "steps"], "Add --noise-multiplier"),
        (["--true-positive-rate", "0.05", "--for", "steps"], "Use --epsilon"),
        (["--true-positive-rate", "0.005"], "Guessing blindly"),
        (["--epsilon", "3", "--noise-multiplier", "1"], "left out when the noise is what is sought"),
    ],
)
def test_what_cannot_be_solved_is_refused(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main(["solve", *options]) == 2
    assert said in capsys.readouterr().err
