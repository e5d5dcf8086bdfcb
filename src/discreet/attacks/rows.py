"""Attacks on rows of embedding gradients: positions reveal one sentence, words the set of tokens of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from discreet.attacks.base import GradientAttack, Need, Returns
from discreet.attacks.encoder_layers import Embeddings, dissect, model_of
from discreet.attacks.matching.engine import prior_of
from discreet.core.errors import UnsupportedError, non_negative, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.base import TextModel
from discreet.models.encoder import layers_of
from discreet.models.language_model import LanguageModel
from discreet.models.ngram import NGram

_POSITIONS = "the position-row attack"
_WORDS = "the embedding-row attack"
_ROUNDING = 1e-8  # float32 rounding error of a row of a gradient, relative to its norm


@dataclass(frozen=True)
class PositionRows(GradientAttack):
    """Find the word at each position whose state is orthogonal to that row of the position-embedding gradient.

    A LayerNorm is invariant to the scale of its input, so a gradient through it has no component along that input. For
    a single text, the row of a position is the gradient of its state before the LayerNorm. The attack tests every word
    of the vocabulary at every position. Noise leaves several words possible: the attack keeps the `kept` best of each
    position and, with a trigram model in `Knowledge`, returns the most likely sentence, by a search with `beams` beams.
    `prior` is the weight of the language model (0 for none). The size of the noise is measured on the rows of unused
    positions.

    It needs one text, its length or a release without noise, and a model that adds words and positions before a
    LayerNorm and uses only its output (BERT-like models; not GPT-2, where a residual connection bypasses the norm).

    The orthogonality is well known; its use for identifying words is new here.
    """

    kept: int = 256
    beams: int = 64
    prior: float = 1.0

    name: ClassVar[str] = "positions"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PRIOR})

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("kept", self.kept)
        whole("beams", self.beams)
        non_negative("prior", self.prior)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the text, with its token ids as indices; the attack is deterministic.

        `details` has the measured standard deviation of the noise.
        """
        model = model_of(knows, _POSITIONS)
        embeddings = dissect(model).embeddings
        table = _table(seen, model, embeddings)
        count = _length(seen, table)
        rows, rest = table[:count], table[count:]
        noise = float(rest.square().mean().sqrt()) if rest.numel() else seen.noise_std
        prior = prior_of(knows, model) if self.prior > 0 else None
        logs = _log_likelihoods(rows, noise, embeddings)[:, : len(model.tokenizer)]
        tokens = self._beam_search(logs, prior) if isinstance(prior, NGram) else logs.argmax(1)
        ids = tuple(int(token) for token in tokens)
        text = model.tokenizer.decode(list(ids), skip_special_tokens=True)
        return Guess(texts=(text,), indices=ids, details={"noise": noise})

    def _beam_search(self, logs: Tensor, prior: NGram) -> Tensor:
        """Return the most likely sentence of the possible words, by a beam search over the positions."""
        logs = logs[:, : prior.vocabulary]
        unigram = self.prior * prior.unigrams[: logs.shape[1]].double().clamp_min(1e-30).log()
        candidates = (logs + unigram).topk(min(self.kept, logs.shape[1]), dim=1).indices
        fits = logs.gather(1, candidates)
        beams = candidates[0][:, None]
        totals = fits[0] + unigram[candidates[0]]
        for words, fit in zip(candidates[1:], fits[1:], strict=True):
            best = totals.topk(min(self.beams, len(totals))).indices
            longer = torch.cat([beams[best].repeat_interleave(len(words), 0), words.repeat(len(best))[:, None]], 1)
            added = fit.repeat(len(best)) + self.prior * prior.logs(longer[:, -3:])[:, -1].double()
            beams, totals = longer, totals[best].repeat_interleave(len(words)) + added
        return beams[totals.argmax()]


def _log_likelihoods(rows: Tensor, noise: float, embeddings: Embeddings) -> Tensor:
    """Return the log-likelihood of each word's inner product at each position, (positions, words)."""
    words = _centred(embeddings.words)
    positions = _centred(embeddings.positions[: len(rows)] + embeddings.constant)
    inner = rows @ words.mT + (rows * positions).sum(1, keepdim=True)
    squares = words.square().sum(1) + 2 * positions @ words.mT + positions.square().sum(1, keepdim=True)
    spread = noise**2 + (_ROUNDING * rows.norm(dim=1, keepdim=True)) ** 2
    logs: Tensor = -inner.square() / (2 * squares * spread).clamp_min(1e-300)
    return logs


