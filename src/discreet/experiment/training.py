"""Train once: load the text, plan, train, evaluate, and write a run folder. `run_training` is the whole sequence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.accounting.interpret import guarantee
from discreet.accounting.ledger import Ledger
from discreet.audit.canaries import EXAMPLES, GRADIENT, TOKENS, GradientCanaries, TextCanaries, plant_texts
from discreet.audit.canaries import KINDS as CANARY_KINDS
from discreet.audit.canaries import write as write_audit
from discreet.audit.one_run import check_enough
from discreet.audit.watch import Watch
from discreet.core.device import find_device
from discreet.core.errors import DataError, Message, UnsupportedError, invalid, one_of, setting
from discreet.core.files import cannot_write
from discreet.core.guarantee import Adjacency, Caveat, delta_for
from discreet.core.randomness import Rng
from discreet.data.canaries import Planting, canaries_path, planted, read_canaries, write_canaries
from discreet.data.corpus import PRIVATE_DETAIL
from discreet.data.overlap import check_held_out, overlapping
from discreet.data.sources import TextSource, files_of
from discreet.local.sides import write_sides
from discreet.models.base import LM, TextModel
from discreet.models.build import build_model
from discreet.models.classifier import classifier_of
from discreet.models.encode import cache_folder, cached, ready
from discreet.models.encoder import unknown_share, unknown_words
from discreet.models.task import matched
from discreet.protections.base import GradientProtection, RepresentationProtection
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.local.protection import LocalPrivacy
from discreet.protections.local.release import LocalLayer
from discreet.runs.checkpoint import LEDGER, PUBLIC_START
from discreet.runs.folder import RunChoices, RunSettings, check_kind, finish, prepared, workspace_of
from discreet.runs.people import Entry, Shared, Spent
from discreet.training.account import entry_of
from discreet.training.evaluate import assess_classes, evaluate
from discreet.training.loop import Job, Trained, train
from discreet.training.plan import TrainingPlan
from discreet.training.public_row import PublicRow, public_row, start_row
from discreet.training.public_text import public_corpus
from discreet.training.steps import Report, encoding_watch

if TYPE_CHECKING:
    import torch

    from discreet.data.batches import Tokens, Vectors
    from discreet.data.corpus import Corpus

_MANY_STEPS = 1_000_000
_LONGEST_NAMES = 1_000  # characters of all class names together, up to which they are printed as a setting
_MANY_TEXTS = 500  # public texts whose encoding takes noticeable time


@dataclass(frozen=True)
class RunRequest(RunChoices):
    """The choices of a training run and, for reproducible noise, its seed, which is never written into the folder.

    `audit` is the number of canaries that are planted, each with probability one half, and `audit_canaries` their kind
    (`discreet.audit.canaries`); by default gradient with dp-sgd, else those of the model's task.
    """

    noise_seed: int | None = None
    audit: int | None = None
    audit_canaries: str | None = None


@dataclass(frozen=True)
class RunOptions:
    """Options that do not change the model.

    By default, the outputs of a frozen encoder are cached for the next training run, unless it is protected. A
    protected run is also counted in `ledger`, or else in this machine's record of the same people
    (`discreet.runs.people`); a run that would exceed `budget` there is rejected before its first step.
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
    """Return the corpus of a run; with a population, its rows are selected for add/remove adjacency."""
    return data.load(Adjacency.ZERO_OUT if population is None else Adjacency.ADD_REMOVE)


