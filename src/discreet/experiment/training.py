"""Train once: from text to a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.accounting.interpret import guarantee
from discreet.accounting.ledger import Ledger
from discreet.core.errors import DataError, Message, UnsupportedError, setting
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.data.corpus import NOT_FOR_RELEASE
from discreet.data.sources import TextSource
from discreet.models.base import LM, TextModel
from discreet.models.classifier import Classifier, ModelSettings, classifier_of
from discreet.models.encoder import unknown_share, unknown_words
from discreet.models.language_model import LanguageModel
from discreet.protections.base import GradientProtection, Protection, RepresentationProtection
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.local.protection import LocalLayer, LocalPrivacy
from discreet.training.checkpoint import LEDGER
from discreet.training.encode import cache_folder, cached, ready
from discreet.training.evaluate import assess, evaluate, matched
from discreet.training.local_folder import write_sides
from discreet.training.loop import Job, Trained, train
from discreet.training.parts import find_device
from discreet.training.people import FIXED_SEED, TRAINING, About, Entry, People, Shared
from discreet.training.plan import TrainingPlan, public_corpus
from discreet.training.run_folder import RunSettings, finish, prepared, workspace_of
from discreet.training.settings import TrainSettings
from discreet.training.steps import Report

if TYPE_CHECKING:
    from discreet.data.batches import Tokens, Vectors
    from discreet.data.corpus import Corpus

_MANY_STEPS = 1_000_000
_MANY = 500  # public texts whose encoding takes long enough to say so


@dataclass(frozen=True)
class RunRequest:
    """What a training run is asked to do; what `train` leaves open is chosen by the plan."""

    data: TextSource
    model: ModelSettings
    train: TrainSettings
    protect: Protection | None = None
    seed: int = 0
    population: int | None = None
    noise_seed: int | None = None


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out; nothing of it changes the model.

    Without `cache`, the outputs of a frozen encoder are kept for the next training, but not in a protected one. A
    protected training is also counted in `ledger`, or, without one, in the record of these people on this machine
    (`discreet.training.people`); if that would go beyond `budget`, it is rejected before its first step.
    """

    device: str = "auto"
    resume: bool = False
    checkpoint_seconds: float = 30.0
    download: bool = False
    cache: bool | None = None
    ledger: Path | None = None
    budget: float | None = None
    watch: Callable[[Report], None] = lambda report: None
    say: Callable[[str], None] = lambda text: None
    should_stop: Callable[[], bool] = lambda: False


def load_corpus(data: TextSource, population: int | None = None) -> Corpus:
    """Return the corpus of a run; with a population its rows are selected so that it is hidden who is absent."""
    return data.load(Adjacency.ZERO_OUT if population is None else Adjacency.ADD_REMOVE)


def run_training(
    request: RunRequest, out: Path, *, corpus: Corpus | None = None, options: RunOptions | None = None
) -> dict[str, Any]:
    """Load, train, evaluate and write a run folder; return what `train --json` prints.

    Guarantee: that of the protection, in the result; none without one.
    """
    began, options = time.monotonic(), options or RunOptions()
    say, where = options.say, find_device(options.device)
    corpus = corpus or load_corpus(request.data, request.population)
    for remark in corpus.remarks:
        say(remark)
    if request.protect is not None:
        refuse_private_labels(request, corpus)
    workspace = workspace_of(out, resume=options.resume)
    rng = Rng(request.seed)
    model = build_model(request, corpus, rng.fork("model"), options.download).to(where)
    for remark in model.remarks:
        say(remark)
    unknown = unknown_words(unknown_share(model.tokenizer, corpus.texts), request.model.encoder)
    if unknown is not None:
        say(f"{NOT_FOR_RELEASE}: " + unknown)
    kept = cache_folder() if (request.protect is None if options.cache is None else options.cache) else None
    with prepared(workspace):
        plan = plan_for(request, model, corpus, say)
        private, secret = plan.protect is not None, None
        opened: AbstractContextManager[Ledger | None] = nullcontext()
        if private:
            secret, opened = plan.secret(workspace), plan.open_ledger(workspace / LEDGER)
        with opened as ledger, counting(plan, model, corpus, ledger, out, options) as total:
            job = Job(workspace, kept, options.checkpoint_seconds, options.watch, options.should_stop)
            trained = train(model, corpus, plan, ledger=ledger, secret=secret, job=job)
            if kept is not None and model.settings.frozen:
                say(cached().sentence())
            if trained.truncated:
                rows = len(corpus.split("train"))
                say(f"{trained.truncated} of {rows} texts were truncated to {model.max_length} tokens.")
            if not trained.finished:
                return {"out": str(out), "finished": False, "steps": trained.steps}
            if trained.out_of_budget:
                say(f"The budget allows no further step: training ended after step {trained.steps}.")
            result: dict[str, Any] = {
                "out": str(out),
                "finished": True,
                **utilities(plan, secret, model, corpus, kept, options.watch),
                **described(plan, trained, ledger),
                "seconds": time.monotonic() - began,
                "train_seconds": trained.seconds,
                "steps": trained.steps,
                "trained": request.model.train,
                **({} if private else {"rows": len(corpus.split("train")), "truncated": trained.truncated}),
                "device": str(where),
                "seed": request.seed,
            }
            if isinstance(plan.protect, RepresentationProtection):
                classifier = classifier_of(model, plan.protect.name)
                plan.protect.end(classifier)
                if isinstance(plan.protect, LocalLayer) and isinstance(request.protect, LocalPrivacy):
                    say(write_sides(workspace, classifier, plan.protect, request.protect))
            sentence, people = total()
    told = [entry for entry in trained.history if set(entry) > {"epoch", "step"}]
    # How long private rows took is seen by the owner alone: it is no part of what a protected run hands on.
    kept_back = {"seconds", "train_seconds"} if private else set()
    written = {key: value for key, value in result.items() if key not in kept_back}
    settings = run_settings(replace(request, train=plan.settings), corpus)
    finish(workspace, out, model, settings, {**written, "history": told}, trained.guarantee)
    # For the owner, not for release: no file of the run says what else these people were in.
    return {**result, "people": {**people, "sentence": sentence}} if private else result


