"""`discreet evaluate`: measure the utility of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli.options import Device, Json, OwnData, RunColumns, RunFolder, generated
from discreet.cli.output import as_json, note, print_classes, print_quality, table, working
from discreet.core.errors import SettingError


@generated()
def evaluate(
    run: RunFolder,
    columns: RunColumns,
    data: OwnData = None,
    split: Annotated[
        str | None, typer.Option(help="Split to evaluate. Default: validation, else test, else all rows.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of generated notes. Default: the run's own.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Print the utility of a trained model on DATA, by default the data of its run.

    A language model is measured by its perplexity. On the data of the run,
    only the held-out rows are evaluated.
    """
    import time

    start = time.monotonic()
    with working("loading the model"):
        from discreet.catalog import CORPORA
        from discreet.core.device import find_device
        from discreet.data.batches import tokens_for
        from discreet.data.sources import Columns, names_corpus
        from discreet.experiment.attack.scene import corpus_of_run
        from discreet.models.build import matched
        from discreet.runs.folder import load_run
        from discreet.training.evaluation import assess

        loaded = load_run(run, find_device(device))
    model, settings = loaded.model, loaded.settings
    data = settings.data.source if data is None else data
    same = same_source(data, settings.data.source)
    if same and settings.protect is not None:
        different_rows = CORPORA.owns(data) and seed is not None and seed != settings.seed  # under the same name
        own = settings.data
        options: dict[str, tuple[object, object]] = {
            "--seed": (seed, settings.seed),
            "--text": (columns.text, own.text),
            "--text-pair": (columns.text_pair, own.text_pair),
            "--label": (columns.label, own.label),
        }
        check_held_out(data, split, {} if different_rows else options)
    # The held-out split depends on the columns, so the run's own data is read with the run's own columns.
    changes: dict[str, Any] = {"max_per_unit": None}
    if not same:
        named = names_corpus(data)
        read = vars(Columns()) if named else {"unit": None, "separator": None, "quoting": None}
        changes |= {"source": data, "rows": None, "share": None, "validation": None if named else "0", **read}
    changes |= {key: value for key, value in vars(columns).items() if value is not None}
    corpus = corpus_of_run(loaded, **changes, **({} if seed is None else {"seed": seed}))
    name = split or next((s for s in ("validation", "test") if s in corpus.split_names), None)
    if same and settings.protect is not None and name is None:
        check_held_out(data, "train", {})
    rows = matched(corpus.split(name) if name else corpus, model)
    tokens = tokens_for(model, rows)
    if tokens.truncated:
        note(f"{tokens.truncated} of {len(rows)} texts were truncated to {model.max_length} tokens.")
    with working(f"evaluating {len(rows):,} rows"):
        assessment = assess(model, tokens)
        quality, classes = assessment.quality, assessment.by_class
    if json:
        as_json(
            {
                "run": str(run),
                "utility": quality.metrics,
                "quality": quality.as_dict(),
                **({"utility_by_class": classes} if classes else {}),
                "rows": len(rows),
                "split": name,
                "truncated": tokens.truncated,
                "seconds": time.monotonic() - start,
            }
        )
        return
    table(quality.metrics, title=f"Utility on {len(rows)} rows of {data}" + (f" ({name})" if name else ""))
    print_quality(quality.as_dict())
    print_classes(classes)


def check_held_out(data: str, split: str | None, options: dict[str, tuple[object, object]]) -> None:
    """Reject an evaluation on the training rows of a protected run.

    `options` maps an option to its value and that of the run. The held-out rows are recomputed from the run's columns
    and seed, so these must not differ on the data of the run.
    """
    remedy = "Its guarantee does not cover figures computed from them: evaluate on the validation split, or other data."
    if split == "train":
        raise SettingError(f"Expected held-out rows of {data!r}, got the training rows of a protected run. {remedy}")
    for option, (value, own) in options.items():
        if value is not None and value != own:
            raise SettingError(
                f"Expected {option} to be that of the run, {own!r}, on the data of the run, got {value!r}. "
                f"Another value would move training rows into the held-out split. {remedy}"
            )


def same_source(one: str, other: str) -> bool:
    """Return whether two names refer to the same data."""
    if one == other:
        return True
    return Path(one).exists() and Path(other).exists() and Path(one).samefile(other)
