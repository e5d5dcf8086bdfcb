"""Train once: build the model, plan, train, evaluate, describe and write the run. The only way to a trained model.

The command line, `TextClassifier`, a search for settings, the trials of a study and the reference models of an attack
call `train_once`; each adds what it does with the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from discreet.accounting.interpret import guarantee_of
from discreet.accounting.ledger import Ledger
from discreet.audit.canaries import EXAMPLES, GRADIENT, TOKENS, GradientCanaries, TextCanaries, plant_texts
from discreet.audit.canaries import KINDS as CANARY_KINDS
from discreet.audit.canaries import write as write_audit
from discreet.audit.one_run import check_enough
from discreet.audit.watch import Watch
from discreet.core.device import find_device
from discreet.core.errors import Message, UnsupportedError, invalid, one_of, setting, whole
from discreet.core.files import cannot_write
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.data.canaries import Canary, Planting, canaries_path, planted, read_canaries, write_canaries
from discreet.data.corpus import PRIVATE_DETAIL, Corpus, overlapping
from discreet.data.sources import TextSource
from discreet.local.sides import write_sides
from discreet.models.base import TextModel
from discreet.models.build import build_model, cache_folder, cached, matched, ready
from discreet.models.classifier import ModelSettings, classifier_of
from discreet.models.encoder import unknown_share, unknown_words
from discreet.protections.base import Protection
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.checkpoint import LEDGER, PUBLIC_START
from discreet.runs.folder import RunChoices, RunSettings, check_kind, finish, prepared, workspace_of
from discreet.runs.people import Entry, Shared, Spent
from discreet.training.account import entry_of
from discreet.training.evaluation import Assessment, assess, evaluate
from discreet.training.loop import Job, Trained, train
from discreet.training.plan import (
    PrivatePlan,
    PublicRow,
    TrainingPlan,
    check_private_labels,
    check_public,
    check_validation,
    model_settings,
    public_corpus,
    public_row,
    start_row,
    warn_of_classes,
    warn_of_size,
)
from discreet.training.steps import Report, encoding_watch

if TYPE_CHECKING:
    import torch

    from discreet.data.batches import Tokens, Vectors

_MANY_TEXTS = 500  # public texts whose encoding takes noticeable time


@dataclass(frozen=True)
class RunRequest(RunChoices):
    """The choices of a training run.

    Args:
        data: Where the text comes from.
        model: The model, and which of its layers are trained.
        training: The settings of the training loop; the plan chooses those that are left open.
        protect: The protection, or None for a run without a guarantee.
        seed: Seed of everything that is not noise.
        population: A public number of units in place of the actual one; the guarantee is then add/remove.
        canaries: Made-up secrets to plant in the training text, to measure memorization.
        noise_seed: Makes batches and noise repeatable, and the guarantee an estimate. It is never written into the
            folder.
        audit: The number of canaries to plant for an audit, each with probability one half.
        audit_canaries: Their kind (`discreet.audit.canaries`); by default gradient with dp-sgd, else those of the
            model's task.

    >>> from discreet.models.settings import TrainSettings
    >>> RunRequest(TextSource("notes"), ModelSettings(train="head"), TrainSettings(), DPSGD(epsilon=3)).protect.epsilon
    3
    """

    noise_seed: int | None = None
    audit: int | None = None
    audit_canaries: str | None = None

    searches: ClassVar[bool] = False  # whether it searches for settings

    @classmethod
    def of(cls, choices: RunChoices, **changes: Any) -> RunRequest:
        """Return the request that repeats the choices of a run, with some changed."""
        shared = {field.name: getattr(choices, field.name) for field in fields(RunChoices)}
        return cls(**{**shared, **changes})

    def check(self) -> None:
        """Reject choices that do not fit each other, before the text is read."""
        if self.audit is not None:
            whole("audit", self.audit)

    def work(self, model: TextModel, corpus: Corpus, say: Callable[[str], None]) -> Work:
        """Return what the run executes; warnings go to its owner."""
        return Work(make_plan(self, model, corpus, say))


@dataclass(frozen=True)
class RunOptions:
    """Options of a training run that do not change the model.

    Args:
        device: cpu, cuda or auto.
        resume: Resume an unfinished run of the same request.
        checkpoint_seconds: Time between two checkpoints.
        download: Download the encoder if this machine does not have it.
        cache: Keep the outputs of a frozen encoder for the next run; by default unless the run is protected.
        ledger: A ledger file that the run is also counted in, in place of this machine's record of the same people
            (`discreet.runs.people`).
        budget: A run that would exceed this epsilon in the ledger or record is rejected before its first step.
        evaluated: Evaluate the model on held-out rows.
        released: False for a model that stays with the data holder, as the trials of a study and the reference models
            of an attack: it is not recorded, and keeps the secrets that its protection trained with.
        kept_at: Where the record lists a run that has no folder.
        encoded: The outputs of a frozen encoder for the train split, if they were computed before.
        watch: Called with the progress of the training.
        say: Called with each remark and warning, a sentence.
        say_again: Called with what the same people spent before; by default it is `say`.
        should_stop: Called after each step; if it returns True, the run stops and can be resumed.

    >>> RunOptions(resume=True).device
    'auto'
    """

    device: str = "auto"
    resume: bool = False
    checkpoint_seconds: float = 30.0
    download: bool = False
    cache: bool | None = None
    ledger: Path | None = None
    budget: float | None = None
    evaluated: bool = True
    released: bool = True
    kept_at: str | None = None
    encoded: Tokens | Vectors | None = None
    watch: Callable[[Report], None] = lambda report: None
    say: Callable[[str], None] = lambda text: None
    say_again: Callable[[str], None] | None = None
    should_stop: Callable[[], bool] = lambda: False


@dataclass
class Work:
    """What a run executes: one training by a plan, or a search for settings that ends in one trained model.

    `plan` has the ledger, the budget and the secret of all of it; `planned` are its spends, if they are not those of
    the plan.
    """

    plan: TrainingPlan
    planned: Spent | None = None

    @property
    def trained_plan(self) -> TrainingPlan:
        """The plan of the trained model, once it is executed."""
        return self.plan

    def execute(self, model: TextModel, corpus: Corpus, ledger: Ledger | None, secret: Rng | None, job: Job) -> Trained:
        """Train the model in place; what is spent is in the ledger before its noise is used."""
        return train(model, corpus, self.plan, ledger=ledger, secret=secret, job=job)

    def protection(self, request: RunRequest) -> Protection | None:
        """Return the protection as the settings of the run record it."""
        return request.protect

    def facts(self, model: TextModel) -> dict[str, Any]:
        """Return what may be released about the run besides its model."""
        return {}


@dataclass(frozen=True)
class Evaluation:
    """How good a trained model is on a split: never on training rows if it is protected.

    `public` is what public data alone reaches there, and `averaged` the utility of predictions that are averaged over a
    protection's views of a query.
    """

    split: str
    assessment: Assessment
    public: PublicRow | None = None
    averaged: Mapping[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        metrics = self.assessment.quality.metrics
        return {
            **self.assessment.values(self.split),
            **({} if self.public is None else {"public": self.public.as_dict(metrics)}),
            **({"utility_averaged": dict(self.averaged)} if self.averaged else {}),
        }


_NOT_EVALUATED: dict[str, Any] = {"utility": {}, "quality": None, "evaluated_on": None}


@dataclass(frozen=True)
class TrainedRun:
    """A model that was trained once, and everything that was decided and found out about it.

    Args:
        request: What was asked for.
        corpus: The text that was trained on.
        model: The trained model.
        plan: The plan of the model.
        trained: How the training ended.
        out: The folder of the run, if it has one.
        evaluation: How good the model is on held-out rows, if there are any.
        privacy: What the run cost and guarantees, as plain values.
        about: Further plain values that may be released.
        people: The total of the people in the data over all their releases, for the owner alone.
        ledger: The content of the ledger, if the run has no folder.
        secret: Where batches and noise came from: it stays with the data holder.
        canaries: The secrets that were planted.
        seconds: How long the run took.

    Guarantee: `guarantee`, that of the protection for the units of the train split; None without a protection, and
        before the run is finished.

    ```python
    run = train_once(request)
    run.model, run.utility, run.guarantee
    ```
    """

    request: RunRequest
    corpus: Corpus = field(repr=False)
    model: TextModel = field(repr=False)
    plan: TrainingPlan
    trained: Trained
    out: Path | None = None
    evaluation: Evaluation | None = None
    privacy: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    people: Mapping[str, Any] | None = field(default=None, repr=False)
    ledger: bytes | None = field(default=None, repr=False)
    secret: Rng | None = field(default=None, repr=False)
    canaries: tuple[Canary, ...] = field(default=(), repr=False)
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return self.trained.finished

    @property
    def guarantee(self) -> Guarantee | None:
        """What the protection guarantees."""
        return self.trained.guarantee

    @property
    def utility(self) -> dict[str, float]:
        """The metrics of the model; empty if no rows were held out."""
        return {} if self.evaluation is None else self.evaluation.assessment.quality.metrics

    @property
    def is_private(self) -> bool:
        """Whether it was trained under a protection."""
        return isinstance(self.plan, PrivatePlan)

    @property
    def settings(self) -> RunSettings:
        """The settings of a run folder; they contain no text."""
        shared = {one.name: getattr(self.request, one.name) for one in fields(RunChoices)}
        if not self.corpus.is_pairs:
            shared["data"] = replace(self.request.data, text_pair=None)
        task = self.request.data.task_of(self.corpus)
        names = self.corpus.label_names
        return RunSettings(
            **{**shared, "training": self.plan.settings}, task=task, classes=names, pairs=self.corpus.is_pairs
        )

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON, for the owner of the data."""
        place = {} if self.out is None else {"out": str(self.out)}
        if not self.finished:
            return {**place, "finished": False, "steps": self.trained.steps}
        rows = {"rows": len(self.corpus.split("train")), "truncated": self.trained.truncated}
        values = {
            **place,
            "finished": True,
            **(_NOT_EVALUATED if self.evaluation is None and place else {}),
            **({} if self.evaluation is None else self.evaluation.values()),
            **self.privacy,
            **self.about,
            "seconds": self.seconds,
            **({} if self.request.searches else {"train_seconds": self.trained.seconds}),
            "steps": self.trained.steps,
            **({"counted_steps": self.trained.counted} if self.trained.untaken else {}),
            "trained": self.request.model.train,
            **({} if self.is_private else rows),
            "device": str(self.model.device),
            "seed": self.request.seed,
        }
        # For the owner, not for release: no file of the run records other releases about the same people.
        return values if self.people is None else {**values, "people": dict(self.people)}

    def recorded(self) -> dict[str, Any]:
        """Return what the run folder records: all values that may be released with the model.

        Only the owner sees how long private rows took, or how many trials there were.
        """
        omitted = {"people", "seconds", "train_seconds"} if self.is_private else {"people"}
        return {key: value for key, value in self.values().items() if key not in omitted}