def run_training(
    request: RunRequest, out: Path, *, corpus: Corpus | None = None, options: RunOptions | None = None
) -> dict[str, Any]:
    """Load, train, evaluate and write a run folder; return the values that `train --json` prints.

    Guarantee: that of the protection, in the result; none without a protection.
    """
    start, options = time.monotonic(), options or RunOptions()
    say, device = options.say, find_device(options.device)
    corpus = corpus or load_corpus(request.data, request.population)
    for remark in corpus.remarks:
        say(remark)
    if request.protect is not None:
        check_private_labels(request, corpus)
        check_validation(corpus)
    workspace = workspace_of(out, resume=options.resume)
    check_kind(workspace, search=False)
    if request.canaries is not None:
        corpus = with_canaries(request.canaries, corpus, out, options)
    rng = Rng(request.seed)
    model = model_for(request, corpus, device, options)
    cache = cache_folder() if (request.protect is None if options.cache is None else options.cache) else None
    canaries: GradientCanaries | TextCanaries | None = None
    if request.audit is not None and canary_kind(request, model) != GRADIENT:
        adjacency = None if request.protect is None else request.protect.adjacency_for(request.population)
        corpus, canaries = plant_texts(corpus, request.audit, adjacency, rng.fork("audit"), model)
    with prepared(workspace):
        plan = make_plan(request, model, corpus, say)
        if request.audit is not None:
            check_canaries(request.audit, plan)
            canaries = canaries or GradientCanaries.of(request.audit, plan, rng.fork("audit"))
            if canaries.watching is None and isinstance(plan.protect, GradientProtection):
                canaries.watching = Watch(plan)
            say(f"Audit: {request.audit:,} canaries ({canary_kind(request, model)}), each included by a coin.")
        private = plan.protect is not None
        secret = plan.secret(workspace) if private else None
        with shared_accounting(plan, model, corpus, workspace / LEDGER, out, options) as (ledger, total):
            job = Job(
                workspace,
                cache,
                options.checkpoint_seconds,
                options.watch,
                options.should_stop,
                canaries=canaries,
            )
            trained = train(model, corpus, plan, ledger=ledger, secret=secret, job=job)
            if cache is not None and model.settings.frozen:
                say(cached().sentence())
            if trained.truncated:
                rows = len(corpus.split("train"))
                say(f"{trained.truncated} of {rows} texts were truncated to {model.max_length} tokens.")
            if not trained.finished:
                return {"out": str(out), "finished": False, "steps": trained.steps}
            if trained.untaken:
                say(
                    f"Training stopped after step {trained.steps:,} of {trained.counted:,}, because the held-out "
                    "score no longer improved. The guarantee counts all planned steps: the noisy model decided when "
                    "to stop."
                )
            if trained.out_of_budget:
                say(f"The budget allows no further step: training stopped after step {trained.steps}.")
            result: dict[str, Any] = {
                "out": str(out),
                "finished": True,
                **evaluate_utility(plan, secret, model, corpus, cache, options.watch, workspace / PUBLIC_START),
                **describe_guarantee(plan, trained, ledger),
                "seconds": time.monotonic() - start,
                "train_seconds": trained.seconds,
                "steps": trained.steps,
                **({"counted_steps": trained.counted} if trained.untaken else {}),
                "trained": request.model.train,
                **({} if private else {"rows": len(corpus.split("train")), "truncated": trained.truncated}),
                "device": str(device),
                "seed": request.seed,
            }
            if isinstance(plan.protect, RepresentationProtection):
                classifier = classifier_of(model, plan.protect.name)
                plan.protect.end(classifier)
                if isinstance(plan.protect, LocalLayer) and isinstance(request.protect, LocalPrivacy):
                    say(write_sides(workspace, classifier, plan.protect, request.protect))
            sentence, people = total()
    history = [entry for entry in trained.history if set(entry) > {"epoch", "step"}]
    # Only the owner sees how long private rows took: the folder of a protected run does not record it.
    omitted = {"seconds", "train_seconds"} if private else set()
    metrics = {key: value for key, value in result.items() if key not in omitted}
    settings = run_settings(replace(request, train=plan.settings), corpus)
    if canaries is not None:
        result["audit"] = {"canaries": request.audit, "kind": canary_kind(request, model)}
        metrics["audit"] = {**result["audit"], **write_audit(canaries, workspace, out)}
    finish(workspace, out, model, settings, {**metrics, "history": history}, trained.guarantee)
    # For the owner, not for release: no file of the run records other releases about the same people.
    return {**result, "people": {**people, "sentence": sentence}} if private else result


def with_canaries(planting: Planting, corpus: Corpus, out: Path, options: RunOptions) -> Corpus:
    """Return a corpus with planted canaries; their secrets are stored beside the run folder, or read from there.

    An unfinished run is resumed with the canaries that it started with.

    Guarantee: none, the secrets are meant to be recovered; the file is readable by its owner only.
    """
    path = canaries_path(out)
    if options.resume:
        return planted(corpus, read_canaries(path), spread=planting.spread)
    corpus, canaries = planting.plant(corpus)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_canaries(path, canaries)
    except OSError as error:
        raise cannot_write(path, error) from None
    options.say(f"The secrets of {len(canaries)} canaries are in {path}. Keep this file; do not release it.")
    return corpus


