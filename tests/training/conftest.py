"""Toy rows, and a way to stop a training, that the tests of training share."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.data.corpus import Corpus
from discreet.data.sources import load


@pytest.fixture
def corpus(toy_csv: Path) -> Corpus:
    """Return the toy rows."""
    return load(toy_csv, classes=("clinic", "ward"))


@pytest.fixture
def stop_after() -> Callable[[int], Callable[[], bool]]:
    """Return a function from a number of steps to what says, when asked after each, whether to stop."""

    def make(count: int) -> Callable[[], bool]:
        answers = itertools.chain(itertools.repeat(False, count - 1), itertools.repeat(True))
        return lambda: next(answers)

    return make
