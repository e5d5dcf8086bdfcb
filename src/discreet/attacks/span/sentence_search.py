"""Combine the possible tokens at each position into sentences, by the states of whole sentences."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from discreet.attacks.base import TimeLimit
from discreet.attacks.encoder_layers import inputs_of
from discreet.attacks.span.spans import Span
from discreet.models.base import TextModel

Sentence = tuple[int, ...]
_BATCH_TOKENS = 4096  # tokens in one forward pass
_USED = 4.0  # penalty, in nats, on the initial log-probability of a pair that a confirmed sentence contains
_NARROW = 12  # tokens per position in the last, discrete part of the search


@dataclass(frozen=True)
class Check:
    """A module whose inputs are states of whole sentences, and the span that contains the true states."""

    model: TextModel = field(repr=False)
    module: nn.Module = field(repr=False)
    span: Span

    def distances(self, sentences: Tensor) -> Tensor:
        """Return the distance of every state of token sequences of one length, (sentences, tokens)."""
        size = max(1, _BATCH_TOKENS // sentences.shape[1])
        parts = [self.span.distance(inputs_of(self.model, self.module, part)) for part in torch.split(sentences, size)]
        return torch.cat(parts)

    def squares(self, vectors: Tensor, outside: Tensor) -> Tensor:
        """Return differentiable squared distances of the states of sequences of word vectors."""
        states = nn.functional.normalize(inputs_of(self.model, self.module, vectors), dim=-1)
        return (states @ outside.mT).square().sum(dim=-1)

    def outside(self) -> Tensor:
        """Return an orthonormal basis of the complement of the span, in the model's precision."""
        basis: Tensor = torch.linalg.qr(self.span.basis.mT, mode="complete")[0]
        return basis[:, self.span.rank :].mT.float().contiguous()


@dataclass(frozen=True)
class Checks:
    """Several checks at once; a state's distance is the root mean square over them."""

    parts: tuple[Check, ...]

    def distances(self, sentences: Tensor) -> Tensor:
        """Return the distance of every state, (sentences, tokens)."""
        return torch.stack([check.distances(sentences).square() for check in self.parts]).mean(dim=0).sqrt()

    def distance(self, sentence: Sentence, device: torch.device) -> float:
        """Return the mean distance of the states of one sentence."""
        return float(self.distances(torch.tensor([sentence], device=device)).mean())

    def squares(self, vectors: Tensor, outside: Tensor) -> Tensor:
        """Return differentiable squared distances; `outside` returns the stacked bases."""
        width = vectors.shape[-1]
        bases = torch.split(outside, [width - check.span.rank for check in self.parts])
        squares = [check.squares(vectors, basis) for check, basis in zip(self.parts, bases, strict=True)]
        return torch.stack(squares).mean(dim=0)

    def outside(self) -> Tensor:
        """Return the stacked orthonormal bases of the complements of the spans."""
        return torch.cat([check.outside() for check in self.parts])


@dataclass(frozen=True)
class Budget:
    """The effort of the search for one sentence; a time limit may end it earlier."""

    starts: int
    steps: int
    rate: float
    sweeps: int
    all_at_most: int
    limit: TimeLimit = field(default_factory=TimeLimit)


@dataclass(frozen=True)
class Choices:
    """The possible tokens at each position of a sentence, with their initial log-probabilities."""

    tokens: Sequence[Sequence[int]]
    prior: Sequence[Sequence[float]]

    @property
    def count(self) -> float:
        """The number of possible sentences."""
        return math.prod(float(len(tokens)) for tokens in self.tokens)


def penalize_used(choices: Choices, used: set[tuple[int, int]]) -> Choices:
    """Return choices with lower initial probabilities for pairs that other sentences already contain."""
    prior = [
        [value - _USED * ((place, token) in used) for token, value in zip(tokens, values, strict=True)]
        for place, (tokens, values) in enumerate(zip(choices.tokens, choices.prior, strict=True))
    ]
    return Choices(choices.tokens, prior)