def canary_kind(request: RunRequest, model: TextModel) -> str:
    """Return the kind of canaries that an audited run plants."""
    by_default = GRADIENT if isinstance(request.protect, DPSGD) else TOKENS if model.task == LM else EXAMPLES
    kind = one_of("audit_canaries", request.audit_canaries or by_default, CANARY_KINDS)
    if kind != GRADIENT and (kind == TOKENS) is not (model.task == LM):
        remedy = "A language model has canaries of tokens, any other model canaries of examples."
        raise invalid("audit_canaries", kind, f"gradient or {TOKENS if model.task == LM else EXAMPLES}", remedy)
    return kind


def check_canaries(count: int, plan: TrainingPlan) -> None:
    """Reject an audit with too few canaries for the epsilon of the plan."""
    if plan.budget is not None:
        check_enough(count, plan.budget.epsilon)
    elif isinstance(plan.protect, GradientProtection) and plan.adjacency is not None and plan.delta is not None:
        stated = guarantee(plan.training_cost(), delta=plan.delta, adjacency=plan.adjacency)
        if stated.exists:
            check_enough(count, stated.epsilon)


def model_for(request: RunRequest, corpus: Corpus, device: torch.device, options: RunOptions) -> TextModel:
    """Return the model to train on its device, and report remarks about it to its owner."""
    task = LM if request.data.task == "unlabelled" else None
    rng = Rng(request.seed).fork("model")
    model = build_model(corpus, request.model, rng=rng, task=task, download=options.download).to(device)
    for remark in model.remarks:
        options.say(remark)
    unknown = unknown_words(unknown_share(model.tokenizer, corpus.texts), request.model.encoder)
    if unknown is not None:
        options.say(f"{PRIVATE_DETAIL}: " + unknown)
    return model


def make_plan(request: RunRequest, model: TextModel, corpus: Corpus, say: Callable[[str], None]) -> TrainingPlan:
    """Return the plan of a run, and report warnings to its owner before it begins."""
    _check_public(request)
    public = public_corpus(request.protect, corpus, request.data.columns, request.seed)
    if public is not None:
        for remark in public.remarks:
            say(f"Public text: {remark}.")
        if request.protect is not None and request.protect.starts_from_public:
            say(f"Training starts with {len(public):,} public texts, without noise.")
            shared = len(overlapping(public, corpus.split("train")))
            if shared:
                say(
                    f"{PRIVATE_DETAIL}: {shared:,} of the public texts occur in the training rows too. Noise does not "
                    "protect what is public: use other text, unless these really are."
                )
        elif request.model.frozen and len(public) > _MANY_TEXTS:
            say(f"Encoding {len(public):,} public texts: on a CPU about a minute for every 2,000 that are not cached.")
    plan = TrainingPlan.make(
        model,
        corpus,
        protect=request.protect,
        train=request.train,
        population=request.population,
        public=public,
        seed=request.seed,
        noise_seed=request.noise_seed,
        max_per_unit=request.data.max_per_unit,
    )
    warn_of_size(request, plan, corpus, say)
    warn_of_classes(plan, corpus, say)
    if plan.notice is not None:
        say(plan.notice)
    if plan.delta is not None and plan.delta > 1 / plan.units:
        say(
            Message(
                f"Warning: delta={plan.delta:g} is above 1/{plan.units}, one over the number of {plan.unit}s. Such a "
                f"guarantee allows one of them to be published in full. Use {setting('delta', 'auto')}."
            )
        )
    return plan


def _check_public(request: RunRequest) -> None:
    """Reject the private text itself as the public text that a model is trained on without noise."""
    protect = request.protect
    if protect is not None and protect.starts_from_public:
        check_other_text(protect.public, request.data.source, "public")


def check_other_text(public: str | None, source: str, name: str) -> None:
    """Reject the private text itself as the public text of a setting, which reads it without noise."""
    if public is None:
        return
    same = any(one.samefile(other) for one in files_of(public) for other in files_of(source))
    if public == source or same:
        remedy = "The private text would be used without noise; name other text, or leave it out."
        raise invalid(name, public, "other text than the private one", remedy)


@contextmanager
def shared_accounting(
    plan: TrainingPlan,
    model: TextModel,
    corpus: Corpus,
    path: Path | None,
    out: Path,
    options: RunOptions,
    planned: Spent | None = None,
) -> Iterator[tuple[Ledger | None, Callable[[], tuple[str, dict[str, Any]]]]]:
    """Count a run in a ledger of its own, at a path or in memory, and in a shared record.

    Yields the ledger, and a function that returns the total and ends the run; without a protection there is neither.
    """
    if plan.protect is None:
        yield None, lambda: ("", {})
        return
    with plan.open_ledger(path) as own:
        record = shared_record(plan, model, corpus.split("train"), own, out, options, planned)
        finished = False

        def total() -> tuple[str, dict[str, Any]]:
            nonlocal finished
            finished = True
            return record.summary()

        try:
            yield own, total
        finally:
            record.close(finished=finished)


