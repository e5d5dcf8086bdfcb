import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library

from discreet.accounting import interpret
from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DiscreteGaussianDpEvent,
    DiscreteGaussianSumDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MetricDpEvent,
    NoGuaranteeDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    Parts,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    SkellamDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
)
from discreet.accounting.gdp import gaussian_epsilon
from discreet.accounting.interpret import Meter, delta, epsilon, guarantee_of
from discreet.accounting.interpret import delta as delta_of
from discreet.accounting.losses import powers_of
from discreet.accounting.powers import Losses, Powers
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.guarantee import Adjacency

ADD, ZERO, REPLACE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
VMF = VonMisesFisherDpEvent(50.0, 1000)
RESPONSE = RandomizedResponseDpEvent(0.5, 2)


def test_sensitivity_is_ours_under_every_adjacency_and_both_accountants() -> None:
    declared, total = GaussianDpEvent(1.0), ClippedSumDpEvent(1.0)
    for adjacency in Adjacency:
        assert epsilon(declared, 1e-5, adjacency) == pytest.approx(4.377, abs=1e-3)  # never doubled behind one's back
        assert epsilon(declared, 1e-5, adjacency, "rdp") == pytest.approx(4.73, abs=0.01)
    assert epsilon(total, 1e-5, ADD) == epsilon(total, 1e-5, ZERO) == pytest.approx(4.377, abs=1e-3)
    assert epsilon(total, 1e-5, REPLACE) == pytest.approx(9.997, abs=1e-3)
    assert epsilon(total, 1e-5, REPLACE, "rdp") == pytest.approx(epsilon(GaussianDpEvent(0.5), 1e-5, ADD, "rdp"))
    assert epsilon(ClippedSumDpEvent(4.0, occurrences=4), 1e-5) == pytest.approx(epsilon(total, 1e-5))


def test_the_same_composition_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(parts: Parts, *rest: Any) -> tuple[Powers, int]:
        calls.append(parts)
        return powers_of(parts, *rest)

    monkeypatch.setattr(interpret, "powers_of", counted)
    interpret._epsilon.cache_clear()  # type: ignore[attr-defined]
    made = [SelfComposedDpEvent(PoissonSampledDpEvent(0.017, ClippedSumDpEvent(1.1)), count) for count in (5, 5, 6)]
    values = [epsilon(event, 1e-5) for event in made]
    assert len(calls) == 2 and values[0] == values[1] < values[2]
    assert epsilon(made[0], 1e-6) > values[0] and epsilon(made[0], 1e-5, ZERO) == values[0] and len(calls) == 4
    interpret._epsilon.cache_clear()  # type: ignore[attr-defined]
    assert [epsilon(event, 1e-5) for event in made] == values


def test_every_vector_seen_costs_far_more_than_their_sum() -> None:
    """Noise C, one of a hundred, a thousand steps: 2.84 for the sum, 14.8 for the vectors."""
    total = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0)), 1000)
    seen = SelfComposedDpEvent(VisibleVectorsDpEvent(GaussianDpEvent(0.5), 1, 100), 1000)
    assert epsilon(total, 1e-5, REPLACE) == pytest.approx(2.84, abs=0.01)
    assert epsilon(seen, 1e-5, REPLACE) == pytest.approx(14.82, abs=0.02)


