"""Queries that are ready to be sent and not yet counted, and encoding that takes the same work for any text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from torch.nn.functional import pad

if TYPE_CHECKING:
    from discreet.data.batches import Tokens
    from discreet.models.classifier import Classifier

_Release = TypeVar("_Release")
_FEW = 16  # texts; each takes a fifth of a second at 512 tokens on one core
_GRID = 32  # tokens


@dataclass(eq=False)
class Sealed(Generic[_Release]):
    """A release that was made and has not left: `open` counts it in the ledger, once, and returns it.

    Guarantee: that of the release; until it is opened nothing was spent, and nothing may be sent.
    """

    _release: _Release = field(repr=False)
    _spend: Callable[[], None] = field(repr=False)
    _opened: bool = field(default=False, init=False)

    def open(self) -> _Release:
        """Return the release, counted at the first call; if the budget does not allow it, it stays sealed."""
        if not self._opened:
            self._spend()
            self._opened = True
        return self._release


def same_work(tokens: Tokens, model: Classifier) -> Tokens:
    """Return tokens padded so that encoding them takes work that does not depend on the texts.

    Up to 16 texts are padded to the model's maximum length. More would take too long; each batch of them is padded to
    a multiple of 32 tokens.
    """
    if len(tokens) > _FEW:
        return replace(tokens, pad_to=max(_GRID, tokens.pad_to))
    missing = model.max_length - tokens.columns["input_ids"].shape[1]
    fill = {"input_ids": int(model.tokenizer.pad_token_id)}
    columns = {name: pad(column, (0, missing), value=fill.get(name, 0)) for name, column in tokens.columns.items()}
    return replace(tokens, columns=columns, lengths=np.full(len(tokens), model.max_length), pad_to=model.max_length)
