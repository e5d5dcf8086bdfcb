"""What an attacker read is compared with what was written, not with what the tokenizer kept of it."""

import pytest

from discreet.attacks.span.dager import Dager
from discreet.core.randomness import Rng
from discreet.core.types import Guess
from discreet.data.corpus import Corpus
from discreet.experiment.reading import compared, leakages
from discreet.models.classifier import Classifier

TICKET = "我被重复收费了 订单375"
NOTE = "Knee Swollen, café"


@pytest.fixture(scope="module")
def model() -> Classifier:
    return Classifier.build(Corpus("toy", (TICKET, NOTE), labels=(0, 1)), rng=Rng(0))


def test_characters_that_the_tokenizer_does_not_know_were_not_read(model: Classifier) -> None:
    batch = Corpus("toy", (TICKET,), labels=(0,), label_names=("a", "b"))
    metrics = ("exact_match", "bag_recall")
    found = compared(Dager(), Guess(texts=("我 375",)), batch, model, metrics, 0)
    assert found[0].truth == TICKET
    assert found[0].scores["exact_match"] == 0
    assert found[0].scores["bag_recall"] == pytest.approx(0.2)
    assert [one.value for one in leakages(found, metrics, Rng(0))] == [0, pytest.approx(0.2)]


def test_case_accents_and_spaces_that_the_tokenizer_drops_do_not_count(model: Classifier) -> None:
    batch = Corpus("toy", (NOTE,), labels=(0,), label_names=("a", "b"))
    found = compared(Dager(), Guess(texts=("knee swollen , cafe",)), batch, model, ("exact_match",), 0)
    assert found[0].truth == NOTE and found[0].scores["exact_match"] == 1
