"""What an attacker observes: the outputs of models on the examples it asks about, as arrays.

Membership attacks are functions of these arrays and never query a model, train one, or hold the truth.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from discreet.attacks.base import Attack, Family, Need, Returns
from discreet.core.errors import DataError, UnsupportedError, setting
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, ModelRelease, Release

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Outputs:
    """The outputs of one model, (examples,), or of several, (models, examples).

    `losses` is the loss of each example, and for a language model its mean over tokens. `logits` is the confidence in
    the true label on the scale of logits, log p - log(1 - p); for a language model and for regression, minus the loss.
    `probabilities` has one more axis, for the classes, and is None for a model without classes.
    """

    losses: Floats = field(repr=False)
    logits: Floats = field(repr=False)
    probabilities: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Reject arrays of different shapes, and NaN."""
        if self.losses.shape != self.logits.shape or self.losses.ndim not in (1, 2):
            raise DataError(
                f"Expected losses and logits of one shape, got {self.losses.shape} and {self.logits.shape}."
            )
        if self.probabilities is not None and self.probabilities.shape[:-1] != self.losses.shape:
            raise DataError(
                f"Expected probabilities of shape {self.losses.shape}, got {self.probabilities.shape[:-1]}."
            )
        if np.isnan(self.losses).any() or np.isnan(self.logits).any():
            raise DataError("Expected outputs that are numbers, got NaN. The training of a model has diverged.")

    def take(self, examples: Ints | Bools) -> Outputs:
        """Return the outputs on some of the examples."""
        probabilities = None if self.probabilities is None else self.probabilities[..., examples, :]
        return Outputs(self.losses[..., examples], self.logits[..., examples], probabilities)

    def models(self, numbers: int | Ints | Bools) -> Outputs:
        """Return the outputs of one or some of several models."""
        probabilities = None if self.probabilities is None else self.probabilities[numbers]
        return Outputs(self.losses[numbers], self.logits[numbers], probabilities)


@dataclass(frozen=True)
class References:
    """The outputs of reference models on the examples, and which examples each of them was trained on."""

    outputs: Outputs
    included: Bools = field(repr=False)

    def __post_init__(self) -> None:
        """Reject a membership table of another shape."""
        if self.outputs.losses.ndim != 2 or self.included.shape != self.outputs.losses.shape:
            raise DataError(
                f"Expected one row per reference model and one column per example, got outputs of shape "
                f"{self.outputs.losses.shape} and membership of shape {self.included.shape}."
            )

    @property
    def count(self) -> int:
        """The number of reference models."""
        return len(self.included)

    def check_out(self, least: int = 1) -> None:
        """Reject references of which too few did not train on some example."""
        self._check(~self.included, least, "were not trained on")

    def check_in(self, least: int = 1) -> None:
        """Reject references of which too few trained on some example."""
        self._check(self.included, least, "were trained on")

    def _check(self, chosen: Bools, least: int, which: str) -> None:
        missing = int((chosen.sum(axis=0) < least).sum())
        if missing:
            raise DataError(
                f"Expected at least {least} reference models that {which} each example, got fewer for {missing:,} of "
                f"{chosen.shape[1]:,} examples. Reference models must not all be trained on the target's own members: "
                f"train each on another random half, or use more of them ({setting('references')})."
            )


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of the true tokens of each example, padded to one width; `real` marks the tokens.

    `hits` says where the model's most likely token was the true one.
    """

    target: Floats = field(repr=False)
    hits: Bools = field(repr=False)
    real: Bools = field(repr=False)
    pretrained: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Reject arrays of different shapes, which come from another tokenizer."""
        shapes = {value.shape for value in (self.target, self.hits, self.real, self.pretrained) if value is not None}
        if len(shapes) != 1:
            raise DataError(
                f"Expected the same tokens for both models, got shapes {sorted(shapes)}. A reference with another "
                "tokenizer cannot be compared token by token; use the model that the target was fine-tuned from."
            )


@dataclass(frozen=True)
class Signals:
    """Everything that a membership attack reads; the order of the examples says nothing about membership.

    `labels` is the class of each example. `population` holds the outputs of the target on the attacker's own texts,
    which are known non-members, and `population_references` those of the reference models. `neighbours` has the
    target's loss on altered versions of each example, (examples, versions). `units` numbers the author of each example.
    """

    target: Outputs
    labels: Ints | None = field(default=None, repr=False)
    references: References | None = field(default=None, repr=False)
    population: Outputs | None = field(default=None, repr=False)
    population_references: References | None = field(default=None, repr=False)
    neighbours: Floats | None = field(default=None, repr=False)
    tokens: TokenScores | None = field(default=None, repr=False)
    units: Ints | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """The number of examples."""
        return int(self.target.losses.shape[0])


class MembershipAttack(Attack):
    """Base class of membership attacks: `score` maps signals to one score per example, higher for likely members.

    `cut` returns the score above which the attacker calls an example a member, chosen without the truth: by default
    the median, as an attacker who expects as many members as non-members would.
    """

    sees: ClassVar[type[Release]] = ModelRelease
    family: ClassVar[Family] = Family.MEMBERSHIP
    returns: ClassVar[Returns] = Returns.SCORES
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS})
    by_unit: ClassVar[bool] = False  # all examples of a unit have one score, that of the unit
    default_references: ClassVar[int] = 0  # reference models, where none are asked for

    def run(self, seen: Any, knows: Knowledge, rng: Rng) -> Guess:
        """Return the scores of the examples whose signals the attacker has."""
        signals = signals_of(knows.extra, self)
        scores = np.asarray(self.score(signals, rng), dtype=np.float64)
        return Guess(scores=tuple(scores.tolist()), details={"threshold": self.cut(signals, scores)})

    @abstractmethod
    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return one score per example."""

    def for_references(self, included: Bools) -> MembershipAttack:
        """Return the attack in the form that works with models trained on these examples, (models, examples)."""
        if not included.any():
            raise UnsupportedError(
                f"Expected reference models that were trained on some of the examples for {self.name}, which learns "
                "from them what members look like, got none. Use lira, rmia or mia-r, which need no such models."
            )
        return self

    def cut(self, signals: Signals, scores: Floats) -> float:
        """Return the score above which an example is called a member."""
        return float(np.median(scores))


# The field of `Signals` that provides what an attack needs.
_PROVIDED = {
    Need.REFERENCES: "references",
    Need.POPULATION: "population",
    Need.NEIGHBOURS: "neighbours",
    Need.TOKENS: "tokens",
}


def signals_of(extra: Mapping[str, Any], attack: Attack) -> Signals:
    """Return the signals in an attacker's knowledge; reject missing ones by name."""
    signals = extra.get(Need.SIGNALS.value)
    if not isinstance(signals, Signals):
        raise UnsupportedError(f"Expected signals for {attack.name}, got none. Pass {Need.SIGNALS.value!r} in extra.")
    for need, name in _PROVIDED.items():
        if need in attack.needs and getattr(signals, name) is None:
            raise UnsupportedError(f"Expected signals with {name} for {attack.name}, got none. Compute them first.")
    return signals
