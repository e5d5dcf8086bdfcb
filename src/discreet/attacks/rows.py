"""Attacks on the rows of embedding tables: positions give one sentence, words the set of tokens of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from discreet.attacks.base import Attack, Need, Returns
from discreet.attacks.encoder_layers import Embeddings, dissect, model_of
from discreet.attacks.matching.engine import prior_of
from discreet.core.errors import UnsupportedError, non_negative, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, Release
from discreet.models.classifier import Classifier
from discreet.models.encoder import layers_of
from discreet.models.ngram import NGram

_PLACES = "the position-row attack"
_WORDS = "the embedding-row attack"
_ROUNDING = 1e-8  # how far float32 turns a row of a gradient, as a share of its length


@dataclass(frozen=True)
class PositionRows(Attack):
    """The word at each place whose state is orthogonal to that place's row of the position-embedding gradient.

    A LayerNorm does not see how long its input is, so no gradient that comes back through it has a part along that
    input; and of a single text, the row of a place is the gradient of its state before the LayerNorm. Every word of the
    vocabulary is tested at every place. Noise leaves several words possible, the more the larger it is: the attack
    keeps the `kept` best of each place and, with a trigram model in `Knowledge`, takes the likeliest sentence of them,
    following `beams` beginnings. `prior` is what the language model weighs, 0 for nothing. The size of the noise is
    read off the rows of places that no text reaches.

    It needs one text, its length, or no noise, and a model that adds words and positions before a LayerNorm and uses
    what comes out alone (BERT and its like; not GPT-2, where a residual connection also carries the sum past the norm).

    The orthogonality is well known; that it names words is our observation.
    """

    kept: int = 256
    beams: int = 64
    prior: float = 1.0

    name: ClassVar[str] = "positions"
    sees: ClassVar[type[Release]] = GradientRelease
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PRIOR})

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("kept", self.kept)
        whole("beams", self.beams)
        non_negative("prior", self.prior)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the text, with its token ids as indices; nothing here is random.

        `details` has the standard deviation of the noise that was found.
        """
        model = model_of(knows, _PLACES)
        found = dissect(model).embeddings
        table = _table(seen, model, found)
        count = _length(seen, table)
        rows, rest = table[:count], table[count:]
        noise = float(rest.square().mean().sqrt()) if rest.numel() else seen.noise_std
        prior = prior_of(knows, model) if self.prior > 0 else None
        logs = _fit(rows, noise, found)[:, : len(model.tokenizer)]
        read = self._likeliest(logs, prior) if isinstance(prior, NGram) else logs.argmax(1)
        ids = tuple(int(token) for token in read)
        text = model.tokenizer.decode(list(ids), skip_special_tokens=True)
        return Guess(texts=(text,), indices=ids, details={"noise": noise})

    def _likeliest(self, logs: Tensor, prior: NGram) -> Tensor:
        """Return the likeliest of the sentences that the possible words make, by a search along the places."""
        logs = logs[:, : prior.vocabulary]
        alone = self.prior * prior.unigrams[: logs.shape[1]].double().clamp_min(1e-30).log()
        kept = (logs + alone).topk(min(self.kept, logs.shape[1]), dim=1).indices
        fits = logs.gather(1, kept)
        beams = kept[0][:, None]
        totals = fits[0] + alone[kept[0]]
        for words, fit in zip(kept[1:], fits[1:], strict=True):
            best = totals.topk(min(self.beams, len(totals))).indices
            longer = torch.cat([beams[best].repeat_interleave(len(words), 0), words.repeat(len(best))[:, None]], 1)
            added = fit.repeat(len(best)) + self.prior * prior.logs(longer[:, -3:])[:, -1].double()
            beams, totals = longer, totals[best].repeat_interleave(len(words)) + added
        return beams[totals.argmax()]


def _fit(rows: Tensor, noise: float, found: Embeddings) -> Tensor:
    """Return how well each word fits each place, as the log-likelihood of the inner product; (places, words)."""
    words = _centred(found.words)
    places = _centred(found.positions[: len(rows)] + found.constant)
    inner = rows @ words.mT + (rows * places).sum(1, keepdim=True)
    squares = words.square().sum(1) + 2 * places @ words.mT + places.square().sum(1, keepdim=True)
    spread = noise**2 + (_ROUNDING * rows.norm(dim=1, keepdim=True)) ** 2
    logs: Tensor = -inner.square() / (2 * squares * spread).clamp_min(1e-300)
    return logs


