"""Reconstruct texts from releases of some rows; only the scoring sees the truth."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from discreet.attacks.base import Attack, Mixing, Need
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, Release, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import AttackRequest, Callbacks, Example, Findings
from discreet.experiment.attack.scene import Scene
from discreet.experiment.attack.scoring import (
    check_countable,
    further_metrics,
    measure_leakage,
    metrics_for,
    score_guess,
    tokenizer_spelling,
)
from discreet.metrics.table import METRICS, Compares
from discreet.models import encoder
from discreet.models.base import TextModel
from discreet.releases.description import attacker_inputs, release_facts
from discreet.releases.protected import (
    Released,
    attacker_pairs,
    before_noise,
    epsilon_by_adjacency,
    release_of,
)

_PUBLIC = 2000  # public texts that are encoded for attacks on vectors


class Releases(ABC):
    """Releases to attack one after the other, from rows of a scene or from recorded messages."""

    finished: bool = True  # False if the owner stopped the attack before the last one

    @abstractmethod
    def each(self) -> Iterator[Attacked]:
        """Yield the releases, each made or read when it is needed."""

    @abstractmethod
    def facts(self, first: Attacked) -> dict[str, Any]:
        """Return what the attacker sees and knows, as plain values, from the first release."""

    def is_enough(self, examples: int) -> bool:
        """Return whether so many scored examples are those that were requested, though there are more releases."""
        return False

    def unread(self, metrics: Sequence[str]) -> tuple[list[Example], dict[str, Any]]:
        """Return the examples and facts of an attack to which no release was readable."""
        return [], {}

    def candidates(self, first: Attacked) -> Sequence[str]:
        """Return the texts that the attacker chooses among."""
        return ()

    def unknown_share(self) -> float:
        """Return the share of tokens in the attacked texts that the tokenizer does not know."""
        return 0.0


@dataclass(frozen=True)
class Attacked:
    """One release: its number, what the attacker sees and knows, and the truth, which the attacker never holds.

    `rows` are those of the truth that each released vector belongs to.
    """

    number: int
    seen: Release
    knows: Knowledge
    model: TextModel
    truth: Corpus
    rows: tuple[int, ...] | None = None


def read_each(
    request: AttackRequest, attack: Attack, releases: Releases, metrics: Sequence[str], callbacks: Callbacks
) -> Findings:
    """Attack releases one after the other and score the guesses, until there are enough examples.

    Guarantee: none for the result, which holds private texts; it states the guarantee of one release.
    """
    rng = Rng(request.seed)
    examples: list[Example] = []
    facts: dict[str, Any] = {}
    candidates: Sequence[str] = ()
    guarantee: Guarantee | None = None
    stopped = 0
    for one in releases.each():
        guess = attack.run(one.seen, one.knows, rng.fork("attack", one.number))
        stopped += bool(guess.details.get("stopped_by_time_limit"))
        truth = one.truth if one.rows is None or not attack.aligned else one.truth.take(one.rows)
        scored = score_guess(attack, guess, truth, one.model, metrics, one.number)
        if not facts:
            facts, candidates = releases.facts(one), releases.candidates(one)
        guarantee = with_larger_epsilon(guarantee, one.seen.guarantee)
        examples += scored
        for example in scored:
            callbacks.watch(example)
        if releases.is_enough(len(examples)):
            break
    if not examples:
        examples, facts = releases.unread(metrics)
    return Findings(
        leakages=measure_leakage(examples, metrics, rng.fork("leakage"), candidates),
        examples=tuple(examples),
        release=facts,
        guarantee=guarantee,
        finished=releases.finished,
        stopped=stopped,
        unknown_share=releases.unknown_share(),
    )


def reconstruct(request: AttackRequest, scene: Scene, callbacks: Callbacks) -> Findings:
    """Select rows, release what a server would see of them, attack each release, and score the guesses.

    Guarantee: none for the result, which holds private texts; it states the guarantee of one release.
    """
    start, rng = time.monotonic(), Rng(request.seed)
    metrics = (*metrics_for(request.attack, request.metrics), *further_metrics(request.attack, request.metrics))
    rows = scene.draw(request.examples, rng.fork("rows"), max_words=request.max_words)
    check_countable(request.metrics, rows.texts)
    attack = request.attack.within(request.seconds).informed(mixing(request))
    model = attack.craft(scene.model, rng.fork("craft"))
    knows = knowledge(request, scene, model, rows)  # excludes the attacked texts, truncated or not
    compared = any(METRICS[metric].compares is Compares.CANDIDATES for metric in metrics)
    releases = RowReleases(request, scene, rows, model, knows, compared, callbacks.should_stop)
    preparing = time.monotonic() - start
    found = read_each(request, attack, releases, metrics, callbacks)
    columns = epsilon_by_adjacency(request.protect, request.delta, stated=found.guarantee)
    return replace(found, epsilon_by_adjacency=columns, preparing=preparing)


@dataclass
class RowReleases(Releases):
    """Releases of rows of a scene, as many texts in each as a batch has."""

    request: AttackRequest
    scene: Scene
    rows: Corpus
    model: TextModel
    knows: Knowledge
    compared: bool  # whether a metric compares candidates
    should_stop: Callable[[], bool]

    def each(self) -> Iterator[Attacked]:
        """Yield the release of each batch; its noise comes from the operating system, or from the request's seed."""
        request, rows = self.request, self._attacked
        noise = Rng.secret() if request.noise_seed is None else Rng(request.noise_seed).fork("noise")
        for number in range(len(rows) // request.batch_size):
            if number and self.should_stop():
                self.finished = False
                return
            batch = rows.take(range(number * request.batch_size, (number + 1) * request.batch_size))
            partners = self.scene.partners(request.protect, batch)
            release = make_release(request, self.model, batch, noise.fork("release", number), partners)
            yield Attacked(number, release.seen, self.knows, self.model, batch, release.rows)

    def facts(self, first: Attacked) -> dict[str, Any]:
        """Return the size of the release, the protection, and what the attacker was given."""
        request, scene = self.request, self.scene
        facts = release_facts(
            first.seen,
            self.model,
            scene.origin,
            request.protect,
            batch_size=request.batch_size,
            steps=request.steps,
            first_words=request.first_words,
        )
        inputs = attacker_inputs(first.seen, self.knows, self.rows.texts, scene.public_origin, request.attack.crafts)
        return {**facts, "given": inputs}

    def candidates(self, first: Attacked) -> Sequence[str]:
        """Return the candidates as the tokenizer spells them, if a metric compares them."""
        return [tokenizer_spelling(self.model, text) for text in self.knows.candidates] if self.compared else ()

    def unknown_share(self) -> float:
        """Return the share of unknown tokens in the attacked texts."""
        return encoder.unknown_share(self.model.tokenizer, self._attacked.texts)

    @property
    def _attacked(self) -> Corpus:
        return truncate_words(self.rows, self.request.first_words)


def make_release(
    request: AttackRequest, model: TextModel, batch: Corpus, noise: Rng, public: Corpus | None = None
) -> Released:
    """Return what a server would see of a batch under the protection, as the type that the attack reads.

    Guarantee: that of the protection for this one release, in the release; none without a protection.
    """
    sees, protect = request.attack.sees, request.protect
    return release_of(sees, protect, model, batch, noise, delta=request.delta, steps=request.steps, public=public)


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
    return replace(rows, texts=tuple(" ".join(text.split()[:words]) for text in rows.texts))


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
