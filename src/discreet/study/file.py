"""Read a study file: data, model, protections, attacks, seeds and goal; reject what could not run before it does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.catalog import (
    ATTACKS,
    PROTECTIONS,
    attack_class,
    attack_of,
    protection,
    protection_class,
    settings_of_protection,
)
from discreet.core.errors import SettingError, did_you_mean, invalid, one_of, shown
from discreet.core.rules import AtLeastOne, Different, OneOf, OpenProbability, Pattern, check_fields
from discreet.core.settings import as_dict, option, option_field, parse, read_values
from discreet.core.types import MODEL, RELEASES, TRAINING, UPDATE
from discreet.data.canaries import Planting
from discreet.data.sources import TextSource
from discreet.models.settings import LAYERS, ModelSettings, TrainSettings

if TYPE_CHECKING:
    from discreet.experiment.attack.request import AttackRequest
    from discreet.protections.base import Protection

Table = Mapping[str, Any]
IDENTIFIED = "one-of-n/identified"  # from all updates of the training
OF_UPDATE = "_update"  # ends the name of the same metric of one update
NONE = "none"
_STUDY, _GOAL, _RELEASE = "Study", "Goal", "Release"  # headings of keys
# The keys that a study may set for an attack besides the attack's own settings; they are fields of `AttackRequest`.
REQUEST_KEYS = {
    "examples": "Number of texts to attack.",
    "batch_size": "Number of texts in one release. TextHide mixes within a batch, and needs at least its `mix`.",
    "max_words": "Attack only texts of at most this many words.",
    "first_words": "For gradients: truncate texts to this many words before the release.",
    "seconds": "Time limit of each search; without it steps are counted, and figures are the same on every machine.",
    "metrics": "Metrics to compute.",
    "candidates": "Number of candidates.",
    "draws": "Simulated releases for each noise level.",
    "steps": "Number of releases of the same record, for 1-of-n and attacks on vectors.",
    "members": "Number of members, and of non-members, to ask about.",
    "references": "Number of reference models that the attacker trains.",
    "references_protected": "Train reference models under the protection of the trial.",
}


@dataclass(frozen=True)
class Goal:
    """The rule of a recommendation: the best utility under a ceiling of leakage, or the least leakage above a floor of
    utility.

    `leakage` names an attack and its metric, such as `one-of-n/identified`; `utility` a metric of the task. `release`
    is what the rule is about: one `update`, all updates of the whole `training`, or the final `model`, which follows
    from the updates, so that what holds for all of them holds for it.
    """

    leakage: str = field(
        metadata=option(
            "An attack and its metric, such as one-of-n/identified.",
            _GOAL,
            rule=Pattern("[^/]+/.+", "of the form ATTACK/METRIC", "For example one-of-n/identified."),
        )
    )
    ceiling: float | None = option_field(
        None,
        "Highest leakage: the setting with the best utility under it is recommended.",
        _GOAL,
        rule=OpenProbability("It is a share: 0.05 is 5%."),
    )
    utility: str | None = option_field(None, "Metric by which settings are compared.", _GOAL)
    floor: float | None = option_field(
        None, "Lowest utility: the setting with the least leakage above it is recommended.", _GOAL
    )
    release: str | None = option_field(
        None, "What is released: one update, all updates of the training, or the model.", _GOAL, rule=OneOf(RELEASES)
    )

    def __post_init__(self) -> None:
        """Reject a goal without a rule, or with a release that its attack does not read."""
        check_fields(self, "goal.")
        if (self.ceiling is None) == (self.floor is None):
            raise SettingError(
                "Expected either a ceiling or a floor in goal. A ceiling on leakage selects the best utility under "
                "it, a floor on utility the least leakage above it."
            )
        if self.release is not None:
            if self.of_model:
                if self.release != MODEL:
                    remedy = "The attack reads the trained model; leave the release out."
                    raise invalid("goal.release", self.release, f"{MODEL!r} for {self.leakage}", remedy)
            elif self.release != UPDATE and not self.identifies:
                remedy = "Only 1-of-n is measured on all updates of a training run; other attacks read one release."
                raise invalid("goal.release", self.release, f"{UPDATE!r} for {self.leakage}", remedy)
            if self.release != UPDATE and self.leakage.endswith(OF_UPDATE):
                raise invalid("goal.release", self.release, f"{UPDATE!r} for {self.leakage}", "Leave _update out.")

    @property
    def identifies(self) -> bool:
        """Whether the leakage is 1-of-n identification, which is measured on one update and on all updates."""
        return self.leakage in (IDENTIFIED, IDENTIFIED + OF_UPDATE)

    @property
    def of_model(self) -> bool:
        """Whether the leakage is that of an attack on the trained model."""
        entry = ATTACKS.known(self.leakage.partition("/")[0])
        return entry is not None and entry.sees == MODEL

    @property
    def scope(self) -> str:
        """The release of the rule; by default the whole training where the attack can be run on it."""
        if self.release is not None:
            return self.release
        if self.of_model:
            return MODEL
        return TRAINING if self.leakage == IDENTIFIED else UPDATE

    def resolved(self) -> Goal:
        """Return the goal with its release named, and its leakage as the trials name that of the release."""
        leakage = self.leakage
        if self.identifies:
            leakage = IDENTIFIED + (OF_UPDATE if self.scope == UPDATE else "")
        return replace(self, leakage=leakage, release=self.scope)


@dataclass(frozen=True)
class Study:
    """The values of a study file; a list among a protection's values is a grid.

    `canaries` are planted in the training text of every trial, for exposure.
    """

    name: str = field(metadata=option("Title of the report, unless there is a `title`.", _STUDY))
    data: dict[str, Any] = field(metadata=option("The text, as in `discreet train`.", _STUDY))
    protect: tuple[dict[str, Any], ...] = field(
        metadata=option(
            "The protections; a list among the values of one is a grid.",
            _STUDY,
            rule=AtLeastOne('Add [[protect]] with name = "none" to start with.'),
        )
    )
    attack: tuple[dict[str, Any], ...] = option_field((), "The attacks on every setting.", _STUDY)
    goal: Goal | None = option_field(None, "The rule of the recommendation.", _STUDY)
    seeds: tuple[int, ...] = option_field(
        (0,),
        "Random seeds; several give intervals.",
        _STUDY,
        rule=Different("A repeated seed repeats the trial; several give intervals."),
    )
    title: str | None = option_field(None, "Title of the report.", _STUDY)
    model: dict[str, Any] = field(default_factory=dict, metadata=option("The model whose utility is measured.", _STUDY))
    training: dict[str, Any] = field(
        default_factory=dict, metadata=option("How it is trained; omitted keys get defaults.", _STUDY)
    )
    release: dict[str, Any] = field(
        default_factory=dict,
        metadata=option("What attacks on one update read: the gradient of a client that shares these layers.", _STUDY),
    )
    canaries: dict[str, Any] | None = option_field(
        None, "Secrets that are planted in the training text of every trial.", _STUDY
    )

    def __post_init__(self) -> None:
        """Reject a study that has nothing to run."""
        if not self.name.strip():
            raise invalid("name", self.name, "a name", "It is the title of the report.")
        check_fields(self)
        for what, tables in (("protect", self.protect), ("attack", self.attack)):
            for number, table in enumerate(tables):
                if not isinstance(table.get("name"), str):
                    raise SettingError(f"Expected key 'name' in {what}[{number}]. Add it.")
        if self.goal is not None and self.attack:
            named = [str(table["name"]) for table in self.attack]
            attack = self.goal.leakage.partition("/")[0]
            if attack not in named:
                for name in named:
                    ATTACKS.check("attack.name", name)  # a misspelled name is not the goal's fault
                raise invalid("goal.leakage", self.goal.leakage, f"of an attack in {', '.join(named)}", "Name one.")

    def as_dict(self) -> dict[str, Any]:
        """Return the study as plain values."""
        return as_dict(self)


@dataclass(frozen=True)
class ReleaseTable:
    """The `[release]` table: what is attacked, the gradient of a client that shares these layers, on this split.

    It may differ from what is trained for utility; the report gives both, and the epsilon of each.
    """

    train: str = option_field(
        "all", "Layers whose gradient is shared: head, pooler+head, top-N, lora or all.", _RELEASE, rule=LAYERS
    )
    embeddings: bool = option_field(True, "The embeddings are shared too.", _RELEASE)
    split: str | None = option_field(None, "Split that is attacked.", _RELEASE, "validation, test or all rows")
    delta: float = option_field(1e-5, "Delta of the single release.", _RELEASE, rule=OpenProbability())

    def __post_init__(self) -> None:
        """Reject layers that no model has, and a delta outside (0, 1)."""
        check_fields(self, "release.")


# The tables of a study that the rest of the program has a class for.
TABLES: dict[str, type[Any]] = {
    "data": TextSource,
    "model": ModelSettings,
    "training": TrainSettings,
    "release": ReleaseTable,
    "canaries": Planting,
}


def read_study(path: Path) -> Study:
    """Return the study in a TOML file, rejecting unknown keys by name."""
    return parse(Study, read_values(path, "study"), path.name)


def check(study: Study) -> None:
    """Reject a study with an unknown key, value, protection or attack, or an attack that fits no release."""
    from discreet.study.grid import points

    for key, kind in TABLES.items():
        if (values := getattr(study, key)) is not None:
            parse(kind, values, key)
    if study.canaries is None and any(table["name"] == "exposure" for table in study.attack):
        raise SettingError("Expected planted canaries for exposure. Add [canaries] with count = 10.")
    places: dict[str, str] = {}
    for number, table in enumerate(study.protect):
        name = PROTECTIONS.check(f"protect[{number}].name", table["name"], NONE)
        for point in points(table, f"protect[{number}]"):
            protection_for(point)
        places[name] = "any" if name == NONE else protection_class(name).place
    measured: dict[str, tuple[str, ...]] = {}
    for table in study.attack:
        attack = attack_for(table)
        name, kind = str(table["name"]), attack.sees.kind
        measured[name] = measured.get(name, ()) + _metrics_of(table, attack)
        if kind not in places.values() and "any" not in places.values() and kind != MODEL:
            released = ", ".join(f"{protection} ({place})" for protection, place in places.items())
            raise SettingError(
                f"Expected an attack that fits a release of the study, got {name} on the {kind}, and the protections "
                f"{released}. Add a protection of the {kind}, or choose another attack."
            )
    if study.goal is not None and study.attack:
        check_goal(study.goal, measured)


def _metrics_of(table: Table, attack: Any) -> tuple[str, ...]:
    from discreet.experiment.attack.runner import FAMILIES
    from discreet.experiment.attack.scoring import metrics_for

    asked = metrics_for(attack, request_for(table, attack, None, delta=1e-5, seed=0).metrics)
    metrics = FAMILIES[attack.family].metrics
    if attack.identifies:
        return (*metrics, *(metric + OF_UPDATE for metric in metrics))
    return metrics or asked


def check_goal(goal: Goal, measured: Mapping[str, Sequence[str]]) -> None:
    """Reject a goal by which no trial could be measured, before any runs; `measured` has the metrics by attack."""
    from discreet.metrics.utility import UTILITIES

    attack, _, metric = goal.leakage.partition("/")
    one_of(f"goal.leakage of {attack}", metric, measured[attack])
    if goal.utility is not None:
        one_of("goal.utility", goal.utility, UTILITIES)


def protection_for(table: Table) -> Protection | None:
    """Return a protection from a point of its grid, or None for no protection."""
    name = str(table["name"])
    values = {key: value for key, value in table.items() if key != "name"}
    if name == NONE:
        if values:
            raise SettingError(f"Expected only a name for no protection, got {next(iter(values))!r}. Leave it out.")
        return None
    _reject_misspelled(values, list(settings_of_protection(name)), "protect", name)
    return protection(name, values)


def attack_for(table: Table) -> Any:
    """Return an attack with its own settings from a study's table."""
    name = str(table["name"])
    values = {key: value for key, value in table.items() if key != "name" and key not in REQUEST_KEYS}
    known = [one.name for one in dataclasses.fields(attack_class(name)) if one.init]  # type: ignore[arg-type]
    _reject_misspelled(values, known, "attack", name, tuple(REQUEST_KEYS))
    return attack_of(name, values)


