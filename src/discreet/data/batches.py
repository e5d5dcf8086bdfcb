"""Batches: a corpus as tokens or as sentence vectors, ready on the device it is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """What a model takes for some rows, and what it should say."""

    inputs: Mapping[str, Tensor]
    targets: Tensor

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.targets)

    def slice(self, start: int, end: int) -> Batch:
        """Return some of the examples, for accumulation."""
        return Batch({name: value[start:end] for name, value in self.inputs.items()}, self.targets[start:end])


@dataclass(frozen=True)
class Tokens:
    """A tokenised corpus, padded once and cut to the longest of a batch when drawn."""

    columns: Mapping[str, Tensor] = field(repr=False)
    lengths: Rows = field(repr=False)
    targets: Tensor = field(repr=False)
    truncated: int
    pad_to: int = 1

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)

    def batch(self, rows: Rows) -> Batch:
        """Return the given rows, padded to their longest, rounded up to a multiple of `pad_to`."""
        longest = int(self.lengths[rows].max(initial=1))
        width = min(-(-longest // self.pad_to) * self.pad_to, self.columns["input_ids"].shape[1])
        where = torch.from_numpy(rows).to(self.targets.device, non_blocking=True)
        inputs = {name: column[where, :width].long() for name, column in self.columns.items()}
        return Batch(inputs, self.targets[where])

    def made_up(self, count: int, width: int, vocabulary: int, classes: int, rng: Rng) -> Batch:
        """Return random rows of this kind, as public as their number: of 1 to `width` tokens, every fourth a full one.

        They stand in for private rows wherever a model is tried out.
        """
        source = rng.numpy("Tokens.made_up")
        lengths = source.integers(1, width + 1, size=count)
        lengths[::4] = width
        real = torch.from_numpy(np.arange(width) < lengths[:, None]).long()
        drawn = torch.from_numpy(source.integers(0, vocabulary, size=(count, width)))
        made = {"input_ids": drawn * real, "attention_mask": real}
        inputs = {name: made.get(name, torch.zeros_like(real)).to(self.targets.device) for name in self.columns}
        return Batch(inputs, _made_up_targets(self.targets, count, classes, source))


@dataclass(frozen=True)
class Vectors:
    """A corpus as one vector per text, as a frozen encoder gives them."""

    vectors: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    truncated: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.targets)

    def batch(self, rows: Rows) -> Batch:
        """Return the vectors of the given rows."""
        where = torch.from_numpy(rows).to(self.targets.device, non_blocking=True)
        return Batch({"vectors": self.vectors[where]}, self.targets[where])

    def made_up(self, count: int, width: int, vocabulary: int, classes: int, rng: Rng) -> Batch:
        """Return random rows of this kind, as public as their number; width and vocabulary mean nothing here."""
        source = rng.numpy("Vectors.made_up")
        drawn = torch.from_numpy(source.standard_normal((count, *self.vectors.shape[1:]), dtype=np.float32))
        targets = _made_up_targets(self.targets, count, classes, source)
        return Batch({"vectors": drawn.to(self.vectors.device, self.vectors.dtype)}, targets)


def _made_up_targets(like: Tensor, count: int, classes: int, source: np.random.Generator) -> Tensor:
    if like.is_floating_point():
        return torch.from_numpy(source.random((count, *like.shape[1:]))).to(like.device, like.dtype)
    return torch.from_numpy(source.integers(0, max(classes, 1), size=count)).to(like.device)


def targets_of(corpus: Corpus, device: torch.device | str = "cpu") -> Tensor:
    """Return class numbers or scores as a tensor; class 0 for every row of a corpus without either."""
    if corpus.labels is None and corpus.scores is None:
        return torch.zeros(len(corpus), dtype=torch.int64, device=device)
    if corpus.task == "regression":
        return torch.tensor(corpus.scores, dtype=torch.float32, device=device)
    return torch.tensor(corpus.labels, dtype=torch.int64, device=device)


def tokenise(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, max_length: int, device: torch.device | str = "cpu"
) -> Tokens:
    """Return a corpus as tokens on a device; longer texts are cut, and counted.

    Guarantee: none, the tokens are the private text.
    """
    ids, types, truncated = _encode(corpus, tokenizer, max_length)
    lengths = np.fromiter((len(row) for row in ids), dtype=np.int64, count=len(ids))
    pad_to = 8 if torch.device(device).type == "cuda" else 1
    longest = int(lengths.max(initial=1))
    width = min(-(-longest // pad_to) * pad_to, max(max_length, longest))
    real = np.arange(width) < lengths[:, None]
    if tokenizer.pad_token_id is None:
        raise DataError("Expected a tokenizer with a padding token. Set tokenizer.pad_token, for example to its end.")
    columns = {
        "input_ids": _padded(ids, real, int(tokenizer.pad_token_id), device),
        "attention_mask": torch.from_numpy(real.astype(np.int32)).to(device),
    }
    if types is not None:
        columns["token_type_ids"] = _padded(types, real, 0, device)
    return Tokens(columns, lengths, targets_of(corpus, device), truncated, pad_to)


def _padded(rows: list[list[int]], real: npt.NDArray[np.bool_], fill: int, device: torch.device | str) -> Tensor:
    array = np.full(real.shape, fill, dtype=np.int32)
    array[real] = np.fromiter((i for row in rows for i in row), dtype=np.int32, count=int(real.sum()))
    return torch.from_numpy(array).to(device)


def _encode(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[list[list[int]], list[list[int]] | None, int]:
    second = list(corpus.second) if corpus.second is not None else None
    texts = list(corpus.texts)
    found = tokenizer(texts, second, truncation=True, max_length=max_length, return_attention_mask=False)
    ids: list[list[int]] = found["input_ids"]
    full = [i for i, row in enumerate(ids) if len(row) >= max_length]  # only these may have been cut
    truncated = 0
    if full:
        some = [texts[i] for i in full]
        pairs = [second[i] for i in full] if second is not None else None
        whole = tokenizer(some, pairs, truncation=False, return_attention_mask=False, verbose=False)["input_ids"]
        truncated = sum(len(row) > max_length for row in whole)
    return ids, found.get("token_type_ids"), truncated
