"""What an attacker read is compared with what was written, not with what the tokenizer kept of it."""

import pytest

from discreet.attacks.representation.inversion import EmbeddingInversion
from discreet.attacks.representation.similarity import Similarity
from discreet.attacks.rows import EmbeddingRows
from discreet.attacks.span.dager import Dager
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.core.types import Guess
from discreet.data.corpus import Corpus
from discreet.experiment import AttackRequest, Scene, attack_once
from discreet.experiment.attack.request import DEFAULT_METRICS
from discreet.experiment.attack.scoring import (
    CATEGORY_METRICS,
    further_metrics,
    measure_leakage,
    metrics_for,
    score_guess,
)
from discreet.models.classifier import Classifier
from discreet.releases.protected import protection_of

TICKET = "我被重复收费了 订单375"
NOTE = "Knee Swollen, café"


@pytest.fixture(scope="module")
def model() -> Classifier:
    return Classifier.build(Corpus("toy", (TICKET, NOTE), labels=(0, 1)), rng=Rng(0))


def test_characters_that_the_tokenizer_does_not_know_were_not_read(model: Classifier) -> None:
    batch = Corpus("toy", (TICKET,), labels=(0,), label_names=("a", "b"))
    metrics = ("exact_match", "bag_recall")
    found = score_guess(Dager(), Guess(texts=("我 375",)), batch, model, metrics, 0)
    assert found[0].truth == TICKET
    assert found[0].scores["exact_match"] == 0
    assert found[0].scores["bag_recall"] == pytest.approx(0.2)
    assert [one.value for one in measure_leakage(found, metrics, Rng(0))] == [0, pytest.approx(0.2)]


def test_case_accents_and_spaces_that_the_tokenizer_drops_do_not_count(model: Classifier) -> None:
    batch = Corpus("toy", (NOTE,), labels=(0,), label_names=("a", "b"))
    found = score_guess(Dager(), Guess(texts=("knee swollen , cafe",)), batch, model, ("exact_match",), 0)
    assert found[0].truth == NOTE and found[0].scores["exact_match"] == 1


def test_texts_chosen_among_candidates_are_measured_by_retrieval_metrics(model: Classifier) -> None:
    texts = tuple(f"the {a} was {b}" for a in ("knee", "heart", "hand") for b in ("dull", "sharp", "calm", "slow"))
    corpus = Corpus("toy", texts, labels=(0, 1) * 6, splits=("validation",) * 12)
    scene = Scene.of(corpus, Classifier.build(corpus, rng=Rng(0), train="head").eval())
    asked = ("identity", "tfidf_cosine", "embedding_cosine", "exact_match")
    found = attack_once(AttackRequest(Similarity(), examples=4, batch_size=4, metrics=asked), scene)
    by_name = {leakage.metric: leakage for leakage in found.leakages}
    assert tuple(by_name) == asked
    assert by_name["identity"].value == 1 and by_name["identity"].chance == pytest.approx(1 / 12)
    assert by_name["tfidf_cosine"].value == pytest.approx(1) and by_name["embedding_cosine"].value > 0.99
    with pytest.raises(SettingError, match="is for attacks that choose a candidate"):
        metrics_for(Dager(), ("identity",))
    with pytest.raises(SettingError, match="Did you mean 'identity'"):
        metrics_for(Similarity(), ("identiy",))
    with pytest.raises(SettingError, match="metric to be .*, got 'identified'"):
        metrics_for(Dager(), ("identified",))  # that is measured by 1-of-n alone


def test_every_text_is_attacked_where_each_of_its_steps_is_released(model: Classifier) -> None:
    """With 4 steps there are more guesses than texts: an attack must not end after the requested number of guesses."""
    texts = tuple(f"the {a} was {b}" for a in ("knee", "heart", "hand") for b in ("dull", "sharp", "calm", "slow"))
    corpus = Corpus("toy", texts, labels=(0, 1) * 6, splits=("validation",) * 12)
    scene = Scene.of(corpus, Classifier.build(corpus, rng=Rng(0), train="head").eval())
    protect = protection_of("texthide", scene.model, {"mix": 2, "masks": 4}, delta=1e-5, batch_size=2)
    request = AttackRequest(
        Similarity(score="absolute"), protect, examples=8, batch_size=2, steps=4, metrics=("identity",), noise_seed=0
    )
    found = attack_once(request, scene)
    assert {example.batch for example in found.examples} == {0, 1, 2, 3}
    assert len({example.truth for example in found.examples}) == 8
    assert len(found.examples) == found.leakages[0].n == 32


def test_names_numbers_and_dates_are_counted_in_the_text_as_it_was_written(model: Classifier) -> None:
    text = "On 24 June 2021 Ana Ruiz (record 1234567) came."
    batch = Corpus("toy", (text, "a sharp pain"), labels=(0, 0), label_names=("a", "b"))
    guess = Guess(texts=("on 24 june ana was 1234567", "a sharp pain"))
    found = score_guess(Dager(), guess, batch, model, CATEGORY_METRICS, 0)
    scores = found[0].scores
    assert scores["names_read"] == 0.5 and scores["numbers_read"] == 1.0
    assert scores["dates_read"] == pytest.approx(2 / 3) and scores["function_words_read"] == 1.0
    assert "names_read" not in found[1].scores and found[1].scores["function_words_read"] == 1.0
    measured = {leak.metric: leak for leak in measure_leakage(found, CATEGORY_METRICS, Rng(0))}
    assert measured["names_read"].n == 1 and measured["function_words_read"].n == 2
    assert measured["names_read"].value == 0.5


def test_a_text_without_items_of_a_category_does_not_count_for_it(model: Classifier) -> None:
    batch = Corpus("toy", ("a sharp pain",), labels=(0,), label_names=("a", "b"))
    found = score_guess(Dager(), Guess(texts=("pain",)), batch, model, CATEGORY_METRICS, 0)
    assert [leak.metric for leak in measure_leakage(found, CATEGORY_METRICS, Rng(0))] == ["function_words_read"]


def test_more_is_measured_by_default_and_nothing_more_where_metrics_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert further_metrics(Dager(), ("rouge_l",)) == ()
    assert further_metrics(Dager(), DEFAULT_METRICS)[-4:] == CATEGORY_METRICS
    assert further_metrics(EmbeddingRows(), DEFAULT_METRICS) == ()  # a set of tokens has no words
    assert further_metrics(EmbeddingInversion(), DEFAULT_METRICS) == CATEGORY_METRICS
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert further_metrics(Dager(), DEFAULT_METRICS) == ("jaccard", *CATEGORY_METRICS)
    assert "jaccard" not in further_metrics(Similarity(), DEFAULT_METRICS)  # it is there already


def test_a_metric_with_nothing_to_count_is_rejected_before_the_attack(model: Classifier) -> None:
    corpus = Corpus("toy", ("a sharp pain", "a dull pain"), labels=(0, 1), splits=("validation",) * 2)
    request = AttackRequest(Dager(), examples=2, metrics=("names_read",))
    with pytest.raises(SettingError, match="names_read"):
        attack_once(request, Scene.of(corpus, model))
