"""Utility against leakage over many trials: intervals over seeds, the frontier, and the best under a rule."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from discreet.core.checks import did_you_mean, refuse
from discreet.core.errors import SettingError
from discreet.core.guarantee import Guarantee
from discreet.core.types import Leakage, Trial
from discreet.metrics.intervals import wilson
from discreet.study.file import IDENTIFIED, OF_UPDATE, Goal
from discreet.study.grid import Name, names_of, strength_of

RATES = ("accuracy", "f1")
LOSSES = ("mean_squared_error",)  # the smaller the better


@dataclass(frozen=True)
class Measured:
    """A mean over seeds with its 95% interval; `chance` is what guessing reaches, for utility a constant answer."""

    value: float
    low: float
    high: float
    seeds: int
    n: int | None = None
    chance: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Point:
    """One setting of one protection, over its seeds."""

    label: str
    protection: Mapping[str, Any]
    utility: Mapping[str, Measured]
    leakage: Mapping[str, Measured]
    guarantee: Guarantee | None
    trials: tuple[Trial, ...] = field(repr=False, default=())
    variant: str = ""  # what it is a strength of, where the study has several of one protection

    @property
    def name(self) -> str:
        """The protection's name."""
        return str(self.protection["name"])

    @property
    def strength(self) -> tuple[str, float] | None:
        """The name and value of what says how strong the protection is."""
        found = strength_of(self.protection)
        return next(iter(found.items())) if found else None


def over_seeds(
    values: Sequence[float], intervals: Sequence[tuple[float, float]], bounds: tuple[float, float] | None = (0.0, 1.0)
) -> tuple[float, float, float]:
    """Return the mean of a few seeds and a 95% interval that holds the spread within a seed and between seeds.

    One seed has its own interval. Two have too little to tell their spread from: the interval holds both of theirs.
    Three or more have Student's interval of their mean, widened to the mean of their own intervals.

    >>> over_seeds([0.5, 0.6], [(0.4, 0.6), (0.5, 0.7)])
    (0.55, 0.4, 0.7)
    """
    mean = fmean(values)
    lows, highs = [low for low, _ in intervals], [high for _, high in intervals]
    if len(values) <= 2:
        return mean, min(*lows, mean), max(*highs, mean)
    from scipy.stats import t

    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    half = float(t.ppf(0.975, len(values) - 1)) * spread
    low, high = min(mean - half, fmean(lows)), max(mean + half, fmean(highs))
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return mean, min(low, mean), max(high, mean)


def points_of(trials: Iterable[Trial]) -> list[Point]:
    """Return the trials of each setting together, in the order in which the settings first appear."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(json.dumps(trial.settings["protection"], sort_keys=True), []).append(trial)
    names = names_of([group[0].settings["protection"] for group in groups.values()])
    return [
        _point(sorted(group, key=lambda trial: trial.seed), name)
        for group, name in zip(groups.values(), names, strict=True)
    ]


def _point(trials: Sequence[Trial], name: Name) -> Point:
    protection = trials[0].settings["protection"]
    utility: dict[str, Measured] = {}
    for metric in trials[0].utility:
        values = [trial.utility[metric] for trial in trials if trial.utility.get(metric) is not None]
        if values:
            having = [trial for trial in trials if trial.utility.get(metric) is not None]
            mean, low, high = over_seeds(
                values, [_own(metric, trial) for trial in having], (0.0, 1.0) if metric in RATES else None
            )
            rows = [trial.details.get("evaluated_rows") for trial in having]
            levels = [(trial.details.get("baselines") or {}).get(metric) for trial in having]
            known = [float(level) for level in levels if level is not None]
            utility[metric] = Measured(
                mean,
                low,
                high,
                len(values),
                n=sum(int(count) for count in rows if count) if all(rows) else None,
                chance=fmean(known) if len(known) == len(having) else None,
            )
    found: dict[str, list[tuple[Trial, Leakage]]] = {}
    for trial in trials:
        for one in trial.leakages:
            found.setdefault(scoped(trial, one.metric), []).append((trial, one))
    leakage = {metric: _leakage(metric, pairs) for metric, pairs in found.items()}
    guarantees = [trial.guarantee for trial in trials if trial.guarantee is not None]
    worst = max(guarantees, key=lambda g: g.epsilon) if len(guarantees) == len(trials) else None
    return Point(name.label, protection, utility, leakage, worst, tuple(trials), name.variant)


def scoped(trial: Trial, metric: str) -> str:
    """Return the name of a trial's leakage: trials of earlier versions identified from one update, and did not say."""
    return metric + OF_UPDATE if metric == IDENTIFIED and "scopes" not in trial.details else metric


