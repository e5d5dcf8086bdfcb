"""Batches whose vectors pass through a protection between encoder and head, and their losses."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from discreet.core.errors import DataError, invalid, setting
from discreet.core.randomness import Rng
from discreet.data.batches import Batch, Tokens, Vectors, tokenise
from discreet.data.corpus import Corpus
from discreet.data.samplers import Sampler, Shuffled
from discreet.models.build import encode
from discreet.models.classifier import Classifier, losses
from discreet.models.encoder import pool
from discreet.protections.base import Live, RepresentationProtection, Rows, most_rows

_PUBLIC, _DRAWS = "public.", "drawn."


def draw_hidden(sampler: Sampler, step: int, rows: int, secret: Rng) -> Rows:
    """Return the rows of a step in random order.

    A receiver who sees every vector must not learn from its position whose it is; sorted rows would reveal that.
    """
    sample = sampler.draw(step, rows, secret.fork("sampler"))
    if isinstance(sampler, Shuffled):  # its order is already random
        return sample
    return sample[secret.fork("shuffle", step).permutation(len(sample))]


def check_units(corpus: Corpus, protect: RepresentationProtection) -> None:
    """Reject units of several rows, because each step accounts for one row."""
    if most_rows(corpus.unit_index) > 1:
        remedy = "Each step accounts for single rows, and some units own several; release all vectors once."
        raise invalid("unit", corpus.unit_name, f"of one row each for a live {protect.name}", remedy)


def hidden_batch(
    model: Classifier,
    rows: Tokens | Vectors,
    public: Tokens | Vectors | None,
    protect: RepresentationProtection,
    live: Live,
    secret: Rng,
    sample: Rows,
    step: int,
    epoch: int,
) -> Batch:
    """Return the sampled rows with public rows and secret random values, all of fixed shapes."""
    batch = rows.batch(sample)
    inputs = dict(batch.inputs)
    tokens = next(iter(inputs.values())).shape[1]
    shape: tuple[int, ...] = (len(sample), model.width)
    if protect.position == "token":
        shape = (len(sample), tokens, model.width)
    if public is not None and protect.needs_public:
        chosen = secret.fork("public", step).numpy("hidden_batch").integers(0, len(public), len(sample))
        inputs |= {f"{_PUBLIC}{name}": value for name, value in public_inputs(public, chosen, tokens).items()}
    draws = live.draw(sample, shape, step, epoch)
    return Batch(inputs | {f"{_DRAWS}{name}": value for name, value in draws.items()}, batch.targets)


def hidden_losses(
    model: Classifier,
    protect: RepresentationProtection,
    live: Live,
    inputs: Mapping[str, Tensor],
    targets: Tensor,
) -> Tensor:
    """Return one loss per protected vector; gradients flow through to the encoder."""
    draws = {name.removeprefix(_DRAWS): value for name, value in inputs.items() if name.startswith(_DRAWS)}
    other = {name.removeprefix(_PUBLIC): value for name, value in inputs.items() if name.startswith(_PUBLIC)}
    own = {name: value for name, value in inputs.items() if not name.startswith((_DRAWS, _PUBLIC))}
    if protect.position == "token":
        states, targets = live.hide(model.states(own), targets, draws)
        hidden = pool(states, own["attention_mask"], model.settings.pooling)
    else:
        count = len(targets)
        vectors = model.represent(
            {name: torch.cat([value, other[name]]) for name, value in own.items()} if other else own
        )
        hidden, targets = live.hide(vectors[:count], targets, draws, vectors[count:] if other else None)
    return losses(model.decide(hidden), targets, model.task)


def public_inputs(public: Tokens | Vectors, rows: Rows, width: int) -> dict[str, Tensor]:
    """Return public rows, truncated or padded to the width of the private ones."""
    if isinstance(public, Vectors):
        return dict(public.batch(rows).inputs)
    where = torch.from_numpy(rows).to(public.targets.device, non_blocking=True)
    columns = {name: column[where, :width].long() for name, column in public.columns.items()}
    missing = width - next(iter(columns.values())).shape[1]
    if missing > 0:  # masked positions are not read, so any token will do
        columns = {name: torch.nn.functional.pad(value, (0, missing)) for name, value in columns.items()}
    return columns


def public_rows(
    model: Classifier, public: Corpus | None, private: Corpus, protect: RepresentationProtection, precision: str
) -> Tokens | Vectors | None:
    """Return the tokens or vectors of the public corpus, or None if the protection needs none."""
    if not protect.needs_public:
        return None
    public = check_public(public, private, protect)
    if model.settings.frozen:
        return encode(model, public, None, precision)
    return tokenise(public, model.tokenizer, model.max_length, model.device)


def check_public(public: Corpus | None, private: Corpus, protect: RepresentationProtection) -> Corpus:
    """Return a public corpus; reject one that is missing, or of pairs where the private one is not."""
    if public is None:
        raise DataError(f"Expected a public corpus for {protect.name} with public partners. Set {setting('public')}.")
    if public.is_pairs != private.is_pairs:
        kinds = ("pairs of texts", "single texts")
        raise DataError(
            f"Expected {kinds[not private.is_pairs]} in the public corpus {public.name!r}, got "
            f"{kinds[not public.is_pairs]}. Provide text of the same kind."
        )
    return public
