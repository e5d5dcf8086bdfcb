"""Inner products with released tensors and squared norms, from layer inputs and output gradients; the arithmetic alone.

For a linear layer with inputs X and output gradients D the weight's gradient is D^T X, so its inner product with a
target T = U V^T is <D U, X V>, and its squared norm is <X X^T, D D^T>.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.clipping.slots import Lookup, Pair, Slot, Vectors

_LOW_RANK = 1e-6  # a target is kept as factors if they miss at most this share of its norm


@dataclass(frozen=True)
class Figures:
    """For each problem, candidate and tensor: <g, target> and |g|^2, of shape (problems, candidates, tensors).

    `row_inner` and `row_squares` are the same for each row of the table of positions that is used, (problems,
    candidates, rows); there are no rows where the model has no such table.
    """

    inner: Tensor
    squares: Tensor
    row_inner: Tensor
    row_squares: Tensor


@dataclass(frozen=True)
class Target:
    """One tensor of every release, (problems, *shape), matrices as (outputs, inputs); as factors where its rank is low.

    `left` is (problems, outputs, rank) with orthonormal columns, `right` is (problems, inputs, rank).
    """

    value: Tensor | None
    left: Tensor | None = None
    right: Tensor | None = None

    @classmethod
    def of(cls, value: Tensor, rank: int) -> Target:
        """Return a tensor as factors, if so few hold it; the first release tells of the others whether to try."""
        if value.dim() != 3 or rank >= min(value.shape[1:]) // 2 or cls._factors(value[:1], rank) is None:
            return cls(value)
        found = cls._factors(value, rank)
        return cls(value) if found is None else cls(None, *found)

    @staticmethod
    def _factors(value: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
        """Return the factors of a rank, or None where they miss too much, as they do under noise."""
        source = torch.Generator(device="cpu").manual_seed(0)
        probe = torch.randn(value.shape[2], rank, generator=source).to(value.device)
        left = torch.linalg.qr((value @ probe).double()).Q.float()
        right = value.mT @ left
        missed = (value - left @ right.mT).flatten(1).norm(dim=1)
        held = bool((missed <= _LOW_RANK * value.flatten(1).norm(dim=1)).all())
        return (left, right) if held else None

    def dense(self) -> Tensor:
        """Return the tensor itself."""
        if self.value is not None:
            return self.value
        assert self.left is not None and self.right is not None
        return self.left @ self.right.mT


def by_unit(values: Tensor, s: int, k: int) -> Tensor:
    """Return (rows, time, width) as (problems * candidates, sentences * time, width)."""
    return values.reshape(s * k, -1, values.shape[-1])


def pair_figures(slots: Sequence[Pair], target: Target, s: int, k: int) -> tuple[Tensor, Tensor]:
    """Return inner products and squared norms for matrices of one shape, (problems, candidates, matrices)."""
    inputs = torch.stack([slot.inputs.reshape(s, -1, slot.inputs.shape[-1]) for slot in slots])
    grads = torch.stack([slot.grads.reshape(s, -1, slot.grads.shape[-1]) for slot in slots])
    if target.value is None:
        assert target.left is not None and target.right is not None
        products = (inputs @ target.right) * (grads @ target.left)
    else:
        products = (inputs @ target.value.mT) * grads
    inner = products.reshape(len(slots), s, k, -1).sum(-1)
    inputs, grads = (value.reshape(len(slots) * s * k, -1, value.shape[-1]) for value in (inputs, grads))
    squares = ((inputs @ inputs.mT) * (grads @ grads.mT)).sum((1, 2)).view(len(slots), s, k)
    return inner.movedim(0, -1), squares.movedim(0, -1)


def lookup_figures(slot: Lookup, table: Tensor, s: int, k: int) -> tuple[Tensor, Tensor]:
    """Return inner products and squared norms for a table that is looked up, (problems, candidates)."""
    problem = torch.arange(s, device=table.device).repeat_interleave(slot.ids.shape[0] // s)
    inner = without_padding(slot, (table[problem[:, None], slot.ids] * slot.grads).sum(-1)).reshape(s, k, -1).sum(-1)
    ids, grads = slot.ids.reshape(s * k, -1), by_unit(slot.grads, s, k)
    same = (ids[:, :, None] == ids[:, None, :]).to(grads.dtype)
    if slot.padding is not None:
        same = same * (ids != slot.padding)[:, :, None]
    return inner, ((grads @ grads.mT) * same).sum((1, 2)).view(s, k)


def values_of(slot: Slot) -> Tensor:
    """Return the gradients of a one-dimensional tensor, one for each row."""
    assert isinstance(slot, Vectors)
    return slot.values


def without_padding(slot: Lookup, each: Tensor) -> Tensor:
    """Return one number for each token, zero for padding, which a table does not learn from."""
    return each if slot.padding is None else each * (slot.ids != slot.padding)
