"""What the public encoder reaches on pairs without private data, beside a private figure."""

import pytest

from discreet.data.corpus import Corpus
from discreet.runs.folder import beside_public
from discreet.training.plan import PublicRow, public_row

FIRST = ("The cat sleeps on the sofa.", "Stocks fell sharply on Monday.", "She plays the violin.", "It rains.")
SECOND = ("A cat is sleeping on a sofa.", "The recipe needs two eggs.", "She is playing a violin.", "He sold his car.")
SPLITS = ("train", "train", "validation", "validation")


def pairs(**changes: object) -> Corpus:
    values = {"labels": (1, 0, 1, 0), "label_names": ("different", "same"), "splits": SPLITS, **changes}
    return Corpus("pairs", FIRST, second=SECOND, **values)  # type: ignore[arg-type]


def test_the_cosine_tells_paraphrases_from_other_pairs() -> None:
    row = public_row("minilm", pairs(), "validation")
    assert row is not None and row.metric == "matthews" and row.utility["matthews"] == 1.0
    scored = pairs(labels=None, label_names=(), scores=(5.0, 0.0, 5.0, 0.0))
    row = public_row("minilm", scored, "validation")
    assert row is not None and row.metric == "pearson" and row.utility["pearson"] == pytest.approx(1.0)


def test_there_is_none_for_other_questions() -> None:
    single = Corpus("single", FIRST, labels=(1, 0, 1, 0), splits=SPLITS)
    three = pairs(labels=(0, 1, 2, 0), label_names=("a", "b", "c"))
    assert public_row("minilm", single, "validation") is None
    assert public_row("minilm", three, "validation") is None
    assert public_row("some/folder", pairs(), "validation") is None


@pytest.mark.parametrize(("value", "beaten"), [(0.41, True), (0.37, False), (0.1, False)])
def test_a_model_that_is_no_better_is_reported(value: float, beaten: bool) -> None:
    utility = {"matthews": value}
    row = PublicRow({"matthews": 0.37}, "matthews").as_dict(utility)
    assert row["is_beaten"] is beaten
    said = beside_public(row, utility, private=True)
    assert "0.370" in said[0] and "above 0.7" in said[0]
    assert ("gains nothing" in " ".join(said)) is not beaten
