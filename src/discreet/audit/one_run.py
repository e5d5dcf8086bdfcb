"""Audits in one run: many canaries, each included or not by its own coin, and the number of right guesses.

Each function here takes the number of canaries m, of guesses r and of right guesses. The canaries that are not guessed
count in m. The number of guesses must be fixed before the scores are seen, or corrected for (`best_of`): taking the
best of several thresholds without a correction reports an epsilon above 0 for half of all perfectly private runs.

- `steinke_epsilon`: any (epsilon, delta) mechanism.
- `fdp_epsilon`: a family of trade-off curves, tighter; and `fdp_rejects`, which tests one declared curve.

Paper: Steinke, Nasr and Jagielski 2023, Privacy Auditing with One (1) Training Run; Mahloujifar, Melis and Chaudhuri
2024, Auditing f-Differential Privacy in One Run (arXiv 2410.22235).
Differs: the trade-off curves are the exact ones of the mechanism that runs, rounded down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc

from discreet.audit.trade_off import Family, gaussian
from discreet.core.errors import DataError, invalid, non_negative, open_probability, probability, setting, whole

CONFIDENCE = 0.95
_PRECISION = 1e-4  # of a reported epsilon, relative; bounds are rounded down
_LARGEST = 1e6
_SHARES = (0.0025, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # tried on each side

Scores = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Guesses:
    """How many canaries there were, how many were guessed, and how many guesses were right."""

    canaries: int
    guesses: int
    right: int

    def __post_init__(self) -> None:
        """Check the counts."""
        whole("canaries", self.canaries)
        whole("guesses", self.guesses, 0)
        whole("right", self.right, 0)
        if not self.right <= self.guesses <= self.canaries:
            rule = f"at least right={self.right} and at most canaries={self.canaries}"
            raise invalid("guesses", self.guesses, rule, "A canary is guessed once or not at all.")


def guess(scores: npt.ArrayLike, included: npt.ArrayLike, high: int, low: int = 0) -> Guesses:
    """Return the outcome of guessing that the `high` largest scores were included and the `low` smallest were not.

    Equal scores are ordered by their place, which knows nothing of the coins.

    >>> guess([3.0, 1.0, 2.0, 0.0], [True, False, True, True], high=2, low=1)
    Guesses(canaries=4, guesses=3, right=2)
    """
    values, bits = checked(scores, included)
    whole("high", high, 0)
    if high + whole("low", low, 0) > len(values):
        raise invalid("guesses", high + low, f"<= {len(values)}, the number of canaries", "Guess fewer of them.")
    order = np.argsort(values, kind="stable")
    right = int(bits[order[len(order) - high :]].sum()) + int((~bits[order[:low]]).sum())
    return Guesses(len(values), high + low, right)


def checked(scores: npt.ArrayLike, included: npt.ArrayLike) -> tuple[Scores, Bits]:
    """Return scores and coins as arrays; reject scores that are NaN, and arrays that do not match."""
    values, bits = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=np.bool_)
    if values.ndim != 1 or values.shape != bits.shape or not len(values):
        raise DataError(
            f"Expected one score and one coin for each canary, got {values.shape} scores and {bits.shape} coins."
        )
    if np.isnan(values).any():
        raise DataError("Expected scores of canaries without NaN. Leave such a canary out before its coin is seen.")
    return values, bits


def steinke_p_value(outcome: Guesses, epsilon: float, delta: float = 0.0) -> float:
    """Return a p-value of the claim that a mechanism is (epsilon, delta)-private.

    Under (epsilon, 0) the number of right guesses is dominated by a binomial with success rate e^eps / (1 + e^eps);
    delta adds at most 2 m delta max_i P[v - i <= Bin < v] / i.
    """
    non_negative("epsilon", epsilon)
    rate = 1 / (1 + math.exp(-epsilon))
    beta = 1.0 if outcome.right == 0 else float(bdtrc(outcome.right - 1, outcome.guesses, rate))
    if not probability("delta", delta) or not outcome.right:
        return min(beta, 1.0)
    steps = np.arange(1, outcome.right + 1)
    below = bdtrc(outcome.right - steps - 1.0, outcome.guesses, rate)
    below[-1] = 1.0
    excess = float(np.max((below - beta) / steps))
    return min(beta + 2 * outcome.canaries * delta * max(excess, 0.0), 1.0)


def steinke_epsilon(outcome: Guesses, delta: float = 0.0, confidence: float = CONFIDENCE) -> float:
    """Return a lower bound on epsilon at delta, rounded down; 0 if nothing can be said.

    >>> [round(steinke_epsilon(Guesses(r, r, v)), 2) for r, v in ((100, 90), (100, 99), (200, 190), (1000, 550))]
    [1.63, 3.02, 2.4, 0.09]
    """
    level = 1 - open_probability("confidence", confidence)
    return largest(lambda epsilon: steinke_p_value(outcome, epsilon, delta) <= level)


def fdp_rejects(outcome: Guesses, trade_off: Callable[[float], float], confidence: float = CONFIDENCE) -> bool:
    """Return whether the outcome refutes a symmetric trade-off curve: with probability 1 - confidence or less if true.

    It assumes nothing but the curve: no family, no independence of the canaries' outputs.
    """
    level = 1 - open_probability("confidence", confidence)
    if not outcome.right:
        return False
    m, r, c = outcome.canaries, outcome.guesses, outcome.right
    right, wrong = level * c / m, level * (r - c) / m
    for i in range(c - 1, -1, -1):
        more = max(wrong, trade_off(1 - right))
        if more == wrong:
            break  # then nothing changes any more
        right = min(1.0, right + (more - wrong) * i / (r - i))
        wrong = more
    return right + wrong > r / m


def fdp_epsilon(outcome: Guesses, family: Family, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return a lower bound on epsilon at delta within a family of trade-off curves, rounded down."""
    strength = fdp_strength(outcome, family, confidence)
    return family.epsilon(strength, open_probability("delta", delta)) if strength else 0.0


