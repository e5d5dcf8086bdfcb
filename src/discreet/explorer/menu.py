"""The choices of the page: protections with their sliders, attacks, and which attacks fit which protection."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from discreet.attacks.base import Attack
from discreet.catalog import ATTACKS, PROTECTIONS
from discreet.core.errors import DiscreetError, SettingError, invalid, one_of
from discreet.core.types import MODEL
from discreet.explorer.page_data import EXAMPLES, PageData
from discreet.protections.base import user_fields
from discreet.releases.description import GRADIENT, REPRESENTATION
from discreet.releases.protected import misfit, protection_of

NONE = "none"
DELTA = 1e-5
LONGEST = 600  # characters of a sentence


@dataclass(frozen=True)
class Menu:
    """The catalog as the page uses it; `defaults` are settings of a protection that nothing else sets."""

    attacks: Mapping[str, Attack]
    protections: Mapping[str, type[Any]]
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def sliders(self, protection: str) -> tuple[Slider, ...]:
        """Return the sliders of a protection."""
        return () if protection == NONE else sliders_of(self.protections[protection])

    def values(self, protection: str, dials: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Any:
        """Return the settings of a protection: those of a study, if any, updated with the slider values."""
        settings = dict(before or {})
        alone = {slider.name for slider in self.sliders(protection) if slider.alone}
        if alone & set(dials):
            settings = {name: value for name, value in settings.items() if name not in alone}
        return {**self.defaults.get(protection, {}), **settings, **dials}

    def mix(self, protection: str, values: Mapping[str, Any]) -> int:
        """Return how many sentences a mixture has, which is the size of a release."""
        if protection == NONE:
            return 1
        default = next((slider.start for slider in self.sliders(protection) if slider.name == "mix"), 1)
        return int(values.get("mix", default))


def why_not(menu: Menu, attack: str, protect: Any, *, head: bool) -> str | None:
    """Return why an attack does not fit a protection, or None if it fits.

    With `head`, only a head is trained: its gradient reveals a vector, from which no attack recovers text.
    """
    kind, identifies = menu.attacks[attack].sees.kind, menu.attacks[attack].identifies
    if head and kind == GRADIENT and not identifies:
        return f"{attack} needs the gradient of the encoder, but only the head is trained."
    found = misfit(kind, protect, identifies=identifies)
    return None if found is None else f"{attack} reads {found.reads}; {found.protect} releases {found.leaves}."


def offer(menu: Menu, data: PageData) -> dict[str, Any]:
    """Return the choices of the page as JSON values.

    A protection that cannot be built from its sliders alone, for example because it needs a file, is in `left_out` with
    the reason. Every other one is built once for each kind of release, to find out which attacks fit.
    """
    settings = data.scene(GRADIENT).model.settings
    head = settings.train == "head"
    bare = {attack: reason for attack in menu.attacks if (reason := why_not(menu, attack, None, head=head))}
    protections: list[dict[str, Any]] = [
        {"name": NONE, "words": "The release is not protected.", "dials": [], "misfits": bare, "first": None}
    ]
    # the gradient of a head reveals little text, so attacks on vectors come first
    kind = REPRESENTATION if settings.frozen else GRADIENT
    attacks = sorted(menu.attacks, key=lambda attack: menu.attacks[attack].sees.kind != kind)
    protections[0]["first"] = next((attack for attack in attacks if attack not in bare), None)
    left_out: dict[str, str] = {}
    for name in menu.protections:
        before = next((dict(s.values) for s in data.settings if s.protection == name), None)
        start = started(menu.sliders(name))
        built: dict[str, Any] = {}
        why = ""
        for release in (GRADIENT, REPRESENTATION):
            try:
                built[release] = _stand_in(menu, data, name, menu.values(name, start, before), release)
            except DiscreetError as error:
                why = str(error)
        misfits = {
            name: why_not(menu, name, built[attack.sees.kind], head=head) or ""
            for name, attack in menu.attacks.items()
            if attack.sees.kind in built
        }
        misfits |= {attack: why for attack in menu.attacks if attack not in misfits}
        if all(misfits.values()):
            left_out[name] = why or "No available attack fits its release."
            continue
        protections.append(
            {
                "name": name,
                "words": PROTECTIONS[name].help,
                "dials": [asdict(slider) for slider in menu.sliders(name)],
                "misfits": {attack: reason for attack, reason in misfits.items() if reason},
                "first": _first_attack(menu, attacks, misfits, built),
            }
        )
    return {
        "title": data.title,
        "labels": list(data.labels),
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
            for number, one in enumerate(data.settings)
            if one.protection == NONE or one.protection in {str(p["name"]) for p in protections}
        ],
        "trained_model": {
            "attacks": [name for name, entry in ATTACKS.items() if entry.sees == MODEL],
            "findings": [asdict(finding) for finding in data.findings],
        },
        "examples": list(EXAMPLES),
        "longest": LONGEST,
        "delta": DELTA,
    }


def _first_attack(
    menu: Menu, attacks: Sequence[str], misfits: Mapping[str, str], built: Mapping[str, Any]
) -> str | None:
    """Return the initial attack for a protection: one whose success changes with the strength.

    Attacks that recover text from a gradient fail at any noise level of a slider, while 1-of-n ranges from chance to
    certainty.
    """
    fitting = [attack for attack in attacks if not misfits[attack]]
    identifying = next((attack for attack in fitting if menu.attacks[attack].identifies), None)
    if identifying is not None and built[GRADIENT].place == GRADIENT:
        return identifying
    return next(iter(fitting), None)


def _first_protection(menu: Menu, protections: Sequence[Mapping[str, Any]]) -> str:
    """Return the initial protection: one whose strength decides within a second whether a text is recovered.

    That is a noisy vector: along the slider, the attack changes from the wrong text to the right one.
    """
    moved = [one for one in protections if any(slider["name"] == "epsilon" for slider in one["dials"])]
    read = [one for one in moved if menu.attacks[one["first"]].sees.kind == REPRESENTATION]
    return str((read or moved or protections)[0]["name"])


def _stand_in(menu: Menu, data: PageData, name: str, values: Mapping[str, Any], kind: str) -> Any:
    """Return a protection whose projection, if any, is learned from noise: enough to determine what it releases."""
    model = data.scene(kind).model
    noise = torch.randn(max(2 * model.width, 64), model.width, generator=torch.Generator().manual_seed(0))
    settings = {key: value for key, value in values.items() if not (key == "projection" and value == "labels")}
    size = menu.mix(name, values)
    return protection_of(name, model, settings, delta=DELTA, batch_size=size, public=lambda: (noise, None))


def _shown(menu: Menu, protection: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the slider values of a setting of a study."""
    return {
        slider.name: float(values[slider.name])
        for slider in menu.sliders(protection)
        if isinstance(values.get(slider.name), int | float)
    }


