"""One-run audits: right on average, valid at their level, and rejected where they cannot say anything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from discreet.audit.one_run import (
    Guesses,
    best_of,
    ceiling,
    check_enough,
    fdp_epsilon,
    fdp_rejects,
    fdp_strength,
    fewest,
    guess,
    planned_guesses,
    steinke_epsilon,
    steinke_p_value,
)
from discreet.audit.trade_off import epsilon_delta, gaussian
from discreet.core.errors import DataError, SettingError

GAUSSIAN = gaussian()


def slow_p_value(outcome: Guesses, epsilon: float, delta: float) -> float:
    """Return the p-value straight from the paper's theorem, term by term."""
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))
    above = [float(binom.sf(k - 1, outcome.guesses, rate)) for k in range(outcome.right + 1)]
    beta = above[outcome.right]
    gains = [(above[outcome.right - i] - beta) / i for i in range(1, outcome.right + 1)]
    return min(1.0, beta + 2 * outcome.canaries * delta * max([0.0, *gains]))


@given(st.integers(1, 60), st.floats(0, 1), st.floats(0, 1), st.floats(0, 4), st.sampled_from([0.0, 1e-6, 1e-3, 0.1]))
def test_the_p_value_is_that_of_the_theorem(
    canaries: int, guessed: float, right: float, epsilon: float, delta: float
) -> None:
    r = round(guessed * canaries)
    outcome = Guesses(canaries, r, round(right * r))
    assert steinke_p_value(outcome, epsilon, delta) == pytest.approx(slow_p_value(outcome, epsilon, delta), abs=1e-9)


@given(st.integers(2, 200), st.floats(0, 1), st.floats(0.5, 1))
def test_more_right_guesses_never_show_less(canaries: int, guessed: float, right: float) -> None:
    r = max(1, round(guessed * canaries))
    v = round(right * r)
    fewer, more = Guesses(canaries, r, max(0, v - 1)), Guesses(canaries, r, v)
    assert steinke_epsilon(fewer, 1e-5) <= steinke_epsilon(more, 1e-5)
    assert fdp_strength(fewer, GAUSSIAN) <= fdp_strength(more, GAUSSIAN)


def test_the_fdp_audit_of_all_private_mechanisms_is_close_to_steinke() -> None:
    outcome = Guesses(100, 100, 90)
    assert fdp_epsilon(outcome, epsilon_delta(1e-12), 1e-12) == pytest.approx(steinke_epsilon(outcome), rel=0.02)


def test_perfect_privacy_is_refuted_in_at_most_five_percent_of_runs() -> None:
    """The outcome of guessing at random is binomial, so the level is exact to compute."""
    for m, r in ((50, 50), (200, 40), (1000, 200)):
        counts = np.arange(r + 1)
        chance = binom.pmf(counts, r, 0.5)
        for refuted in (
            lambda c, m=m, r=r: steinke_p_value(Guesses(m, r, c), 0.0) <= 0.05,
            lambda c, m=m, r=r: fdp_rejects(Guesses(m, r, c), GAUSSIAN.trade_off(1e-9)),
        ):
            assert sum(chance[c] for c in counts if refuted(int(c))) <= 0.05


def test_the_best_of_many_thresholds_needs_its_correction() -> None:
    """Without a correction half of all perfectly private runs seem to leak; with it at most one in twenty does."""
    rng = np.random.default_rng(0)
    counts = [(k, k) for k in range(25, 501, 25)]
    wrong = corrected = 0
    for _ in range(60):
        scores, bits = rng.normal(size=1000), rng.random(1000) < 0.5
        wrong += max(steinke_epsilon(guess(scores, bits, *pair)) for pair in counts) > 0
        corrected += best_of(scores, bits, counts, lambda o, c: steinke_epsilon(o, 0.0, c)) > 0
    assert wrong >= 15 and corrected <= 6


def test_scores_are_guessed_from_both_ends_and_others_count_as_canaries() -> None:
    assert guess([0.9, 0.1, 0.5, 0.7], [1, 0, 1, 0], 1, 1) == Guesses(4, 2, 2)
    assert guess([0.9, 0.1, 0.5, 0.7], [0, 1, 1, 0], 2) == Guesses(4, 2, 0)
    with pytest.raises(SettingError, match="<= 4, the number of canaries"):
        guess([1.0] * 4, [1, 0, 1, 0], 3, 2)
    with pytest.raises(DataError, match="without NaN"):
        guess([1.0, math.nan], [1, 0], 1)
    with pytest.raises(DataError, match="one score and one coin"):
        guess([1.0, 2.0], [1], 1)
    with pytest.raises(SettingError, match="guesses to be at least right=3"):
        Guesses(4, 2, 3)


def test_too_few_canaries_are_rejected_with_the_number_that_is_enough() -> None:
    assert steinke_epsilon(Guesses(1000, 1000, 1000)) == pytest.approx(ceiling(1000), rel=1e-3)
    assert ceiling(300) == pytest.approx(math.log(300 / 3), abs=0.02)
    for epsilon in (1.0, 4.0, 8.0):
        enough = fewest(epsilon)
        check_enough(enough, epsilon)
        assert ceiling(enough) >= epsilon
        with pytest.raises(SettingError, match=f"audit to be >= {enough:,}, to audit epsilon"):
            check_enough(enough - 1, epsilon)


def test_the_number_of_guesses_is_planned_from_the_claim_alone() -> None:
    for mu in (0.3, 1.0, 2.0):
        side = planned_guesses(1000, GAUSSIAN.trade_off(mu))
        assert 1 <= side <= 500
    # a strong claim is tested on few guesses, a weak one on more
    assert planned_guesses(10_000, GAUSSIAN.trade_off(0.3)) >= planned_guesses(10_000, GAUSSIAN.trade_off(1.0))
