"""Checks that refuse a bad value with the value, the rule and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence

from discreet.core.errors import SettingError


def refuse(name: str, value: object, rule: str, remedy: str) -> SettingError:
    """Return the error for a value that breaks a rule.

    >>> raise refuse("sampling_rate", 1.7, "in [0, 1]", "It is a probability.")
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected sampling_rate=1.7 in [0, 1]. It is a probability.
    """
    return SettingError(f"Expected {name}={value!r} {rule}. {remedy}".rstrip())


def _number(name: str, value: float, rule: str, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise refuse(name, value, rule, remedy) from None
    else:
        number = float(value)
    if math.isnan(number):
        raise refuse(name, value, rule, remedy)
    return number


def positive(name: str, value: float, remedy: str = "") -> float:
    """Return a finite number above zero, or refuse it."""
    number = _number(name, value, "> 0 and finite", remedy)
    if not 0 < number < math.inf:
        raise refuse(name, value, "> 0 and finite", remedy)
    return number


def non_negative(name: str, value: float, remedy: str = "") -> float:
    """Return a finite number of at least zero, or refuse it."""
    number = _number(name, value, ">= 0 and finite", remedy)
    if not 0 <= number < math.inf:
        raise refuse(name, value, ">= 0 and finite", remedy)
    return number


def probability(name: str, value: float, remedy: str = "It is a probability.") -> float:
    """Return a number in [0, 1], or refuse it."""
    number = _number(name, value, "in [0, 1]", remedy)
    if not 0 <= number <= 1:
        raise refuse(name, value, "in [0, 1]", remedy)
    return number


def open_probability(name: str, value: float, remedy: str = "It is a probability.") -> float:
    """Return a number strictly between 0 and 1, or refuse it."""
    number = _number(name, value, "in (0, 1)", remedy)
    if not 0 < number < 1:
        raise refuse(name, value, "in (0, 1)", remedy)
    return number


def whole(name: str, value: int, least: int = 1, remedy: str = "") -> int:
    """Return a whole number of at least `least`, or refuse it."""
    if isinstance(value, bool) or int(value) != value or value < least:
        raise refuse(name, value, f"a whole number >= {least}", remedy)
    return int(value)


def one_of(name: str, value: str, known: Collection[str]) -> str:
    """Return a name that is known, or refuse it and say which known one was perhaps meant.

    >>> one_of("pooling", "maen", ["cls", "mean", "last"])
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected pooling='maen' in cls, mean, last. Did you mean 'mean'?
    """
    if value in known:
        return value
    raise refuse(name, value, "in " + ", ".join(known), did_you_mean(value, list(known)))


def did_you_mean(value: str, known: Sequence[str]) -> str:
    """Return a question that names the closest known word, or nothing."""
    close = difflib.get_close_matches(value, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else ""
