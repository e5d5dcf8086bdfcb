"""Store the trials of a sweep on disk: an append-only file with one line per trial."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discreet.core.errors import DataError, OutputError, shown
from discreet.core.files import finite, sync_path, write_all
from discreet.core.guarantee import Guarantee
from discreet.core.types import Leakage, Trial

NAME = "trials.jsonl"
_LOCK = "sweep.lock"


class Store:
    """An append-only file of trials, locked for one sweep at a time.

    A line is written and synced before the trial counts as done. A last line that a crash left incomplete is removed
    when the store is opened again.

    Guarantee: none, trials may hold texts that attacks read; keep the folder as private as the corpus.
    """

    def __init__(self, folder: Path) -> None:
        """Open the store of a folder for writing, and remove an incomplete last line."""
        self.path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise OutputError(
                f"Expected no other sweep in {str(folder)!r}. One is running; wait for it, or choose another folder."
            ) from None
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        sync_path(folder)  # both may be new
        lines, whole = _lines(self.path)
        if whole < os.fstat(self._file).st_size:
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        self.keys = {str(line["key"]) for line in lines}

    def append(self, key: str, trial: Trial) -> None:
        """Write one trial, unless its key is there already."""
        if key in self.keys:
            return
        text = json.dumps({"key": key, **trial_as_dict(trial)}, ensure_ascii=False, allow_nan=False)
        data = text.encode() + b"\n"
        write_all(self._file, data)  # a full disk may take part of a line, which is removed when the store is opened
        os.fsync(self._file)
        self.keys.add(key)

    def close(self) -> None:
        """Close the file and release its lock."""
        for handle in (self._file, self._lock):
            os.close(handle)

    def __enter__(self) -> Store:
        """Return the open store."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()


def read_trials(folder: Path) -> dict[str, Trial]:
    """Return the trials of a folder by key; an incomplete last line is left out."""
    if not (folder / NAME).exists():
        raise DataError(f"Expected trials in {str(folder)!r}. There is no {NAME}; run `discreet calibrate` first.")
    trials: dict[str, Trial] = {}
    for number, line in enumerate(_lines(folder / NAME)[0], start=1):
        try:
            trials.setdefault(str(line["key"]), trial_of(line))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(f"Expected a trial in line {number} of {NAME}, got another: {shown(error)}.") from None
    return trials


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines of a file and their size in bytes; only the last line may be incomplete."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"Expected to read {str(path)!r}. {error.strerror}; check the folder.") from None
    pieces = data.split(b"\n")
    rest = pieces.pop()
    whole = len(data) - len(rest)
    lines: list[dict[str, Any]] = []
    for number, piece in enumerate(pieces, start=1):
        try:
            line = json.loads(piece)
            if not isinstance(line, dict) or "key" not in line:
                raise ValueError("no key")
        except (ValueError, RecursionError):
            if number == len(pieces) and not rest:
                return lines, whole - len(piece) - 1
            raise DataError(
                f"Expected a trial in line {number} of {path.name}, got something else. A crash can only damage the "
                "last line: the file was changed by hand or the disk is failing. Remove the line; its trial runs again."
            ) from None
        lines.append(line)
    return lines, whole


def trial_as_dict(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain values for JSON."""
    return {
        "settings": dict(trial.settings),
        "seed": trial.seed,
        "utility": finite(trial.utility),
        "leakages": [finite(vars(leakage)) for leakage in trial.leakages],
        "guarantee": None if trial.guarantee is None else trial.guarantee.as_dict(),
        "seconds": trial.seconds,
        "bytes": trial.bytes,
        "details": finite(trial.details),
    }


def trial_of(line: Mapping[str, Any]) -> Trial:
    """Return a trial from plain values."""
    protection = line["settings"]["protect"]
    if not isinstance(protection, dict):
        raise TypeError(f"protect={shown(protection)}")
    utility, details = dict(line["utility"]), line.get("details", {})
    if not isinstance(details, dict) or not all(_is_number(value) for value in utility.values()):
        raise TypeError("utility or details have another type")
    return Trial(
        settings=line["settings"],
        seed=int(line["seed"]),
        utility=utility,
        leakages=tuple(_leakage_of(values) for values in line["leakages"]),
        guarantee=None if line["guarantee"] is None else Guarantee.from_dict(line["guarantee"]),
        seconds=float(line["seconds"]),
        bytes=int(line["bytes"]),
        details=details,
    )


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf)


def _leakage_of(values: Mapping[str, Any]) -> Leakage:
    leakage = Leakage(**values)
    numbers = (leakage.value, leakage.low, leakage.high, leakage.chance)
    if not isinstance(leakage.metric, str) or type(leakage.n) is not int or not all(_is_number(x) for x in numbers):
        raise TypeError(f"leakage={shown(dict(values))}")
    return leakage