def fdp_strength(outcome: Guesses, family: Family, confidence: float = CONFIDENCE) -> float:
    """Return the largest parameter of a family that the outcome refutes, rounded down; 0 if there is none."""
    return largest(lambda strength: fdp_rejects(outcome, family.trade_off(strength), confidence))


def largest(rejected: Callable[[float], bool]) -> float:
    """Return the largest number that is rejected, by bisection, rounded down; 0 if no positive number is."""
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            return low
    while high - low > max(_PRECISION * high, 1e-6):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def best_of(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    counts: Sequence[tuple[int, int]],
    bound: Callable[[Guesses, float], float],
    confidence: float = CONFIDENCE,
) -> float:
    """Return the largest bound over several numbers of guesses (high, low), each at a Bonferroni-corrected level.

    `bound` is a function of an outcome and a confidence.
    """
    if not counts:
        raise invalid("counts", counts, "at least one pair (high, low)", "Each is a number of guesses to try.")
    corrected = 1 - (1 - open_probability("confidence", confidence)) / len(counts)
    return max(bound(guess(scores, included, high, low), corrected) for high, low in counts)


def ceiling(guesses: int, confidence: float = CONFIDENCE) -> float:
    """Return the largest epsilon that this many guesses can show if all are right, at delta 0: about ln(guesses / 3).

    >>> round(ceiling(100), 2), round(ceiling(1000), 2)
    (3.49, 5.81)
    """
    level = 1 - open_probability("confidence", confidence)
    log_rate = math.log(level) / whole("guesses", guesses)
    return log_rate - math.log(-math.expm1(log_rate))


def fewest(epsilon: float, confidence: float = CONFIDENCE) -> int:
    """Return the fewest right guesses that can show an epsilon: about 3 e^epsilon.

    >>> fewest(3.49), fewest(8.0) // 100
    (100, 89)
    """
    level = 1 - open_probability("confidence", confidence)
    return max(1, math.ceil(math.log(level) / -math.log1p(math.exp(-min(non_negative("epsilon", epsilon), 30.0)))))


def check_enough(canaries: int, epsilon: float, confidence: float = CONFIDENCE) -> None:
    """Reject a number of canaries that could not show this epsilon even if every guess were right."""
    least = fewest(epsilon, confidence)
    if canaries < least:
        raise invalid(
            "audit",
            canaries,
            f">= {least:,}, to audit epsilon {epsilon:.4g}",
            f"Even if every guess is right, {canaries:,} canaries show at most epsilon "
            f"{max(ceiling(canaries, confidence), 0.0):.3g} (about ln(canaries / 3)); plant more canaries, or audit a "
            f"smaller {setting('epsilon')}.",
        )


def planned_guesses(canaries: int, trade_off: Callable[[float], float], confidence: float = CONFIDENCE) -> int:
    """Return how many of the largest scores, and how many of the smallest, to guess; chosen before any score is seen.

    It is the number with which the expected outcome of the best test under the declared trade-off curve shows the
    largest mu. Only the declared curve and the number of canaries enter.
    """
    whole("canaries", canaries, 2)
    family = gaussian()
    best, most = 1, -math.inf
    for share in _SHARES:
        side = max(1, int(share * canaries))
        # among the `side` largest scores: false positives a, true positives 1 - f(a), with (a + 1 - f(a)) / 2 = share
        rate = _rate_for(trade_off, side / canaries)
        right = (1 - trade_off(rate)) / 2 * canaries
        shown = fdp_strength(Guesses(canaries, 2 * side, min(2 * side, int(2 * right))), family, confidence)
        if shown > most:
            best, most = side, shown
    return best


def _rate_for(trade_off: Callable[[float], float], share: float) -> float:
    """Return the false-positive rate at which the best test accepts this share of canaries, half of them included."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if (middle + 1 - trade_off(middle)) / 2 > share else (middle, high)
    return low
