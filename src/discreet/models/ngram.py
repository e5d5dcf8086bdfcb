"""An n-gram language model over a tokenizer's vocabulary: a prior over text without a neural network or a download."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.errors import DataError, ModelError, first_line, invalid, whole
from discreet.core.files import atomic_path

Ints = npt.NDArray[np.int64]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_DISCOUNT = 0.75
_UNSEEN = 0.01  # share of the unigram mass spread evenly over the vocabulary, so that no token has probability 0
_AT_ONCE = 4096  # texts tokenized at once


class Prior(Protocol):
    """Anything that scores how unlikely token sequences are."""

    def surprise(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of each row's tokens, where the mask is 1; of shape (rows,)."""
        ...


@dataclass(frozen=True)
class NGram:
    """A trigram model with interpolated Kneser–Ney smoothing, scored in batches by binary search in sorted keys.

    Sequences include the tokenizer's special tokens, so that beginnings and ends count. For every context, the trigram
    shares and the mass left to bigrams sum to one; likewise one level below.

    Guarantee: none, its tables hold parts of the text it was fitted to. Fit it to public text.
    """

    unigrams: Tensor = field(repr=False)  # (vocabulary,) probabilities
    pairs: Tensor = field(repr=False)  # sorted keys b * V + c
    pair_shares: Tensor = field(repr=False)
    left_of_one: Tensor = field(repr=False)  # (vocabulary,) the mass left to unigrams by a context of one token
    contexts: Tensor = field(repr=False)  # sorted keys a * V + b of the contexts of kept trigrams
    left_of_two: Tensor = field(repr=False)
    triples: Tensor = field(repr=False)  # sorted keys: the index of the context times V, plus c
    triple_shares: Tensor = field(repr=False)

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return len(self.unigrams)

    @classmethod
    def fit(
        cls, texts: Sequence[str], tokenizer: Any, *, least: int = 1, sentences: bool = True, vocabulary: int = 0
    ) -> NGram:
        """Fit a model to public texts; trigrams seen fewer than `least` times are dropped.

        With `sentences`, texts are first split into sentences. `vocabulary` is the number of rows of the model's word
        embeddings, if larger than that of the tokenizer.
        """
        if not texts:
            raise DataError("Expected texts for a language model, got none. Pass public text of a similar kind.")
        if sentences:
            texts = [part for text in texts for part in _SENTENCE_END.split(text) if part]
        rows: list[list[int]] = []
        for start in range(0, len(texts), _AT_ONCE):
            rows += tokenizer(list(texts[start : start + _AT_ONCE]), truncation=True, max_length=512)["input_ids"]
        return cls.from_ids(rows, max(len(tokenizer), vocabulary), least=least)

    @classmethod
    def from_ids(cls, rows: Sequence[Sequence[int]], vocabulary: int, *, least: int = 1) -> NGram:
        """Return the model of token sequences.

        >>> model = NGram.from_ids([[1, 2, 3], [1, 2, 4]], 5)
        >>> seen, other = model.surprise(torch.tensor([[1, 2, 3], [3, 2, 1]]), torch.ones(2, 3, dtype=torch.int64))
        >>> bool(seen < other)
        True
        """
        v = whole("vocabulary", vocabulary, 2)
        whole("least", least)
        sequences = [np.asarray(row, dtype=np.int64) for row in rows if len(row)]
        if not sequences:
            raise DataError("Expected at least one non-empty token sequence, got none.")
        flat = np.concatenate(sequences)
        if int(flat.max()) >= v or int(flat.min()) < 0:
            worst = int(flat.min()) if int(flat.min()) < 0 else int(flat.max())
            raise invalid("token", worst, f"in 0 … {v - 1}", "The vocabulary is too small for these texts.")
        place = np.concatenate([np.arange(len(row)) for row in sequences])
        second, third = place[1:] >= 1, place[2:] >= 2
        bigrams = (flat[:-1] * v + flat[1:])[second]
        contexts, which = np.unique((flat[:-2] * v + flat[1:-1])[third], return_inverse=True)
        triples, counts = np.unique(which * v + flat[2:][third], return_counts=True)
        # Kneser–Ney: the lower levels count in how many contexts a continuation was seen, not how often.
        in_pairs = np.concatenate([contexts[triples // v] % v * v + triples % v, np.unique(bigrams)])
        pairs, pair_counts = np.unique(in_pairs, return_counts=True)
        ones = np.bincount(pairs % v, minlength=v).astype(np.float64)
        unigrams = (1 - _UNSEEN) * ones / max(ones.sum(), 1) + _UNSEEN / v
        pair_shares, left_one = _shares(pairs // v, pair_counts, v)
        totals = np.bincount(triples // v, weights=counts, minlength=len(contexts))
        often = counts >= least
        triples, counts = triples[often], counts[often]
        triple_shares = (counts - _DISCOUNT) / totals[triples // v]
        left_two = 1 - np.bincount(triples // v, weights=triple_shares, minlength=len(contexts))
        used = np.unique(triples // v)  # contexts without a remaining trigram add nothing to the bigrams
        triples = np.searchsorted(used, triples // v) * v + triples % v
        return cls(
            *(
                torch.from_numpy(np.ascontiguousarray(part))
                for part in (
                    (unigrams / unigrams.sum()).astype(np.float32),
                    pairs,
                    pair_shares.astype(np.float32),
                    left_one.astype(np.float32),
                    contexts[used],
                    left_two[used].astype(np.float32),
                    triples,
                    triple_shares.astype(np.float32),
                )
            )
        )

    def surprise(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of each row's tokens, where the mask is 1; of shape (rows,)."""
        logs = self.logs(tokens) * mask
        return -logs.sum(-1) / mask.sum(-1).clamp_min(1)

    def logs(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of every token of (rows, time), given the one or two tokens before it."""
        v = self.vocabulary
        probability = self.unigrams[tokens]
        if tokens.shape[-1] > 1:
            before, now = tokens[..., :-1], tokens[..., 1:]
            share = _lookup(self.pairs, self.pair_shares, before * v + now)
            later = share + self.left_of_one[before] * probability[..., 1:]
            if tokens.shape[-1] > 2 and len(self.contexts):
                key = tokens[..., :-2] * v + tokens[..., 1:-1]
                at = torch.searchsorted(self.contexts, key).clamp_max(len(self.contexts) - 1)
                seen = self.contexts[at] == key
                share = _lookup(self.triples, self.triple_shares, at * v + tokens[..., 2:]) * seen
                left = torch.where(seen, self.left_of_two[at], torch.ones_like(share))
                later = torch.cat([later[..., :1], share + left * later[..., 1:]], -1)
            probability = torch.cat([probability[..., :1], later], -1)
        return probability.clamp_min(1e-30).log()

    def likely(self, tokens: Tensor, pool: Tensor, count: int) -> Tensor:
        """Return the `count` tokens of a pool that fit best at every position of (rows, time), given all others.

        >>> model = NGram.from_ids([[1, 2, 3], [1, 2, 4]], 5)
        >>> model.likely(torch.tensor([[1, 0, 3]]), torch.arange(5), 1)[0, 1].tolist()
        [2]
        """
        rows, time = tokens.shape
        best = []
        for place in range(time):
            logs = self.fitting(tokens, place, pool.expand(rows, -1))
            best.append(pool[logs.topk(min(count, len(pool))).indices])
        return torch.stack(best, 1)

    def fitting(self, tokens: Tensor, place: int, choices: Tensor) -> Tensor:
        """Return log-probabilities of each row's choices, (rows, choices), at a position of (rows, time).

        They are those of the window around the position, so that only their differences are meaningful.
        """
        near = tokens[:, max(0, place - 2) : place + 3]  # a trigram model depends on no other tokens
        windows = near[:, None].repeat(1, choices.shape[1], 1)
        windows[:, :, min(place, 2)] = choices
        return self.logs(windows.flatten(0, 1)).sum(-1).view(choices.shape)

    def to(self, device: torch.device | str) -> NGram:
        """Return the same model on a device."""
        return replace(self, **{name: value.to(device) for name, value in vars(self).items()})

    def save(self, path: Path | str) -> None:
        """Write the tables as safetensors, readable only by their owner: they hold word counts of a text."""
        from safetensors.torch import save_file

        with atomic_path(Path(path)) as temporary:
            save_file({name: value.contiguous().cpu() for name, value in vars(self).items()}, temporary)

    @classmethod
    def load(cls, path: Path | str) -> NGram:
        """Load a model written by `save`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return cls(**load_file(str(path)))
        except (OSError, SafetensorError, TypeError) as error:
            raise ModelError(
                f"Expected an n-gram model in {str(path)!r}. {first_line(error)}. Write one with NGram.save."
            ) from None


def _shares(contexts: Ints, counts: Ints, size: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the discounted share of each continuation, and the mass every context leaves to the level below."""
    totals = np.bincount(contexts, weights=counts, minlength=size)
    shares = (counts - _DISCOUNT) / totals[contexts]
    left = 1.0 - np.bincount(contexts, weights=shares, minlength=size).astype(np.float64)
    return shares, left


def _lookup(keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
    if not len(keys):
        return torch.zeros_like(queries, dtype=values.dtype)
    at = torch.searchsorted(keys, queries).clamp_max(len(keys) - 1)
    return values[at] * (keys[at] == queries)