def load_corpus(data: TextSource, population: int | None = None) -> Corpus:
    """Return the corpus of a run; with a population, its rows are selected for add/remove adjacency.

    Args:
        data: Where the text comes from.
        population: A public number of units, if the guarantee is add/remove.
    """
    return data.load(Adjacency.ZERO_OUT if population is None else Adjacency.ADD_REMOVE)


def choose_model(
    chosen: Mapping[str, Any],
    protect: Protection | None,
    data: TextSource,
    corpus: Corpus,
    population: int | None = None,
) -> ModelSettings:
    """Return the settings of the model for a text, with the defaults of its task and protection for the others.

    Args:
        chosen: Settings of the model that were chosen, by name.
        protect: The protection of the training.
        data: Where the text comes from.
        corpus: The text.
        population: A public number of units in place of the actual one.
    """
    units = population or (corpus.split("train").unit_count if "train" in corpus.split_names else 1)
    return model_settings(chosen, protect, units, data.task_of(corpus), pairs=corpus.is_pairs)


def train_once(
    request: RunRequest,
    out: Path | str | None = None,
    *,
    corpus: Corpus | None = None,
    model: TextModel | None = None,
    plan: TrainingPlan | None = None,
    options: RunOptions | None = None,
) -> TrainedRun:
    """Train a model as requested, evaluate it, and write its run folder if `out` names one.

    Args:
        request: What is trained on what, and under which protection.
        out: A new folder for the run; without it the result is kept in memory.
        corpus: The text, if it was read before.
        model: A model with its first weights, if it was made before.
        plan: The plan of the training, if it was made before.
        options: Options that do not change the model. With `resume` and the other arguments as before, a stopped run
            resumes.

    Guarantee: that of the protection, in the result; none without a protection.

    ```python
    request = RunRequest(TextSource("notes"), ModelSettings(train="head"), TrainSettings(), DPSGD(epsilon=3))
    run = train_once(request, "runs/notes")
    print(run.utility, run.guarantee)
    ```
    """
    start, options = time.monotonic(), options or RunOptions()
    out = None if out is None else Path(out)
    say, released = options.say, options.released
    if out is not None and not released:
        remedy = "A run folder is for release, and its training is checked and recorded as such."
        raise invalid("out", str(out), f"left out with {setting('released', False)}", remedy)
    request.check()
    if plan is not None:
        check_plan(plan, request.protect)
    corpus = corpus or load_corpus(request.data, request.population)
    for remark in corpus.remarks:
        say(remark)
    if request.protect is not None and released:
        check_private_labels(request, corpus)
        check_validation(corpus)
    workspace = None if out is None else workspace_of(out, resume=options.resume)
    if workspace is not None:
        check_kind(workspace, search=request.searches)
    hidden: tuple[Canary, ...] = ()
    if request.canaries is not None:
        corpus, hidden = with_canaries(request.canaries, corpus, out, options)
    rng = Rng(request.seed)
    model = model or model_for(request, corpus, find_device(options.device), options)
    cache = cache_folder() if (request.protect is None if options.cache is None else options.cache) else None
    audited: GradientCanaries | TextCanaries | None = None
    texts: TextCanaries | None = None
    if request.audit is not None and canary_kind(request, model) != GRADIENT:
        adjacency = None if request.protect is None else request.protect.adjacency_for(request.population)
        corpus, texts = plant_texts(corpus, request.audit, adjacency, rng.fork("audit"), model)
    with nullcontext() if workspace is None else prepared(workspace):
        work = request.work(model, corpus, say) if plan is None else Work(plan)
        if request.audit is not None:
            audited = audit_canaries(request, model, work.plan, texts, rng)
            say(f"Audit: {request.audit:,} canaries ({canary_kind(request, model)}), each included by a coin.")
        secret = work.plan.secret(workspace) if isinstance(work.plan, PrivatePlan) else None
        path = None if workspace is None else workspace / LEDGER
        with shared_accounting(work.plan, model, corpus, path, out, options, work.planned) as (ledger, total):
            job = Job(
                workspace,
                cache,
                options.checkpoint_seconds,
                options.watch,
                options.should_stop,
                encoded=options.encoded,
                canaries=audited,
                recorded=released,
            )
            trained = work.execute(model, corpus, ledger, secret, job)
            if cache is not None and model.settings.frozen:
                say(cached().sentence())
            if trained.truncated:
                rows = len(corpus.split("train"))
                say(f"{trained.truncated} of {rows} texts were truncated to {model.max_length} tokens.")
            if not trained.finished:
                return TrainedRun(request, corpus, model, work.plan, trained, out)
            for sentence in _how_it_ended(trained):
                say(sentence)
            planned = work.trained_plan
            evaluation = evaluate_run(planned, secret, model, corpus, cache, options, workspace)
            privacy = describe_guarantee(planned, trained)
            if planned.protect is not None and released:
                planned.protect.end(model)
                asked = request.protect
                if workspace is not None and asked is not None and asked.has_sides:
                    say(write_sides(workspace, classifier_of(model, asked.name), planned.protect, asked))
            people = total()
            content = ledger.content if ledger is not None and workspace is None else None
    about = work.facts(model)
    if audited is not None:
        about["audit"] = {"canaries": request.audit, "kind": canary_kind(request, model)}
    run = TrainedRun(
        replace(request, protect=work.protection(request)),
        corpus,
        model.eval(),
        planned,
        trained,
        out,
        evaluation,
        privacy,
        about,
        people,
        content,
        secret,
        hidden,
        time.monotonic() - start,
    )
    if workspace is not None and out is not None:
        history = [entry for entry in trained.history if set(entry) > {"epoch", "step"}]
        recorded = {**run.recorded(), "history": history}
        if audited is not None:
            recorded["audit"] = {**recorded["audit"], **write_audit(audited, workspace, out)}
        finish(workspace, out, model, run.settings, recorded, trained.guarantee)
    return run


