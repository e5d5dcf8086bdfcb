"""One law book for all accountants."""

import math
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

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
    LocalDpEvent,
    MetricDpEvent,
    NoGuaranteeDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    SkellamDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
)
from discreet.accounting.interpret import Meter, epsilon, guarantee_of
from discreet.accounting.interpret import delta as delta_of
from discreet.accounting.risk import most_true_positives
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency

law = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
noises = st.floats(0.4, 20.0)
rates = st.floats(0.001, 0.6)
adjacencies = st.sampled_from(list(Adjacency))

gaussians = st.one_of(st.builds(GaussianDpEvent, noises), st.builds(ClippedSumDpEvent, noises, st.integers(1, 2)))
singles = st.one_of(
    gaussians,
    st.builds(LaplaceDpEvent, noises),
    st.builds(EpsilonDeltaDpEvent, st.floats(0.01, 3.0)),
    st.builds(LocalDpEvent, st.floats(0.01, 3.0)),
    st.builds(RandomizedResponseDpEvent, st.floats(0.1, 0.99), st.integers(2, 9)),
    st.builds(DiscreteLaplaceDpEvent, st.floats(0.05, 1.0), st.integers(1, 4)),
    st.builds(DiscreteGaussianDpEvent, st.floats(1.0, 20.0), st.integers(1, 3)),
    st.builds(
        DiscreteGaussianSumDpEvent, st.floats(0.6, 20.0), st.integers(1, 9), st.just(2.0), st.just(3.0), st.just(4)
    ),
    st.builds(SkellamDpEvent, st.floats(2.0, 200.0), st.just(2.0), st.just(3.0)),
    st.builds(ZCDpEvent, st.floats(0.001, 2.0)),
    st.builds(MetricDpEvent, st.floats(0.05, 2.0), st.just("euclidean"), st.floats(0.1, 1.5)),
    st.builds(lambda k, d: VonMisesFisherDpEvent(k * math.sqrt(d), d), st.floats(0.01, 1.5), st.integers(2, 100_000)),
)
sampled = st.one_of(
    st.builds(PoissonSampledDpEvent, rates, gaussians),
    st.builds(
        lambda m, n, e: SampledWithoutReplacementDpEvent(m + n, m, e),
        st.integers(1, 30),
        st.integers(1, 500),
        gaussians,
    ),
    st.builds(lambda m, n, e: VisibleVectorsDpEvent(e, m, m + n), st.integers(1, 30), st.integers(1, 500), gaussians),
)
events = st.one_of(
    st.builds(SelfComposedDpEvent, singles, st.integers(1, 30)),
    st.builds(SelfComposedDpEvent, sampled, st.integers(1, 300)),
    st.builds(lambda a, b: ComposedDpEvent([a, b]), singles, sampled),
)


def cost(event: DpEvent, delta: float, adjacency: Adjacency, accountant: str = "pld") -> float:
    try:
        return epsilon(event, delta, adjacency, accountant)
    except UnsupportedError:
        assume(False)
        raise


@law
@given(events, adjacencies, st.sampled_from([1e-3, 1e-5, 1e-7]))
def test_renyi_is_never_below_the_loss_distribution(event: DpEvent, adjacency: Adjacency, delta: float) -> None:
    """Both are upper bounds and the loss distribution is the tighter, but for the grid's 1e-3 per use."""
    renyi = cost(event, delta, adjacency, "rdp")
    assume(renyi < 200)
    assert cost(event, delta, adjacency, "pld") <= renyi * 1.002 + 2e-3


@law
@given(st.one_of(singles, sampled), adjacencies, st.integers(1, 20), st.integers(1, 20))
def test_more_uses_cost_more(event: DpEvent, adjacency: Adjacency, few: int, more: int) -> None:
    less = cost(SelfComposedDpEvent(event, few), 1e-5, adjacency)
    assert less <= cost(SelfComposedDpEvent(event, few + more), 1e-5, adjacency) + 2e-3


