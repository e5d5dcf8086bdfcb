"""Compare settings by utility and leakage: intervals over seeds, the frontier, and the best under a goal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.errors import SettingError, did_you_mean, invalid
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import Leakage, Trial
from discreet.metrics.utility import LOWER_IS_BETTER, is_better
from discreet.study.file import Goal
from discreet.study.grid import Name, names_of, strength_of

RATES = ("accuracy", "f1", "token_accuracy")


@dataclass(frozen=True)
class Measured:
    """A mean over seeds with its 95% interval.

    `chance` is the value without information: of a random guess, or for utility of a constant answer.
    """

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
    variant: str = ""  # the label without its strength, where the study has several variants of one protection

    @property
    def name(self) -> str:
        """The protection's name."""
        return str(self.protection["name"])

    @property
    def strength(self) -> tuple[str, float] | None:
        """The name and value of the parameter that sets how strong the protection is."""
        strengths = strength_of(self.protection)
        return next(iter(strengths.items())) if strengths else None

    @property
    def noise(self) -> tuple[str, float] | None:
        """The name and value of the noise: as solved for a budget in training, or else the strength."""
        solved = self.trials[0].details.get("protection") if self.trials else None
        for name in ("noise_multiplier", "kappa", "std", "scale"):
            if isinstance(solved, dict) and isinstance(solved.get(name), int | float):
                return name, float(solved[name])
        return self.strength


def over_seeds(
    values: Sequence[float], intervals: Sequence[tuple[float, float]], bounds: tuple[float, float] | None = (0.0, 1.0)
) -> tuple[float, float, float]:
    """Return the mean of a few seeds and a 95% interval that covers the spread within a seed and between seeds.

    One seed has its own interval. Two are too few to estimate their spread: the interval covers both of theirs. Three
    or more have Student's interval of their mean, widened to the mean of their own intervals.

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
    """Return one point per setting, from its trials, in the order in which the settings first appear."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(json.dumps(trial.settings["protect"], sort_keys=True), []).append(trial)
    names = names_of([group[0].settings["protect"] for group in groups.values()])
    return [
        _point(sorted(group, key=lambda trial: trial.seed), name)
        for group, name in zip(groups.values(), names, strict=True)
    ]


def _point(trials: Sequence[Trial], name: Name) -> Point:
    protection = trials[0].settings["protect"]
    utility = {
        metric: _utility(metric, having)
        for metric in trials[0].utility
        if (having := [trial for trial in trials if trial.utility.get(metric) is not None])
    }
    leakages: dict[str, list[tuple[Trial, Leakage]]] = {}
    for trial in trials:
        for leakage in trial.leakages:
            leakages.setdefault(leakage.metric, []).append((trial, leakage))
    guarantees = [trial.guarantee for trial in trials if trial.guarantee is not None]
    worst = max(guarantees, key=lambda g: g.epsilon) if len(guarantees) == len(trials) else None
    measured = {metric: _leakage(pairs) for metric, pairs in leakages.items()}
    return Point(name.label, protection, utility, measured, worst, tuple(trials), name.variant)


def _utility(metric: str, trials: Sequence[Trial]) -> Measured:
    mean, low, high = over_seeds(
        [trial.utility[metric] for trial in trials],
        [_utility_interval(metric, trial) for trial in trials],
        (0.0, 1.0) if metric in RATES else None,
    )
    rows = [trial.details.get("evaluated_rows") for trial in trials]
    levels = [(trial.details.get("baselines") or {}).get(metric) for trial in trials]
    known = [float(level) for level in levels if level is not None]
    return Measured(
        mean,
        low,
        high,
        len(trials),
        n=sum(int(count) for count in rows if count) if all(rows) else None,
        chance=fmean(known) if len(known) == len(trials) else None,
    )


def no_better_than_constant(utility: Measured, metric: str) -> bool:
    """Return whether a utility is at or below that of a constant answer, where that is known."""
    if utility.chance is None:
        return False
    return not is_better(metric, utility.value, utility.chance)


def _utility_interval(metric: str, trial: Trial) -> tuple[float, float]:
    value, rows = trial.utility[metric], trial.details.get("evaluated_rows")
    interval = (trial.details.get("intervals") or {}).get(metric)
    if interval is not None:
        return min(float(interval[0]), value), max(float(interval[1]), value)
    if metric == "accuracy" and rows:
        from scipy.stats import binomtest

        low, high = binomtest(round(value * rows), int(rows)).proportion_ci(method="wilson")
        return min(float(low), value), max(float(high), value)  # rounding must not exclude the rate
    return value, value


def _leakage(pairs: Sequence[tuple[Trial, Leakage]]) -> Measured:
    leakages = [leakage for _, leakage in pairs]
    mean, low, high = over_seeds([one.value for one in leakages], [(one.low, one.high) for one in leakages])
    chances = [one.chance for one in leakages if one.chance is not None]
    bounds = [trial.details.get("bounds", {}).get(leakage.metric) for trial, leakage in pairs]
    known = [float(bound) for bound in bounds if bound is not None]
    return Measured(
        mean,
        low,
        high,
        len(pairs),
        n=sum(one.n for one in leakages),
        chance=fmean(chances) if chances else None,
        bound=max(known) if len(known) == len(pairs) else None,
    )


def frontier(points: Sequence[Point], leakage: str, utility: str) -> list[Point]:
    """Return the points that no other one beats in both utility and leakage, from least to most leakage."""
    known = [p for p in points if leakage in p.leakage and utility in p.utility]
    kept: list[Point] = []
    best = -math.inf
    for point in sorted(known, key=lambda p: (p.leakage[leakage].value, -_gain(p, utility))):
        if _gain(point, utility) > best:
            kept.append(point)
            best = _gain(point, utility)
    return kept


