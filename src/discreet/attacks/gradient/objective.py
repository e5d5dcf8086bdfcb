"""The loss of candidate texts against releases, given as vectors or tokens, with or without a graph, in portions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from discreet.attacks.gradient.imitation import Imitation
from discreet.attacks.gradient.matching_loss import MatchingLoss, evidence
from discreet.attacks.gradient.problems import Problems
from discreet.attacks.gradient.time_limit import TimeLimit
from discreet.models.ngram import Prior

# Tokens that go through the model together: a CPU's cache is soon full, a GPU's memory holds 300 kB a token.
_TOKENS = {"cpu": 1024, "cuda": 60_000}


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
        (found,) = torch.autograd.grad(losses.sum(), x)
        return losses.detach(), found

    @torch.no_grad()
    def of_many(
        self,
        count: int,
        candidates: Callable[[slice], Tensor],
        labels: Tensor | None = None,
        limit: TimeLimit | None = None,
    ) -> Tensor:
        """Return the losses of `count` candidates a problem, made in portions; infinite where the time was up."""
        s, step = len(self.problems.mask), portion(self)
        found = torch.full((s, count), torch.inf, device=self.imitation.device)
        for start in range(0, count, step):
            if start and limit is not None and limit.over():
                break
            part = slice(start, min(start + step, count))
            mine = labels if labels is None or labels.shape[1] == 1 else labels[:, part]
            found[:, part] = self(candidates(part), mine)
        return torch.nan_to_num(found, nan=torch.inf)

    def of_tokens(self, tokens: Tensor, labels: Tensor | None = None, limit: TimeLimit | None = None) -> Tensor:
        """Return the losses of tokens, (problems, candidates, sentences, tokens)."""
        words = self.imitation.words
        return self.of_many(tokens.shape[1], lambda part: words[tokens[:, part]], labels, limit)

    @cached_property
    def evidence(self) -> Tensor:
        """The log-likelihood that a unit of the loss is worth, if it is the mean cosine, (problems,)."""
        return evidence(self.imitation)

    def surprise(self, tokens: Tensor, prior: Prior | None) -> Tensor:
        """Return what a prior adds to the losses of tokens, (problems, candidates): minus their log-probability.

        It is in units of the loss: the less noise, the more the release tells, and the less the prior counts.
        """
        if prior is None:
            return torch.zeros(tokens.shape[:2], device=tokens.device)
        mask = self.problems.mask[:, None].expand_as(tokens)
        each = prior.surprise(tokens.flatten(0, 2), mask.flatten(0, 2)).view(tokens.shape[:3])
        return (each * mask.sum(-1)).sum(-1) / self.evidence[:, None]

    def _labels(self, x: Tensor, labels: Tensor | None) -> Tensor:
        s, k, b = x.shape[:3]
        if labels is not None:
            return labels.expand(s, k, b, -1)
        assert self.problems.labels is not None
        return self.problems.labels[:, None].expand(s, k, b)


def portion(objective: Objective) -> int:
    """Return how many candidates a problem go through the model together."""
    return max(1, _TOKENS.get(objective.imitation.device.type, 1024) // objective.problems.mask.numel())
