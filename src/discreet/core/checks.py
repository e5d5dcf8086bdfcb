"""Checks that reject a value outside its rule, with the value, the rule and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence

from discreet.core.errors import Message, SettingError, setting

_LONGEST = 200  # characters of a value in an error


def invalid(name: str, value: object, rule: str, remedy: str = "") -> SettingError:
    """Return the error for a value outside its rule, which completes "Expected NAME to be …".

    >>> raise invalid("sampling_rate", 1.7, "in [0, 1]", "It is a probability.")
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected sampling_rate to be in [0, 1], got 1.7. It is a probability.
    """
    error = SettingError(f"Expected {setting(name)} to be {rule}, got {shown(value)}. {remedy}".rstrip())
    error.setting, error.value, error.rule, error.remedy = name, value, Message(rule), Message(remedy)
    return error


def shown(value: object, longest: int = _LONGEST) -> str:
    """Return a value as an error shows it: its repr, truncated where it is long.

    >>> shown("a"), shown("abc" * 9, 10)
    ("'a'", "'abcabcab…")
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or values nested as deep
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _number(name: str, value: float, rule: str, remedy: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise invalid(name, value, rule, remedy) from None
    if math.isnan(number):
        raise invalid(name, value, rule, remedy)
    return number


def positive(name: str, value: float, remedy: str = "") -> float:
    """Return a finite number above zero, or reject it."""
    number = _number(name, value, "> 0 and finite", remedy)
    if not 0 < number < math.inf:
        raise invalid(name, value, "> 0 and finite", remedy)
    return number


def non_negative(name: str, value: float, remedy: str = "") -> float:
    """Return a finite number of at least zero, or reject it."""
    number = _number(name, value, ">= 0 and finite", remedy)
    if not 0 <= number < math.inf:
        raise invalid(name, value, ">= 0 and finite", remedy)
    return number


def probability(name: str, value: float, remedy: str = "It is a probability.") -> float:
    """Return a number in [0, 1], or reject it."""
    number = _number(name, value, "in [0, 1]", remedy)
    if not 0 <= number <= 1:
        raise invalid(name, value, "in [0, 1]", remedy)
    return number


def open_probability(name: str, value: float, remedy: str = "It is a probability.") -> float:
    """Return a number strictly between 0 and 1, or reject it."""
    number = _number(name, value, "in (0, 1)", remedy)
    if not 0 < number < 1:
        raise invalid(name, value, "in (0, 1)", remedy)
    return number


def whole(name: str, value: int, least: int = 1, remedy: str = "") -> int:
    """Return an integer of at least `least`, or reject it."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise invalid(name, value, f"an integer >= {least}", remedy) from None
    if isinstance(value, bool) or number != value or number < least:
        raise invalid(name, value, f"an integer >= {least}", remedy)
    return number


def one_of(name: str, value: str, known: Collection[str]) -> str:
    """Return a name that is known, or reject it and say which known one was perhaps meant.

    >>> one_of("pooling", "maen", ["cls", "mean", "last"])
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected pooling to be one of cls, mean, last, got 'maen'. Did you mean 'mean'?
    """
    if isinstance(value, str) and value in known:
        return value
    guess = did_you_mean(value, list(known)) if isinstance(value, str) else ""
    raise invalid(name, value, "one of " + ", ".join(known), guess)


def did_you_mean(value: str, known: Sequence[str]) -> str:
    """Return a question that names the closest known word, or nothing."""
    close = difflib.get_close_matches(value, known, n=1) if len(value) <= _LONGEST else []
    return f"Did you mean {close[0]!r}?" if close else ""
