"""Where a corpus comes from: built in, a file, a folder with splits, or the Hugging Face hub."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from discreet.catalog import CORPORA
from discreet.core.errors import DataError, did_you_mean, invalid, setting, whole
from discreet.core.guarantee import Adjacency
from discreet.data.corpus import BadRows, Corpus, Task, check_texts
from discreet.data.labels import Outcome, outcome
from discreet.data.partition import hold_out, keep_rows, keep_share
from discreet.data.separated import Layout
from discreet.data.tables import READERS, Table, read_table

HELD_OUT = 0.1
EACH_ROW = "row"  # as the name of a unit: every row is its own
_SPLIT_FILES = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation"} | {
    "dev": "validation",
    "test": "test",
}
_NEEDED = ("train", "validation")
_UNIT_KINDS = (str, int, date, Decimal, UUID)


@dataclass(frozen=True)
class Columns:
    """The names of the columns to read; label=None reads texts alone, unit names whose privacy is at stake.

    `separator` and `quoting` ("csv" or "none") say how CSV and TSV files are written, where their names do not.
    """

    text: str = "text"
    text_pair: str | None = None
    label: str | None = "label"
    unit: str | None = None
    separator: str | None = None
    quoting: str | None = None

    @property
    def layout(self) -> Layout:
        """How CSV and TSV files are written."""
        return Layout(self.separator, self.quoting)


@dataclass(frozen=True)
class TextSource:
    """Which text: a built-in name, a file, a folder of splits or the hub; its columns, and how much of it.

    The one answer to that question on the command line, in studies and in run folders; see `load` for each field. The
    seed is that of built-in notes, `rows` and `share`.
    """

    source: str
    text: str = "text"
    text_pair: str | None = None
    label: str | None = "label"
    unit: str | None = None
    rows: int | None = None
    share: float | None = None
    validation: str | None = None
    task: Task | None = None
    seed: int = 0
    separator: str | None = None
    quoting: str | None = None
    label_names: tuple[str, ...] | None = None

    @property
    def columns(self) -> Columns:
        """The columns to read."""
        return Columns(self.text, self.text_pair, self.label, self.unit, self.separator, self.quoting)

    @property
    def built_in(self) -> bool:
        """Whether the text comes with the package."""
        return self.source in CORPORA

    def load(self, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> Corpus:
        """Read the corpus, whose held-out rows are selected for an adjacency.

        Guarantee: none, this reads private data; errors name rows, never texts.
        """
        return load(
            self.source,
            self.columns,
            seed=self.seed,
            rows=self.rows,
            share=self.share,
            validation=self.validation,
            task=self.task,
            label_names=self.label_names,
            adjacency=adjacency,
        )


def load(
    source: str | Path,
    columns: Columns | None = None,
    *,
    seed: int = 0,
    rows: int | None = None,
    share: float | None = None,
    validation: float | str | Path | None = None,
    task: Task | None = None,
    label_names: Sequence[str] | None = None,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    strict: bool = True,
) -> Corpus:
    """Return a corpus from a built-in name, a file, a folder of splits or the hub.

    - "notes", "notes-pairs", "notes-pairs-scores", "reviews" (and its part "reviews-imdb"): built in; `seed` and
      `rows` shape the notes.
    - a .csv, .tsv, .jsonl or .parquet file, or a folder that holds train.* and perhaps validation.* (dev.*) and test.*
    - "hub:NAME" or "hub:NAME:CONFIG": a Hugging Face data set, through the `hub` extra.

    What has no validation split gets one: about a tenth of the units, each by a keyed hash of its own identity. It is
    the same at every call whatever the seed, so that a model is never evaluated on rows it was trained on. `validation`
    is another fraction (0 keeps all rows in "train") or a file. `share` keeps about that share of the training units,
    each by its own draw with `seed`; `rows` keeps exactly so many training rows, where each row is its own unit and
    their number is public. `label_names` gives the classes (those of a trained model); without it they are found, and
    `task` may overrule what they are taken for; "unlabelled" reads the texts alone. `adjacency` is the one under which
    a protected training on the corpus will be certified: under add/remove a row without a named unit is known by its
    text, otherwise by its position.
    Where rows cannot be held out, as one side would be empty or lack a class, that is an error; without `strict`, for
    those who only look, all rows stay in "train" and a remark says so.

    Guarantee: none, this reads private data; errors name rows, never texts.
    """
    columns = columns or Columns()
    near = Adjacency(adjacency)
    validation = _fraction(validation)
    if task == "unlabelled":
        label_names = None
        columns = columns if str(source) in CORPORA else dataclasses.replace(columns, label=None)
    if rows is not None:
        whole("rows", rows, remedy="It is the number of rows to keep.")
        if share is not None:
            raise invalid(
                "share",
                share,
                f"left out where {setting('rows')} is given",
                "Both say how much to keep; leave one out.",
            )
    name = str(source)
    each_row = columns.unit == EACH_ROW
    if each_row:
        columns = dataclasses.replace(columns, unit=None)
    if name in CORPORA:
        if columns != Columns():
            raise DataError(f"Expected no column names for {name!r}. It is built in and has its own; leave them out.")
        made = CORPORA[name].generated
        corpus = _with_label_names(CORPORA[name].make(seed, rows), label_names)
        if each_row:
            corpus = dataclasses.replace(corpus, units=None, unit_name=EACH_ROW)
        if validation is None and near is Adjacency.ADD_REMOVE and corpus.units is None:
            validation = HELD_OUT  # again, by text and not by position
        if isinstance(validation, int | float) and not isinstance(validation, bool):
            corpus = _split_again(corpus, validation, near)
        elif validation is not None:
            raise DataError(
                f"Expected validation={str(validation)!r} to be a fraction for {name!r}. Its rows are built in."
            )
        corpus = corpus.unlabelled() if task == "unlabelled" else corpus
        return _part_of(corpus, None if made else rows, share, seed, near)
    tables = _tables(name, columns.layout)
    if isinstance(validation, str | Path):
        if "validation" in tables:
            raise DataError(
                f"Expected validation={str(validation)!r} alone, but {name!r} has validation rows too. Leave one out."
            )
        tables["validation"] = read_table(Path(validation), columns.layout)
    corpus = _from_tables(name, tables, columns, task, label_names)
    if each_row:
        corpus = dataclasses.replace(corpus, units=None, unit_name=EACH_ROW)
    fraction = validation if isinstance(validation, int | float) else HELD_OUT
    if "validation" not in corpus.split_names and fraction > 0:
        try:
            corpus = hold_out(corpus, fraction, adjacency=near, every_class=label_names is None)
        except DataError as error:
            if strict:
                raise
            corpus = corpus.renamed(corpus.name, "no rows were held out: " + error.message)
    if corpus.labels is not None and label_names is None:
        _check_train_classes(corpus)
    return _part_of(corpus, rows, share, seed, near)


def _fraction(validation: float | str | Path | None) -> float | str | Path | None:
    """Return a fraction that was written as text as a number; a file of that name goes first."""
    if not isinstance(validation, str) or Path(validation).exists():
        return validation
    try:
        return float(validation)
    except ValueError:
        return validation


def _part_of(corpus: Corpus, rows: int | None, share: float | None, seed: int, adjacency: Adjacency) -> Corpus:
    """Return the corpus with a share of its training units or a number of its training rows, or all of them."""
    if rows is None and share is None:
        return corpus
    if share is not None:
        fewer = keep_share(corpus, share, seed=seed, adjacency=adjacency)
    else:
        assert rows is not None
        fewer = keep_rows(corpus, rows, seed=seed, adjacency=adjacency)
    if fewer.labels is not None and fewer is not corpus:
        _check_train_classes(fewer)
        _check_classes_left(corpus, fewer)
    return fewer


def _check_classes_left(whole_corpus: Corpus, fewer: Corpus) -> None:
    """Refuse fewer training rows that lack a class which all of them and the held-out rows have."""
    before, left, other = (
        {label for label, split in zip(c.labels or (), c.splits, strict=True) if (split == "train") is train}
        for c, train in ((whole_corpus, True), (fewer, True), (whole_corpus, False))
    )
    if missing := (before & other) - left:
        raise DataError(
            f"Expected every class among the training rows of {fewer.name!r} that were kept, but {len(missing)} of "
            f"{len(fewer.label_names)} classes are left in held-out rows alone. Keep more "
            f"({setting('share')}, {setting('rows')}), or use another seed."
        )


def _with_label_names(corpus: Corpus, label_names: Sequence[str] | None) -> Corpus:
    if label_names is None or corpus.labels is None or tuple(label_names) == corpus.label_names:
        return corpus
    names = [corpus.label_names[label] for label in corpus.labels]
    found = outcome([(corpus.name, names)], "classification", label_names)
    return dataclasses.replace(corpus, labels=found.labels, label_names=found.label_names)


def _tables(name: str, layout: Layout) -> dict[str, Table]:
    if name.startswith("hub:"):
        if layout != Layout():
            raise DataError(f"Expected no separator or quoting for {name!r}. They are for CSV and TSV files.")
        from discreet.data.hub import read_hub

        return read_hub(name.removeprefix("hub:"))
    path = Path(name)
    if path.is_dir():
        return _folder(path, layout)
    if not path.exists() and path.suffix.lower() not in READERS:
        guess = did_you_mean(name, list(CORPORA)) or "For a Hugging Face data set write hub:NAME."
        raise DataError(
            f"Expected data={name!r} to be a file, a folder or one of {', '.join(CORPORA)}. "
            f"There is no such file. {guess}"
        )
    return {"train": read_table(path, layout)}


def _folder(path: Path, layout: Layout) -> dict[str, Table]:
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        split = _SPLIT_FILES.get(file.stem.lower())
        if split is None or file.suffix.lower() not in READERS:
            continue
        if split in found:
            raise DataError(
                f"Expected one {split} file in {str(path)!r}, found {found[split].name} and {file.name}. Move one away."
            )
        found[split] = file
    if "train" not in found:
        raise DataError(
            f"Expected a file such as train.csv in {str(path)!r}, found {', '.join(found) or 'none'}. "
            f"A folder holds train.* and perhaps validation.* and test.*, each one of {', '.join(READERS)}."
        )
    order = [split for split in ("train", "validation", "test") if split in found]
    return {split: read_table(found[split], layout) for split in order}


def _from_tables(
    name: str, tables: dict[str, Table], columns: Columns, task: Task | None, label_names: Sequence[str] | None
) -> Corpus:
    remarks: list[str] = []
    if columns.label is not None:
        # The test sets of many benchmarks come without answers: they serve nobody here, and are no reason to refuse.
        for split in [s for s, table in tables.items() if s not in _NEEDED and columns.label not in table.names]:
            del tables[split]
            remarks.append(f"the split {split} was left out, as it has no column {columns.label!r}")
    texts: list[str] = []
    second: list[str] = []
    units: list[str] = []
    splits: list[str] = []
    answers: list[tuple[str, list[object]]] = []
    faults: list[str] = []  # gathered, so that a file is fixed in one go

    def attempt(read: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
        try:
            return read(*arguments)
        except DataError as error:
            faults.append(error.message.marked)
            return []

    for split, table in tables.items():
        texts += attempt(_texts, table, columns.text, "text")
        if columns.text_pair is not None:
            second += attempt(_texts, table, columns.text_pair, "text-pair")
        if columns.label is not None:
            answers.append((table.where, attempt(table.column, columns.label, "label")))
        if columns.unit is not None:
            units += attempt(read_units, table, columns.unit)
        splits += [split] * table.rows
    if label_names is None and task != "regression" and columns.label is not None:
        label_names = tables["train"].classes.get(columns.label)
    found = Outcome()
    if columns.label is not None and all(values for _, values in answers):
        try:
            found = outcome(answers, task, label_names)
        except DataError as error:
            faults.append(error.message.marked)
    if faults:
        raise DataError(" ".join(faults))
    if found.labels is not None and len(found.label_names) < 2:
        raise DataError(
            f"Expected at least 2 classes in column {columns.label!r} of {name!r}, found {len(found.label_names)}. "
            "With one class there is nothing to learn; check the column."
        )
    return Corpus(
        name=name,
        texts=tuple(texts),
        labels=found.labels,
        scores=found.scores,
        second=tuple(second) if columns.text_pair is not None else None,
        label_names=found.label_names,
        units=tuple(units) if columns.unit is not None else None,
        unit_name=EACH_ROW if columns.unit is None else unit_word(columns.unit),
        splits=tuple(splits),
        remarks=tuple(remarks),
    )


def _texts(table: Table, name: str, role: str) -> list[str]:
    texts = table.column(name, role)
    check_texts(texts, table.where)
    return texts


def read_units(table: Table, name: str) -> list[str]:
    """Return whose each row is, by the column with this name."""
    return unit_ids(table.column(name, "unit"), table.where, f"column {name!r}")


def unit_ids(units: Sequence[Any], where: str, column: str) -> list[str]:
    """Return whose each row is, the same person always by the same id; a row that says nothing is rejected.

    >>> unit_ids([7, "7", " ann "], "a.csv", "column 'who'")
    ['7', '7', 'ann']
    """
    bad = BadRows(where)
    for row, unit in enumerate(units, start=1):
        known = isinstance(unit, _UNIT_KINDS)
        if unit is None or ((known or isinstance(unit, float)) and (unit != unit or not str(unit).strip())):
            fault = f", but {column} is empty there. Every row must say whose it is; fill it in, or remove the row."
            bad.add(row, "a unit", fault)
        elif not known:  # as 1 and 1.0, one person would be two units
            fault = f", found {type(unit).__name__} in {column}. Convert it, or name another."
            bad.add(row, "a name or an integer as unit", fault)
    bad.check()
    return [str(unit).strip() for unit in units]


def unit_word(column: str) -> str:
    """Return the word for a unit that a column names.

    >>> unit_word("patient_id"), unit_word("Author")
    ('patient', 'author')
    """
    word = column.strip().lower()
    for ending in ("_id", "-id", " id"):
        word = word.removesuffix(ending)
    return word or column


def _check_train_classes(corpus: Corpus) -> None:
    assert corpus.labels is not None
    seen = {label for label, split in zip(corpus.labels, corpus.splits, strict=True) if split == "train"}
    if len(seen) < 2:
        raise DataError(
            f"Expected at least 2 classes among the training rows of {corpus.name!r}, found {len(seen)}. "
            "With one class there is nothing to learn; check the label column and how the rows are divided."
        )


def _split_again(corpus: Corpus, fraction: float, adjacency: Adjacency) -> Corpus:
    whole_again = dataclasses.replace(corpus, splits=("train",) * len(corpus), remarks=())
    return hold_out(whole_again, fraction, adjacency=adjacency, every_class=False) if fraction > 0 else whole_again
