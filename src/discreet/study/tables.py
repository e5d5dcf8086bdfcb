"""A study's tables, checked before anything runs: every key known, every attack with something to attack."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from discreet.catalog import PROTECTIONS, protection_settings
from discreet.core.checks import did_you_mean, one_of, open_probability, refuse, shown
from discreet.core.errors import SettingError
from discreet.core.settings import parse
from discreet.data.sources import Columns
from discreet.experiment.attack import AttackRequest
from discreet.experiment.identification import METRIC
from discreet.experiment.reading import metrics_for
from discreet.metrics.utility import UTILITIES
from discreet.models.classifier import ModelSettings
from discreet.protections.settings import protect_settings
from discreet.study.file import OF_UPDATE, Goal, Study
from discreet.study.grid import points
from discreet.training.settings import TrainSettings

NONE = "none"
AttackOf = Callable[[str, Mapping[str, Any]], Any]
# What a study may say of an attack besides its own settings.
ASKED = ("examples", "batch_size", "max_words", "first_words", "seconds", "metrics", "candidates", "draws", "steps")


@dataclass(frozen=True)
class DataTable:
    """Which text: as for `discreet train`. The seed is that of the notes, `rows` and `share`; trials have their own."""

    source: str
    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    unit: str | None = None
    rows: int | None = None
    share: float | None = None
    validation: str | None = None
    task: Literal["classification", "regression"] | None = None
    seed: int = 0
    separator: str | None = None
    quoting: str | None = None

    @property
    def columns(self) -> Columns:
        """The columns to read."""
        return Columns(self.text, self.text_pair, self.label, self.unit, self.separator, self.quoting)


@dataclass(frozen=True)
class ReleaseTable:
    """What is attacked: the gradient of a client that shares these layers, on texts of this split.

    It may differ from what is trained for utility; the report says both, and the epsilon of each.
    """

    train: str = "all"
    embeddings: bool = True
    split: str | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse what is no delta."""
        open_probability("release.delta", self.delta)


@dataclass(frozen=True)
class TrainingTable:
    """How long and how fast to train; what is left out is chosen by what is trained and how it is protected."""

    epochs: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    warmup: float = 0.06
    optimizer: str = "adamw"
    precision: str = "auto"


def check(study: Study, attack_of: AttackOf) -> None:
    """Refuse a study with an unknown key, value, protection or attack, or an attack with nothing to attack."""
    parse(DataTable, study.data, "data")
    parse(ModelSettings, study.model, "model")
    asked = parse(TrainingTable, study.training, "training")
    TrainSettings(
        epochs=asked.epochs or 1.0,
        batch_size=asked.batch_size or 1,
        learning_rate=asked.learning_rate,
        warmup=asked.warmup,
        optimizer=asked.optimizer,
        precision=asked.precision,
    )
    parse(ReleaseTable, study.release, "release")
    places: dict[str, str] = {}
    for number, table in enumerate(study.protections):
        name = one_of(f"protections[{number}].name", table["name"], [NONE, *PROTECTIONS])
        for point in points(table, f"protections[{number}]"):
            settings_for(point)
        places[name] = "any" if name == NONE else protection_settings(name).place
    measured: dict[str, tuple[str, ...]] = {}
    for table in study.attacks:
        attack = attack_for(table, attack_of)
        asked_for = request_for(table, attack, None, delta=1e-5, seed=0)
        fitting = metrics_for(attack, asked_for.metrics)
        found = (METRIC, METRIC + OF_UPDATE) if attack.identifies else fitting
        measured[str(table["name"])] = measured.get(str(table["name"]), ()) + found
        kind = attack.sees.kind
        if kind not in places.values() and "any" not in places.values():
            released = ", ".join(f"{name} ({place})" for name, place in places.items())
            raise SettingError(
                f"Expected an attack that fits a release of the study, found {table['name']} on the {kind}, and the "
                f"protections {released}. Add a protection of the {kind}, or choose another attack."
            )
    if study.goal is not None and study.attacks:
        check_goal(study.goal, measured)


def check_goal(goal: Goal, measured: Mapping[str, Sequence[str]]) -> None:
    """Refuse a goal that no trial could be measured by, before hours are spent on trials; `measured` is by attack."""
    attack, _, metric = goal.leakage.partition("/")
    one_of(f"goal.leakage of {attack}", metric, measured[attack])
    if goal.utility is not None:
        one_of("goal.utility", goal.utility, UTILITIES)
    if goal.ceiling is not None and not 0 < goal.ceiling < 1:
        raise refuse("goal.ceiling", goal.ceiling, "in (0, 1)", "It is a share: 0.05 is five in a hundred.")


def settings_for(protection: Mapping[str, Any]) -> Any:
    """Return a protection's settings from a point of its grid, or None for no protection."""
    values = {key: value for key, value in protection.items() if key != "name"}
    if protection["name"] == NONE:
        if values:
            raise SettingError(f"Expected only a name for no protection, found {next(iter(values))!r}. Leave it out.")
        return None
    kind = protection_settings(str(protection["name"]))
    known = [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in known and (guess := did_you_mean(key, known)):
            raise SettingError(
                f"Expected only known keys in protections ({protection['name']}), found {key!r}. {guess}"
            )
    return protect_settings(str(protection["name"]), values)


def attack_for(table: Mapping[str, Any], attack_of: AttackOf) -> Any:
    """Return an attack with its own settings from a study's table."""
    own = {key: value for key, value in table.items() if key != "name" and key not in ASKED}
    try:
        return attack_of(str(table["name"]), own)
    except SettingError as error:
        guesses = [did_you_mean(key, ASKED) for key in own]
        guess = next((text for text in guesses if text), "")
        if "found" in str(error) and guess and "Did you mean" not in str(error):
            raise SettingError(f"{error} {guess}") from None
        raise


def request_for(table: Mapping[str, Any], attack: Any, protect: Any, delta: float, seed: int) -> AttackRequest:
    """Return what a study asks of an attack, with noise that can be repeated."""
    asked = {key: value for key, value in table.items() if key in ASKED}
    if "metrics" in asked:
        if not isinstance(asked["metrics"], list | tuple):
            raise SettingError(f"Expected metrics={shown(asked['metrics'])} in attacks as a list of names.")
        asked["metrics"] = tuple(asked["metrics"])
    return AttackRequest(
        attack=attack, protect=protect, name=str(table["name"]), delta=delta, seed=seed, noise_seed=seed, **asked
    )
