"""The cost of choosing: the bound on the best of a random number of runs lies above the exact cost."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting import curve as curves
from discreet.accounting.calibrate import search_noise
from discreet.accounting.curve import Array
from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    NoGuaranteeDpEvent,
    OneOfDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    decompose,
    simplify,
)
from discreet.accounting.interpret import delta, epsilon, guarantee_of, pure_epsilon
from discreet.accounting.selection import either, halting_probability, poisson_rate, runs_for, selected
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng

SHAPES = (math.inf, 0.0, 0.5, 1.0)


def generating(mean: float, shape: float, conditioned: bool, x: Array) -> Array:
    """Return E[x^K] of a number of runs K."""
    if shape == math.inf:
        rate = poisson_rate(mean) if conditioned else mean
        whole = np.exp(rate * (x - 1))
        return (whole - math.exp(-rate)) / -math.expm1(-rate) if conditioned else whole
    gamma = halting_probability(mean, shape)
    if shape == 0:
        return np.log(1 - (1 - gamma) * x) / math.log(gamma)
    return ((1 - (1 - gamma) * x) ** -shape - 1) / (gamma**-shape - 1)


def best_of(q: Array, mean: float, shape: float, conditioned: bool) -> Array:
    """Return the exact distribution of the best of K runs, where outcomes are in the order of their scores."""
    at_most = np.concatenate(([0.0], np.cumsum(q)))
    at_most[-1] = 1.0
    return np.diff(generating(mean, shape, conditioned, at_most))


def hockey_stick(p: Array, q: Array, eps: float) -> float:
    return float(np.maximum(p - math.exp(eps) * q, 0.0).sum())


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)), min_size=2, max_size=7),
    st.floats(1.01, 30.0),
    st.sampled_from(SHAPES),
    st.booleans(),
)
def test_no_selection_costs_more_than_its_curve(
    pairs: list[tuple[float, float]], mean: float, shape: float, conditioned: bool
) -> None:
    p, q = (np.array(side) / sum(side) for side in zip(*pairs, strict=True))
    bound = selected(curves.discrete(p, q), mean, shape)
    released, other = (best_of(side, mean, shape, conditioned) for side in (p, q))
    for eps in (0.0, 0.3, 1.0, 2.5, 5.0):
        point = np.array([eps])
        assert hockey_stick(released, other, eps) <= float(bound.present(point)[0]) + 1e-9
        assert bound.absent is not None
        assert hockey_stick(other, released, eps) <= float(bound.absent(point)[0]) + 1e-9


@pytest.mark.parametrize("best_is_likely", [True, False])
def test_gaussian_noise_is_bounded_in_both_orders_and_more_tightly_than_by_divergences(best_is_likely: bool) -> None:
    grid = np.linspace(-9.0, 9.0, 20_001)
    step, mu, mean = grid[1] - grid[0], 0.5, 8.0
    p, q = (np.exp(-((grid - at) ** 2) / 2) * step / math.sqrt(2 * math.pi) for at in (mu, 0.0))
    if not best_is_likely:
        p, q = p[::-1], q[::-1]
    released, other = (best_of(side / side.sum(), mean, math.inf, True) for side in (p, q))
    event = RepeatAndSelectDpEvent(GaussianDpEvent(1 / mu), mean, math.inf)
    for eps in (1.0, 2.0, 4.0):
        assert max(hockey_stick(released, other, eps), hockey_stick(other, released, eps)) <= delta(event, eps)
    by_curve, by_divergences = epsilon(event, 1e-5), epsilon(event, 1e-5, accountant="rdp")
    assert by_curve < 0.9 * by_divergences
    assert guarantee_of(event, delta=1e-5).accountant == "pld"


def test_selection_costs_more_than_one_run_and_less_than_all_of_them() -> None:
    one = GaussianDpEvent(2.0)
    for shape in SHAPES[:2]:
        costs = [epsilon(RepeatAndSelectDpEvent(one, mean, shape), 1e-5) for mean in (1.5, 20.0)]
        assert epsilon(one, 1e-5) < costs[0] < costs[1]
    twenty = epsilon(SelfComposedDpEvent(one, 20), 1e-5)
    assert epsilon(RepeatAndSelectDpEvent(one, 20.0, 0.0), 1e-5) < twenty


def test_a_choice_costs_as_much_as_the_largest_of_its_events() -> None:
    small, large, other = GaussianDpEvent(5.0), GaussianDpEvent(2.0), EpsilonDeltaDpEvent(1.0)
    choice = OneOfDpEvent((small, large))
    for accountant in ("pld", "rdp"):
        assert epsilon(choice, 1e-5, accountant=accountant) == pytest.approx(
            epsilon(large, 1e-5, accountant=accountant), rel=1e-3
        )
    assert delta(OneOfDpEvent((small, other)), 0.5) >= max(delta(small, 0.5), delta(other, 0.5))
    pure = decompose(OneOfDpEvent((other, EpsilonDeltaDpEvent(2.0))), Adjacency.ADD_REMOVE)
    assert pure_epsilon(pure, Adjacency.ADD_REMOVE) == 2.0
    assert either([curves.gaussian(0.5)]).absent is None
    assert either([curves.gaussian(0.5), curves.gaussian(1.0)]).absent is None
    assert simplify(OneOfDpEvent((small,))) == small


def test_a_selection_composes_with_other_releases() -> None:
    selection = RepeatAndSelectDpEvent(GaussianDpEvent(4.0), 5.0, math.inf)
    alone, other = epsilon(selection, 1e-5), epsilon(GaussianDpEvent(4.0), 1e-5)
    both = epsilon(ComposedDpEvent([selection, GaussianDpEvent(4.0)]), 1e-5)
    assert max(alone, other) < both < alone + other


def test_what_is_not_proven_or_not_private_stays_so_inside_a_selection() -> None:
    per_record = RandomizedResponseDpEvent(0.5, 2)
    with pytest.raises(UnsupportedError):
        epsilon(RepeatAndSelectDpEvent(per_record, 3.0, math.inf), 1e-5)
    for event in (NoGuaranteeDpEvent("made up"), OneOfDpEvent((GaussianDpEvent(1.0), NoGuaranteeDpEvent("made up")))):
        assert not guarantee_of(RepeatAndSelectDpEvent(event, 3.0, math.inf), delta=1e-5).exists
    with pytest.raises(SettingError, match="mean"):
        epsilon(RepeatAndSelectDpEvent(GaussianDpEvent(1.0), 0.5, math.inf), 1e-5)
    with pytest.raises(SettingError, match="shape"):
        epsilon(RepeatAndSelectDpEvent(GaussianDpEvent(1.0), 2.0, -1.0), 1e-5)
    with pytest.raises(SettingError, match="events"):
        OneOfDpEvent(())
    stated = guarantee_of(RepeatAndSelectDpEvent(GaussianDpEvent(1.0), 2.0, math.inf), delta=1e-5)
    assert any("stay secret" in text for text in stated.assumptions)


def test_numbers_of_runs_have_their_mean_and_are_at_least_one() -> None:
    for mean in (1.2, 4.0, 30.0):
        runs = np.array([runs_for(mean, Rng(seed).fork("runs")) for seed in range(1500)])
        assert runs.min() >= 1
        assert abs(runs.mean() - mean) < 5 * math.sqrt(mean / 1500)
    with pytest.raises(SettingError, match="trials"):
        runs_for(0.5, Rng(0))


def training(steps: int) -> Callable[[float], DpEvent]:
    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(0.1, ClippedSumDpEvent(noise)), steps)

    return event


def test_the_noise_of_a_search_uses_its_budget_and_never_exceeds_it() -> None:
    kinds = [training(50), training(200)]
    search = search_noise(kinds, mean=4, epsilon=2.0, delta=1e-5, adjacency="zero-out")
    assert 1.96 < epsilon(search.event, 1e-5, "zero-out") <= 2.0
    assert search.trial_epsilon < 2.0 and search.noises[0] < search.noises[1]
    assert search.score_noise is not None
    for make, noise in zip(kinds, search.noises, strict=True):
        assert epsilon(make(noise), 1e-5, "zero-out") <= search.trial_epsilon


def test_too_many_trials_for_a_budget_are_rejected_with_a_remedy() -> None:
    with pytest.raises(SettingError, match="Use fewer trials"):
        search_noise([training(50)], mean=600, epsilon=1.0, delta=1e-5, scored=False)
