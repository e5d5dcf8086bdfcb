"""The plan of a training run: everything it needs and costs, decided once before the first step.

Defaults, sampler, delta, steps, the budget of the ledger, and whether randomness is secret or fixed are chosen here. A
plan is a printable value: it never holds a secret or an open ledger.

The public text that a protection mixes with, learns from or starts from is read here, and so are the checks before a
training run and what its owner is warned of.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from discreet.accounting.ledger import Budget, Ledger
from discreet.core.errors import (
    DataError,
    Message,
    UnsupportedError,
    invalid,
    open_probability,
    positive,
    setting,
    whole,
)
from discreet.core.files import load_tensors
from discreet.core.guarantee import Adjacency, Caveat, delta_for
from discreet.core.randomness import Rng
from discreet.core.task import Task
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import PRIVATE_DETAIL, Corpus, check_held_out, without_overlap
from discreet.data.samplers import Sampler, Shuffled
from discreet.data.sources import EACH_ROW, Columns, files_of, load, names_corpus
from discreet.metrics.utility import is_better
from discreet.models.base import TextModel
from discreet.models.build import build_classifier, matched_split
from discreet.models.classifier import Classifier, ModelSettings, classifier_of
from discreet.models.encoder import BILSTM, MINILM
from discreet.models.pairs import THRESHOLD
from discreet.models.settings import JOINT, SEPARATE, TrainSettings
from discreet.models.smollm2 import SMOLLM2
from discreet.protections.base import (
    FEW_UNITS,
    Conditions,
    GradientProtection,
    Protection,
    check_protection,
    defaults_of,
    most_rows,
    plain_defaults,
    protection_of_gradients,
    trust_in,
)
from discreet.runs.folder import RunChoices
from discreet.training.evaluation import evaluate

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from torch import Tensor, nn

    from discreet.data.corpus import Corpus


def public_text(
    source: str, columns: Columns, seed: int = 0, *, scores: bool = False, labelled: bool = False
) -> Corpus:
    """Return public text: a built-in corpus, or a file with the column names of the private one.

    Its labels are left out if they cannot be read, unless `labelled`: training needs them, and projections by label
    report missing ones; mixtures and principal axes need none. `scores` reads labels as numbers, also where all of them
    are integers.
    """
    if names_corpus(source):
        return load(source, seed=seed, validation=0)
    columns = replace(columns, unit=EACH_ROW)
    try:
        return load(source, columns, seed=seed, validation=0, task="regression" if scores else None)
    except DataError:
        if labelled:
            raise
        return load(source, replace(columns, label=None), seed=seed, validation=0)


def public_corpus(protect: Protection | None, private: Corpus, columns: Columns, seed: int = 0) -> Corpus | None:
    """Return the public corpus that a protection needs, without texts that occur in held-out text.

    What is learned from it is published, so it must not depend on which of its texts are in the train split: removing
    those would reveal them to anyone who has the public corpus. If nothing is guaranteed, they are removed too. All
    splits of a public folder are used.
    """
    if protect is None or protect.public is None:
        return None
    columns = columns if private.is_pairs else replace(columns, text_pair=None)
    labelled = protect.starts_from_public and private.task.is_labelled
    public = public_text(protect.public, columns, seed, scores=private.task.has_scores, labelled=labelled)
    public = replace(public, splits=("train",) * len(public))
    rows = [row for row, name in enumerate(private.splits) if name != "train" or not protect.priced]
    avoided = private.take(rows)
    if protect.priced:
        avoided = avoided.renamed(f"{private.name} (held-out rows)")
    kept = without_overlap(public, avoided) if rows else public
    if not len(kept):
        raise DataError(
            f"Expected public text that is not in {private.name!r}, got none in {protect.public!r}. Name other text."
        )
    return kept


def public_vectors(model: TextModel, public: Corpus, precision: str) -> tuple[Tensor, Tensor | None]:
    """Return the vectors of public text under a frozen encoder, and its labels if they are those of the model."""
    if not model.settings.frozen:
        raise invalid("train", model.settings.train, "head or pooler+head", "A projection is learned for one encoder.")
    from discreet.models.build import cache_folder, encode

    rows = encode(model, public, cache_folder(), precision)
    labelled = public.task == model.task and public.label_names == model.label_names
    return rows.vectors, rows.targets if labelled else None


COSINE, PUBLIC_TEXT = "cosine", "public text"  # what a public row comes from


@dataclass(frozen=True)
class PublicRow:
    """Metrics of the cosine of two public vectors, or of a model that was trained on public text alone.

    `metric` is the one by which a private model is compared with it.

    Guarantee: epsilon 0 for the training rows, which it does not depend on; held-out rows are not protected.
    """

    utility: dict[str, float]
    metric: str
    source: str = COSINE

    def as_dict(self, utility: Mapping[str, float]) -> dict[str, Any]:
        """Return plain values, and whether a model with this utility is better."""
        better = is_better(self.metric, utility[self.metric], self.utility[self.metric])
        threshold = {"threshold": THRESHOLD} if self.source == COSINE else {}
        return {
            "utility": self.utility,
            "metric": self.metric,
            **threshold,
            "source": self.source,
            "is_beaten": better,
        }


def public_row(encoder: str, corpus: Corpus, split: str, device: torch.device | str = "cpu") -> PublicRow | None:
    """Return what the cosine of the vectors of a public encoder reaches on a split; None where there is no such row.

    There is one for pairs with scores or two classes, of which the second is for texts that agree, and an encoder whose
    cosine has a meaning: the built-in one.
    """
    known = corpus.task.has_scores or corpus.classes == 2
    if not corpus.is_pairs or not known or corpus.task.balanced is None or encoder != MINILM:
        return None
    settings = ModelSettings(encoder=encoder, train="head", pairs=SEPARATE)
    model = build_classifier(corpus, settings, rng=Rng(0)).to(device)
    return PublicRow(evaluate(model, corpus.split(split)), corpus.task.balanced)


def start_row(model: TextModel, start: Path, rows: Tokens | Vectors, precision: str = "auto") -> PublicRow:
    """Return what a model reaches on held-out rows with the weights that public text gave it, in the file `start`.

    `rows` are tokens, or vectors of the encoder if only what follows it was trained on private text.
    """
    own = copy.deepcopy(model)
    own.load_weights(load_tensors(start)[0])
    return PublicRow(evaluate(own, rows, precision), model.task.main, PUBLIC_TEXT)


PUBLIC_ROWS = 60_000  # public text of fewer rows is read more than once, at most three times
_RATE_OF_HEAD = 20.0  # learning rate of the steps of the head alone, as a multiple of that of all layers


@dataclass(frozen=True)
class TrainingPlan:
    """Everything one training run needs and costs.

    `units` is the public number of units: the actual number, or the `population`. `rows` is the number of training
    rows. With a `noise_seed` batches and noise are repeatable, and the guarantee is an estimate; without one they come
    from a secret seed of the operating system. `seed` is for everything that needs no secret.

    >>> plan = TrainingPlan(TrainSettings(epochs=2, batch_size=8), None, Shuffled(8), 26, 100, 100, "row")
    >>> plan.steps, plan.budget
    (26, None)
    """

    settings: TrainSettings
    protect: Protection | None
    sampler: Sampler
    steps: int
    units: int
    rows: int
    unit: str
    delta: float | None = None
    adjacency: Adjacency | None = None
    budget: Budget | None = None
    population: int | None = None
    seed: int = 0
    noise_seed: int | None = None
    public: Corpus | None = field(default=None, repr=False)
    notice: str | None = field(default=None, repr=False)  # for the user, about how the budget is used
    max_per_unit: int | None = None  # largest number of rows of one unit, chosen without looking at the data
    head_steps: int = 0  # first steps, included in `steps`, in which only the head is trained
    caveats: frozenset[Caveat] = frozenset()  # why the guarantee will be an estimate, as far as the plan can know

    @classmethod
    def make(
        cls,
        model: TextModel,
        corpus: Corpus,
        *,
        protect: Protection | None = None,
        training: TrainSettings | None = None,
        delta: float | None = None,
        population: int | None = None,
        public: Corpus | None = None,
        sampler: Sampler | None = None,
        seed: int = 0,
        noise_seed: int | None = None,
        max_per_unit: int | None = None,
    ) -> TrainingPlan:
        """Return the plan of a training run on the train split of a corpus.

        Args:
            model: The model, with its first weights; its settings say which layers are trained.
            corpus: The text; its train split is trained on.
            protect: The protection, by its budget or its strength. The noise of one with a budget is calibrated so
                that the whole training stays within it.
            training: Settings of the training loop; what they leave open depends on what is trained, how it is
                protected and how much text there is.
            delta: Delta of the guarantee; by default that of the protection, or one that fits the number of units.
            population: A public number of units, chosen in advance, that replaces the actual one; the certificate is
                then add/remove.
            public: Text that needs no protection, for a protection to mix with or learn from.
            sampler: How batches are drawn; by default as the protection samples.
            seed: Seed of everything that is not noise.
            noise_seed: Makes batches and noise repeatable, and the guarantee an estimate.
            max_per_unit: The largest number of rows of one unit in the corpus, chosen without looking at it: noise
                that depends on that number is calibrated for the cap.

        Guarantee: the training spends at most `budget` for each unit, if there is one.
        """
        if protect is not None:
            check_protection(protect)
        split = matched_split(corpus, model, "train")
        check_most_rows(split, max_per_unit)
        if population is not None and protect is None:
            remedy = "Without a protection nothing is certified."
            raise invalid("population", population, "left out without protect", remedy)
        adjacency = None if protect is None else protect.adjacency_for(population)
        units = split.unit_count if population is None else population
        part, width = model.settings.train, model.width
        pairs = split.is_pairs and model.settings.pairs != SEPARATE
        defaults = defaults_of(protect, part, units, width, pairs=pairs)
        settings = _with_head_share((training or TrainSettings()).completed(defaults), training, model, protect)
        if protect is None:
            chosen = sampler or Shuffled(min(settings.size, len(split)))
            steps = max(1, round(settings.passes * chosen.steps_per_epoch(len(split))))
            return TrainingPlan(
                settings,
                None,
                chosen,
                steps,
                split.unit_count,
                len(split),
                split.unit_name,
                seed=seed,
                max_per_unit=max_per_unit,
            )
        assert adjacency is not None
        if settings.accumulate > 1:
            remedy = f"A protected batch is divided automatically; leave {setting('accumulate')} out."
            raise invalid("accumulate", settings.accumulate, f"1 with {protect.name}", remedy)
        delta = protect.delta if delta is None else delta
        delta = delta_for(units) if delta is None else open_probability("delta", delta)
        if protect.needs_classifier:
            classifier_of(model, protect.name)
        conditions = _conditions(model, split, settings, units, delta, public, max_per_unit)
        if protect.samples_units:
            if protect.public is not None and public is None:
                raise DataError(f"Expected the public text {protect.public!r} that training starts from. Pass public=.")
            given = sampler or protect.sampler_for(conditions.batch_size, units)
            steps = max(1, round(settings.passes * given.steps_per_epoch(units)))
            conditions = replace(conditions, sampler=given, steps=steps)
        resolved = protect.resolve(conditions)
        resolved.check(min(settings.size, len(split)), len(split))
        chosen = sampler or resolved.sampler_for(settings.size, units, len(split))
        _check_sampler(chosen, resolved, settings, units, len(split), population)
        sampled_from = units if resolved.samples_units else len(split)
        steps = max(1, round(settings.passes * chosen.steps_per_epoch(sampled_from)))
        return PrivatePlan(
            settings,
            resolved,
            chosen,
            steps,
            units,
            len(split),
            split.unit_name,
            delta,
            adjacency,
            Budget(protect.epsilon, delta) if protect.epsilon is not None and protect.limits else None,
            population,
            seed,
            noise_seed,
            public,
            protect.notice(conditions, split.unit_name),
            max_per_unit,
            int((settings.head_share or 0.0) * steps),
            caveats=_caveats(split, resolved) | trust_in(protect),
        )

    @classmethod
    def for_loop(
        cls,
        model: nn.Module,
        protect: Protection,
        *,
        batch_size: int,
        num_units: int | None = None,
        population: int | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        unit: str = "unit",
    ) -> PrivatePlan:
        """Return the plan of a training run in the user's own loop, of any module whose gradients are protected.

        Set `num_units`, the number of units, which is then public (zero-out), or `population`, a public number chosen
        in advance (add/remove); and the number of `steps`, or of `epochs`.

        Guarantee: the training spends at most `budget` for each unit, if there is one.
        """
        protect = protection_of_gradients(protect)
        if (num_units is None) == (population is None):
            remedy = "num_units is their actual number, which is then public; population is a number chosen in advance."
            raise invalid("num_units", num_units, f"set if and only if {setting('population')} is not", remedy)
        if (steps is None) == (epochs is None):
            remedy = "One of them determines the length of the training."
            raise invalid("steps", steps, f"set if and only if {setting('epochs')} is not", remedy)
        adjacency = protect.adjacency_for(population)
        count = whole("num_units", num_units) if num_units is not None else whole("population", population or 0)
        if whole("batch_size", batch_size) > count:
            remedy = "A batch holds at most all units."
            raise invalid("batch_size", batch_size, f"<= {count:,}, the number of units", remedy)
        protect.check_own_loop()
        sampler = protect.sampler_for(batch_size, count)
        per_epoch = sampler.steps_per_epoch(count)
        if steps is None:
            assert epochs is not None
            steps = max(1, round(positive("epochs", epochs, "One epoch samples every unit once.") * per_epoch))
        whole("steps", steps)
        delta = delta_for(count) if protect.delta is None else protect.delta
        conditions = Conditions(model, count, count, batch_size, steps, steps / per_epoch, delta, sampler=sampler)
        resolved = protect.resolve(conditions)
        return PrivatePlan(
            TrainSettings(epochs=steps / per_epoch, batch_size=batch_size),
            resolved,
            sampler,
            steps,
            count,
            count,
            unit,
            delta,
            adjacency,
            Budget(protect.epsilon, delta) if protect.epsilon is not None and protect.limits else None,
            population,
            notice=protect.notice(conditions, unit),
            caveats=trust_in(protect) | trust_in(resolved),
        )

    @classmethod
    def for_client(
        cls,
        model: TextModel,
        corpus: Corpus,
        *,
        protect: Protection | None,
        training: TrainSettings,
        steps: int,
        batch_size: int,
        seed: int,
        noise_seed: int | None = None,
    ) -> TrainingPlan:
        """Return the plan of a federated client, for the number of steps and the batch size that the server sets.

        Guarantee: as for `make`.
        """
        split = matched_split(corpus, model, "train")
        count = split.unit_count if protect is not None and protect.samples_units else len(split)
        size = min(batch_size, count)
        # `make` takes epochs; this number of them gives exactly the steps of the server.
        training = replace(training, batch_size=size, epochs=steps / -(-count // size), head_share=0.0)
        if protect is None:  # as at the server, which knows neither pairs nor how few a client has
            training = training.completed(plain_defaults(model.settings.train, count, model.width))
        plan = cls.make(model, corpus, protect=protect, training=training, seed=seed, noise_seed=noise_seed)
        if plan.steps != steps:
            raise UnsupportedError(f"Expected a plan of {steps} steps, got {plan.steps}. Use fewer epochs.")
        return plan

    def on_public(self, model: TextModel, public: Corpus) -> TrainingPlan:
        """Return the plan of the training on public text, without noise, that comes before this one."""
        epochs = None if model.settings.frozen else min(3.0, max(1.0, PUBLIC_ROWS / len(public)))
        settings = TrainSettings(epochs=epochs, batch_size=64, precision=self.settings.precision)
        return self.make(model, public, training=settings, seed=self.seed)

    def check(self, split: Corpus) -> None:
        """Reject a corpus that the plan was not made for."""
        if (len(split), split.unit_name) != (self.rows, self.unit):
            raise DataError(
                f"Expected the {self.rows} training rows of {self.unit}s that the plan was made for, got {len(split)} "
                f"rows of {split.unit_name}s. Make a plan for this corpus."
            )
        if self.population is None and split.unit_count != self.units:
            raise DataError(
                f"Expected the {self.units} {self.unit}s that the plan was made for, got {split.unit_count}. Make a "
                "plan for this corpus."
            )
        check_most_rows(split, self.max_per_unit)
        if self.protect is None:
            return
        certified = self.protect.adjacency_for(self.population)
        if self.adjacency is not certified:
            raise invalid("adjacency", self.adjacency, f"{certified.value!r} in the plan", "Make a plan for it.")
        _check_sampler(self.sampler, self.protect, self.settings, self.units, self.rows, self.population)

    @property
    def facts(self) -> tuple[str, ...]:
        """What the guarantee says besides the assumptions of the protection, as sentences."""
        facts = []
        if self.public is not None and self.protect is not None and self.protect.starts_from_public:
            facts.append(f"training starts from weights trained on the public text {self.public.name!r}, without noise")
        if self.max_per_unit is None:
            return tuple(facts)
        rows = "1 row" if self.max_per_unit == 1 else f"{self.max_per_unit} rows"
        facts.append(f"at most {rows} of each {self.unit} are used, a cap that was chosen without looking at the data")
        return tuple(facts)

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step; the steps of the head alone have a schedule of their own.

        >>> settings = TrainSettings(epochs=2, batch_size=8, learning_rate=1e-3, warmup=0.0)
        >>> plan = TrainingPlan(settings, None, Shuffled(8), 4, 16, 16, "row", head_steps=2)
        >>> [round(plan.rate_at(step), 4) for step in range(4)]
        [0.02, 0.01, 0.001, 0.0005]
        """
        assert self.settings.learning_rate is not None
        if step < self.head_steps:
            return self.settings.rate_at(step, self.head_steps, _RATE_OF_HEAD * self.settings.learning_rate)
        return self.settings.rate_at(step - self.head_steps, self.steps - self.head_steps, self.settings.learning_rate)

    @property
    def rng(self) -> Rng:
        """Source of everything in the training that needs no secret."""
        return Rng(self.seed).fork("train")

    def secret(self, workspace: Path | None = None) -> Rng:
        """Return the source of batches and noise; a workspace stores its secret seed until the run is finished."""
        if self.noise_seed is not None:
            return Rng(self.noise_seed).fork("secret")
        if workspace is None:
            return Rng.secret()
        from discreet.runs.folder import secret_of

        return secret_of(workspace)

    def queries(self, held_out: Corpus, secret: Rng | None) -> Corpus:
        """Return held-out text, rewritten if the protection rewrites queries too."""
        if self.protect is None or secret is None:
            return held_out
        return self.protect.held_out(held_out, secret.fork("held out"))


