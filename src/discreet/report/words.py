"""Describe the results of a study in sentences: the verdict, warnings, guarantees, and a glossary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from discreet.core.guarantee import Caveat, Guarantee, Strength, in_digits, strength, words_for_size
from discreet.core.types import MODEL, TRAINING, UPDATE
from discreet.metrics.table import is_rate, label_of
from discreet.study.file import Goal
from discreet.study.frontier import Measured, Point, limit_for, no_better_than_constant, proven_limit, safe_limit
from discreet.study.result import StudyResult

GREEN = 10.0  # the largest epsilon that is shown as protection
ENOUGH = 10  # texts; with fewer, one more text may change the verdict
GLOSSARY = {
    "attack": "A program that takes the part of a curious or hostile reader: it gets the release, and what such a "
    "reader could know besides, and guesses the private text.",
    "adjacency": "Which two data sets a guarantee compares: with and without a record (add/remove), with the record "
    "made empty (zero-out), or with the record exchanged for any other (replace-one). Figures under different "
    "adjacencies are not comparable.",
    "certified": "Proven: an upper limit for every attack, known or not, if the assumptions hold.",
    "chance": "The success of random guessing.",
    "delta": "A small probability with which the guarantee may fail; it should be far below one over the number of "
    "people.",
    "epsilon": "How much one person's presence can change the odds of anything that is released. 0 is nothing; 1 is a "
    "factor of e ≈ 2.7; up to 1 is strong, up to 10 moderate; above 10 the guarantee alone says little, and is not "
    "shown in green.",
    "estimate": "Measured with the attacks that were run on the texts that were used. A better attack may do better.",
    "frontier": "The settings that no other setting beats in both utility and leakage.",
    "interval": "A range that contains the true value in 95 of 100 repetitions. [0.4, 0.6] means: between 0.4 and 0.6.",
    "leakage": "How much an attack read, between nothing and everything.",
    "noise multiplier": "The spread of the added noise, relative to the largest contribution one person can make.",
    "release": "Exactly what leaves your control: a gradient, vectors, texts or a model. The attack sees this and "
    "nothing else that is private.",
    "ROUGE-L": "The share of words an attacker got right in the right order; 1 is the whole text.",
    "release (of a goal)": "The release that a ceiling limits: one update of a training run, all its updates, or the "
    "trained model. A bound for all updates also holds for the model, which follows from them; a bound for one update "
    "holds only for that update.",
    "trade-off (ROC) curve": "The share of training records that a test detects (its true-positive rate), for every "
    "false-positive rate.",
    "unit": "Whose privacy is counted: a text, a person with all their texts, or a client.",
    "utility": "How well the model does its task on texts it has not seen.",
    "well-behaved": "An attack whose success falls steadily as noise grows, so that it can serve as a reference.",
}


def metric_words(name: str) -> str:
    """Return an attack and its metric in words.

    >>> metric_words("dager/rouge_l")
    'dager: words read in the right order (ROUGE-L)'
    """
    attack, _, metric = name.partition("/")
    return f"{attack}: {label_of(metric)}"


def percent(value: float) -> str:
    """Return a share as a percentage, with more digits for small shares.

    >>> [percent(v) for v in (1.0, 0.943, 0.0478, 0.0004, 2e-12)]
    ['100%', '94%', '4.8%', '0.04%', '0%']
    """
    shown = 100 * value
    if shown >= 99.95 or shown < 1e-6:
        return f"{shown:.0f}%"
    return f"{shown:.0f}%" if shown >= 10 else f"{shown:.1f}%" if shown >= 1 else f"{shown:.2g}%"


def ceiling_words(share: float) -> str:
    """Return a share that the user chose as a percentage, with the digits that it has.

    >>> [ceiling_words(share) for share in (0.05, 0.125, 0.8)]
    ['5%', '12.5%', '80%']
    """
    return f"{100 * share:g}%"


def at_most(value: float, places: int = 3) -> str:
    """Return a bound with a number of decimal places, rounded up: a bound of 0.0421 is not a bound of 0.042.

    >>> [at_most(v) for v in (0.0421, 0.042, 1.0)]
    ['0.043', '0.042', '1.000']
    """
    return f"{math.ceil(value * 10**places * (1 - 1e-12)) / 10**places:.{places}f}"


def percent_at_most(value: float) -> str:
    """Return a bound as a percentage, rounded up.

    >>> [percent_at_most(v) for v in (1.0, 0.941, 0.0471, 0.000401, 0.2, 0.0)]
    ['100%', '95%', '4.8%', '0.041%', '20%', '0%']
    """
    shown = 100 * value
    places = 0 if shown >= 10 or shown == 0 else 1 if shown >= 1 else 1 - math.floor(math.log10(shown))
    return f"{float(at_most(shown, places)):g}%"


def measured_on(name: str, leakage: Measured) -> str:
    """Return the sample size of a leakage in words, and whether it is too small to rely on.

    >>> measured_on("lamp/rouge_l", Measured(0.0, 0.0, 0.975, seeds=1, n=1))
    'measured on one text only, too few to rely on'
    >>> measured_on("one-of-n/identified", Measured(0.02, 0.018, 0.022, seeds=1, n=20000))
    'measured in 20,000 draws'
    """
    if leakage.n is None:
        return "sample size not recorded"
    if name.partition("/")[2].startswith("identified"):
        return f"measured in {leakage.n:,} draws"
    text = "measured on one text only" if leakage.n == 1 else f"measured on {leakage.n:,} texts"
    return text if leakage.n >= ENOUGH else f"{text}, too few to rely on"


def interval(measured: Measured) -> str:
    """Return a mean with its interval."""
    return f"{measured.value:.3f} [{measured.low:.3f}, {measured.high:.3f}]"


def of_rows(measured: Measured, metric: str) -> str:
    """Return the number of rows of a utility and the utility of a constant answer, in words.

    >>> of_rows(Measured(0.8, 0.7, 0.9, seeds=2, n=240, chance=0.4), "accuracy")
    '240 rows over 2 seeds; always answering the most frequent class: 0.400'
    """
    rows = "number of rows not recorded" if measured.n is None else f"{measured.n:,} rows"
    over = f" over {measured.seeds} seeds" if measured.seeds > 1 else ""
    if measured.chance is None:
        return f"{rows}{over}; baseline not recorded"
    return f"{rows}{over}; {constant_words(measured, metric)}"


def constant_words(measured: Measured, metric: str) -> str:
    """Return the utility of a constant answer in words, or an empty text if it is not recorded.

    >>> constant_words(Measured(0.8, 0.7, 0.9, seeds=2, chance=0.4), "accuracy")
    'always answering the most frequent class: 0.400'
    """
    if measured.chance is None:
        return ""
    what = "always answering the most frequent class" if metric == "accuracy" else "a constant answer"
    return f"{what}: {measured.chance:.3f}"


def price(open_point: Point | None, point: Point, utility: str) -> str:
    """Return how much lower or higher a utility is than without protection, or an empty text if that is not measured.

    >>> def measured(value): return {"accuracy": Measured(value, value - 0.05, value + 0.05, seeds=1)}
    >>> bare, private = (Point(n, {"name": n}, measured(v), {}, None) for n, v in (("none", 0.857), ("ldp", 0.532)))
    >>> price(bare, private, "accuracy")
    '0.325 lower than without protection (0.857)'
    """
    if open_point is None or open_point is point or utility not in open_point.utility or utility not in point.utility:
        return ""
    bare, private = open_point.utility[utility], point.utility[utility]
    difference = private.value - bare.value
    which = "lower" if difference < 0 else "higher"
    apart = private.high < bare.low or bare.high < private.low
    unsure = "" if apart else "; their 95% intervals overlap"
    return f"{abs(difference):.3f} {which} than without protection ({bare.value:.3f}{unsure})"


def useless(points: Sequence[Point], utility: str) -> list[str]:
    """Return a warning for every setting that is not better, or not significantly better, than a constant answer."""
    warnings = []
    for point in points:
        measured = point.utility.get(utility)
        if measured is None or measured.chance is None:
            continue
        figures = f"{utility} {interval(measured)} on {of_rows(measured, utility)}"
        if no_better_than_constant(measured, utility):
            warnings.append(f"{point.label} is no better than a constant answer ({figures}). {_remedy(point)}")
        elif measured.low <= measured.chance <= measured.high:
            warnings.append(
                f"{point.label} is not significantly better than a constant answer ({figures}). Evaluate on more rows."
            )
    return warnings


def _remedy(point: Point) -> str:
    if point.guarantee is not None and point.guarantee.exists:
        return "It is never recommended; use more training units, or a larger epsilon."
    return "It is never recommended; train longer, or with a weaker protection."


def released(scope: str, point: Point | None) -> str:
    """Return the release of a goal in words."""
    steps = None if point is None or not point.trials else point.trials[0].details.get("steps")
    every = f"all {steps:,} updates of the training" if isinstance(steps, int) else "all updates of the training"
    if scope == MODEL:
        return f"the trained model (bounded by {every})"
    return every if scope == TRAINING else "one update"


def verdict_of(result: StudyResult) -> tuple[str, str, str]:
    """Return the verdict of a study in three sentences: the risk, the recommendation, and its cost and evidence.

    `caveats_of` says what limits it. The goal must be resolved: its leakage is that of the release it names.
    """
    open_point = next((p for p in result.points if p.name == "none"), None)
    return _risk(open_point), _advice(result), _cost(open_point, result.recommended, result.goal, result.utility)


def unmeasured_goal(points: Sequence[Point], goal: Goal) -> bool:
    """Return whether no trial measured the leakage of a goal."""
    return not any(goal.leakage in point.leakage for point in points)


def unproven(result: StudyResult) -> list[Point]:
    """Return the settings of which nothing can be proven, so no ceiling on 1-of-n, because epsilon is an estimate."""
    goal = result.goal
    if goal is None or goal.ceiling is None or not goal.identifies:
        return []
    known = [p for p in result.points if goal.leakage in p.leakage and p.leakage[goal.leakage].bound is None]
    return [p for p in known if p.guarantee is not None and p.guarantee.exists and not p.guarantee.certified]


def may_keep_goal(result: StudyResult) -> bool:
    """Return whether a useful setting is measured to keep the ceiling, and only a proof is missing."""
    goal, utility = result.goal, result.utility
    return goal is not None and any(
        utility in p.utility
        and not no_better_than_constant(p.utility[utility], utility)
        and p.leakage[goal.leakage].value <= (goal.ceiling or 0)
        for p in unproven(result)
    )


def why_unproven(points: Sequence[Point]) -> str:
    """Return of which settings nothing can be proven, and why."""
    because = "; ".join(dict.fromkeys(str(point.guarantee.reason) for point in points if point.guarantee is not None))
    whose = f"the guarantee{'s' if len(points) > 1 else ''} of {', '.join(point.label for point in points)}"
    return f"{whose} {'are estimates' if len(points) > 1 else 'is an estimate'}, because {because}"


def _name_classes(points: Sequence[Point]) -> str:
    """Return how a study names its classes, if they are why nothing can be proven of a setting."""
    if all(point.guarantee is None or Caveat.PRIVATE_CLASSES not in point.guarantee.caveats for point in points):
        return ""
    return (
        ". If the names of the classes were known without the data, set them in [data] of the study file "
        '(classes = ["A", "B"]), and run the study in another folder'
    )


def caveats_of(result: StudyResult) -> tuple[str, ...]:
    """Return everything that limits the recommendation of a study, in sentences; every output of a report shows all."""
    missing = len(result.failures)
    found = []
    if missing:
        trials, verb = ("trial", "is") if missing == 1 else ("trials", "are")
        found.append(f"{missing:,} {trials} failed in the last run and {verb} missing here.")
    chosen = result.recommended
    if chosen is None:
        return tuple(found)
    found += caveats(chosen, result.goal, result.utility)
    if chosen.guarantee is not None and chosen.guarantee.exists:
        found.append(result.choosing.sentence())
    return tuple(found)


def caveats(chosen: Point, goal: Goal | None, utility: str) -> list[str]:
    """Return what limits the recommendation of a setting, except how it was chosen, in sentences."""
    found = []
    guarantee = chosen.guarantee
    if guarantee is not None and guarantee.exists:
        if not guarantee.certified:
            found.append(f"Epsilon {in_digits(guarantee.epsilon)} is an estimate because {guarantee.reason}.")
        found.append(words_for_size(guarantee.epsilon).strip())
    if goal is not None and goal.leakage in chosen.leakage:
        leakage, attack = chosen.leakage[goal.leakage], goal.leakage.partition("/")[0]
        proven = proven_limit(leakage, goal)
        if proven is None and leakage.n is not None and leakage.n < ENOUGH:
            found.append(f"The leakage under {attack} was {measured_on(goal.leakage, leakage)}.")
        found.append(_stronger(chosen, goal, safe_limit(leakage) if proven is None else proven))
    found += useless([chosen], utility)
    return [text for text in found if text]


def _risk(point: Point | None) -> str:
    if point is None or not point.leakage:
        return "What an attacker reads without protection was not measured in this study."
    parts = []
    for name, leakage in sorted(point.leakage.items(), key=lambda item: -item[1].value):  # the worst first
        attack, _, metric = name.partition("/")
        if metric == "rouge_l":
            few = (
                ""
                if leakage.n is None or leakage.n >= ENOUGH
                else f" of {leakage.n} text{'s' if leakage.n > 1 else ''}"
            )
            parts.append(f"{attack} reads {percent(leakage.value)} of the words{few} in order, punctuation aside")
        elif metric in {"identified", "identity"}:
            chance = f" (chance {percent(leakage.chance)})" if leakage.chance is not None else ""
            parts.append(f"{attack} identifies the right text {percent(leakage.value)} of the time{chance}")
    if not parts:
        name, leakage = next(iter(point.leakage.items()))
        parts.append(f"{metric_words(name)} is {leakage.value:.2f}")
    return f"Without protection the release reveals the text: {'; '.join(parts[:3])}."


def _advice(result: StudyResult) -> str:
    points, chosen, goal, utility = result.points, result.recommended, result.goal, result.utility
    if goal is None:
        return "The study has no ceiling or floor, so nothing is recommended; the frontier shows the best trade-offs."
    what = metric_words(goal.leakage).replace(": ", " (", 1) + ")"
    if chosen is None:
        where = released(goal.scope, next((p for p in points if p.name != "none"), None))
        if unmeasured_goal(points, goal):
            return (
                f"Nothing is recommended: the goal is about {where}, and no trial measured that. Change the goal, or "
                "add an attack that measures it."
            )
        rule = f"{what} at most {percent(goal.ceiling)}" if goal.ceiling is not None else f"{utility} of {goal.floor:g}"
        rule += f", for {where}"
        vain = [
            p.label
            for p in points
            if goal.ceiling is not None
            and goal.leakage in p.leakage
            and utility in p.utility
            and limit_for(p, goal) <= goal.ceiling
        ]
        estimates = unproven(result)
        if estimates and may_keep_goal(result):
            return (
                f"No setting can be proven to keep the rule [{rule}]: epsilon is an estimate{_name_classes(estimates)}."
            )
        enough = _enough_noise(goal, result.noise)
        if estimates:
            enough += f". More noise alone proves nothing: {why_unproven(estimates)}{_name_classes(estimates)}"
        if vain:
            return (
                f"No setting is recommended for the rule [{rule}]: {', '.join(vain)} would keep it, but "
                f"{'is' if len(vain) == 1 else 'are'} no better than a constant answer{enough}."
            )
        unsure = "" if goal.identifies else _unsure(points, goal)
        if unsure:
            return f"No setting that was tried is shown to keep the rule [{rule}]: {unsure}."
        least = _least(points, goal)
        return (
            f"No setting that was tried keeps the rule [{rule}]{least}: do not release with any of them; try stronger "
            f"ones{enough}."
        )
    leakage = chosen.leakage[goal.leakage]
    proven = proven_limit(leakage, goal)
    limit = safe_limit(leakage) if proven is None else proven
    how = f"proven for every attack on {released(goal.scope, chosen)}"
    if proven is None:
        how = f"an estimate from the attack that was run, {measured_on(goal.leakage, leakage)}, on one release"
    metric = goal.leakage.partition("/")[2]
    counted = is_rate(metric)
    often, of = ("happens", " of the time") if counted else ("is", " on average")
    kept = f"under the ceiling of {percent(goal.ceiling)}" if goal.ceiling is not None else "the least of all useful"
    return (
        f"Recommended: {chosen.label}, with {utility} {interval(chosen.utility[utility])} "
        f"({of_rows(chosen.utility[utility], utility)}); "
        f"{what} {often} {percent(leakage.value)}{of}, at most {percent_at_most(limit)} ({kept}; {how})."
    )


def _least(points: Sequence[Point], goal: Goal) -> str:
    """Return the setting that is closest to a ceiling on 1-of-n, by its bound."""
    if not goal.identifies:
        return ""
    every = [(p.leakage[goal.leakage].bound, p.label) for p in points if goal.leakage in p.leakage]
    bounds = [(bound, label) for bound, label in every if bound is not None]
    if not bounds:
        return ""
    bound, label = min(bounds)
    return f" (the closest, {label}, allows {percent_at_most(bound)})"


def _enough_noise(goal: Goal, risk: Sequence[Mapping[str, Any]]) -> str:
    """Return the noise of dp-sgd that is proven to keep the ceiling for the release of the goal."""
    scope = UPDATE if goal.scope == UPDATE else TRAINING
    row = next((row for row in risk if row.get("scope", UPDATE) == scope), None)
    if row is None:
        return ""
    kept = row["certified"]
    return f"; for {kept['event']} a noise multiplier of {in_digits(kept['noise'])} is proven to keep it"


def _unsure(points: Sequence[Point], goal: Goal) -> str:
    """Return the setting that would keep the ceiling if it had been measured on more texts, and what to do."""
    if goal.ceiling is None:
        return ""
    every = [(p.leakage[goal.leakage], p.label) for p in points if p.name != "none" and goal.leakage in p.leakage]
    near = [(safe_limit(m), m.value, label, m) for m, label in every if m.value <= goal.ceiling < safe_limit(m)]
    if not near:
        return ""
    limit, value, label, measured = min(near, key=lambda each: each[:3])
    return (
        f"{label} reaches {percent(value)}, but that may be up to {percent_at_most(limit)} "
        f"({measured_on(goal.leakage, measured)}); attack more texts, or try stronger settings"
    )


def _stronger(chosen: Point, goal: Goal, limit: float) -> str:
    """Return a sentence about an attack that reads more than the rule allows under the chosen setting, or nothing."""
    most = limit if goal.ceiling is None else max(limit, goal.ceiling)
    metric = goal.leakage.partition("/")[2]
    others = [(m.value, name) for name, m in chosen.leakage.items() if name.partition("/")[2] == metric]
    value, name = max(others)
    if value <= most:
        return ""
    attack = name.partition("/")[0]
    return f"{attack} reaches {percent(value)} under this setting by the same metric: name {attack} in the goal."


def _cost(open_point: Point | None, chosen: Point | None, goal: Goal | None, utility: str) -> str:
    if chosen is None or goal is None:
        return "Measured leakage holds for these attacks and texts; only figures marked certified are proven."
    parts = []
    lost = price(open_point, chosen, utility)
    if lost:
        parts.append(f"{utility} {chosen.utility[utility].value:.3f} is {lost}")
    guarantee = chosen.guarantee
    if guarantee is not None and guarantee.exists:
        kind = "certified" if guarantee.certified else "estimated"
        parts.append(
            f"the whole training has {kind} epsilon {in_digits(guarantee.epsilon)} for each {guarantee.unit} "
            f"({guarantee.adjacency}; {size_words(guarantee.epsilon)})"
        )
    else:
        parts.append("nothing is guaranteed about the whole training")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def size_words(epsilon: float) -> str:
    """Return the strength of an epsilon, in the words of `discreet.core.guarantee.strength`.

    >>> [size_words(value) for value in (0.5, 8.0, 23610.0)]
    ['strong', 'moderate', 'no practical protection']
    """
    return str(strength(epsilon).value)


def badge_of(guarantee: Guarantee | None) -> str:
    """Return the CSS class of a guarantee's badge: green only if it is proven and epsilon is at most 10."""
    if guarantee is None or not guarantee.exists or strength(guarantee.epsilon) is Strength.NONE:
        return "none"
    return "proven" if guarantee.certified and guarantee.epsilon <= GREEN else "estimate"
