"""What an error says to whoever wrote a study: the key of its table where a command would have an option."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from discreet.core.errors import DiscreetError
from discreet.experiment.study import ASKED, DataTable, ReleaseTable, TrainingTable
from discreet.models.classifier import ModelSettings
from discreet.protections.settings import SETTINGS, settings_of

# An option and, where they follow, a placeholder (FILE), a number, or a word that ends what is said of it.
_OPTION = re.compile(
    r"--(?P<no>no-)?(?P<name>[a-z]+(?:-[a-z]+)*)"
    r"(?: (?:(?P<place>[A-Z]+)\b|(?P<number>\d+(?:\.\d+)?)|(?P<word>[a-z]+)(?=[.,;)]|$)))?"
)


def in_keys(text: str) -> str:
    """Return a text with a study's keys where it names options of the command line; what is no key stays.

    >>> in_keys("Take larger batches (--batch-size), or mix fewer (--mix).")
    'Take larger batches (batch_size), or mix fewer (mix).'
    >>> in_keys("Use --no-pooler. Add --mechanism gaussian. Expected --sensitive FILE; choose another --out.")
    'Use pooler = false. Add mechanism = "gaussian". Expected sensitive; choose another --out.'
    """
    return _OPTION.sub(_key, text)


@contextmanager
def said_in_keys() -> Iterator[None]:
    """Let what is refused inside name a study's keys."""
    try:
        yield
    except DiscreetError as error:
        told = in_keys(str(error))
        if told == str(error):
            raise
        raise type(error)(told) from None


def _key(found: re.Match[str]) -> str:
    name = found["name"].replace("-", "_")
    if name not in _keys():
        return found[0]
    if found["no"]:
        return f"{name} = false"
    if found["number"]:
        return f"{name} = {found['number']}"
    return f'{name} = "{found["word"]}"' if found["word"] else name


@lru_cache(maxsize=1)
def _keys() -> frozenset[str]:
    """Return every key that a table of a study may have."""
    tables = [DataTable, ModelSettings, TrainingTable, ReleaseTable, *(settings_of(name) for name in SETTINGS)]
    return frozenset({*ASKED, *(field.name for table in tables for field in dataclasses.fields(table))})
