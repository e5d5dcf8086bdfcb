"""The first screen of a report: the answer, the release, the people, the attacker, what is proven, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from discreet.catalog import ATTACKS
from discreet.core.guarantee import in_digits, neighbours
from discreet.core.types import MODEL, TRAINING
from discreet.metrics.table import METRICS, label_of
from discreet.metrics.utility import LOWER_IS_BETTER
from discreet.releases.description import GRADIENT, REPRESENTATION, TEXT
from discreet.report.command import Command, train_command
from discreet.report.words import (
    caveats_of,
    ceiling_words,
    constant_words,
    may_keep_goal,
    measured_on,
    percent,
    percent_at_most,
    price,
    released,
    size_words,
    unmeasured_goal,
    unproven,
    verdict_of,
    why_unproven,
)
from discreet.study.file import Goal
from discreet.study.frontier import Measured, Point, proven_limit, safe_limit
from discreet.study.grid import STRENGTHS
from discreet.study.result import StudyResult

CAVEATS = "Caveats"  # the name of their row
MOST = 4  # attacks on the first screen; all are in the tables below
_RECEIVERS = {
    TRAINING: "a server, or anyone else who watches the training; everyone who gets the model",
    MODEL: "everyone who can query or download the model",
    GRADIENT: "the server that receives the update; the rule does not cover further updates or the trained model",
    REPRESENTATION: "the server that receives the vectors; the rule does not cover further vectors or the trained "
    "model",
    TEXT: "everyone who gets the texts",
}
_NOISES = ("noise_multiplier", "kappa", "std", "scale", "sigma", "epsilon_per_word", "epsilon_per_message")


class Answer(StrEnum):
    """Whether a study has a setting that keeps its rule; open if it has no rule, or nothing to judge it by."""

    YES = "yes"
    NO = "no"
    OPEN = "open"


@dataclass(frozen=True)
class Row:
    """A question that the first screen answers, in one line or several."""

    name: str
    lines: tuple[str, ...]
    status: str = ""  # proven or estimate, the class of its badge


@dataclass(frozen=True)
class Brief:
    """The first screen: the answer, a sentence with its reason, the rows below, and the next step.

    `caveats` is the one list of what limits the recommendation; it is also the last of the rows. `command` trains the
    recommended setting for release; None where none is recommended.
    """

    answer: Answer
    sentence: str
    rows: tuple[Row, ...]
    step: str
    caveats: tuple[str, ...] = ()
    command: Command | None = None


def brief_of(result: StudyResult) -> Brief:
    """Return the first screen of a study's report.

    Args:
        result: The result of a study.
    """
    answer, sentence = _answer(result)
    shown = result.recommended or _subject(result)
    rows = [
        Row("Released", (_what(result, shown),)),
        Row("To whom", (_to_whom(result, shown),)),
        Row("About whom", (people(result.points, shown),)),
        *_attacker(result, shown),
        Row("Proven", tuple(_proven(result, shown)), _badge(shown)),
        Row("Only measured", tuple(_measured(result, shown)), "estimate"),
        Row("Noise", (noise_words(shown),)),
    ]
    caveats = caveats_of(result)
    if caveats:
        rows.append(Row(CAVEATS, caveats))
    if result.recommended is None:
        return Brief(answer, sentence, tuple(rows), _without_recommendation(result), caveats)
    command = train_command(result.study, result.recommended.protection)
    step = "The trials drew their noise from fixed seeds: train the model for release with noise from a secret seed:"
    if result.recommended.name == "none":
        step = "Train the model. It has no protection:"
    if command.missing:
        step += f" (no option sets {', '.join(command.missing)}; train from Python to set it)"
    return Brief(answer, sentence, tuple(rows), step, caveats, command)


def _subject(result: StudyResult) -> Point:
    """Return the setting that the first screen describes where none is recommended: the closest to the rule."""
    protected = [point for point in result.points if point.name != "none"] or list(result.points)
    goal = result.goal
    having = [point for point in protected if goal is not None and goal.leakage in point.leakage]
    if goal is None or not having:
        return protected[-1]
    return min(having, key=lambda point: safe_limit(point.leakage[goal.leakage]))


def _answer(result: StudyResult) -> tuple[Answer, str]:
    goal, chosen = result.goal, result.recommended
    if goal is None:
        return Answer.OPEN, "No answer: the study has no goal, so nothing decides between its settings."
    if chosen is None:
        if unmeasured_goal(result.points, goal):
            return Answer.OPEN, "No answer: the trials do not measure what the goal is about."
        if may_keep_goal(result):
            return Answer.OPEN, f"No answer: {why_unproven(unproven(result))}."
        count = len(result.points)
        which = "the one setting tried does not keep" if count == 1 else f"none of the {count} settings tried keeps"
        return Answer.NO, f"No: {which} the rule and is useful. {_rule(result, goal)}"
    how = "without protection" if chosen.name == "none" else f"with {chosen.label}"
    return Answer.YES, f"Yes, {how}: {_claim(result, goal, chosen)}"


def _rule(result: StudyResult, goal: Goal) -> str:
    what = f"{_subject_of(goal)} in at most {ceiling_words(goal.ceiling)}" if goal.ceiling is not None else ""
    what = what or _floor_words(result.utility, goal)
    return f"The rule: {what}, for {released(goal.scope, _subject(result))}."


def _floor_words(utility: str, goal: Goal) -> str:
    """Return the floor of a goal in words: of an error, it is the most that is accepted."""
    return f"{utility} of at {'most' if utility in LOWER_IS_BETTER else 'least'} {goal.floor:g}"


def _subject_of(goal: Goal) -> str:
    attack, _, metric = goal.leakage.partition("/")
    return f"{attack}, {label_of(metric)},"


def _claim(result: StudyResult, goal: Goal, chosen: Point) -> str:
    leakage = chosen.leakage[goal.leakage]
    proven = proven_limit(leakage, goal)
    rule = f"your ceiling is {ceiling_words(goal.ceiling)}" if goal.ceiling is not None else ""
    rule = rule or f"the least of the settings with {_floor_words(result.utility, goal)}"
    attack, _, metric = goal.leakage.partition("/")
    if proven is not None:
        limit = percent_at_most(proven)
        where = released(goal.scope, chosen)
        if goal.identifies:
            deed = f"identify the right one of {_candidates(chosen)}"
            return f"no attack on {where} can {deed} in more than {limit} of cases ({rule})."
        return f"{label_of(metric)}: at most {limit} for every attack on {where} ({rule})."
    limit = percent_at_most(safe_limit(leakage))
    return (
        f"{attack} reached {percent(leakage.value)}, at most {limit} ({label_of(metric)}; {rule}). This is measured, "
        "not proven: a better attack may do better."
    )


def _candidates(point: Point) -> str:
    count = _facts(point, "one-of-n").get("release", {}).get("candidates")
    return f"{count} candidate texts" if count else "the candidate texts"


def _facts(point: Point, attack: str) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = (point.trials[0].details.get("attacks") or {}).get(attack) or {} if point.trials else {}
    return facts


def _goal_facts(result: StudyResult, point: Point) -> tuple[str, Mapping[str, Any]]:
    """Return the attack of the goal, or else the first attack on a setting, and what its trial recorded."""
    every = (point.trials[0].details.get("attacks") or {}) if point.trials else {}
    named = "" if result.goal is None else result.goal.leakage.partition("/")[0]
    name = named if named in every else next(iter(every), named)
    return name, every.get(name) or {}


def _what(result: StudyResult, point: Point) -> str:
    _, facts = _goal_facts(result, point)
    kind = (facts.get("release") or {}).get("kind")
    if result.goal is not None and (result.goal.scope in (TRAINING, MODEL) or kind == GRADIENT):
        updates = released(result.goal.scope, point)
        if result.goal.scope != TRAINING:
            return updates
        noisy = "" if point.name == "none" else f", after {point.name}"
        what = f" (the summed gradients of every step{noisy})" if kind == GRADIENT else ""
        return f"{updates}{what}, and the trained model"
    if kind == REPRESENTATION:
        return "sentence vectors" + ("" if point.name == "none" else f" after {point.name}")
    return released(MODEL, None) if kind is None else released(TRAINING, point)


def _to_whom(result: StudyResult, point: Point) -> str:
    _, facts = _goal_facts(result, point)
    kind = (facts.get("release") or {}).get("kind", MODEL)
    if result.goal is not None and result.goal.scope in (TRAINING, MODEL):
        return _RECEIVERS[result.goal.scope]
    return _RECEIVERS.get(kind, _RECEIVERS[MODEL])


def people(points: Sequence[Point], shown: Point) -> str:
    """Return how many people the training is about, and the number of their texts, as far as the trials record it."""
    every = [trial for point in (shown, *points) for trial in point.trials]
    units = next((trial.details["units"] for trial in every if trial.details.get("units")), None)
    rows = next((roc["members"] for trial in every if (roc := trial.details.get("roc")) and "members" in roc), None)
    guarantees = [trial.guarantee for trial in every if trial.guarantee is not None]
    unit = guarantees[0].unit if guarantees else "text"
    if units is None:
        return f"every {unit} of the training data; their number is not recorded in these trials"
    texts = f", with {rows:,} training texts" if rows is not None and rows != units else ""
    alone = f"; each {unit} counts as a person of its own" if unit in {"row", "text", "record"} else ""
    return f"{units:,} {unit}{'' if units == 1 else 's'}{texts}{alone}"


def _attacker(result: StudyResult, point: Point) -> list[Row]:
    name, facts = _goal_facts(result, point)
    if not name:
        return []
    entry = ATTACKS.known(name)
    about = f"{name}. {entry.help}" if entry is not None else f"{name}."
    given = (facts.get("release") or {}).get("given")
    knows = f"It knows: {'; '.join(given)}." if given else ""
    return [Row("Attacker", tuple(line for line in (about, knows) if line))]


def _badge(point: Point) -> str:
    guarantee = point.guarantee
    return "proven" if guarantee is not None and guarantee.exists and guarantee.certified else "none"


def _proven(result: StudyResult, point: Point) -> list[str]:
    guarantee, lines = point.guarantee, []
    if guarantee is None or not guarantee.exists:
        return ["nothing: the training has no guarantee"]
    if not guarantee.certified:
        return [f"nothing: epsilon {in_digits(guarantee.epsilon)} is an estimate, because {guarantee.reason}"]
    lines.append(
        f"epsilon {in_digits(guarantee.epsilon)}, delta {in_digits(guarantee.delta, 2)} for each {guarantee.unit} "
        f"over the whole training ({size_words(guarantee.epsilon)}; {guarantee.adjacency}: "
        f"{neighbours(guarantee.adjacency, guarantee.unit)})"
    )
    goal = result.goal
    if goal is not None and goal.leakage in point.leakage:
        bound = point.leakage[goal.leakage].bound
        if bound is not None:
            limit = percent_at_most(bound)
            line = f"every attack: {label_of(goal.leakage.partition('/')[2])} at most {limit}"
            if goal.identifies:
                line = f"every attack: identifies the right one of {_candidates(point)} in at most {limit} of cases"
            lines.append(line)
    return lines


def _measured(result: StudyResult, point: Point) -> list[str]:
    lines = []
    if result.utility in point.utility:
        useful = point.utility[result.utility]
        open_point = next((one for one in result.points if one.name == "none"), None)
        against = constant_words(useful, result.utility)
        lost = price(open_point, point, result.utility)
        rows = "" if useful.n is None else f"; {useful.n:,} held-out rows"
        own = f"{result.utility} {useful.value:.3f} (95% interval {useful.low:.3f} to {useful.high:.3f}{rows})"
        lines.append("; ".join(part for part in (own, lost, against) if part))
    # the goal's leakage first, then the largest of each other attack
    names = [name for name in result.leakages if name in point.leakage]
    first = [] if result.goal is None else [name for name in names if name == result.goal.leakage]
    worst: dict[str, str] = {}
    for name in names:
        attack = name.partition("/")[0]
        if attack not in worst or point.leakage[name].value > point.leakage[worst[attack]].value:
            worst[attack] = name
    others = [name for attack, name in worst.items() if not any(one.partition("/")[0] == attack for one in first)]
    lines += [_leak(name, point.leakage[name]) for name in [*first, *others][:MOST]]
    return lines


def _leak(name: str, measured: Measured) -> str:
    attack, _, metric = name.partition("/")
    chance = "" if measured.chance is None else f"; chance {percent(measured.chance)}"
    share = metric not in METRICS or measured.high <= 1
    value = percent(measured.value) if share else f"{measured.value:.2f}"
    limits = f"{percent(measured.low)} to {percent(measured.high)}" if share else ""
    limits = limits or f"{measured.low:.2f} to {measured.high:.2f}"
    return f"{attack}: {label_of(metric)}: {value} (95% interval {limits}{chance}; {measured_on(name, measured)})"


def noise_words(point: Point) -> str:
    """Return the noise of a setting in words: as solved for a budget where the trials record it.

    >>> noise_words(Point("none", {"name": "none"}, {}, {}, None))
    'none'
    """
    if point.name == "none":
        return "none"
    solved = point.trials[0].details.get("protection") if point.trials else None
    facts = {**point.protection, **(solved or {})}
    numbers = {name: facts[name] for name in _NOISES if isinstance(facts.get(name), int | float)}
    asked = point.protection.get("epsilon")
    because = f", solved for epsilon {asked:g}" if isinstance(asked, int | float) else ""
    if "noise_multiplier" in numbers:
        multiplier, norm = numbers["noise_multiplier"], facts.get("clip_norm")
        size = f" of {norm:g}" if isinstance(norm, int | float) else ""
        return (
            f"noise multiplier {multiplier:.4g}{because}: on the sum of every step, Gaussian noise with a standard "
            f"deviation of {multiplier:.4g} times the clipping norm{size}"
        )
    if not numbers:
        numbers = {name: facts[name] for name in STRENGTHS if isinstance(facts.get(name), int | float)}
    if not numbers:
        return f"that of {point.label}"
    words = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in numbers.items())
    mechanism = f" ({facts['mechanism']})" if isinstance(facts.get("mechanism"), str) else ""
    return words + mechanism + (because if "epsilon" not in numbers else "")


def _without_recommendation(result: StudyResult) -> str:
    """Return what to do where no setting is recommended."""
    if result.goal is None:
        return "Add a ceiling on leakage, or a floor on utility, to [goal] of the study, and write the report again."
    return verdict_of(result)[1]
