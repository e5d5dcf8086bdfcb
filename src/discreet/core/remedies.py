"""Options that an error names, said as the reader can say them: as an option, a key of a file, NAME=VALUE."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from discreet.core.errors import DiscreetError

# From the name of a setting, and a value where the remedy names one, to words; None leaves the option as it is.
Say = Callable[[str, str | None], str | None]

# An option and, where they follow, a placeholder (FILE), a number, or a word that ends what is said of it.
_OPTION = re.compile(
    r"--(?P<no>no-)?(?P<name>[a-z]+(?:-[a-z]+)*)"
    r"(?: (?:(?P<place>[A-Z]+)\b|(?P<number>\d+(?:\.\d+)?(?:e[-+]?\d+)?)|(?P<word>[a-z]+)(?=[.,;)]|$)))?"
)


def reworded(text: str, say: Say) -> str:
    """Return a text in which the options of the command line are said otherwise.

    >>> reworded("Mix fewer (--mix), or use --no-pooler.", lambda name, value: f"{name}={value}")
    'Mix fewer (mix=None), or use pooler=false.'
    """

    def one(found: re.Match[str]) -> str:
        value = "false" if found["no"] else found["number"] or found["word"]
        told = say(found["name"].replace("-", "_"), value)
        return found[0] if told is None else told

    return _OPTION.sub(one, text)


@contextmanager
def saying(say: Say) -> Iterator[None]:
    """Let what is refused inside say options otherwise."""
    try:
        yield
    except DiscreetError as error:
        told = reworded(str(error), say)
        if told == str(error):
            raise
        raise type(error)(told) from None
