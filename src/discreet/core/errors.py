"""Error classes that carry the settings they name, and checks that raise them with value, rule and remedy.

DiscreetError
├── SettingError      a parameter is outside its range
├── DataError         a file, column, text or label cannot be used
├── ModelError        an encoder or run folder is missing, damaged or of the wrong kind
├── OutputError       the result cannot be written
├── ExtraError        an optional library is not installed
├── UnsupportedError  this cannot be clipped, accounted for or attacked
├── LedgerError       the ledger is damaged, in use or of another unit or adjacency
└── BudgetError       the next step would exceed the privacy budget

A message names a setting by `setting(name)` or `setting(name, value)`, never by a command-line option. `str(error)`
spells settings as Python arguments; `error.worded(spelling)` spells them for another interface, such as the command
line or a study file.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_BEGINNING, _END = 2_000, 500  # characters shown of a very long message
_LONGEST_LINE = 300
# Two Unicode noncharacters, reserved for internal use, mark a setting in a message.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARKED = re.compile(f"{_OPEN}([ -~]*){_CLOSE}")

# Maps the name of a setting, and its value in the message or None, to text; None keeps the setting marked.
Spelling = Callable[[str, Any], str | None]


def setting(name: str, value: object = None) -> str:
    """Return a marked setting, optionally with a value, for use inside an error message.

    >>> error = SettingError(f"Add more noise ({setting('epsilon', 3)}), or leave {setting('delta')} out.")
    >>> str(error)
    'Add more noise (epsilon=3), or leave delta out.'
    >>> error.settings
    [('epsilon', 3), ('delta', None)]
    >>> error.worded(lambda name, value: f"--{name} {value}" if value else f"--{name}")
    'Add more noise (--epsilon 3), or leave --delta out.'
    """
    return f"{_OPEN}{json.dumps([name, value], default=str)}{_CLOSE}"


def in_python(name: str, value: object) -> str:
    """Return a setting as a Python argument with its value, or as a name without one.

    >>> in_python("epsilon", 3), in_python("mechanism", "gaussian"), in_python("epsilon", None)
    ('epsilon=3', "mechanism='gaussian'", 'epsilon')
    """
    return name if value is None else f"{name}={value!r}"


class Message(str):
    """A message with settings spelled as in Python, which can be spelled again for another interface."""

    marked: str

    def __new__(cls, text: str) -> Message:
        """Return the message of a marked text."""
        marked = text.marked if isinstance(text, Message) else text
        message = super().__new__(cls, _spelled(marked, in_python))
        message.marked = marked
        return message

    def __add__(self, text: str) -> Message:
        """Return the message followed by a text."""
        return Message(self.marked + (text.marked if isinstance(text, Message) else text))

    def __radd__(self, text: str) -> Message:
        """Return a text followed by the message."""
        return Message(text + self.marked)

    @property
    def settings(self) -> list[tuple[str, Any]]:
        """The settings that the message names, each with its value or None."""
        return [parts for mark in _MARKED.finditer(self.marked) if (parts := _parts(mark)) is not None]

    def worded(self, spelling: Spelling) -> str:
        """Return the message with its settings in another spelling; settings unknown to it are spelled as in Python."""
        return _spelled(_spelled(self.marked, spelling), in_python)


def _parts(mark: re.Match[str]) -> tuple[str, Any] | None:
    """Return the name and value of a mark; None for user text that happens to look like a mark."""
    try:
        name, value = json.loads(mark[1])
    except (ValueError, TypeError, RecursionError):
        return None
    return (name, value) if isinstance(name, str) else None


def _spelled(marked: str, spelling: Spelling) -> str:
    def one(mark: re.Match[str]) -> str:
        parts = _parts(mark)
        words = None if parts is None else spelling(*parts)
        return mark[0] if words is None else words

    return _MARKED.sub(one, marked)


class DiscreetError(Exception):
    """Any error that the caller can fix; the command line prints it and exits with status 2.

    Args:
        message: What was expected, what was got, and the remedy.

    >>> try:
    ...     positive("epsilon", -1, "Smaller is more private.")
    ... except DiscreetError as error:
    ...     print(error)
    Expected epsilon to be > 0 and finite, got -1. Smaller is more private.
    """

    def __init__(self, message: str = "") -> None:
        """Store the message with its settings."""
        super().__init__(Message(message))

    def __str__(self) -> str:
        """Return the message spelled as in Python; only the beginning and the end of a very long one."""
        return _shortened(self.message)

    @property
    def message(self) -> Message:
        """The complete message. `message.marked` can be used inside the message of another error."""
        message: Message = self.args[0]
        return message

    @property
    def settings(self) -> list[tuple[str, Any]]:
        """The settings that the message names, each with its value or None."""
        return self.message.settings

    def worded(self, spelling: Spelling) -> str:
        """Return the message with its settings in another spelling.

        Args:
            spelling: From the name and value of a setting to its words; None leaves it as it is in Python.
        """
        return _shortened(self.message.worded(spelling))


def _shortened(text: str) -> str:
    return str(text) if len(text) <= _BEGINNING + _END else f"{text[:_BEGINNING]} … {text[-_END:]}"


@contextmanager
def spelled(spelling: Spelling) -> Iterator[None]:
    """Spell the settings of errors raised inside the block; unknown settings stay marked."""
    try:
        yield
    except DiscreetError as error:
        error.args = (Message(_spelled(error.message.marked, spelling)),)
        raise


class SettingError(DiscreetError, ValueError):
    """A parameter is outside its range; for a single parameter, the error has its name, value, rule and remedy."""

    setting: str | None = None
    value: object = None
    rule: str = ""
    remedy: str = ""


class DataError(DiscreetError, ValueError):
    """A file, column, text or label cannot be used."""


class ModelError(DiscreetError):
    """An encoder or run folder is missing, damaged or of the wrong kind."""


class OutputError(DiscreetError):
    """The result cannot be written."""


class ExtraError(DiscreetError, ImportError):
    """An optional library is not installed."""


class UnsupportedError(DiscreetError, TypeError):
    """Something cannot be clipped, accounted for or attacked."""


class LedgerError(DiscreetError):
    """The ledger is damaged, in use, or was opened for another unit or adjacency."""


class BudgetError(DiscreetError):
    """The next step would exceed the privacy budget.

    Args:
        message: What would be spent, and the budget.

    >>> raise BudgetError("Expected a total epsilon <= 3, got 3.2.")
    Traceback (most recent call last):
    ...
    discreet.core.errors.BudgetError: Expected a total epsilon <= 3, got 3.2.
    """


def first_line(error: BaseException, longest: int = _LONGEST_LINE) -> str:
    """Return the first line of an error of another library, truncated, or its type if it has no message.

    >>> first_line(ValueError("one\\ntwo")), first_line(ValueError()), first_line(ValueError("abc"), 2)
    ('one', 'ValueError', 'ab')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:longest]


