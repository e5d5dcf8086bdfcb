"""Dials: which settings of a protection the page can move, from where to where."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from discreet.core.errors import SettingError, invalid, one_of
from discreet.protections.base import asked_fields


@dataclass(frozen=True)
class Dial:
    """One setting with its range; `alone` are different words for one strength, of which a release has one.

    `rises` says that a larger value protects more.
    """

    name: str
    words: str
    low: float
    high: float
    start: float
    whole: bool = False
    alone: bool = True
    rises: bool = False

    def check(self, value: object) -> float | int:
        """Return a value within the range, or refuse it."""
        rule = f"{'an integer' if self.whole else 'a number'} in [{self.low:g}, {self.high:g}]"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(self.name, value, rule, "Move the slider.")
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            raise invalid(self.name, value, rule, "Move the slider.")
        return int(value) if self.whole else float(value)


# By the name of the setting, whichever protection has it; the first that a protection has is shown first.
DIALS: tuple[Dial, ...] = (
    Dial("epsilon", "epsilon of this one release", 0.1, 1000.0, 8.0),
    Dial("noise_multiplier", "noise over the clip norm", 1e-8, 10.0, 1.0, rises=True),
    Dial("kappa", "concentration kappa", 100.0, 1e9, 1e4),
    Dial("epsilon_per_word", "epsilon of one word", 1.0, 200.0, 20.0),
    Dial("masks", "masks in the pool, m", 0, 256, 16, whole=True, alone=False, rises=True),
    Dial("mix", "sentences in a mixture, k", 1, 8, 4, whole=True, alone=False, rises=True),
)


def dials_of(settings: type[Any]) -> tuple[Dial, ...]:
    """Return the dials of a protection by the class of its settings; one with a usual value starts there.

    >>> from discreet.catalog import protection_class
    >>> [dial.name for dial in dials_of(protection_class("dp-sgd"))]
    ['epsilon', 'noise_multiplier']
    >>> [(dial.name, dial.start) for dial in dials_of(protection_class("texthide"))]
    [('masks', 16), ('mix', 4)]
    """
    own = {field.name: field.default for field in asked_fields(settings)}
    return tuple(
        dataclasses.replace(dial, start=usual) if isinstance(usual := own[dial.name], int | float) else dial
        for dial in DIALS
        if dial.name in own
    )


def checked(
    dials: tuple[Dial, ...], given: Mapping[str, object], own: Mapping[str, Any] | None = None
) -> dict[str, float | int]:
    """Return the values given for dials, each within its range; others than these dials are refused by name.

    `own` are values of a setting, which may lie beyond the range of a dial, and are used as they are.
    """
    before = {} if own is None else own
    known = {dial.name: dial for dial in dials}
    for name in given:
        one_of("dial", name, known)
    found: dict[str, float | int] = {
        name: before[name] if name in before and value == before[name] else known[name].check(value)
        for name, value in given.items()
    }
    alone = [name for name in found if known[name].alone]
    if len(alone) > 1:
        raise SettingError(f"Expected one of {', '.join(alone)}. Each says how much noise there is; choose one.")
    return found


def started(dials: tuple[Dial, ...]) -> dict[str, float | int]:
    """Return where the dials stand at first: of those that say the same, only the first."""
    first = next((dial.name for dial in dials if dial.alone), None)
    return {dial.name: dial.check(dial.start) for dial in dials if not dial.alone or dial.name == first}