def check_plan(plan: TrainingPlan, protect: Protection | None) -> None:
    """Reject a plan that was made for another protection than the one that is requested and recorded."""
    made, same = plan.protect, type(plan.protect) is type(protect)
    if same and made is not None and protect is not None:
        budget, resolved = protect.epsilon if protect.limits else None, made.as_table()
        # The plan has the budget, and a resolved protection values for what was not chosen.
        same = budget == (None if plan.budget is None else plan.budget.epsilon) and all(
            resolved.get(name, value) == value for name, value in protect.as_table().items()
        )
    if not same:
        remedy = "Make the plan from the request, or leave it out."
        raise invalid("plan", made, f"a plan of the requested protection, {protect}", remedy)


def _how_it_ended(trained: Trained) -> Iterator[str]:
    """Yield sentences for the owner if training took fewer steps than planned."""
    if trained.untaken:
        yield (
            f"Training stopped after step {trained.steps:,} of {trained.counted:,}, because the held-out score no "
            "longer improved. The guarantee counts all planned steps: the noisy model decided when to stop."
        )
    if trained.out_of_budget:
        yield f"The budget allows no further step: training stopped after step {trained.steps}."


def with_canaries(
    planting: Planting, corpus: Corpus, out: Path | None, options: RunOptions
) -> tuple[Corpus, tuple[Canary, ...]]:
    """Return a corpus with planted canaries, and these; their secrets are stored beside the run folder, or read there.

    An unfinished run is resumed with the canaries that it started with. Without a folder nothing is stored.

    Guarantee: none, the secrets are meant to be recovered; the file is readable by its owner only.
    """
    if out is None:
        return planting.plant(corpus)
    path = canaries_path(out)
    if options.resume:
        canaries = read_canaries(path)
        return planted(corpus, canaries, spread=planting.spread), canaries
    corpus, canaries = planting.plant(corpus)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_canaries(path, canaries)
    except OSError as error:
        raise cannot_write(path, error) from None
    options.say(f"The secrets of {len(canaries)} canaries are in {path}. Keep this file; do not release it.")
    return corpus, canaries