def _table(seen: GradientRelease, model: Classifier, found: Embeddings) -> Tensor:
    """Return the released gradient of the positions from the first in use on, or reject."""
    if seen.batch_size != 1:
        raise UnsupportedError(
            f"Expected one text for {_PLACES}, found {seen.batch_size}. Rows of several texts are added up; use DAGER."
        )
    if found.position_name not in seen.gradients:
        raise UnsupportedError(
            f"Expected the gradient of {found.position_name!r} for {_PLACES}, found none in the release. The "
            "embeddings are frozen or not shared; attack the attention layers instead."
        )
    if model.get_submodule(found.norm_name) in set(layers_of(model.encoder)[0].modules()):
        raise UnsupportedError(
            f"Expected a LayerNorm before the first block for {_PLACES}, found it inside ({found.norm_name!r}). The "
            "sum of word and position then goes on beside the norm as well; use DAGER."
        )
    return seen.gradients[found.position_name].detach().double()[found.first_position :]


def _length(seen: GradientRelease, table: Tensor) -> int:
    """Return how many tokens the text has: as known, or where the rows end that are not zero."""
    if seen.lengths is not None:
        return min(seen.lengths[0], len(table))
    used = int(table.abs().sum(1).nonzero().max()) + 1 if bool(table.any()) else 0
    if used in {0, len(table)}:
        raise UnsupportedError(
            f"Expected the text's length, or no noise, for {_PLACES}. All rows of the table are alike."
        )
    return used


def _centred(states: Tensor) -> Tensor:
    # a LayerNorm takes the mean away, so what is orthogonal to its input is so without it, and noise along it is lost
    states = states.detach().double()
    return states - states.mean(-1, keepdim=True)


@dataclass(frozen=True)
class EmbeddingRows(Attack):
    """The tokens whose row of the word-embedding gradient is not zero, the largest rows first.

    `rounding` is the smallest row that counts, relative to the largest; it is 0, as a token that is not in the batch
    has a row of exact zeros. Under noise a row counts if it is longer than noise alone makes any of them, with
    probability about 0.95; where the release does not say how much noise there is, the typical row does. The order
    and the number of sentences are not read.

    Paper: known since Melis et al. 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning".
    """

    rounding: float = 0.0

    name: ClassVar[str] = "embedding-rows"
    sees: ClassVar[type[Release]] = GradientRelease
    returns: ClassVar[Returns] = Returns.BAG_OF_WORDS

    def __post_init__(self) -> None:
        """Check the settings."""
        non_negative("rounding", self.rounding)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return one text with every token found, and their ids as indices; nothing here is random."""
        model = model_of(knows, _WORDS)
        name = dissect(model).embeddings.word_name
        if name not in seen.gradients:
            raise UnsupportedError(
                f"Expected the gradient of {name!r} for {_WORDS}, found none in the release. The word embeddings are "
                "frozen or not shared; attack the attention layers instead."
            )
        lengths = seen.gradients[name].detach().double().norm(dim=1)
        least = self.rounding * float(lengths.max())
        count, width = seen.gradients[name].shape
        noise = seen.noise_std
        if noise == 0 and int((lengths > 0).sum()) > count / 2:
            # No batch holds half of the vocabulary: there is noise, and most rows are nothing else.
            noise = float(lengths.median()) / math.sqrt(width)
        if noise > 0:
            # The longest of many Gaussian vectors: concentration of the norm and a union bound at 0.05.
            least = noise * (math.sqrt(width) + math.sqrt(2 * math.log(count / 0.05)))
        found = [i for i in lengths.argsort(descending=True, stable=True).tolist() if float(lengths[i]) > least]
        special = set(model.tokenizer.all_special_ids)
        text = model.tokenizer.decode([i for i in found if i not in special])
        return Guess(
            texts=(text,) if text else (),
            scores=tuple(float(lengths[i]) for i in found),
            indices=tuple(found),
            details={"threshold": least},
        )
