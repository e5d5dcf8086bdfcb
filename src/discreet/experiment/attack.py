"""Attack once: select rows, release them, run the attack on each release, and score its guesses against the truth.

`run_attack` is the whole sequence. The attack receives the release and `Knowledge`; only the scoring sees the truth.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.accounting.events import DpEvent
from discreet.attacks.base import Attack, Family, Mixing, Need
from discreet.core.errors import invalid, one_of, open_probability, positive, setting, whole
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, Leakage, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.data.samplers import FixedSize, Poisson, Sampler
from discreet.experiment.scene import Scene
from discreet.metrics.table import METRICS, Compares, Sample
from discreet.metrics.text import installed_extras, match
from discreet.models import encoder
from discreet.models.base import TextModel
from discreet.models.classifier import Classifier
from discreet.releases.description import READS, attacker_inputs, misfit_error, release_facts
from discreet.releases.protected import (
    Released,
    attacker_pairs,
    before_noise,
    epsilon_by_adjacency,
    fits,
    release_of,
)

DEFAULT_METRICS = ("rouge_l", "rouge_1", "rouge_2", "lcs_over_longer", "token_accuracy", "bag_recall", "exact_match")
BAG_METRICS = ("bag_recall", "jaccard")
CATEGORY_METRICS = ("names_read", "numbers_read", "dates_read", "function_words_read")
VECTOR_METRICS = ("exact_match", "jaccard", "rouge_l", "bag_recall")  # the guess is one of the candidate texts
Progress = Callable[[str, int, int], None]  # a stage, how much of it is done, and of how much
_PUBLIC = 2000  # public texts that are encoded for attacks on vectors


@dataclass(frozen=True)
class Updates:
    """All updates of one training run: their number, the sampling rate and the event of their composition.

    `per_step` is the expected number of units in an update. `certified` is True if the cost of the event is proven.
    `caveats` are those of the training run.
    """

    steps: int
    rate: float
    event: DpEvent = field(repr=False)
    per_step: float = 1.0
    certified: bool = True
    caveats: frozenset[Caveat] = frozenset()


@dataclass(frozen=True)
class AttackRequest:
    """Settings of one attack: the attack, the protection, the number of texts and the time limit.

    `protect` is a resolved protection, or None for an unprotected client. `delta` applies to the one attacked release.
    `seconds` limits the search in each batch; preparation, such as fitting a prior, does not count. Searches count
    their steps, so without a limit the result does not depend on the machine. `noise_seed` makes the noise
    reproducible and the guarantee an estimate; by default the noise comes from the operating system. `candidates` is
    the number of texts that the attacker chooses among (default: 64 for 1-of-n, the whole split for vectors).
    `steps` is the number of releases of the same rows. `draws` is the number of simulations for 1-of-n, which attacks
    all `updates` of a training run if they are given, and `steps` releases of one record otherwise.
    `first_words` truncates each text before the gradient is computed.

    For attacks on a trained model: `members` is the largest number of members, and of non-members, to ask about
    (default: all, where that is cheap). `references` is the number of reference models, by default that of the attack,
    which are trained like the target, and under the same protection unless `references_protected` is False.
    `references_from` are the folders of at least two finished runs that are used as reference models instead.
    """

    attack: Attack
    protect: Any = None
    name: str = ""
    examples: int = 8
    batch_size: int = 1
    max_words: int | None = None
    first_words: int | None = None
    seconds: float | None = None
    delta: float = 1e-5
    metrics: tuple[str, ...] = DEFAULT_METRICS
    seed: int = 0
    noise_seed: int | None = None
    candidates: int | None = None
    draws: int = 20_000
    steps: int = 1
    updates: Updates | None = None
    members: int | None = None
    references: int | None = None
    references_protected: bool = True
    references_from: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("batch_size", self.batch_size, 1, "It is the number of texts in one release.")
        whole("examples", self.examples, 1, "It is the number of texts to attack.")
        if self.examples % self.batch_size:
            remedy = "Every release has a full batch."
            raise invalid("examples", self.examples, f"a multiple of {setting('batch_size', self.batch_size)}", remedy)
        if self.max_words is not None:
            whole("max_words", self.max_words)
        if self.first_words is not None:
            whole("first_words", self.first_words)
            if self.attack.sees is not GradientRelease:
                remedy = "Other attacks search for complete texts among candidates; leave it out."
                raise invalid("first_words", self.first_words, "left out except for attacks on a gradient", remedy)
        if self.seconds is not None:
            positive("seconds", self.seconds, "It is the time for each batch; leave it out to let the attack finish.")
        open_probability("delta", self.delta, "It applies to the one attacked release; 1e-5 is a common choice.")
        whole("metrics", len(self.metrics), 1, "Name at least one.")
        if self.candidates is not None:
            whole("candidates", self.candidates, 2, "The attacker chooses one of at least two.")
        if self.members is not None:
            whole("members", self.members, 2, "It is the number of members, and of non-members, to ask about.")
        if self.references is not None:
            whole("references", self.references, 2, "Each example needs a model with it and one without it.")
        if self.references_from and self.references is not None:
            rule = f"left out with {setting('references_from')}"
            raise invalid("references", self.references, rule, "The runs are the reference models.")
        if self.references_from and not self.references_protected:
            rule = f"left out with {setting('references_from')}"
            raise invalid("plain_references", True, rule, "The runs have their own protection.")
        whole("draws", self.draws, 1, "20000 give an interval of a few parts in a thousand.")
        whole("steps", self.steps, 1, "It is the number of releases of the same record.")
        if self.steps > 1 and self.attack.sees is GradientRelease and not self.attack.identifies:
            remedy = "It reads one gradient; 1-of-n and attacks on vectors read several releases of a record."
            raise invalid("steps", self.steps, f"left out for the attack {self.label}", remedy)

    @property
    def label(self) -> str:
        """The attack's name in the request, or else in the catalog."""
        return self.name or self.attack.name or type(self.attack).__name__