def build_model(request: RunRequest, corpus: Corpus, rng: Rng, download: bool = False) -> TextModel:
    """Return the model that a run trains: a classifier, or a language model where texts are read without labels."""
    if request.data.task == "unlabelled":
        return LanguageModel.load(request.model, rng=rng, download=download)
    return Classifier.build(corpus, request.model, rng=rng, download=download)


def plan_for(request: RunRequest, model: TextModel, corpus: Corpus, say: Callable[[str], None]) -> TrainingPlan:
    """Return the plan of a run, and say what its owner should know before it begins."""
    public = public_corpus(request.protect, corpus, request.data.columns, request.seed)
    if public is not None:
        for remark in public.remarks:
            say(f"Public text: {remark}.")
        if request.model.frozen and len(public) > _MANY:
            say(f"Encoding {len(public):,} public texts: on a CPU a minute or so for every 2,000 not yet kept.")
    plan = TrainingPlan.make(
        model,
        corpus,
        protect=request.protect,
        train=request.train,
        population=request.population,
        public=public,
        seed=request.seed,
        noise_seed=request.noise_seed,
    )
    warn_of_size(request, plan, corpus, say)
    if plan.notice is not None:
        say(plan.notice)
    if plan.delta is not None and plan.delta > 1 / plan.units:
        say(
            Message(
                f"Warning: delta={plan.delta:g} is above 1/{plan.units}, one over the number of {plan.unit}s: such a "
                f"guarantee would allow one of them to be published whole. Use {setting('delta', 'auto')}."
            )
        )
    return plan


@contextmanager
def counting(
    plan: TrainingPlan, model: TextModel, corpus: Corpus, own: Ledger | None, out: Path, options: RunOptions
) -> Iterator[Callable[[], tuple[str, dict[str, Any]]]]:
    """Count a run beside its own ledger as well, and yield what returns the total, which ends the counting."""
    if own is None:
        yield lambda: ("", {})
        return
    counted = counted_for(plan, model, corpus.split("train"), own, out, options)
    finished = False

    def total() -> tuple[str, dict[str, Any]]:
        nonlocal finished
        finished = True
        return counted.told()

    try:
        yield total
    finally:
        counted.close(finished=finished)


def counted_for(
    plan: TrainingPlan, model: TextModel, split: Corpus, own: Ledger, out: Path, options: RunOptions
) -> Entry | Shared:
    """Return what counts a run beside its own ledger: a ledger that was named, or the record of these people.

    A run that would take them beyond the budget is rejected here, before its first step.
    """
    assert plan.protect is not None and plan.delta is not None
    planned = plan.spends(model, split, own)
    entry: Entry | Shared
    if options.ledger is not None:
        entry = Shared.open(options.ledger, own, plan.delta, planned, options.budget)
    else:
        kind = TRAINING if plan.noise_seed is None else FIXED_SEED
        about = About(kind, plan.delta, out, plan.protect.name)
        entry = Entry.of(People(), split, own, about, planned, options.budget)
        before = entry.before()
        if before.releases or before.elsewhere:
            options.say("Before this training. " + before.sentence())
        entry.check()
    own.also = entry
    return entry


def utilities(
    plan: TrainingPlan,
    secret: Rng | None,
    model: TextModel,
    corpus: Corpus,
    kept: Path | None,
    watch: Callable[[Report], None] | None = None,
) -> dict[str, Any]:
    """Return how good a trained model is, and on which split; a protected run says nothing about its training rows."""
    private = plan.protect is not None
    split = "validation" if "validation" in corpus.split_names else None if private else "train"
    if split is None:
        return {"utility": {}, "quality": None, "evaluated_on": None}
    held_out = plan.queries(matched(corpus.split(split), model), secret)
    rows = ready(model, held_out, kept, plan.settings.precision, watch)
    averaged = averaged_utility(plan, secret, model, rows)
    quality = assess(model, rows)
    result = {"utility": quality.metrics, "quality": quality.as_dict(), "evaluated_on": split}
    return {**result, "utility_averaged": averaged} if averaged else result


