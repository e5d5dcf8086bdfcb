"""The last part of a search: single tokens are exchanged and reordered while the loss of the sentence decreases.

Moves on the order of a sentence's tokens are: swap two, move one, move a segment, rotate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.attacks.base import TimeLimit
from discreet.attacks.matching.objective import Objective
from discreet.attacks.matching.problems import Vocabulary, pick
from discreet.core.errors import probability, whole
from discreet.core.randomness import Rng
from discreet.models.ngram import NGram, Prior

_COMMON = 2000  # most frequent tokens among which the prior proposes
_SOLVED = 0.01  # a text with at most this loss and no better neighbour is accepted


@dataclass(frozen=True)
class Polish:
    """Rounds that try other tokens at each position, and other orders of each sentence's tokens.

    Each position tries the `near` tokens nearest to its vector, the `near` tokens nearest to its current token, the
    `cheap` tokens that the gradient of the loss favors, and the `likely` tokens that an n-gram prior finds most likely
    between its neighbours. Only the share `places` of the positions is tried, those whose vectors are farthest from
    their tokens. The changes that improve the score are applied together, as many as improve it most.

    The score is the loss plus the prior, weighted as likelihood and prior probability: the less noise, the smaller the
    prior's weight.
    """

    rounds: int = 12
    near: int = 3
    cheap: int = 6
    orders: int = 48
    likely: int = 0
    places: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("rounds", self.rounds)
        whole("near", self.near)
        whole("cheap", self.cheap, 0)
        whole("orders", self.orders, 2)
        whole("likely", self.likely, 0)
        probability("places", self.places)

    def run(
        self,
        objective: Objective,
        vocabulary: Vocabulary,
        tokens: Tensor,
        vectors: Tensor,
        labels: Tensor | None,
        prior: Prior | None,
        limit: TimeLimit,
        rng: Rng,
    ) -> tuple[Tensor, Tensor]:
        """Return improved tokens, (problems, 1, sentences, tokens), and their scores, from several candidates.

        `vectors` are those that the candidates' tokens were read from, and `labels` soft labels where they are learned.
        """
        scores = _Score(objective, prior, labels, limit)(tokens)
        first = scores.argmin(1, keepdim=True)
        if labels is not None:
            labels = pick(labels.expand(-1, tokens.shape[1], -1, -1), first)
        score = _Score(objective, prior, labels, limit)
        now, best, x = pick(tokens, first), pick(scores, first), pick(vectors, first)
        near = vocabulary.nearest(x, self.near)  # (problems, 1, sentences, tokens, near)
        doubtful = self._doubtful(objective, x, now)
        source = rng.torch(tokens.device, "Gradient matching")
        quiet = 0
        for _ in range(self.rounds):
            if quiet > 1 or (quiet and bool((best < _SOLVED).all())) or limit.over():
                break
            if quiet:  # no improvement at the doubtful positions, so try all of them
                doubtful = objective.problems.free
            before = best.clone()
            now, best = self._exchanges(objective, score, vocabulary, near, doubtful, now, best)
            now, best = self._reorderings(objective, score, now, best, source)
            quiet = quiet + 1 if bool((best >= before - 1e-9).all()) else 0
        return now, best

    def _doubtful(self, objective: Objective, x: Tensor, now: Tensor) -> Tensor:
        """Return the positions to try, (problems, sentences, tokens): free ones, farthest from their tokens first."""
        free = objective.problems.free
        certain = F.cosine_similarity(x, objective.imitation.words[now], dim=-1)[:, 0]
        rank = torch.where(free, certain, torch.inf).flatten(1).argsort(1).argsort(1).view_as(free)
        return free & (rank < (self.places * free.sum((1, 2))).ceil()[:, None, None])

    def _exchanges(
        self,
        objective: Objective,
        score: _Score,
        vocabulary: Vocabulary,
        near: Tensor,
        doubtful: Tensor,
        now: Tensor,
        best: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Try other tokens at every position; apply the best change, or several if together they improve more."""
        s, _, b, t = now.shape
        kin = vocabulary.nearest(objective.imitation.words[now], self.near + 1)[..., 1:]
        options = torch.cat([near, kin], -1)
        if self.cheap:
            _, slopes = objective.slopes(objective.imitation.words[now], score.labels)
            options = torch.cat([options, vocabulary.cheapest(now, slopes, self.cheap)], -1)
        if self.likely and isinstance(score.prior, NGram):
            common = score.prior.unigrams[vocabulary.allowed].topk(min(_COMMON, len(vocabulary.allowed))).indices
            fitting = score.prior.likely(now.flatten(0, 2), vocabulary.allowed[common], self.likely)
            options = torch.cat([options, fitting.view(*now.shape, -1)], -1)
        n = options.shape[-1]
        tried = now.expand(s, b * t * n, b, t).clone()
        flat = tried.view(s, b, t, n, b, t)
        for sentence in range(b):
            for place in range(t):
                flat[:, sentence, place, :, sentence, place] = torch.where(
                    doubtful[:, sentence, place, None],
                    options[:, 0, sentence, place],
                    now[:, 0, sentence, place, None],
                )
        useful = (flat != now.view(s, 1, 1, 1, b, t)).any(-1).any(-1).any(0).flatten()
        tried = tried[:, useful]
        if tried.shape[1] == 0:
            return now, best
        scores = torch.full((s, b * t * n), torch.inf, device=now.device)
        scores[:, useful] = score(tried)
        each = scores.view(s, b * t, n).min(-1)
        values = options[:, 0].flatten(1, 2).gather(-1, each.indices[..., None])[..., 0]
        # Positions in the order of their gain: the first alone, the first two together, and so on.
        rank = each.values.argsort(1).argsort(1)
        most = max(1, int((each.values < best).sum(1).max()))
        changed = rank[:, None] < torch.arange(1, most + 1, device=now.device)[:, None]
        changed = changed & (each.values < best)[:, None]
        together = torch.where(changed, values[:, None], now.flatten(2))
        return _better(score, now, best, together.view(s, most, b, t))

    def _reorderings(
        self, objective: Objective, score: _Score, now: Tensor, best: Tensor, source: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Try other orders of each sentence in turn."""
        problems = objective.problems
        s, _, b, t = now.shape
        for sentence in range(b):
            orders = reorderings(problems.counts[:, sentence], t, problems.first, self.orders, source)
            tried = now.expand(s, self.orders, b, t).clone()
            tried[:, :, sentence] = tried[:, :, sentence].gather(-1, orders)
            now, best = _better(score, now, best, tried[:, 1:])
        return now, best


class _Score:
    def __init__(self, objective: Objective, prior: Prior | None, labels: Tensor | None, limit: TimeLimit) -> None:
        self.objective, self.prior, self.labels, self.limit = objective, prior, labels, limit

    def __call__(self, tokens: Tensor) -> Tensor:
        losses = self.objective.of_tokens(tokens, self.labels, self.limit)
        return losses + self.objective.surprise(tokens, self.prior)


def _better(score: _Score, now: Tensor, best: Tensor, tried: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best of the current and the tried tokens, for each problem."""
    scores = torch.cat([best, score(tried)], 1)
    tokens = torch.cat([now, tried], 1)
    chosen = scores.argmin(1, keepdim=True)
    return pick(tokens, chosen), pick(scores, chosen)


def reorderings(counts: Tensor, length: int, first: int, proposals: int, source: torch.Generator) -> Tensor:
    """Return `proposals` orders of the tokens of each sentence, (sentences, proposals, length); the first is unchanged.

    A sentence has `counts` free tokens from position `first`; all others keep their positions. An order holds, for each
    position, the index of the token that moves there. The four kinds of move alternate.

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
    # Moving a token, moving a segment and rotating all exchange two adjacent segments [a, b) and [b, c).
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
