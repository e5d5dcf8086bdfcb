"""Results as words or as one JSON object, and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def as_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(values, ensure_ascii=False, allow_nan=False))


def paragraph(text: str, first: str = "") -> None:
    """Print text on stdout, broken between words to fit the terminal; what stands first leaves a margin below it."""
    print(_wrapped(text, first))


def _wrapped(text: str, first: str = "") -> str:
    import shutil
    import textwrap

    width, margin = shutil.get_terminal_size().columns, " " * len(first)
    # paths and options are copied from what is printed, so they stay whole
    return textwrap.TextWrapper(width, first, margin, break_long_words=False, break_on_hyphens=False).fill(text)


def note(text: str) -> None:
    """Print a remark on stderr; in a terminal it is broken between words, in a file it is one line."""
    print(_wrapped(text) if sys.stderr.isatty() else text, file=sys.stderr)


def table(rows: Mapping[str, Any], title: str = "") -> None:
    """Print names and values as a small table on stdout."""
    from rich.console import Console
    from rich.table import Table

    if title:
        print(title)
    drawn = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    for name, value in rows.items():
        drawn.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    Console(highlight=False).print(drawn)


def say_quality(quality: Mapping[str, Any], remedy: str = "") -> None:
    """Print the interval and the baseline of a utility and, for a model that learned nothing, what may help."""
    from discreet.metrics.utility import in_sentences

    paragraph(" ".join([*in_sentences(quality), *([remedy] if quality["learned_nothing"] and remedy else [])]))


def stderr() -> Console:
    """Return a console that writes to stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def stop_on_interrupt() -> Iterator[list[bool]]:
    """Turn Ctrl-C into a flag, so that work can stop at a good moment; a second one stops at once."""
    import signal

    asked: list[bool] = []

    def remember(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)
        note("Stopping after this step; press Ctrl-C again to stop at once.")

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, remember)
    except ValueError:  # not in the main thread, where signals cannot be caught
        yield asked
        return
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
