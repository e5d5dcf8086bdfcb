"""The tables of a report: settings, leakages by attack, the epsilon of every release, and guarantees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from discreet.core.guarantee import in_digits
from discreet.metrics.utility import LOWER_IS_BETTER
from discreet.releases.description import describe_release
from discreet.report.brief import noise_words
from discreet.report.words import of_rows
from discreet.study.file import Goal
from discreet.study.frontier import Point, frontier, keeps_floor, limit_for, no_better_than_constant
from discreet.study.result import StudyResult

ROWS = 12  # settings in the first table; with more of them it has those on the frontier, and the others are folded


def first_points(result: StudyResult) -> list[Point]:
    """Return the settings of the first table: all, or of many the unprotected, the recommended and the best."""
    if len(result.points) <= ROWS:
        return list(result.points)
    name = result.goal.leakage if result.goal is not None else next(iter(result.leakages), "")
    best = frontier(result.points, name, result.utility)
    wanted = [point for point in result.points if point.name == "none"][:1]
    wanted += [] if result.recommended is None else [result.recommended]
    wanted += [point for point in best if not any(point is one for one in wanted)]
    wanted = wanted[:ROWS]
    return [point for point in result.points if any(point is one for one in wanted)]


def setting_rows(result: StudyResult, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the rows of a table of settings: the name, the guarantee, the utility, the leakage, and whether it is
    under the ceiling.
    """
    open_point = next((point for point in result.points if point.name == "none"), None)
    return [
        {
            "point": point,
            "chosen": point is result.recommended,
            "why": why_other_epsilon(point, result.points),
            "noise": noise_words(point),
            "price": difference(open_point, point, result.utility),
            "kept": _kept(point, result.goal, result.utility),
        }
        for point in points
    ]


def shared_baseline(result: StudyResult) -> str:
    """Return the number of rows and the constant answer's utility in words if all settings share them, or an empty
    text.
    """
    measured = [point.utility[result.utility] for point in result.points if result.utility in point.utility]
    words = {of_rows(one, result.utility) for one in measured}
    return words.pop() if len(words) == 1 else ""


def difference(open_point: Point | None, point: Point, utility: str) -> str:
    """Return how far a utility is below or above that without protection, in few words for a table."""
    if open_point is None or open_point is point or utility not in open_point.utility or utility not in point.utility:
        return ""
    change = point.utility[utility].value - open_point.utility[utility].value
    return f"{abs(change):.3f} {'below' if change < 0 else 'above'} none"


def _kept(point: Point, goal: Goal | None, utility: str) -> str:
    """Return whether a setting keeps the rule of a goal, and if not why."""
    if goal is None or goal.leakage not in point.leakage or utility not in point.utility:
        return ""
    if no_better_than_constant(point.utility[utility], utility):
        return "no: useless"
    if goal.ceiling is not None:
        return "yes" if limit_for(point, goal) <= goal.ceiling else "no: leaks more"
    worse = "above the most accepted" if utility in LOWER_IS_BETTER else "below the floor"
    return "yes" if keeps_floor(point, goal, utility) else f"no: {worse}"


def why_other_epsilon(point: Point, points: Sequence[Point]) -> str:
    """Return why the epsilon of a setting's training is not the one that was asked for, or an empty text.

    The reasons are the assumptions of its guarantee that the guarantees of the other protections do not have.
    """
    asked, guarantee = point.protection.get("epsilon"), point.guarantee
    if guarantee is None or not guarantee.exists or not isinstance(asked, int | float):
        return ""
    if abs(guarantee.epsilon - asked) <= 0.005 * asked:
        return ""
    others = {text for one in points if one.guarantee and one.name != point.name for text in one.guarantee.assumptions}
    own = "; ".join(text for text in guarantee.assumptions if text not in others)
    less = "the training used less than its budget" if guarantee.epsilon < asked else ""
    return f"asked: {asked:g}" + (f"; {less or own}" if less or own else "")


def metrics_by_attack(result: StudyResult) -> list[dict[str, Any]]:
    """Return the leakages of every attack, so that each attack has a table of its own."""
    attacks: dict[str, list[str]] = {}
    for name in result.leakages:
        attacks.setdefault(name.partition("/")[0], []).append(name)
    return [{"attack": attack, "names": names} for attack, names in attacks.items()]


def blanks(result: StudyResult) -> tuple[dict[tuple[str, str], int], list[str]]:
    """Return the number of the footnote of every cell without a value, by setting and leakage, and the footnotes."""
    notes: list[str] = []
    cells: dict[tuple[str, str], int] = {}
    for point in result.points:
        skipped = point.trials[0].details.get("not_attacked") or {}
        for name in result.leakages:
            if name in point.leakage:
                continue
            why = str(skipped.get(name.partition("/")[0], "Not measured in this study."))
            if why not in notes:
                notes.append(why)
            cells[point.label, name] = notes.index(why) + 1
    return cells, notes


def adjacency_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the epsilon of every attacked release under each adjacency, one row per setting and attack."""
    rows = []
    for point in points:
        for attack, facts in point.trials[0].details.get("attacks", {}).items():
            columns, stated = facts.get("epsilon_by_adjacency") or {}, facts.get("guarantee") or {}
            rows.append(
                {
                    "why": _why_of_release(point, stated),
                    "estimate": not stated.get("certified", True),
                    "label": point.label,
                    "attack": attack,
                    "release": describe_release(facts.get("release", {})),
                    "columns": {name: columns.get(name) for name in ("add/remove", "zero-out", "replace-one")},
                }
            )
    return rows


def _why_of_release(point: Point, release: Mapping[str, Any]) -> str:
    """Return why the epsilon of an attacked release is not that of the training: another delta, unit or assumption."""
    guarantee = point.guarantee
    if guarantee is None or release.get("epsilon") is None:
        return ""
    parts = [] if release.get("certified", True) else [f"an estimate, not a bound, because {release.get('reason')}"]
    if release.get("delta") != guarantee.delta:
        parts.append(f"at delta {in_digits(release['delta'], 2)}, the training at {in_digits(guarantee.delta, 2)}")
    if release.get("unit") != guarantee.unit:
        parts.append(f"for each {release['unit']}, the training for each {guarantee.unit}")
    parts += [text for text in release.get("assumptions", ()) if text not in guarantee.assumptions]
    return "; ".join(parts)


def guarantees(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return each setting's guarantee as a sentence, grouped by assumptions, so that each of those is listed once."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for point in points:
        sentence, assumptions = "No guarantee: the training was not protected.", tuple[str, ...]()
        if point.guarantee is not None:
            sentence, assumptions = point.guarantee.sentence(assumptions=False), tuple(point.guarantee.assumptions)
        groups.setdefault(assumptions, []).append({"label": point.label, "sentence": sentence})
    return [{"assumptions": list(assumptions), "rows": rows} for assumptions, rows in groups.items()]
