"""What every attack declares: the release it sees, what it returns, what it needs, and one verb, `run`.

A time that may end a search early. Searches count steps; a limit is for someone who waits, and is off by default.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from discreet.catalog import ATTACKS
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, Release

if TYPE_CHECKING:
    from discreet.models.classifier import Classifier


class Returns(Enum):
    """What a guess holds."""

    TEXTS = "texts"
    BAG_OF_WORDS = "bag of words"  # words or tokens without their order
    INDICES = "indices"  # candidates, likeliest first
    SCORES = "scores"


class Need(Enum):
    """What an attack needs besides the release and the public model; the value is its name in `Knowledge.extra`."""

    PRIOR = "prior"  # a language model of public text
    CANDIDATES = "candidates"  # texts that the private ones are among
    PUBLIC_VECTORS = "public"  # vectors of public text
    AUXILIARY_VECTORS = "auxiliary"  # vectors of public texts whose words are known
    PAIRS = "pairs"  # vectors of public text, protected and plain
    CRAFTED_MODEL = "crafted model"  # clients use weights that the attacker made


@dataclass(frozen=True)
class Mixing:
    """What the public settings of a defence say about released vectors.

    `count` is the number of private texts in a release, `mix` how many are mixed in each vector, `masks` how many masks
    are reused (0 is none, or a fresh one for each vector), and `masked` whether signs are hidden at all.
    """

    count: int = 1
    mix: int = 1
    masks: int = 0
    masked: bool = False


class Attack(ABC):
    """Public settings, the fields of a frozen dataclass, and one verb.

    A subclass says what it `sees`, what it `returns` and what it `needs`. `name` is its name in the catalog, which has
    its label and its line of help. `aligned` says that there is one guess for each released vector, in their order, and
    `has_time_limit` that it searches for at most `seconds`, one of its fields.
    """

    name: ClassVar[str] = ""
    sees: ClassVar[type[Release]]
    returns: ClassVar[Returns] = Returns.TEXTS
    needs: ClassVar[frozenset[Need]] = frozenset()
    aligned: ClassVar[bool] = False
    has_time_limit: ClassVar[bool] = False

    @abstractmethod
    def run(self, seen: Any, knows: Knowledge, rng: Rng) -> Guess:
        """Return what is read in a release."""

    @property
    def label(self) -> str:
        """How the attack is called in a sentence."""
        return ATTACKS[self.name].label if self.name in ATTACKS else self.name or type(self).__name__

    @property
    def summary(self) -> str:
        """What the attack does, in one line."""
        return ATTACKS[self.name].help if self.name in ATTACKS else ""

    @property
    def identifies(self) -> bool:
        """Whether it names one of n candidates, so that its success has a proven bound."""
        return self.returns is Returns.INDICES

    @property
    def is_ordered(self) -> bool:
        """Whether the words that it reads have an order."""
        return self.returns is not Returns.BAG_OF_WORDS

    @property
    def crafts(self) -> bool:
        """Whether the model whose release it sees is of its making."""
        return Need.CRAFTED_MODEL in self.needs

    @property
    def misled_by_masks(self) -> bool:
        """Whether it compares signs, which a mask on released vectors flips."""
        return False

    def craft(self, model: Classifier, rng: Rng) -> Classifier:
        """Return the model that clients are given: the public one, or a copy with crafted weights."""
        return model

    def within(self, seconds: float | None) -> Self:
        """Return the attack with a time limit on each search, where it searches."""
        if seconds is None or not self.has_time_limit:
            return self
        return dataclasses.replace(self, seconds=seconds)  # type: ignore[type-var]

    def informed(self, mixing: Mixing) -> Self:
        """Return the attack with what the public settings of a defence say about released vectors."""
        return self


_BEHIND = 0.1  # a loop whose steps are behind its time by this share of them is shortened


class TimeLimit:
    """A limit of `seconds`, or none, and whether it was `reached`, so that a result can say so.

    A search counts its steps. A limit changes nothing in it before it is clear that the steps do not fit, so the same
    settings and seed give the same result on every machine where the limit is not reached.
    """

    def __init__(self, seconds: float | None = None, whole: TimeLimit | None = None) -> None:
        """Begin to count now, or when the `whole` limit that this is a part of began."""
        self.seconds, self.whole = seconds, whole
        self.began: float = time.monotonic() if whole is None else whole.began
        self.reached = False

    @property
    def passed(self) -> float:
        """The seconds that have passed."""
        return time.monotonic() - self.began

    @property
    def share(self) -> float:
        """The share of the time that has passed; 0 without a limit."""
        return 0.0 if self.seconds is None else self.passed / self.seconds

    def until(self, share: float) -> TimeLimit:
        """Return the limit that ends when a share of this one has passed."""
        return TimeLimit(None if self.seconds is None else self.seconds * share, self)

    def over(self, share: float = 1.0) -> bool:
        """Return whether a share of the time has passed; called where work is left, so that the limit is reached.

        >>> limit = TimeLimit(1e-9)
        >>> limit.until(0.5).over(), limit.reached, TimeLimit().over()
        (True, True, False)
        """
        if self.share < share or self.seconds is None:
            return False
        self._reach()
        return True

    def done(self, step: int, steps: int, began: float = 0.0, until: float = 1.0) -> float:
        """Return how much of a loop is over, from 0 to 1; it began at a share of the time and may last until another.

        It is the share of the steps. Where they do not all fit, it is the share of the time, if that is more.

        >>> TimeLimit().done(30, 120), TimeLimit(3600.0).done(30, 120)
        (0.25, 0.25)
        """
        counted = step / steps
        if self.seconds is None:
            return counted
        now = self.share
        if now >= until:
            self._reach()
            return 1.0
        used = (now - began) / (until - began)
        if used > counted + _BEHIND:
            self._reach()
        return max(counted, used) if self.reached else counted

    def _reach(self) -> None:
        self.reached = True
        if self.whole is not None:
            self.whole._reach()