@dataclass(frozen=True)
class PrivatePlan(TrainingPlan):
    """Everything one protected training run needs and costs: a plan whose protection, delta and adjacency are known.

    Guarantee: the training spends at most `budget` for each unit, if there is one.
    """

    protect: Protection
    delta: float = field()
    adjacency: Adjacency = field()

    @classmethod
    def candidates(
        cls, model: TextModel, corpus: Corpus, choices: Sequence[tuple[TrainSettings, Protection]], **planned: Any
    ) -> list[PrivatePlan]:
        """Return the plans of trainings that differ in their settings; the other arguments are those of `make`."""
        made = [cls.make(model, corpus, protect=protect, training=train, **planned) for train, protect in choices]
        return [plan for plan in made if isinstance(plan, PrivatePlan)]

    @property
    def gradients(self) -> GradientProtection:
        """The protection, of a plan that protects sums of gradients."""
        return protection_of_gradients(self.protect)

    def open_ledger(self, path: Path | None = None) -> Ledger:
        """Open the ledger of the training, at a path or in memory, with its budget."""
        return Ledger.open(path, unit=self.unit, adjacency=self.adjacency, budget=self.budget)

    def limit_beside(self, ledger: Ledger) -> Ledger | None:
        """Return a ledger in memory that enforces the budget of the training, if `ledger` does not."""
        if self.budget is None or (ledger.budget, ledger.statement.adjacency) == (self.budget, self.adjacency):
            return None
        return self.open_ledger()

    def step_cost(self, step: int) -> tuple[DpEvent, str]:
        """Return the event of a step that protects gradients, and the name under which it is recorded.

        Steps that share a name are counted once: the batches of a shuffled epoch together use every unit once.
        """
        return self.gradients.step_cost(self.sampler, step, self.units)

    def training_cost(self, steps: int | None = None) -> DpEvent:
        """Return the event of so many steps that protect gradients, by default of all steps."""
        return self.gradients.training_cost(self.sampler, self.steps if steps is None else steps, self.units)

    def spends(self, model: TextModel, split: Corpus, ledger: Ledger) -> dict[str, int]:
        """Return the most spends of each event in a training run; empty if only the release determines its cost.

        `ledger` is the training's own: it may already contain steps, and may have a budget at which training stops.
        """

        spends = self.protect.spends(self, model, split)
        if ledger.budget is not None and self.protect.samples_units and len(spends) == 1:
            allowed = ledger.statement.spends + ledger.remaining(self.step_cost(0)[0])
            spends = {event: min(count, allowed) for event, count in spends.items()}
        return spends


