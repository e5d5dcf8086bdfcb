"""The texts of a report: each with what an attack read of it under every setting, names and numbers first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from discreet.catalog import ATTACKS
from discreet.core.types import Trial
from discreet.releases.description import describe_release
from discreet.report.figures import series_of
from discreet.report.reading import personal, pieces
from discreet.study.frontier import Point
from discreet.study.result import StudyResult

TEXTS = 12  # the largest number of original texts of one attack, each with what was read under every protection
SHOWN = 3  # texts of one attack that are shown first; the others are folded


def readings(result: StudyResult) -> list[dict[str, Any]]:
    """Return original texts with what was read of each under every protection, and from which release."""
    groups: dict[tuple[str, str, int], dict[str, Any]] = {}
    for point in result.points:
        trial = point.trials[0]
        for text in trial.details.get("texts", ()):
            key = (str(text["attack"]), str(text["truth"]), trial.seed)
            if key not in groups and sum(other[0] == key[0] for other in groups) >= TEXTS:
                continue
            group = groups.setdefault(key, {"attack": key[0], "truth": key[1], "rows": []})
            row, rows = _reading(point, trial, text, result), group["rows"]
            if rows and rows[-1]["label"] == row["label"]:  # several guesses of one text: show the worst case
                rows[-1] = max(rows[-1], row, key=lambda one: float(one["share"]))
            else:
                rows.append(row)
    return list(groups.values())


def _reading(point: Point, trial: Trial, text: Mapping[str, Any], result: StudyResult) -> dict[str, Any]:
    facts = trial.details.get("attacks", {}).get(text["attack"], {})
    truth, guess = str(text["truth"]), str(text["guess"])
    kept = pieces(truth, guess)
    count = sum(len(piece.text.split()) for piece in kept if piece.right)
    read, of = personal(truth, guess)
    stopped = "; the search was stopped by the time limit" if facts.get("stopped_by_time_limit") else ""
    return {
        "label": point.label,
        "series": series_of(result.points)[point.name],
        "chosen": point is result.recommended,
        "truth": kept,
        "guess": pieces(guess, truth),
        "share": count / max(1, sum(len(piece.text.split()) for piece in kept)),
        "personal": read,
        "personal_of": of,
        "release": describe_release(facts.get("release", {})) + stopped,
    }


def by_attack(groups: Sequence[dict[str, Any]], result: StudyResult) -> list[dict[str, Any]]:
    """Return the readings of every attack: texts with many names and numbers read first, three of them apart.

    Of every text the rows without protection and under the recommended setting come first, the others after them. If no
    setting is recommended, the last protected one stands in for it.
    """
    attacks: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        rows = group["rows"]
        protected = [row for row in rows if row["label"] != "none"]
        pick = next((row for row in rows if row["chosen"]), protected[-1] if protected else None)
        first = [row for row in rows if row["label"] == "none" or row is pick]
        rest = [row for row in rows if not any(row is one for one in first)]
        most = max(len(row["personal"]) for row in rows)
        attacks.setdefault(group["attack"], []).append({**group, "first": first, "rest": rest, "most": most})
    return [
        {
            "attack": name,
            "label": name if (entry := ATTACKS.known(name)) is None else entry.label,
            "release": next((row["release"] for text in texts for row in text["rows"]), ""),
            "shown": (ordered := sorted(texts, key=lambda text: -text["most"]))[:SHOWN],
            "folded": ordered[SHOWN:],
        }
        for name, texts in attacks.items()
    ]
