"""One attack from text to leakage: rows, a release, what an attacker knows, its guess, how close it came."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from discreet.accounting.events import DpEvent
from discreet.attacks.base import Attack, Mixing, Need
from discreet.core.errors import invalid, open_probability, positive, setting, whole
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge, Leakage, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.data.samplers import FixedSize, Poisson, Sampler
from discreet.experiment.scene import Scene
from discreet.experiment.scoring import DEFAULT_METRICS, Example, compared, leakages, metrics_for, spelled
from discreet.metrics.table import METRICS, Compares
from discreet.models.classifier import Classifier
from discreet.models.encoder import unknown_share
from discreet.releases.description import READS, attacker_given, misfit, release_facts
from discreet.releases.protected import Released, as_they_leave, by_adjacency, fits, own_pairs, release_of

_PUBLIC = 2000  # public texts for attacks on vectors, which must encode them


@dataclass(frozen=True)
class Updates:
    """All updates of one training: how many, how often a unit is in one, and the event of all of them together.

    `per_step` is the number of units expected in an update, `certified` whether what the event costs is proven for it,
    and `caveats` are those of the training that it was taken from.
    """

    steps: int
    rate: float
    event: DpEvent = field(repr=False)
    per_step: float = 1.0
    certified: bool = True
    caveats: frozenset[Caveat] = frozenset()


@dataclass(frozen=True)
class AttackRequest:
    """What is asked of an attack: which one, against which protection, on how much text, for how long.

    `protect` is the protection itself, or None for what an unprotected client sends. `delta` is that of the one
    release attacked. `seconds` is an upper limit on the time of the search in each batch; what comes before, as fitting
    a prior, is not counted. Searches count their steps, so without it the result does not depend on the machine.
    `noise_seed` makes the noise repeatable, and the guarantee an estimate; without it noise comes from the
    operating system. `candidates` counts what an attacker chooses among: 64 for 1-of-n, the whole split for vectors.
    `steps` is how often the same rows are released, `draws` is for 1-of-n, which reads all `updates` of a training
    where they are given, and `steps` releases of one record where not.
    With `first_words` only so many first words of each text go into the gradient that is attacked.
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

    def __post_init__(self) -> None:
        """Reject settings outside their rules."""
        whole("batch_size", self.batch_size, 1, "It counts the texts in one release.")
        whole("examples", self.examples, 1, "It counts the texts to attack.")
        if self.examples % self.batch_size:
            remedy = "Every release has a whole batch."
            raise invalid("examples", self.examples, f"a multiple of {setting('batch_size', self.batch_size)}", remedy)
        if self.max_words is not None:
            whole("max_words", self.max_words)
        if self.first_words is not None:
            whole("first_words", self.first_words)
            if self.attack.sees is not GradientRelease:
                remedy = "Other attacks look for whole texts among candidates; leave it out."
                raise invalid("first_words", self.first_words, "left out except for attacks on a gradient", remedy)
        if self.seconds is not None:
            positive("seconds", self.seconds, "It is the time for each batch; leave it out to let the attack finish.")
        open_probability("delta", self.delta, "It belongs to the one release that is attacked; 1e-5 is usual.")
        whole("metrics", len(self.metrics), 1, "Name at least one.")
        if self.candidates is not None:
            whole("candidates", self.candidates, 2, "One of at least two.")
        whole("draws", self.draws, 1, "20000 give an interval of a few parts in a thousand.")
        whole("steps", self.steps, 1, "It counts the releases of the same record.")

    @property
    def label(self) -> str:
        """The attack's name, as the request has it, or as the catalog has it."""
        return self.name or self.attack.name or type(self.attack).__name__


