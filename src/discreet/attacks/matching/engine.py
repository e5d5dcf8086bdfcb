"""The engine of gradient matching: word vectors are optimized until their gradient matches the released one.

DLG, TAG and LAMP are settings of it. It attacks many releases at once, each with its own candidates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from discreet.attacks.base import GradientAttack, TimeLimit, check_search
from discreet.attacks.encoder_layers import dissect, model_of
from discreet.attacks.matching.candidate_gradients import Imitation
from discreet.attacks.matching.lbfgs import minimise
from discreet.attacks.matching.objective import MatchingLoss, Objective
from discreet.attacks.matching.polish import Polish, reorderings
from discreet.attacks.matching.problems import Problems, Vocabulary, pick
from discreet.core.errors import invalid, non_negative, positive, probability, whole
from discreet.core.randomness import Rng
from discreet.core.rules import OneOf, check_fields, ruled
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.base import TextModel
from discreet.models.ngram import NGram, Prior

_BETAS = (0.9, 0.999)
_PULL_EVERY = 5  # steps between lookups of the nearest words
_LATER = 0.1  # factor of the rate for a descent that starts from tokens: a step at the full rate would lose them
OPTIMISERS = ("adam", "l-bfgs")
_PRIOR = "Pass public texts as Knowledge(auxiliary=…), or NGram.fit(texts, model.tokenizer) as the prior."


class Search:
    """The state of one search: vectors (problems, kept, sentences, tokens, width), their losses and label logits."""

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
        """Start from the fixed tokens, without candidates."""
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
        """Return soft labels if they are learned."""
        return None if self.logits is None else self.logits.softmax(-1)

    def start(self) -> None:
        """Sample random vectors, keep the closest, try other orders, and scale them to the mean norm of words."""
        s, b, t, width = self.pinned.shape
        settings, device = self.settings, self.x.device
        limit = self.limit.until(1 / 8)
        seeds = torch.randint(
            2**31, (max(settings.starts, settings.kept),), generator=self.source, device=device
        ).tolist()

        def sample(part: slice) -> Tensor:
            sources = (torch.Generator(device=device).manual_seed(seed) for seed in seeds[part])
            rows = [torch.randn(s, b, t, width, generator=source, device=device) for source in sources]
            return self._pin(torch.stack(rows, 1))

        if settings.starts > settings.kept:
            losses = self.objective.of_many(settings.starts, sample, self.labels(), limit)
            chosen = losses.topk(settings.kept, largest=False).indices
            x = self.x.new_empty(s, settings.kept, b, t, width)
            for i in sorted(set(chosen.flatten().tolist())):
                problem, place = (chosen == i).nonzero(as_tuple=True)
                x[problem, place] = sample(slice(i, i + 1))[problem, 0]
        else:
            x = sample(slice(0, settings.kept))
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
        # Free tokens are sorted randomly; the fixed tokens before and after them keep their positions.
        after = (~self.problems.free) & (place >= self.problems.first)
        keys = torch.where(self.problems.free[:, None, None], noise, -1.0) + 2 * after[:, None, None] * (1 + place)
        orders = keys.argsort(-1)
        orders[:, :, 0] = place
        self._choose(orders, None)

    def cycle(self, number: int, tokens: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        """Descend and polish once, in an equal share of the time limit; later cycles start from the best tokens."""
        settings = self.settings
        whole = self.limit
        self.limit = whole.until((number + 1) / settings.cycles)
        if tokens is not None:
            self.x = self.best = self.objective.imitation.words[tokens]
            self.best_loss = torch.full(self.x.shape[:2], torch.inf, device=self.x.device)
            self.logits = None if self.logits is None else self.logits[:, :1].contiguous()
        share = settings.descent if settings.polish is not None else 0.98
        self.descend(settings.rate * (_LATER if number else 1.0), (number + share) / (number + 1))
        nearest, losses = self.read()
        if settings.polish is not None:
            if tokens is not None:
                nearest, self.best = torch.cat([nearest, tokens], 1), self.best.expand(-1, 2, -1, -1, -1)
            source = rng.fork("polish", number)
            nearest, losses = settings.polish.run(
                self.objective, self.vocabulary, nearest, self.best, self.labels(), self.prior, self.limit, source
            )
        self.limit = whole
        return nearest, losses

    def descend(self, rate: float, until: float) -> None:
        """Minimize the loss by gradient descent with discrete rounds, at most until a share of the time limit."""
        settings = self.settings
        if settings.optimiser == "l-bfgs":
            self._quasi_newton()
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
        losses, _, _ = self.total(self.x)
        self.keep_best(losses)

    def _label_moments(self) -> tuple[Tensor, Tensor] | None:
        return None if self.logits is None else (torch.zeros_like(self.logits), torch.zeros_like(self.logits))

    def _quasi_newton(self) -> None:
        """Minimize by L-BFGS over vectors and label logits together."""
        settings = self.settings
        shape = self.x.shape
        joined = self.x.flatten(2) if self.logits is None else torch.cat([self.x.flatten(2), self.logits.flatten(2)], 2)
        count = shape[2:].numel()
        rows = joined.flatten(0, 1)

        def slopes(flat: Tensor) -> tuple[Tensor, Tensor]:
            if self.logits is not None:
                self.logits = flat[:, count:].reshape(self.logits.shape)
            losses, gradients, label_gradients = self.total(flat[:, :count].reshape(shape))
            parts = (
                [gradients.flatten(2)] if self.logits is None else [gradients.flatten(2), label_gradients.flatten(2)]
            )
            return losses.flatten(), torch.cat(parts, 2).view_as(rows)

        def after(step: int, flat: Tensor, losses: Tensor) -> bool:
            self.x = flat[:, :count].reshape(shape)
            self.keep_best(losses.view(shape[:2]))
            self.steps_done = step
            return not self.limit.over()

        end = minimise(slopes, rows, rate=settings.rate, steps=settings.steps - 1, backtrack=True, after=after)
        if self.logits is not None:
            self.logits = end.points[:, count:].reshape(self.logits.shape)

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
        """Keep the candidates with the smallest loss so far."""
        better = losses < self.best_loss
        self.best = torch.where(better[..., None, None, None], self.x, self.best)
        self.best_loss = torch.where(better, losses, self.best_loss)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the tokens of the best vectors, (problems, kept, sentences, tokens), and the losses of the vectors."""
        tokens = self._nearest_tokens(self.best)
        order = self.best_loss.argsort(1)
        self.best = pick(self.best, order)
        return pick(tokens, order), pick(self.best_loss, order)

    def _pin(self, x: Tensor) -> Tensor:
        return torch.where(self.free[:, None], x, self.pinned[:, None])

    def _nearest_tokens(self, x: Tensor) -> Tensor:
        return torch.where(self.problems.free[:, None], self.vocabulary.nearest(x)[..., 0], self.problems.ids[:, None])

    def _prune(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Drop the worse half of the candidates."""
        kept = max(1, self.x.shape[1] // 2)
        chosen = self.best_loss.topk(kept, largest=False).indices

        self.x, self.best, self.best_loss = (pick(one, chosen) for one in (self.x, self.best, self.best_loss))
        if self.logits is not None:
            self.logits = pick(self.logits, chosen)
        return pick(first, chosen), pick(second, chosen)

    def _round(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Try other orders of each sentence's tokens, and reorder the optimiser's moments with them."""
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
        """Apply the best of some orders, (problems, kept, orders, sentences, tokens), and return it."""
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
            tokens = self._nearest_tokens(self.x)
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


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the descent, shared by the engine and the attacks that expose all of them.

    The search samples `starts` random candidates, tries `shuffles` orders of the best and follows `kept` of them, half
    of which are dropped at each of `prunings`. The rate decays geometrically to `last_rate` times its first value.
    Every `every` steps after `burn_in`, `proposals` orders of each sentence's tokens are tried, scored by the loss plus
    `prior` times the prior times the loss so far. `norm_weight` is the weight of the embedding-norm regularizer. `pull`
    moves each vector towards its nearest word, by a share of the rate that grows to this value during the descent.
    Descent and polish may run for several `cycles`, each from the best tokens of the previous one. Steps are counted,
    so the result does not depend on the machine; `seconds` is an additional upper limit, and `details` says whether it
    ended the search. The descent uses at most the share `descent` of it.
    """

    steps: int = 1000
    rate: float = 0.1
    last_rate: float = 1.0
    starts: int = 1
    shuffles: int = 0
    kept: int = 1
    prunings: tuple[float, ...] = ()
    norm_weight: float = 0.0
    pull: float = 0.0
    prior: float = 0.0
    burn_in: float = 0.1
    every: int = 0
    proposals: int = 200
    descent: float = 0.75
    cycles: int = 1
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_search(self, "steps", "starts", "kept", "cycles")
        for name in ("shuffles", "every"):
            whole(name, getattr(self, name), 0)
        whole("proposals", self.proposals, 2)
        for name in ("rate", "last_rate"):
            positive(name, getattr(self, name))
        for name in ("norm_weight", "prior", "pull"):
            non_negative(name, getattr(self, name))
        for name, value in (
            ("burn_in", self.burn_in),
            ("descent", self.descent),
            *(("prunings", p) for p in self.prunings),
        ):
            probability(name, value)


@dataclass(frozen=True, kw_only=True)
class Matching(SearchSettings):
    """The engine: a descent on `loss`, then `polish`, which exchanges and reorders single tokens.

    `learn_labels` learns soft labels even if the release has labels.
    """

    loss: MatchingLoss
    optimiser: str = ruled("adam", OneOf(OPTIMISERS))
    polish: Polish | None = None
    learn_labels: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_fields(self)

    def run(self, releases: Sequence[GradientRelease], knows: Knowledge, rng: Rng, attack: str) -> list[Guess]:
        """Return a guess for each release; all of one batch size, attacked together."""
        limit = TimeLimit(self.seconds)
        model, objective = set_up(releases, knows, self.loss, attack)
        problems = objective.problems
        prior = prior_of(knows, model) if self.prior > 0 or self.polish is not None else None
        learn = self.learn_labels or problems.labels is None
        search = Search(self, objective, Vocabulary.of(model, objective.imitation.words), prior, learn, limit, rng)
        seconds = {"ready": limit.passed}
        search.start()
        seconds["started"] = limit.passed
        tokens, losses = search.cycle(0, None, rng)
        for number in range(1, self.cycles):
            if self.polish is not None and not limit.over():
                tokens, losses = search.cycle(number, tokens, rng)
        seconds["ended"] = limit.passed
        details = {"steps": search.steps_done, "seconds": seconds, "stopped_by_time_limit": limit.reached}
        return [guess_of(model, problems, s, tokens[s], losses[s], details) for s in range(len(releases))]


class SearchingAttack(GradientAttack):
    """Base class of attacks that search for texts, for several releases at once."""

    has_time_limit: ClassVar[bool] = True

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the texts behind a release.

        `details` has the token ids, the loss of the best text (including the prior, if any), the number of steps, the
        elapsed seconds at the end of each part of the search, and whether a time limit ended it.
        """
        return self.run_many([seen], knows, rng)[0]

    @abstractmethod
    def run_many(self, releases: Sequence[GradientRelease], knows: Knowledge, rng: Rng) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""


class MatchingAttack(SearchingAttack):
    """Base class of DLG, TAG and LAMP, which are settings of the engine."""

    def __post_init__(self) -> None:
        """Check the settings."""
        self.engine()

    def run_many(self, releases: Sequence[GradientRelease], knows: Knowledge, rng: Rng) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""
        return self.engine().run(releases, knows, rng, self.label)

    @abstractmethod
    def engine(self) -> Matching:
        """Return the settings of the engine."""


def set_up(
    releases: Sequence[GradientRelease], knows: Knowledge, loss: MatchingLoss, attack: str
) -> tuple[TextModel, Objective]:
    """Return the public model and the loss of candidates against releases of one batch size; raise if unusable."""
    model = model_of(knows, attack)
    problems = Problems.of(releases, model, attack)
    return model, Objective(Imitation(model, releases, attack, _signal_norm(releases, knows)), problems, loss)


def prior_of(knows: Knowledge, model: TextModel) -> Prior | None:
    """Return the attacker's language model: from its knowledge, or fitted to its auxiliary texts, or None."""
    prior: Any = knows.extra.get("prior")
    if prior is None:
        return NGram.fit(list(knows.auxiliary), model.tokenizer).to(model.device) if knows.auxiliary else None
    if isinstance(prior, NGram):
        size = len(model.tokenizer)
        if prior.vocabulary not in (size, len(dissect(model).embeddings.words)):
            remedy = "It belongs to another tokenizer; create one with NGram.fit(texts, model.tokenizer)."
            raise invalid("prior.vocabulary", prior.vocabulary, f"equal to {size}, the model's tokens", remedy)
        return prior.to(model.device)
    if not callable(getattr(prior, "surprise", None)):
        raise invalid("prior", type(prior).__name__, "an NGram or a CausalPrior", _PRIOR)
    return prior  # type: ignore[no-any-return]


def _signal_norm(releases: Sequence[GradientRelease], knows: Knowledge) -> float:
    """Return the norm of the gradients without noise, if the attacker knows the protection; otherwise 0."""
    norm = None if knows.defence is None else knows.defence.signal_norm
    return 0.0 if norm is None else float(norm) * releases[0].batch_size / releases[0].divisor


def guess_of(
    model: TextModel, problems: Problems, s: int, tokens: Tensor, losses: Tensor, details: dict[str, Any]
) -> Guess:
    """Return the best candidate of a problem as a guess."""
    best = int(losses.argmin())
    rows = [row[mask.bool()].tolist() for row, mask in zip(tokens[best], problems.mask[s], strict=True)]
    texts = tuple(model.tokenizer.decode(row, skip_special_tokens=True) for row in rows)
    details = details | {"tokens": tuple(tuple(row) for row in rows), "loss": float(losses[best])}
    return Guess(texts=texts, scores=(-float(losses[best]),) * len(texts), details=details)
