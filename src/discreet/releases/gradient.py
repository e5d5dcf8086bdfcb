"""Exactly what a server would see of one step, before and after protection: what the gradient attacks are given.

Vectors that leave one by one are in `representation`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from discreet.clipping.tape import Tape
from discreet.core.guarantee import FLOATING_POINT, Adjacency, Guarantee
from discreet.core.randomness import NOISE_FORMAT, Rng, digest
from discreet.core.types import GradientRelease, TextRelease
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.base import GradientProtection, Live, Once, RepresentationProtection, check_protection
from discreet.training.plan import delta_for
from discreet.training.private import as_drawn

ENCODER_OPEN = "the gradient of the encoder shows what went into it, whatever was done to its output"
_KNOWN = "lengths and labels are known too"
ONE_RELEASE = "this one release alone, of vectors whose encoder is public or counted apart"


def open_release(model: Classifier, batch: Corpus) -> GradientRelease:
    """Return the mean gradient of a batch as an unprotected client would send it.

    Guarantee: none, a gradient gives its text away.
    """
    sums, lengths = _sums(model, batch, None, Rng(0))
    return GradientRelease(
        gradients={name: value / len(batch) for name, value in sums.items()},
        batch_size=len(batch),
        divisor=float(len(batch)),
        lengths=lengths,
        labels=batch.labels,
    )


def protected_release(
    model: Classifier,
    batch: Corpus,
    protect: GradientProtection,
    rng: Rng,
    *,
    delta: float,
    adjacency: Adjacency | None = None,
) -> GradientRelease:
    """Return the gradient of a batch as it leaves a protection, with the guarantee of this one release alone.

    The batch is taken to be known to the receiver, so nothing is gained by sampling, and the rows of one unit count as
    one example.

    Guarantee: that of one use of the protection, for each unit in the batch, in the release; an estimate unless `rng`
        is secret (`Rng.secret`), as whoever knows its seed can take the noise away.
    """
    from discreet.accounting.interpret import guarantee

    check_protection(protect, "gradient")
    rng = fresh(rng, model, batch, protect)
    sums, lengths = _sums(model, batch, protect, rng.fork("directions"))
    released = protect.release(sums, rng.fork("noise"))
    units = float(batch.unit_count)
    return GradientRelease(
        gradients={name: value / units for name, value in released.items()},
        batch_size=len(batch),
        divisor=units,
        noise_std=protect.noise_scale / units,
        lengths=lengths,
        labels=batch.labels,
        guarantee=as_drawn(
            guarantee(
                protect.event,
                delta=delta,
                adjacency=adjacency or protect.adjacency,
                unit=batch.unit_name,
                assumptions=("this one release, the batch known", _KNOWN, FLOATING_POINT),
            ),
            rng,
        ),
    )


def hidden_release(
    model: Classifier,
    batch: Corpus,
    protect: RepresentationProtection,
    rng: Rng,
    *,
    public: Corpus | None = None,
    delta: float | None = None,
) -> GradientRelease:
    """Return the mean gradient of a batch whose vectors were hidden between encoder and head, as a client sends it.

    The batch is taken to be known to the receiver, so nothing is gained by sampling.

    Guarantee: that of the hidden vectors where the gradient is of the head alone; none with the encoder's, which still
        comes from the tokens, and none for TextHide.
    """
    from discreet.training.hidden import hidden_batch, hidden_losses, refuse_units, same_kind

    check_protection(protect, "representation")
    protect.check(len(batch), len(batch))
    rng = fresh(rng, model, batch, protect, public)
    tokens = tokenise(batch, model.tokenizer, model.max_length, model.device)
    other = None
    if protect.needs_public:
        other = tokenise(same_kind(public, batch, protect), model.tokenizer, model.max_length, model.device)
    live = protect.live(len(batch), model.width, model.classes, rng, model.device)
    if protect.priced:
        refuse_units(batch, protect)
    drawn = np.arange(len(batch), dtype=np.int64)
    hidden = hidden_batch(model, tokens, other, protect, live, rng, drawn, 0, 0)
    was_training = model.training
    model.eval()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    loss = hidden_losses(model, protect, live, hidden.inputs, hidden.targets).mean()
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    model.train(was_training)
    gradients = {
        name: torch.zeros_like(p) if gradient is None else gradient
        for (name, p), gradient in zip(parameters.items(), found, strict=True)
    }
    promise = of_one_release(live.cost(0, 0)[0], live, batch, rng, delta)
    promise = replace(promise, assumptions=(*promise.assumptions, _KNOWN))
    if promise.exists and not model.settings.frozen:
        promise = replace(promise, epsilon=float("inf"), certified=False, reason=ENCODER_OPEN)
    return GradientRelease(
        gradients=gradients,
        batch_size=len(batch),
        divisor=float(len(batch)),
        lengths=tuple(tokens.lengths.tolist()),
        labels=batch.labels,
        guarantee=promise,
    )


def rewritten_release(model: Classifier, batch: Corpus, protect: Any, rng: Rng, *, delta: float) -> GradientRelease:
    """Return the gradient of a batch whose texts were rewritten first; what follows is post-processing.

    Guarantee: that of the rewritten texts, in the release.
    """
    from discreet.accounting.interpret import guarantee

    check_protection(protect, TextRelease.kind)
    seen = open_release(model, protect.rewrite(batch, rng.fork("rewrite")))
    promise = guarantee(protect.cost(batch), delta=delta, adjacency=protect.adjacency, unit=batch.unit_name)
    return replace(seen, guarantee=protect.stated(as_drawn(promise, rng)))


def fresh(rng: Rng, *released: Any) -> Rng:
    """Return a source of a release's own: two releases from one secret must not share their noise.

    It holds a number drawn from the source and a hash of all that is released: the model, the rows and the protection.
    So another source made from the same secret repeats its noise only for the same release. A fixed seed repeats its
    noise, which is what it is for; the guarantee is then an estimate.
    """
    return rng.fork("release", int(rng.words(1)[0]), digest(NOISE_FORMAT, released)) if rng.is_secret else rng


def of_one_release(event: Any, about: Once | Live, corpus: Corpus, rng: Rng, delta: float | None) -> Guarantee:
    """Return what a protection of vectors guarantees for one release of a corpus alone."""
    from discreet.accounting.interpret import guarantee

    at = delta_for(corpus.unit_count) if delta is None else delta
    assumed = (ONE_RELEASE, FLOATING_POINT)
    found = guarantee(event, delta=at, adjacency=Adjacency.REPLACE_ONE, unit=corpus.unit_name, assumptions=assumed)
    return about.stated(as_drawn(found, rng))


def _sums(
    model: Classifier, batch: Corpus, protect: GradientProtection | None, rng: Rng
) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
    """Return the sum of a batch's gradients, protected or not, and the lengths of its texts in tokens."""
    tokens = tokenise(batch, model.tokenizer, model.max_length, model.device)
    drawn = tokens.batch(np.arange(len(batch), dtype=np.int64))
    tape = Tape(model)
    was_training = model.training
    model.eval()  # a client that sends gradients for others to use switches dropout off
    with tape:
        losses = model.losses(drawn.inputs, drawn.targets)
    model.train(was_training)
    owners = None if batch.units is None else torch.from_numpy(batch.unit_index).to(model.device)
    record = tape.backward(losses, owners if protect is not None else None)
    sums: dict[str, torch.Tensor] = {}
    if protect is None:
        record.weighted_sum(torch.ones(len(record), device=model.device), into=sums)
    else:
        protect.gather(record, sums, rng)
    return sums, tuple(tokens.lengths.tolist())