@dataclass(frozen=True)
class AttackResult:
    """What an attack reached, on which release, and what is guaranteed for that release: never for a training.

    Of several releases it is the one with the largest epsilon. `preparing` is the part of `seconds` before the first
    release: public text is encoded then, a prior fitted. `stopped` counts the searches that a time limit ended early.

    `bound` is what no attack can exceed, where accounting knows it: for 1-of-n identification. `unknown_share` is the
    share of tokens of the attacked texts that the tokenizer does not know, computed from private text for its owner.
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

    @property
    def n(self) -> int:
        """How many times it was tried."""
        return self.leakages[0].n if self.leakages else 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        promise = self.guarantee
        return {
            "attack": self.attack,
            "n": self.n,
            "leakage": [dataclasses.asdict(leakage) for leakage in self.leakages],
            "examples": [example.as_dict() for example in self.examples],
            "release": dict(self.release),
            "guarantee": None if promise is None else {**promise.as_dict(), "sentence": promise.sentence()},
            "epsilon_by_adjacency": dict(self.epsilon_by_adjacency),
            **({} if self.bound is None else {"bound": self.bound}),
            "finished": self.finished,
            "seconds": self.seconds,
            "preparing": self.preparing,
            "stopped_by_time_limit": self.stopped,
            "unknown_share": self.unknown_share,
        }


def run_attack(
    request: AttackRequest,
    scene: Scene,
    *,
    watch: Callable[[Example], None] = lambda example: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> AttackResult:
    """Take rows, release what a server would see of them, attack each release, and compare guesses with truths.

    The attack is given the release and its knowledge; only the comparison sees the truth. The same seed attacks the
    same rows of a scene whatever the protection, so that results can be set side by side.

    Guarantee: none for the result, which holds private texts; that of one release is in it.
    """
    from discreet.experiment.identification import identify

    if request.attack.identifies:
        if request.first_words is not None:
            raise invalid("first_words", request.first_words, "left out for 1-of-n", "It names whole texts.")
        return identify(request, scene)
    reject_misfit(request)
    began = time.monotonic()
    rng = Rng(request.seed)
    noise = Rng.secret() if request.noise_seed is None else Rng(request.noise_seed).fork("noise")
    metrics = metrics_for(request.attack, request.metrics)
    rows = scene.draw(request.examples, rng.fork("rows"), max_words=request.max_words)
    attack = request.attack.within(request.seconds).informed(mixing(request))
    model = attack.craft(scene.model, rng.fork("craft"))
    knows = knowledge(request, scene, model, rows)  # which holds nothing of the texts under attack, whole or cut
    hidden = rows.texts
    rows = beginnings(rows, request.first_words)
    preparing = time.monotonic() - began
    examples: list[Example] = []
    facts: dict[str, Any] = {}
    promise: Guarantee | None = None
    finished, stopped = True, 0
    for number in range(len(rows) // request.batch_size):
        if number and should_stop():
            finished = False
            break
        batch = rows.take(range(number * request.batch_size, (number + 1) * request.batch_size))
        made = released(request, model, batch, noise.fork("release", number), scene.partners(request.protect, batch))
        guess = attack.run(made.seen, knows, rng.fork("attack", number))
        stopped += bool(guess.details.get("stopped_by_time_limit"))
        behind = batch if made.rows is None or not attack.aligned else batch.take(made.rows)
        found = compared(attack, guess, behind, model, metrics, number)
        if not number:
            facts = release_facts(
                made.seen,
                model,
                scene.origin,
                request.protect,
                batch_size=request.batch_size,
                steps=request.steps,
                first_words=request.first_words,
            )
            facts["given"] = attacker_given(made.seen, knows, hidden, scene.public_origin, attack.crafts)
        promise = with_larger_epsilon(promise, made.seen.guarantee)
        examples += found
        for example in found:
            watch(example)
    return AttackResult(
        attack=request.label,
        leakages=leakages(examples, metrics, rng.fork("leakage"), _chosen_among(knows, model, metrics)),
        examples=tuple(examples),
        release=facts,
        guarantee=promise,
        epsilon_by_adjacency=by_adjacency(request.protect, request.delta, promise=promise),
        seconds=time.monotonic() - began,
        finished=finished,
        preparing=preparing,
        stopped=stopped,
        unknown_share=unknown_share(model.tokenizer, rows.texts),
    )


def released(
    request: AttackRequest, model: Classifier, batch: Corpus, noise: Rng, public: Corpus | None = None
) -> Released:
    """Return exactly what a server would see of a batch: the kind that the attack sees, under the protection.

    Guarantee: that of the protection for this one release, in the release; none without one.
    """
    reject_misfit(request)
    sees, protect = request.attack.sees, request.protect
    return release_of(sees, protect, model, batch, noise, delta=request.delta, steps=request.steps, public=public)


def reject_misfit(request: AttackRequest) -> None:
    """Reject an attack on what its protection does not release, before any work is done for it."""
    kind, protect = request.attack.sees.kind, request.protect
    if not fits(kind, protect):
        raise misfit(request.label, READS[kind], protect.name, protect.place)


def _chosen_among(knows: Knowledge, model: Classifier, metrics: Sequence[str]) -> list[str]:
    """Return the candidates as guesses are spelled, where a metric compares with them."""
    if not any(METRICS[metric].compares is Compares.CANDIDATES for metric in metrics):
        return []
    return [spelled(model, text) for text in knows.candidates]


def knowledge(request: AttackRequest, scene: Scene, model: Classifier, rows: Corpus) -> Knowledge:
    """Return what the attacker has besides the release: the public model, public text, the settings of the defence.

    An attack with a prior over text gets one fitted to the public text. An attack on vectors gets candidates with
    theirs: the texts under attack among others of their kind, in an order that says nothing.
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
        extra["vectors"] = as_they_leave(request.protect, scene.vectors(candidates))
        if public:  # as vectors of the release are: a projection has other coordinates than the encoder
            extra |= {
                need.value: as_they_leave(request.protect, scene.vectors(public))
                for need in (Need.PUBLIC_VECTORS, Need.AUXILIARY_VECTORS)
                if need in needs
            }
        if Need.PAIRS in needs:
            own = scene.own(public, len(rows))
            extra[Need.PAIRS.value] = own_pairs(
                request.protect, model, own, Rng(request.seed).fork("own"), delta=request.delta, steps=request.steps
            )
    return Knowledge(model, auxiliary=public, candidates=candidates, defence=request.protect, extra=extra)


def beginnings(rows: Corpus, words: int | None) -> Corpus:
    """Return rows cut to so many first words, or as they are.

    >>> beginnings(Corpus("toy", ("a b c", "d")), 2).texts
    ('a b', 'd')
    """
    if words is None:
        return rows
    return dataclasses.replace(rows, texts=tuple(" ".join(text.split()[:words]) for text in rows.texts))


def with_larger_epsilon(first: Guarantee | None, second: Guarantee | None) -> Guarantee | None:
    """Return what holds for either of two releases: the larger epsilon, as a longer text may cost more."""
    if first is None or second is None:
        return second or first
    return first if first.epsilon >= second.epsilon else second


def mixing(request: AttackRequest) -> Mixing:
    """Return what the public settings of the defence say about released vectors."""
    protect = request.protect
    if protect is None:
        return Mixing(request.batch_size)
    return Mixing(request.batch_size, protect.mixes, protect.mask_count, protect.masked)


def rate_of(sampler: Sampler | None, units: int) -> float | None:
    """Return how likely a unit is to be in one update, where the sampler draws every update afresh."""
    if isinstance(sampler, Poisson):
        return sampler.rate
    return sampler.size / units if isinstance(sampler, FixedSize) else None
