"""Releases of one training step, with and without protection, as a server sees them and gradient attacks read them.

Releases of single vectors are in `representation`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from discreet.clipping.tape import Tape
from discreet.core.guarantee import FLOATING_POINT, Adjacency, Guarantee, delta_for
from discreet.core.randomness import NOISE_FORMAT, Rng, digest
from discreet.core.types import GradientRelease, TextRelease
from discreet.data.batches import tokenise, tokens_for
from discreet.data.corpus import Corpus
from discreet.models.base import TextModel, evaluating
from discreet.models.classifier import classifier_of
from discreet.protections.base import (
    GradientProtection,
    Live,
    Once,
    PrivateSum,
    RepresentationProtection,
    check_protection,
    release_once,
    trusted,
)
from discreet.releases.hidden import check_public, check_units, hidden_batch, hidden_losses

ENCODER_OPEN = "the gradient of the encoder reveals its input, however its output is protected"
_KNOWN = "lengths and labels are known too"
ONE_RELEASE = "this one release alone, of vectors whose encoder is public or counted apart"


def open_release(model: TextModel, batch: Corpus) -> GradientRelease:
    """Return the mean gradient of a batch as an unprotected client would send it.

    Args:
        model: The model.
        batch: The rows of the batch.

    Guarantee: none, a gradient reveals its text.
    """
    sums, lengths = _gradient_sums(model, batch, None, Rng(0))
    return GradientRelease(
        gradients={name: value / len(batch) for name, value in sums.items()},
        batch_size=len(batch),
        divisor=float(len(batch)),
        lengths=lengths,
        labels=batch.labels,
    )


def protected_release(
    model: TextModel,
    batch: Corpus,
    protect: GradientProtection,
    rng: Rng,
    *,
    delta: float,
    adjacency: Adjacency | None = None,
) -> GradientRelease:
    """Return the protected gradient of a batch, with the guarantee of this one release alone.

    The receiver is assumed to know the batch, so sampling does not amplify privacy. The rows of one unit count as one
    example.

    Args:
        model: The model.
        batch: The rows of the batch.
        protect: The resolved protection.
        rng: The source of the noise; one with a fixed seed makes the guarantee an estimate.
        delta: Delta of the guarantee of this release.
        adjacency: That of the guarantee; by default the protection's own.

    Guarantee: that of one use of the protection, for each unit in the batch, in the release; an estimate unless `rng`
        is secret (`Rng.secret`), as anyone who knows its seed can subtract the noise.
    """
    from discreet.accounting.interpret import guarantee_of

    check_protection(protect, "gradient")
    rng = release_rng(rng, model, batch, protect)
    sums, lengths = _gradient_sums(model, batch, protect, rng.fork("directions"))
    noisy = release_once(protect, sums, rng.fork("noise"))
    units = float(batch.unit_count)
    stated = guarantee_of(
        protect.event,
        delta=delta,
        adjacency=adjacency or protect.adjacency,
        unit=batch.unit_name,
        assumptions=("this one release, the batch known", _KNOWN, FLOATING_POINT),
    )
    return GradientRelease(
        gradients={name: value / units for name, value in noisy.items()},
        batch_size=len(batch),
        divisor=units,
        noise_std=protect.noise_scale / units,
        lengths=lengths,
        labels=batch.labels,
        guarantee=trusted(protect, stated.from_seed(rng.is_secret)),
    )


def hidden_release(
    model: TextModel,
    batch: Corpus,
    protect: RepresentationProtection,
    rng: Rng,
    *,
    public: Corpus | None = None,
    delta: float | None = None,
) -> GradientRelease:
    """Return the mean gradient of a batch whose vectors are protected between encoder and head, as a client sends it.

    The receiver is assumed to know the batch, so sampling does not amplify privacy.

    Args:
        model: The model.
        batch: The rows of the batch.
        protect: The resolved protection.
        rng: The source of the noise; one with a fixed seed makes the guarantee an estimate.
        public: Public text that the protection mixes in.
        delta: Delta of the guarantee of this release.

    Guarantee: that of the protected vectors if only the head has a gradient; none with a gradient of the encoder, which
        depends on the tokens, and none for TextHide.
    """
    check_protection(protect, "representation")
    model = classifier_of(model, protect.name)
    protect.check(len(batch), len(batch))
    rng = release_rng(rng, model, batch, protect, public)
    tokens = tokenise(batch, model.tokenizer, model.max_length, model.device)
    other = None
    if protect.needs_public:
        other = tokenise(check_public(public, batch, protect), model.tokenizer, model.max_length, model.device)
    live = protect.live(len(batch), model.width, model.classes, rng, model.device)
    if protect.priced:
        check_units(batch, protect)
    rows = np.arange(len(batch), dtype=np.int64)
    hidden = hidden_batch(model, tokens, other, protect, live, rng, rows, 0, 0)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with evaluating(model):
        loss = hidden_losses(model, protect, live, hidden.inputs, hidden.targets).mean()
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    stated = one_release_guarantee(live.cost(0, 0)[0], protect, live, batch, rng, delta)
    stated = replace(stated, assumptions=(*stated.assumptions, _KNOWN))
    if stated.exists and not model.settings.frozen:
        stated = replace(stated, epsilon=float("inf"), certified=False, reason=ENCODER_OPEN)
    return GradientRelease(
        gradients=dict(zip(parameters, gradients, strict=True)),
        batch_size=len(batch),
        divisor=float(len(batch)),
        lengths=tuple(tokens.lengths.tolist()),
        labels=batch.labels,
        guarantee=stated,
    )


def rewritten_release(model: TextModel, batch: Corpus, protect: Any, rng: Rng, *, delta: float) -> GradientRelease:
    """Return the gradient of a batch whose texts are rewritten first; the gradient is post-processing.

    Args:
        model: The model.
        batch: The rows of the batch.
        protect: The resolved protection.
        rng: The source of the noise; one with a fixed seed makes the guarantee an estimate.
        delta: Delta of the guarantee of this release.

    Guarantee: that of the rewritten texts, in the release.
    """
    from discreet.accounting.interpret import guarantee_of

    check_protection(protect, TextRelease.kind)
    seen = open_release(model, protect.rewrite(batch, rng.fork("rewrite")))
    stated = guarantee_of(protect.cost(batch), delta=delta, adjacency=protect.adjacency, unit=batch.unit_name)
    return replace(seen, guarantee=trusted(protect, protect.stated(stated.from_seed(rng.is_secret))))


def release_rng(rng: Rng, *parts: Any) -> Rng:
    """Return a generator for one release: two releases from one secret must not share their noise.

    It depends on a number drawn from the secret and a hash of everything that is released: the model, the rows and the
    protection. So another generator from the same secret repeats its noise only for the same release. A fixed seed
    repeats its noise by design; the guarantee is then an estimate.
    """
    return rng.fork("release", int(rng.words(1)[0]), digest(NOISE_FORMAT, parts)) if rng.is_secret else rng


def one_release_guarantee(
    event: Any, of: RepresentationProtection, protect: Once | Live, corpus: Corpus, rng: Rng, delta: float | None
) -> Guarantee:
    """Return the guarantee of a protection of vectors, applied as `protect`, for one release of a corpus alone."""
    from discreet.accounting.interpret import guarantee_of

    delta = delta_for(corpus.unit_count) if delta is None else delta
    assumed = (ONE_RELEASE, FLOATING_POINT)
    stated = guarantee_of(
        event, delta=delta, adjacency=Adjacency.REPLACE_ONE, unit=corpus.unit_name, assumptions=assumed
    )
    return trusted(of, protect.stated(stated.from_seed(rng.is_secret)))


def _gradient_sums(
    model: TextModel, batch: Corpus, protect: GradientProtection | None, rng: Rng
) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
    """Return the sum of a batch's gradients, clipped if protected, and the lengths of its texts in tokens."""
    tokens = tokens_for(model, batch)
    rows = tokens.batch(np.arange(len(batch), dtype=np.int64))
    tape = Tape(model)
    with evaluating(model), tape:  # a client disables dropout for gradients that others will use
        losses = model.losses(rows.inputs, rows.targets)
    owners = None if batch.units is None else torch.from_numpy(batch.unit_index).to(model.device)
    record = tape.backward(losses, owners if protect is not None else None)
    sums: dict[str, torch.Tensor] = {}
    if protect is None:
        record.weighted_sum(torch.ones(len(record), device=model.device), into=sums)
    else:
        total = PrivateSum(protect, tape)
        total.add(record, rng)
        sums = total.sums
    return sums, tuple(tokens.lengths.tolist())
