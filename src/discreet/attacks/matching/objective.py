"""The loss of candidate texts: the distance between a candidate's gradient and the released one.

DLG, TAG and LAMP use different distances. Candidates are vectors or tokens, with or without a graph, in chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from discreet.attacks.base import TimeLimit
from discreet.attacks.matching.candidate_gradients import Imitation
from discreet.attacks.matching.problems import Problems
from discreet.clipping.record import Record
from discreet.core.errors import non_negative, probability
from discreet.models.ngram import Prior

_FLOOR = 1e-30
_SPREAD = 0.05  # error of a tensor's cosine even without noise; smaller noise does not matter
# Tokens per pass: limited by the cache of a CPU, and by the memory of a GPU at 300 kB per token.
_TOKENS = {"cpu": 1024, "cuda": 60_000}


# A distance between the gradients of candidates and the released ones, (problems, candidates), which is differentiable
# with respect to the candidates.
MatchingLoss = Callable[[Imitation, Record, torch.Size], Tensor]


@dataclass(frozen=True)
class SquaredDistance:
    """The squared distance over all tensors together, as in DLG.

    Clipping changes the norm of a protected release, so the candidate's gradient is then scaled to the best fit.
    """

    def __call__(self, imitation: Imitation, record: Record, shape: torch.Size) -> Tensor:
        """Return the distances, relative to the squared norm of the release."""
        figures = imitation.figures(record, shape)
        inner, squares = figures.inner.sum(-1), figures.squares.sum(-1)
        target = imitation.target_squares.sum(-1)[:, None]
        scale = fitting_scale(imitation, inner, squares)
        return (scale.square() * squares - 2 * scale * inner + target).clamp_min(0) / target.clamp_min(_FLOOR)


@dataclass(frozen=True)
class MeanCosine:
    """One minus the cosine, averaged over tensors, as in LAMP.

    Under noise of standard deviation s, a tensor whose gradient has norm g can reach at most a cosine of a = g / r with
    the released tensor, of norm r. So the loss is one minus the cosine over a, with weight g^2 / (0.05^2 g^2 + s^2).
    Without noise that is the mean of the paper; under large noise, the likelihood of the release.

    Without noise, the mean over the rows of the position embeddings, each treated as a tensor, has the share `rows` of
    the loss: a row's gradient depends mostly on the token at its position.
    """

    rows: float = 0.0

    def __post_init__(self) -> None:
        """Reject a share outside [0, 1]."""
        probability("rows", self.rows)

    def __call__(self, imitation: Imitation, record: Record, shape: torch.Size) -> Tensor:
        """Return the distances: 0 for a perfect match, about 1 for an unrelated text."""
        figures = imitation.figures(record, shape)
        lengths = figures.squares.clamp_min(_FLOOR).sqrt() * reachable_lengths(imitation)[:, None]
        weights = signal_weights(imitation)
        weights = weights / weights.sum(-1, keepdim=True)
        by_tensor = ((1 - figures.inner / lengths) * weights[:, None]).sum(-1)
        if self.rows == 0 or figures.row_inner.shape[-1] == 0:
            return by_tensor
        targets = imitation.row_target_squares[:, None]
        lengths = figures.row_squares.clamp_min(_FLOOR).sqrt() * targets.clamp_min(_FLOOR).sqrt()
        distances = 1 - figures.row_inner / lengths
        used = (targets > 0).to(distances.dtype)
        by_row = (distances * used).sum(-1) / used.sum(-1).clamp_min(1)
        share = self.rows * ((imitation.noise_std == 0) & (used.sum(-1) > 0)[:, 0]).to(distances.dtype)[:, None]
        return (1 - share) * by_tensor + share * by_row


@dataclass(frozen=True)
class SquaredAndAbsolute:
    """The squared distance plus `absolute` times the sum of absolute differences, as in TAG.

    Absolute differences need the gradients themselves. They are materialized once, without a graph; their derivative is
    a fixed direction v, and the differentiable part is <g, v>, from layer inputs and output gradients.
    """

    absolute: float = 0.01

    def __post_init__(self) -> None:
        """Reject a negative weight."""
        non_negative("absolute", self.absolute)

    def __call__(self, imitation: Imitation, record: Record, shape: torch.Size) -> Tensor:
        """Return the distances, relative to the norm of the release."""
        s, k = shape[:2]
        with torch.no_grad():
            figures = imitation.figures(record, shape)
            scale = fitting_scale(imitation, figures.inner.sum(-1), figures.squares.sum(-1))
        size = imitation.target_squares.sum(-1).sqrt().clamp_min(_FLOOR)
        value: Tensor = torch.zeros(s, k, device=imitation.device)
        along = value
        for slot in record.slots:
            if slot.name not in imitation.names:
                continue
            with torch.no_grad():
                gradients = imitation.gradients(slot, s, k)
                flat = (s, k, *(1 for _ in gradients.shape[2:]))
                gap = gradients * scale.view(flat) - imitation.target(slot.name)[:, None]
                gap /= size.view(s, 1, *flat[2:])
                value = value + (gap.square() + self.absolute * gap.abs()).flatten(2).sum(-1)
                direction = (2 * gap + self.absolute * gap.sign()) * (scale / size[:, None]).view(flat)
            if torch.is_grad_enabled():
                along = along + imitation.along(slot, direction)
        return value + (along - along.detach())


def fitting_scale(imitation: Imitation, inner: Tensor, squares: Tensor) -> Tensor:
    """Return the factor by which candidates' gradients are scaled: 1, or the best fit for protected releases."""
    fitting = (inner.detach() / squares.detach().clamp_min(_FLOOR)).clamp_min(0)
    return torch.where(imitation.protected[:, None], fitting, torch.ones_like(fitting))


