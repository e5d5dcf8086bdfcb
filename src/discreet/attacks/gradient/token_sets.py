"""Which tokens can stand at which position, by the span of the first block's inputs: the whole vocabulary at once."""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.attacks.gradient.layers import Embeddings
from discreet.attacks.gradient.span import Span

_AT_ONCE = 16  # positions whose distances are held at one time
_SCREEN = 0.05  # in float32 a squared distance is known to about 1e-6: what may pass is computed again in float64


def token_sets(embeddings: Embeddings, span: Span, distance: float, longest: int) -> list[list[int]]:
    """Return, position by position until none is left, the tokens whose first-block input lies in the span."""
    if span.rank == 0:
        return []
    screen = _Screen(embeddings, span)
    found: list[list[int]] = []
    limit = min(longest, embeddings.positions.shape[0])
    for start in range(0, limit, _AT_ONCE):
        places = torch.arange(start, min(start + _AT_ONCE, limit), device=embeddings.words.device)
        near = screen.squares(places) <= max(distance, _SCREEN) ** 2
        for column, place in enumerate(places.tolist()):
            tokens = near[:, column].nonzero().flatten()
            inside = span.distance(embeddings.inputs(tokens, torch.full_like(tokens, place))) <= distance
            if not bool(inside.any()):
                return found
            found.append(tokens[inside].tolist())
    return found


class _Screen:
    """Squared distances of every token at many positions, from a few matrix products.

    With u = word + position + constant, centred, the input is z = w * u / s + b. Its projection and its length are
    quadratic in u, and u is a sum: so (tokens, width) is only ever met by a matrix with a column to each position or
    each direction of the span, never formed again for each position.
    """

    def __init__(self, embeddings: Embeddings, span: Span) -> None:
        norm = embeddings.norm
        self.eps = norm.eps
        self.scale, self.bias = norm.weight.detach(), norm.bias.detach()
        words = embeddings.words + embeddings.constant
        self.words = words - words.mean(dim=1, keepdim=True)
        places = embeddings.positions
        self.places = places - places.mean(dim=1, keepdim=True)
        self.basis = span.basis.to(self.words.dtype)
        self.onto = (self.basis * self.scale).mT  # (width, rank)
        self.shift = self.basis @ self.bias
        self.word_parts = self.words @ self.onto
        self.word_squares = self.words.square().sum(dim=1)
        self.word_lengths = (self.words * self.scale).square().sum(dim=1)
        self.word_bias = self.words @ (self.scale * self.bias)

    def squares(self, places: Tensor) -> Tensor:
        """Return squared distances, (tokens, positions)."""
        rows = self.places[places]
        width = rows.shape[1]
        spread = self.word_squares[:, None] + rows.square().sum(dim=1) + 2 * (self.words @ rows.mT)
        deviation = (spread / width + self.eps).clamp_min(torch.finfo(spread.dtype).tiny).sqrt()
        scaled = rows * self.scale
        length = self.word_lengths[:, None] + scaled.square().sum(dim=1) + 2 * (self.words @ (scaled * self.scale).mT)
        length = length / deviation.square()
        length += 2 * (self.word_bias[:, None] + rows @ (self.scale * self.bias)) / deviation + self.bias.square().sum()
        parts = rows @ self.onto  # (positions, rank)
        inside = self.word_parts.square().sum(dim=1)[:, None] + parts.square().sum(dim=1)
        inside = (inside + 2 * (self.word_parts @ parts.mT)) / deviation.square()
        inside += 2 * ((self.word_parts @ self.shift)[:, None] + parts @ self.shift) / deviation
        inside += self.shift.square().sum()
        return 1 - inside / length.clamp_min(torch.finfo(length.dtype).tiny)


def nearest_tokens(embeddings: Embeddings, span: Span, length: int, count: int) -> tuple[Tensor, Tensor]:
    """Return, for each position of a length, the tokens closest to the span and their distances, (length, count)."""
    screen = _Screen(embeddings, span)
    tokens: list[Tensor] = []
    distances: list[Tensor] = []
    for start in range(0, length, _AT_ONCE):
        places = torch.arange(start, min(start + _AT_ONCE, length), device=embeddings.words.device)
        near = screen.squares(places).clamp_min(0).topk(min(count, embeddings.words.shape[0]), dim=0, largest=False)
        tokens.append(near.indices.mT)
        distances.append(near.values.mT.sqrt())
    return torch.cat(tokens), torch.cat(distances)
