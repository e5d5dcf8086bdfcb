"""Answers that are kept: what one use of a mechanism costs is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

from discreet.accounting.events import DpEvent
from discreet.core.guarantee import Adjacency

Answer = TypeVar("Answer")
_MOST = 256  # questions; a training asks a handful


def remembered(answer: Callable[[DpEvent, Adjacency], Answer]) -> Callable[[DpEvent, Adjacency], Answer]:
    """Return a function that answers the same question about an event under an adjacency once."""
    kept = lru_cache(maxsize=_MOST)(answer)

    @wraps(answer)
    def ask(use: DpEvent, adjacency: Adjacency) -> Answer:
        try:
            hash(use)
        except TypeError:  # an event that holds a list has no hash
            return answer(use, adjacency)
        return kept(use, adjacency)

    return ask
