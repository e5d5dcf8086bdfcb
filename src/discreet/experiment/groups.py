"""Utility of a run by class and by subgroup, measured on its held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from discreet.core.device import find_device
from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.sources import Columns, load, read_column
from discreet.metrics.utility import by_class, quality, utility_intervals
from discreet.models.build import matched
from discreet.models.classifier import classifier_of
from discreet.runs.folder import load_run
from discreet.training.evaluate import perplexity, predict

FEWEST = 5  # rows of a class or a subgroup with which its utility is stated


def utility_of_groups(
    folder: Path, subgroup: str | None = None, *, data: str | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Return the utility of a run on held-out rows with intervals, by class, and by the values of a column.

    `data` is other text with the columns of the run; by default its own held-out rows are read. Classes and subgroups
    of fewer than five rows are left out.

    Guarantee: none for the held-out rows, whose figures this returns; that of the model is unchanged.
    """
    run = load_run(folder, find_device(device))
    model, settings = run.model, run.settings
    source = settings.data.source if data is None else data
    columns = Columns() if settings.data.built_in and data is None else settings.data.columns
    corpus = load(
        source,
        columns,
        seed=settings.seed,
        rows=settings.data.rows if data is None and settings.data.built_in else None,
        validation=settings.data.validation if data is None else 0,
        task=model.label_task,
        label_names=model.label_names or None,
        adjacency=settings.adjacency,
    )
    split = None if data is not None else "validation"
    if split is not None and split not in corpus.split_names:
        raise DataError(f"Expected held-out rows of {source!r}, got none. Measure on other text (data).")
    kept = [row for row, name in enumerate(corpus.splits) if split is None or name == split]
    groups: list[Any] = []
    if subgroup is not None:
        values = read_column(source, subgroup, columns, settings.data.validation if data is None else None)
        groups = [values[row] for row in kept]
    rows = matched(corpus.take(kept), model)
    if model.task.is_language:
        result = perplexity(model, tokens_for(model, rows))  # type: ignore[arg-type]
        metrics = [_metric(name, value, result.interval if name == result.main else None,
                           result.baseline if name == result.main else None)
                   for name, value in result.metrics.items()]  # fmt: skip
        return {"measured_on": split or source, "rows": len(rows), "metrics": metrics, "by_class": []}
    predicted = predict(classifier_of(model, "predictions"), rows).best
    truth = np.asarray(rows.labels if rows.labels is not None else rows.scores)
    whole = quality(model.task, predicted, truth)
    intervals = utility_intervals(model.task, predicted, truth, Rng(0).fork("statement"))
    classes = by_class(predicted, truth, model.label_names) if model.task.has_classes else []
    return {
        "measured_on": split or source,
        "rows": len(rows),
        "metrics": [
            _metric(name, value, intervals.get(name), whole.baseline if name == whole.main else None)
            for name, value in whole.metrics.items()
        ],
        "by_class": [row for row in classes if row["rows"] >= FEWEST],
        "subgroup_column": subgroup,
        "by_subgroup": _by_group(model.task, predicted, truth, groups),
    }


def _by_group(task: str, predicted: Any, truth: Any, groups: list[Any]) -> list[dict[str, Any]]:
    rows = []
    names = ["" if value is None else str(value).strip() for value in groups]
    for name in sorted(set(names)):
        own = np.array([one == name for one in names])
        if int(own.sum()) < FEWEST:
            continue
        part = quality(task, predicted[own], truth[own])
        rows.append(
            {"group": name or "(empty)", "rows": int(own.sum()), "metric": part.main, "value": part.value,
             "interval": list(part.interval)}
        )  # fmt: skip
    return rows


def _metric(name: str, value: float, interval: tuple[float, float] | None, baseline: float | None) -> dict[str, Any]:
    return {
        "metric": name,
        "value": value,
        "interval": None if interval is None else list(interval),
        "baseline": baseline,
    }
