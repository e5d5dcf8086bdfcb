"""The trials of a study: every point of every protection's grid, attacked, for every seed, and a key for each."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discreet.core.checks import refuse
from discreet.study.file import Study


@dataclass(frozen=True)
class Planned:
    """One trial before it is run: its settings as plain values, its seed, and the key that both give it."""

    key: str
    settings: dict[str, Any]
    seed: int
    words: str = ""

    @property
    def label(self) -> str:
        """Return the protection and its strength in words, as no other setting of the study has them."""
        return self.words or label_of(self.settings["protection"])


def points(protection: Mapping[str, Any], where: str = "protections") -> list[dict[str, Any]]:
    """Return every combination of the listed values of a protection, in the order they are written.

    >>> points({"name": "dp-sgd", "epsilon": [1.0, 8.0]})
    [{'name': 'dp-sgd', 'epsilon': 1.0}, {'name': 'dp-sgd', 'epsilon': 8.0}]
    """
    for key, value in protection.items():
        if isinstance(value, list) and not value:
            raise refuse(f"{where}.{key}", value, "at least one value", "An empty grid has no trial.")
    axes = [value if isinstance(value, list) else [value] for value in protection.values()]
    return [dict(zip(protection, chosen, strict=True)) for chosen in itertools.product(*axes)]


def plan(study: Study) -> list[Planned]:
    """Return the trials of a study, all points at one seed before the next, none twice."""
    shared = {key: value for key, value in study.as_dict().items() if key in _SHARED}
    chosen = [
        point
        for number, protection in enumerate(study.protections)
        for point in points(protection, f"protections[{number}]")
    ]
    names = names_of(chosen)
    found: dict[str, Planned] = {}
    for seed in study.seeds:
        for point, name in zip(chosen, names, strict=True):
            settings = {**shared, "protection": point}
            key = key_of(settings, seed)
            found.setdefault(key, Planned(key, settings, seed, name.label))
    return list(found.values())


_SHARED = ("data", "model", "training", "release", "attacks")


def key_of(settings: Mapping[str, Any], seed: int) -> str:
    """Return the name of a trial: it changes with any setting and with the seed, and with nothing else."""
    text = json.dumps([settings, seed], sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def label_of(protection: Mapping[str, Any]) -> str:
    """Return a protection and its strength in words.

    >>> label_of({"name": "dp-sgd", "epsilon": 8.0, "clip_norm": 0.1})
    'dp-sgd, epsilon 8'
    """
    shown = [_told(key, f"{value:g}") for key, value in strength_of(protection).items()]
    return ", ".join([str(protection["name"]), *shown])


@dataclass(frozen=True)
class Name:
    """What a setting is called among others, and what it is a strength of."""

    label: str
    variant: str


def names_of(protections: Sequence[Mapping[str, Any]]) -> list[Name]:
    """Return names that tell settings apart: beside its strengths, what differs between those of one protection.

    >>> layers = [{"name": "ldp", "epsilon": 1.0}, {"name": "ldp", "epsilon": 1.0, "mechanism": "gaussian"}]
    >>> names_of(layers)[1]
    Name(label='ldp, epsilon 1, mechanism gaussian', variant='ldp, mechanism gaussian')
    """
    differ: dict[str, set[str]] = {}
    for name in {str(one["name"]) for one in protections}:
        alike = [one for one in protections if one["name"] == name]
        keys = {key for one in alike for key in one}
        differ[name] = {key for key in keys if len({json.dumps(one.get(key)) for one in alike}) > 1}
    found = []
    for one in protections:
        name, strengths = str(one["name"]), strength_of(one)
        told = [_told(key, _plain(one[key])) for key in one if key in differ[name] and key not in strengths]
        shown = {key: _told(key, f"{value:g}") for key, value in strengths.items()}
        fixed = [words for key, words in list(shown.items())[1:] if key not in _NOISES]
        found.append(Name(", ".join([name, *shown.values(), *told]), ", ".join([name, *fixed, *told])))
    return found


def _told(key: str, value: str) -> str:
    return f"{key.replace('_', ' ')} {value}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# What says how strong a protection is, rather than how it works; the first that is there is its axis.
_NOISES = ("epsilon", "epsilon_per_word", "noise_multiplier", "kappa", "true_positive_rate", "sigma", "scale")
STRENGTHS = (*_NOISES, "masks", "mix", "m", "k")


def strength_of(protection: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that say how strong a protection is, by name."""
    return {
        k: float(protection[k])
        for k in STRENGTHS
        if isinstance(protection.get(k), int | float) and not isinstance(protection[k], bool)
    }