def shared_record(
    plan: TrainingPlan,
    model: TextModel,
    split: Corpus,
    own: Ledger,
    out: Path,
    options: RunOptions,
    planned: Spent | None = None,
) -> Entry | Shared:
    """Return the record that counts a run besides its own ledger: the ledger in the options, or that of these people.

    A run that would exceed their budget is rejected here, before its first step. `planned` are its spends, by default
    those of the plan.
    """
    assert plan.protect is not None and plan.delta is not None
    planned = plan.spends(model, split, own) if planned is None else planned
    entry: Entry | Shared
    if options.ledger is not None:
        entry = Shared.open(options.ledger, own, plan.delta, planned, options.budget)
    else:
        secret = plan.noise_seed is None
        entry = entry_of(plan, split, own, out=out, secret=secret, planned=planned, budget=options.budget)
        before = entry.before()
        if before.releases or before.elsewhere:
            options.say("Before this training run. " + before.sentence())
        entry.check()
    own.also = entry
    return entry


def evaluate_utility(
    plan: TrainingPlan,
    secret: Rng | None,
    model: TextModel,
    corpus: Corpus,
    cache: Path | None,
    watch: Callable[[Report], None] | None = None,
    start: Path | None = None,
) -> dict[str, Any]:
    """Return the utility of a trained model and the split it was measured on; never training rows if protected.

    `start` is the file of the weights after public text, if the training started from any.
    """
    private = plan.protect is not None
    split = "validation" if "validation" in corpus.split_names else None if private else "train"
    if split is None:
        return {"utility": {}, "quality": None, "evaluated_on": None}
    held_out = plan.queries(matched(corpus.split(split), model), secret)
    rows = ready(model, held_out, cache, plan.settings.precision, encoding_watch(watch))
    averaged = averaged_utility(plan, secret, model, rows)
    quality, classes = assess_classes(model, rows)
    result: dict[str, Any] = {"utility": quality.metrics, "quality": quality.as_dict(), "evaluated_on": split}
    if classes:
        result["utility_by_class"] = classes
    if start is not None and start.exists():
        public: PublicRow | None = start_row(model, start, rows, plan.settings.precision)
    else:
        public = public_row(model.settings.encoder, matched(corpus, model), split, model.device)
    if public is not None:
        result["public"] = public.as_dict(quality.metrics)
    return {**result, "utility_averaged": averaged} if averaged else result


def averaged_utility(
    plan: TrainingPlan, secret: Rng | None, model: TextModel, rows: Tokens | Vectors
) -> dict[str, float]:
    """Return the utility of predictions averaged over a protection's views of a query; empty if it has one view."""
    if not isinstance(plan.protect, RepresentationProtection) or secret is None:
        return {}
    views = plan.protect.views(model.width, secret)
    return {} if views is None else evaluate(model, rows, query=views)


def warn_of_size(request: RunRequest, plan: TrainingPlan, corpus: Corpus, say: Callable[[str], None]) -> None:
    """Warn if the request exceeds the available rows, or will take very long."""
    available = len(corpus) if request.data.built_in else plan.rows  # for built-in text, rows includes held-out rows
    capped = request.data.max_per_unit is not None
    if request.data.rows is not None and request.data.rows > available and not capped:
        rows = setting("rows", request.data.rows)
        say(Message(f"Only {plan.rows:,} training rows are available; {rows} uses all of them."))
    if request.population is not None:
        units = corpus.split("train").unit_count
        if units > request.population or 2 * units < request.population:
            times = units / request.population
            warning = (
                f"{PRIVATE_DETAIL}: the training rows hold {units:,} {corpus.unit_name}s, and the population is "
                f"{request.population:,}. The guarantee holds; batches are {times:.2g} times as large as requested."
            )
            by_default = request.protect is not None and request.protect.delta is None
            if by_default and delta_for(request.population) > delta_for(units):
                warning += (
                    f" Warning: delta follows from the population and is too large for so many {corpus.unit_name}s; "
                    f"set a population of at least their number, or a smaller {setting('delta')}."
                )
            say(Message(warning))
    if plan.steps > _MANY_STEPS:
        say(
            Message(
                f"Warning: {plan.steps:,} steps will run; Ctrl-C stops after a step, and {setting('resume', True)} "
                "resumes."
            )
        )