def averaged_utility(
    plan: TrainingPlan, secret: Rng | None, model: TextModel, rows: Tokens | Vectors
) -> dict[str, float]:
    """Return the utility of predictions averaged over a protection's views of a query, where it has several."""
    if not isinstance(plan.protect, RepresentationProtection) or secret is None:
        return {}
    views = plan.protect.views(model.width, secret)
    return {} if views is None else evaluate(model, rows, query=views)


def warn_of_size(request: RunRequest, plan: TrainingPlan, corpus: Corpus, say: Callable[[str], None]) -> None:
    """Say where more was asked for than there is, or than will be over soon."""
    there = len(corpus) if request.data.built_in else plan.rows  # of what is built in, rows counts held-out ones too
    if request.data.rows is not None and request.data.rows > there:
        kept = setting("rows", request.data.rows)
        say(Message(f"Only {plan.rows:,} training rows are there; {kept} keeps them all."))
    if request.population is not None:
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
                    f"give a population of at least their number, or a smaller {setting('delta')}."
                )
            say(Message(told))
    if plan.steps > _MANY_STEPS:
        say(
            Message(
                f"Warning: {plan.steps:,} steps will run; Ctrl-C stops after a step, and {setting('resume', True)} "
                "continues."
            )
        )


def refuse_private_labels(request: RunRequest, corpus: Corpus) -> None:
    """Reject class names that are read from the data, will be written into a protected run, and rest on one unit alone.

    The names of the classes are found in the labels. Where every class is held by two training units, or by held-out
    rows, which are not protected, another unit in place of one finds the same names, or is rejected here. Whether
    labels are classes or scores rests on a single decimal point, so that scores must be asked for.

    Guarantee: of two neighbouring corpora that are not rejected, both have the same names.
    """
    if request.data.built_in:
        return
    if corpus.task == "regression" and request.data.task is None:
        raise DataError(
            f"Expected {setting('task', 'regression')} for a protected run with scores. One decimal point decides "
            "whether labels are classes or scores, and may be one person's; say which."
        )
    if request.data.label_names is None:
        shared_classes_only(corpus)


def shared_classes_only(corpus: Corpus) -> None:
    """Reject class names that were read from the labels of a corpus where one of them rests on a single unit.

    Guarantee: of two neighbouring corpora that are not rejected, both have the same names.
    """
    if corpus.labels is None:
        return
    holders: dict[int, set[int]] = {}
    held_out: set[int] = set()
    for label, split, unit in zip(corpus.labels, corpus.splits, corpus.unit_index.tolist(), strict=True):
        if split == "train":
            holders.setdefault(label, set()).add(unit)
        else:
            held_out.add(label)
    every = range(len(corpus.label_names))
    alone = [label for label in every if len(holders.get(label, ())) < 2 and label not in held_out]
    if alone:
        raise DataError(
            f"Expected every class to be held by at least 2 {corpus.unit_name}s, found {len(alone)} of "
            f"{len(corpus.label_names)} held by fewer. The names of the classes are public, and such a name would tell "
            f"of a single one; give the names ({setting('classes')}), or merge the class with another."
        )


def described(plan: TrainingPlan, trained: Trained, ledger: Ledger | None) -> dict[str, Any]:
    """Return the guarantee of a run and, in one column for each adjacency, what it is under the others."""
    if plan.protect is None or trained.guarantee is None or ledger is None or plan.delta is None:
        return {"guarantee": None}
    columns: dict[str, Any] = {}
    at_gradient = isinstance(plan.protect, GradientProtection)
    for adjacency in Adjacency:
        columns[adjacency.value] = None
        if not at_gradient and adjacency is not plan.protect.adjacency:
            continue  # who is absent is seen to be, where each text or vector is
        if adjacency is Adjacency.ADD_REMOVE and plan.population is None:
            continue  # rate, divisor, delta and steps tell how many there are
        try:
            stated = guarantee(ledger.event, delta=plan.delta, adjacency=adjacency, unit=trained.guarantee.unit)
            columns[adjacency.value] = stated.epsilon if stated.exists else None
        except UnsupportedError:
            continue
    result: dict[str, Any] = {
        "guarantee": as_json(trained.guarantee),
        "epsilon_by_adjacency": columns,
        "protection": plan.protect.facts(),
        "sampler": vars(plan.sampler) if at_gradient else None,
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
    pairs = corpus.second is not None
    return RunSettings(
        data=request.data if pairs else replace(request.data, text_pair=None),
        model=request.model,
        train=request.train,
        protect=request.protect,
        seed=request.seed,
        task=LM if request.data.task == "unlabelled" else corpus.task,
        label_names=corpus.label_names,
        pairs=pairs,
        population=request.population,
    )