def _reject_misspelled(values: Table, known: Sequence[str], where: str, name: str, also: Sequence[str] = ()) -> None:
    for key in values:
        if key not in known and (guess := did_you_mean(key, [*known, *also])):
            raise SettingError(f"Expected only known keys in {where} ({name}), got {shown(key)}. {guess}")


def request_for(table: Table, attack: Any, protect: Any, delta: float, seed: int) -> AttackRequest:
    """Return the request to run an attack of a study, with noise from a fixed seed."""
    from discreet.experiment.attack.request import AttackRequest

    values = {key: value for key, value in table.items() if key in REQUEST_KEYS}
    if "metrics" in values:
        if not isinstance(values["metrics"], list | tuple):
            raise SettingError(f"Expected metrics in attack to be a list of names, got {shown(values['metrics'])}.")
        values["metrics"] = tuple(values["metrics"])
    return AttackRequest(
        attack=attack, protect=protect, name=str(table["name"]), delta=delta, seed=seed, noise_seed=seed, **values
    )


def in_study_file(name: str, value: Any) -> str | None:
    """Return a setting in the spelling of a study file, or None where no table of a study has such a key.

    >>> in_study_file("batch_size", None), in_study_file("pooler", False), in_study_file("mechanism", "gaussian")
    ('batch_size', 'pooler = false', 'mechanism = "gaussian"')
    >>> in_study_file("classes", ["home", "stay"])
    'classes = ["home", "stay"]'
    >>> in_study_file("out", "trials") is None
    True
    """
    if name not in _known_keys():
        return None
    return name if value is None else f"{name} = {json.dumps(value, ensure_ascii=False)}"


@lru_cache(maxsize=1)
def _known_keys() -> frozenset[str]:
    """Return every key that a table of a study may have."""
    own = {key for name in PROTECTIONS for key in settings_of_protection(name)}
    return frozenset(
        {*REQUEST_KEYS, *own, *(one.name for table in TABLES.values() for one in dataclasses.fields(table))}
    )


def changes(before: Table, after: Table, where: str = "") -> list[str]:
    """Return in words every value that differs between two studies as plain values.

    >>> changes({"seeds": [0], "data": {"rows": 5}}, {"seeds": [0], "data": {"rows": 6}})
    ['data.rows was 5 and is 6']
    """
    differences: list[str] = []
    for key in [*before, *(k for k in after if k not in before)]:
        name = f"{where}{key}"
        if key not in after:
            differences.append(f"{name} was {_short(before[key])} and is gone")
        elif key not in before:
            differences.append(f"{name} is new: {_short(after[key])}")
        elif isinstance(before[key], Mapping) and isinstance(after[key], Mapping):
            differences += changes(before[key], after[key], f"{name}.")
        elif json.dumps(before[key]) != json.dumps(after[key]):
            differences.append(f"{name} was {_short(before[key])} and is {_short(after[key])}")
    return differences


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