def warn_of_classes(plan: TrainingPlan, corpus: Corpus, say: Callable[[str], None]) -> None:
    """Tell the owner how to name the classes, if they were read from private labels."""
    if Caveat.PRIVATE_CLASSES not in plan.caveats:
        return
    names = ",".join(corpus.label_names)
    example = setting("classes", names) if len(names) <= _LONGEST_NAMES else setting("classes")
    say(
        Message(
            f"{PRIVATE_DETAIL}: the names of the classes were read from the labels, and that a name exists may depend "
            f"on one {corpus.unit_name}, so the guarantee will be an estimate. If these names were known without the "
            f"data, set them: {example}."
        )
    )


def check_private_labels(request: RunRequest, corpus: Corpus) -> None:
    """Reject class names that are read from the data of a protected run and belong to a single unit.

    A single decimal point decides whether labels are classes or scores, so scores must be requested.

    Guarantee: none; see `check_shared_classes`.
    """
    if request.data.built_in:
        return
    if corpus.task == "regression" and request.data.task is None:
        raise DataError(
            f"Expected {setting('task', 'regression')} for a protected run with scores. One decimal point decides "
            "whether labels are classes or scores, and it may be one person's; set the task."
        )
    if request.data.label_names is None:
        check_shared_classes(corpus)


def check_validation(corpus: Corpus) -> None:
    """Reject validation rows of units that are trained on; utility figures are computed on them without noise."""
    if {"train", "validation"} <= set(corpus.split_names):
        check_held_out(corpus.split("train"), corpus.split("validation"))


def check_shared_classes(corpus: Corpus) -> None:
    """Reject a corpus whose class names come from its labels, if one of them belongs to a single unit.

    The names are written into the run folder, where such a name would reveal that unit to everybody.

    Guarantee: none: that a run was accepted still tells whoever knows all other units that the last one of a class has
        it. A plan therefore makes every figure an estimate if class names were read from the labels.
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
    count = len(corpus.label_names)
    single = [label for label in range(count) if len(holders.get(label, ())) < 2 and label not in held_out]
    if single:
        raise DataError(
            f"Expected at least 2 {corpus.unit_name}s in every class, got fewer in {len(single)} of {count} classes. "
            f"Class names are public, and such a name would reveal a single {corpus.unit_name}; set the names "
            f"({setting('classes')}), or merge the class with another."
        )


def describe_guarantee(plan: TrainingPlan, trained: Trained, ledger: Ledger | None) -> dict[str, Any]:
    """Return the guarantee of a run as plain values, and its epsilon under each adjacency."""
    if plan.protect is None or trained.guarantee is None or ledger is None or plan.delta is None:
        return {"guarantee": None}
    columns: dict[str, Any] = {}
    at_gradient = isinstance(plan.protect, GradientProtection)
    for adjacency in Adjacency:
        columns[adjacency.value] = None
        if not at_gradient and adjacency is not plan.protect.adjacency:
            continue  # each text or vector is visible, so absence is visible too
        if adjacency is Adjacency.ADD_REMOVE and plan.population is None:
            continue  # rate, divisor, delta and steps reveal the number of units
        try:
            stated = guarantee(ledger.event, delta=plan.delta, adjacency=adjacency, unit=trained.guarantee.unit)
            columns[adjacency.value] = stated.epsilon if stated.exists else None
        except UnsupportedError:
            continue
    result: dict[str, Any] = {
        "guarantee": {**trained.guarantee.as_dict(), "sentence": trained.guarantee.sentence()},
        "epsilon_by_adjacency": columns,
        "protection": plan.protect.facts(),
        "sampler": plan.sampler.facts if at_gradient else None,
        **({"units": plan.units} if plan.population is None else {"population": plan.population}),
        "out_of_budget": trained.out_of_budget,
    }
    if isinstance(plan.protect, DirDPSGD):
        result["metric_epsilon_per_use"] = plan.protect.kappa
        result["pure_epsilon"] = plan.protect.pure_epsilon(trained.counted)
        result["dimension"] = plan.protect.dimension
    return result


def run_settings(choices: RunChoices, corpus: Corpus) -> RunSettings:
    """Return the settings for a run folder; they contain no text."""
    pairs = corpus.second is not None
    shared = {field.name: getattr(choices, field.name) for field in fields(RunChoices)}
    shared["data"] = choices.data if pairs else replace(choices.data, text_pair=None)
    task = LM if choices.data.task == "unlabelled" else corpus.task
    return RunSettings(**shared, task=task, label_names=corpus.label_names, pairs=pairs)
