"""`discreet cost`: what a mechanism costs, or how much noise, how many steps or which sampling rate a budget allows.

`discreet spend` and `discreet solve` are its two halves under their old names.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from discreet.cli.options import Json, generated
from discreet.cli.output import as_json, line, table, working
from discreet.core.errors import invalid, non_negative, one_of, open_probability, positive, probability, whole
from discreet.core.guarantee import Adjacency, Guarantee, in_digits
from discreet.core.settings import option

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

MECHANISMS = ("gaussian", "laplace", "vmf", "privunit", "randomized-response")
_SUMS = ("gaussian", "laplace")
_DIGITS = 5
_FALSE_POSITIVES = 0.01
# What says how strong a mechanism is.
_STRENGTH = {
    "gaussian": "noise_multiplier",
    "laplace": "noise_multiplier",
    "vmf": "kappa",
    "privunit": "local_epsilon",
    "randomized-response": "local_epsilon",
}
_MECHANISM, _USE, _BUDGET = "Mechanism", "How it is used", "Budget: find what keeps it"


@dataclass(frozen=True)
class CostOptions:
    """What is used, how strong it is, how often, and under which terms it is counted."""

    mechanism: str = field(default="gaussian", metadata=option(f"{', '.join(MECHANISMS)}.", _MECHANISM))
    noise_multiplier: float | None = field(
        default=None,
        metadata=option("gaussian: standard deviation over clip norm; laplace: scale over sensitivity.", _MECHANISM),
    )
    kappa: float | None = field(default=None, metadata=option("vmf: concentration.", _MECHANISM))
    dimension: int | None = field(default=None, metadata=option("vmf: dimension.", _MECHANISM))
    local_epsilon: float | None = field(
        default=None, metadata=option("privunit, randomized-response: epsilon of one use.", _MECHANISM)
    )
    bias: float | None = field(
        default=None,
        metadata=option("randomized-response of two answers: it is true with probability 1/2 + bias.", _MECHANISM),
    )
    choices: int = field(default=2, metadata=option("randomized-response: number of answers.", _MECHANISM))
    sampling_rate: float = field(
        default=1.0, metadata=option("Expected share of the records that each step uses.", _USE)
    )
    steps: int = field(default=1, metadata=option("How often the mechanism is used.", _USE))
    delta: float = field(default=1e-5, metadata=option("Far below one over the number of records.", _USE))
    adjacency: str | None = field(
        default=None,
        metadata=option(
            "add/remove, zero-out (the number of records is public, as in train) or replace-one.",
            _USE,
            "add/remove for gaussian and laplace, else replace-one",
        ),
    )
    accountant: str = field(default="pld", metadata=option("pld, rdp, or gdp (an estimate under sampling).", _USE))
    visible: str | None = field(
        default=None,
        metadata=option(
            "What the receiver sees of a batch: sum or vectors.", _USE, "sum for gaussian and laplace, else vectors"
        ),
    )
    unit: str = field(default="record", metadata=option("Whose privacy it is: note, author, client.", _USE))


@dataclass(frozen=True)
class BudgetOptions:
    """The budget to keep, and what is looked for."""

    epsilon: float | None = field(default=None, metadata=option("Largest epsilon.", _BUDGET))
    true_positive_rate: float | None = field(
        default=None,
        metadata=option("Instead: the highest true positive rate of any membership attack.", _BUDGET),
    )
    false_positive_rate: float = field(
        default=_FALSE_POSITIVES,
        metadata=option("False positive rate at which the true positive rate is limited.", _BUDGET),
    )
    sought: str | None = field(
        default=None,
        metadata=option(
            "What to find: the least noise, the most steps or the largest sampling rate (noise, steps, rate).",
            _BUDGET,
            "noise",
        )
        | {"flag": "--for"},
    )

    @property
    def given(self) -> bool:
        """Whether a budget, or what to find for one, was given."""
        return not (self.epsilon is None and self.true_positive_rate is None and self.sought is None)


@generated()
def cost(options: CostOptions, budget: BudgetOptions, json: Json = False) -> None:
    """Compute what a mechanism costs, or the noise, steps or sampling rate for a budget.

    Without a budget: epsilon at delta, for whom, and whether it is proven.
    With --epsilon or --true-positive-rate: the least noise that keeps it, or
    with --for the most steps or the largest sampling rate.
    """
    if budget.given:
        _solve(options, budget, json)
    else:
        _spend(options, json)


@generated()
def spend(options: CostOptions, json: Json = False) -> None:
    """Compute what a mechanism costs; the old name of `discreet cost`."""
    _spend(options, json)


@generated()
def solve(options: CostOptions, budget: BudgetOptions, json: Json = False) -> None:
    """Find the noise, steps or sampling rate for a budget; the old name of `discreet cost --epsilon`."""
    _solve(options, budget, json)


def _spend(options: CostOptions, json: bool) -> None:
    """Print what the options cost."""
    use, amount = Use.of(options), amount_of(options)
    if options.mechanism == "gaussian":
        remedy = "Gaussian noise needs a delta above 0: its loss has no largest value."
        open_probability("delta", options.delta, remedy)
    with working("accounting"):
        promise, risk = _counted(options, use, use.event(amount))
    used = {"mechanism": options.mechanism, "sampling_rate": options.sampling_rate, "steps": options.steps}
    if json:
        as_json({**promise.as_dict(), **used, "any_attack": any_attack(risk)})
        return
    rows = {"mechanism": options.mechanism, "sampling rate": f"{options.sampling_rate:g}", "steps": options.steps}
    show(promise, rows, risk)


def _counted(options: CostOptions, use: Use, event: DpEvent) -> tuple[Guarantee, float | None]:
    """Return what is guaranteed for an event, and the most that any attack reaches."""
    from discreet.accounting.interpret import guarantee

    promise = guarantee(event, unit=options.unit, **use.terms(options))
    return promise, risk_of(event, promise)


def _solve(options: CostOptions, budget: BudgetOptions, json: bool) -> None:
    """Print what keeps the budget."""
    use, epsilon = Use.of(options), budget.epsilon
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
            amount = _noise(use, options, budget)
            event, answer = use.event(amount), {_STRENGTH[use.mechanism]: amount}
            if use.mechanism == "randomized-response" and use.choices == 2:
                answer["bias"] = math.tanh(amount / 2) / 2
        else:
            event, answer = _steps_or_rate(use, sought, amount_of(options), float(epsilon or 0.0), options)
        promise, risk = _counted(options, use, event)
    used: dict[str, Any] = {
        "mechanism": options.mechanism,
        "sampling_rate": options.sampling_rate,
        "steps": options.steps,
        **answer,
    }
    if json:
        as_json({**promise.as_dict(), **used, "any_attack": any_attack(risk)})
        return
    solved = {name: shown(name, value) for name, value in answer.items()}
    given = {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in used.items()}
    show(promise, {name.replace("_", " "): value for name, value in {**given, **solved}.items()}, risk)


@dataclass(frozen=True)
class Use:
    """The options that say what is used, checked and with their defaults filled in."""

    mechanism: str
    rate: float
    steps: int
    adjacency: Adjacency
    visible: str
    dimension: int | None = None
    choices: int = 2

    @classmethod
    def of(cls, options: CostOptions) -> Use:
        """Return checked options with their defaults filled in."""
        mechanism = one_of("mechanism", options.mechanism, MECHANISMS)
        remedy = "It is a probability: expected batch size / corpus size."
        rate = probability("sampling_rate", options.sampling_rate, remedy)
        if options.adjacency is None:
            near = Adjacency.ADD_REMOVE if mechanism in _SUMS else Adjacency.REPLACE_ONE
        else:
            name = "add/remove" if options.adjacency == "add-remove" else options.adjacency
            near = Adjacency(one_of("adjacency", name, [a.value for a in Adjacency]))
        default = "sum" if mechanism in _SUMS else "vectors"
        seen = one_of("visible", options.visible or default, ("sum", "vectors"))
        if mechanism == "vmf":
            if options.dimension is None:
                raise invalid("dimension", None, "given for vmf", "Add --dimension.")
            whole("dimension", options.dimension, 2)
        return cls(
            mechanism,
            rate,
            whole("steps", options.steps),
            near,
            seen,
            options.dimension,
            whole("choices", options.choices, 2),
        )

    def terms(self, options: CostOptions) -> dict[str, Any]:
        """Return under which terms it is counted."""
        return {"delta": options.delta, "adjacency": self.adjacency, "accountant": options.accountant}

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


def amount_of(options: CostOptions) -> float:
    """Return the one number that says how strong a mechanism is; reject its absence, and what belongs to others."""
    mechanism = options.mechanism
    reject_foreign(options)
    if mechanism in _SUMS:
        return positive("noise_multiplier", _given(options), "Without noise there is no guarantee.")
    if mechanism == "vmf":
        return non_negative("kappa", _given(options), "An infinite kappa releases the direction itself.")
    if mechanism == "randomized-response" and options.bias is not None:
        if not 0 < options.bias < 0.5:
            raise invalid("bias", options.bias, "in (0, 0.5)", "The truth is told with probability 1/2 + bias.")
        return math.log((0.5 + options.bias) / (0.5 - options.bias))
    return positive("local_epsilon", _given(options))


def reject_foreign(options: CostOptions, allowed: bool = True) -> None:
    """Reject strengths that a mechanism does not have, or any at all where the strength is what is sought."""
    mechanism = options.mechanism
    mine = {_STRENGTH[mechanism]} if allowed else set()
    if allowed and mechanism == "randomized-response":
        mine.add("bias")
    for name in ("noise_multiplier", "kappa", "local_epsilon", "bias"):
        value = getattr(options, name)
        if value is not None and name not in mine:
            rule = f"left out for {mechanism}" if allowed else "left out when the noise is what is sought"
            raise invalid(name, value, rule, "It would change nothing; drop it, or name another --mechanism.")


def _given(options: CostOptions) -> float:
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
            **({} if risk is None else {"any attack": f"at most {in_digits(100 * risk, 3)}% found at 1% false alarms"}),
        }
    )


def any_attack(risk: float | None) -> dict[str, float] | None:
    """Return the most that any attack reaches as plain values for JSON; None where no bound is at hand."""
    return None if risk is None else {"most_true_positives": risk, "at_false_positives": _FALSE_POSITIVES}


def risk_of(event: DpEvent, guarantee: Guarantee) -> float | None:
    """Return the most true positives at 1% false positives, where a bound is at hand."""
    if not guarantee.certified or not guarantee.exists:
        return None
    from discreet.accounting.risk import most_true_positives

    return most_true_positives(event, _FALSE_POSITIVES, guarantee.adjacency)


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


def _noise(use: Use, options: CostOptions, budget: BudgetOptions) -> float:
    from discreet.accounting.calibrate import largest_rate, least_noise

    stronger, epsilon = use.mechanism in _SUMS, budget.epsilon
    if epsilon is None:
        from discreet.accounting.risk import least_noise_for_risk

        weakest = least_noise_for_risk(
            use.event if stronger else lambda weakness: use.event(1 / weakness),
            true_positive_rate=float(budget.true_positive_rate or 0.0),
            false_positive_rate=budget.false_positive_rate,
            adjacency=use.adjacency,
            low=1e-3 if stronger else 1e-5,
        )
        return weakest if stronger else 1 / weakest
    if stronger:
        return least_noise(use.event, epsilon=epsilon, **use.terms(options))
    # kappa and the epsilon of one use only add to the cost; in d dimensions kappa is felt as 2 kappa / sqrt(d)
    guess = max(epsilon, 0.1) * math.sqrt(use.dimension or 4) / 8
    high = 1e7 if use.mechanism == "vmf" else 500.0
    return largest_rate(use.event, epsilon=epsilon, low=1e-6, high=high, guess=guess, **use.terms(options))


def _steps_or_rate(
    use: Use, sought: str, amount: float, epsilon: float, options: CostOptions
) -> tuple[DpEvent, dict[str, Any]]:
    from discreet.accounting.calibrate import largest_rate, most_steps
    from discreet.accounting.events import SelfComposedDpEvent

    terms = use.terms(options)
    if sought == "steps":
        count = most_steps(use.step(amount), epsilon=epsilon, **terms)
        return SelfComposedDpEvent(use.step(amount), count), {"steps": count}
    rate = largest_rate(lambda share: use.event(amount, share), epsilon=epsilon, **terms)
    return use.event(amount, rate), {"sampling_rate": rate}
