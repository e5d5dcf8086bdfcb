"""Word draws: whole texts are drawn, compared with the release, and drawn again around the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from discreet.attacks.gradient.drawing import Drawing
from discreet.attacks.gradient.lamp import LOSSES
from discreet.attacks.gradient.matching import SearchingAttack, guess_of, prior_of, set_up
from discreet.attacks.gradient.polish import Polish
from discreet.attacks.gradient.search import Progress
from discreet.attacks.gradient.time_limit import TimeLimit
from discreet.attacks.gradient.vocabulary import Vocabulary
from discreet.core.checks import positive, probability, refuse, whole
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge


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

    paper: ClassVar[str] = "Word draws"
    needs: ClassVar[tuple[str, ...]] = ("prior",)

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        for name in ("rounds", "texts", "parents", "choices"):
            whole(name, getattr(self, name))
        whole("polish", self.polish, 0)
        for name in ("moved", "last_share", "memory"):
            probability(name, getattr(self, name))
        positive("first_sharpness", self.first_sharpness)
        positive("last_sharpness", self.last_sharpness)
        if self.memory == 1:
            raise refuse("memory", self.memory, "below 1", "Nothing would be learned from what is drawn.")
        if self.parents > self.texts:
            raise refuse("parents", self.parents, f"<= texts={self.texts}", "Draw more texts, or keep fewer parents.")
        if self.seconds is not None:
            positive("seconds", self.seconds, "It is the time for the whole search.")

    def run_many(
        self, seens: Sequence[GradientRelease], knows: Knowledge, rng: Rng, progress: Progress | None = None
    ) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""
        limit = TimeLimit(self.seconds)
        model, objective = set_up(seens, knows, LOSSES["cosine"], self.paper)
        if objective.problems.labels is None and model.task != "classification":
            raise UnsupportedError(
                f"Expected the values in the release for {self.paper}, found none. They cannot be drawn as classes can."
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
