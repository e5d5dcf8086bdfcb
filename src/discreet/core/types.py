"""Shared value types: releases, the knowledge and guess of an attacker, the measured leakage, and a trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from discreet.core.errors import invalid
from discreet.core.guarantee import Guarantee

if TYPE_CHECKING:
    import torch


# The subject of a leakage or a goal: one update of a training run, all its updates, or the trained model.
UPDATE, TRAINING, MODEL = RELEASES = ("update", "training", "model")


@dataclass(frozen=True)
class Release:
    """Data that an attacker sees; the type is the threat model.

    `guarantee` is that of this release alone, not of the training it came from. `kind` names the type in settings,
    reports and JSON.
    """

    kind: ClassVar[str]

    guarantee: Guarantee | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class TextRelease(Release):
    """Texts that were rewritten before their release."""

    kind: ClassVar[str] = "text"

    texts: tuple[str, ...]


@dataclass(frozen=True)
class RepresentationRelease(Release):
    """Vectors that a server sees individually, with their labels."""

    kind: ClassVar[str] = "representation"

    vectors: torch.Tensor
    labels: torch.Tensor | None = None


@dataclass(frozen=True)
class GradientRelease(Release):
    """The gradients of one step as a server sees them, one per named parameter, and public facts about the batch."""

    kind: ClassVar[str] = "gradient"

    gradients: Mapping[str, torch.Tensor]
    batch_size: int
    divisor: float = 1.0
    noise_std: float = 0.0
    lengths: tuple[int, ...] | None = None
    labels: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        """Return the shape of the release without its tensors."""
        count = sum(g.numel() for g in self.gradients.values())
        return f"GradientRelease({len(self.gradients)} tensors, {count} numbers, batch_size={self.batch_size})"


@dataclass(frozen=True)
class ModelRelease(Release):
    """A trained model that anyone can query or inspect."""

    kind: ClassVar[str] = "model"

    model: torch.nn.Module


@dataclass(frozen=True)
class Knowledge:
    """The knowledge of an attacker besides the release: the public model, text of the same kind, the defence."""

    model: torch.nn.Module | None = None
    auxiliary: Sequence[str] = ()
    candidates: Sequence[str] = ()
    defence: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Guess:
    """The output of an attack.

    Args:
        texts: What the attack read.
        scores: A score for each row or text, such as how likely it was a member.
        indices: The number of the candidate that it chose, for each row.
        details: Further values, such as its confidence.

    >>> Guess(texts=("the patient was seen",)).texts
    ('the patient was seen',)
    """

    texts: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    indices: tuple[int, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Leakage:
    """The measured value of a metric with its interval, sample size and chance level.

    Args:
        metric: The name of the metric.
        value: What was measured.
        low: The lower end of its interval.
        high: The upper end.
        n: The sample size.
        chance: What guessing without the release reaches.

    >>> print(Leakage("accuracy", 0.75, 0.6, 0.85, n=40, chance=0.25))
    accuracy 0.750 [0.600, 0.850] (n = 40, chance 0.250)
    """

    metric: str
    value: float
    low: float
    high: float
    n: int
    chance: float | None = None

    def __post_init__(self) -> None:
        """Check that the interval contains the value."""
        if not (math.isnan(self.value) or self.low <= self.value <= self.high):
            raise invalid("value", self.value, f"in [{self.low}, {self.high}]", "The interval must contain the value.")

    def __str__(self) -> str:
        """Return the value with its interval, sample size and chance level."""
        chance = "" if self.chance is None else f", chance {self.chance:.3f}"
        return f"{self.metric} {self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n = {self.n}{chance})"


@dataclass(frozen=True)
class Trial:
    """One experiment: its settings, seed, utility, leakages, guarantee and cost.

    The metric of a leakage is named ATTACK/METRIC. `details` holds further content of a report: reconstructed texts,
    trade-off curves, epsilon over training, and the bound of each leakage.
    """

    settings: Mapping[str, Any]
    seed: int
    utility: Mapping[str, float]
    leakages: tuple[Leakage, ...] = ()
    guarantee: Guarantee | None = None
    seconds: float = 0.0
    bytes: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
