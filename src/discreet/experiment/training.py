"""One run from corpus to metrics: the whole story on one page."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.data.doubts import NOT_FOR_RELEASE
from discreet.data.sources import BUILT_IN, load
from discreet.experiment.plan import Plan, RunRequest, asked_as, counted_for, plan_for, refuse_private_labels
from discreet.models.classifier import Classifier
from discreet.models.spelling import unknown_share, unknown_words
from discreet.protections.facts import public_facts
from discreet.protections.representation import at_vectors, place_of
from discreet.training.encode import cache_folder, cached, ready
from discreet.training.evaluate import assess, evaluate, matched
from discreet.training.loop import Trained, train
from discreet.training.meter import Report
from discreet.training.precision import find_device
from discreet.training.run_folder import (
    DataSettings,
    RunSettings,
    finish,
    prepared,
    workspace_of,
)

if TYPE_CHECKING:
    from discreet.data.batches import Tokens, Vectors
    from discreet.data.corpus import Corpus
    from discreet.protections.settings import ProtectSettings
    from discreet.training.loop import Protection

_MANY_STEPS = 1_000_000


def load_corpus(request: RunRequest) -> Corpus:
    """Return the corpus a run asks for."""
    return load(
        request.source,
        request.columns,
        seed=request.seed,
        rows=request.rows,
        share=request.share,
        validation=request.validation,
        task=request.task,
        label_names=request.label_names,
        adjacency=request.adjacency,
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
    cache: bool | None = None,
    ledger: Path | None = None,
    budget: float | None = None,
    watch: Callable[[Report], None] = lambda report: None,
    say: Callable[[str], None] = lambda text: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Load, train, evaluate and write a run folder; return what `train --json` prints.

    Without `cache`, the outputs of a frozen encoder are kept for the next training, but not in a protected one. A
    protected training is also counted in `ledger`, or, without one, in the record of these people on this machine
    (`discreet.training.people`); if that would go beyond `budget`, it is rejected before its first step.

    Guarantee: that of the protection, in the result; none without one.
    """
    began = time.monotonic()
    where = find_device(device)
    corpus = corpus or load_corpus(request)
    for remark in corpus.remarks:
        say(remark)
    if request.protect is not None:
        refuse_private_labels(request, corpus)
    warn_of_size(request, corpus, say)
    rng = Rng(request.seed)
    workspace = workspace_of(out, resume=resume)
    model = Classifier.build(corpus, request.model, rng=rng.fork("model"), download=download).to(where)
    unknown = unknown_words(unknown_share(model.tokenizer, corpus.texts), request.model.encoder)
    if unknown is not None:
        say(f"{NOT_FOR_RELEASE}: {unknown}")
    kept = cache_folder() if (request.protect is None if cache is None else cache) else None
    with prepared(workspace):
        plan = plan_for(request, model, corpus, workspace, say) if request.protect is not None else None
        opened: AbstractContextManager[Any] = plan.ledger if plan is not None else nullcontext()
        with opened, counting(plan, request, model, corpus, out, ledger, budget, say) as total:
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
                population=request.population,
                public=plan.public if plan else None,
                workspace=workspace,
                cache=kept,
                checkpoint_seconds=checkpoint_seconds,
                watch=watch,
                should_stop=should_stop,
            )
            if kept is not None and model.settings.frozen:
                say(cached().sentence())
            if trained.truncated:
                say(f"{trained.truncated} of {len(corpus.split('train'))} texts were cut to {model.max_length} tokens.")
            if not trained.finished:
                return {"out": str(out), "finished": False, "steps": trained.steps}
            if trained.out_of_budget:
                say(f"The budget allows no further step: training ended after step {trained.steps}.")
            result: dict[str, Any] = {
                "out": str(out),
                "finished": True,
                **utilities(plan, model, corpus, kept, request.train.precision, watch),
                **described(plan, trained),
                "seconds": time.monotonic() - began,
                "train_seconds": trained.seconds,
                "steps": trained.steps,
                "trained": request.model.train,
                **({} if plan else {"rows": len(corpus.split("train")), "truncated": trained.truncated}),
                "device": str(where),
                "seed": request.seed,
            }
            if plan is not None and at_vectors(plan.protect):
                plan.protect.end(model)
            if plan is not None:
                hand_out(request.protect, workspace, model, plan.protect, say)
            sentence, people = total()
    told = [entry for entry in trained.history if set(entry) > {"epoch", "step"}]
    # How long private rows took is seen by the owner alone: it is no part of what a protected run hands on.
    kept_back = {"seconds", "train_seconds"} if plan is not None else set()
    written = {key: value for key, value in result.items() if key not in kept_back}
    finish(workspace, out, model, run_settings(request, corpus), {**written, "history": told}, trained.guarantee)
    # For the owner, not for release: no file of the run says what else these people were in.
    return result if plan is None else {**result, "people": {**people, "sentence": sentence}}


