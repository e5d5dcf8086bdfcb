import pytest

from discreet.accounting.events import (
    ComposedDpEvent,
    LocalDpEvent,
    RandomizedResponseDpEvent,
    VonMisesFisherDpEvent,
)
from discreet.accounting.interpret import epsilon
from discreet.accounting.local_layer import LocalLayerCost, Sending
from discreet.core.errors import SettingError
from discreet.core.guarantee import Adjacency


@pytest.mark.parametrize("sampling", ["once", "fixed", "coins"])
def test_sound_noise_keeps_the_budget(sampling: str) -> None:
    made = LocalLayerCost(0.5, population=400, drawn=8, steps=60, sampling=sampling)
    std = made.noise_std(3.0, 1e-4)
    found = made.guarantee(std, delta=1e-4, unit="sentence")
    assert found.certified
    assert found.adjacency is Adjacency.REPLACE_ONE
    assert 2.99 < found.epsilon <= 3.0 + 1e-9
    assert "encoder" in found.sentence()


def test_decoys_help_because_more_could_have_been_drawn() -> None:
    few = LocalLayerCost(1.0, population=100, drawn=5, steps=20, sampling="fixed")
    more = LocalLayerCost(1.0, population=100, drawn=5, steps=20, decoys=900, sampling="fixed")
    assert more.sending.pool == 1000
    assert epsilon(more.event(4.0), 1e-5, "replace-one") < epsilon(few.event(4.0), 1e-5, "replace-one")


def test_decoys_change_no_coin() -> None:
    """With independent coins of one probability, a true query is sent as often with decoys as without."""
    plain = LocalLayerCost(1.0, population=1000, drawn=50, steps=20, sampling="coins")
    mixed = LocalLayerCost(1.0, population=1000, drawn=500, decoys=9000, steps=20, sampling="coins")
    assert epsilon(mixed.event(4.0), 1e-5, "replace-one") == pytest.approx(
        epsilon(plain.event(4.0), 1e-5, "replace-one"), rel=0.05
    )
    paper = LocalLayerCost(1.0, 1000, 500, 20, 9000, "coins", "paper")
    assert paper._paper_rate == pytest.approx(0.005)  # which the paper multiplies by the share of true queries


def test_sending_once_is_often_better_than_drawing_again() -> None:
    again = LocalLayerCost(0.5, population=1000, drawn=100, steps=1000, sampling="fixed")
    once = LocalLayerCost(0.5, population=1000)
    assert once.noise_std(2.0, 1e-5) < again.noise_std(2.0, 1e-5)


def test_the_papers_twin_is_never_certified_and_under_reports_single_vectors() -> None:
    made = LocalLayerCost(1.0, population=100, drawn=1, steps=1000, sampling="fixed", calibration="paper")
    std = made.noise_std(4.0, 1e-5)
    claimed = made.guarantee(std, delta=1e-5)
    assert claimed.epsilon == pytest.approx(4.0, rel=1e-6)
    assert not claimed.certified
    assert epsilon(made.event(std), 1e-5, "replace-one") > 4 * 4.0


def test_bad_settings_are_refused() -> None:
    for changes in ({"clip_norm": -1.0}, {"population": 0}, {"drawn": 11}, {"steps": 0}, {"sampling": "often"}):
        settings: dict[str, object] = {"clip_norm": 1.0, "population": 10, "sampling": "fixed", **changes}
        with pytest.raises(SettingError, match="Expected"):
            LocalLayerCost(**settings)  # type: ignore[arg-type]


def test_a_unit_vectors_budget_is_its_own_epsilon_when_it_is_sent_once() -> None:
    once = Sending(population=500)
    found = once.strongest(LocalDpEvent, 4.0, 1e-6, high=20.0)
    assert 3.999 < found < 4.001  # rounded down; the delta buys a pure mechanism next to nothing
    kappa = once.strongest(lambda k: VonMisesFisherDpEvent(k, 8), 4.0, 1e-6, high=50.0)
    assert 2.0 <= kappa < 2.2  # 2 kappa is its cost without a delta
    assert epsilon(VonMisesFisherDpEvent(kappa, 8), 1e-6, "replace-one") <= 4.0


def test_unit_vectors_that_are_drawn_again_and_again_stay_within_the_budget() -> None:
    again = Sending(population=1000, drawn=20, steps=300, sampling="fixed")
    one = again.strongest(LocalDpEvent, 3.0, 1e-5, high=20.0)
    assert 2.99 < epsilon(again.event(LocalDpEvent(one)), 1e-5, "replace-one") <= 3.0
    with_label = again.event(ComposedDpEvent([LocalDpEvent(one), RandomizedResponseDpEvent(0.5, 2)]))
    assert epsilon(with_label, 1e-5, "replace-one") > 3.0  # a label that is sent along is paid for as well


def test_noise_in_given_proportions_keeps_the_budget() -> None:
    made = LocalLayerCost(1.0, population=200, drawn=10, steps=6, sampling="fixed")
    plan = made.scheduled_noise([2.0, 2.0, 1.0, 1.0, 1.0, 0.5], 3.0, 1e-4)
    assert plan[0] == pytest.approx(4 * plan[5])
    total = ComposedDpEvent([made.sending.step(made.vector(std)) for std in plan])
    assert 2.99 < epsilon(total, 1e-4, "replace-one") <= 3.0
    with pytest.raises(SettingError, match="one for each of 6 steps"):
        made.scheduled_noise([1.0], 3.0, 1e-4)


def test_the_papers_noise_follows_the_size_of_each_batch() -> None:
    paper = LocalLayerCost(0.5, 1000, drawn=50, steps=2, sampling="coins", calibration="paper")
    small, large = paper.step_noise(2.0, 1e-4, [25, 100])
    assert large == pytest.approx(4 * small)
    single = LocalLayerCost(0.5, 1000, drawn=50, steps=2, sampling="coins", calibration="paper-vector")
    assert single.noise_std(2.0, 1e-4) == pytest.approx(paper.noise_std(2.0, 1e-4) / 50)
    assert not single.guarantee(1.0, delta=1e-4).certified
    sound = LocalLayerCost(0.5, 1000, drawn=50, steps=2, sampling="coins")
    assert len(set(sound.step_noise(2.0, 1e-4, [25, 100]))) == 1
    with pytest.raises(SettingError, match="steps"):
        paper.step_noise(2.0, 1e-4, [25])


def test_a_label_beside_a_drawn_vector_undoes_the_draw() -> None:
    """A record alone in its class is seen to be drawn: at rate 1/100 a step then costs 18 times the delta."""
    from discreet.accounting.events import GaussianDpEvent, VisibleVectorsDpEvent
    from discreet.accounting.interpret import delta

    alone = delta(GaussianDpEvent(0.5), 1.0, "replace-one") / 100
    assert alone > 18 * delta(VisibleVectorsDpEvent(GaussianDpEvent(0.5), 1, 100), 1.0, "replace-one")
    once = LocalLayerCost(1.0, 100).guarantee(2.0, delta=1e-5)
    drawn = LocalLayerCost(1.0, 100, 10, 5, sampling="fixed").guarantee(2.0, delta=1e-5)
    assert "labels are public" in once.sentence() and "vectors are sent alone" in drawn.sentence()
