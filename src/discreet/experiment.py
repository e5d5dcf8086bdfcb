"""One run from corpus to metrics: the whole story on one page."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.core.randomness import Rng
from discreet.data.sources import Columns, load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.training.encode import cache_folder, ready
from discreet.training.evaluate import evaluate, matched
from discreet.training.loop import train
from discreet.training.meter import Report
from discreet.training.precision import find_device
from discreet.training.run_folder import DataSettings, RunSettings, begin, finish, workspace_of
from discreet.training.settings import TrainSettings

if TYPE_CHECKING:
    from discreet.data.corpus import Corpus


@dataclass(frozen=True)
class RunRequest:
    """What a training run is asked to do."""

    source: str
    columns: Columns
    model: ModelSettings
    train: TrainSettings
    seed: int = 0
    rows: int | None = None


def run_training(
    request: RunRequest,
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    checkpoint_seconds: float = 30.0,
    download: bool = False,
    cache: bool = True,
    watch: Callable[[Report], None] = lambda report: None,
    say: Callable[[str], None] = lambda text: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Load, train, evaluate and write a run folder; return what `train --json` prints.

    Guarantee: that of the protection, in the result; none without one.
    """
    began = time.monotonic()
    where = find_device(device)
    corpus = load(request.source, request.columns, seed=request.seed, rows=request.rows)
    for remark in corpus.remarks:
        say(remark)
    rng = Rng(request.seed)
    workspace = workspace_of(out, resume=resume)
    model = Classifier.build(corpus, request.model, rng=rng.fork("model"), download=download).to(where)
    begin(workspace)
    kept = cache_folder() if cache else None
    trained = train(
        model,
        corpus,
        request.train,
        rng=rng.fork("train"),
        workspace=workspace,
        cache=kept,
        checkpoint_seconds=checkpoint_seconds,
        watch=watch,
        should_stop=should_stop,
    )
    if trained.truncated:
        say(f"{trained.truncated} of {len(corpus.split('train'))} texts were cut to {model.max_length} tokens.")
    if not trained.finished:
        return {"out": str(out), "finished": False, "steps": trained.steps}
    split = "validation" if "validation" in corpus.split_names else "train"
    utility = evaluate(model, ready(model, matched(corpus.split(split), model), kept, request.train.precision))
    result: dict[str, Any] = {
        "out": str(out),
        "finished": True,
        "utility": utility,
        "evaluated_on": split,
        "guarantee": None,
        "seconds": time.monotonic() - began,
        "train_seconds": trained.seconds,
        "steps": trained.steps,
        "rows": len(corpus.split("train")),
        "truncated": trained.truncated,
        "device": str(where),
        "seed": request.seed,
    }
    settings = RunSettings(
        data=describe(request, corpus),
        model=request.model,
        train=request.train,
        seed=request.seed,
        task=corpus.task,
        label_names=corpus.label_names,
        pairs=corpus.second is not None,
    )
    finish(workspace, out, model, settings, {**result, "history": list(trained.history)})
    return result


def describe(request: RunRequest, corpus: Corpus) -> DataSettings:
    """Return where the text came from, for the run's settings."""
    columns = request.columns
    return DataSettings(
        source=request.source,
        text=columns.text,
        text_pair=columns.text_pair if corpus.second is not None else None,
        label=columns.label,
        unit=columns.unit,
        rows=request.rows,
    )
