"""The engine of gradient matching: vectors in the place of words are changed until their gradient is the released one.

DLG, TAG and LAMP are settings of it. Many releases are attacked at once, each with candidates of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from discreet.attacks.gradient.imitation import Imitation
from discreet.attacks.gradient.layers import dissect, model_of
from discreet.attacks.gradient.matching_loss import MatchingLoss
from discreet.attacks.gradient.objective import Objective
from discreet.attacks.gradient.polish import Polish
from discreet.attacks.gradient.problems import Problems
from discreet.attacks.gradient.search import Progress, Search
from discreet.attacks.gradient.time_limit import TimeLimit
from discreet.attacks.gradient.vocabulary import Vocabulary
from discreet.core.checks import non_negative, one_of, positive, probability, refuse, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.classifier import Classifier
from discreet.models.ngram import NGram, Prior

OPTIMISERS = ("adam", "l-bfgs")
_PRIOR = "Public texts are Knowledge(auxiliary=…), or NGram.fit(texts, model.tokenizer) as the prior."


@dataclass(frozen=True)
class Matching:
    """How a search goes: starts, descent, discrete rounds and polish.

    `starts` random candidates are drawn, and as many `shuffles` of the best tried; `kept` of them are followed, half of
    which are dropped at each of `prunings`. The rate falls geometrically to `last_rate` times its first value. Every
    `every` steps after `burn_in`, `proposals` orders of each sentence's tokens are tried, scored by the loss plus the
    prior times `prior` times the loss so far. `norm_weight` is that of the embedding-norm regulariser; `pull` draws
    each vector towards its nearest word, by a share of the rate that grows to this in the course of the descent.
    `polish` rounds of exchanging single tokens and reordering them end the search. Descent and polish may go through
    several `cycles`, each from the best tokens of the one before. Steps are counted, so the result does not depend on
    the machine; `seconds` is an upper limit on top, and where it ends the search `details` says so. The vectors are
    followed until `descent` of it has passed.
    """

    loss: MatchingLoss
    steps: int
    rate: float
    last_rate: float = 1.0
    optimiser: str = "adam"
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
    polish: Polish | None = None
    descent: float = 0.75
    cycles: int = 1
    learn_labels: bool = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        for name in ("steps", "starts", "kept", "cycles"):
            whole(name, getattr(self, name))
        for name in ("shuffles", "every"):
            whole(name, getattr(self, name), 0)
        whole("proposals", self.proposals, 2)
        positive("rate", self.rate)
        positive("last_rate", self.last_rate)
        non_negative("norm_weight", self.norm_weight)
        non_negative("prior", self.prior)
        non_negative("pull", self.pull)
        probability("burn_in", self.burn_in)
        probability("descent", self.descent)
        one_of("optimiser", self.optimiser, OPTIMISERS)
        for share in self.prunings:
            probability("prunings", share)
        if self.seconds is not None:
            positive("seconds", self.seconds, "It is the time for the whole search.")

    def run(
        self,
        seens: Sequence[GradientRelease],
        knows: Knowledge,
        rng: Rng,
        attack: str,
        progress: Progress | None = None,
    ) -> list[Guess]:
        """Return a guess for each release; all of one batch size, attacked together."""
        limit = TimeLimit(self.seconds)
        model, objective = set_up(seens, knows, self.loss, attack)
        problems = objective.problems
        prior = prior_of(knows, model) if self.prior > 0 or self.polish is not None else None
        learn = self.learn_labels or problems.labels is None
        search = Search(self, objective, Vocabulary.of(model, objective.imitation.words), prior, learn, limit, rng)
        seconds = {"ready": limit.passed}
        search.start()
        seconds["started"] = limit.passed
        tokens, losses = search.cycle(0, None, rng, progress)
        for number in range(1, self.cycles):
            if self.polish is not None and not limit.over():
                tokens, losses = search.cycle(number, tokens, rng, progress)
        seconds["ended"] = limit.passed
        details = {"steps": search.steps_done, "seconds": seconds, "stopped_by_time_limit": limit.reached}
        return [guess_of(model, problems, s, tokens[s], losses[s], details) for s in range(len(seens))]


class SearchingAttack(ABC):
    """What attacks have in common that search for texts: one release is a set of one."""

    paper: ClassVar[str]

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng, progress: Progress | None = None) -> Guess:
        """Return the texts behind a release.

        `details` has the token ids, the loss of the best text (with the prior's part, if there is one), the steps
        taken, the seconds that had passed when each part of the search ended, and whether a time limit ended it.
        """
        return self.run_many([seen], knows, rng, progress)[0]

    @abstractmethod
    def run_many(
        self, seens: Sequence[GradientRelease], knows: Knowledge, rng: Rng, progress: Progress | None = None
    ) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""


class MatchingAttack(SearchingAttack):
    """What DLG, TAG and LAMP have in common: each is a setting of the engine under its own name."""

    def run_many(
        self, seens: Sequence[GradientRelease], knows: Knowledge, rng: Rng, progress: Progress | None = None
    ) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""
        return self.engine().run(seens, knows, rng, self.paper, progress)

    @abstractmethod
    def engine(self) -> Matching:
        """Return the engine as this attack sets it."""


def set_up(
    seens: Sequence[GradientRelease], knows: Knowledge, loss: MatchingLoss, attack: str
) -> tuple[Classifier, Objective]:
    """Return the public model and the loss of candidates against releases of one batch size, or refuse them."""
    model = model_of(knows, attack)
    problems = Problems.of(seens, model, attack)
    return model, Objective(Imitation(model, seens, attack, _signal_norm(seens, knows)), problems, loss)


def prior_of(knows: Knowledge, model: Classifier) -> Prior | None:
    """Return the language model that an attacker has: given, or fitted to its auxiliary texts, or none."""
    given: Any = knows.extra.get("prior")
    if isinstance(given, NGram):
        size = len(model.tokenizer)
        rows = len(dissect(model).embeddings.words)
        if given.vocabulary != size and given.vocabulary != rows:
            remedy = "It is of another tokenizer; make one with NGram.fit(texts, model.tokenizer)."
            raise refuse("prior.vocabulary", given.vocabulary, f"equal to {size}, the model's tokens", remedy)
        return given.to(model.device)
    if given is not None:
        if not callable(getattr(given, "surprise", None)):
            raise refuse("prior", type(given).__name__, "an NGram or a CausalPrior", _PRIOR)
        found: Prior = given
        return found
    if knows.auxiliary:
        return NGram.fit(list(knows.auxiliary), model.tokenizer).to(model.device)
    return None


def _signal_norm(seens: Sequence[GradientRelease], knows: Knowledge) -> float:
    """Return how long what is left of the gradients is, if the attacker knows the protection; 0 if not."""
    clip, kappa = (getattr(knows.defence, name, None) for name in ("clip_norm", "kappa"))
    if kappa is not None:
        # The mean of a von Mises–Fisher direction, by a bound on the ratio of Bessel functions; tight at this width.
        half = knows.defence.dimension / 2
        clip = (kappa / half) / (1 + math.sqrt(1 + (kappa / half) ** 2))
    return 0.0 if clip is None else float(clip) * seens[0].batch_size / seens[0].divisor


def guess_of(
    model: Classifier, problems: Problems, s: int, tokens: Tensor, losses: Tensor, details: dict[str, Any]
) -> Guess:
    """Return the best candidate of a problem as texts."""
    best = int(losses.argmin())
    rows = [row[mask.bool()].tolist() for row, mask in zip(tokens[best], problems.mask[s], strict=True)]
    texts = tuple(model.tokenizer.decode(row, skip_special_tokens=True) for row in rows)
    details = details | {"tokens": tuple(tuple(row) for row in rows), "loss": float(losses[best])}
    return Guess(texts=texts, scores=(-float(losses[best]),) * len(texts), details=details)
