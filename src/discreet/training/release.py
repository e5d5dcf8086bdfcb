"""Exactly what a server would see of one step, before and after protection: what the gradient attacks are given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.clipping.tape import Tape
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, RepresentationRelease
from discreet.data.batches import Vectors, tokenise
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.gradient import GradientProtection
from discreet.protections.representation import Live, Once, RepresentationProtection
from discreet.training.encode import encode
from discreet.training.private import as_drawn, delta_for

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

    rng = _fresh(rng)
    sums, lengths = _sums(model, batch, protect, rng.fork("directions"))
    released = protect.release(sums, rng.fork("noise"))
    units = float(batch.unit_count)
    return GradientRelease(
        gradients={name: value / units for name, value in released.items()},
        batch_size=len(batch),
        divisor=units,
        noise_std=getattr(protect, "noise_multiplier", 0.0) * getattr(protect, "clip_norm", 0.0) / units,
        lengths=lengths,
        labels=batch.labels,
        guarantee=as_drawn(
            guarantee(
                protect.event,
                delta=delta,
                adjacency=adjacency or protect.adjacency,
                unit=batch.unit_name,
                assumptions=("this one release, the batch known", _KNOWN),
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

    protect.check(len(batch), len(batch))
    rng = _fresh(rng)
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
    promise = _guarantee(live.cost(0, 0)[0], live, batch, rng, delta)
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
    rows = encode(model, corpus, cache, "float32")
    if protect is None:
        return RepresentationRelease(rows.vectors.clone(), rows.targets), _alone(len(rows))
    rng = _fresh(rng)
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
    once: Any = protect.once(corpus.unit_index, model.width, model.classes, rng)
    # what is sent, not what a server then makes of it
    vectors, labels = getattr(once, "send", once)(rows.vectors, rows.targets)
    truth = _alone(len(rows))
    if getattr(once, "partners", None) is not None:
        truth = _heaviest(torch.from_numpy(once.partners), torch.from_numpy(once.weights))
    promise = _guarantee(once.event, once, corpus, rng, delta)
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
    from discreet.training.hidden import draw_hidden, refuse_units, sampler_of

    count = len(rows)
    live = protect.live(count, model.width, model.classes, rng, model.device)
    size = min(batch_size, count)
    if protect.priced:
        protect.check(size, count)
        refuse_units(corpus, protect)
    sampler = sampler_of(protect, size, count)
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
        heaviest = mixed.topk(min(getattr(protect, "mix", 1), mixed.shape[1]), dim=1)
        padded = torch.cat([torch.from_numpy(drawn), torch.full((mixed.shape[1] - len(drawn),), -1)])
        whose.append(padded[heaviest.indices])
        weights.append(heaviest.values)
    most = max(part.shape[1] for part in whose)
    truth = Mixture(
        torch.cat([torch.nn.functional.pad(part, (0, most - part.shape[1]), value=-1) for part in whose]),
        torch.cat([torch.nn.functional.pad(part, (0, most - part.shape[1])) for part in weights]),
    )
    promise = _guarantee(_composed(list(counted.values())), live, corpus, rng, delta)
    return RepresentationRelease(torch.cat(seen), torch.cat(told), guarantee=promise), truth


def _alone(count: int) -> Mixture:
    """Return the truth behind vectors of one row each."""
    return Mixture(torch.arange(count)[:, None], torch.ones(count, 1))


def _fresh(rng: Rng) -> Rng:
    """Return a source of a release's own: two releases from one secret must not share their noise.

    A seed that was given repeats a release, which is what it is for; the guarantee is then an estimate.
    """
    return rng.fork("release", int(rng.words(1)[0])) if rng.is_secret else rng


def _composed(events: list[Any]) -> Any:
    """Return the cost of all events together."""
    from discreet.accounting.events import ComposedDpEvent

    return events[0] if len(events) == 1 else ComposedDpEvent(events)


def _guarantee(event: Any, about: Once | Live, corpus: Corpus, rng: Rng, delta: float | None) -> Guarantee:
    from discreet.accounting.interpret import guarantee

    at = delta_for(corpus.unit_count) if delta is None else delta
    found = guarantee(
        event, delta=at, adjacency=Adjacency.REPLACE_ONE, unit=corpus.unit_name, assumptions=(ONE_RELEASE,)
    )
    return about.stated(as_drawn(found, rng))


def _heaviest(rows: torch.Tensor, weights: torch.Tensor) -> Mixture:
    order = weights.argsort(dim=1, descending=True)
    return Mixture(rows.gather(1, order), weights.gather(1, order).float())


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
