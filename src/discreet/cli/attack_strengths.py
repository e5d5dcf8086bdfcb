"""The protections that an attack is set against: one, or the same one at several strengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.catalog import ATTACKS, attack_of, protection_class, settings_of_protection
from discreet.cli.output import note
from discreet.core.errors import SettingError, Spelling, UnsupportedError, invalid, spelled

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.experiment import AttackRequest, Scene


NONE = "none"
CLIP_NORM = 1.0  # every gradient of a fresh model is longer than this, so noise is measured against all of it
# Where no noise is given, 1-of-n shows the whole curve.
_NOISES = (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
# Settings of a protection for which an attack has an option; `--public` is text that the attacker has.
_OPTIONS = {"noise_multiplier", "kappa", "epsilon", "delta", "clip_norm"}


@dataclasses.dataclass(frozen=True)
class Protected:
    """A protection to attack, and what sets it apart in a table: a setting and its value."""

    protect: Any
    setting: str = "protection"
    value: str = NONE

    @property
    def words(self) -> str:
        """What sets it apart, in words."""
        if self.setting != "protection":
            return f"{self.setting} {self.value}"
        return "no protection" if self.protect is None else self.value


def strengths_given(**given: list[str] | None) -> tuple[str, list[float]] | None:
    """Return the one option that says how strong the protection is, and its values."""
    named = {name: _numbers(name, values) for name, values in given.items() if values}
    if len(named) > 1:
        options = ", ".join("--" + name.replace("_", "-") for name in named)
        raise SettingError(f"Expected one of {options}. Each says how much noise there is; leave the others out.")
    return next(iter(named.items()), None)


def _numbers(name: str, values: Sequence[str]) -> list[float]:
    found = []
    for value in (part for text in values for part in text.split(",") if part.strip()):
        try:
            found.append(float(value))
        except ValueError:
            raise invalid(name, value, "a number, or several with commas", "") from None
    if not found:
        raise invalid(name, ",".join(values), "a number, or several with commas", "")
    return found


def protections_asked(
    request: AttackRequest,
    scene: Scene,
    protect: str | None,
    strengths: tuple[str, list[float]] | None,
    given: dict[str, Any],
) -> list[Protected]:
    """Return the protections to attack: the one in the options, at every strength in the options."""
    from discreet.releases.protected import protection_of, protection_of_run

    name, base = protect, dict(given)
    if name is None and strengths is not None and strengths[0] != "epsilon":
        name = {"noise_multiplier": "dp-sgd", "kappa": "dir-dp-sgd"}[strengths[0]]
    if name is None and strengths is None:
        own = protection_of_run(scene.run)
        if own is not None:
            name, base = own[0], {**own[1], **given}
            note(f"The release is protected as the run's training was, by {name}; --protect none attacks a plain one.")
        elif request.attack.identifies:
            name, strengths = "dp-sgd", ("noise_multiplier", list(_NOISES))
    if name is None or name == NONE:
        for option in [*given, *([strengths[0]] if strengths else [])]:
            raise invalid(option, given.get(option, strengths and strengths[1][0]), "used with --protect", "Name one.")
        return [Protected(None)]
    _reject_misfit(request, scene, name)
    if name == "dp-sgd":
        base.setdefault("clip_norm", CLIP_NORM)
    values: list[float | None] = list(strengths[1]) if strengths else [None]
    found = []
    for value in values:
        asked = base if strengths is None else {**base, strengths[0]: value}
        public = _public_vectors(scene, asked.get("public"))
        with spelled(set_by("--protect-set", set(settings_of_protection(name)) - _OPTIONS)):
            built = protection_of(
                name, scene.model, asked, delta=request.delta, batch_size=request.batch_size, public=public
            )
        _reject_misfit(request, scene, name, built)
        apart = ("protection", name) if strengths is None else (strengths[0].replace("_", " "), f"{value:g}")
        found.append(Protected(built, *apart))
    return found


def say_other_noise(built: Any) -> None:
    """Say where the noise of a run's protection is solved anew, for the rows of the one release that is attacked."""
    from discreet.protections.instance_encoding import InstanceEncoding

    if isinstance(built, InstanceEncoding):
        note(
            f"The noise of {built.name} is solved for the texts of this one release. The run's own noise was solved "
            "for all rows of a unit and differs."
        )


