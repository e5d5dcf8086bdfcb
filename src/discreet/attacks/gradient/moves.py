"""Discrete moves over the order of a sentence's tokens: swap two, move one, move a stretch, rotate."""

from __future__ import annotations

import torch
from torch import Tensor


def reorderings(counts: Tensor, length: int, first: int, proposals: int, source: torch.Generator) -> Tensor:
    """Return `proposals` orders of the tokens of each sentence, (sentences, proposals, length); the first changes none.

    The free tokens of a sentence are `counts` many from place `first`; all others keep their places. Row i of an order
    says which token comes to each place. The four kinds of move take turns.

    >>> orders = reorderings(torch.tensor([3]), 5, 1, 5, torch.Generator().manual_seed(0))
    >>> orders.shape, orders[0, 0].tolist(), bool((orders.sort(-1).values == torch.arange(5)).all())
    (torch.Size([1, 5, 5]), [0, 1, 2, 3, 4], True)
    """
    device = counts.device
    n = len(counts)
    draws = torch.rand(n, proposals, 3, generator=source, device=device)
    count = counts[:, None].clamp_min(1)
    one = first + (draws[..., 0] * count).long().clamp_max(count - 1)
    other = first + (draws[..., 1] * count).long().clamp_max(count - 1)
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    kind = (torch.arange(proposals, device=device) % 4).expand(n, proposals)
    end = first + count
    # Moving a token, moving a stretch and rotating all exchange two neighbouring stretches [a, b) and [b, c).
    ahead = draws[..., 2] < 0.5
    a, c = low, high + 1
    b = torch.where(ahead, low + 1, high)
    inside = low + 1 + (draws[..., 2] * (high - low)).long()
    b = torch.where(kind == 2, torch.minimum(inside, high), b)
    a = torch.where(kind == 3, torch.full_like(a, first), a)
    b = torch.where(kind == 3, one, b)
    c = torch.where(kind == 3, end.expand_as(c), c)
    b = torch.maximum(a, torch.minimum(b, c))
    place = torch.arange(length, device=device).expand(n, proposals, length)
    a, b, c = a[..., None], b[..., None], c[..., None]
    moved = torch.where(place < a + (c - b), place + (b - a), place - (c - b))
    moved = torch.where((place >= a) & (place < c), moved, place)
    low, high = low[..., None], high[..., None]
    swapped = torch.where(place == low, high, torch.where(place == high, low, place))
    orders = torch.where((kind == 0)[..., None], swapped, moved)
    orders[:, 0] = torch.arange(length, device=device)
    return orders