@dataclass(frozen=True)
class Slider:
    """A setting with its range. Only one of the `alone` sliders of a protection can be set: each sets the noise.

    With `rises`, a larger value protects more.
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
        """Return the value if it is within the range, otherwise raise an error."""
        rule = f"{'an integer' if self.whole else 'a number'} in [{self.low:g}, {self.high:g}]"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(self.name, value, rule, "Move the slider.")
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            raise invalid(self.name, value, rule, "Move the slider.")
        return int(value) if self.whole else float(value)


# Sliders by setting name, for every protection that has the setting, in the order of the page.
SLIDERS: tuple[Slider, ...] = (
    Slider("epsilon", "epsilon of this release", 0.1, 1000.0, 8.0),
    Slider("noise_multiplier", "noise multiplier", 1e-8, 10.0, 1.0, rises=True),
    Slider("kappa", "concentration kappa", 100.0, 1e9, 1e4),
    Slider("epsilon_per_word", "epsilon of one word", 1.0, 200.0, 20.0),
    Slider("masks", "masks in the pool, m", 0, 256, 16, whole=True, alone=False, rises=True),
    Slider("mix", "sentences in a mixture, k", 1, 8, 4, whole=True, alone=False, rises=True),
)


def sliders_of(settings: type[Any]) -> tuple[Slider, ...]:
    """Return the sliders of a protection class; a setting with a default starts there.

    >>> from discreet.catalog import protection_class
    >>> [slider.name for slider in sliders_of(protection_class("dp-sgd"))]
    ['epsilon', 'noise_multiplier']
    >>> [(slider.name, slider.start) for slider in sliders_of(protection_class("texthide"))]
    [('masks', 16), ('mix', 4)]
    """
    own = {field.name: field.default for field in user_fields(settings)}
    return tuple(
        dataclasses.replace(slider, start=default) if isinstance(default := own[slider.name], int | float) else slider
        for slider in SLIDERS
        if slider.name in own
    )


def checked(
    sliders: tuple[Slider, ...], values: Mapping[str, object], own: Mapping[str, Any] | None = None
) -> dict[str, float | int]:
    """Return the slider values, each within its range; reject names that are not sliders.

    `own` are the values of a study's setting. They are accepted even outside the range of a slider.
    """
    by_name = {slider.name: slider for slider in sliders}
    for name in values:
        one_of("dial", name, by_name)
    accepted: dict[str, float | int] = {
        name: own[name] if own and name in own and value == own[name] else by_name[name].check(value)
        for name, value in values.items()
    }
    alone = [name for name in accepted if by_name[name].alone]
    if len(alone) > 1:
        raise SettingError(f"Expected only one of {', '.join(alone)}. Each sets the amount of noise; choose one.")
    return accepted


def started(sliders: tuple[Slider, ...]) -> dict[str, float | int]:
    """Return the initial slider values; of the `alone` sliders, only the first is set."""
    first = next((slider.name for slider in sliders if slider.alone), None)
    return {slider.name: slider.check(slider.start) for slider in sliders if not slider.alone or slider.name == first}
