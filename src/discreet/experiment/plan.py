"""What a training run is asked to do, and its private side once corpus and model are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from discreet.core.checks import refuse
from discreet.core.errors import DataError
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.samplers import Shuffled
from discreet.data.sources import BUILT_IN, Columns, load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.representation import at_text, at_vectors, place_of
from discreet.protections.settings import Conditions, ProtectSettings
from discreet.training.defaults import Defaults
from discreet.training.encode import cache_folder, encode
from discreet.training.run_folder import secret_of
from discreet.training.settings import TrainSettings

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.accounting.ledger import Ledger
    from discreet.data.corpus import Corpus, Task
    from discreet.data.samplers import Sampler
    from discreet.protections.gradient import GradientProtection
    from discreet.training.loop import Protection
    from discreet.training.people import Entry, Shared

_MANY = 500  # public texts whose encoding takes long enough to say so


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
    share: float | None = None
    population: int | None = None
    label_names: tuple[str, ...] | None = None
    noise_seed: int | None = None
    validation: str | None = None
    task: Task | None = None

    @property
    def adjacency(self) -> Adjacency:
        """The one that rows are selected for: with a population it is hidden who is absent."""
        return Adjacency.ZERO_OUT if self.population is None else Adjacency.ADD_REMOVE

    def size_of(self, corpus: Corpus) -> int:
        """Return the number of units that is public: the population, or the number in the train split."""
        return corpus.split("train").unit_count if self.population is None else self.population

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
    units: int  # the public number of them: their own, or the population
    public: Corpus | None = None
    population: int | None = None


def plan_for(
    request: RunRequest, model: Classifier, corpus: Corpus, workspace: Path, say: Callable[[str], None]
) -> Plan:
    """Return the protection with its noise solved, its sampler, and its ledger opened in the workspace."""
    from discreet.accounting.ledger import Budget, Ledger
    from discreet.training.checkpoint import LEDGER
    from discreet.training.private import adjacency_of, delta_for, sampler_for

    asked = request.protect
    assert asked is not None
    train_split = corpus.split("train")
    units = request.size_of(corpus)
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
        adjacency=adjacency_of(protect, request.population),
        budget=Budget(asked.epsilon, delta) if limited and asked.epsilon is not None else None,
    )
    return Plan(protect, sampler, ledger, secret, delta, units, public, request.population)


def refuse_private_labels(request: RunRequest, corpus: Corpus) -> None:
    """Refuse to find in the data what will be written into a protected run and would rest on one unit alone.

    The names of the classes are found in the labels. Where every class is held by two training units, or by held-out
    rows, which are not protected, another unit in place of one finds the same names, or is refused here. Whether labels
    are classes or scores rests on a single decimal point, so that scores must be asked for.

    Guarantee: of two neighbouring corpora that are not refused, both have the same names.
    """
    if request.source in BUILT_IN:
        return
    if corpus.task == "regression" and request.task is None:
        raise DataError(
            "Expected --task regression for a protected run with scores. One decimal point decides whether labels are "
            "classes or scores, and may be one person's; say which."
        )
    if corpus.labels is None or request.label_names is not None:
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
            "of a single one; give the names with --classes A,B,C, or merge the class with another."
        )


def planned_spends(plan: Plan, request: RunRequest, model: Classifier, split: Corpus) -> dict[str, int]:
    """Return how often a run would spend each event, at most; nothing where the one release decides its own cost."""
    from discreet.accounting.event_json import event_to_json
    from discreet.training.hidden import sampler_of
    from discreet.training.private import step_cost

    protect, epochs = plan.protect, request.train.epochs
    if at_text(protect):
        return {event_to_json(protect.cost(split)): 1}
    if at_vectors(protect):
        if protect.stored:
            return {}
        rows = len(split)
        live = protect.live(rows, model.width, model.classes, Rng.secret(), model.device)
        per_epoch = sampler_of(protect, min(request.train.batch_size, rows), rows).steps_per_epoch(rows)
        names = {}
        for step in range(max(1, round(epochs * per_epoch))):
            event, name = live.cost(step, step // per_epoch)
            names[name] = event_to_json(event)
        return dict(Counter(names.values()))
    sampler, gradient = plan.sampler, cast("GradientProtection", protect)
    assert sampler is not None
    steps = max(1, round(epochs * sampler.steps_per_epoch(plan.units)))
    event, _ = step_cost(gradient, sampler, 0, plan.units)
    if isinstance(sampler, Shuffled):
        steps = -(-steps // sampler.steps_per_epoch(plan.units))
    if plan.ledger.budget is not None:
        steps = min(steps, plan.ledger.statement.spends + plan.ledger.remaining(event))
    return {event_to_json(event): steps}


def counted_for(
    plan: Plan,
    request: RunRequest,
    model: Classifier,
    split: Corpus,
    out: Path,
    *,
    ledger: Path | None,
    budget: float | None,
    say: Callable[[str], None],
) -> Entry | Shared:
    """Return what counts a run beside its own ledger: a ledger that was named, or the record of these people.

    A run that would take them beyond the budget is rejected here, before its first step.
    """
    from discreet.training.people import FIXED_SEED, TRAINING, Entry, People, Shared

    planned = planned_spends(plan, request, model, split)
    found: Entry | Shared
    if ledger is not None:
        found = Shared.open(ledger, plan.ledger, plan.delta, planned, budget)
    else:
        fixed = request.noise_seed is not None
        found = Entry.of(
            People(), split, plan.ledger, kind=FIXED_SEED if fixed else TRAINING, delta=plan.delta, out=out,
            protection=plan.protect.name, planned=planned, budget=budget,
        )  # fmt: skip
        before = found.before()
        if before.releases or before.elsewhere:
            say(f"Before this training. {before.sentence()}")
        found.check()
    plan.ledger.also = found
    return found


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
    public = public_text(source, columns, request.seed)
    promised = getattr(request.protect, "epsilon", None) is not None
    rows = [row for row, name in enumerate(private.splits) if name != "train" or not promised]
    if rows:
        public = without_overlap(public, private.take(rows))
    for remark in public.remarks:
        say(f"Public text: {remark}.")
    if request.model.frozen and len(public) > _MANY:
        say(f"Encoding {len(public):,} public texts: on a CPU a minute or so for every 2,000 not yet kept.")
    return public


def public_text(source: str, columns: Columns, seed: int = 0) -> Corpus:
    """Return public text: built in, or in columns named as the private ones, with labels where they can be read.

    Few uses need its labels, and those say what is missing; partners in a mixture, and principal axes, need none.
    """
    if source in BUILT_IN:
        return load(source, seed=seed, validation=0)
    columns = replace(columns, unit=None)
    try:
        return load(source, columns, seed=seed, validation=0)
    except DataError:
        return load(source, replace(columns, label=None), seed=seed, validation=0)


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