def model_settings(
    chosen: Mapping[str, Any],
    protect: Protection | None,
    units: int,
    task: str | None = None,
    *,
    pairs: bool = False,
) -> ModelSettings:
    """Return the settings of a model, with the defaults of its task and protection for those that are not chosen.

    `pairs` says that its texts are pairs; `task` decides how they are read.

    >>> model_settings({}, None, 2000).train, model_settings({"train": "top-2"}, None, 2000).train
    ('all', 'top-2')
    """
    values = dict(chosen)
    if task == Task.LM:
        values = {"encoder": SMOLLM2, "train": "all", "head": "linear", **values}
    part = "all" if protect is None else protect.default_part
    encoder = str(values.get("encoder", ModelSettings.encoder))
    if pairs:
        values.setdefault("pairs", reading_of_pairs(protect, encoder, task))
    separate = values.get("pairs") == SEPARATE
    values.setdefault("train", part_to_train(part, protect, units, encoder, separate))
    if protect is not None:
        values.setdefault("head", protect.default_pair_head if separate else protect.default_head)
    if protect is not None:
        defaults = protect.defaults(values["train"], units, 0)
        values = {"dropout": defaults.dropout, "embeddings": defaults.embeddings, **values}
    return ModelSettings(**values)


def reading_of_pairs(protect: Protection | None, encoder: str, task: str | None) -> str:
    """Return how pairs are read by default: separately by the built-in encoder, if protected or if scores are learned.

    Its vectors were trained to be compared, so the head starts from a cosine that is worth more than what a private
    run learns from a few thousand pairs read together (docs/decisions/small_corpora.md).
    """
    compared = encoder == MINILM and (protect is not None or (task is not None and Task(task).has_scores))
    return SEPARATE if compared else JOINT