def canary_kind(request: RunRequest, model: TextModel) -> str:
    """Return the kind of canaries that an audited run plants."""
    by_default = GRADIENT if isinstance(request.protect, DPSGD) else TOKENS if model.task.is_language else EXAMPLES
    kind = one_of("audit_canaries", request.audit_canaries or by_default, CANARY_KINDS)
    if kind != GRADIENT and (kind == TOKENS) is not model.task.is_language:
        remedy = "A language model has canaries of tokens, any other model canaries of examples."
        raise invalid("audit_canaries", kind, f"gradient or {TOKENS if model.task.is_language else EXAMPLES}", remedy)
    return kind


def check_canaries(count: int, plan: TrainingPlan) -> None:
    """Reject an audit with too few canaries for the epsilon of the plan."""
    if plan.budget is not None:
        check_enough(count, plan.budget.epsilon)
    elif isinstance(plan, PrivatePlan) and plan.protect.samples_units:
        stated = guarantee_of(plan.training_cost(), delta=plan.delta, adjacency=plan.adjacency)
        if stated.exists:
            check_enough(count, stated.epsilon)


def audit_canaries(
    request: RunRequest,
    model: TextModel,
    plan: TrainingPlan,
    texts: TextCanaries | None,
    rng: Rng,
) -> GradientCanaries | TextCanaries:
    """Return the canaries of an audited run, with what watches its private steps; `texts` are those in the corpus."""
    assert request.audit is not None
    check_canaries(request.audit, plan)
    canaries = texts or GradientCanaries.of(request.audit, plan, rng.fork("audit"))
    if canaries.watching is None and plan.protect is not None and plan.protect.samples_units:
        canaries.watching = Watch(plan)
    return canaries


