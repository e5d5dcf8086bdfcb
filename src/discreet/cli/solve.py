"""`discreet solve`: how much noise, how many steps or how large a draw a budget buys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json
from discreet.cli.progress import working
from discreet.cli.spend import (
    Accountant,
    AdjacencyName,
    Bias,
    Choices,
    Delta,
    Dimension,
    Kappa,
    LocalEpsilon,
    Mechanism,
    Noise,
    Rate,
    Steps,
    Unit,
    Use,
    Visible,
    amount_of,
    any_attack,
    refuse_foreign,
    risk_of,
    show,
)
from discreet.core.checks import one_of, open_probability, positive, refuse
from discreet.core.guarantee import in_digits

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

_DIGITS = 5
_SOUGHT = {
    "gaussian": "noise_multiplier",
    "laplace": "noise_multiplier",
    "vmf": "kappa",
    "privunit": "local_epsilon",
    "randomized-response": "local_epsilon",
}


def solve(
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The budget.")] = None,
    sought: Annotated[str, typer.Option("--for", help="What to find: noise, steps or rate.")] = "noise",
    true_positives: Annotated[
        float | None,
        typer.Option(
            "--true-positive-rate",
            help="Instead of epsilon: the most any membership test may find.",
        ),
    ] = None,
    false_positives: Annotated[
        float,
        typer.Option(
            "--false-positive-rate",
            help="With --true-positive-rate: at this share of false alarms.",
        ),
    ] = 0.01,
    mechanism: Mechanism = "gaussian",
    noise_multiplier: Noise = None,
    kappa: Kappa = None,
    dimension: Dimension = None,
    local_epsilon: LocalEpsilon = None,
    bias: Bias = None,
    choices: Choices = 2,
    sampling_rate: Rate = 1.0,
    steps: Steps = 1,
    delta: Delta = 1e-5,
    adjacency: AdjacencyName = None,
    accountant: Accountant = "pld",
    visible: Visible = None,
    unit: Unit = "record",
    json: Json = False,
) -> None:
    """Find the least noise, the most steps or the largest sampling rate for a budget."""
    use = Use.of(mechanism, sampling_rate, steps, adjacency, visible, dimension, choices)
    one_of("for", sought, ("noise", "steps", "rate"))
    open_probability("delta", delta, "A solver needs a delta above 0.")
    if (epsilon is None) == (true_positives is None):
        remedy = "Add --epsilon 3, or --true-positive-rate 0.05."
        raise refuse("epsilon", epsilon, "or else true_positive_rate, not both", remedy)
    if epsilon is not None:
        positive("epsilon", epsilon)
    elif sought != "noise":
        raise refuse("for", sought, "noise with --true-positive-rate", "Use --epsilon for steps and rates.")
    if sought == "noise":
        strengths = {"noise_multiplier": noise_multiplier, "kappa": kappa, "local_epsilon": local_epsilon, "bias": bias}
        refuse_foreign(mechanism, allowed=False, **strengths)
    with working(f"solving for {sought}"):
        from discreet.accounting.interpret import guarantee

        if sought == "noise":
            amount = _noise(use, epsilon, delta, accountant, true_positives, false_positives)
            event, answer = use.event(amount), {_SOUGHT[mechanism]: amount}
            if mechanism == "randomized-response" and choices == 2:
                answer["bias"] = math.tanh(amount / 2) / 2
        else:
            amount = amount_of(mechanism, noise_multiplier, kappa, local_epsilon, bias)
            event, answer = _steps_or_rate(use, sought, amount, float(epsilon or 0.0), delta, accountant)
        found = guarantee(event, delta=delta, adjacency=use.adjacency, accountant=accountant, unit=unit)
        risk = risk_of(event, found)
    said: dict[str, Any] = {"mechanism": mechanism, "sampling_rate": sampling_rate, "steps": steps, **answer}
    if json:
        as_json({**found.as_dict(), **said, "any_attack": any_attack(risk)})
        return
    solved = {name: shown(name, value) for name, value in answer.items()}
    given = {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in said.items()}
    show(found, {name.replace("_", " "): value for name, value in {**given, **solved}.items()}, risk)


def shown(name: str, value: float) -> str:
    """Return what was solved for in few digits that keep the budget: noise is rounded up, all else down.

    >>> shown("noise_multiplier", 1.000014), shown("kappa", 276.679), shown("kappa", 3.0), shown("steps", 1234567)
    ('1.0001', '276.67', '3', '1234567')
    """
    if isinstance(value, int):
        return str(value)
    if name == "noise_multiplier":
        return in_digits(value, _DIGITS)
    text = f"{value:.{_DIGITS}g}"
    if float(text) <= value * (1 + 1e-9):
        return text
    return f"{float(text) - 10.0 ** (math.floor(math.log10(value)) - _DIGITS + 1):.{_DIGITS}g}"


def _noise(
    use: Use, epsilon: float | None, delta: float, accountant: str, true_positives: float | None, false_positives: float
) -> float:
    from discreet.accounting.calibrate import largest_rate, least_noise

    stronger = use.mechanism in ("gaussian", "laplace")
    if epsilon is None:
        from discreet.accounting.risk import least_noise_for_risk

        found = least_noise_for_risk(
            use.event if stronger else lambda weakness: use.event(1 / weakness),
            true_positive_rate=float(true_positives or 0.0),
            false_positive_rate=false_positives,
            adjacency=use.adjacency,
            low=1e-3 if stronger else 1e-5,
        )
        return found if stronger else 1 / found
    if stronger:
        return least_noise(use.event, epsilon=epsilon, delta=delta, adjacency=use.adjacency, accountant=accountant)
    # kappa and the epsilon of one use only add to the cost; in d dimensions kappa is felt as 2 kappa / sqrt(d)
    guess = max(epsilon, 0.1) * math.sqrt(use.dimension or 4) / 8
    return largest_rate(
        use.event,
        epsilon=epsilon,
        delta=delta,
        adjacency=use.adjacency,
        accountant=accountant,
        low=1e-6,
        high=1e7 if use.mechanism == "vmf" else 500.0,
        guess=guess,
    )


def _steps_or_rate(
    use: Use, sought: str, amount: float, epsilon: float, delta: float, accountant: str
) -> tuple[DpEvent, dict[str, Any]]:
    from discreet.accounting.calibrate import largest_rate, most_steps
    from discreet.accounting.events import SelfComposedDpEvent

    if sought == "steps":
        count = most_steps(
            use.step(amount), epsilon=epsilon, delta=delta, adjacency=use.adjacency, accountant=accountant
        )
        return SelfComposedDpEvent(use.step(amount), count), {"steps": count}
    rate = largest_rate(
        lambda share: use.event(amount, share),
        epsilon=epsilon,
        delta=delta,
        adjacency=use.adjacency,
        accountant=accountant,
    )
    return use.event(amount, rate), {"sampling_rate": rate}