def attack_for_run(run: Path, protect: str | None) -> str:
    """Return the name of an attack that fits what a run releases, before its model is loaded."""
    from discreet.training.run_folder import read_settings

    path = run / "settings.toml"
    if not path.exists():
        return "dager"  # load_run says what is wrong
    settings = read_settings(path)
    own = None if settings.protect is None else settings.protect.name
    fitting = _fitting(settings.model.train, own if protect is None else protect)
    if not fitting:
        raise UnsupportedError(
            f"Expected a run that some attack fits, found one that trains {settings.model.train} on text rewritten by "
            f"{own or protect}. Train all layers, or attack a plain release with --protect none."
        )
    return fitting[0]


def _fitting(train: str, protect: str | None) -> list[str]:
    """Return the attacks that fit what leaves, the best first: by what is trained, and by the place of a protection."""
    from discreet.releases.description import GRADIENT, REPRESENTATION

    place = GRADIENT if protect in (None, NONE) else protection_class(str(protect)).place
    if place == REPRESENTATION:
        return _names(REPRESENTATION, first="rss")
    if train == "all":
        return _names(GRADIENT, identifies=None if place == GRADIENT else False, first="dager")
    # without the gradients of the layers near the text, candidates can be told apart, and no text can be read
    return _names(GRADIENT, identifies=True) if place == GRADIENT else []


def _names(kind: str, *, identifies: bool | None = None, first: str = "") -> list[str]:
    """Return the attacks on a kind of release, and only those that identify a candidate or only those that do not."""
    attacks = {name: attack_of(name) for name in ATTACKS}
    fitting = [name for name, attack in attacks.items() if attack.sees.kind == kind]
    if identifies is not None:
        fitting = [name for name in fitting if attacks[name].identifies == identifies]
    return sorted(fitting, key=lambda name: name != first)


class _NamesOthersError(UnsupportedError):
    """An attack does not fit, and the message names those that do."""


@contextmanager
def naming_others(scene: Scene, name: str, protections: Sequence[Protected]) -> Iterator[None]:
    """Let an attack that rejects a release name those that fit it."""
    try:
        yield
    except _NamesOthersError:
        raise
    except UnsupportedError as error:
        built = protections[0].protect
        others = [n for n in _fitting(scene.model.settings.train, None if built is None else built.name) if n != name]
        if not others:
            raise
        again = f"discreet attack {'RUN' if scene.run is not None else '…'} --attack {others[0]}"
        raise _NamesOthersError(error.message + f" These fit: {', '.join(others)}; for example `{again}`.") from None


def _reject_misfit(request: AttackRequest, scene: Scene, name: str, built: Any = None) -> None:
    """Reject an attack on what a protection does not let go, and name those that fit; what is `built` says it all."""
    from discreet.experiment.identification import NOISY
    from discreet.releases.description import GRADIENT, READS, REPRESENTATION, misfit
    from discreet.releases.protected import fits

    place, identifies = protection_class(name).place, request.attack.identifies
    kind = request.attack.sees.kind
    if identifies:
        suits = place == GRADIENT
    elif built is None:  # whether gradients leave beside vectors is known when it is built
        suits = place == kind or kind == GRADIENT
    else:
        suits = fits(kind, built)
    if suits:
        return
    wanted = REPRESENTATION if place == REPRESENTATION else GRADIENT
    named = _names(wanted, identifies=None if place == GRADIENT else False)
    # each of these needs nothing more
    example = next(one for one in ("rss", *_names(GRADIENT, identifies=True), "dager") if one in named)
    again = f"discreet attack {'RUN' if scene.run is not None else f'--protect {name} …'} --attack {example}"
    error = misfit(request.label, NOISY if identifies else READS[kind], name, place)
    raise _NamesOthersError(error.message + f" These fit: {', '.join(named)}; for example `{again}`.")


def set_by(option: str, names: Collection[str]) -> Spelling:
    """Return how settings that have no option of their own are spelled: as NAME=VALUE of another option.

    >>> set_by("--set", {"steps"})("steps", 200), set_by("--set", {"steps"})("steps", None)
    ('--set steps=200', '--set steps=…')
    """

    def spelling(name: str, value: Any) -> str | None:
        if name not in names:
            return None
        return f"{option} {name}={'…' if value is None else str(value).lower() if isinstance(value, bool) else value}"

    return spelling


def _public_vectors(scene: Scene, source: str | None) -> Callable[[], tuple[Tensor, Tensor | None]] | None:
    """Return how to come by vectors of the public text that a protection learns a projection from, if it names one."""
    if source is None:
        return None
    from discreet.data.sources import Columns
    from discreet.training.plan import public_text, public_vectors

    data = None if scene.run is None else scene.run.settings.data
    columns = Columns() if data is None else dataclasses.replace(data.columns, text_pair=None, unit=None)
    return lambda: public_vectors(scene.model, public_text(source, columns), "float32")
