"""`discreet predict`: what a trained model says of new text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Device, Json, Quoting, RunFolder, Separator, TextPair
from discreet.cli.output import as_json, line, note, working
from discreet.core.errors import DataError

if TYPE_CHECKING:
    from discreet.data.corpus import Corpus
    from discreet.training.run_folder import RunSettings

_NO_CLASSES = "A language model has no classes; let it write with `discreet generate RUN`."


def predict(
    run: RunFolder,
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="One text a line, or CSV, TSV, JSONL, Parquet; - reads stdin.")
    ] = "-",
    text: Annotated[
        str | None, typer.Option("--text", help="Column with the text; the run's own if not given.")
    ] = None,
    text_pair: TextPair = None,
    separator: Separator = None,
    quoting: Quoting = None,
    seed: Annotated[int, typer.Option("--seed", hidden=True)] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Print a label and its probability, or a score, for each text.

    In plain lines, the two texts of a pair are separated by a tab.
    """
    with working("loading the model"):
        from discreet.models.classifier import classifier_of
        from discreet.training.evaluate import predict as say
        from discreet.training.parts import find_device
        from discreet.training.run_folder import load_run

        loaded = load_run(run, find_device(device))
    corpus = read(source, text, text_pair, loaded.settings, separator, quoting)
    with working("predicting 1 text" if len(corpus) == 1 else f"predicting {len(corpus):,} texts"):
        found = say(classifier_of(loaded.model, "predictions", _NO_CLASSES), corpus)
    if found.truncated:
        note(f"{found.truncated} of {len(corpus)} texts were truncated to {loaded.model.max_length} tokens.")
    names = loaded.model.label_names
    rows: list[dict[str, Any]] = []
    for best, values in zip(found.best, found.values, strict=True):
        if loaded.model.task == "regression":
            rows.append({"score": float(best)})
        else:
            rows.append({"label": names[int(best)], "probability": float(values[int(best)])})
    if json:
        as_json({"run": str(run), "predictions": rows, "truncated": found.truncated})
        return
    for row in rows:
        line(*(f"{value:.4f}" if isinstance(value, float) else value for value in row.values()), sep="\t")


def read(
    source: str,
    text: str | None,
    text_pair: str | None,
    asked: RunSettings,
    separator: str | None = None,
    quoting: str | None = None,
) -> Corpus:
    """Return the texts of a file or of stdin, without labels; columns not named are those of the run."""
    from discreet.data.corpus import Corpus
    from discreet.data.sources import Columns, load
    from discreet.data.tables import READERS, name_of_source, read_lines

    pairs = asked.pairs
    if Path(source).suffix.lower() in READERS:
        columns = Columns(text or asked.data.text, text_pair or asked.data.text_pair, None, None, separator, quoting)
        corpus = load(source, columns, validation=0)
    else:
        if text or text_pair:
            raise DataError(
                f"Expected a file with columns for --text, found {source!r}. Lines of plain text have none; give a "
                f"file that ends in one of {', '.join(READERS)}."
            )
        lines = read_lines(source)
        if not lines:
            raise DataError(f"Expected at least one line of text in {name_of_source(source)!r}. It is empty.")
        second = None
        if pairs:
            split = [line.split("\t") for line in lines]
            for number, parts in enumerate(split, start=1):
                if len(parts) != 2:
                    raise DataError(f"Expected two texts separated by a tab in line {number}. The model reads pairs.")
            lines, second = [a for a, _ in split], tuple(b for _, b in split)
        corpus = Corpus(name_of_source(source), tuple(lines), second=second)
    if pairs != (corpus.second is not None):
        wants = "pairs of texts; name the second column with --text-pair" if pairs else "single texts"
        raise DataError(f"Expected what the model was trained on: {wants}.")
    return corpus
