"""The request of one attack and its result, as values."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.accounting.events import DpEvent
from discreet.attacks.base import Attack
from discreet.core.errors import invalid, setting, whole
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.rules import OpenProbability, Positive, Whole, check_fields, ruled
from discreet.core.types import GradientRelease, Leakage
from discreet.data.samplers import FixedSize, Poisson, Sampler

DEFAULT_METRICS = ("rouge_l", "rouge_1", "rouge_2", "lcs_over_longer", "token_accuracy", "bag_recall", "exact_match")


Progress = Callable[[str, int, int], None]  # a stage, how much of it is done, and of how much


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called while an attack runs.

    `watch` is called with each attacked text, `should_stop` before each release but the first, and `progress` with a
    stage, how much of it is done, and of how much.
    """

    watch: Callable[[Example], None] = lambda example: None
    should_stop: Callable[[], bool] = lambda: False
    progress: Progress = lambda stage, done, total: None


@dataclass(frozen=True)
class Updates:
    """All updates of one training run: their number, the sampling rate and the event of their composition.

    `per_step` is the expected number of units in an update. `certified` is True if the cost of the event is proven.
    `caveats` are those of the training run.
    """

    steps: int
    rate: float
    event: DpEvent = field(repr=False)
    per_step: float = 1.0
    certified: bool = True
    caveats: frozenset[Caveat] = frozenset()


@dataclass(frozen=True)
class AttackRequest:
    """Settings of one attack: the attack, the protection, the number of texts and the time limit.

    Searches count their steps, so without a time limit the result does not depend on the machine.

    Args:
        attack: The attack.
        protect: A resolved protection, or None for an unprotected client.
        name: What the attack is called in the result; by default its name in the catalog.
        examples: The number of texts to attack, a multiple of `batch_size`.
        batch_size: The number of texts in one release.
        max_words: Only texts with at most so many words are attacked.
        first_words: Truncates each text to so many words before the gradient is computed.
        seconds: Limits the search in each batch; preparation, such as fitting a prior, does not count.
        delta: Delta of the guarantee of the one attacked release.
        metrics: The names of the metrics that compare guesses and texts.
        seed: Selects the texts, and is the seed of the attack.
        noise_seed: Makes the noise repeatable and the guarantee an estimate; by default the noise comes from the
            operating system.
        candidates: The number of texts that the attacker chooses among (default: 64 for 1-of-n, the whole split for
            vectors).
        draws: The number of simulations for 1-of-n, which attacks all `updates` of a training run if they are given,
            and `steps` releases of one record otherwise.
        steps: The number of releases of the same rows.
        updates: All updates of a training run.
        members: For attacks on a trained model: the largest number of members, and of non-members, to ask about
            (default: all, where that is cheap).
        references: The number of reference models, by default that of the attack, which are trained like the target.
        references_protected: Whether they are trained under the same protection.
        references_from: Instead: the folders of at least two finished runs that are used as reference models.

    >>> from discreet.attacks import Dager
    >>> AttackRequest(Dager(), examples=4).label
    'dager'
    """

    attack: Attack
    protect: Any = None
    name: str = ""
    examples: int = ruled(8, Whole(1, "It is the number of texts to attack."))
    batch_size: int = ruled(1, Whole(1, "It is the number of texts in one release."))
    max_words: int | None = ruled(None, Whole())
    first_words: int | None = ruled(None, Whole())
    seconds: float | None = ruled(
        None, Positive("It is the time for each batch; leave it out to let the attack finish.")
    )
    delta: float = ruled(1e-5, OpenProbability("It applies to the one attacked release; 1e-5 is a common choice."))
    metrics: tuple[str, ...] = DEFAULT_METRICS
    seed: int = 0
    noise_seed: int | None = None
    candidates: int | None = ruled(None, Whole(2, "The attacker chooses one of at least two."))
    draws: int = ruled(20_000, Whole(1, "20000 give an interval of a few parts in a thousand."))
    steps: int = ruled(1, Whole(1, "It is the number of releases of the same record."))
    updates: Updates | None = None
    members: int | None = ruled(None, Whole(2, "It is the number of members, and of non-members, to ask about."))
    references: int | None = ruled(None, Whole(2, "Each example needs a model with it and one without it."))
    references_protected: bool = True
    references_from: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fields(self)
        if self.examples % self.batch_size:
            remedy = "Every release has a full batch."
            raise invalid("examples", self.examples, f"a multiple of {setting('batch_size', self.batch_size)}", remedy)
        if self.first_words is not None and self.attack.sees is not GradientRelease:
            remedy = "Other attacks search for complete texts among candidates; leave it out."
            raise invalid("first_words", self.first_words, "left out except for attacks on a gradient", remedy)
        whole("metrics", len(self.metrics), 1, "Name at least one.")
        if self.references_from and self.references is not None:
            rule = f"left out with {setting('references_from')}"
            raise invalid("references", self.references, rule, "The runs are the reference models.")
        if self.references_from and not self.references_protected:
            rule = f"left out with {setting('references_from')}"
            raise invalid("plain_references", True, rule, "The runs have their own protection.")
        if self.steps > 1 and self.attack.sees is GradientRelease and not self.attack.identifies:
            remedy = "It reads one gradient; 1-of-n and attacks on vectors read several releases of a record."
            raise invalid("steps", self.steps, f"left out for the attack {self.label}", remedy)

    @property
    def label(self) -> str:
        """The attack's name in the request, or else in the catalog."""
        return self.name or self.attack.name or type(self.attack).__name__