def _table(seen: GradientRelease, model: TextModel, embeddings: Embeddings) -> Tensor:
    """Return the released gradient of the position embeddings from the first used row; raise if unusable."""
    if seen.batch_size != 1:
        raise UnsupportedError(
            f"Expected one text for {_POSITIONS}, got {seen.batch_size}. Rows of several texts are summed; use DAGER."
        )
    if embeddings.position_name not in seen.gradients:
        raise UnsupportedError(
            f"Expected the gradient of {embeddings.position_name!r} for {_POSITIONS}, got none in the release. The "
            "embeddings are frozen or not shared; attack the attention layers instead."
        )
    if model.get_submodule(embeddings.norm_name) in set(layers_of(model.encoder)[0].modules()):
        raise UnsupportedError(
            f"Expected a LayerNorm before the first block for {_POSITIONS}, got {embeddings.norm_name!r} inside. The "
            "sum of word and position then also bypasses the norm; use DAGER."
        )
    return seen.gradients[embeddings.position_name].detach().double()[embeddings.first_position :]


def _length(seen: GradientRelease, table: Tensor) -> int:
    """Return the number of tokens: known, or the end of the nonzero rows."""
    if seen.lengths is not None:
        return min(seen.lengths[0], len(table))
    used = int(table.abs().sum(1).nonzero().max()) + 1 if bool(table.any()) else 0
    if used in {0, len(table)}:
        raise UnsupportedError(
            f"Expected the text's length, or no noise, for {_POSITIONS}. No row of the table stands out."
        )
    return used


def _centred(states: Tensor) -> Tensor:
    # A LayerNorm subtracts the mean: centring keeps the orthogonality and removes the noise along the mean.
    states = states.detach().double()
    return states - states.mean(-1, keepdim=True)


@dataclass(frozen=True)
class EmbeddingRows(GradientAttack):
    """Return the tokens whose row of the word-embedding gradient is nonzero, the largest rows first.

    `rounding` is the smallest norm that counts, relative to the largest; it is 0 by default, as a token that is not in
    the batch has a row of exact zeros. Under noise a row counts if its norm exceeds that of every noise-only row, with
    probability about 0.95. If the release does not declare its noise, the median row gives it. The attack does not
    recover the order of tokens or the number of sentences.

    Paper: known since Melis et al. 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning".
    """

    rounding: float = 0.0

    name: ClassVar[str] = "embedding-rows"
    returns: ClassVar[Returns] = Returns.BAG_OF_WORDS

    def __post_init__(self) -> None:
        """Check the settings."""
        non_negative("rounding", self.rounding)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return one text with all tokens, and their ids as indices; the attack is deterministic."""
        model = model_of(knows, _WORDS)
        name = dissect(model).embeddings.word_name
        if name not in seen.gradients:
            raise UnsupportedError(
                f"Expected the gradient of {name!r} for {_WORDS}, got none in the release. The word embeddings are "
                "frozen or not shared; attack the attention layers instead."
            )
        if isinstance(model, LanguageModel) and model.tied:
            raise UnsupportedError(
                f"Expected word embeddings of their own for {_WORDS}, got {name!r}, which is the output layer too. "
                "Every row of it has a gradient; attack the attention layers instead."
            )
        lengths = seen.gradients[name].detach().double().norm(dim=1)
        least = self.rounding * float(lengths.max())
        count, width = seen.gradients[name].shape
        noise = seen.noise_std
        if noise == 0 and int((lengths > 0).sum()) > count / 2:
            # No batch contains half of the vocabulary: there is noise, and most rows contain only noise.
            noise = float(lengths.median()) / math.sqrt(width)
        if noise > 0:
            # The largest norm of many Gaussian vectors: concentration of the norm and a union bound at 0.05.
            least = noise * (math.sqrt(width) + math.sqrt(2 * math.log(count / 0.05)))
        tokens = [i for i in lengths.argsort(descending=True, stable=True).tolist() if float(lengths[i]) > least]
        special = set(model.tokenizer.all_special_ids)
        text = model.tokenizer.decode([i for i in tokens if i not in special])
        return Guess(
            texts=(text,) if text else (),
            scores=tuple(float(lengths[i]) for i in tokens),
            indices=tuple(tokens),
            details={"threshold": least},
        )
