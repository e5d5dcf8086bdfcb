"""What the page offers: the catalog's protections with their dials, its attacks, and which goes with which.

Dials: which settings of a protection the page can move, from where to where.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from discreet.attacks.base import Attack
from discreet.catalog import PROTECTIONS
from discreet.core.errors import DiscreetError, SettingError, invalid, one_of
from discreet.explorer.stage import EXAMPLES, Stage
from discreet.protections.base import asked_fields
from discreet.releases.description import GRADIENT, REPRESENTATION
from discreet.releases.protected import fits, protection_of

NONE = "none"
DELTA = 1e-5
LONGEST = 600  # characters of a sentence


@dataclass(frozen=True)
class Menu:
    """The catalog as the page uses it; `defaults` are values that a protection gets where nothing else is given."""

    attacks: Mapping[str, Attack]
    protections: Mapping[str, type[Any]]
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def dials(self, protection: str) -> tuple[Dial, ...]:
        """Return the dials of a protection."""
        return () if protection == NONE else dials_of(self.protections[protection])

    def values(self, protection: str, dials: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Any:
        """Return a protection's settings: those of a study, if any, with the dials as they stand."""
        kept = dict(before or {})
        alone = {dial.name for dial in self.dials(protection) if dial.alone}
        if alone & set(dials):
            kept = {name: value for name, value in kept.items() if name not in alone}
        return {**self.defaults.get(protection, {}), **kept, **dials}

    def mix(self, protection: str, values: Mapping[str, Any]) -> int:
        """Return how many sentences are mixed, so how many a release must hold."""
        if protection == NONE:
            return 1
        default = next((dial.start for dial in self.dials(protection) if dial.name == "mix"), 1)
        return int(values.get("mix", default))


def misfit(menu: Menu, attack: str, protect: Any, *, head: bool) -> str | None:
    """Return why an attack has nothing to attack under a protection, or None where it has.

    `head` says that only a head is trained: its gradient tells a vector, and no attack reads a text from that.
    """
    kind, identifies = menu.attacks[attack].sees.kind, menu.attacks[attack].identifies
    if head and kind == GRADIENT and not identifies:
        return f"{attack} reads the gradient of the encoder, and here only the head is trained."
    if protect is None:
        return None
    name, place = protect.name, protect.place
    if not fits(kind, protect):
        return f"{attack} reads a {kind}; under {name} that is not what leaves."
    if identifies and place != GRADIENT:
        return f"{attack} compares noisy gradients; {name} alters the {place}."
    return None


def offer(menu: Menu, stage: Stage) -> dict[str, Any]:
    """Return all that the page can choose, as plain values for JSON.

    A protection that cannot be built from its dials alone, as it needs a file, is left out, and it is said why. Every
    other one is built once for each kind of release, so that what it lets go, and so which attack fits, is known.
    """
    settings = stage.scene(GRADIENT).model.settings
    head = settings.train == "head"
    bare = {attack: said for attack in menu.attacks if (said := misfit(menu, attack, None, head=head))}
    protections: list[dict[str, Any]] = [
        {"name": NONE, "words": "What leaves, leaves as it is.", "dials": [], "misfits": bare, "first": None}
    ]
    # where only a head is trained its gradient has little to read: what leaves to be read are the vectors
    kind = REPRESENTATION if settings.frozen else GRADIENT
    attacks = sorted(menu.attacks, key=lambda attack: menu.attacks[attack].sees.kind != kind)
    protections[0]["first"] = next((attack for attack in attacks if attack not in bare), None)
    left_out: dict[str, str] = {}
    for name in menu.protections:
        before = next((dict(s.values) for s in stage.settings if s.protection == name), None)
        start = started(menu.dials(name))
        built: dict[str, Any] = {}
        why = ""
        for release in (GRADIENT, REPRESENTATION):
            try:
                built[release] = _stand_in(menu, stage, name, menu.values(name, start, before), release)
            except DiscreetError as error:
                why = str(error)
        misfits = {
            name: misfit(menu, name, built[attack.sees.kind], head=head) or ""
            for name, attack in menu.attacks.items()
            if attack.sees.kind in built
        }
        misfits |= {attack: why for attack in menu.attacks if attack not in misfits}
        if all(misfits.values()):
            left_out[name] = why or "No attack on offer is for what it lets go."
            continue
        protections.append(
            {
                "name": name,
                "words": PROTECTIONS[name].help,
                "dials": [asdict(dial) for dial in menu.dials(name)],
                "misfits": {attack: said for attack, said in misfits.items() if said},
                "first": _first_attack(menu, attacks, misfits, built),
            }
        )
    return {
        "title": stage.title,
        "labels": list(stage.labels),
        "protections": protections,
        "left_out": left_out,
        "attacks": [
            {"name": name, "kind": menu.attacks[name].sees.kind, "words": menu.attacks[name].summary}
            for name in attacks
        ],
        "start": _first_protection(menu, protections),
        "settings": [
            {
                "number": number,
                "label": one.label,
                "protection": one.protection,
                "dials": _shown(menu, one.protection, one.values),
            }
            for number, one in enumerate(stage.settings)
            if one.protection == NONE or one.protection in {str(p["name"]) for p in protections}
        ],
        "examples": list(EXAMPLES),
        "longest": LONGEST,
        "delta": DELTA,
    }


def _first_attack(
    menu: Menu, attacks: Sequence[str], misfits: Mapping[str, str], built: Mapping[str, Any]
) -> str | None:
    """Return the attack to begin with under a protection: one whose success moves with the strength.

    Attacks that spell a text from a gradient read nothing under any noise that a slider offers; naming one of n goes
    from chance to certainty.
    """
    fitting = [attack for attack in attacks if not misfits[attack]]
    identifying = next((attack for attack in fitting if menu.attacks[attack].identifies), None)
    if identifying is not None and built[GRADIENT].place == GRADIENT:
        return identifying
    return next(iter(fitting), None)


def _first_protection(menu: Menu, protections: Sequence[Mapping[str, Any]]) -> str:
    """Return the protection to begin with: one whose strength decides whether a text is read or not, within a second.

    That is a noisy vector: from one end of the slider to the other an attack goes from the wrong text to the right one.
    """
    moved = [one for one in protections if any(dial["name"] == "epsilon" for dial in one["dials"])]
    read = [one for one in moved if menu.attacks[one["first"]].sees.kind == REPRESENTATION]
    return str((read or moved or protections)[0]["name"])


def _stand_in(menu: Menu, stage: Stage, name: str, values: Mapping[str, Any], kind: str) -> Any:
    """Return a protection whose projection, if it has one, was learned from noise: enough to see what it lets go."""
    model = stage.scene(kind).model
    noise = torch.randn(max(2 * model.width, 64), model.width, generator=torch.Generator().manual_seed(0))
    plain = {key: value for key, value in values.items() if not (key == "projection" and value == "labels")}
    size = menu.mix(name, values)
    return protection_of(name, model, plain, delta=DELTA, batch_size=size, public=lambda: (noise, None))


def _shown(menu: Menu, protection: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return where the dials stand for a study's setting."""
    return {
        dial.name: float(values[dial.name])
        for dial in menu.dials(protection)
        if isinstance(values.get(dial.name), int | float)
    }


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
