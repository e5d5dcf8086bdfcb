"""How two golden records are compared: what must be equal, what may differ by rounding, and what is only wording.

Exact: integers, booleans, null, every figure under a key that names an epsilon or a delta, identifiers (strings without
a space), and the texts of corpora, guesses and sanitized files. Other floats may differ by 1e-6, relative or absolute.
Prose (a string with spaces that is no text of a corpus, or a list of such strings) must be there if it was there, but
may say something else; the figures in a verdict are compared. Keys must not vanish; new keys are allowed, new or
missing files are not. Masked values (times, paths, random names) are equal by construction.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

TOLERANCE = 1e-6
MISSING = "<missing>"
ANY = "*"  # of an intended change: whatever stands there
_EXACT_FLOATS = ("epsilon", "delta")
_TEXTS = {"truth", "guess", "text", "text_pair", "texts", "label", "labels", "name", "key", "lines", "classes", "unit"}
_FIGURES = {"verdict"}  # prose whose numbers are results
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Difference:
    """One place where two records disagree."""

    command: str
    path: str
    before: Any
    after: Any
    rule: str

    def __str__(self) -> str:
        """Return the difference as one line."""
        return f"{self.command}  {self.path}: {_short(self.before)} became {_short(self.after)} ({self.rule})"


@dataclass(frozen=True)
class Change:
    """A difference that is intended: `command` and `path` may be globs, `from` and `to` may be "*" for anything."""

    command: str
    path: str
    before: Any
    after: Any
    reason: str

    def allows(self, found: Difference) -> bool:
        """Return whether this change is the difference that was found."""
        return (
            fnmatchcase(found.command, self.command)
            and fnmatchcase(found.path, self.path)
            and _matches(self.before, found.before)
            and _matches(self.after, found.after)
        )


def read_changes(path: Path) -> list[Change]:
    """Return the intended changes of a TOML file; each must have a reason."""
    changes = []
    for table in tomllib.loads(path.read_text(encoding="utf-8")).get("change", []):
        if set(table) != {"command", "path", "from", "to", "reason"} or not str(table["reason"]).strip():
            raise SystemExit(f"Expected command, path, from, to and reason in each change of {path.name}, got {table}.")
        changes.append(Change(table["command"], table["path"], table["from"], table["to"], table["reason"]))
    return changes


def compare_records(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Return every difference between the results of the same commands, in their order."""
    again = {str(result["name"]): result for result in after}
    differences: list[Difference] = []
    for result in before:
        name = str(result["name"])
        if name not in again:
            differences.append(Difference(name, "", "a result", MISSING, "every command must run"))
            continue
        drawn = tuple(result.get("drawn", ()))
        for part in ("status", "json", "text", "files", "notes"):
            one, other = result.get(part, MISSING), again[name].get(part, MISSING)
            if part == "files":
                differences += _files(name, one, other, drawn)
            elif part == "notes":
                if one and not other:
                    differences.append(Difference(name, part, one, other, "notes on stderr must be there"))
            else:
                differences += (
                    Difference(name, path, was, became, rule)
                    for path, was, became, rule in compare(one, other, part, drawn)
                )
    return differences


def compare(
    before: Any, after: Any, path: str = "", drawn: Sequence[str] = (), key: str = "", exact: bool = False
) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield where two values disagree: path, before, after and the rule that is broken.

    `drawn` are globs of paths whose values come from secret randomness: they are compared in kind alone.
    """
    exact = exact or any(word in key for word in _EXACT_FLOATS)
    if after == MISSING or before == MISSING:
        if before != after:
            yield path, before, after, "must be present"
    elif any(fnmatchcase(path, glob) for glob in drawn):
        if _kind(before) != _kind(after):
            yield path, before, after, "must be of the same kind"
        elif isinstance(before, Mapping):
            for name in before:
                yield from compare(before[name], after.get(name, MISSING), f"{path}.{name}", drawn, name)
    elif key in _FIGURES:
        one, other = (sorted(_NUMBER.findall(" ".join(value))) for value in (before, after))
        if one != other:
            yield path, one, other, "the figures of a verdict must be equal"
    elif _is_prose(before, key):
        if not after or not (isinstance(after, str) or _all_strings(after)):
            yield path, before, after, "wording must be there"
    elif isinstance(before, Mapping):
        if not isinstance(after, Mapping):
            yield path, before, after, "must be of the same kind"
            return
        for name in before:
            yield from compare(before[name], after.get(name, MISSING), f"{path}.{name}", drawn, name, exact)
    elif isinstance(before, list):
        if not isinstance(after, list) or len(before) != len(after):
            yield path, before, after, "must be as long"
            return
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from compare(one, other, f"{path}.{number}", drawn, key, exact)
    elif not _same(before, after, exact):
        number = _is_number(before) and _is_number(after)
        rule = f"must agree to {TOLERANCE:g}" if number and not exact and _is_float(before, after) else "must be equal"
        yield path, before, after, rule


def _files(name: str, before: Mapping[str, Any], after: Mapping[str, Any], drawn: Sequence[str]) -> list[Difference]:
    found = [
        Difference(name, f"files.{file}", MISSING, after[file], "no other file must be written")
        for file in after
        if file not in before
    ]
    for file, one in before.items():
        other = after.get(file, MISSING)
        found += (
            Difference(name, *each) for each in compare(one, other, f"files.{file}", drawn, file.rpartition("/")[2])
        )
    return found


def settle(differences: Sequence[Difference], changes: Sequence[Change]) -> tuple[list[Difference], list[Change]]:
    """Return the differences that are not intended, and the intended changes that were not met."""
    left = [one for one in differences if not any(change.allows(one) for change in changes)]
    unmet = [change for change in changes if not any(change.allows(one) for one in differences)]
    return left, unmet


def _same(before: Any, after: Any, exact: bool) -> bool:
    if isinstance(before, bool) or isinstance(after, bool) or before is None or after is None:
        return before is after
    if _is_number(before) and _is_number(after):
        if math.isnan(before) or math.isnan(after):
            return math.isnan(before) and math.isnan(after)
        if exact or not _is_float(before, after):
            return bool(before == after)
        return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(before) is type(after) and before == after


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_float(*values: Any) -> bool:
    return any(isinstance(value, float) for value in values)


def _is_prose(value: Any, key: str) -> bool:
    """Return whether a value is wording: a string with spaces, or a list of them, that is no text of a corpus."""
    if key in _TEXTS:
        return False
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, str) and " " in one for one in value)
    return isinstance(value, str) and " " in value


def _all_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _kind(value: Any) -> str:
    return "number" if _is_number(value) else type(value).__name__


def _matches(intended: Any, found: Any) -> bool:
    return intended == ANY or found == intended or (_is_float(intended, found) and _same(intended, found, False))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
