"""The trials of a study: every point of every protection's grid, attacked, for every seed, and a key for each."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from discreet.calibration.study import Study
from discreet.core.checks import refuse


@dataclass(frozen=True)
class Planned:
    """One trial before it is run: its settings as plain values, its seed, and the key that both give it."""

    key: str
    settings: dict[str, Any]
    seed: int

    @property
    def label(self) -> str:
        """Return the protection and its strength in words."""
        return label_of(self.settings["protection"])


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
    found: dict[str, Planned] = {}
    for seed in study.seeds:
        for point in chosen:
            settings = {**shared, "protection": point}
            key = key_of(settings, seed)
            found.setdefault(key, Planned(key, settings, seed))
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
    shown = [f"{k.replace('_', ' ')} {v:g}" for k, v in strength_of(protection).items()]
    return ", ".join([str(protection["name"]), *shown])


# What says how strong a protection is, rather than how it works; the first that is there is its axis.
STRENGTHS = ("epsilon", "noise_multiplier", "kappa", "true_positive_rate", "sigma", "scale", "masks", "mix", "m", "k")


def strength_of(protection: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that say how strong a protection is, by name."""
    return {
        k: float(protection[k])
        for k in STRENGTHS
        if isinstance(protection.get(k), int | float) and not isinstance(protection[k], bool)
    }
