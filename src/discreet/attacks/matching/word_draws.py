"""Word draws: whole texts are sampled, compared with the release, and sampled again around the best.

The slope of the loss at one text says little about another word in its place; the mean slope over many sampled texts
says a lot, and the noise of the release is the same in all of them. So this search reads through noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.attacks.base import Need, TimeLimit
from discreet.attacks.matching.engine import Progress, SearchingAttack, guess_of, prior_of, set_up
from discreet.attacks.matching.lamp_tag_dlg import LOSSES
from discreet.attacks.matching.objective import Objective, portion
from discreet.attacks.matching.polish import Polish, reorderings
from discreet.attacks.matching.problems import Vocabulary
from discreet.core.errors import UnsupportedError, invalid, positive, probability, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.ngram import NGram, Prior

_GRAPH = 4  # times the memory of a loss is that of its slope


class Drawing:
    """The state of one search: the best texts so far, (problems, parents, sentences, tokens), and the mean slopes.

    `labels` are as many probabilities of the classes where they are not known, and None where they are.
    """

    def __init__(
        self, settings: WordDraws, objective: Objective, vocabulary: Vocabulary, prior: Prior | None, rng: Rng
    ) -> None:
        """Draw the first texts, every word by its frequency alone."""
        self.settings, self.objective, self.vocabulary, self.prior = settings, objective, vocabulary, prior
        self.problems = objective.problems
        self.words = objective.imitation.words
        self.source = rng.fork("draws").torch(self.words.device, "Drawing texts")
        allowed = vocabulary.allowed
        self.logs = torch.zeros(len(allowed), device=self.words.device)  # of every allowed word's frequency
        if isinstance(prior, NGram):
            self.logs = prior.unigrams[allowed].log()
        s, b, t = self.problems.mask.shape
        drawn = torch.multinomial(self.logs.softmax(0), s * settings.texts * b * t, True, generator=self.source)
        self.tokens = self._pinned(allowed[drawn].view(s, settings.texts, b, t))
        self.onehot: Tensor | None = None
        if self.problems.labels is None:
            self.onehot = self._any_labels(s, settings.texts, b)
        self.scores, self.slopes = self._judged(self.tokens, self.onehot)
        self._keep_best(self.tokens, self.onehot, self.scores)
        self.rounds_done = 1

    @property
    def best(self) -> Tensor:
        """The vectors of the best texts."""
        return self.words[self.tokens]

    def labels(self) -> Tensor | None:
        """Return the labels of the best texts where they are not known."""
        return self.onehot

    def go_on(self, limit: TimeLimit, until: float, progress: Progress | None = None) -> None:
        """Draw around the best texts, ever closer to them, at most until a share of a time limit has passed."""
        settings = self.settings
        for number in range(1, settings.rounds):
            done = limit.done(number, settings.rounds, until=until)
            if done >= 1:
                break
            tokens, onehot = self._children(done)
            scores, slopes = self._judged(tokens, onehot)
            learned = max(1 - settings.memory, 1 / (number + 1))
            self.slopes = (1 - learned) * self.slopes + learned * slopes
            self._keep_best(
                torch.cat([self.tokens, tokens], 1),
                None if onehot is None or self.onehot is None else torch.cat([self.onehot, onehot], 1),
                torch.cat([self.scores, scores], 1),
            )
            self.rounds_done = number + 1
            if progress is not None:
                progress(number, float(self.scores[:, 0].mean()))

    def _pinned(self, tokens: Tensor) -> Tensor:
        return torch.where(self.problems.free[:, None], tokens, self.problems.ids[:, None])

    def _any_labels(self, s: int, k: int, b: int) -> Tensor:
        classes = len(self.objective.imitation.model.label_names)
        drawn = torch.randint(classes, (s, k, b), generator=self.source, device=self.words.device)
        return F.one_hot(drawn, classes).to(self.words.dtype)

    def _judged(self, tokens: Tensor, onehot: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the scores of texts, (problems, texts), and the mean of their slopes, (problems, sentences, …)."""
        count = tokens.shape[1]
        step = max(1, portion(self.objective) // _GRAPH)
        losses, total = [], torch.zeros((), device=tokens.device)
        for start in range(0, count, step):
            part = slice(start, start + step)
            mine = None if onehot is None else onehot[:, part]
            found, slopes = self.objective.slopes(self.words[tokens[:, part]], mine)
            losses.append(found)
            # A slope that is NaN or infinite tells nothing.
            total = total + torch.nan_to_num(slopes, nan=0.0, posinf=0.0, neginf=0.0).sum(1)
        scores = torch.nan_to_num(torch.cat(losses, 1), nan=torch.inf)
        return scores + self.objective.surprise(tokens, self.prior), total / count

    def _keep_best(self, tokens: Tensor, onehot: Tensor | None, scores: Tensor) -> None:
        """Keep the texts with the least scores, best first, none of them twice."""
        order = scores.argsort(1)
        tokens = tokens.gather(1, order[..., None, None].expand_as(tokens))
        scores = scores.gather(1, order)
        flat = tokens.flatten(2)
        twice = (flat[:, :, None] == flat[:, None]).all(-1).tril(-1).any(-1)
        kept = torch.where(twice, torch.inf, scores).argsort(stable=True, dim=1)[:, : self.settings.parents]
        self.tokens = tokens.gather(1, kept[..., None, None].expand(-1, -1, *tokens.shape[2:]))
        self.scores = scores.gather(1, kept)
        if onehot is not None:
            index = order.gather(1, kept)[..., None, None]
            self.onehot = onehot.gather(1, index.expand(-1, -1, *onehot.shape[2:]))

    def _children(self, done: float) -> tuple[Tensor, Tensor | None]:
        """Return texts like the best ones: some in another order, a share of the words of each drawn again."""
        settings, device = self.settings, self.tokens.device
        s, parents, b, t = self.tokens.shape
        k = settings.texts
        share = 1 - (1 - settings.last_share) * done
        chosen = torch.randint(parents, (s, k, 1, 1), generator=self.source, device=device)
        tokens = self.tokens.gather(1, chosen.expand(s, k, b, t))
        moved = torch.rand(s, k, generator=self.source, device=device) < settings.moved
        for sentence in range(b):
            counts = self.problems.counts[:, None, sentence].expand(s, k).reshape(-1)
            # The second order moves one token, which was better than all kinds of moves in turn.
            orders = reorderings(counts, t, self.problems.first, 2, self.source)[:, 1].view(s, k, t)
            other = tokens[:, :, sentence].gather(-1, orders)
            tokens[:, :, sentence] = torch.where(moved[..., None], other, tokens[:, :, sentence])
        drawn = torch.rand(s, k, b, t, generator=self.source, device=device)
        # A text in which nothing was moved has at least one word drawn again.
        least = torch.where(self.problems.free[:, None], drawn, torch.inf).flatten(2).min(-1).values
        again = (drawn < share) | ((drawn == least[..., None, None]) & ~moved[..., None, None])
        tokens = torch.where(again & self.problems.free[:, None], self._drawn(tokens, done, share), tokens)
        onehot = None
        if self.onehot is not None:
            onehot = self.onehot.gather(1, chosen.expand(s, k, b, self.onehot.shape[-1]))
            other = torch.rand(s, k, b, 1, generator=self.source, device=device) < share
            onehot = torch.where(other, self._any_labels(s, k, b), onehot)
        return tokens, onehot

    def _drawn(self, tokens: Tensor, done: float, share: float) -> Tensor:
        """Return a word for every place, drawn by the mean slopes, by frequency, and by how it fits its neighbours."""
        settings = self.settings
        s, k, b, t = tokens.shape
        sharp = settings.first_sharpness * (settings.last_sharpness / settings.first_sharpness) ** done
        # What the release can tell is a bound: under much noise no word is drawn more surely than that.
        scale = (2 * self.objective.evidence).clamp_max(sharp).view(s, 1, 1)
        rows = self.vocabulary.rows
        result = tokens.clone()
        for sentence in range(b):
            pulls = -scale * (self.slopes[:, sentence] @ rows.mT)  # (problems, tokens, words)
            best = (pulls + self.logs).topk(min(settings.choices, len(rows)), -1).indices
            pulls, logs, choices = pulls.gather(-1, best), self.logs[best], self.vocabulary.allowed[best]
            flat = tokens[:, :, sentence].reshape(s * k, t)
            for place in range(self.problems.first, t):
                here = choices[:, None, place].expand(s, k, -1)
                said = logs[:, None, place]
                if isinstance(self.prior, NGram):
                    near = self.prior.fitting(flat, place, here.reshape(s * k, -1)).view(s, k, -1)
                    # Neighbours that are drawn again themselves say less.
                    said = (1 - share) * near + share * said
                odds = (pulls[:, None, place] + said).expand(s, k, -1).softmax(-1)
                drawn = torch.multinomial(odds.reshape(s * k, -1), 1, generator=self.source).view(s, k, 1)
                result[:, :, sentence, place] = here.gather(-1, drawn)[..., 0]
        return result


@dataclass(frozen=True)
class WordDraws(SearchingAttack):
    """Texts drawn by word frequency, then around the best ones by the mean slope of the loss, and a polish.

    In each of `rounds`, `texts` texts are made from the `parents` best so far: a share `moved` of them in another
    order, and of the words of each a share drawn again that falls from all to `last_share`. A word is drawn in
    proportion to its probability among its neighbours times exp(-sharpness * slope · vector), where the slope of the
    loss at its place is the mean over the texts drawn, those of earlier rounds fading by `memory`, and the sharpness
    grows from `first_sharpness` to `last_sharpness`, but never beyond twice what the release can tell. The `choices`
    best words of a place are drawn from. `polish` rounds of exchanging single tokens end the search. `seconds` is an
    upper limit.

    The prior is `Knowledge(extra={"prior": …})`, or a 3-gram model of `Knowledge(auxiliary=…)`, or none. Words are
    drawn by a 3-gram model alone: with another prior, which only judges the texts, and without any, all words are alike
    until the slopes tell them apart.

    The loss is that of LAMP: one minus the cosine, averaged over tensors by what is left of their signal; under noise
    the likelihood of the release. Vectors between words, which fit the noise and not the text, are never tried; that is
    why this attack reads through noise under which LAMP reads nothing. Lengths are known, labels if the release has
    them; the word-embedding gradient is not used.
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
        for name in ("rounds", "texts", "parents", "choices"):
            whole(name, getattr(self, name))
        whole("polish", self.polish, 0)
        for name in ("moved", "last_share", "memory"):
            probability(name, getattr(self, name))
        positive("first_sharpness", self.first_sharpness)
        positive("last_sharpness", self.last_sharpness)
        if self.memory == 1:
            raise invalid("memory", self.memory, "below 1", "Nothing would be learned from what is drawn.")
        if self.parents > self.texts:
            raise invalid("parents", self.parents, f"<= texts={self.texts}", "Draw more texts, or keep fewer parents.")
        if self.seconds is not None:
            positive("seconds", self.seconds, "It is the time for the whole search.")

    def run_many(
        self, seens: Sequence[GradientRelease], knows: Knowledge, rng: Rng, progress: Progress | None = None
    ) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""
        limit = TimeLimit(self.seconds)
        model, objective = set_up(seens, knows, LOSSES["cosine"], self.label)
        if objective.problems.labels is None and model.task != "classification":
            raise UnsupportedError(
                f"Expected the values in the release for {self.label}, found none. They cannot be drawn as classes can."
            )
        prior = prior_of(knows, model)
        seconds = {"ready": limit.passed}
        drawing = Drawing(self, objective, Vocabulary.of(model, objective.imitation.words), prior, rng)
        drawing.go_on(limit, 0.8 if self.polish else 1.0, progress)
        seconds["drawn"] = limit.passed
        tokens, scores = drawing.tokens, drawing.scores
        if self.polish:
            polish = Polish(self.polish, near=3, cheap=6, orders=48, likely=10, places=1.0)
            tokens, scores = polish.run(objective, tokens, drawing, prior, limit, rng.fork("polish"))
        seconds["ended"] = limit.passed
        details = {"steps": drawing.rounds_done, "seconds": seconds, "stopped_by_time_limit": limit.reached}
        return [guess_of(model, objective.problems, s, tokens[s], scores[s], details) for s in range(len(seens))]
