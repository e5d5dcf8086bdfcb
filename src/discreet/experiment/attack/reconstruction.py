"""Reconstruct texts from releases of some rows; only the scoring sees the truth."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from discreet.attacks.base import Mixing, Need
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import AttackRequest, AttackResult, Callbacks, Example
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
from discreet.releases.description import READS, attacker_inputs, misfit_error, release_facts
from discreet.releases.protected import (
    Released,
    attacker_pairs,
    before_noise,
    epsilon_by_adjacency,
    fits,
    release_of,
)

_PUBLIC = 2000  # public texts that are encoded for attacks on vectors


def reconstruct(request: AttackRequest, scene: Scene, callbacks: Callbacks) -> AttackResult:
    """Select rows, release what a server would see of them, attack each release, and score the guesses.

    Guarantee: none for the result, which holds private texts; it states the guarantee of one release.
    """
    reject_misfit(request)
    start = time.monotonic()
    rng = Rng(request.seed)
    noise = Rng.secret() if request.noise_seed is None else Rng(request.noise_seed).fork("noise")
    metrics = (*metrics_for(request.attack, request.metrics), *further_metrics(request.attack, request.metrics))
    rows = scene.draw(request.examples, rng.fork("rows"), max_words=request.max_words)
    check_countable(request.metrics, rows.texts)
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
        if number and callbacks.should_stop():
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
            callbacks.watch(example)
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
