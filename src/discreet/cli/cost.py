"""`discreet cost`: the privacy cost of a mechanism, or the noise, steps or sampling rate that a budget allows."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from discreet.cli.options import Json, generated
from discreet.cli.output import as_json, line, table, working
from discreet.core.errors import invalid, non_negative, one_of, open_probability, positive, probability, whole
from discreet.core.guarantee import Adjacency, Guarantee, in_digits
from discreet.core.settings import option_field

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

MECHANISMS = ("gaussian", "laplace", "vmf", "privunit", "randomized-response")
_SUMS = ("gaussian", "laplace")
_DIGITS = 5
_FALSE_POSITIVES = 0.01
# The setting of a mechanism's strength.
_STRENGTH = {
    "gaussian": "noise_multiplier",
    "laplace": "noise_multiplier",
    "vmf": "kappa",
    "privunit": "local_epsilon",
    "randomized-response": "local_epsilon",
}
_MECHANISM, _USE, _BUDGET = "Mechanism", "Use", "Budget"


@dataclass(frozen=True)
class CostOptions:
    """The mechanism, its strength, how often it is used, and how its cost is accounted."""

    mechanism: str = option_field("gaussian", f"{', '.join(MECHANISMS)}.", _MECHANISM)
    noise_multiplier: float | None = option_field(
        None, "gaussian: standard deviation over clip norm; laplace: scale over sensitivity.", _MECHANISM
    )
    kappa: float | None = option_field(None, "vmf: concentration.", _MECHANISM)
    dimension: int | None = option_field(None, "vmf: dimension of the vectors.", _MECHANISM)
    local_epsilon: float | None = option_field(None, "privunit, randomized-response: epsilon of one use.", _MECHANISM)
    bias: float | None = option_field(
        None, "randomized-response with 2 choices: the answer is true with probability 1/2 + bias.", _MECHANISM
    )
    choices: int = option_field(2, "randomized-response: number of possible answers.", _MECHANISM)
    sampling_rate: float = option_field(1.0, "Expected share of the records in each step.", _USE)
    steps: int = option_field(1, "Number of uses of the mechanism.", _USE)
    delta: float = option_field(1e-5, "Delta of the guarantee; well below 1 / number of records.", _USE)
    adjacency: str | None = option_field(
        None,
        "add/remove, zero-out (the number of records is public, as in train) or replace-one.",
        _USE,
        "add/remove for gaussian and laplace, else replace-one",
    )
    accountant: str = option_field("pld", "pld, rdp, or gdp (an estimate under sampling).", _USE)
    visible: str | None = option_field(
        None, "What the receiver sees of a batch: sum or vectors.", _USE, "sum for gaussian and laplace, else vectors"
    )
    unit: str = option_field("record", "Name of the privacy unit: note, author, client.", _USE)

    @property
    def terms(self) -> dict[str, Any]:
        """The arguments of the accountant; the options must be checked."""
        return {"delta": self.delta, "adjacency": Adjacency(str(self.adjacency)), "accountant": self.accountant}

    def step(self, amount: float, rate: float | None = None) -> DpEvent:
        """Return one step; `amount` is the noise multiplier, kappa or the epsilon of one use."""
        from fractions import Fraction

        from discreet.accounting import events

        share = self.sampling_rate if rate is None else rate
        inner = self._inner(amount)
        if self.visible == "sum":
            return inner if share == 1 else events.PoissonSampledDpEvent(share, inner)
        if share == 0:
            return events.NoOpDpEvent()
        ratio = Fraction(repr(share))  # at rate 1 sampling hides nothing: a missing vector is visible
        return events.VisibleVectorsDpEvent(inner, ratio.numerator, ratio.denominator)

    def event(self, amount: float, rate: float | None = None) -> DpEvent:
        """Return the composition of all steps."""
        from discreet.accounting.events import SelfComposedDpEvent

        return SelfComposedDpEvent(self.step(amount, rate), self.steps)

    def _inner(self, amount: float) -> DpEvent:
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


@dataclass(frozen=True)
class BudgetOptions:
    """The budget, and the setting to solve for."""

    epsilon: float | None = option_field(None, "Largest epsilon; solves for the setting in --for.", _BUDGET)
    true_positive_rate: float | None = option_field(
        None, "Instead of epsilon: the highest true positive rate of any membership attack.", _BUDGET
    )
    false_positive_rate: float = option_field(
        _FALSE_POSITIVES, "False positive rate at which the true positive rate is limited.", _BUDGET
    )
    sought: str | None = option_field(
        None,
        "What to solve for: noise (the least), steps (the most) or rate (the largest sampling rate).",
        _BUDGET,
        "noise",
    )

    @property
    def given(self) -> bool:
        """Whether a budget, or a setting to solve for, was passed."""
        return not (self.epsilon is None and self.true_positive_rate is None and self.sought is None)


@generated()
def cost(options: CostOptions, budget: BudgetOptions, json: Json = False) -> None:
    """Compute the privacy cost of a mechanism, or the noise, steps or sampling rate for a budget.

    Without a budget, print epsilon at delta, the privacy unit, and whether it
    is proven. With --epsilon or --true-positive-rate, print the least noise
    that stays within the budget or, with --for, the most steps or the largest
    sampling rate.
    """
    if budget.given:
        _solve(options, budget, json)
    else:
        _spend(options, json)


def _spend(options: CostOptions, json: bool) -> None:
    """Print the cost of the options."""
    options = checked(options)
    amount = amount_of(options)
    if options.mechanism == "gaussian":
        remedy = "Gaussian noise needs a delta above 0: its privacy loss is unbounded."
        open_probability("delta", options.delta, remedy)
    with working("accounting"):
        guarantee, risk = _counted(options, options.event(amount))
    _print(options, guarantee, risk, json, {})


def _counted(options: CostOptions, event: DpEvent) -> tuple[Guarantee, float | None]:
    """Return the guarantee of an event, and the highest true positive rate of any attack."""
    from discreet.accounting.interpret import guarantee_of

    guarantee = guarantee_of(event, unit=options.unit, **options.terms)
    return guarantee, risk_of(event, guarantee)


def _solve(options: CostOptions, budget: BudgetOptions, json: bool) -> None:
    """Print the setting that stays within the budget."""
    options, epsilon = checked(options), budget.epsilon
    sought = one_of("for", budget.sought or "noise", ("noise", "steps", "rate"))
    open_probability("delta", options.delta, "A solver needs a delta above 0.")
    if (epsilon is None) == (budget.true_positive_rate is None):
        remedy = "Add --epsilon 3, or --true-positive-rate 0.05."
        raise invalid("epsilon", epsilon, "given where --true-positive-rate is not", remedy)
    if epsilon is not None:
        positive("epsilon", epsilon)
    elif sought != "noise":
        raise invalid("for", sought, "noise with --true-positive-rate", "Use --epsilon for steps and rates.")
    if sought == "noise":
        reject_foreign(options, allowed=False)
    with working(f"solving for {sought}"):
        if sought == "noise":
            amount = _noise(options, budget)
            event, answer = options.event(amount), {_STRENGTH[options.mechanism]: amount}
            if options.mechanism == "randomized-response" and options.choices == 2:
                answer["bias"] = math.tanh(amount / 2) / 2
        else:
            event, answer = _steps_or_rate(options, sought, amount_of(options), float(epsilon or 0.0))
        guarantee, risk = _counted(options, event)
    _print(options, guarantee, risk, json, answer)


def _print(
    options: CostOptions, guarantee: Guarantee, risk: float | None, json: bool, answer: Mapping[str, float]
) -> None:
    """Print the mechanism, its guarantee and the settings that were solved for."""
    used = {name: getattr(options, name) for name in ("mechanism", "sampling_rate", "steps")} | dict(answer)
    if json:
        as_json({**guarantee.as_dict(), **used, "any_attack": any_attack(risk)})
        return
    values = {name: f"{value:g}" if isinstance(value, float) else value for name, value in used.items()}
    values |= {name: shown(name, value) for name, value in answer.items()}
    show(guarantee, {name.replace("_", " "): value for name, value in values.items()}, risk)


def checked(options: CostOptions) -> CostOptions:
    """Return checked options with their defaults filled in."""
    sums = one_of("mechanism", options.mechanism, MECHANISMS) in _SUMS
    remedy = "It is a probability: expected batch size / corpus size."
    probability("sampling_rate", options.sampling_rate, remedy)
    if options.adjacency is None:
        near = Adjacency.ADD_REMOVE if sums else Adjacency.REPLACE_ONE
    else:
        name = "add/remove" if options.adjacency == "add-remove" else options.adjacency
        near = Adjacency(one_of("adjacency", name, [a.value for a in Adjacency]))
    visible = one_of("visible", options.visible or ("sum" if sums else "vectors"), ("sum", "vectors"))
    if options.mechanism == "vmf":
        if options.dimension is None:
            raise invalid("dimension", None, "given for vmf", "Add --dimension.")
        whole("dimension", options.dimension, 2)
    whole("steps", options.steps)
    whole("choices", options.choices, 2)
    return replace(options, adjacency=near.value, visible=visible)


def amount_of(options: CostOptions) -> float:
    """Return the strength of the mechanism; reject a missing strength, and settings of other mechanisms."""
    mechanism = options.mechanism
    reject_foreign(options)
    if mechanism in _SUMS:
        return positive("noise_multiplier", _strength(options), "Without noise there is no guarantee.")
    if mechanism == "vmf":
        return non_negative("kappa", _strength(options), "An infinite kappa releases the direction itself.")
    if mechanism == "randomized-response" and options.bias is not None:
        if not 0 < options.bias < 0.5:
            raise invalid("bias", options.bias, "in (0, 0.5)", "The answer is true with probability 1/2 + bias.")
        return math.log((0.5 + options.bias) / (0.5 - options.bias))
    return positive("local_epsilon", _strength(options))


def reject_foreign(options: CostOptions, allowed: bool = True) -> None:
    """Reject strengths that a mechanism does not have, or any strength if it is solved for."""
    mechanism = options.mechanism
    mine = {_STRENGTH[mechanism]} if allowed else set()
    if allowed and mechanism == "randomized-response":
        mine.add("bias")
    for name in ("noise_multiplier", "kappa", "local_epsilon", "bias"):
        value = getattr(options, name)
        if value is not None and name not in mine:
            rule = f"left out for {mechanism}" if allowed else "left out when solving for the noise"
            raise invalid(name, value, rule, "It has no effect; remove it, or choose another --mechanism.")


def _strength(options: CostOptions) -> float:
    name = _STRENGTH[options.mechanism]
    value: float | None = getattr(options, name)
    if value is None:
        raise invalid(name, None, "given for this mechanism", f"Add --{name.replace('_', '-')}.")
    return value


def show(guarantee: Guarantee, rows: dict[str, Any], risk: float | None) -> None:
    """Print a guarantee as a sentence of at most 80 columns and a small table."""
    for part in textwrap.wrap(guarantee.sentence(), width=80):
        line(part)
    line()
    table(
        {
            **rows,
            "epsilon": in_digits(guarantee.epsilon) + ("" if guarantee.certified else " (an estimate)")
            if guarantee.exists
            else "none",
            "delta": in_digits(guarantee.delta),
            **(
                {}
                if risk is None
                else {"any attack": f"at most {in_digits(100 * risk, 3)}% true positives at 1% false positives"}
            ),
        }
    )


def any_attack(risk: float | None) -> dict[str, float] | None:
    """Return the bound on any attack as JSON values; None if there is none."""
    return None if risk is None else {"most_true_positives": risk, "at_false_positives": _FALSE_POSITIVES}


def risk_of(event: DpEvent, guarantee: Guarantee) -> float | None:
    """Return the highest true positive rate at 1% false positives, or None without a bound."""
    if not guarantee.certified or not guarantee.exists:
        return None
    from discreet.accounting.risk import most_true_positives

    return most_true_positives(event, _FALSE_POSITIVES, guarantee.adjacency)


def shown(name: str, value: float) -> str:
    """Return the solved setting in few digits, rounded so that the budget holds: noise up, others down.

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


