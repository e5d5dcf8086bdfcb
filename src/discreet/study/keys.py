"""What an error says to whoever wrote a study: the key of its table where a command would have an option."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from functools import lru_cache

from discreet.catalog import PROTECTIONS, protection_settings
from discreet.core.remedies import reworded, saying
from discreet.models.classifier import ModelSettings
from discreet.study.tables import ASKED, DataTable, ReleaseTable, TrainingTable


def in_keys(text: str) -> str:
    """Return a text with a study's keys where it names options of the command line; what is no key stays.

    >>> in_keys("Take larger batches (--batch-size), or mix fewer (--mix).")
    'Take larger batches (batch_size), or mix fewer (mix).'
    >>> in_keys("Use --no-pooler. Add --mechanism gaussian. Expected --sensitive FILE; choose another --out.")
    'Use pooler = false. Add mechanism = "gaussian". Expected sensitive; choose another --out.'
    """
    return reworded(text, _key)


def said_in_keys() -> AbstractContextManager[None]:
    """Let what is refused inside name a study's keys."""
    return saying(_key)


def _key(name: str, value: str | None) -> str | None:
    if name not in _keys():
        return None
    if value is None:
        return name
    return f"{name} = {value}" if value == "false" or value[0].isdigit() else f'{name} = "{value}"'


@lru_cache(maxsize=1)
def _keys() -> frozenset[str]:
    """Return every key that a table of a study may have."""
    tables = [
        DataTable,
        ModelSettings,
        TrainingTable,
        ReleaseTable,
        *(protection_settings(name) for name in PROTECTIONS),
    ]
    return frozenset({*ASKED, *(field.name for table in tables for field in dataclasses.fields(table))})