def test_the_order_and_grouping_of_events_do_not_matter() -> None:
    a, b = LaplaceDpEvent(3.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))
    one = ComposedDpEvent([a, b, a, NoOpDpEvent(), GaussianDpEvent(4.0)])
    two = ComposedDpEvent([GaussianDpEvent(4.0), SelfComposedDpEvent(a, 2), ComposedDpEvent([b])])
    assert epsilon(one, 1e-5) == pytest.approx(epsilon(two, 1e-5), rel=1e-9)
    assert epsilon(SelfComposedDpEvent(GaussianDpEvent(4.0), 16), 1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert epsilon(NoOpDpEvent(), 0.0) == 0.0
    assert epsilon(SelfComposedDpEvent(a, 0), 0.0) == 0.0


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (GaussianDpEvent(2.0), ADD),
        (SelfComposedDpEvent(PoissonSampledDpEvent(0.05, ClippedSumDpEvent(0.8)), 50), ZERO),
        (SelfComposedDpEvent(PoissonSampledDpEvent(0.05, ClippedSumDpEvent(0.8)), 50), REPLACE),
        (SelfComposedDpEvent(LaplaceDpEvent(2.0), 5), ADD),
        (VMF, REPLACE),
        (VMF, ZERO),
        (SelfComposedDpEvent(VisibleVectorsDpEvent(VMF, 3, 100), 20), ZERO),
        (RESPONSE, ZERO),
        (DiscreteGaussianDpEvent(3.0, 2), ADD),
        (DiscreteGaussianSumDpEvent(3.0, 6, 2.5, 4.0, 10), ADD),
        (SkellamDpEvent(30.0, 2.0, 3.0), ADD),
        (ZCDpEvent(0.3), ADD),
        (PoissonSampledDpEvent(0.1, VisibleVectorsDpEvent(GaussianDpEvent(1.0), 40, 40)), REPLACE),
        (VisibleVectorsDpEvent(ComposedDpEvent([GaussianDpEvent(1.0), RESPONSE]), 1, 10), REPLACE),
    ],
)
def test_delta_at_the_epsilon_found_is_the_delta_asked_for(event: DpEvent, adjacency: Adjacency) -> None:
    for wanted in (1e-3, 1e-6):
        found = epsilon(event, wanted, adjacency)
        assert delta(event, found, adjacency) <= wanted * (1 + 1e-3)
        if found > 0.01:
            assert delta(event, found * 0.97, adjacency) > wanted


def test_pure_events_have_their_epsilon_at_delta_zero() -> None:
    assert epsilon(RESPONSE, 0.0, REPLACE) == pytest.approx(math.log(3))
    assert epsilon(SelfComposedDpEvent(LaplaceDpEvent(2.0), 4), 0.0) == pytest.approx(2.0)
    assert epsilon(EpsilonDeltaDpEvent(0.7), 0.0, REPLACE) == 0.7
    assert epsilon(VMF, 0.0, REPLACE) == pytest.approx(100.0)
    assert epsilon(DiscreteLaplaceDpEvent(0.1, 3), 0.0) == pytest.approx(0.3)
    assert epsilon(PoissonSampledDpEvent(0.5, LaplaceDpEvent(1.0)), 0.0) == pytest.approx(
        math.log1p(0.5 * (math.e - 1))
    )
    assert epsilon(MetricDpEvent(2.0, "euclidean", diameter=1.5), 0.0, REPLACE) == pytest.approx(3.0)
    with pytest.raises(SettingError, match="The loss is unbounded"):
        epsilon(GaussianDpEvent(1.0), 0.0)