def _noise(options: CostOptions, budget: BudgetOptions) -> float:
    from discreet.accounting.calibrate import largest_rate, least_noise

    stronger, epsilon = options.mechanism in _SUMS, budget.epsilon
    if epsilon is None:
        from discreet.accounting.risk import least_noise_for_risk

        weakest = least_noise_for_risk(
            options.event if stronger else lambda weakness: options.event(1 / weakness),
            true_positive_rate=float(budget.true_positive_rate or 0.0),
            false_positive_rate=budget.false_positive_rate,
            adjacency=options.terms["adjacency"],
            low=1e-3 if stronger else 1e-5,
        )
        return weakest if stronger else 1 / weakest
    if stronger:
        return least_noise(options.event, epsilon=epsilon, **options.terms)
    # the cost increases with kappa and with the epsilon of one use; in d dimensions it scales as 2 kappa / sqrt(d)
    guess = max(epsilon, 0.1) * math.sqrt(options.dimension or 4) / 8
    high = 1e7 if options.mechanism == "vmf" else 500.0
    return largest_rate(options.event, epsilon=epsilon, low=1e-6, high=high, guess=guess, **options.terms)


def _steps_or_rate(options: CostOptions, sought: str, amount: float, epsilon: float) -> tuple[DpEvent, dict[str, Any]]:
    from discreet.accounting.calibrate import largest_rate, most_steps
    from discreet.accounting.events import SelfComposedDpEvent

    if sought == "steps":
        count = most_steps(options.step(amount), epsilon=epsilon, **options.terms)
        return SelfComposedDpEvent(options.step(amount), count), {"steps": count}
    rate = largest_rate(lambda share: options.event(amount, share), epsilon=epsilon, **options.terms)
    return options.event(amount, rate), {"sampling_rate": rate}