def part_to_train(
    default: str, protect: Protection | None, units: int, encoder: str = "minilm", separate: bool = False
) -> str:
    """Return what is trained by default: the head alone if a noisy protection has few units.

    300 tickets under epsilon 3: all layers reach .571 in 210 s, the head 1.000 in 10 s. The 2,000 notes under TextHide:
    all layers give every note the same class, the head reaches .757. An untrained encoder (bilstm) is not frozen.
    """
    if separate:
        return "head"  # a few numbers of each pair: all layers gain little over it, and none under noise
    few = protect is not None and protect.learns_little and units < FEW_UNITS
    return "head" if few and default == "all" and encoder != BILSTM else default


def check_most_rows(split: Corpus, most: int | None) -> None:
    """Reject training rows of which one unit has more than the cap."""
    if most is not None and most_rows(split.unit_index) > whole("max_per_unit", most):
        raise DataError(
            f"Expected at most {most} training rows of each {split.unit_name}, got more of one. Load the corpus with "
            f"the same cap ({setting('max_per_unit', most)})."
        )


def _caveats(split: Corpus, protect: Protection) -> frozenset[Caveat]:
    """Return why a training run on these rows can only have an estimate.

    The names of the classes are written into the model. If they were read from protected labels, a name may exist
    because of one unit, and no noise hides that. The code of a protection of another package was not checked.
    """
    private = split.labels is not None and split.names_read and protect.protects_labels
    return trust_in(protect) | (frozenset({Caveat.PRIVATE_CLASSES}) if private else frozenset())


