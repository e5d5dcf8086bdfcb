import pytest

from discreet.accounting.interpret import epsilon
from discreet.accounting.local_layer import LocalLayerCost
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
    assert more.pool == 1000
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
