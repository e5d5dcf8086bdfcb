"""What an audit is about: how the releases of two neighbours are drawn, and what is claimed about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from discreet.accounting.events import DpEvent, decompose
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.audit.aspects import RELEASE, Aspect, Untested, untested
from discreet.audit.many_runs import CONFIDENCE, DRAWS, Draw, ManyRuns, audit_many_runs, best_test, scoring
from discreet.audit.one_run import Guesses, fdp_epsilon, fdp_rejects, guess, planned_guesses, steinke_epsilon
from discreet.audit.order_statistics import order_epsilon
from discreet.audit.trade_off import Family, family_of, trade_off_of
from discreet.core.errors import open_probability, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng

NOT_A_PROOF = "An audit never replaces a proof: it can refute a claimed epsilon, and never confirm one."
CANARIES = 10_000


@dataclass(frozen=True)
class Subject:
    """A mechanism, or one step of a protection, with two neighbours crafted to be as far apart as it allows.

    `draw(present, count, rng)` returns `count` independent releases for the record or its neighbour, as scores or
    categories. `event` is what is claimed about them. Anything that can draw from two neighbours can be audited.
    `tested` is what the draws pass through, in addition to the lower bound itself, and `not_reached` what
    they do not pass through.
    """

    name: str
    draw: Draw
    event: DpEvent
    adjacency: Adjacency
    family: Family | None = field(default=None, repr=False)
    tested: tuple[Aspect, ...] = field(default=(), repr=False)
    not_reached: tuple[Aspect, ...] = field(default=RELEASE, repr=False)

    @property
    def not_tested(self) -> tuple[Untested, ...]:
        """What an audit of these draws does not test."""
        return untested(self.tested, of=self.not_reached)

    def upper_bound(self, delta: float) -> float:
        """Return the claimed epsilon at delta."""
        return epsilon_of(self.event, delta, self.adjacency)


@dataclass(frozen=True)
class OneRun:
    """The figures of a one-run audit on one outcome, in epsilon at delta.

    `refuted` says whether the outcome refutes the declared trade-off curve itself, which needs no family. `order` is
    None unless the noise is Gaussian and the canaries are independent.
    """

    outcome: Guesses
    fdp: float
    steinke: float
    order: float | None
    refuted: bool

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **asdict(self.outcome),
            "fdp": self.fdp,
            "steinke": self.steinke,
            "order_statistics": self.order,
            "refuted": self.refuted,
        }


def basis(method: str, confidence: float) -> str:
    """Return on which of several lower bounds a verdict rests, as a sentence.

    They are computed from the same draws without a correction for their number, so only one of them may decide.

    >>> basis("f-DP", 0.95)
    'The verdict uses the f-DP bound alone. Each other figure exceeds the true epsilon in up to 5% of audits.'
    """
    return (
        f"The verdict uses the {method} bound alone. Each other figure exceeds the true epsilon in up to "
        f"{100 * (1 - confidence):.3g}% of audits."
    )


@dataclass(frozen=True)
class Audited:
    """The result of an audit: the claimed epsilon beside the measured lower bound, and a one-run audit beside both."""

    name: str
    lower_bound: float
    upper_bound: float
    delta: float
    confidence: float
    many_runs: ManyRuns
    one_run: OneRun
    tested: tuple[Aspect, ...]
    not_tested: tuple[Untested, ...]

    @property
    def refuted(self) -> bool:
        """Whether the measured lower bound exceeds the claim."""
        return self.lower_bound > self.upper_bound

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "lower_bound": self.lower_bound,
            "upper_bound": self.upper_bound,
            "delta": self.delta,
            "confidence": self.confidence,
            "refuted": self.refuted,
            "method": "many runs",
            "draws": self.many_runs.draws,
            "one_run": self.one_run.as_dict(),
            "tested": [one.value for one in self.tested],
            "not_tested": [one.as_dict() for one in self.not_tested],
        }


def audit(
    subject: Subject,
    *,
    delta: float,
    rng: Rng,
    draws: int = DRAWS,
    canaries: int = CANARIES,
    confidence: float = CONFIDENCE,
) -> Audited:
    """Audit a subject by many runs, and by one run with independent canaries beside it.

    The lower bound is that of the many runs: it holds with probability `confidence` whatever the mechanism is.

    Args:
        subject: The draws for two neighbours, and what is claimed about them.
        delta: The delta of the claim.
        rng: The source of the random numbers.
        draws: The number of draws of each neighbour for the many-run audit.
        canaries: The number of canaries of the one-run audit.
        confidence: The probability that the bound holds.
    """
    runs = audit_many_runs(subject.draw, delta=delta, rng=rng.fork("many"), draws=draws, confidence=confidence)
    single = audit_one_run(subject, delta=delta, rng=rng.fork("one"), canaries=canaries, confidence=confidence)
    tested = (Aspect.LOWER_BOUND, *subject.tested)
    upper = subject.upper_bound(delta)
    return Audited(subject.name, runs.epsilon, upper, delta, confidence, runs, single, tested, subject.not_tested)


def audit_one_run(
    subject: Subject, *, delta: float, rng: Rng, canaries: int = CANARIES, confidence: float = CONFIDENCE
) -> OneRun:
    """Audit a subject in one run: each canary is the record or its neighbour, by a coin; count the right guesses.

    Args:
        subject: The draws for two neighbours, and what is claimed about them.
        delta: The delta of the claim.
        rng: The source of the random numbers.
        canaries: The number of canaries of the one-run audit.
        confidence: The probability that the bound holds.
    """
    open_probability("delta", delta)
    whole("canaries", canaries, 2)
    declared = trade_off_of(subject.event, subject.adjacency)
    side = planned_guesses(canaries, declared, confidence)
    learning = [np.asarray(subject.draw(one, canaries, rng.fork("learn", int(one)))) for one in (True, False)]
    score = scoring(learning[0], learning[1], delta, 1 - confidence)
    test, _ = best_test(score(learning[0]), score(learning[1]), delta, 1 - confidence)
    sign = 1.0 if test.above is test.present else -1.0  # a smaller score may be the sign of the record
    included = rng.fork("coins").uniform(canaries) < 0.5
    count = int(included.sum())
    scores = np.empty(canaries)
    scores[included] = sign * score(np.asarray(subject.draw(True, count, rng.fork("in"))))
    scores[~included] = sign * score(np.asarray(subject.draw(False, canaries - count, rng.fork("out"))))
    outcome = guess(scores, included, side, side)
    is_gaussian = not decompose(subject.event, subject.adjacency).uses
    family = subject.family or family_of(subject.event, subject.adjacency)
    return figures(outcome, family, declared, delta, confidence, independent=is_gaussian)


def figures(
    outcome: Guesses,
    family: Family,
    declared: Callable[[float], float],
    delta: float,
    confidence: float,
    *,
    independent: bool,
) -> OneRun:
    """Return all one-run figures of an outcome; `independent` canaries of Gaussian noise have one more."""
    return OneRun(
        outcome,
        fdp_epsilon(outcome, family, delta, confidence),
        steinke_epsilon(outcome, delta, confidence),
        order_epsilon(outcome, delta, confidence) if independent else None,
        fdp_rejects(outcome, declared, confidence),
    )