@law
@given(noises, st.floats(1.05, 3.0), rates, st.integers(1, 200), adjacencies)
def test_more_noise_costs_less(noise: float, factor: float, rate: float, steps: int, adjacency: Adjacency) -> None:
    def run(z: float) -> DpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(rate, ClippedSumDpEvent(z)), steps)

    assert epsilon(run(noise * factor), 1e-5, adjacency) <= epsilon(run(noise), 1e-5, adjacency) + 1e-6


@law
@given(events, adjacencies)
def test_a_smaller_delta_costs_more(event: DpEvent, adjacency: Adjacency) -> None:
    assert cost(event, 1e-3, adjacency) <= cost(event, 1e-6, adjacency)


@law
@given(noises, rates, st.integers(1, 200))
def test_an_exchange_is_worse_than_an_absence(noise: float, rate: float, steps: int) -> None:
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, ClippedSumDpEvent(noise)), steps)
    assert epsilon(event, 1e-5, "add/remove") <= epsilon(event, 1e-5, "replace-one") + 1e-6
    assert epsilon(event, 1e-5, "add/remove") == pytest.approx(epsilon(event, 1e-5, "zero-out"))


@law
@given(st.floats(0.05, 1.5), st.integers(2, 50_000), st.integers(1, 20), st.integers(0, 200), st.integers(1, 50))
def test_directions_are_cheaper_against_the_null_record(
    share: float, d: int, drawn: int, rest: int, steps: int
) -> None:
    step = VisibleVectorsDpEvent(VonMisesFisherDpEvent(share * math.sqrt(d), d), drawn, drawn + rest)
    event = SelfComposedDpEvent(step, steps)
    assert epsilon(event, 1e-5, "zero-out") <= epsilon(event, 1e-5, "replace-one") * 1.001 + 2e-3


@law
@given(events, adjacencies)
def test_sampling_hides_and_never_reveals(event: DpEvent, adjacency: Adjacency) -> None:
    inner = event.event if isinstance(event, SelfComposedDpEvent) else event
    assume(isinstance(inner, PoissonSampledDpEvent | VisibleVectorsDpEvent | SampledWithoutReplacementDpEvent))
    assert cost(inner, 1e-5, adjacency) <= cost(inner.event, 1e-5, adjacency) * 1.001 + 2e-3


@law
@given(events, adjacencies)
def test_none_because_composes_to_infinity(event: DpEvent, adjacency: Adjacency) -> None:
    both = ComposedDpEvent([event, NoGuaranteeDpEvent("the labels were sent as they are")])
    assert epsilon(both, 1e-5, adjacency) == math.inf


@law
@given(st.one_of(singles, sampled), adjacencies, st.floats(0.001, 0.5))
def test_no_attack_is_allowed_less_than_chance_or_more_than_epsilon_and_delta(
    event: DpEvent, adjacency: Adjacency, rate: float
) -> None:
    spent = cost(event, 1e-5, adjacency)
    most = most_true_positives(event, rate, adjacency)
    assert rate - 1e-9 <= most <= min(1.0, math.exp(min(spent, 700.0)) * rate + 1e-5) * 1.01 + 2e-3


LEAVES: list[DpEvent] = [
    GaussianDpEvent(1.5),
    ClippedSumDpEvent(1.5),
    LaplaceDpEvent(2.0),
    EpsilonDeltaDpEvent(0.5),
    EpsilonDeltaDpEvent(0.5, 1e-7),
    LocalDpEvent(0.5),
    RandomizedResponseDpEvent(0.5, 3),
    DiscreteLaplaceDpEvent(0.4, 1),
    DiscreteGaussianDpEvent(2.0, 1),
    DiscreteGaussianSumDpEvent(20.0, 3, 10.0, 20.0, 10),
    ZCDpEvent(0.1),
    MetricDpEvent(1.0, "euclidean", 0.5),
    VonMisesFisherDpEvent(3.0, 20),
]
DRAWS: list[Callable[[DpEvent], DpEvent]] = [
    lambda e: PoissonSampledDpEvent(0.1, e),
    lambda e: PoissonSampledDpEvent(1.0, e),
    lambda e: SampledWithoutReplacementDpEvent(10, 1, e),
    lambda e: SampledWithoutReplacementDpEvent(10, 10, e),
    lambda e: VisibleVectorsDpEvent(e, 1, 10),
    lambda e: VisibleVectorsDpEvent(e, 10, 10),
]
WRAPS: list[Callable[[DpEvent], DpEvent]] = [
    lambda e: e,
    lambda e: SelfComposedDpEvent(e, 1),
    lambda e: ComposedDpEvent([e]),
    lambda e: ComposedDpEvent([NoOpDpEvent(), SelfComposedDpEvent(ComposedDpEvent([e]), 1)]),
]
PER_RECORD = (VonMisesFisherDpEvent, LocalDpEvent, RandomizedResponseDpEvent, MetricDpEvent, VisibleVectorsDpEvent)


