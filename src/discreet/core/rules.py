"""Rules for the values of settings, declared with the fields of a dataclass.

A rule is written once, in `option_field(…, rule=Positive())`. `check_fields` applies the rules when the settings are
made, and `core.schema` writes them into the JSON schema of a settings file.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from discreet.core.errors import invalid, non_negative, one_of, open_probability, positive, probability, whole

RULE = "rule"  # the key of a rule in the metadata of a field


class Rule(ABC):
    """What the value of a setting must be."""

    @abstractmethod
    def check(self, name: str, value: Any) -> None:
        """Raise SettingError if a value breaks the rule."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the rule as keywords of JSON Schema."""


@dataclass(frozen=True)
class OneOf(Rule):
    """A name from a list."""

    known: tuple[str, ...]

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError with the closest known name."""
        one_of(name, value, self.known)

    def schema(self) -> dict[str, Any]:
        """Return the names as an enumeration."""
        return {"enum": list(self.known)}


@dataclass(frozen=True)
class Pattern(Rule):
    """A text that a regular expression matches as a whole; `rule` completes "Expected NAME to be …"."""

    pattern: str
    rule: str
    remedy: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError if a text does not match."""
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise invalid(name, value, self.rule, self.remedy)

    def schema(self) -> dict[str, Any]:
        """Return the expression, anchored at both ends."""
        return {"pattern": f"^({self.pattern})$"}


@dataclass(frozen=True)
class Whole(Rule):
    """An integer that is not too small."""

    least: int = 1
    remedy: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError for another number."""
        whole(name, value, self.least, self.remedy)

    def schema(self) -> dict[str, Any]:
        """Return the smallest number."""
        return {"minimum": self.least}


@dataclass(frozen=True)
class Positive(Rule):
    """A finite number > 0."""

    remedy: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError for another number."""
        positive(name, value, self.remedy)

    def schema(self) -> dict[str, Any]:
        """Return the bound."""
        return {"exclusiveMinimum": 0}


@dataclass(frozen=True)
class NonNegative(Rule):
    """A finite number >= 0."""

    remedy: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError for another number."""
        non_negative(name, value, self.remedy)

    def schema(self) -> dict[str, Any]:
        """Return the bound."""
        return {"minimum": 0}


@dataclass(frozen=True)
class Probability(Rule):
    """A number in [0, 1], or in [0, 1) if it is `below_one`."""

    remedy: str = "It is a probability."
    below_one: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError for another number."""
        if probability(name, value, self.remedy) == 1 and self.below_one:
            raise invalid(name, value, "in [0, 1)", self.remedy)

    def schema(self) -> dict[str, Any]:
        """Return both bounds."""
        return {"minimum": 0, "exclusiveMaximum" if self.below_one else "maximum": 1}


@dataclass(frozen=True)
class OpenProbability(Rule):
    """A number in (0, 1)."""

    remedy: str = "It is a probability."

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError for another number."""
        open_probability(name, value, self.remedy)

    def schema(self) -> dict[str, Any]:
        """Return both bounds."""
        return {"exclusiveMinimum": 0, "exclusiveMaximum": 1}


@dataclass(frozen=True)
class AtLeastOne(Rule):
    """One or more values."""

    remedy: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError for no value."""
        if not value:
            raise invalid(name, list(value), "at least one", self.remedy)

    def schema(self) -> dict[str, Any]:
        """Return the smallest number of values."""
        return {"minItems": 1}


@dataclass(frozen=True)
class Different(Rule):
    """One or more values, all different."""

    remedy: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise SettingError for no value, or for one that is repeated."""
        if not value or len(set(value)) != len(value):
            raise invalid(name, list(value), "one or more different numbers", self.remedy)

    def schema(self) -> dict[str, Any]:
        """Return that the values are unique, and that there is one."""
        return {"minItems": 1, "uniqueItems": True}


def ruled(default: Any, rule: Rule) -> Any:
    """Return a dataclass field with a rule for its value."""
    return dataclasses.field(default=default, metadata={RULE: rule})


def check_fields(settings: Any, where: str = "", names: Mapping[str, str] | None = None) -> None:
    """Raise SettingError for the first field of a dataclass whose value breaks its rule.

    None breaks no rule where it is the default. `where` goes before the name of the field, such as "goal.".
    `names` has the names of fields that errors call otherwise.
    """
    for field in dataclasses.fields(settings):
        rule, value = field.metadata.get(RULE), getattr(settings, field.name)
        if rule is not None and not (value is None and field.default is None):
            rule.check(where + (names or {}).get(field.name, field.name), value)
