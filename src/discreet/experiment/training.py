"""One run from corpus to metrics: the whole story on one page."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.data.sources import Columns, load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.settings import ProtectSettings
from discreet.training.defaults import Defaults
from discreet.training.encode import cache_folder, ready
from discreet.training.evaluate import evaluate, matched
from discreet.training.loop import Trained, train
from discreet.training.meter import Report
from discreet.training.precision import find_device
from discreet.training.run_folder import (
    DataSettings,
    RunSettings,
    begin,
    finish,
    secret_of,
    workspace_of,
)
from discreet.training.settings import TrainSettings

if TYPE_CHECKING:
    from discreet.accounting.ledger import Ledger
    from discreet.data.corpus import Corpus, Task
    from discreet.data.samplers import Sampler
    from discreet.protections.gradient import GradientProtection


@dataclass(frozen=True)
class RunRequest:
    """What a training run is asked to do."""

    source: str
    columns: Columns
    model: ModelSettings
    train: TrainSettings
    protect: ProtectSettings | None = None
    seed: int = 0
    rows: int | None = None
    noise_seed: int | None = None
    validation: str | None = None
    task: Task | None = None

    def tuned(self, usual: Defaults, **asked: Any) -> RunRequest:
        """Return the request with what was asked for and, where nothing was, what is usual."""
        model: dict[str, Any] = {}
        training: dict[str, Any] = {}
        for name, value in {**vars(usual), **{k: v for k, v in asked.items() if v is not None}}.items():
            (model if name in {"dropout", "embeddings"} else training)[name] = value
        return replace(self, model=replace(self.model, **model), train=replace(self.train, **training))


@dataclass(frozen=True)
class Plan:
    """The private side of a run, once corpus and model are known."""

    protect: GradientProtection
    sampler: Sampler
    ledger: Ledger
    secret: Rng
    delta: float
    units: int


def load_corpus(request: RunRequest) -> Corpus:
    """Return the corpus a run asks for."""
    return load(
        request.source,
        request.columns,
        seed=request.seed,
        rows=request.rows,
        validation=request.validation,
        task=request.task,
    )


def run_training(
    request: RunRequest,
    out: Path,
    *,
    corpus: Corpus | None = None,
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
    corpus = corpus or load_corpus(request)
    for remark in corpus.remarks:
        say(remark)
    rng = Rng(request.seed)
    workspace = workspace_of(out, resume=resume)
    model = Classifier.build(corpus, request.model, rng=rng.fork("model"), download=download).to(where)
    begin(workspace)
    kept = cache_folder() if cache else None
    plan = plan_for(request, model, corpus, workspace, say) if request.protect is not None else None
    opened: AbstractContextManager[Any] = plan.ledger if plan is not None else nullcontext()
    with opened:
        trained = train(
            model,
            corpus,
            request.train,
            rng=rng.fork("train"),
            protect=plan.protect if plan else None,
            ledger=plan.ledger if plan else None,
            delta=plan.delta if plan else None,
            secret=plan.secret if plan else None,
            sampler=plan.sampler if plan else None,
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
        if trained.out_of_budget:
            say(f"The budget allows no further step: training ended after step {trained.steps}.")
        split = "validation" if "validation" in corpus.split_names else None if plan else "train"
        utility = {}
        if split is not None:  # a protected run says nothing about its training rows
            utility = evaluate(model, ready(model, matched(corpus.split(split), model), kept, request.train.precision))
        result: dict[str, Any] = {
            "out": str(out),
            "finished": True,
            "utility": utility,
            "evaluated_on": split,
            **described(plan, trained),
            "seconds": time.monotonic() - began,
            "train_seconds": trained.seconds,
            "steps": trained.steps,
            **({} if plan else {"rows": len(corpus.split("train")), "truncated": trained.truncated}),
            "device": str(where),
            "seed": request.seed,
        }
    told = [entry for entry in trained.history if set(entry) > {"epoch", "step"}]
    finish(workspace, out, model, run_settings(request, corpus), {**result, "history": told}, trained.guarantee)
    return result


def plan_for(
    request: RunRequest, model: Classifier, corpus: Corpus, workspace: Path, say: Callable[[str], None]
) -> Plan:
    """Return the protection with its noise solved, its sampler, and its ledger opened in the workspace."""
    from discreet.accounting.ledger import Budget, Ledger
    from discreet.training.checkpoint import LEDGER
    from discreet.training.private import delta_for, sampler_for

    asked = request.protect
    assert asked is not None
    train_split = corpus.split("train")
    units = train_split.unit_count
    delta = asked.delta if asked.delta is not None else delta_for(units)
    if delta > 1 / units:
        say(
            f"Warning: delta={delta:g} is above 1/{units}, one over the number of {train_split.unit_name}s: such a "
            "guarantee would allow one of them to be published whole. Use --delta auto."
        )
    size = min(request.train.batch_size, units)
    steps = max(1, round(request.train.epochs * -(-units // size)))
    protect = asked.build(model, sampling_rate=size / units, steps=steps, delta=delta)
    sampler = sampler_for(protect, size, units)
    secret = secret_of(workspace) if request.noise_seed is None else Rng(request.noise_seed).fork("secret")
    ledger = Ledger.open(
        workspace / LEDGER,
        unit=corpus.unit_name,
        adjacency=protect.adjacency,
        budget=Budget(asked.epsilon, delta) if asked.epsilon is not None else None,
    )
    return Plan(protect, sampler, ledger, secret, delta, units)


def described(plan: Plan | None, trained: Trained) -> dict[str, Any]:
    """Return the guarantee of a run and, in one column for each adjacency, what it is under the others."""
    if plan is None or trained.guarantee is None:
        return {"guarantee": None}
    from discreet.accounting.interpret import guarantee
    from discreet.protections.dir_dp_sgd import DirDPSGD

    columns: dict[str, Any] = {}
    for adjacency in Adjacency:
        try:
            found = guarantee(plan.ledger.event, delta=plan.delta, adjacency=adjacency, unit=trained.guarantee.unit)
            columns[adjacency.value] = found.epsilon if found.exists else None
        except UnsupportedError:
            columns[adjacency.value] = None
    result = {
        "guarantee": as_json(trained.guarantee),
        "epsilon_by_adjacency": columns,
        "protection": {key: value for key, value in vars(plan.protect).items() if key != "blocks"},
        "sampler": vars(plan.sampler),
        "units": plan.units,
        "out_of_budget": trained.out_of_budget,
    }
    if isinstance(plan.protect, DirDPSGD):
        result["metric_epsilon_per_use"] = plan.protect.kappa
        result["pure_epsilon"] = plan.protect.pure_epsilon(trained.steps)
        result["dimension"] = plan.protect.dimension
    return result


def as_json(promise: Guarantee) -> dict[str, Any]:
    """Return a guarantee as plain values, with its sentence."""
    return {**promise.as_dict(), "sentence": promise.sentence()}


def run_settings(request: RunRequest, corpus: Corpus) -> RunSettings:
    """Return all that was asked of a run, for its folder; never a word of the text."""
    columns, pairs = request.columns, corpus.second is not None
    data = DataSettings(
        source=request.source,
        text=columns.text,
        text_pair=columns.text_pair if pairs else None,
        label=columns.label,
        unit=columns.unit,
        rows=request.rows,
        validation=request.validation,
    )
    return RunSettings(
        data=data,
        model=request.model,
        train=request.train,
        protect=request.protect,
        seed=request.seed,
        task=corpus.task,
        label_names=corpus.label_names,
        pairs=pairs,
    )
