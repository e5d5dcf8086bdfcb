"""The contract of attacks: the release an attack reads, what it returns and needs, and one method, `run`.

`TimeLimit` can end a search early. Searches count their steps, and there is no time limit by default.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from discreet.catalog import ATTACKS
from discreet.core.errors import positive, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, ModelRelease, Release, RepresentationRelease
from discreet.plugins import docstring_line

if TYPE_CHECKING:
    from discreet.models.base import TextModel


class Returns(Enum):
    """The content of a guess."""

    TEXTS = "texts"
    BAG_OF_WORDS = "bag of words"  # words or tokens without order
    INDICES = "indices"  # candidates, most likely first
    SCORES = "scores"


class Need(Enum):
    """What an attack needs besides the release and the public model; the value is the key in `Knowledge.extra`."""

    PRIOR = "prior"  # a language model of public text
    CANDIDATES = "candidates"  # texts that include the private ones
    PUBLIC_VECTORS = "public"  # vectors of public text
    AUXILIARY_VECTORS = "auxiliary"  # vectors of public texts whose words are known
    PAIRS = "pairs"  # protected and unprotected vectors of public text
    CRAFTED_MODEL = "crafted model"  # clients use weights that the attacker crafted
    SIGNALS = "signals"  # the outputs of models on the examples asked about
    REFERENCES = "references"  # signals of models that the attacker trained on text of the same kind
    POPULATION = "population"  # signals of the attacker's own texts, which are known non-members
    NEIGHBOURS = "neighbours"  # signals of altered versions of each example
    TOKENS = "token scores"  # signals of each token, of the target and of the model that it was fine-tuned from
    CANARIES = "canaries"  # planted texts and the space that their secrets were drawn from
    PROMPTS = "prompts"  # the beginnings of texts
    REGISTER = "register"  # a table of people and what is known of each
    DICTIONARY = "dictionary"  # names to try
    ATTRIBUTES = "attributes"  # vectors of public texts and the class of each


class Family(Enum):
    """Attacks that are run and measured in the same way."""

    RECONSTRUCTION = "reconstruction"  # of texts, from a release of some rows
    IDENTIFICATION = "identification"  # of one of n candidates, from a release of one row
    MEMBERSHIP = "membership"  # of texts or authors, from a trained model
    EXTRACTION = "extraction"  # of memorized text, from a trained model
    PEOPLE = "people"  # who a released text, vector or pseudonym is about, or what it tells of them


@dataclass(frozen=True)
class Mixing:
    """Public settings of a protection that describe released vectors.

    `count` is the number of private texts in a release, `mix` the number mixed into each vector, `masks` the number of
    reused masks (0 for none, or a new one for each vector), and `masked` says whether signs are hidden.
    """

    count: int = 1
    mix: int = 1
    masks: int = 0
    masked: bool = False


class Attack(ABC):
    """Base class: settings are the fields of a frozen dataclass, and `run` attacks a release.

    A subclass declares what it `sees`, `returns` and `needs`, and the `family` of attacks that it is run and measured
    with. `name` is its name in the catalog, which holds its label and help; a plug-in has the name of its entry point,
    may declare a `label`, and its help is the first line of its docstring. `aligned` means one guess for each released
    vector, in the same order. `has_time_limit` means that its field `seconds` limits the search.

    >>> from discreet.core.types import GradientRelease
    >>> class FirstCandidate(Attack):
    ...     sees = GradientRelease
    ...     def run(self, seen, knows, rng):
    ...         return Guess(tuple(knows.candidates[:1]))
    >>> FirstCandidate().run(None, Knowledge(candidates=("a guess",)), Rng(0)).texts
    ('a guess',)
    """

    name: ClassVar[str] = ""
    sees: ClassVar[type[Release]]
    family: ClassVar[Family] = Family.RECONSTRUCTION
    returns: ClassVar[Returns] = Returns.TEXTS
    needs: ClassVar[frozenset[Need]] = frozenset()
    aligned: ClassVar[bool] = False
    has_time_limit: ClassVar[bool] = False

    @abstractmethod
    def run(self, seen: Any, knows: Knowledge, rng: Rng) -> Guess:
        """Return the guess for a release.

        Args:
            seen: The release.
            knows: What the attacker knows besides it.
            rng: The source of the attack's random numbers.
        """

    @property
    def label(self) -> str:
        """The name of the attack in a sentence."""
        if ATTACKS.owns(self.name):
            return ATTACKS[self.name].label
        return self.name.replace("-", " ") or type(self).__name__

    @property
    def summary(self) -> str:
        """The one-line help of the attack."""
        return ATTACKS[self.name].help if ATTACKS.owns(self.name) else docstring_line(type(self))

    @property
    def identifies(self) -> bool:
        """Whether it identifies one of n candidates, so that its success has a proven bound."""
        return self.family is Family.IDENTIFICATION

    @property
    def is_ordered(self) -> bool:
        """Whether the words of its guess have an order."""
        return self.returns is not Returns.BAG_OF_WORDS

    @property
    def crafts(self) -> bool:
        """Whether it crafts the model that clients use."""
        return Need.CRAFTED_MODEL in self.needs

    @property
    def misled_by_masks(self) -> bool:
        """Whether it compares signs, which a mask on released vectors flips."""
        return False

    def craft(self, model: TextModel, rng: Rng) -> TextModel:
        """Return the model that clients receive: the public one, or a copy with crafted weights.

        Args:
            model: The public model.
            rng: The source of the attack's random numbers.
        """
        return model

    def within(self, seconds: float | None) -> Self:
        """Return the attack with a time limit on each search, if it supports one.

        Args:
            seconds: The limit; None is no limit.
        """
        if seconds is None or not self.has_time_limit:
            return self
        return dataclasses.replace(self, seconds=seconds)  # type: ignore[type-var]

    def informed(self, mixing: Mixing) -> Self:
        """Return the attack with the public settings of the protection that it uses.

        Args:
            mixing: The public settings of a protection that mixes vectors.
        """
        return self


class GradientAttack(Attack):
    """Base class of attacks that see gradients."""

    sees: ClassVar[type[Release]] = GradientRelease


class VectorAttack(Attack):
    """Base class of attacks that see sentence vectors."""

    sees: ClassVar[type[Release]] = RepresentationRelease


class ExtractionAttack(Attack):
    """Base class of attacks on what a trained model memorized."""

    sees: ClassVar[type[Release]] = ModelRelease
    family: ClassVar[Family] = Family.EXTRACTION


class PeopleAttack(Attack):
    """Base class of attacks on the person behind each text, vector or pseudonym."""

    family: ClassVar[Family] = Family.PEOPLE
    aligned: ClassVar[bool] = True


def check_search(settings: Any, *counts: str) -> None:
    """Check the time limit of a search and the fields that are counts of at least 1."""
    for name in counts:
        whole(name, getattr(settings, name))
    if settings.seconds is not None:
        positive("seconds", settings.seconds, "It is the time for one search; leave it out to let it finish.")


_BEHIND = 0.1  # a loop is shortened if its share of steps is this far behind its share of the time


class TimeLimit:
    """A limit of `seconds`, or none, and whether it was `reached`.

    A limit has no effect until the steps of a search are clearly too slow for it, so the same settings and seed give
    the same result on every machine where the limit is not reached.
    """

    def __init__(self, seconds: float | None = None, whole: TimeLimit | None = None) -> None:
        """Start now or, if this is a part of the limit `whole`, at the start of that limit."""
        self.seconds, self.whole = seconds, whole
        self.began: float = time.monotonic() if whole is None else whole.began
        self.reached = False

    @property
    def passed(self) -> float:
        """The elapsed seconds."""
        return time.monotonic() - self.began

    @property
    def share(self) -> float:
        """The elapsed share of the limit; 0 without a limit."""
        return 0.0 if self.seconds is None else self.passed / self.seconds

    def until(self, share: float) -> TimeLimit:
        """Return the limit that ends after a share of this one."""
        return TimeLimit(None if self.seconds is None else self.seconds * share, self)

    def over(self, share: float = 1.0) -> bool:
        """Return whether a share of the time has elapsed, and if so mark the limit as reached.

        Call it only if work is left.

        >>> limit = TimeLimit(1e-9)
        >>> limit.until(0.5).over(), limit.reached, TimeLimit().over()
        (True, True, False)
        """
        if self.share < share or self.seconds is None:
            return False
        self._reach()
        return True

    def done(self, step: int, steps: int, began: float = 0.0, until: float = 1.0) -> float:
        """Return the progress of a loop, from 0 to 1; it runs from the share `began` of the time to the share `until`.

        It is the share of the steps or, if the steps do not all fit, the share of the time if that is larger.

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
