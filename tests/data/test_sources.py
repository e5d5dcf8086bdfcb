import csv
import json
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.core.errors import DataError, SettingError
from discreet.data.corpus import Corpus
from discreet.data.sources import Columns, load


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows in the format that the suffix names."""
    names = list(rows[0])
    if path.suffix in {".csv", ".tsv"}:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t")
            writer.writerow(names)
            writer.writerows(row.values() for row in rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        table = pyarrow.table({name: [row[name] for row in rows] for name in names})
        pyarrow.parquet.write_table(table, path)
    return path


def rows_of(count: int) -> list[dict[str, object]]:
    return [{"text": f"secret text {i}", "label": ("cat", "dog")[i % 2], "author": f"a{i // 3}"} for i in range(count)]


def content(corpus: Corpus) -> tuple[object, ...]:
    return corpus.texts, corpus.second, corpus.labels, corpus.scores, corpus.label_names, corpus.units, corpus.splits


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: bool(text.strip())
)
labels = st.one_of(
    st.lists(st.integers(-5, 5), min_size=2, max_size=12),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=12),
    st.lists(st.sampled_from(["yes", "no", "perhaps"]), min_size=2, max_size=12),
    st.lists(st.booleans(), min_size=2, max_size=12),
).filter(lambda values: isinstance(values[0], float) or len(set(values)) > 1)


@settings(max_examples=80, deadline=None)
@given(labels, st.data())
def test_every_format_gives_the_same_corpus(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], data: st.DataObject
) -> None:
    rows: list[dict[str, object]] = [
        {"text": data.draw(texts), "pair": data.draw(texts), "label": value, "who": data.draw(st.integers(0, 4))}
        for value in values
    ]
    folder = tmp_path_factory.mktemp("formats")
    columns = Columns("text", "pair", "label", "who")
    loaded = [
        content(load(write(folder / f"a{suffix}", rows), replace(columns, quoting=quoting), validation=0))
        for suffix, quoting in ((".csv", None), (".tsv", "csv"), (".jsonl", None), (".parquet", None))
    ]
    assert loaded[0] == loaded[1] == loaded[2] == loaded[3]
    assert loaded[0][0] == tuple(row["text"] for row in rows)


def test_a_file_without_splits_gets_about_a_tenth_held_out(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": "rare" if i % 10 == 0 else "common"} for i in range(400)]
    corpus = load(write(tmp_path / "a.csv", rows))
    held = corpus.split("validation")
    assert 22 < len(held) < 58 and set(held.labels or ()) == {0, 1}
    assert f"{len(held)} of 400 rows were held out" in corpus.remarks[0]


def test_a_share_may_be_asked_for_instead_of_a_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of(200))
    fewer = load(path, Columns(unit="author"), share=0.5)
    assert 50 < len(fewer.split("train")) < 130
    assert fewer.split("validation").texts == load(path, Columns(unit="author")).split("validation").texts
    with pytest.raises(SettingError, match="share to be left out if rows is set, got 0.5"):
        load(path, rows=5, share=0.5)


def test_who_only_looks_is_not_stopped_by_a_hold_out_that_cannot_be_made(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of(2))
    with pytest.raises(DataError, match="holding out 10%"):
        load(path)
    corpus = load(path, strict=False)
    assert corpus.split_names == ("train",) and "no rows were held out" in corpus.remarks[-1]


def test_fewer_rows_must_keep_the_classes_that_are_held_out(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": "rare" if i % 40 == 0 else "ab"[i % 2]} for i in range(400)]
    path = write(tmp_path / "a.csv", rows)
    other = write(tmp_path / "b.csv", rows[:3])
    with pytest.raises(DataError, match="1 of 3 classes remain only in held-out rows"):
        load(path, validation=other, rows=6)
    assert load(path, validation=other, share=0.9).classes == 3


def test_a_fraction_may_be_written_as_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of(200))
    assert load(path, validation="0.3").splits == load(path, validation=0.3).splits
    assert load(path, validation="0").split_names == ("train",)


def test_the_hold_out_is_the_same_whatever_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of(60))
    assert load(path, seed=1).splits == load(path, seed=2).splits


def test_units_are_held_out_whole(tmp_path: Path) -> None:
    corpus = load(write(tmp_path / "a.csv", rows_of(120)), Columns(unit="author"))
    train, held = corpus.split("train"), corpus.split("validation")
    assert 1 <= held.unit_count <= 9
    assert not set(train.unit_names) & set(held.unit_names)
    assert corpus.unit_name == "author"


@pytest.mark.parametrize(("column", "word"), [("patient_id", "patient"), ("Author", "author"), ("id", "id")])
def test_the_unit_column_gives_the_word_for_the_unit(tmp_path: Path, column: str, word: str) -> None:
    rows = [{"text": f"t{i}", "label": i % 2, column: i} for i in range(100)]
    assert load(write(tmp_path / "a.jsonl", rows), Columns(unit=column)).unit_name == word


def test_a_folder_has_its_own_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", rows_of(10))
    write(tmp_path / "dev.jsonl", rows_of(4))
    write(tmp_path / "test.tsv", [{"index": 1, "text": "no answer"}])
    (tmp_path / "readme.txt").write_text("x")
    corpus = load(tmp_path)
    assert {name: len(corpus.split(name)) for name in corpus.split_names} == {"train": 10, "validation": 4}
    assert "the split test was left out" in corpus.remarks[0]


def test_a_folder_without_train_or_with_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"such as train\.csv"):
        load(tmp_path)
    write(tmp_path / "train.csv", rows_of(4))
    write(tmp_path / "train.tsv", rows_of(4))
    with pytest.raises(DataError, match=r"got train\.csv and train\.tsv"):
        load(tmp_path)


def test_validation_may_be_another_file_or_another_fraction_or_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of(40))
    other = write(tmp_path / "b.jsonl", rows_of(6))
    assert len(load(path, validation=other).split("validation")) == 6
    assert 4 <= len(load(path, validation=0.25).split("validation")) <= 18
    assert load(path, validation=0).split_names == ("train",)
    with pytest.raises(SettingError, match="fraction"):
        load(path, validation=1.5)


def test_rows_draws_fewer_training_rows_by_the_seed_and_leaves_validation_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of(100))
    one, two, again = load(path, rows=20, seed=1), load(path, rows=20, seed=2), load(path, rows=20, seed=1)
    assert len(one.split("train")) == 20
    assert one.texts == again.texts != two.texts
    assert one.split("validation").texts == load(path).split("validation").texts
    assert load(path, rows=1000).texts == load(path).texts
    with pytest.raises(SettingError, match="rows to be .*, got 0"):
        load(path, rows=0)


def test_known_classes_are_kept_and_one_class_is_then_enough(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"text": "x", "label": "dog"}, {"text": "y", "label": "dog"}])
    corpus = load(path, classes=("dog", "cat"), validation=0)
    assert corpus.labels == (0, 0)
    with pytest.raises(DataError, match="at least 2 classes in column 'label'"):
        load(path)


def test_training_rows_of_one_class_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", [{"text": "x", "label": "a"}, {"text": "y", "label": "a"}])
    write(tmp_path / "validation.csv", [{"text": "x", "label": "a"}, {"text": "y", "label": "b"}])
    with pytest.raises(DataError, match="2 classes among the training rows"):
        load(tmp_path)


def test_texts_may_be_read_without_labels(tmp_path: Path) -> None:
    corpus = load(write(tmp_path / "a.csv", rows_of(100)), Columns(label=None))
    assert corpus.task == "unlabelled"
    assert 1 <= len(corpus.split("validation")) <= 25


def test_whole_numbers_become_scores_when_the_task_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"text": f"t{i}", "label": i % 5} for i in range(400)])
    assert load(path).classes == 5
    assert load(path, task="regression").scores is not None


@pytest.mark.parametrize(
    ("rows", "columns", "says"),
    [
        ([{"text": "", "label": "a"}], Columns(), "row 1 of"),
        ([{"text": "secret", "label": ""}], Columns(), "missing or NaN"),
        ([{"text": "secret", "label": "nan"}], Columns(), "missing or NaN"),
        ([{"text": "secret", "label": "a"}], Columns(text="txt"), "column 'txt' for text"),
        ([{"text": "secret", "label": "a"}], Columns(text_pair="b"), "column 'b' for text-pair"),
        ([{"text": "secret", "label": "a"}], Columns(unit="who"), "column 'who' for unit"),
        ([{"text": "secret", "label": "a", "who": ""}], Columns(unit="who"), "Every row needs a unit"),
        ([{"text": "secret", "label": "a"}, {"text": "secret", "label": "b"}], Columns(), "holding out 10%"),
    ],
)
def test_bad_rows_are_refused_without_their_text(
    tmp_path: Path, rows: list[dict[str, object]], columns: Columns, says: str
) -> None:
    with pytest.raises(DataError) as refused:
        load(write(tmp_path / "a.csv", rows), columns)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_values_of_the_wrong_type_are_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match="text in row 1 of .*is of type int"):
        load(write(tmp_path / f"a{suffix}", [{"text": 5, "label": 1}]))
    with pytest.raises(DataError, match="row 1 of .*got list"):
        load(write(tmp_path / f"b{suffix}", [{"text": "x", "label": [1]}]))
    with pytest.raises(DataError, match="row 1 of .*got float"):
        load(write(tmp_path / f"c{suffix}", [{"text": "x", "label": 1, "who": 0.5}]), Columns(unit="who"))


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(DataError, match="Did you mean 'notes'"):
        load("ntoes")
    with pytest.raises(DataError, match="use hub:NAME"):
        load("somebody/something")
    with pytest.raises(DataError, match="there is none"):
        load("missing.csv")


def test_built_in_corpora_take_rows_a_fraction_and_known_classes() -> None:
    assert len(load("notes", rows=100)) == 100
    assert load("notes", rows=100, seed=1).texts != load("notes", rows=100).texts
    assert load("notes", rows=100, validation=0).split_names == ("train",)
    assert len(load("notes", rows=100, validation=0.5).split("validation")) > 30
    assert load("notes-pairs-scores", rows=100).task == "regression"
    turned = load("notes", rows=100, classes=("orthopaedics", "neurology", "gastroenterology", "cardiology"))
    assert [3 - label for label in turned.labels or ()] == list(load("notes", rows=100).labels or ())
    with pytest.raises(DataError, match="one of the known classes"):
        load("notes", rows=100, classes=("a", "b"))
    with pytest.raises(DataError, match="no column names"):
        load("notes", Columns(text="x"))
    with pytest.raises(DataError, match="to be a fraction"):
        load("notes", validation="x.csv")


def test_every_bad_row_is_named_at_once(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {
            "text": "" if i % 4 == 0 else f"t{i}",
            "label": "" if i in (2, 3) else i % 2,
            "who": "" if i == 1 else "p",
        }
        for i in range(60)
    ]
    with pytest.raises(DataError) as rejected:
        load(write(tmp_path / "a.csv", rows), Columns(unit="who"))
    said = str(rejected.value)
    assert "a text in rows 1, 5, 9, 13, 17, 21, 25, 29, 33, 37 and 5 more of" in said
    assert "a label in rows 3 and 4 of" in said
    assert "a unit in row 2 of" in said


def test_missing_and_mistyped_texts_are_two_faults(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": 1, "label": 0}\n{"label": 1}\n{"text": 2, "label": 1}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"rows 1 and 3 of .* type int.*in row 2 of .* is missing"):
        load(path)


def test_every_missing_column_is_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"body": "x", "kind": "a"}, {"body": "y", "kind": "b"}])
    with pytest.raises(DataError, match=r"column 'text' for text .*column 'label' for label"):
        load(path)


def test_labels_of_another_task_are_said_to_be_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"text": f"t{i}", "label": "xyz"[i % 3]} for i in range(9)])
    with pytest.raises(DataError, match=r"known classes: good, bad. Got 'x', 'y', 'z'. No label is known"):
        load(path, classes=["good", "bad"])
    with pytest.raises(DataError, match=r"label='z' in rows 3, 6 and 9 of .* known classes: x, y"):
        load(path, classes=["x", "y"])


def test_numbers_with_a_decimal_comma_are_no_classes(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"t{i}", "label": f"{i},5" if i % 2 else i} for i in range(9)]
    path = write(tmp_path / "a.csv", rows)
    with pytest.raises(DataError, match="decimal point, got a comma in row 2"):
        load(path)
    assert load(path, task="classification", validation=0).classes == 9


def test_a_column_that_only_the_validation_file_lacks_is_to_be_added_there(tmp_path: Path) -> None:
    train = write(tmp_path / "a.csv", rows_of(12))
    other = write(tmp_path / "b.csv", [{"text": "another", "label": "cat"}] * 2)
    with pytest.raises(DataError, match=r"column 'author' for unit in .*b\.csv.* Add the column to that file"):
        load(train, Columns(unit="author"), validation=other)
    with pytest.raises(DataError, match="Set unit"):
        load(train, Columns(unit="patient"))
