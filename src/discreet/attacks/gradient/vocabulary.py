"""The words a guess may consist of, and reading tokens out of vectors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.core.errors import UnsupportedError
from discreet.models.classifier import Classifier

_AT_ONCE = 4096  # vectors compared with the whole vocabulary together


@dataclass(frozen=True)
class Vocabulary:
    """The rows of a word-embedding table that can stand in a text: neither special nor reserved tokens."""

    table: Tensor = field(repr=False)
    allowed: Tensor = field(repr=False)  # the ids of the rows
    unit: Tensor = field(repr=False)  # those rows, of length one

    @classmethod
    def of(cls, model: Classifier, table: Tensor) -> Vocabulary:
        """Return the vocabulary of a model's tokenizer."""
        special = set(model.tokenizer.all_special_ids)
        names = model.tokenizer.convert_ids_to_tokens(list(range(min(len(table), len(model.tokenizer)))))
        kept = [i for i, name in enumerate(names) if i not in special and not str(name).startswith("[unused")]
        if not kept:
            raise UnsupportedError(
                f"Expected words in the tokenizer besides special ones, found none among {len(names)}. Nothing can be "
                "guessed."
            )
        allowed = torch.tensor(kept, device=table.device)
        return cls(table, allowed, F.normalize(table[allowed], dim=-1))

    @property
    def rows(self) -> Tensor:
        """The rows that can stand in a text."""
        return self.table[self.allowed]

    @property
    def mean_norm(self) -> float:
        """The mean length of a row."""
        return float(self.rows.norm(dim=-1).mean())

    def nearest(self, x: Tensor, count: int = 1) -> Tensor:
        """Return the ids of the rows nearest to vectors by cosine, (…, count), or all where there are fewer."""
        count = min(count, len(self.allowed))
        flat = x.reshape(-1, x.shape[-1])
        found = [self.allowed[(part @ self.unit.mT).topk(count).indices] for part in torch.split(flat, _AT_ONCE)]
        return torch.cat(found).view(*x.shape[:-1], count)

    def cheapest(self, tokens: Tensor, slopes: Tensor, count: int) -> Tensor:
        """Return the ids whose putting in lowers a loss most, to first order: least slope · (row - present row)."""
        count = min(count, len(self.allowed))
        # The present row's term is the same for all, so it does not change their order.
        flat = slopes.reshape(-1, slopes.shape[-1])
        rows = self.rows
        found = [
            self.allowed[(part @ rows.mT).topk(count, largest=False).indices] for part in torch.split(flat, _AT_ONCE)
        ]
        return torch.cat(found).view(*tokens.shape, count)
