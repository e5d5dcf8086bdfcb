"""The vectors that a server would see of a corpus, and beside them the truth, for whoever measures an attack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from discreet.core.randomness import Rng
from discreet.core.types import RepresentationRelease
from discreet.data.batches import Vectors
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.base import RepresentationProtection, check_protection
from discreet.releases.gradient import fresh, of_one_release
from discreet.training.encode import encode


@dataclass(frozen=True, repr=False)
class Mixture:
    """The truth behind a release of vectors, for whoever measures an attack: which rows are in an output, how much.

    `rows` and `weights` have one line per output, heaviest first; a public partner is row -1.
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
    """Return the vectors that a server would see of a corpus, and the truth behind them, which is no part of it.

    A stored protection releases all rows once; a live one hides every row once an epoch, in batches drawn at random, or
    a fixed number of rows at every step, drawn and shuffled as in training.
    Without a protection the vectors leave as they are. Vectors come in the order of the outputs, with their labels or
    mixtures of labels.

    Guarantee: that of the protection for this release alone, in the release; none without one.
    """
    if protect is not None:
        check_protection(protect, "representation")
    rows = encode(model, corpus, cache, "float32")
    if protect is None:
        return RepresentationRelease(rows.vectors.clone(), rows.targets), _alone(len(rows))
    rng = fresh(rng, model, corpus, protect, public, batch_size, epochs)
    if protect.stored:
        return _stored_vectors(model, corpus, protect, rows, rng, delta)
    others = None
    if protect.needs_public:
        from discreet.training.hidden import same_kind

        others = encode(model, same_kind(public, corpus, protect), cache, "float32").vectors
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
    # what is sent, not what a server then makes of it
    vectors, labels = once.send(rows.vectors, rows.targets)
    truth = _alone(len(rows))
    if once.partners is not None and once.weights is not None:
        truth = _heaviest(torch.from_numpy(once.partners), torch.from_numpy(once.weights))
    promise = of_one_release(once.event, once, corpus, rng, delta)
    return RepresentationRelease(vectors, labels, guarantee=promise), truth


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
    """Return the rows of some epochs, hidden batch by batch as in training."""
    from discreet.training.hidden import draw_hidden, refuse_units
    from discreet.training.plan import sampler_for

    count = len(rows)
    live = protect.live(count, model.width, model.classes, rng, model.device)
    size = min(batch_size, count)
    if protect.priced:
        protect.check(size, count)
        refuse_units(corpus, protect)
    sampler = sampler_for(protect, size, corpus.unit_count, count)
    per_epoch = sampler.steps_per_epoch(count)
    seen, told, whose, weights = [], [], [], []
    counted: dict[str, Any] = {}  # each name once, as in a ledger
    for step in range(epochs * per_epoch):
        epoch = step // per_epoch
        drawn = draw_hidden(sampler, step, count, rng)
        event, name = live.cost(step, epoch, len(drawn))
        counted[name] = event
        chosen = torch.from_numpy(drawn).to(model.device)
        secrets = live.draw(drawn, (len(drawn), model.width), step, epoch)
        beside = None
        if others is not None:
            picked = rng.fork("public", step).numpy("release").integers(0, len(others), len(drawn))
            beside = others[torch.from_numpy(picked).to(model.device)]
        vectors, labels = live.hide(rows.vectors[chosen], rows.targets[chosen], secrets, beside)
        seen.append(vectors)
        told.append(labels)
        mixed = secrets["mix"].cpu() if "mix" in secrets else torch.eye(len(drawn))
        heaviest = mixed.topk(min(protect.mixes, mixed.shape[1]), dim=1)
        padded = torch.cat([torch.from_numpy(drawn), torch.full((mixed.shape[1] - len(drawn),), -1)])
        whose.append(padded[heaviest.indices])
        weights.append(heaviest.values)
    most = max(part.shape[1] for part in whose)
    truth = Mixture(
        torch.cat([torch.nn.functional.pad(part, (0, most - part.shape[1]), value=-1) for part in whose]),
        torch.cat([torch.nn.functional.pad(part, (0, most - part.shape[1])) for part in weights]),
    )
    promise = of_one_release(_composed(list(counted.values())), live, corpus, rng, delta)
    return RepresentationRelease(torch.cat(seen), torch.cat(told), guarantee=promise), truth


def _alone(count: int) -> Mixture:
    """Return the truth behind vectors of one row each."""
    return Mixture(torch.arange(count)[:, None], torch.ones(count, 1))


def _heaviest(rows: torch.Tensor, weights: torch.Tensor) -> Mixture:
    order = weights.argsort(dim=1, descending=True)
    return Mixture(rows.gather(1, order), weights.gather(1, order).float())


def _composed(events: list[Any]) -> Any:
    """Return the cost of all events together."""
    from discreet.accounting.events import ComposedDpEvent

    return events[0] if len(events) == 1 else ComposedDpEvent(events)
