"""`discreet evaluate`: how well a run does on other text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import Device, Json, OwnData, RunColumns, RunFolder, generated
from discreet.cli.output import as_json, note, say_quality, table, working
from discreet.core.errors import SettingError
from discreet.core.guarantee import Adjacency


@generated()
def evaluate(
    run: RunFolder,
    columns: RunColumns,
    data: OwnData = None,
    split: Annotated[
        str | None, typer.Option(help="Split to read. Default: validation, else test, else all rows.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of generated notes; the run's own if not given.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Print the utility of a trained model on DATA, by default on its own.

    A language model is measured by its perplexity. On the data it was trained on, only the held-out rows are read.
    """
    import time

    began = time.monotonic()
    with working("loading the model"):
        from discreet.catalog import CORPORA
        from discreet.data.batches import tokens_for
        from discreet.data.sources import Columns, load
        from discreet.training.evaluate import assess, matched
        from discreet.training.parts import find_device
        from discreet.training.run_folder import load_run, refuse_old_split

        loaded = load_run(run, find_device(device))
    model, asked = loaded.model, loaded.settings
    data = asked.data.source if data is None else data
    same = same_source(data, asked.data.source)
    if same:
        refuse_old_split(asked)
        if asked.protect is not None:
            made = data in CORPORA and seed is not None and seed != asked.seed  # other rows under the same name
            own = asked.data
            changed: dict[str, tuple[object, object]] = {
                "--seed": (seed, asked.seed),
                "--text": (columns.text, own.text),
                "--text-pair": (columns.text_pair, own.text_pair),
                "--label": (columns.label, own.label),
            }
            refuse_protected(data, split, {} if made else changed)
    # The hold-out depends on the columns, so on the run's own data the run's own are read.
    usual = Columns() if data in CORPORA and not same else asked.data.columns
    corpus = load(
        data,
        Columns(
            columns.text or usual.text,
            columns.text_pair or usual.text_pair,
            columns.label or usual.label,
            asked.data.unit if same else None,
            columns.separator or (asked.data.separator if same else None),
            columns.quoting or (asked.data.quoting if same else None),
        ),
        seed=asked.seed if seed is None else seed,
        rows=asked.data.rows if same else None,
        share=asked.data.share if same else None,
        validation=asked.data.validation if same else None if data in CORPORA else 0,
        task=model.label_task,
        label_names=model.label_names or None,
        adjacency=asked.adjacency if same else Adjacency.ZERO_OUT,
    )
    name = split or next((s for s in ("validation", "test") if s in corpus.split_names), None)
    if same and asked.protect is not None and name is None:
        refuse_protected(data, "train", {})
    rows = matched(corpus.split(name) if name else corpus, model)
    tokens = tokens_for(model, rows)
    if tokens.truncated:
        note(f"{tokens.truncated} of {len(rows)} texts were truncated to {model.max_length} tokens.")
    with working(f"evaluating {len(rows):,} rows"):
        quality = assess(model, tokens)
    if json:
        as_json(
            {
                "run": str(run),
                "utility": quality.metrics,
                "quality": quality.as_dict(),
                "rows": len(rows),
                "split": name,
                "truncated": tokens.truncated,
                "seconds": time.monotonic() - began,
            }
        )
        return
    table(quality.metrics, title=f"Utility on {len(rows)} rows of {data}" + (f" ({name})" if name else ""))
    say_quality(quality.as_dict())


def refuse_protected(data: str, split: str | None, changed: dict[str, tuple[object, object]]) -> None:
    """Reject an evaluation that would print a figure about the rows that a protected run was trained on.

    The held-out rows are found again from the run's own columns and seed, so on its own data these must not change.
    """
    remedy = "Its guarantee does not cover figures computed from them: evaluate on the validation split, or other data."
    if split == "train":
        raise SettingError(f"Expected held-out rows of {data!r}, got the training rows of a protected run. {remedy}")
    for option, (value, own) in changed.items():
        if value is not None and value != own:
            raise SettingError(
                f"Expected {option} to be that of the run, {own!r}, on the data it was trained on, got {value!r}. "
                f"Another value would move training rows into the held-out split. {remedy}"
            )


def same_source(one: str, other: str) -> bool:
    """Return whether two names mean the same data."""
    if one == other:
        return True
    return Path(one).exists() and Path(other).exists() and Path(one).samefile(other)