@pytest.mark.parametrize(
    ("event", "adjacency", "accountant", "named"),
    [
        (RESPONSE, ADD, "pld", "RandomizedResponse"),
        (VMF, ADD, "pld", "VonMisesFisher"),
        (VisibleVectorsDpEvent(GaussianDpEvent(1.0), 1, 10), ADD, "pld", "VisibleVectors of Gaussian"),
        (VisibleVectorsDpEvent(GaussianDpEvent(1.0), 1, 10), ZERO, "pld", "VisibleVectors of Gaussian"),
        (SampledWithoutReplacementDpEvent(10, 1, ClippedSumDpEvent(1.0)), ADD, "pld", "SampledWithoutReplacement"),
        (PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), REPLACE, "pld", "PoissonSampled of Gaussian"),
        (PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)), REPLACE, "pld", "PoissonSampled of Laplace"),
        (PoissonSampledDpEvent(0.1, RESPONSE), ZERO, "pld", "PoissonSampled of RandomizedResponse"),
        (PoissonSampledDpEvent(0.1, VMF), ZERO, "pld", "PoissonSampled of VonMisesFisher"),
        (PoissonSampledDpEvent(0.1, ClippedSumDpEvent(1.0)), REPLACE, "rdp", "PoissonSampled of ClippedSum"),
        (PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)), ADD, "rdp", "PoissonSampled of Laplace"),
        (VisibleVectorsDpEvent(VMF, 1, 10), REPLACE, "rdp", "VisibleVectors of VonMisesFisher"),
        (EpsilonDeltaDpEvent(1.0, 1e-6), ADD, "rdp", "EpsilonDelta"),
        (LaplaceDpEvent(1.0), ADD, "gdp", "Laplace"),
        (PoissonSampledDpEvent(0.1, ClippedSumDpEvent(1.0)), REPLACE, "gdp", "PoissonSampled of ClippedSum"),
        (MetricDpEvent(1.0, "euclidean", 1.0), ADD, "pld", "Metric"),
    ],
)
def test_what_no_proof_covers_is_refused_by_name(
    event: DpEvent, adjacency: Adjacency, accountant: str, named: str
) -> None:
    with pytest.raises(UnsupportedError, match=f"the {accountant} accountant covers under {adjacency.value}") as error:
        epsilon(event, 1e-5, adjacency, accountant)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (NoGuaranteeDpEvent("masks are not noise"), "masks are not noise"),
        (NonPrivateDpEvent(), "without protection"),
        (GaussianDpEvent(0.0), "no noise"),
        (PoissonSampledDpEvent(0.1, ClippedSumDpEvent(0.0)), "no noise"),
        (MetricDpEvent(1.0, "euclidean"), "unbounded euclidean"),
        (RandomizedResponseDpEvent(0.0, 2), "truthfully"),
    ],
)
def test_none_because_makes_the_whole_infinite_and_says_why(event: DpEvent, reason: str) -> None:
    whole = ComposedDpEvent([GaussianDpEvent(1.0), event, event])
    assert epsilon(whole, 1e-5, REPLACE) == math.inf
    assert delta(whole, 100.0, REPLACE) == 1.0
    found = guarantee_of(whole, delta=1e-5, adjacency=REPLACE, unit="note")
    assert not found.exists
    assert not found.certified
    assert found.reason is not None and reason in found.reason
    assert str(found).startswith("No guarantee for any note")


def test_a_guarantee_says_what_it_rests_on() -> None:
    steps = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0)), 1000)
    found = guarantee_of(steps, delta=1e-5, unit="note", assumptions=("the seed is secret",))
    assert found.certified
    assert found.assumptions[0] == "the seed is secret"
    assert "only the noisy sum is visible" in found.sentence()
    estimate = guarantee_of(steps, delta=1e-5, accountant="gdp")
    assert not estimate.certified
    assert "Estimate, not a bound" in str(estimate)
    assert guarantee_of(GaussianDpEvent(1.0), delta=1e-5, accountant="gdp").certified  # exact without sampling


@pytest.mark.parametrize(
    "event",
    [
        PoissonSampledDpEvent(1.7, ClippedSumDpEvent(1.0)),
        PoissonSampledDpEvent(math.nan, ClippedSumDpEvent(1.0)),
        GaussianDpEvent(-1.0),
        GaussianDpEvent(math.nan),
        LaplaceDpEvent(math.inf),
        RandomizedResponseDpEvent(1.5, 2),
        SampledWithoutReplacementDpEvent(5, 6, GaussianDpEvent(1.0)),
        ZCDpEvent(-1.0),
        SelfComposedDpEvent(GaussianDpEvent(1.0), -1),
        PoissonSampledDpEvent(0.1, GaussianDpEvent(-1.0)),
    ],
)
def test_parameters_that_no_mechanism_has_are_refused(event: DpEvent) -> None:
    with pytest.raises(SettingError, match="Expected"):
        epsilon(event, 1e-5)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SettingError, match="Did you mean 'pld'"):
        epsilon(GaussianDpEvent(1.0), 1e-5, ADD, "pdl")
    with pytest.raises(SettingError, match="replace-one"):
        epsilon(GaussianDpEvent(1.0), 1e-5, "replace")
    with pytest.raises(UnsupportedError, match="Expected an event"):
        epsilon(1.0, 1e-5)


