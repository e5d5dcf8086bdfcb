"""Utility of a run by class and by subgroup, measured on its held-out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from discreet.core.device import find_device
from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.data.sources import read_column
from discreet.experiment.attack.scene import corpus_of_run
from discreet.metrics.utility import quality
from discreet.models.build import matched
from discreet.runs.folder import load_run
from discreet.training.evaluation import assess

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
    # All held-out rows, with the places that they have in the file, from which a column is read.
    own = {} if data is None else {"source": data, "rows": None, "validation": "0"}
    corpus = corpus_of_run(run, share=None, max_per_unit=None, **own)
    split = None if data is not None else "validation"
    if split is not None and split not in corpus.split_names:
        raise DataError(f"Expected held-out rows of {source!r}, got none. Measure on other text (data).")
    kept = [row for row, name in enumerate(corpus.splits) if split is None or name == split]
    groups: list[Any] = []
    if subgroup is not None:
        values = read_column(
            source, subgroup, settings.data.columns, settings.data.validation if data is None else None
        )
        groups = [values[row] for row in kept]
    rows = matched(corpus.take(kept), model)
    assessment = assess(model, rows)
    whole, answers, truth = assessment.quality, assessment.answers, assessment.truth
    intervals = assessment.intervals(Rng(0).fork("statement"))
    return {
        "measured_on": split or source,
        "rows": len(rows),
        "metrics": [
            {
                "metric": name,
                "value": value,
                "interval": list(intervals[name]) if name in intervals else None,
                "baseline": whole.baseline if name == whole.main else None,
            }
            for name, value in whole.metrics.items()
        ],
        "by_class": [row for row in assessment.by_class if row["rows"] >= FEWEST],
        **(
            {}
            if answers is None
            else {"subgroup_column": subgroup, "by_subgroup": _by_group(model.task, answers, truth, groups)}
        ),
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