_LONGEST = 200  # characters of a value in an error


def invalid(name: str, value: object, rule: str, remedy: str = "") -> SettingError:
    """Return the error for a value that violates a rule, which completes "Expected NAME to be …".

    >>> raise invalid("sampling_rate", 1.7, "in [0, 1]", "It is a probability.")
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected sampling_rate to be in [0, 1], got 1.7. It is a probability.
    """
    error = SettingError(f"Expected {setting(name)} to be {rule}, got {shown(value)}. {remedy}".rstrip())
    error.setting, error.value, error.rule, error.remedy = name, value, Message(rule), Message(remedy)
    return error


def shown(value: object, longest: int = _LONGEST) -> str:
    """Return the repr of a value for an error message, truncated if it is long.

    >>> shown("a"), shown("abc" * 9, 10)
    ("'a'", "'abcabcab…")
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or deeply nested values
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _number(name: str, value: float, rule: str, remedy: str, holds: Callable[[float], bool]) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not holds(number):  # false for NaN
        raise invalid(name, value, rule, remedy)
    return number


def positive(name: str, value: float, remedy: str = "") -> float:
    """Return a finite number > 0, or raise SettingError."""
    return _number(name, value, "> 0 and finite", remedy, lambda number: 0 < number < math.inf)


def non_negative(name: str, value: float, remedy: str = "") -> float:
    """Return a finite number >= 0, or raise SettingError."""
    return _number(name, value, ">= 0 and finite", remedy, lambda number: 0 <= number < math.inf)


def probability(name: str, value: float, remedy: str = "It is a probability.") -> float:
    """Return a number in [0, 1], or raise SettingError."""
    return _number(name, value, "in [0, 1]", remedy, lambda number: 0 <= number <= 1)


def open_probability(name: str, value: float, remedy: str = "It is a probability.") -> float:
    """Return a number in (0, 1), or raise SettingError."""
    return _number(name, value, "in (0, 1)", remedy, lambda number: 0 < number < 1)


def whole(name: str, value: int, least: int = 1, remedy: str = "") -> int:
    """Return an integer >= `least`, or raise SettingError."""
    try:
        number = int(value)
        valid = not isinstance(value, bool) and number == value and number >= least
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        raise invalid(name, value, f"an integer >= {least}", remedy)
    return number


def one_of(name: str, value: str, known: Collection[str]) -> str:
    """Return a known name, or raise SettingError with the closest known name.

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
    """Return a question with the closest known name, or an empty string."""
    close = difflib.get_close_matches(value, known, n=1) if len(value) <= _LONGEST else []
    return f"Did you mean {close[0]!r}?" if close else ""
