"""One run from corpus to metrics: the whole story on one page."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.core.checks import refuse
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.data.sources import Columns, load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.representation import at_text, at_vectors, place_of
from discreet.protections.settings import Conditions, ProtectSettings
from discreet.training.defaults import Defaults
from discreet.training.encode import cache_folder, encode, ready
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
    from torch import Tensor

    from discreet.accounting.ledger import Ledger
    from discreet.data.batches import Tokens, Vectors
    from discreet.data.corpus import Corpus, Task
    from discreet.data.samplers import Sampler
    from discreet.training.loop import Protection

_MANY_STEPS = 1_000_000

_MANY = 2_000  # public texts whose encoding takes long enough to say so


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

    protect: Protection
    sampler: Sampler | None
    ledger: Ledger
    secret: Rng
    delta: float
    units: int
    public: Corpus | None = None


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
    warn_of_size(request, corpus, say)
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
            public=plan.public if plan else None,
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
        utility, averaged = {}, {}
        if split is not None:  # a protected run says nothing about its training rows
            held_out = asked_as(plan, matched(corpus.split(split), model))
            rows = ready(model, held_out, kept, request.train.precision)
            utility = evaluate(model, rows)
            averaged = averaged_utility(plan, model, rows)
        result: dict[str, Any] = {
            "out": str(out),
            "finished": True,
            "utility": utility,
            "evaluated_on": split,
            **({"utility_averaged": averaged} if averaged else {}),
            **described(plan, trained),
            "seconds": time.monotonic() - began,
            "train_seconds": trained.seconds,
            "steps": trained.steps,
            **({} if plan else {"rows": len(corpus.split("train")), "truncated": trained.truncated}),
            "device": str(where),
            "seed": request.seed,
        }
        if plan is not None and at_vectors(plan.protect):
            plan.protect.end(model)
        if plan is not None and request.protect is not None and request.protect.name == "ldp":
            from discreet.training.local_folder import write_sides

            write_sides(workspace, model, plan.protect, request.protect)  # type: ignore[arg-type]
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
    public = public_corpus(request, corpus, say)
    given = Conditions(
        model=model,
        units=units,
        rows=len(train_split),
        batch_size=size,
        steps=max(1, round(request.train.epochs * -(-units // size))),
        epochs=request.train.epochs,
        delta=delta,
        public=None if public is None else lambda: public_vectors(model, public, request.train.precision),
        pairs=corpus.is_pairs,
    )
    protect = asked.build(given)
    sampler = sampler_for(protect, size, units) if place_of(protect) == "gradient" else None
    secret = secret_of(workspace) if request.noise_seed is None else Rng(request.noise_seed).fork("secret")
    limited = asked.epsilon is not None and getattr(asked, "limits", True)
    ledger = Ledger.open(
        workspace / LEDGER,
        unit=corpus.unit_name,
        adjacency=protect.adjacency,
        budget=Budget(asked.epsilon, delta) if limited and asked.epsilon is not None else None,
    )
    return Plan(protect, sampler, ledger, secret, delta, units, public)


def public_corpus(request: RunRequest, private: Corpus, say: Callable[[str], None]) -> Corpus | None:
    """Return the public corpus that a protection asks for, without what stands in held-out text.

    What is learned from it leaves as it is, so it must not depend on which of its texts are in the train split: taking
    those out would tell everyone who has the public corpus. Where nothing is guaranteed they are taken out too.
    """
    from discreet.data.overlap import without_overlap

    source = getattr(request.protect, "public", None)
    if source is None:
        return None
    columns = request.columns if private.is_pairs else replace(request.columns, text_pair=None)
    public = load(source, replace(columns, unit=None), seed=request.seed, validation=0)
    promised = getattr(request.protect, "epsilon", None) is not None
    rows = [row for row, name in enumerate(private.splits) if name != "train" or not promised]
    if rows:
        public = without_overlap(public, private.take(rows))
    for remark in public.remarks:
        say(f"Public text: {remark}.")
    if request.model.frozen and len(public) > _MANY:
        say(f"Encoding {len(public):,} public texts: minutes on a CPU the first time, then kept in the cache.")
    return public


def public_vectors(model: Classifier, public: Corpus, precision: str) -> tuple[Tensor, Tensor | None]:
    """Return the vectors of public text by a frozen encoder, and its labels where they mean what the model's do."""
    if not model.settings.frozen:
        raise refuse("train", model.settings.train, "head or pooler+head", "A projection is learned for one encoder.")
    rows = encode(model, public, cache_folder(), precision)
    labelled = public.task == model.task and public.label_names == model.label_names
    return rows.vectors, rows.targets if labelled else None


def asked_as(plan: Plan | None, corpus: Corpus) -> Corpus:
    """Return held-out text as the model will be asked about it: rewritten, if the protection rewrites queries too."""
    if plan is None or not at_text(plan.protect) or not plan.protect.rewrites_queries:
        return corpus
    return plan.protect.rewrite(corpus, plan.secret.fork("held out"))


def averaged_utility(plan: Plan | None, model: Classifier, rows: Tokens | Vectors) -> dict[str, float]:
    """Return the utility of predictions averaged over a pool of masks, where there is one."""
    from discreet.protections.texthide import TextHide

    if plan is None or not isinstance(plan.protect, TextHide) or not plan.protect.masks:
        return {}
    return evaluate(model, rows, query=plan.protect.averaged(model.width, plan.secret))


def warn_of_size(request: RunRequest, corpus: Corpus, say: Callable[[str], None]) -> None:
    """Say where more was asked for than there is, or than will be over soon."""
    found = len(corpus.split("train")) if "train" in corpus.split_names else 0
    if request.rows is not None and request.rows > found:
        say(f"Only {found:,} training rows are there; --rows {request.rows} keeps them all.")
    units = corpus.split("train").unit_count if found else 0
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
        try:
            found = guarantee(plan.ledger.event, delta=plan.delta, adjacency=adjacency, unit=trained.guarantee.unit)
            columns[adjacency.value] = found.epsilon if found.exists else None
        except UnsupportedError:
            columns[adjacency.value] = None
    result: dict[str, Any] = {
        "guarantee": as_json(trained.guarantee),
        "epsilon_by_adjacency": columns,
        "protection": public_fields(plan.protect),
        "sampler": None if plan.sampler is None else vars(plan.sampler),
        "units": plan.units,
        "out_of_budget": trained.out_of_budget,
    }
    if isinstance(plan.protect, DirDPSGD):
        result["metric_epsilon_per_use"] = plan.protect.kappa
        result["pure_epsilon"] = plan.protect.pure_epsilon(trained.steps)
        result["dimension"] = plan.protect.dimension
    return result


def public_fields(protect: Protection) -> dict[str, Any]:
    """Return what a protection was set to, where that is a plain value."""
    fields = {} if place_of(protect) == "gradient" else {"name": protect.name}
    return fields | {k: v for k, v in vars(protect).items() if v is None or isinstance(v, str | int | float | bool)}


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