def trees() -> list[tuple[DpEvent, list[DpEvent]]]:
    """Return events of up to two draws over each leaf, each with the same event wrapped in what changes nothing."""
    found = [(leaf, [wrap(leaf) for wrap in WRAPS[1:]]) for leaf in LEAVES]
    for leaf in LEAVES:
        for draw in DRAWS:
            wrapped = [WRAPS[i](draw(WRAPS[j](leaf))) for i, j in ((0, 1), (0, 2), (0, 3), (1, 0), (2, 3), (3, 1))]
            found += [(draw(leaf), wrapped)]
    for leaf in (GaussianDpEvent(1.5), ClippedSumDpEvent(1.5), LocalDpEvent(0.5), VonMisesFisherDpEvent(3.0, 20)):
        for first in DRAWS:
            for second in DRAWS:
                plain = second(first(leaf))
                found.append((plain, [second(wrap(first(wrap(leaf)))) for wrap in WRAPS[1:]]))
    return found


def figure(event: DpEvent, adjacency: Adjacency, accountant: str) -> float | None:
    try:
        return epsilon(event, 1e-4, adjacency, accountant)
    except UnsupportedError:
        return None


def holds(event: DpEvent, kinds: tuple[type[DpEvent], ...]) -> bool:
    inner = getattr(event, "event", None)
    return isinstance(event, kinds) or (inner is not None and holds(inner, kinds))


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_wrapping_that_says_nothing_changes_neither_the_cover_nor_the_figure(adjacency: Adjacency) -> None:
    covered = 0
    for plain, wrapped in trees():
        for accountant in ("pld", "rdp", "gdp"):
            expected = figure(plain, adjacency, accountant)
            covered += expected is not None
            for event in wrapped:
                found = figure(event, adjacency, accountant)
                assert (found is None) == (expected is None), (event, accountant)
                assert found is None or found == pytest.approx(expected, rel=1e-9), (event, accountant)
    assert covered > 50


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_other_accountants_cover_no_more_than_the_loss_distribution(adjacency: Adjacency) -> None:
    for event, _ in trees():
        if figure(event, adjacency, "pld") is None:
            assert figure(event, adjacency, "rdp") is None, event
            assert figure(event, adjacency, "gdp") is None, event


def test_what_is_seen_record_by_record_has_no_figure_when_records_may_be_absent() -> None:
    for event, wrapped in trees():
        if holds(event, PER_RECORD):
            for each in (event, *wrapped):
                for accountant in ("pld", "rdp", "gdp"):
                    assert figure(each, Adjacency.ADD_REMOVE, accountant) is None, (each, accountant)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_every_question_is_refused_where_one_is(adjacency: Adjacency) -> None:
    """Epsilon, delta, the guarantee, the meter and the risk ask the same rules."""
    refused = 0
    for event, _ in trees():
        if figure(event, adjacency, "pld") is not None:
            continue
        refused += 1
        for accountant in ("pld", "rdp", "gdp"):
            for ask in (
                lambda e, a: epsilon(e, 1.0, adjacency, a),
                lambda e, a: delta_of(e, 900.0, adjacency, a),
                lambda e, a: delta_of(e, 0.1, adjacency, a),
                lambda e, a: guarantee_of(e, delta=0.0, adjacency=adjacency, accountant=a),
                lambda e, a: Meter(e, 1e-5, adjacency, a).epsilon(3),
                lambda e, a: most_true_positives(e, 0.1, adjacency),
            ):
                with pytest.raises(UnsupportedError):
                    ask(event, accountant)
    assert refused > 30