@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
def test_a_real_pair_of_corpora_stays_below_the_bound_after_a_thousand_steps(adjacency: Adjacency) -> None:
    """One of a hundred vectors a step: all others opposite to the record, its losses rounded down, composed."""
    x = np.linspace(-9, 9, 40_001)
    gap = x[1] - x[0]

    def bell(mean: float) -> np.ndarray:
        return np.exp(-((x - mean) ** 2) / 2) * gap / math.sqrt(2 * math.pi)

    rest = 0.99 * bell(-1.0)
    here, there = rest + 0.01 * bell(1.0), rest + 0.01 * bell(0.0 if adjacency is ZERO else -1.0)
    steps = np.floor(np.log(here / there) / 1e-4).astype(int)
    masses = np.bincount(steps - steps.min(), weights=here)
    real = Losses(masses / masses.sum(), int(steps.min()), 1e-4, 0.0).power(1000).epsilon(1e-5)
    bound = epsilon(SelfComposedDpEvent(VisibleVectorsDpEvent(ClippedSumDpEvent(1.0), 1, 100), 1000), 1e-5, adjacency)
    assert 0.75 * bound < real <= bound


def training(rate: float, noise: float, steps: int) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, ClippedSumDpEvent(noise)), steps)


def test_a_tiny_delta_after_many_steps_has_an_epsilon() -> None:
    """It was infinite, where the rdp accountant proves 0.667."""
    event = training(4.8e-4, 1.87, 113_349)
    assert epsilon(event, 1.6e-12, accountant="rdp") < 0.667
    found = guarantee_of(event, delta=1.6e-12)
    assert found.certified
    assert 0.59 < found.epsilon < 0.605


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [(5e-5, 2.0, 30_000, 1e-7), (1e-5, 2.0, 300_000, 1e-8), (1e-3, 2.0, 1000, 1e-6)],
)
def test_small_rates_cost_what_a_fine_grid_of_the_library_says(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    """The grid was as coarse as the spread of one step's losses, and epsilon three to eight times too large."""
    one = library.from_gaussian_mechanism(
        noise, value_discretization_interval=rate / noise / 20, sampling_prob=rate, log_mass_truncation_bound=-60
    )
    theirs = one.self_compose(steps, 1e-15).get_epsilon_for_delta(delta)
    event = training(rate, noise, steps)
    assert epsilon(event, delta) == pytest.approx(theirs, rel=0.01)
    assert Meter(event.event, delta).epsilon(steps) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("rate", [1e-6, 5e-5, 1e-3, 0.05, 0.7])
@pytest.mark.parametrize("noise", [0.5, 1.5, 10.0])
def test_the_default_reports_the_smaller_of_two_proofs_and_names_it(rate: float, noise: float) -> None:
    for steps, at in ((1, 1e-9), (200, 1e-5), (1000 if rate > 0.01 else 100_000, 1e-13)):
        event = training(rate, noise, steps)
        other = epsilon(event, at, accountant="rdp")
        found = guarantee_of(event, delta=at)
        assert found.epsilon <= other
        assert found.epsilon == (other if found.accountant == "rdp" else pytest.approx(epsilon(event, at)))
        assert delta_of(event, found.epsilon) <= at * 1.01 + 1e-9


def test_a_loss_too_large_for_any_grid_is_still_bounded_by_the_rdp_accountant() -> None:
    found = guarantee_of(training(0.5, 5e-5, 10), delta=1e-5)
    assert found.accountant == "rdp"
    assert found.certified
    assert math.isfinite(found.epsilon)
