from discreet.data.corpus import Corpus, doubts


def corpus(**changed: object) -> Corpus:
    values: dict[str, object] = {
        "texts": tuple(f"text {i}" for i in range(40)),
        "labels": (0, 1) * 20,
        "units": tuple(f"p{i}" for i in range(40)),
        "unit_name": "patient",
        "splits": ("train",) * 30 + ("validation",) * 10,
        **changed,
    }
    return Corpus("toy", **values)  # type: ignore[arg-type]


def test_a_corpus_without_faults_raises_no_doubt() -> None:
    assert doubts(corpus(), "label", "patient_id") == []


def test_units_in_both_splits_are_counted() -> None:
    (said,) = doubts(corpus(units=tuple(f"p{i % 35}" for i in range(40))))
    assert said.startswith("5 of 35 patient units are in both train and validation")


def test_texts_in_both_splits_are_counted() -> None:
    (said,) = doubts(corpus(texts=tuple(f"text {i % 33}" for i in range(40))))
    assert said.startswith("7 of 10 validation texts are also training texts")


def test_a_class_that_stands_only_in_validation_is_named() -> None:
    (said,) = doubts(corpus(labels=(0, 1) * 19 + (2, 2), label_names=("a", "b", "rare")))
    assert said.startswith("1 class is only in the validation rows ('rare')")


def test_as_many_classes_as_rows_look_like_identifiers() -> None:
    names = tuple(map(str, range(40)))
    said = doubts(corpus(labels=tuple(range(40)), label_names=names, splits=("train",) * 40))
    assert said and "40 classes for 40 rows: the label column looks like an identifier" in said[0]


def test_the_label_column_as_unit_and_a_single_unit_are_said() -> None:
    said = doubts(corpus(units=("p",) * 40), "kind", "kind")
    assert any("both label and unit" in one for one in said)
    assert any("belong to one patient" in one for one in said)