@contextmanager
def counting(
    plan: Plan | None,
    request: RunRequest,
    model: Classifier,
    corpus: Corpus,
    out: Path,
    ledger: Path | None,
    budget: float | None,
    say: Callable[[str], None],
) -> Iterator[Callable[[], tuple[str, dict[str, Any]]]]:
    """Count a run beside its own ledger as well, and yield what returns the total, which ends the counting."""
    if plan is None:
        yield lambda: ("", {})
        return
    counted = counted_for(plan, request, model, corpus.split("train"), out, ledger=ledger, budget=budget, say=say)
    finished = False

    def total() -> tuple[str, dict[str, Any]]:
        nonlocal finished
        finished = True
        return counted.told()

    try:
        yield total
    finally:
        counted.close(finished=finished)


def hand_out(
    asked: ProtectSettings | None, workspace: Path, model: Classifier, protect: Protection, say: Callable[[str], None]
) -> None:
    """Write what a protection hands out beside the model, such as a client's and a server's side, if it names a way."""
    named: tuple[str, str] | None = getattr(asked, "hands_out", None)
    if named is not None:
        say(getattr(importlib.import_module(named[0]), named[1])(workspace, model, protect, asked))


def utilities(
    plan: Plan | None,
    model: Classifier,
    corpus: Corpus,
    kept: Path | None,
    precision: str,
    watch: Callable[[Report], None] | None = None,
) -> dict[str, Any]:
    """Return how good a trained model is, and on which split; a protected run says nothing about its training rows."""
    split = "validation" if "validation" in corpus.split_names else None if plan else "train"
    if split is None:
        return {"utility": {}, "quality": None, "evaluated_on": None}
    rows = ready(model, asked_as(plan, matched(corpus.split(split), model)), kept, precision, watch)
    averaged = averaged_utility(plan, model, rows)
    quality = assess(model, rows)
    found = {"utility": quality.metrics, "quality": quality.as_dict(), "evaluated_on": split}
    return {**found, "utility_averaged": averaged} if averaged else found


def averaged_utility(plan: Plan | None, model: Classifier, rows: Tokens | Vectors) -> dict[str, float]:
    """Return the utility of predictions averaged over a protection's views of a query, where it has several."""
    if plan is None or not at_vectors(plan.protect):
        return {}
    views = plan.protect.views(model.width, plan.secret)
    return {} if views is None else evaluate(model, rows, query=views)


def warn_of_size(request: RunRequest, corpus: Corpus, say: Callable[[str], None]) -> None:
    """Say where more was asked for than there is, or than will be over soon."""
    found = len(corpus.split("train")) if "train" in corpus.split_names else 0
    there = len(corpus) if request.source in BUILT_IN else found  # of what is built in, --rows counts held-out rows too
    if request.rows is not None and request.rows > there:
        say(f"Only {found:,} training rows are there; --rows {request.rows} keeps them all.")
    units = request.size_of(corpus) if found else 0
    if request.population is not None and found:
        units_there = corpus.split("train").unit_count
        if units_there > request.population or 2 * units_there < request.population:
            times = units_there / request.population
            told = (
                f"Not for release: the training rows hold {units_there:,} {corpus.unit_name}s, and the population is "
                f"{request.population:,}. The guarantee holds; batches hold {times:.2g} times as many as asked for."
            )
            if times > 1 and request.protect is not None and request.protect.delta is None:
                told += (
                    f" Warning: delta follows from the population and is too large for so many {corpus.unit_name}s; "
                    "give a population of at least their number, or a smaller --delta."
                )
            say(told)
    steps = round(request.train.epochs * -(-units // max(1, min(request.train.batch_size, units or 1))))
    if steps > _MANY_STEPS:
        say(f"Warning: {steps:,} steps were asked for; Ctrl-C stops after a step, and --resume goes on.")


def described(plan: Plan | None, trained: Trained) -> dict[str, Any]:
    """Return the guarantee of a run and, in one column for each adjacency, what it is under the others."""
    if plan is None or trained.guarantee is None:
        return {"guarantee": None}
    from discreet.accounting.interpret import guarantee
    from discreet.protections.dir_dp_sgd import DirDPSGD

    columns: dict[str, Any] = {}
    for adjacency in Adjacency:
        if place_of(plan.protect) != "gradient" and adjacency is not plan.protect.adjacency:
            columns[adjacency.value] = None  # who is absent is seen to be, where each text or vector is
            continue
        if adjacency is Adjacency.ADD_REMOVE and plan.population is None:
            columns[adjacency.value] = None  # rate, divisor, delta and steps tell how many there are
            continue
        try:
            found = guarantee(plan.ledger.event, delta=plan.delta, adjacency=adjacency, unit=trained.guarantee.unit)
            columns[adjacency.value] = found.epsilon if found.exists else None
        except UnsupportedError:
            columns[adjacency.value] = None
    result: dict[str, Any] = {
        "guarantee": as_json(trained.guarantee),
        "epsilon_by_adjacency": columns,
        "protection": public_facts(plan.protect),
        "sampler": None if plan.sampler is None else vars(plan.sampler),
        **({"units": plan.units} if plan.population is None else {"population": plan.population}),
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
        share=request.share,
        validation=request.validation,
        separator=columns.separator,
        quoting=columns.quoting,
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
        population=request.population,
    )
