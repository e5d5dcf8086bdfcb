"""`discreet spend`: what a mechanism costs, in words or as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json, line, table
from discreet.cli.progress import working
from discreet.core.checks import one_of, open_probability, positive, probability, refuse, whole
from discreet.core.guarantee import Adjacency, Guarantee, in_digits

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

MECHANISMS = ("gaussian", "laplace", "vmf", "privunit", "randomized-response")
_SUMS = ("gaussian", "laplace")

Mechanism = Annotated[str, typer.Option("--mechanism", help="One of: " + ", ".join(MECHANISMS) + ".")]
Noise = Annotated[
    float | None,
    typer.Option("--noise-multiplier", help="Noise over sensitivity (gaussian: standard deviation / clip norm)."),
]
Kappa = Annotated[float | None, typer.Option("--kappa", help="Concentration of vmf.")]
Dimension = Annotated[int | None, typer.Option("--dimension", help="Dimension of vmf.")]
LocalEpsilon = Annotated[
    float | None, typer.Option("--local-epsilon", help="Epsilon of one use of privunit or randomized-response.")
]
Bias = Annotated[
    float | None,
    typer.Option("--bias", help="Binary randomized-response: the truth is told with probability 1/2 + bias."),
]
Choices = Annotated[int, typer.Option("--choices", help="Answers of randomized-response.")]
Rate = Annotated[float, typer.Option("--sampling-rate", help="Share of the records drawn at each step.")]
Steps = Annotated[int, typer.Option("--steps", help="How often the mechanism is used.")]
Delta = Annotated[float, typer.Option("--delta", help="Below one over the number of records.")]
AdjacencyName = Annotated[
    str | None,
    typer.Option(
        "--adjacency",
        help="add/remove, zero-out (the number of records is public, as train has it) or replace-one; add/remove for "
        "gaussian and laplace, else replace-one.",
    ),
]
Accountant = Annotated[str, typer.Option("--accountant", help="pld, rdp, or gdp (an estimate under sampling).")]
Visible = Annotated[
    str | None,
    typer.Option("--visible", help="What the receiver sees of a draw: sum or vectors; sum for gaussian and laplace."),
]
Unit = Annotated[str, typer.Option("--unit", help="Whose privacy is at stake: note, author, client.")]


@dataclass(frozen=True)
class Use:
    """The options that say what is used, checked; a missing one is what `solve` looks for."""

    mechanism: str
    rate: float
    steps: int
    adjacency: Adjacency
    visible: str
    dimension: int | None = None
    choices: int = 2

    @classmethod
    def of(
        cls,
        mechanism: str,
        rate: float,
        steps: int,
        adjacency: str | None,
        visible: str | None,
        dimension: int | None,
        choices: int,
    ) -> Use:
        """Return checked options with their defaults filled in."""
        one_of("mechanism", mechanism, MECHANISMS)
        probability("sampling_rate", rate, "It is a probability: expected batch size / corpus size.")
        if adjacency is None:
            near = Adjacency.ADD_REMOVE if mechanism in _SUMS else Adjacency.REPLACE_ONE
        else:
            name = "add/remove" if adjacency == "add-remove" else adjacency
            near = Adjacency(one_of("adjacency", name, [a.value for a in Adjacency]))
        seen = one_of("visible", visible or ("sum" if mechanism in _SUMS else "vectors"), ("sum", "vectors"))
        if mechanism == "vmf":
            if dimension is None:
                raise refuse("dimension", dimension, "given for vmf", "Add --dimension.")
            whole("dimension", dimension, 2)
        return cls(mechanism, rate, whole("steps", steps), near, seen, dimension, whole("choices", choices, 2))

    def step(self, amount: float, rate: float | None = None) -> DpEvent:
        """Return one step, `amount` being the noise multiplier, kappa or the epsilon of one use."""
        from fractions import Fraction

        from discreet.accounting import events

        share = self.rate if rate is None else rate
        inner = self._inner(amount)
        if self.visible == "sum":
            return inner if share == 1 else events.PoissonSampledDpEvent(share, inner)
        if share == 0:
            return events.NoOpDpEvent()
        ratio = Fraction(repr(share))  # at rate 1 nothing is hidden, and a missing vector is seen
        return events.VisibleVectorsDpEvent(inner, ratio.numerator, ratio.denominator)

    def event(self, amount: float, rate: float | None = None) -> DpEvent:
        """Return all steps together."""
        from discreet.accounting.events import SelfComposedDpEvent

        return SelfComposedDpEvent(self.step(amount, rate), self.steps)

    def _inner(self, amount: float) -> DpEvent:
        import math

        from discreet.accounting import events

        if self.mechanism == "gaussian":
            return events.ClippedSumDpEvent(amount)
        if self.mechanism == "laplace":
            return events.LaplaceDpEvent(amount)
        if self.mechanism == "vmf":
            return events.VonMisesFisherDpEvent(amount, self.dimension or 2)
        if self.mechanism == "privunit":
            return events.LocalDpEvent(amount)
        return events.RandomizedResponseDpEvent(
            self.choices / (math.exp(min(amount, 700.0)) + self.choices - 1), self.choices
        )


def amount_of(
    mechanism: str, noise: float | None, kappa: float | None, local_epsilon: float | None, bias: float | None
) -> float:
    """Return the one number that says how strong a mechanism is; refuse its absence, and what belongs to others."""
    import math

    refuse_foreign(mechanism, noise_multiplier=noise, kappa=kappa, local_epsilon=local_epsilon, bias=bias)
    if mechanism in _SUMS:
        return positive("noise_multiplier", _given(noise, "noise_multiplier"), "Without noise there is no guarantee.")
    if mechanism == "vmf":
        from discreet.core.checks import non_negative

        return non_negative("kappa", _given(kappa, "kappa"), "An infinite kappa releases the direction itself.")
    if mechanism == "randomized-response" and bias is not None:
        if not 0 < bias < 0.5:
            raise refuse("bias", bias, "in (0, 0.5)", "The truth is told with probability 1/2 + bias.")
        return math.log((0.5 + bias) / (0.5 - bias))
    return positive("local_epsilon", _given(local_epsilon, "local_epsilon"))


def refuse_foreign(mechanism: str, allowed: bool = True, **given: float | None) -> None:
    """Refuse strengths that a mechanism does not have, or any at all where the strength is what is sought."""
    own = {"vmf": {"kappa"}, "privunit": {"local_epsilon"}, "randomized-response": {"local_epsilon", "bias"}}
    mine = own.get(mechanism, {"noise_multiplier"}) if allowed else set()
    for name, value in given.items():
        if value is not None and name not in mine:
            rule = f"left out for {mechanism}" if allowed else "left out when the noise is what is sought"
            raise refuse(name, value, rule, "It would change nothing; drop it, or name another --mechanism.")


def _given(value: float | None, name: str) -> float:
    if value is None:
        raise refuse(name, None, "given for this mechanism", f"Add --{name.replace('_', '-')}.")
    return value


_FALSE_POSITIVES = 0.01


def show(found: Guarantee, rows: dict[str, Any], risk: float | None) -> None:
    """Print a guarantee as a sentence of at most 80 columns and a small table."""
    for part in textwrap.wrap(found.sentence(), width=80):
        line(part)
    line()
    table(
        {
            **rows,
            "epsilon": in_digits(found.epsilon) + ("" if found.certified else " (an estimate)")
            if found.exists
            else "none",
            "delta": in_digits(found.delta),
            **({} if risk is None else {"any attack": f"at most {in_digits(100 * risk, 3)}% found at 1% false alarms"}),
        }
    )


def any_attack(risk: float | None) -> dict[str, float] | None:
    """Return the most that any attack reaches as plain values for JSON; None where no bound is at hand."""
    return None if risk is None else {"most_true_positives": risk, "at_false_positives": _FALSE_POSITIVES}


def risk_of(event: DpEvent, found: Guarantee) -> float | None:
    """Return the most true positives at 1% false positives, where a bound is at hand."""
    if not found.certified or not found.exists:
        return None
    from discreet.accounting.risk import most_true_positives

    return most_true_positives(event, _FALSE_POSITIVES, found.adjacency)


def spend(
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
    """Say what a mechanism costs: epsilon at delta, for whom, and whether it is proven."""
    use = Use.of(mechanism, sampling_rate, steps, adjacency, visible, dimension, choices)
    amount = amount_of(mechanism, noise_multiplier, kappa, local_epsilon, bias)
    if mechanism == "gaussian":
        open_probability("delta", delta, "Gaussian noise needs a delta above 0: its loss has no largest value.")
    with working("accounting"):
        from discreet.accounting.interpret import guarantee

        event = use.event(amount)
        found = guarantee(event, delta=delta, adjacency=use.adjacency, accountant=accountant, unit=unit)
        risk = risk_of(event, found)
    if json:
        said = {"mechanism": mechanism, "sampling_rate": sampling_rate, "steps": steps, "any_attack": any_attack(risk)}
        as_json({**found.as_dict(), **said})
        return
    show(found, {"mechanism": mechanism, "sampling rate": f"{sampling_rate:g}", "steps": steps}, risk)