def search(
    check: Check | Checks,
    choices: Choices,
    words: Tensor,
    budget: Budget,
    source: torch.Generator,
    excluded: Collection[Sentence] = (),
) -> Sentence:
    """Return the sentence of one length whose states lie closest to the span, within the budget.

    A small number of sentences is enumerated. Otherwise each position starts as a mixture of its tokens, the mixtures
    of several starts are optimized by gradient descent, and the closest sentences are improved one token at a time.
    Sentences in `excluded` have an infinite distance.
    """
    device = words.device
    if choices.count <= budget.all_at_most:
        grids = torch.cartesian_prod(*[torch.tensor(tokens, device=device) for tokens in choices.tokens])
        sentences = grids.view(-1, len(choices.tokens))
        return _sentence(sentences[_squares(check, sentences, excluded).argmin()])
    outside = check.outside()
    width = max(len(tokens) for tokens in choices.tokens)
    ids = torch.zeros(len(choices.tokens), width, dtype=torch.int64)
    prior = torch.full(ids.shape, -math.inf)
    for place, (tokens, values) in enumerate(zip(choices.tokens, choices.prior, strict=True)):
        ids[place, : len(tokens)] = torch.tensor(tokens)
        prior[place, : len(tokens)] = torch.tensor(values, dtype=prior.dtype)
    ids, prior = ids.to(device), prior.to(device)
    vectors = words[ids]
    noise = torch.randn(budget.starts, *ids.shape, generator=source, device=source.device).to(device)
    noise[0] = 0  # one start is exactly the prior
    scores = (prior + noise).requires_grad_()
    adam = torch.optim.Adam([scores], lr=budget.rate)
    for _ in range(budget.steps):
        if budget.limit.over():
            break
        mixed = torch.einsum("slk,lkd->sld", scores.softmax(dim=-1), vectors)
        loss = (
            (check.squares(mixed, outside) + 1e-6).sqrt().mean(dim=1)
        )  # not squared: favors many exact states and few distant ones
        (scores.grad,) = torch.autograd.grad(loss.sum(), [scores])
        adam.step()
    final = scores.detach()
    tokens_of_starts = ids.expand(final.shape).gather(2, final.argmax(dim=-1, keepdim=True)).squeeze(-1)
    best = torch.unique(tokens_of_starts, dim=0)
    with torch.no_grad():
        starts = best[_squares(check, best, excluded).argsort()[:2]]
    kept = final.amax(dim=0).topk(min(_NARROW, width), dim=-1).indices  # (positions, narrow)
    rows = [[int(ids[p, k]) for k in kept[p].tolist() if k < len(choices.tokens[p])] for p in range(len(ids))]
    return _descend(check, starts, rows, budget, excluded)


def _squares(check: Check | Checks, sentences: Tensor, excluded: Collection[Sentence]) -> Tensor:
    """Return the mean squared distance of each sentence; infinite if excluded."""
    squares = check.distances(sentences).square().mean(dim=1)
    for sentence in excluded:
        same = (sentences == torch.tensor(sentence, device=sentences.device)).all(dim=1)
        squares = torch.where(same, math.inf, squares)
    return squares


def _descend(
    check: Check | Checks,
    sentences: Tensor,
    tokens: Sequence[Sequence[int]],
    budget: Budget,
    excluded: Collection[Sentence],
) -> Sentence:
    """Return the best sentence after exchanging single tokens, position by position."""
    sentences = sentences.clone()
    squares = _squares(check, sentences, excluded)
    for _ in range(budget.sweeps):
        before = squares
        for place, options in enumerate(tokens):
            if len(options) < 2 or budget.limit.over():
                continue
            choice = torch.tensor(options, device=sentences.device)
            tried = sentences[:, None].repeat(1, len(options), 1)
            tried[:, :, place] = choice
            least, which = _squares(check, tried.flatten(0, 1), excluded).view(len(sentences), -1).min(dim=1)
            better = least < squares
            sentences[better, place] = choice[which[better]]
            squares = torch.where(better, least, squares)
        if torch.equal(before, squares) or float(squares.min()) < 1e-10:
            break
    return _sentence(sentences[squares.argmin()])


def grow(
    check: Check,
    tokens: Sequence[Sequence[int]],
    distance: float,
    most: int,
    limit: TimeLimit,
    opening: Sentence = (),
) -> list[Sentence]:
    """Return the sentences of a causal model, extended token by token from a known opening.

    A state depends only on the tokens up to its own, so a wrong prefix ends at once. A sentence is returned when no
    token extends it, or unfinished when a time limit is reached.
    """
    device = next(check.model.parameters()).device
    ended: list[Sentence] = []
    alive: list[Sentence] = [opening]
    for options in tokens[len(opening) :]:
        if not options or (alive != [opening] and limit.over()):
            break
        tried = torch.tensor([(*start, token) for start in alive for token in options], device=device)
        last = check.distances(tried)[:, -1]
        order = [i for i in last.argsort().tolist() if float(last[i]) <= distance][:most]
        longer = [_sentence(tried[i]) for i in order]
        extended = {sentence[:-1] for sentence in longer}
        ended += [start for start in alive if start and start not in extended]
        alive = longer
        if not alive:
            break
    return ended + [sentence for sentence in alive if sentence]


def _sentence(row: Tensor) -> Sentence:
    return tuple(int(token) for token in row.tolist())
