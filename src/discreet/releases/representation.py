"""Releases of vectors: those that a server would see of a corpus, and the truth, for scoring an attack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from discreet.core.randomness import Rng
from discreet.core.types import RepresentationRelease
from discreet.data.batches import Vectors
from discreet.data.corpus import Corpus
from discreet.models.build import encode
from discreet.models.classifier import Classifier
from discreet.protections.base import RepresentationProtection, check_protection
from discreet.releases.gradient import one_release_guarantee, release_rng
from discreet.releases.hidden import check_public, check_units, draw_hidden


@dataclass(frozen=True, repr=False)
class Mixture:
    """The truth of a release of vectors, for scoring an attack: the rows in each output and their weights.

    `rows` and `weights` are (outputs, rows), the largest weight first; a public partner is row -1.
    """

    rows: torch.Tensor
    weights: torch.Tensor


def representation_release(
    model: Classifier,
    corpus: Corpus,
    protect: RepresentationProtection | None,
    rng: Rng,
    *,
    public: Corpus | None = None,
    batch_size: int = 32,
    epochs: int = 1,
    delta: float | None = None,
    cache: Path | None = None,
) -> tuple[RepresentationRelease, Mixture]:
    """Return the vectors that a server would see of a corpus, and their truth, which is not released.

    A stored protection releases all rows once. A live one releases every row once per epoch in random batches, or a
    fixed number of rows at every step, sampled and shuffled as in training. Without a protection the vectors are
    released unchanged. Vectors are in the order of the outputs, with their labels or mixtures of labels.

    Args:
        model: The model.
        corpus: The rows that are released.
        protect: The resolved protection, or None.
        rng: The source of the noise; one with a fixed seed makes the guarantee an estimate.
        public: Public text that the protection mixes in.
        batch_size: The number of rows in a batch of a live protection.
        epochs: How often every row is released by a live protection.
        delta: Delta of the guarantee of this release.
        cache: A folder for the outputs of a frozen encoder.

    Guarantee: that of the protection for this release alone, in the release; none without a protection.
    """
    if protect is not None:
        check_protection(protect, "representation")
    rows = encode(model, corpus, cache, "float32")
    if protect is None:
        return RepresentationRelease(rows.vectors.clone(), rows.targets), _unmixed(len(rows))
    rng = release_rng(rng, model, corpus, protect, public, batch_size, epochs)
    if protect.stored:
        return _stored_vectors(model, corpus, protect, rows, rng, delta)
    others = None
    if protect.needs_public:
        others = encode(model, check_public(public, corpus, protect), cache, "float32").vectors
    return _live_vectors(model, corpus, protect, rows, others, rng, batch_size, epochs, delta)


def _stored_vectors(
    model: Classifier,
    corpus: Corpus,
    protect: RepresentationProtection,
    rows: Vectors,
    rng: Rng,
    delta: float | None,
) -> tuple[RepresentationRelease, Mixture]:
    """Return all rows, released once."""
    once = protect.once(corpus.unit_index, model.width, model.classes, rng)
    # as sent, before any post-processing by the server
    vectors, labels = once.send(rows.vectors, rows.targets)
    truth = _unmixed(len(rows))
    if once.partners is not None and once.weights is not None:
        weights = torch.from_numpy(once.weights)
        order = weights.argsort(dim=1, descending=True)
        truth = Mixture(torch.from_numpy(once.partners).gather(1, order), weights.gather(1, order).float())
    stated = one_release_guarantee(once.event, protect, once, corpus, rng, delta)
    return RepresentationRelease(vectors, labels, guarantee=stated), truth


def _live_vectors(
    model: Classifier,
    corpus: Corpus,
    protect: RepresentationProtection,
    rows: Vectors,
    others: torch.Tensor | None,
    rng: Rng,
    batch_size: int,
    epochs: int,
    delta: float | None,
) -> tuple[RepresentationRelease, Mixture]:
    """Return the rows of some epochs, released batch by batch as in training."""
    from discreet.accounting.events import ComposedDpEvent

    count = len(rows)
    live = protect.live(count, model.width, model.classes, rng, model.device)
    size = min(batch_size, count)
    if protect.priced:
        protect.check(size, count)
        check_units(corpus, protect)
    sampler = protect.sampler_for(size, corpus.unit_count, count)
    per_epoch = sampler.steps_per_epoch(count)
    released, targets, partners, weights = [], [], [], []
    events: dict[str, Any] = {}  # each name once, as in a ledger
    for step in range(epochs * per_epoch):
        epoch = step // per_epoch
        batch = draw_hidden(sampler, step, count, rng)
        event, name = live.cost(step, epoch, len(batch))
        events[name] = event
        index = torch.from_numpy(batch).to(model.device)
        secrets = live.draw(batch, (len(batch), model.width), step, epoch)
        public = None
        if others is not None:
            sample = rng.fork("public", step).numpy("release").integers(0, len(others), len(batch))
            public = others[torch.from_numpy(sample).to(model.device)]
        vectors, labels = live.hide(rows.vectors[index], rows.targets[index], secrets, public)
        released.append(vectors)
        targets.append(labels)
        mixed = secrets["mix"].cpu() if "mix" in secrets else torch.eye(len(batch))
        largest = mixed.topk(min(protect.mixes, mixed.shape[1]), dim=1)
        padded = torch.cat([torch.from_numpy(batch), torch.full((mixed.shape[1] - len(batch),), -1)])
        partners.append(padded[largest.indices])
        weights.append(largest.values)
    width = max(part.shape[1] for part in partners)
    truth = Mixture(
        torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1]), value=-1) for part in partners]),
        torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in weights]),
    )
    cost = next(iter(events.values())) if len(events) == 1 else ComposedDpEvent(list(events.values()))
    stated = one_release_guarantee(cost, protect, live, corpus, rng, delta)
    return RepresentationRelease(torch.cat(released), torch.cat(targets), guarantee=stated), truth


def _unmixed(count: int) -> Mixture:
    """Return the truth of vectors of one row each."""
    return Mixture(torch.arange(count)[:, None], torch.ones(count, 1))