def model_for(request: RunRequest, corpus: Corpus, device: torch.device, options: RunOptions) -> TextModel:
    """Return the model to train on its device, and report remarks about it to its owner."""
    task, rng = request.data.task_of(corpus), Rng(request.seed).fork("model")
    model = build_model(corpus, request.model, rng=rng, task=task, download=options.download).to(device)
    for remark in model.remarks:
        options.say(remark)
    if not options.released:
        return model
    unknown = unknown_words(unknown_share(model.tokenizer, corpus.texts), request.model.encoder)
    if unknown is not None:
        options.say(f"{PRIVATE_DETAIL}: " + unknown)
    return model


def make_plan(
    request: RunRequest, model: TextModel, corpus: Corpus, say: Callable[[str], None] = lambda text: None
) -> TrainingPlan:
    """Return the plan of a run, and report warnings to its owner before it begins."""
    check_public(request)
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
        training=request.training,
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


@contextmanager
def shared_accounting(
    plan: TrainingPlan,
    model: TextModel,
    corpus: Corpus,
    path: Path | None,
    out: Path | None,
    options: RunOptions,
    planned: Spent | None = None,
) -> Iterator[tuple[Ledger | None, Callable[[], dict[str, Any] | None]]]:
    """Count a run in a ledger of its own, at a path or in memory, and in a shared record.

    Yields the ledger, and a function that ends the run and returns its people's total; without a protection there is
    neither, and a model that is not released has no total.
    """
    if not isinstance(plan, PrivatePlan):
        yield None, lambda: None
        return
    with plan.open_ledger(path) as own:
        if not options.released:
            yield own, lambda: None
            return
        record = shared_record(plan, model, corpus.split("train"), own, out, options, planned)
        finished = False

        def total() -> dict[str, Any]:
            nonlocal finished
            finished = True
            sentence, people = record.summary()
            return {**people, "sentence": sentence}

        try:
            yield own, total
        finally:
            record.close(finished=finished)