def reachable_lengths(imitation: Imitation) -> Tensor:
    """Return the estimated norm of each tensor without noise, (problems, tensors)."""
    norms = imitation.target_squares.sqrt().clamp_min(_FLOOR)
    # Other texts give each tensor's share of the norm; the protection gives the norm.
    signal = (imitation.shares * imitation.signal_squares[:, None]).sqrt().clamp_min(1e-9)
    return torch.where(imitation.noise_std[:, None] > 0, torch.minimum(signal, norms), norms)


def signal_weights(imitation: Imitation) -> Tensor:
    """Return the log-likelihood per unit of each tensor's distance, (problems, tensors)."""
    squares = reachable_lengths(imitation).square()
    return squares / (_SPREAD**2 * squares + imitation.noise_std[:, None].square())


def evidence(imitation: Imitation) -> Tensor:
    """Return the log-likelihood per unit of the mean cosine, (problems,)."""
    return signal_weights(imitation).sum(-1)


@dataclass(frozen=True)
class Objective:
    """A loss over candidates (problems, candidates, sentences, tokens, width)."""

    imitation: Imitation = field(repr=False)
    problems: Problems = field(repr=False)
    loss: MatchingLoss

    def __call__(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the losses of vectors, (problems, candidates), with a graph where gradients are enabled."""
        record = self.imitation.record(x, self.problems.mask, self._labels(x, labels))
        return self.loss(self.imitation, record, x.shape)

    def slopes(self, x: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the losses and their gradients with respect to the vectors."""
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            losses = self(x, labels)
        (gradients,) = torch.autograd.grad(losses.sum(), x)
        return losses.detach(), gradients

    @torch.no_grad()
    def of_many(
        self,
        count: int,
        candidates: Callable[[slice], Tensor],
        labels: Tensor | None = None,
        limit: TimeLimit | None = None,
    ) -> Tensor:
        """Return the losses of `count` candidates per problem, in chunks; infinite for those after the time limit."""
        s, step = len(self.problems.mask), chunk_size(self)
        losses = torch.full((s, count), torch.inf, device=self.imitation.device)
        for start in range(0, count, step):
            if start and limit is not None and limit.over():
                break
            part = slice(start, min(start + step, count))
            own_labels = labels if labels is None or labels.shape[1] == 1 else labels[:, part]
            losses[:, part] = self(candidates(part), own_labels)
        return torch.nan_to_num(losses, nan=torch.inf)

    def of_tokens(self, tokens: Tensor, labels: Tensor | None = None, limit: TimeLimit | None = None) -> Tensor:
        """Return the losses of tokens, (problems, candidates, sentences, tokens)."""
        words = self.imitation.words
        return self.of_many(tokens.shape[1], lambda part: words[tokens[:, part]], labels, limit)

    @cached_property
    def evidence(self) -> Tensor:
        """The log-likelihood per unit of the loss, if it is the mean cosine, (problems,)."""
        return evidence(self.imitation)

    def surprise(self, tokens: Tensor, prior: Prior | None) -> Tensor:
        """Return the prior's term in the losses of tokens, (problems, candidates): minus their log-probability.

        It is in units of the loss: the less noise, the smaller the prior's weight.
        """
        if prior is None:
            return torch.zeros(tokens.shape[:2], device=tokens.device)
        mask = self.problems.mask[:, None].expand_as(tokens)
        per_token = prior.surprise(tokens.flatten(0, 2), mask.flatten(0, 2)).view(tokens.shape[:3])
        return (per_token * mask.sum(-1)).sum(-1) / self.evidence[:, None]

    def _labels(self, x: Tensor, labels: Tensor | None) -> Tensor:
        s, k, b = x.shape[:3]
        if labels is not None:
            return labels.expand(s, k, b, -1)
        assert self.problems.labels is not None
        return self.problems.labels[:, None].expand(s, k, b)


def chunk_size(objective: Objective) -> int:
    """Return the number of candidates per problem in one pass."""
    return max(1, _TOKENS.get(objective.imitation.device.type, 1024) // objective.problems.mask.numel())