def _gain(point: Point, utility: str) -> float:
    """Return the utility of a point, the larger the better."""
    value = point.utility[utility].value
    return -value if utility in LOWER_IS_BETTER else value


def best(points: Sequence[Point], goal: Goal, utility: str) -> Point | None:
    """Return the point that meets a goal best, or None if no point meets it.

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
        return max(allowed, key=lambda p: _gain(p, utility), default=None)
    useful = [p for p in known if keeps_floor(p, goal, utility)]
    return min(useful, key=lambda p: (limit_for(p, goal), -_gain(p, utility)), default=None)


def keeps_floor(point: Point, goal: Goal, utility: str) -> bool:
    """Return whether the utility of a point is surely not worse than the floor of a goal, if it has one."""
    if goal.floor is None:
        return True
    measured = point.utility[utility]
    return measured.high <= goal.floor if utility in LOWER_IS_BETTER else measured.low >= goal.floor


def unmeasured(key: str, name: str, known: Sequence[str], why: str = "") -> SettingError:
    """Return the error for a goal by which no trial was measured, with the reason or the nearest name."""
    rule = f"measured in the trials ({', '.join(known) or 'they measured nothing'})"
    return invalid(key, name, rule, why or did_you_mean(name, known))


def _why_not(points: Sequence[Point], metric: str) -> str:
    """Return why the attack of a metric was not run, where the trials say so."""
    attack = metric.partition("/")[0]
    reasons = (trial.details.get("not_attacked", {}).get(attack) for p in points for trial in p.trials)
    reason = next(filter(None, reasons), None)
    return "" if reason is None else f"{attack} was not run: {reason}"


def limit_for(point: Point, goal: Goal) -> float:
    """Return the upper limit of a goal's leakage for a setting.

    For 1-of-n it is the proven bound, and 1 where a protected setting has none. Of other attacks nothing is proven, and
    the upper limit of their interval counts.
    """
    leakage = point.leakage[goal.leakage]
    if not goal.identifies:
        return safe_limit(leakage)
    return 1.0 if leakage.bound is None else leakage.bound


def proven_limit(leakage: Measured, goal: Goal) -> float | None:
    """Return the proven bound of a leakage, or None if there is none or it exceeds the ceiling of a goal."""
    kept = leakage.bound is not None and (goal.ceiling is None or leakage.bound <= goal.ceiling)
    return leakage.bound if kept else None


def safe_limit(leakage: Measured) -> float:
    """Return the upper limit of a leakage: its proven bound or the end of its interval, whichever is lower."""
    return leakage.high if leakage.bound is None else min(leakage.high, leakage.bound)


@dataclass(frozen=True)
class WellBehaved:
    """Spearman's correlation of leakage with noise, its 95% interval, and the pairs that are significantly inverted."""

    correlation: float
    low: float
    high: float
    inversions: int
    pairs: int

    @property
    def steady(self) -> bool:
        """Whether leakage falls steadily: the whole interval is below -0.5 and no pair is inverted."""
        return self.high < -0.5 and self.inversions == 0


def well_behaved(noises: Sequence[float], leakages: Sequence[Measured], *, rng: Rng, draws: int = 2000) -> WellBehaved:
    """Return how steadily an attack's leakage falls as noise grows, which makes it usable as a reference attack.

    The interval resamples every leakage from a normal distribution with the spread of its own interval (a parametric
    bootstrap), so a curve that is flat within its error has an interval around 0. A pair is inverted if more noise
    goes with significantly more leakage: a difference over 1.96 of its standard errors, corrected for the number of
    pairs after Bonferroni.

    Paper: Faustini, Fernandes, McIver and Dras, Empirical calibration and metric differential privacy in language
        models: an attack is well-behaved if more noise means less reconstruction.
    Differs: the paper looks at the curves; here it is a correlation with its interval, and a count of the inversions
        that chance does not explain.

    >>> steps = [Measured(v, v - 0.02, v + 0.02, 1) for v in (0.9, 0.5, 0.2, 0.1)]
    >>> result = well_behaved([0.1, 0.2, 0.5, 1.0], steps, rng=Rng(0))
    >>> result.correlation, result.inversions, result.steady
    (-1.0, 0, True)
    """
    from scipy.stats import norm, rankdata

    if len(noises) != len(leakages) or len(noises) < 3:
        raise invalid("noises", len(noises), "at least 3, as many as leakages", "Two points cannot bend.")
    x = rankdata(noises)
    values = np.array([leakage.value for leakage in leakages])
    errors = np.array([max((leakage.high - leakage.low) / (2 * 1.96), 1e-12) for leakage in leakages])
    resampled = values + errors * rng.fork("bootstrap").numpy().standard_normal((draws, len(values)))
    correlations = np.array([_spearman(x, row) for row in rankdata(resampled, axis=1)])
    low, high = np.quantile(correlations, [0.025, 0.975])
    correlation = _spearman(x, rankdata(values))
    pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if x[i] < x[j]]
    limit = float(norm.ppf(1 - 0.025 / max(1, len(pairs))))
    inverted = sum((values[j] - values[i]) / math.hypot(errors[i], errors[j]) > limit for i, j in pairs)
    interval = min(float(low), correlation), max(float(high), correlation)
    return WellBehaved(correlation, *interval, int(inverted), len(pairs))


def _spearman(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    a, b = x - x.mean(), y - y.mean()
    length = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / length if length else 0.0