@dataclass(frozen=True)
class Example:
    """One attacked text: the truth, the guess, and the scores of the guess.

    Scores compare the guess with `spelling`: the truth as the tokenizer spells it, which may drop case, accents and
    spaces around punctuation, but keeps characters that the tokenizer does not know, as no attack can recover those.

    For an attack that returns a set of tokens from a gradient, truth and guess are the unordered tokens of the batch.
    `written` is the text as its owner wrote it, for metrics that count names.
    """

    truth: str
    guess: str
    scores: Mapping[str, float] = field(default_factory=dict)
    batch: int = 0
    spelling: str | None = None
    written: str | None = field(default=None, repr=False)

    @property
    def scored(self) -> str:
        """The truth that scores compare with."""
        return self.truth if self.spelling is None else self.spelling

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"truth": self.truth, "guess": self.guess, "batch": self.batch, **self.scores}


@dataclass(frozen=True)
class AttackResult:
    """Leakage of an attack, the release it attacked, and the guarantee of that release, never of a training run.

    For several releases, the guarantee is the one with the largest epsilon. `preparing` is the part of `seconds`
    before the first release, in which public text is encoded and a prior is fitted. `stopped` is the number of
    searches that a time limit ended early.

    `bound` is the success rate that no attack can exceed, where accounting proves one (1-of-n identification), and
    `bounds` has such bounds by metric. `details` has further plain values, such as the points of a ROC curve, and
    `verdict` says in plain words what was measured.
    `unknown_share` is the share of tokens in the attacked texts that the tokenizer does not know; it is computed from
    private text, for its owner.
    """

    attack: str
    leakages: tuple[Leakage, ...]
    examples: tuple[Example, ...] = field(repr=False)
    release: Mapping[str, Any] = field(repr=False)
    guarantee: Guarantee | None
    epsilon_by_adjacency: Mapping[str, float | None]
    seconds: float
    bound: float | None = None
    finished: bool = True
    preparing: float = 0.0
    stopped: int = 0
    unknown_share: float = 0.0
    bounds: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)
    verdict: str = ""

    @property
    def n(self) -> int:
        """The number of trials."""
        return self.leakages[0].n if self.leakages else 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        guarantee = self.guarantee
        return {
            "attack": self.attack,
            "n": self.n,
            "leakage": [dataclasses.asdict(leakage) for leakage in self.leakages],
            "examples": [example.as_dict() for example in self.examples],
            "release": dict(self.release),
            "guarantee": None if guarantee is None else {**guarantee.as_dict(), "sentence": guarantee.sentence()},
            "epsilon_by_adjacency": dict(self.epsilon_by_adjacency),
            **({} if self.bound is None else {"bound": self.bound}),
            "finished": self.finished,
            "seconds": self.seconds,
            "preparing": self.preparing,
            "stopped_by_time_limit": self.stopped,
            "unknown_share": self.unknown_share,
            **({"bounds": dict(self.bounds)} if self.bounds else {}),
            **({"details": dict(self.details)} if self.details else {}),
            **({"verdict": self.verdict} if self.verdict else {}),
        }


