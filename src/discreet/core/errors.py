"""Errors that say the value, the rule and the remedy.

DiscreetError
├── SettingError      a parameter is outside its rule
├── DataError         a file, column, text or label cannot be used
├── ModelError        an encoder or run folder is missing, damaged or of the wrong kind
├── OutputError       the result cannot be written
├── ExtraError        an optional library is not installed
├── UnsupportedError  this cannot be clipped, accounted for or attacked, and is refused by name
├── LedgerError       the ledger is damaged, in use or of another unit or adjacency
└── BudgetError       the next step would exceed the privacy budget
"""

_BEGINNING, _END = 2_000, 500  # characters of a message that holds too much of what was given
_LONGEST_LINE = 300


class DiscreetError(Exception):
    """Any error that is the caller's to mend; the command line prints it and exits with status 2."""

    def __str__(self) -> str:
        """Return the message; of a very long one, its beginning and its end, where the remedy stands."""
        text = super().__str__()
        return text if len(text) <= _BEGINNING + _END else f"{text[:_BEGINNING]} … {text[-_END:]}"


class SettingError(DiscreetError, ValueError):
    """A parameter is outside its rule."""


class DataError(DiscreetError, ValueError):
    """A file, column, text or label cannot be used."""


class ModelError(DiscreetError):
    """An encoder or run folder is missing, damaged or of the wrong kind."""


class OutputError(DiscreetError):
    """The result cannot be written."""


class ExtraError(DiscreetError, ImportError):
    """An optional library is not installed."""


class UnsupportedError(DiscreetError, TypeError):
    """Something cannot be clipped, accounted for or attacked, and is refused by name."""


class LedgerError(DiscreetError):
    """The ledger is damaged, in use, or was opened for another unit or adjacency."""


class BudgetError(DiscreetError):
    """The next step would exceed the privacy budget."""


def first_line(error: BaseException, longest: int = _LONGEST_LINE) -> str:
    """Return the first line of an error of another library, truncated, or the error's type if it says nothing.

    >>> first_line(ValueError("one\\ntwo")), first_line(ValueError()), first_line(ValueError("abc"), 2)
    ('one', 'ValueError', 'ab')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:longest]
