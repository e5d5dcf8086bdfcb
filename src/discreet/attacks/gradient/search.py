"""A search under way: the vectors in the place of words, their descent, and the rounds of reordering in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from discreet.attacks.gradient.moves import reorderings
from discreet.attacks.gradient.objective import Objective
from discreet.attacks.gradient.quasi_newton import minimise
from discreet.attacks.gradient.time_limit import TimeLimit
from discreet.attacks.gradient.vocabulary import Vocabulary
from discreet.core.randomness import Rng
from discreet.models.ngram import Prior

if TYPE_CHECKING:
    from discreet.attacks.gradient.matching import Matching

Progress = Callable[[int, float], None]
_BETAS = (0.9, 0.999)
_PULL_EVERY = 5  # steps between looking up the nearest words
_LATER = 0.1  # of the rate with which a descent from tokens begins: a step at the full one would forget them


class Search:
    """The state of one search: vectors (problems, kept, sentences, tokens, width) and the optimiser's moments."""

    def __init__(
        self,
        settings: Matching,
        objective: Objective,
        vocabulary: Vocabulary,
        prior: Prior | None,
        learn_labels: bool,
        limit: TimeLimit,
        rng: Rng,
    ) -> None:
        """Keep the parts."""
        self.settings, self.objective, self.vocabulary = settings, objective, vocabulary
        self.prior, self.limit = prior, limit
        self.problems = objective.problems
        self.pinned = objective.imitation.words[self.problems.ids]  # (problems, sentences, tokens, width)
        self.free = self.problems.free[..., None]
        self.source = rng.fork("search").torch(objective.imitation.device, "Gradient matching")
        self.norm = vocabulary.mean_norm
        self.x = self.pinned[:, None]
        self.logits: Tensor | None = None
        if learn_labels:
            classes = len(objective.imitation.model.label_names)
            self.logits = torch.zeros(*self.x.shape[:3], classes, device=self.x.device)
        self.best = self.x
        self.best_loss = torch.full(self.x.shape[:2], torch.inf, device=self.x.device)
        self.steps_done = 0

    def labels(self) -> Tensor | None:
        """Return soft labels where they are learned."""
        return None if self.logits is None else self.logits.softmax(-1)

    def start(self) -> None:
        """Draw random vectors, keep the closest, try them in other orders, and give them the length of words."""
        s, b, t, width = self.pinned.shape
        settings, device = self.settings, self.x.device
        limit = self.limit.until(1 / 8)
        seeds = torch.randint(
            2**31, (max(settings.starts, settings.kept),), generator=self.source, device=device
        ).tolist()

        def drawn(part: slice) -> Tensor:
            rows = []
            for seed in seeds[part]:
                source = torch.Generator(device=device).manual_seed(seed)
                rows.append(torch.randn(s, b, t, width, generator=source, device=device))
            x = torch.stack(rows, 1)
            return torch.where(self.free[:, None], x, self.pinned[:, None])

        if settings.starts > settings.kept:
            losses = self.objective.of_many(settings.starts, drawn, self.labels(), limit)
            chosen = losses.topk(settings.kept, largest=False).indices
            x = self.x.new_empty(s, settings.kept, b, t, width)
            for i in sorted(set(chosen.flatten().tolist())):
                problem, place = (chosen == i).nonzero(as_tuple=True)
                x[problem, place] = drawn(slice(i, i + 1))[problem, 0]
        else:
            x = drawn(slice(0, settings.kept))
        self.x = x
        if self.logits is not None:
            self.logits = self.logits.expand(-1, self.x.shape[1], -1, -1).contiguous()
        if settings.shuffles > 1:
            self._shuffle(settings.shuffles)
        if settings.starts > 1:
            self.x = self._pin(self.x * (self.norm / self.x.norm(dim=-1, keepdim=True).clamp_min(1e-12)))
        self.best, self.best_loss = self.x, torch.full(self.x.shape[:2], torch.inf, device=device)

    def _shuffle(self, count: int) -> None:
        """Try the tokens of every candidate in random orders."""
        s, k, b, t, _ = self.x.shape
        noise = torch.rand(s, k, count, b, t, generator=self.source, device=self.x.device)
        place = torch.arange(t, device=self.x.device)
        # Free tokens sort by chance among themselves; the fixed ones before and after keep their places.
        after = (~self.problems.free) & (place >= self.problems.first)
        keys = torch.where(self.problems.free[:, None, None], noise, -1.0) + 2 * after[:, None, None] * (1 + place)
        orders = keys.argsort(-1)
        orders[:, :, 0] = place
        self._choose(orders, None)

    def cycle(self, number: int, tokens: Tensor | None, rng: Rng, progress: Progress | None) -> tuple[Tensor, Tensor]:
        """Descend and polish once, in an equal share of a time limit; from the second time on, from the best tokens."""
        settings = self.settings
        whole = self.limit
        self.limit = whole.until((number + 1) / settings.cycles)
        if tokens is not None:
            self.x = self.best = self.objective.imitation.words[tokens]
            self.best_loss = torch.full(self.x.shape[:2], torch.inf, device=self.x.device)
            self.logits = None if self.logits is None else self.logits[:, :1].contiguous()
        share = settings.descent if settings.polish is not None else 0.98
        self.descend(settings.rate * (_LATER if number else 1.0), (number + share) / (number + 1), progress)
        found, losses = self.read()
        if settings.polish is not None:
            if tokens is not None:
                found, self.best = torch.cat([found, tokens], 1), self.best.expand(-1, 2, -1, -1, -1)
            source = rng.fork("polish", number)
            found, losses = settings.polish.run(self.objective, found, self, self.prior, self.limit, source)
        self.limit = whole
        return found, losses

    def descend(self, rate: float, until: float, progress: Progress | None = None) -> None:
        """Follow the gradient of the loss from a rate, with discrete rounds, at most until a share of a time limit."""
        settings = self.settings
        if settings.optimiser == "l-bfgs":
            self._quasi_newton(progress)
            return
        first, second = torch.zeros_like(self.x), torch.zeros_like(self.x)
        label_moments = self._label_moments()
        prunings = sorted(settings.prunings)
        began = self.limit.share
        for step in range(settings.steps):
            done = self.limit.done(step, settings.steps, began, until)
            if done >= 1:
                break
            losses, slopes, label_slopes = self.total(self.x)
            self.steps_done += 1
            self.keep_best(losses)
            now = rate * settings.last_rate**done
            moved = self.x - now * _adam(slopes, first, second, step + 1)
            if settings.pull > 0 and step % _PULL_EVERY == 0:
                words = self.objective.imitation.words[self.vocabulary.nearest(self.x)[..., 0]]
                moved = moved + min(1.0, _PULL_EVERY * settings.pull * now * done) * (words - self.x)
            self.x = self._pin(moved)
            if self.logits is not None and label_moments is not None:
                self.logits = self.logits - now * _adam(label_slopes, *label_moments, step + 1)
            if prunings and done >= prunings[0] and self.x.shape[1] > 1:
                prunings.pop(0)
                first, second = self._prune(first, second)
                label_moments = self._label_moments()
            if settings.every and done >= settings.burn_in and step % settings.every == 1:
                first, second = self._round(first, second)
            if progress is not None:
                progress(step, float(losses.min(1).values.mean()))
        losses, _, _ = self.total(self.x)
        self.keep_best(losses)

    def _label_moments(self) -> tuple[Tensor, Tensor] | None:
        return None if self.logits is None else (torch.zeros_like(self.logits), torch.zeros_like(self.logits))

    def _quasi_newton(self, progress: Progress | None) -> None:
        """Follow L-BFGS; vectors and label logits are one unknown."""
        settings = self.settings
        shape = self.x.shape
        joined = self.x.flatten(2) if self.logits is None else torch.cat([self.x.flatten(2), self.logits.flatten(2)], 2)
        count = shape[2:].numel()

        def slopes(flat: Tensor) -> tuple[Tensor, Tensor]:
            if self.logits is not None:
                self.logits = flat[..., count:].view_as(self.logits)
            losses, found, label_slopes = self.total(flat[..., :count].view(shape))
            parts = [found.flatten(2)] if self.logits is None else [found.flatten(2), label_slopes.flatten(2)]
            return losses, torch.cat(parts, 2)

        def after(step: int, flat: Tensor, losses: Tensor) -> bool:
            self.x = flat[..., :count].view(shape)
            self.keep_best(losses)
            self.steps_done = step
            if progress is not None:
                progress(step, float(losses.min(1).values.mean()))
            return not self.limit.over()

        found = minimise(joined, slopes, settings.rate, settings.steps, after)
        if self.logits is not None:
            self.logits = found[..., count:].view_as(self.logits)

    def total(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return losses with the regulariser, and their gradients with respect to vectors and label logits."""
        x = x.detach().requires_grad_()
        wanted = [x]
        labels = None
        if self.logits is not None:
            logits = self.logits.detach().requires_grad_()
            wanted.append(logits)
            labels = logits.softmax(-1)
        with torch.enable_grad():
            losses = self.objective(x, labels)
            if self.settings.norm_weight > 0:
                mask = self.problems.mask[:, None].to(x.dtype)
                mean = (x.norm(dim=-1) * mask).sum((2, 3)) / mask.sum((2, 3))
                losses = losses + self.settings.norm_weight * (mean - self.norm).square()
        slopes = torch.autograd.grad(losses.sum(), wanted)
        clean = torch.nan_to_num(slopes[0]) * self.free[:, None]
        return losses.detach(), clean, slopes[-1]

    def keep_best(self, losses: Tensor) -> None:
        """Remember the candidates with the least loss so far."""
        better = losses < self.best_loss
        self.best = torch.where(better[..., None, None, None], self.x, self.best)
        self.best_loss = torch.where(better, losses, self.best_loss)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the tokens of the best vectors, (problems, kept, sentences, tokens), and the losses of the vectors."""
        tokens = torch.where(
            self.problems.free[:, None], self.vocabulary.nearest(self.best)[..., 0], self.problems.ids[:, None]
        )
        order = self.best_loss.argsort(1)
        index = order[..., None, None].expand_as(tokens)
        self.best = self.best.gather(1, order.view(*order.shape, 1, 1, 1).expand_as(self.best))
        return tokens.gather(1, index), self.best_loss.gather(1, order)

    def _pin(self, x: Tensor) -> Tensor:
        return torch.where(self.free[:, None], x, self.pinned[:, None])

    def _prune(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Drop the worse half of the candidates."""
        kept = max(1, self.x.shape[1] // 2)
        chosen = self.best_loss.topk(kept, largest=False).indices

        def taken(value: Tensor) -> Tensor:
            return value.gather(
                1, chosen.view(*chosen.shape, *(1,) * (value.dim() - 2)).expand(-1, -1, *value.shape[2:])
            )

        self.x, self.best, self.best_loss = taken(self.x), taken(self.best), taken(self.best_loss)
        if self.logits is not None:
            self.logits = taken(self.logits)
        return taken(first), taken(second)

    def _round(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Try other orders of each sentence's tokens, and let the optimiser's moments go with them."""
        s, k, b, t, _ = self.x.shape
        for sentence in range(b):
            counts = self.problems.counts[:, None, sentence].expand(s, k).reshape(-1)
            orders = reorderings(counts, t, self.problems.first, self.settings.proposals, self.source)
            place = torch.arange(t, device=orders.device).expand(s, k, self.settings.proposals, b, t).clone()
            place[:, :, :, sentence] = orders.view(s, k, -1, t)
            chosen = self._choose(place, self.prior)
            index = chosen[..., None].expand_as(self.x)
            first, second = first.gather(3, index), second.gather(3, index)
        return first, second

    @torch.no_grad()
    def _choose(self, orders: Tensor, prior: Prior | None) -> Tensor:
        """Put the best of some orders, (problems, kept, orders, sentences, tokens), in force, and return it."""
        s, k, n, b, t = orders.shape
        width = self.x.shape[-1]

        def ordered(part: slice) -> Tensor:
            flat = torch.arange(k * n, device=orders.device)[part]
            index = orders.flatten(1, 2)[:, part, ..., None].expand(-1, -1, -1, -1, width)
            return self.x[:, flat // n].gather(3, index)

        labels = self.labels()
        spread = None if labels is None else labels.repeat_interleave(n, 1)
        losses = self.objective.of_many(k * n, ordered, spread, self.limit).view(s, k, n)
        if prior is not None and self.settings.prior > 0:
            tokens = torch.where(
                self.problems.free[:, None], self.vocabulary.nearest(self.x)[..., 0], self.problems.ids[:, None]
            )
            rows = tokens[:, :, None].expand(s, k, n, b, t).gather(4, orders)
            mask = self.problems.mask[:, None, None].expand(s, k, n, b, t)
            surprise = prior.surprise(rows.reshape(-1, t), mask.reshape(-1, t)).view(s, k, n, b).mean(-1)
            losses = losses + self.settings.prior * losses[..., :1].clamp(0, 1) * surprise
        best = losses.argmin(-1)
        chosen = orders.gather(2, best.view(s, k, 1, 1, 1).expand(-1, -1, 1, b, t))[:, :, 0]
        self.x = self.x.gather(3, chosen[..., None].expand_as(self.x))
        return chosen


def _adam(slopes: Tensor, first: Tensor, second: Tensor, step: int) -> Tensor:
    """Update the moments in place and return Adam's step."""
    first.mul_(_BETAS[0]).add_(slopes, alpha=1 - _BETAS[0])
    second.mul_(_BETAS[1]).addcmul_(slopes, slopes, value=1 - _BETAS[1])
    return (first / (1 - _BETAS[0] ** step)) / ((second / (1 - _BETAS[1] ** step)).sqrt() + 1e-8)