@dataclass(frozen=True)
class Example:
    """One attacked text: the truth, the guess, and the scores of the guess.

    Scores compare the guess with `spelling`: the truth as the tokenizer spells it, which may drop case, accents and
    spaces around punctuation, but keeps characters that the tokenizer does not know, as no attack can recover those.

    For an attack that returns a set of tokens from a gradient, truth and guess are the unordered tokens of the batch.
    `written` is the text as its owner wrote it, for metrics that count names.
    """

    truth: str
    guess: str
    scores: Mapping[str, float] = field(default_factory=dict)
    batch: int = 0
    spelling: str | None = None
    written: str | None = field(default=None, repr=False)

    @property
    def scored(self) -> str:
        """The truth that scores compare with."""
        return self.truth if self.spelling is None else self.spelling

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"truth": self.truth, "guess": self.guess, "batch": self.batch, **self.scores}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a family of attacks found: the leakage, the release it attacked, and the guarantee of that release.

    For several releases, the guarantee is the one with the largest epsilon; it is never that of a training run.
    `preparing` are the seconds before the first release, in which public text is encoded and a prior is fitted.
    `stopped` is the number of searches that a time limit ended early.

    `bound` is the success rate that no attack can exceed, where accounting proves one (1-of-n identification), and
    `bounds` has such bounds by metric. `details` has further plain values, such as the points of a ROC curve, and
    `verdict` says in plain words what was measured.
    `unknown_share` is the share of tokens in the attacked texts that the tokenizer does not know; it is computed from
    private text, for its owner.
    """

    leakages: tuple[Leakage, ...]
    examples: tuple[Example, ...] = field(default=(), repr=False)
    release: Mapping[str, Any] = field(repr=False)
    guarantee: Guarantee | None = None
    epsilon_by_adjacency: Mapping[str, float | None] = field(default_factory=dict)
    bound: float | None = None
    finished: bool = True
    preparing: float = 0.0
    stopped: int = 0
    unknown_share: float = 0.0
    bounds: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)
    verdict: str = ""


@dataclass(frozen=True, kw_only=True)
class AttackResult(Findings):
    """What an attack found, its name, and how many seconds it took.

    For several releases, the guarantee is the one with the largest epsilon; it is never that of a training run.

    ```python
    result = attack_once(AttackRequest(Dager()), scene)
    for leakage in result.leakages:
        print(leakage)
    ```

    Args:
        leakages: The measured metrics, each with its interval.
        examples: The attacked texts, each with its guess.
        release: What was released, as plain values.
        guarantee: What the protection guarantees for one release.
        epsilon_by_adjacency: The epsilon of the release under each adjacency.
        bound: The success rate that no attack can exceed, where accounting proves one (1-of-n identification).
        finished: Whether all texts were attacked.
        preparing: Seconds before the first release, in which public text is encoded and a prior is fitted.
        stopped: The number of searches that a time limit ended early.
        unknown_share: The share of tokens in the attacked texts that the tokenizer does not know; it is computed from
            private text, for its owner.
        bounds: Proven bounds by metric.
        details: Further plain values, such as the points of a ROC curve.
        verdict: What was measured, in plain words.
        attack: The name of the attack.
        seconds: How long it took.
    """

    attack: str
    seconds: float

    @property
    def n(self) -> int:
        """The number of trials."""
        return self.leakages[0].n if self.leakages else 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        guarantee = self.guarantee
        return {
            "attack": self.attack,
            "n": self.n,
            "leakage": [dataclasses.asdict(leakage) for leakage in self.leakages],
            "examples": [example.as_dict() for example in self.examples],
            "release": dict(self.release),
            "guarantee": None if guarantee is None else {**guarantee.as_dict(), "sentence": guarantee.sentence()},
            "epsilon_by_adjacency": dict(self.epsilon_by_adjacency),
            **({} if self.bound is None else {"bound": self.bound}),
            "finished": self.finished,
            "seconds": self.seconds,
            "preparing": self.preparing,
            "stopped_by_time_limit": self.stopped,
            "unknown_share": self.unknown_share,
            **({"bounds": dict(self.bounds)} if self.bounds else {}),
            **({"details": dict(self.details)} if self.details else {}),
            **({"verdict": self.verdict} if self.verdict else {}),
        }


class Source(ABC):
    """Something recorded that is attacked as it is; rows and trained models are attacked in a `Scene`."""

    @abstractmethod
    def attacked(self, request: AttackRequest, callbacks: Callbacks) -> Findings:
        """Run an attack on what was recorded, and score it."""


def sampling_rate(sampler: Sampler | None, units: int) -> float | None:
    """Return the probability that a unit is in one update, or None if updates are not sampled independently."""
    if isinstance(sampler, Poisson):
        return sampler.rate
    return sampler.size / units if isinstance(sampler, FixedSize) else None
