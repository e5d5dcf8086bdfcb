"""Plan the trials of a study: one for every point of every protection's grid and every seed, each with a key."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.core.errors import invalid

if TYPE_CHECKING:
    from discreet.study.file import Study


@dataclass(frozen=True)
class Planned:
    """One trial before it is run: its settings as plain values, its seed, and the key made from both.

    `label` is the protection and its strength in words, unique among the settings of the study.
    """

    key: str
    settings: dict[str, Any]
    seed: int
    label: str = ""


def points(protection: Mapping[str, Any], where: str = "protect") -> list[dict[str, Any]]:
    """Return every combination of the listed values of a protection, in the order of the file.

    >>> points({"name": "dp-sgd", "epsilon": [1.0, 8.0]})
    [{'name': 'dp-sgd', 'epsilon': 1.0}, {'name': 'dp-sgd', 'epsilon': 8.0}]
    """
    for key, value in protection.items():
        if isinstance(value, list) and not value:
            raise invalid(f"{where}.{key}", value, "at least one value", "An empty grid has no trial.")
    axes = [value if isinstance(value, list) else [value] for value in protection.values()]
    return [dict(zip(protection, chosen, strict=True)) for chosen in itertools.product(*axes)]


def plan(study: Study) -> list[Planned]:
    """Return the trials of a study without duplicates, all points at one seed before the next seed."""
    shared = {key: value for key, value in study.as_dict().items() if key in _SHARED}
    settings_list = [
        point for number, protection in enumerate(study.protect) for point in points(protection, f"protect[{number}]")
    ]
    names = names_of(settings_list)
    trials: dict[str, Planned] = {}
    for seed in study.seeds:
        for point, name in zip(settings_list, names, strict=True):
            settings = {**shared, "protect": point}
            key = key_of(settings, seed)
            trials.setdefault(key, Planned(key, settings, seed, name.label))
    return list(trials.values())


_SHARED = ("data", "model", "training", "release", "attack", "canaries")


def key_of(settings: Mapping[str, Any], seed: int) -> str:
    """Return the key of a trial: it depends on the settings and the seed, and on nothing else."""
    text = json.dumps([settings, seed], sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Name:
    """The label of a setting among others, and its variant: the label without the strength."""

    label: str
    variant: str


def names_of(protections: Sequence[Mapping[str, Any]]) -> list[Name]:
    """Return a unique name for each setting: its strengths, and what differs between settings of one protection.

    >>> layers = [{"name": "ldp", "epsilon": 1.0}, {"name": "ldp", "epsilon": 1.0, "mechanism": "gaussian"}]
    >>> names_of(layers)[1]
    Name(label='ldp, epsilon 1, mechanism gaussian', variant='ldp, mechanism gaussian')
    """
    differ: dict[str, set[str]] = {}
    for name in {str(one["name"]) for one in protections}:
        alike = [one for one in protections if one["name"] == name]
        keys = {key for one in alike for key in one}
        differ[name] = {key for key in keys if len({json.dumps(one.get(key)) for one in alike}) > 1}
    names = []
    for one in protections:
        name, strengths = str(one["name"]), strength_of(one)
        other = [_in_words(key, _plain(one[key])) for key in one if key in differ[name] and key not in strengths]
        shown = {key: _in_words(key, f"{value:g}") for key, value in strengths.items()}
        fixed = [words for key, words in list(shown.items())[1:] if key not in _NOISES]
        names.append(Name(", ".join([name, *shown.values(), *other]), ", ".join([name, *fixed, *other])))
    return names


def _in_words(key: str, value: str) -> str:
    return f"{key.replace('_', ' ')} {value}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# Parameters that set how strong a protection is, rather than how it works; the first present is its axis.
_NOISES = ("epsilon", "epsilon_per_word", "noise_multiplier", "kappa", "true_positive_rate", "sigma", "scale")
STRENGTHS = (*_NOISES, "masks", "mix", "m", "k")
# Strengths that protect less the larger they are: their axis is reversed, so that noise grows to the right.
LESS_IS_MORE = {"epsilon", "epsilon_per_word", "kappa", "true_positive_rate"}


def strength_of(protection: Mapping[str, Any]) -> dict[str, float]:
    """Return the parameters that set how strong a protection is, by name."""
    return {
        k: float(protection[k])
        for k in STRENGTHS
        if isinstance(protection.get(k), int | float) and not isinstance(protection[k], bool)
    }
