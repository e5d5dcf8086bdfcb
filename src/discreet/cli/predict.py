"""`discreet predict`: predict labels or scores of new texts with a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Device, Json, Quoting, RunFolder, Separator, TextPair
from discreet.cli.output import as_json, line, note, working
from discreet.core.errors import DataError

if TYPE_CHECKING:
    from discreet.data.corpus import Corpus
    from discreet.runs.folder import RunSettings

_NO_CLASSES = "A language model has no classes; generate text with `discreet generate RUN`."


def predict(
    run: RunFolder,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Text file with one text per line, or CSV, TSV, JSONL, Parquet; - reads stdin."
        ),
    ] = "-",
    text: Annotated[str | None, typer.Option("--text", help="Column with the text. Default: the run's own.")] = None,
    text_pair: TextPair = None,
    separator: Separator = None,
    quoting: Quoting = None,
    seed: Annotated[int, typer.Option("--seed", hidden=True)] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Print a label and its probability, or a score, for each text.

    In text files, a tab separates the two texts of a pair.
    """
    with working("loading the model"):
        from discreet.core.device import find_device
        from discreet.models.classifier import classifier_of
        from discreet.runs.folder import load_run
        from discreet.training.evaluation import predict as predict_corpus

        loaded = load_run(run, find_device(device))
    corpus = read(source, text, text_pair, loaded.settings, separator, quoting)
    with working("predicting 1 text" if len(corpus) == 1 else f"predicting {len(corpus):,} texts"):
        predictions = predict_corpus(classifier_of(loaded.model, "predictions", _NO_CLASSES), corpus)
    if predictions.truncated:
        note(f"{predictions.truncated} of {len(corpus)} texts were truncated to {loaded.model.max_length} tokens.")
    names = loaded.model.label_names
    rows: list[dict[str, Any]] = []
    for best, values in zip(predictions.best, predictions.values, strict=True):
        if loaded.model.task.has_scores:
            rows.append({"score": float(best)})
        else:
            rows.append({"label": names[int(best)], "probability": float(values[int(best)])})
    if json:
        as_json({"run": str(run), "predictions": rows, "truncated": predictions.truncated})
        return
    for row in rows:
        line(*(f"{value:.4f}" if isinstance(value, float) else value for value in row.values()), sep="\t")


def read(
    source: str,
    text: str | None,
    text_pair: str | None,
    settings: RunSettings,
    separator: str | None = None,
    quoting: str | None = None,
) -> Corpus:
    """Return the texts of a file or of stdin, without labels; by default from the columns of the run."""
    from discreet.data.corpus import Corpus
    from discreet.data.sources import Columns, load
    from discreet.data.tables import READERS, name_of_source, read_lines, split_pairs

    pairs = settings.pairs
    if Path(source).suffix.lower() in READERS:
        columns = Columns(
            text or settings.data.text, text_pair or settings.data.text_pair, None, None, separator, quoting
        )
        corpus = load(source, columns, validation=0)
    else:
        if text or text_pair:
            raise DataError(
                f"Expected a file with columns for --text, got {source!r}. Text files have none; use a "
                f"file that ends in one of {', '.join(READERS)}."
            )
        lines = read_lines(source)
        if not lines:
            raise DataError(f"Expected at least one line of text in {name_of_source(source)!r}, but it is empty.")
        second = None
        if pairs:
            lines, second = split_pairs(lines)
        corpus = Corpus(name_of_source(source), tuple(lines), second=None if second is None else tuple(second))
    if pairs != (corpus.second is not None):
        kind = "pairs of texts; name the second column with --text-pair" if pairs else "single texts"
        raise DataError(f"Expected the kind of input the model was trained on: {kind}.")
    return corpus
