"""Sampled text search: texts are sampled, compared with the release, and resampled around the best ones.

The gradient of the loss at one text says little about another word at the same position. The mean gradient over many
sampled texts is informative, and the noise of the release is the same for all of them, so the search works under noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.attacks.base import Need, TimeLimit, check_search
from discreet.attacks.matching.engine import SearchingAttack, guess_of, prior_of, set_up
from discreet.attacks.matching.lamp_tag_dlg import LOSSES
from discreet.attacks.matching.objective import Objective, chunk_size
from discreet.attacks.matching.polish import Polish, reorderings
from discreet.attacks.matching.problems import Vocabulary, pick
from discreet.core.errors import UnsupportedError, invalid, positive, probability, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.ngram import NGram, Prior

_GRAPH = 4  # memory of a loss with its gradient, relative to the loss alone


class TextSampler:
    """The state of one search: the best texts so far, (problems, parents, sentences, tokens), and the mean slopes.

    `onehot` holds their labels if the labels are unknown, otherwise None.
    """

    def __init__(
        self, settings: WordDraws, objective: Objective, vocabulary: Vocabulary, prior: Prior | None, rng: Rng
    ) -> None:
        """Sample the first texts, each word by its frequency."""
        self.settings, self.objective, self.vocabulary, self.prior = settings, objective, vocabulary, prior
        self.problems = objective.problems
        self.words = objective.imitation.words
        self.source = rng.fork("draws").torch(self.words.device, "Drawing texts")
        allowed = vocabulary.allowed
        self.logs = torch.zeros(len(allowed), device=self.words.device)  # log frequency of each allowed word
        if isinstance(prior, NGram):
            self.logs = prior.unigrams[allowed].log()
        s, b, t = self.problems.mask.shape
        words = torch.multinomial(self.logs.softmax(0), s * settings.texts * b * t, True, generator=self.source)
        self.tokens = self._pin(allowed[words].view(s, settings.texts, b, t))
        self.onehot: Tensor | None = None
        if self.problems.labels is None:
            self.onehot = self._random_labels(s, settings.texts, b)
        self.scores, self.slopes = self._evaluate(self.tokens, self.onehot)
        self._keep_best(self.tokens, self.onehot, self.scores)
        self.rounds_done = 1

    def resample(self, limit: TimeLimit, until: float) -> None:
        """Sample around the best texts, closer in each round, at most until a share of the time limit."""
        settings = self.settings
        for number in range(1, settings.rounds):
            done = limit.done(number, settings.rounds, until=until)
            if done >= 1:
                break
            tokens, onehot = self._children(done)
            scores, slopes = self._evaluate(tokens, onehot)
            weight = max(1 - settings.memory, 1 / (number + 1))
            self.slopes = (1 - weight) * self.slopes + weight * slopes
            self._keep_best(
                torch.cat([self.tokens, tokens], 1),
                None if onehot is None or self.onehot is None else torch.cat([self.onehot, onehot], 1),
                torch.cat([self.scores, scores], 1),
            )
            self.rounds_done = number + 1

    def _pin(self, tokens: Tensor) -> Tensor:
        return torch.where(self.problems.free[:, None], tokens, self.problems.ids[:, None])

    def _random_labels(self, s: int, k: int, b: int) -> Tensor:
        classes = len(self.objective.imitation.model.label_names)
        labels = torch.randint(classes, (s, k, b), generator=self.source, device=self.words.device)
        return F.one_hot(labels, classes).to(self.words.dtype)

    def _evaluate(self, tokens: Tensor, onehot: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the scores of texts, (problems, texts), and the mean of their slopes, (problems, sentences, …)."""
        count = tokens.shape[1]
        step = max(1, chunk_size(self.objective) // _GRAPH)
        losses, total = [], torch.zeros((), device=tokens.device)
        for start in range(0, count, step):
            part = slice(start, start + step)
            labels = None if onehot is None else onehot[:, part]
            chunk, slopes = self.objective.slopes(self.words[tokens[:, part]], labels)
            losses.append(chunk)
            # NaN and infinite slopes carry no information.
            total = total + torch.nan_to_num(slopes, nan=0.0, posinf=0.0, neginf=0.0).sum(1)
        scores = torch.nan_to_num(torch.cat(losses, 1), nan=torch.inf)
        return scores + self.objective.surprise(tokens, self.prior), total / count

    def _keep_best(self, tokens: Tensor, onehot: Tensor | None, scores: Tensor) -> None:
        """Keep the texts with the smallest scores, best first, without duplicates."""
        order = scores.argsort(1)
        tokens, scores = pick(tokens, order), pick(scores, order)
        flat = tokens.flatten(2)
        duplicate = (flat[:, :, None] == flat[:, None]).all(-1).tril(-1).any(-1)
        kept = torch.where(duplicate, torch.inf, scores).argsort(stable=True, dim=1)[:, : self.settings.parents]
        self.tokens, self.scores = pick(tokens, kept), pick(scores, kept)
        if onehot is not None:
            self.onehot = pick(onehot, pick(order, kept))

    def _children(self, done: float) -> tuple[Tensor, Tensor | None]:
        """Return variations of the best texts: some reordered, and a share of the words of each resampled."""
        settings, device = self.settings, self.tokens.device
        s, parents, b, t = self.tokens.shape
        k = settings.texts
        share = 1 - (1 - settings.last_share) * done
        chosen = torch.randint(parents, (s, k), generator=self.source, device=device)
        tokens = pick(self.tokens, chosen)
        moved = torch.rand(s, k, generator=self.source, device=device) < settings.moved
        for sentence in range(b):
            counts = self.problems.counts[:, None, sentence].expand(s, k).reshape(-1)
            # The second order moves one token, which was better than alternating all kinds of moves.
            orders = reorderings(counts, t, self.problems.first, 2, self.source)[:, 1].view(s, k, t)
            other = tokens[:, :, sentence].gather(-1, orders)
            tokens[:, :, sentence] = torch.where(moved[..., None], other, tokens[:, :, sentence])
        uniform = torch.rand(s, k, b, t, generator=self.source, device=device)
        # In a text without a move, at least one word is resampled.
        least = torch.where(self.problems.free[:, None], uniform, torch.inf).flatten(2).min(-1).values
        changed = (uniform < share) | ((uniform == least[..., None, None]) & ~moved[..., None, None])
        tokens = torch.where(changed & self.problems.free[:, None], self._sample_words(tokens, done, share), tokens)
        onehot = None
        if self.onehot is not None:
            onehot = pick(self.onehot, chosen)
            other = torch.rand(s, k, b, 1, generator=self.source, device=device) < share
            onehot = torch.where(other, self._random_labels(s, k, b), onehot)
        return tokens, onehot

    def _sample_words(self, tokens: Tensor, done: float, share: float) -> Tensor:
        """Sample a word for every position by the mean slopes, its frequency, and its neighbours."""
        settings = self.settings
        s, k, b, t = tokens.shape
        sharp = settings.first_sharpness * (settings.last_sharpness / settings.first_sharpness) ** done
        # The evidence in the release is a bound: under large noise the sampling is not sharper than that.
        scale = (2 * self.objective.evidence).clamp_max(sharp).view(s, 1, 1)
        rows = self.vocabulary.rows
        result = tokens.clone()
        for sentence in range(b):
            pulls = -scale * (self.slopes[:, sentence] @ rows.mT)  # (problems, tokens, words)
            best = (pulls + self.logs).topk(min(settings.choices, len(rows)), -1).indices
            pulls, logs, choices = pulls.gather(-1, best), self.logs[best], self.vocabulary.allowed[best]
            flat = tokens[:, :, sentence].reshape(s * k, t)
            for place in range(self.problems.first, t):
                words = choices[:, None, place].expand(s, k, -1)
                prior = logs[:, None, place]
                if isinstance(self.prior, NGram):
                    near = self.prior.fitting(flat, place, words.reshape(s * k, -1)).view(s, k, -1)
                    # Neighbours that may be resampled have less weight.
                    prior = (1 - share) * near + share * prior
                odds = (pulls[:, None, place] + prior).expand(s, k, -1).softmax(-1)
                sample = torch.multinomial(odds.reshape(s * k, -1), 1, generator=self.source).view(s, k, 1)
                result[:, :, sentence, place] = words.gather(-1, sample)[..., 0]
        return result


@dataclass(frozen=True)
class WordDraws(SearchingAttack):
    """Sample texts by word frequency, then around the best ones by the mean slope of the loss, and polish.

    Each of `rounds` derives `texts` texts from the `parents` best so far: a share `moved` of them is reordered, and a
    share of the words of each is resampled, which falls from 1 to `last_share`. A word is sampled in proportion to its
    probability among its neighbours times exp(-sharpness * slope · vector). The slope of the loss at a position is the
    mean over the sampled texts, with earlier rounds decaying by `memory`. The sharpness grows from `first_sharpness` to
    `last_sharpness`, but never beyond twice the evidence in the release. Each position samples from its `choices` best
    words. `polish` rounds of exchanging single tokens end the search. `seconds` is an upper limit.

    The prior is `Knowledge(extra={"prior": …})`, or a 3-gram model of `Knowledge(auxiliary=…)`, or none. Only a 3-gram
    model is used for sampling. Any other prior only scores texts; with it, or without a prior, all words are equally
    likely until the slopes distinguish them.

    The loss is that of LAMP: one minus the cosine, averaged over tensors weighted by their remaining signal; under
    noise it is the likelihood of the release. The search never tries vectors between words, which fit the noise and not
    the text; that is why it works under noise that defeats LAMP. Lengths are known, and labels if the release has them.
    The word-embedding gradient is not used.
    """

    rounds: int = 120
    texts: int = 16
    parents: int = 4
    moved: float = 0.3
    last_share: float = 0.15
    first_sharpness: float = 150.0
    last_sharpness: float = 1000.0
    memory: float = 0.75
    choices: int = 200
    polish: int = 6
    seconds: float | None = None

    name: ClassVar[str] = "word-draws"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PRIOR})

    def __post_init__(self) -> None:
        """Check the settings."""
        check_search(self, "rounds", "texts", "parents", "choices")
        whole("polish", self.polish, 0)
        for name in ("moved", "last_share", "memory"):
            probability(name, getattr(self, name))
        positive("first_sharpness", self.first_sharpness)
        positive("last_sharpness", self.last_sharpness)
        if self.memory == 1:
            raise invalid("memory", self.memory, "below 1", "Otherwise nothing is learned from the sampled texts.")
        if self.parents > self.texts:
            raise invalid(
                "parents", self.parents, f"<= texts={self.texts}", "Sample more texts, or keep fewer parents."
            )

    def run_many(self, releases: Sequence[GradientRelease], knows: Knowledge, rng: Rng) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""
        limit = TimeLimit(self.seconds)
        model, objective = set_up(releases, knows, LOSSES["cosine"], self.label)
        if objective.problems.labels is None and not model.task.has_classes:
            raise UnsupportedError(
                f"Expected the scores in the release for {self.label}, got none. They cannot be sampled as classes can."
            )
        prior = prior_of(knows, model)
        seconds = {"ready": limit.passed}
        vocabulary = Vocabulary.of(model, objective.imitation.words)
        sampler = TextSampler(self, objective, vocabulary, prior, rng)
        sampler.resample(limit, 0.8 if self.polish else 1.0)
        seconds["drawn"] = limit.passed
        tokens, scores = sampler.tokens, sampler.scores
        if self.polish:
            polish = Polish(self.polish, near=3, cheap=6, orders=48, likely=10, places=1.0)
            vectors = sampler.words[tokens]
            tokens, scores = polish.run(
                objective, vocabulary, tokens, vectors, sampler.onehot, prior, limit, rng.fork("polish")
            )
        seconds["ended"] = limit.passed
        details = {"steps": sampler.rounds_done, "seconds": seconds, "stopped_by_time_limit": limit.reached}
        return [guess_of(model, objective.problems, s, tokens[s], scores[s], details) for s in range(len(releases))]
