"""Digests that a finished release records about its own files, so an edit of one of them is noticed.

The file that states the guarantee holds, under `digests`, the SHA-256 of every file that belongs to the release, the
number of spends and the last check of every ledger, and the SHA-256 of its own other values.

Whoever edits all files consistently can compute the digests again: against that, sign the file that holds them.

Guarantee: none is needed; a digest is a function of what is released.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discreet.core.errors import ModelError

DIGESTS = "digests"
FILES, LEDGERS, VALUES = "files", "ledgers", "values"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, which is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def with_digests(
    values: Mapping[str, Any],
    files: Mapping[str, Path],
    ledgers: Mapping[str, tuple[int, str]] | None = None,
) -> dict[str, Any]:
    """Return the values of a JSON file with the digests of the files of a release, by the names that they have there.

    `ledgers` has, by name, the number of spends and the check of the last line of each ledger.
    """
    plain: dict[str, Any] = json.loads(json.dumps({name: value for name, value in values.items() if name != DIGESTS}))
    digests: dict[str, Any] = {
        FILES: {name: sha256(files[name]) for name in sorted(files)},
        LEDGERS: {name: {"spends": spends, "check": check} for name, (spends, check) in (ledgers or {}).items()},
    }
    return {**plain, DIGESTS: {**digests, VALUES: _digest(plain, digests)}}


def check_digests(values: Mapping[str, Any], path: Path, files: Mapping[str, Path] | None = None) -> None:
    """Raise if values or files differ from the digests in the JSON file at `path`, or if it has none.

    Names of files are relative to its folder, unless `files` says where they are. The ledgers are left to the caller,
    who reads them.
    """
    digests = values.get(DIGESTS)
    if digests is None:
        raise ModelError(
            f"Expected {DIGESTS!r} in {str(path)!r}, which are written with every guarantee, got none. The file was "
            "edited; restore it, or make the release again."
        )
    try:
        recorded, own = {FILES: dict(digests[FILES]), LEDGERS: dict(digests[LEDGERS])}, digests[VALUES]
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"Expected digests of files and values in {str(path)!r}. Restore the file.") from None
    now = _digest({name: value for name, value in values.items() if name != DIGESTS}, recorded)
    if own != now:
        raise ModelError(
            f"Expected the values of {str(path)!r} to have the SHA-256 {_short(own)} that it recorded when it was "
            f"written, got {_short(now)}. It was edited; restore it."
        )
    for name, recorded_digest in recorded[FILES].items():
        file = (files or {}).get(name, path.parent / name)
        found = sha256(file) if file.is_file() else None
        if found != recorded_digest:
            got = "no file" if found is None else _short(found)
            raise ModelError(
                f"Expected {str(file)!r} to have the SHA-256 {_short(recorded_digest)} that {path.name} records, got "
                f"{got}. It is not the file that was released; restore it."
            )


def recorded_ledger(values: Mapping[str, Any], name: str) -> tuple[int, str] | None:
    """Return the number of spends and the last check that were recorded of a ledger, or None."""
    recorded = (values.get(DIGESTS) or {}).get(LEDGERS, {}).get(name)
    return None if recorded is None else (int(recorded["spends"]), str(recorded["check"]))


def _digest(values: Mapping[str, Any], digests: Mapping[str, Any]) -> str:
    text = json.dumps([values, digests], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _short(digest: object) -> str:
    return f"{str(digest)[:12]}…"