def no_better_than_constant(found: Measured, metric: str) -> bool:
    """Whether a utility is at or below what a constant answer reaches, where that is known."""
    if found.chance is None:
        return False
    return found.value >= found.chance if metric in LOSSES else found.value <= found.chance


def _own(name: str, trial: Trial) -> tuple[float, float]:
    value, rows = trial.utility[name], trial.details.get("evaluated_rows")
    kept = (trial.details.get("intervals") or {}).get(name)
    if kept is not None:
        return min(float(kept[0]), value), max(float(kept[1]), value)
    if name == "accuracy" and rows:
        return wilson(round(value * rows), int(rows))
    return value, value


def _leakage(name: str, pairs: Sequence[tuple[Trial, Leakage]]) -> Measured:
    mean, low, high = over_seeds([found.value for _, found in pairs], [(found.low, found.high) for _, found in pairs])
    chances = [found.chance for _, found in pairs if found.chance is not None]
    bounds = [trial.details.get("bounds", {}).get(found.metric) for trial, found in pairs]
    known = [float(bound) for bound in bounds if bound is not None]
    return Measured(
        mean,
        low,
        high,
        len(pairs),
        n=sum(found.n for _, found in pairs),
        chance=fmean(chances) if chances else None,
        bound=max(known) if len(known) == len(pairs) else None,
    )


def frontier(points: Sequence[Point], leakage: str, utility: str) -> list[Point]:
    """Return the points that no other one beats in both utility and leakage, from least to most leakage."""
    known = [p for p in points if leakage in p.leakage and utility in p.utility]
    kept: list[Point] = []
    best = -math.inf
    for point in sorted(known, key=lambda p: (p.leakage[leakage].value, -p.utility[utility].value)):
        if point.utility[utility].value > best:
            kept.append(point)
            best = point.utility[utility].value
    return kept


def best(points: Sequence[Point], goal: Goal, utility: str) -> Point | None:
    """Return the point that a goal asks for, or nothing if none meets it.

    Under a ceiling a point counts if its leakage is surely not above it: for 1-of-n by the proven bound of the release
    that the goal names, for other attacks by the upper limit of what was measured. Above a floor it counts if the lower
    limit of its utility is not below it. A model that is no better than a constant answer never counts.
    """
    goal = goal.resolved()
    metric = goal.leakage
    known = [p for p in points if metric in p.leakage and utility in p.utility]
    if points and not known:
        names = sorted({name for p in points for name in p.leakage})
        raise unmeasured("goal.leakage", metric, names, _why_not(points, metric))
    known = [p for p in known if not no_better_than_constant(p.utility[utility], utility)]
    if goal.ceiling is not None:
        allowed = [p for p in known if limit_for(p, goal) <= goal.ceiling]
        return max(allowed, key=lambda p: p.utility[utility].value, default=None)
    assert goal.floor is not None
    useful = [p for p in known if p.utility[utility].low >= goal.floor]
    return min(useful, key=lambda p: (limit_for(p, goal), -p.utility[utility].value), default=None)


def unmeasured(key: str, asked: str, known: Sequence[str], why: str = "") -> SettingError:
    """Return the error for a goal that no trial was measured by, with the reason or the nearest name."""
    rule = f"measured in the trials: {', '.join(known) or 'nothing was'}"
    return refuse(key, asked, rule, why or did_you_mean(asked, known))


def _why_not(points: Sequence[Point], metric: str) -> str:
    """Return why the attack of a metric was not run, where the trials say so."""
    attack = metric.partition("/")[0]
    told = (trial.details.get("not_attacked", {}).get(attack) for p in points for trial in p.trials)
    why = next(filter(None, told), None)
    return "" if why is None else f"{attack} was not run: {why}"


def limit_for(point: Point, goal: Goal) -> float:
    """Return the most that a goal's leakage may be for a setting.

    For 1-of-n it is the proven bound; a protected setting without one may leak everything. Of other attacks nothing is
    proven, and their upper limit counts.
    """
    found = point.leakage[goal.leakage]
    if not goal.identifies:
        return safe_limit(found)
    return 1.0 if found.bound is None else found.bound


def safe_limit(found: Measured) -> float:
    """Return the most that a leakage may be: its proven bound or its upper limit, whichever is lower."""
    return found.high if found.bound is None else min(found.high, found.bound)