def shared_record(
    plan: PrivatePlan,
    model: TextModel,
    split: Corpus,
    own: Ledger,
    out: Path | None,
    options: RunOptions,
    planned: Spent | None = None,
) -> Entry | Shared:
    """Return the record that counts a run besides its own ledger: the ledger in the options, or that of these people.

    A run that would exceed their budget is rejected here, before its first step. `planned` are its spends, by default
    those of the plan.
    """
    planned = plan.spends(model, split, own) if planned is None else planned
    entry: Entry | Shared
    if options.ledger is not None:
        entry = Shared.open(options.ledger, own, plan.delta, planned, options.budget)
    else:
        secret = plan.noise_seed is None
        place = out if options.kept_at is None else Path(options.kept_at)
        entry = entry_of(plan, split, own, out=place, secret=secret, planned=planned, budget=options.budget)
        before = entry.before()
        if before.releases or before.elsewhere:
            (options.say_again or options.say)("Before this training run. " + before.sentence())
        entry.check()
    own.also = entry
    return entry


def evaluate_run(
    plan: TrainingPlan,
    secret: Rng | None,
    model: TextModel,
    corpus: Corpus,
    cache: Path | None,
    options: RunOptions,
    workspace: Path | None,
) -> Evaluation | None:
    """Return how good a trained model is; never on training rows if protected, and None without rows to evaluate on."""
    split = "validation" if "validation" in corpus.split_names else None if plan.protect is not None else "train"
    if split is None or not options.evaluated:
        return None
    held_out = plan.queries(matched(corpus.split(split), model), secret)
    rows = ready(model, held_out, cache, plan.settings.precision, encoding_watch(options.watch))
    if not options.released:
        return Evaluation(split, assess(model, rows))
    averaged = averaged_utility(plan, secret, model, rows)
    assessment = assess(model, rows)
    start = None if workspace is None else workspace / PUBLIC_START  # the weights after public text, if there are any
    public: PublicRow | None
    if start is not None and start.exists():
        public = start_row(model, start, rows, plan.settings.precision)
    else:
        public = public_row(model.settings.encoder, matched(corpus, model), split, model.device)
    return Evaluation(split, assessment, public, averaged)


def averaged_utility(
    plan: TrainingPlan, secret: Rng | None, model: TextModel, rows: Tokens | Vectors
) -> dict[str, float]:
    """Return the utility of predictions averaged over a protection's views of a query; empty if it has one view."""
    if plan.protect is None or secret is None:
        return {}
    views = plan.protect.views(model.width, secret)
    return {} if views is None else evaluate(model, rows, query=views)


def describe_guarantee(plan: TrainingPlan, trained: Trained) -> dict[str, Any]:
    """Return the guarantee of a run as plain values, and its epsilon under each adjacency."""
    if not isinstance(plan, PrivatePlan) or trained.guarantee is None or trained.event is None:
        return {"guarantee": None}
    columns: dict[str, Any] = {}
    at_gradient = plan.protect.samples_units
    for adjacency in Adjacency:
        columns[adjacency.value] = None
        if not at_gradient and adjacency is not plan.protect.adjacency:
            continue  # each text or vector is visible, so absence is visible too
        if adjacency is Adjacency.ADD_REMOVE and plan.population is None:
            continue  # rate, divisor, delta and steps reveal the number of units
        try:
            stated = guarantee_of(trained.event, delta=plan.delta, adjacency=adjacency, unit=trained.guarantee.unit)
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
    return result | plan.protect.figures(trained.counted)
