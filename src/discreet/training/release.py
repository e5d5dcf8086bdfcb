"""Exactly what a server would see of one step, before and after protection: what the gradient attacks are given."""

from __future__ import annotations

import torch

from discreet.clipping.tape import Tape
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.gradient import GradientProtection
from discreet.training.private import as_drawn


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
                assumptions=("this one release, the batch known", "lengths and labels are known too"),
            ),
            rng,
        ),
    )


def _sums(
    model: Classifier, batch: Corpus, protect: GradientProtection | None, rng: Rng
) -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
    """Return the sum of a batch's gradients, protected or not, and the lengths of its texts in tokens."""
    import numpy as np

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