def _conditions(
    model: TextModel,
    split: Corpus,
    settings: TrainSettings,
    units: int,
    delta: float,
    public: Corpus | None,
    max_per_unit: int | None,
) -> Conditions:
    size = min(settings.size, units)
    vectors: Callable[[], tuple[Tensor, Tensor | None]] | None = None
    if public is not None:
        vectors = lambda: public_vectors(model, public, settings.precision)  # noqa: E731
    return Conditions(
        model=model,
        units=units,
        rows=len(split),
        batch_size=size,
        steps=max(1, round(settings.passes * -(-units // size))),
        epochs=settings.passes,
        delta=delta,
        public=vectors,
        pairs=split.is_pairs,
        most_rows=max_per_unit or most_rows(split.unit_index),
    )


def _with_head_share(
    settings: TrainSettings, chosen: TrainSettings | None, model: TextModel, protect: Protection | None
) -> TrainSettings:
    """Return the settings with the steps of the head alone; reject them where no head is trained before the rest."""
    if not settings.head_share:
        return settings
    starts = isinstance(model, Classifier) and not model.settings.frozen and model.settings.encoder != BILSTM
    if starts and protect is not None and protect.trains_parts:
        return settings
    if chosen is None or not chosen.head_share:
        return replace(settings, head_share=0.0)
    remedy = "It needs dp-sgd with independent noise, and a classifier of which more than the head is trained."
    raise invalid("head_share", settings.head_share, "0 here", remedy)


def _check_sampler(
    sampler: Sampler, protect: Protection, settings: TrainSettings, units: int, rows: int, population: int | None
) -> None:
    """Reject a sampler that is not the one accounted for, or that would reveal the absence of a unit."""
    protect.check_sampler(sampler, protect.sampler_for(settings.size, units, rows))
    if population is not None:
        check_hides_absence(sampler)


def check_hides_absence(sampler: Sampler) -> None:
    """Reject a sampler whose batches would reveal the absence of a unit, as add/remove requires."""
    if not sampler.hides_absence:
        remedy = (
            "Removing one unit would change the batches of others; use Poisson or random allocation, or account under "
            "zero-out."
        )
        raise invalid("sampler", sampler, "Poisson under add/remove", remedy)


_MANY_STEPS = 1_000_000
_LONGEST_NAMES = 1_000  # characters of all class names together, up to which they are printed as a setting


def check_public(request: RunChoices) -> None:
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


def warn_of_size(request: RunChoices, plan: TrainingPlan, corpus: Corpus, say: Callable[[str], None]) -> None:
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
    names = list(corpus.label_names)
    example = setting("classes", names) if len(",".join(names)) <= _LONGEST_NAMES else setting("classes")
    say(
        Message(
            f"{PRIVATE_DETAIL}: the names of the classes were read from the labels, and that a name exists may depend "
            f"on one {corpus.unit_name}, so the guarantee will be an estimate. If these names were known without the "
            f"data, set them: {example}."
        )
    )


def check_private_labels(request: RunChoices, corpus: Corpus) -> None:
    """Reject class names that are read from the data of a protected run and belong to a single unit.

    A single decimal point decides whether labels are classes or scores, so scores must be requested.

    Guarantee: none; see `check_shared_classes`.
    """
    if request.data.built_in:
        return
    if corpus.task.has_scores and request.data.task is None:
        raise DataError(
            f"Expected {setting('task', 'regression')} for a protected run with scores. One decimal point decides "
            "whether labels are classes or scores, and it may be one person's; set the task."
        )
    if request.data.classes is None:
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
