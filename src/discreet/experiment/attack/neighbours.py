"""Altered versions of a text, with single tokens replaced by similar ones, and the losses of a model on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.attacks.membership.signals import Floats, Ints
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, tokens_for
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import Progress
from discreet.experiment.attack.signals import outputs_of
from discreet.models.base import TextModel

STAGE = "asking about altered texts"
_CLOSEST = 10  # tokens of the vocabulary that a token may be replaced by
_TEXTS_AT_ONCE = 64
_WORD = "##", "Ġ", "▁"  # how tokenizers mark the inside, or the beginning, of a word


def neighbour_losses(model: TextModel, rows: Corpus, count: int, rng: Rng, progress: Progress) -> Floats:
    """Return the loss of a model on `count` altered versions of each text, (texts, versions), with the text's label.

    Each version has one token replaced by one of the ten closest of the same kind, by the cosine of their vectors in
    the model's own vocabulary. A text with fewer tokens than versions is altered at some positions more than once.

    Guarantee: none for the texts; that of the model does not change, as this is post-processing.
    """
    table = getattr(model.encoder, "get_input_embeddings", None)
    if table is None:
        raise UnsupportedError("Expected an encoder with a table of token vectors for mia-n, got none. Use lira.")
    close = Close.of(model, table().weight)
    losses = np.empty((len(rows), count))
    for start in range(0, len(rows), _TEXTS_AT_ONCE):
        at = np.arange(start, min(start + _TEXTS_AT_ONCE, len(rows)))
        tokens = tokens_for(model, rows.take(at))
        altered = versions(tokens, close, count, rng.fork("text", start))
        losses[at] = outputs_of(model, altered).losses.reshape(len(at), count)
        progress(STAGE, int(at[-1]) + 1, len(rows))
    return losses


class Close:
    """The closest tokens of the same kind for each token that occurs, computed when it is first asked for."""

    def __init__(self, vectors: Tensor, kinds: Ints, special: set[int]) -> None:
        """Take the normalized vectors of the vocabulary, the kind of each token, and the special tokens."""
        self.vectors, self.kinds, self.special = vectors, kinds, special
        self.found: dict[int, Ints] = {}

    @classmethod
    def of(cls, model: TextModel, weight: Tensor) -> Close:
        """Return the neighbours in a model's vocabulary; tokens inside words are of another kind than whole words."""
        tokenizer = model.tokenizer
        names = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), len(weight)))))
        kinds = np.array([_kind(str(name)) for name in names], dtype=np.int64)
        vectors = F.normalize(weight.detach()[: len(names)].float(), dim=-1)
        return cls(vectors, kinds, set(tokenizer.all_special_ids))

    def tokens(self, wanted: Sequence[int]) -> None:
        """Compute the neighbours of tokens that were not asked for before."""
        new = [token for token in dict.fromkeys(wanted) if token not in self.found]
        kinds = torch.from_numpy(self.kinds).to(self.vectors.device)
        barred = torch.tensor(sorted(self.special), device=self.vectors.device)
        for part in (new[i : i + 512] for i in range(0, len(new), 512)):
            ids = torch.tensor(part, device=self.vectors.device)
            cosines = self.vectors[ids] @ self.vectors.mT
            cosines[kinds[ids][:, None] != kinds[None, :]] = -2.0
            cosines[:, barred] = -2.0
            cosines[torch.arange(len(part)), ids] = -2.0
            best = cosines.topk(_CLOSEST, dim=1).indices.cpu().numpy()
            self.found.update(zip(part, best, strict=True))


def _kind(name: str) -> int:
    """Return whether a token is part of a word, a whole word, or neither.

    >>> [_kind(name) for name in ("##ing", "film", "Ġfilm", "7", ".")]
    [0, 1, 2, 3, 3]
    """
    bare = name.lstrip("#Ġ▁")
    if not bare.isalpha():
        return 3
    return 0 if name.startswith("##") else 2 if name[0] in _WORD[1:] else 1


def versions(tokens: Tokens, close: Close, count: int, rng: Rng) -> Tokens:
    """Return `count` altered versions of each tokenized text, one after the other."""
    ids = tokens.columns["input_ids"].cpu().numpy()
    source = rng.numpy("neighbours")
    places, choices = [], []
    for row, length in zip(ids, tokens.lengths.tolist(), strict=True):
        free = np.array([i for i in range(length) if int(row[i]) not in close.special], dtype=np.int64)
        free = free if len(free) else np.zeros(1, dtype=np.int64)
        order = np.concatenate([source.permutation(free) for _ in range(-(-count // len(free)))])
        places.append(order[:count])
        choices.append(source.integers(0, _CLOSEST, count))
    close.tokens([int(ids[i, place]) for i, order in enumerate(places) for place in order])
    altered = np.repeat(ids, count, axis=0)
    for i, (order, chosen) in enumerate(zip(places, choices, strict=True)):
        for j in range(count):
            altered[i * count + j, order[j]] = close.found[int(ids[i, order[j]])][chosen[j]]
    device = tokens.targets.device
    columns = {name: column.repeat_interleave(count, dim=0) for name, column in tokens.columns.items()}
    columns["input_ids"] = torch.from_numpy(altered).to(device, tokens.columns["input_ids"].dtype)
    targets = tokens.targets.repeat_interleave(count, dim=0)
    return replace(tokens, columns=columns, lengths=np.repeat(tokens.lengths, count), targets=targets)