def run_attack(
    request: AttackRequest,
    scene: Scene,
    *,
    watch: Callable[[Example], None] = lambda example: None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Progress = lambda stage, done, total: None,
) -> AttackResult:
    """Select rows, release what a server would see of them, attack each release, and score the guesses.

    The same seed attacks the same rows of a scene under every protection, so that results can be compared. An attack on
    a trained model reports its `progress`: the stage, how much of it is done, and of how much.

    Guarantee: none for the result, which holds private texts; it states the guarantee of one release.
    """
    from discreet.experiment.identification import identify

    if request.attack.family is Family.PEOPLE:
        from discreet.experiment.people import attack_people

        return attack_people(request, scene, progress)
    if request.attack.family is not Family.RECONSTRUCTION:
        from discreet.experiment.model_attack import attack_model

        return attack_model(request, scene, progress)
    if request.attack.identifies:
        if request.first_words is not None:
            raise invalid("first_words", request.first_words, "left out for 1-of-n", "It compares complete texts.")
        return identify(request, scene)
    reject_misfit(request)
    start = time.monotonic()
    rng = Rng(request.seed)
    noise = Rng.secret() if request.noise_seed is None else Rng(request.noise_seed).fork("noise")
    metrics = (*metrics_for(request.attack, request.metrics), *further_metrics(request.attack, request.metrics))
    rows = scene.draw(request.examples, rng.fork("rows"), max_words=request.max_words)
    _check_countable(request.metrics, rows.texts)
    attack = request.attack.within(request.seconds).informed(mixing(request))
    model = attack.craft(scene.model, rng.fork("craft"))
    knows = knowledge(request, scene, model, rows)  # excludes the attacked texts, truncated or not
    attacked = rows.texts
    rows = truncate_words(rows, request.first_words)
    preparing = time.monotonic() - start
    examples: list[Example] = []
    facts: dict[str, Any] = {}
    guarantee: Guarantee | None = None
    finished, stopped = True, 0
    for number in range(len(rows) // request.batch_size):
        if number and should_stop():
            finished = False
            break
        batch = rows.take(range(number * request.batch_size, (number + 1) * request.batch_size))
        partners = scene.partners(request.protect, batch)
        release = make_release(request, model, batch, noise.fork("release", number), partners)
        guess = attack.run(release.seen, knows, rng.fork("attack", number))
        stopped += bool(guess.details.get("stopped_by_time_limit"))
        truth = batch if release.rows is None or not attack.aligned else batch.take(release.rows)
        scored = score_guess(attack, guess, truth, model, metrics, number)
        if not number:
            facts = release_facts(
                release.seen,
                model,
                scene.origin,
                request.protect,
                batch_size=request.batch_size,
                steps=request.steps,
                first_words=request.first_words,
            )
            facts["given"] = attacker_inputs(release.seen, knows, attacked, scene.public_origin, attack.crafts)
        guarantee = with_larger_epsilon(guarantee, release.seen.guarantee)
        examples += scored
        for example in scored:
            watch(example)
    candidates: list[str] = []
    if any(METRICS[metric].compares is Compares.CANDIDATES for metric in metrics):
        candidates = [tokenizer_spelling(model, text) for text in knows.candidates]
    return AttackResult(
        attack=request.label,
        leakages=measure_leakage(examples, metrics, rng.fork("leakage"), candidates),
        examples=tuple(examples),
        release=facts,
        guarantee=guarantee,
        epsilon_by_adjacency=epsilon_by_adjacency(request.protect, request.delta, stated=guarantee),
        seconds=time.monotonic() - start,
        finished=finished,
        preparing=preparing,
        stopped=stopped,
        unknown_share=encoder.unknown_share(model.tokenizer, rows.texts),
    )


def make_release(
    request: AttackRequest, model: TextModel, batch: Corpus, noise: Rng, public: Corpus | None = None
) -> Released:
    """Return what a server would see of a batch under the protection, as the type that the attack reads.

    Guarantee: that of the protection for this one release, in the release; none without a protection.
    """
    reject_misfit(request)
    sees, protect = request.attack.sees, request.protect
    return release_of(sees, protect, model, batch, noise, delta=request.delta, steps=request.steps, public=public)


def reject_misfit(request: AttackRequest) -> None:
    """Reject an attack on something that its protection does not release, before any work is done."""
    kind, protect = request.attack.sees.kind, request.protect
    if not fits(kind, protect):
        raise misfit_error(request.label, READS[kind], protect.name, protect.place)


def knowledge(request: AttackRequest, scene: Scene, model: TextModel, rows: Corpus) -> Knowledge:
    """Return what the attacker has besides the release: the public model, public text and the protection's settings.

    An attack that needs a prior over text gets one fitted to the public text. An attack on vectors gets candidates and
    their vectors: the attacked texts among others of the split, in random order.
    """
    public = scene.public_without(rows.texts)
    extra: dict[str, Any] = {}
    candidates: tuple[str, ...] = ()
    needs = request.attack.needs
    if Need.PRIOR in needs and public:
        extra[Need.PRIOR.value] = scene.prior(public)
    if request.attack.sees is RepresentationRelease:
        public = public[:_PUBLIC]
        candidates = scene.candidates(rows.texts, request.candidates, Rng(request.seed).fork("candidates"))
        extra["vectors"] = before_noise(request.protect, scene.vectors(candidates))
        if public:  # in the coordinates of the release: a projection changes those of the encoder
            extra |= {
                need.value: before_noise(request.protect, scene.vectors(public))
                for need in (Need.PUBLIC_VECTORS, Need.AUXILIARY_VECTORS)
                if need in needs
            }
        if Need.PAIRS in needs:
            own = scene.own(public, len(rows))
            extra[Need.PAIRS.value] = attacker_pairs(
                request.protect, model, own, Rng(request.seed).fork("own"), delta=request.delta, steps=request.steps
            )
    return Knowledge(model, auxiliary=public, candidates=candidates, defence=request.protect, extra=extra)


def truncate_words(rows: Corpus, words: int | None) -> Corpus:
    """Return rows truncated to a number of words, or unchanged for None.

    >>> truncate_words(Corpus("toy", ("a b c", "d")), 2).texts
    ('a b', 'd')
    """
    if words is None:
        return rows
    return dataclasses.replace(rows, texts=tuple(" ".join(text.split()[:words]) for text in rows.texts))


def with_larger_epsilon(first: Guarantee | None, second: Guarantee | None) -> Guarantee | None:
    """Return the guarantee that holds for both releases: the one with the larger epsilon."""
    if first is None or second is None:
        return second or first
    return first if first.epsilon >= second.epsilon else second


def mixing(request: AttackRequest) -> Mixing:
    """Return the public settings of the protection that describe released vectors."""
    protect = request.protect
    if protect is None:
        return Mixing(request.batch_size)
    return Mixing(request.batch_size, protect.mixes, protect.mask_count, protect.masked)


def sampling_rate(sampler: Sampler | None, units: int) -> float | None:
    """Return the probability that a unit is in one update, or None if updates are not sampled independently."""
    if isinstance(sampler, Poisson):
        return sampler.rate
    return sampler.size / units if isinstance(sampler, FixedSize) else None


def metrics_for(attack: Attack, names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that apply to an attack; the default set is replaced by the one for what it returns.

    An attack without word order is never scored by a metric that compares order.
    """
    names = tuple(names)
    for name in names:
        metric = METRICS[one_of("metric", name, [n for n, m in METRICS.items() if m.pair or m.sample])]
        if metric.compares is Compares.CANDIDATES and not (attack.aligned and Need.CANDIDATES in attack.needs):
            remedy = f"It is for attacks that choose a candidate for each vector; {attack.label} does not."
            raise invalid("metric", name, "left out", remedy)
    default = names == DEFAULT_METRICS
    if attack.is_ordered:
        return VECTOR_METRICS if default and attack.sees is RepresentationRelease else names
    unordered = tuple(name for name in names if METRICS[name].compares is Compares.WORDS)
    return BAG_METRICS if default or not unordered else unordered


def further_metrics(attack: Attack, names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that are measured besides the default ones: other overlaps, and each category of words.

    METEOR and the cosine of the Universal Sentence Encoder are measured where their libraries are installed.
    """
    if tuple(names) != DEFAULT_METRICS or not (attack.is_ordered or attack.aligned):
        return ()
    default = metrics_for(attack, names)
    further = ("jaccard", *installed_extras(), *CATEGORY_METRICS) if attack.is_ordered else CATEGORY_METRICS
    return tuple(name for name in further if name not in default)


def _check_countable(names: Sequence[str], texts: Sequence[str]) -> None:
    """Reject a metric that was asked for by name and has nothing to count in any of the texts."""
    for name in names:
        if METRICS[name].cased and all(math.isnan(METRICS[name].score(text, text)) for text in texts):
            remedy = "The rules find no such words in the attacked texts; attack others."
            raise invalid("metric", name, "one that counts something", remedy)


def score_guess(
    attack: Attack, guess: Guess, batch: Corpus, model: TextModel, metrics: Sequence[str], number: int
) -> list[Example]:
    """Return the texts of a batch with their guesses, matched to favor the attacker, and the scores.

    A guess with every token right is right, if every character of the text has a token: case, accents and spaces that
    the tokenizer drops do not count, characters that it does not know do.
    """
    texts: Sequence[str] = batch.texts
    if batch.second is not None:
        texts = [f"{first} {second}" for first, second in zip(batch.texts, batch.second, strict=True)]
    if not attack.is_ordered and attack.aligned:  # the words of each text
        shown = truths = [" ".join(dict.fromkeys(tokenizer_spelling(model, text).split())) for text in texts]
        guesses: Sequence[str] = (*guess.texts, *[""] * len(batch))[: len(batch)]
    elif not attack.is_ordered:
        pieces = [piece for text in texts for piece in encoder.pieces(model.tokenizer, text)]
        tokens = model.tokenizer.convert_ids_to_tokens(list(guess.indices))
        special = set(model.tokenizer.all_special_tokens)
        shown = truths = [" ".join(dict.fromkeys(pieces))]
        guesses = [" ".join(token for token in tokens if token not in special)]
    else:
        truths = [tokenizer_spelling(model, text) for text in texts]
        shown = [encoder.written(model.tokenizer, text, model.max_length) for text in texts]
        guesses = [tokenizer_spelling(model, text) for text in guess.texts[: len(batch)]]
        guesses = (*guesses, *[""] * (len(batch) - len(guesses))) if attack.aligned else match(guesses, truths)
    written = texts if len(texts) == len(truths) else truths
    return [
        Example(text, answer, _scores(answer, truth, original, metrics), number, truth, original)
        for text, truth, answer, original in zip(shown, truths, guesses, written, strict=True)
    ]


def _scores(guess: str, truth: str, written: str, metrics: Sequence[str]) -> dict[str, float]:
    """Return the scores of one guess by metric, without those that have nothing to count in this text."""
    single = [METRICS[name] for name in metrics if METRICS[name].pair]
    scores = {metric.name: metric.score(guess, written if metric.cased else truth) for metric in single}
    return {name: score for name, score in scores.items() if not math.isnan(score)}


def measure_leakage(
    examples: Sequence[Example], metrics: Sequence[str], rng: Rng, candidates: Sequence[str] = ()
) -> tuple[Leakage, ...]:
    """Return every metric over the examples with confidence interval, sample size and chance level.

    `candidates` are the texts that the attacker chose among, as the model's tokenizer spells them.
    """
    guesses, truths = [e.guess for e in examples], [e.scored for e in examples]
    written = [e.scored if e.written is None else e.written for e in examples]
    sample = Sample(guesses, truths, candidates, sentence_vectors, written)
    measured = [METRICS[metric].leakage(sample, rng.fork(metric)) for metric in metrics]
    return tuple(leakage for leakage in measured if leakage.n)


def tokenizer_spelling(model: TextModel, text: str) -> str:
    """Return a text as the model's tokenizer spells it, truncated to the model's length; unknown words are kept."""
    return encoder.spelled(model.tokenizer, text, model.max_length)


def sentence_vectors(texts: Sequence[str]) -> Any:
    """Return a vector for each text from the built-in sentence encoder; zeros for an empty text."""
    import numpy as np
    import torch

    from discreet.data.batches import tokenise

    model = Classifier.build(Corpus("meaning", ("a",), labels=(0,), label_names=("a", "b")), rng=Rng(0)).eval()
    rows = tokenise(Corpus("texts", tuple(text or "." for text in texts)), model.tokenizer, model.max_length)
    with torch.no_grad():
        vectors = [model.represent(rows.batch(np.array([i])).inputs)[0] for i in range(len(rows))]
    nonempty = torch.tensor([[float(bool(text.strip()))] for text in texts])
    return (torch.stack(vectors) * nonempty).numpy()
