"""The protections that an attack is set against: one, or the same one at several strengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.cli.output import note
from discreet.core.checks import refuse
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.remedies import Say, saying

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.experiment import AttackRequest, Scene


# Settings of a protection for which an attack has an option; `--public` is text that the attacker has.
_OPTIONS = {"noise_multiplier", "kappa", "epsilon", "delta", "clip_norm"}


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
            raise refuse(name, value, "a number, or several with commas", "") from None
    if not found:
        raise refuse(name, ",".join(values), "a number, or several with commas", "")
    return found


def protections_asked(
    request: AttackRequest,
    scene: Scene,
    protect: str | None,
    strengths: tuple[str, list[float]] | None,
    given: dict[str, Any],
) -> list[tuple[str, Any]]:
    """Return the protections to attack with the words for each: the one asked for, at every strength asked for."""
    from discreet.cli import catalog

    name, base = protect, dict(given)
    if name is None and strengths is not None and strengths[0] != "epsilon":
        name = {"noise_multiplier": "dp-sgd", "kappa": "dir-dp-sgd"}[strengths[0]]
    if name is None and strengths is None:
        own = catalog.protection_of_run(scene)
        if own is not None:
            name, base = own[0], {**own[1], **given}
            note(f"The release is protected as the run's training was, by {name}; --protect none attacks a plain one.")
        elif request.name == catalog.ONE_OF_N:
            name, strengths = "dp-sgd", ("noise_multiplier", list(catalog.USUAL_NOISES))
    if name is None or name == catalog.NONE:
        for option in [*given, *([strengths[0]] if strengths else [])]:
            raise refuse(
                option, given.get(option, strengths and strengths[1][0]), "together with --protect", "Name one."
            )
        return [("no protection", None)]
    _refuse_misfit(request, scene, name)
    if name == "dp-sgd":
        base.setdefault("clip_norm", catalog.CLIP_NORM)
    values: list[float | None] = list(strengths[1]) if strengths else [None]
    found = []
    for value in values:
        asked = base if strengths is None else {**base, strengths[0]: value}
        public = _public_vectors(scene, asked.get("public"))
        with saying(_protect_set(name)):
            built = catalog.protection_of(
                name, scene.model, asked, delta=request.delta, batch_size=request.batch_size, public=public
            )
        _refuse_misfit(request, scene, name, built)
        words = name if strengths is None else f"{strengths[0].replace('_', ' ')} {value:g}"
        found.append((words, built))
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
    from discreet.cli import catalog
    from discreet.experiment.releases import GRADIENT, REPRESENTATION, kind_of
    from discreet.protections.settings import settings_of

    place = GRADIENT if protect in (None, catalog.NONE) else settings_of(str(protect)).place
    if place == REPRESENTATION:
        return ["rss", *(n for n in catalog.ATTACKS if n != "rss" and kind_of(catalog.attack_class(n)) == place)]
    if train == "all":
        gradient = [n for n in catalog.ATTACKS if kind_of(catalog.attack_class(n)) == GRADIENT and n != "dager"]
        return ["dager", *(n for n in gradient if place == GRADIENT or n != catalog.ONE_OF_N)]
    # without the gradients of the layers near the text, candidates can be told apart, and no text can be read
    return [catalog.ONE_OF_N] if place == GRADIENT else []


@contextmanager
def naming_others(scene: Scene, name: str, protections: Sequence[tuple[str, Any]]) -> Iterator[None]:
    """Let an attack that rejects a release name those that fit it."""
    try:
        yield
    except UnsupportedError as error:
        built = protections[0][1]
        others = [
            n for n in _fitting(scene.model.settings.train, getattr(built, "name", None)) if n not in (name, "masked")
        ]
        if not others or "These fit" in str(error):
            raise
        again = f"discreet attack {'RUN' if scene.run is not None else '…'} --attack {others[0]}"
        raise UnsupportedError(f"{error} These fit: {', '.join(others)}; for example `{again}`.") from None


def _refuse_misfit(request: AttackRequest, scene: Scene, name: str, built: Any = None) -> None:
    """Refuse an attack on what a protection does not let go, and name those that fit; what is `built` says it all."""
    from discreet.cli import catalog
    from discreet.experiment.identification import NOISY
    from discreet.experiment.releases import GRADIENT, READS, REPRESENTATION, fits, kind_of, misfit
    from discreet.protections.settings import settings_of

    place, identifies = settings_of(name).place, request.name == catalog.ONE_OF_N
    kind = kind_of(request.attack)
    if identifies:
        suits = place == GRADIENT
    elif built is None:  # whether gradients leave beside vectors is known when it is built
        suits = place == kind or kind == GRADIENT
    else:
        suits = fits(kind, built)
    if suits:
        return
    wanted = REPRESENTATION if place == REPRESENTATION else GRADIENT
    named = [one for one in catalog.ATTACKS if kind_of(catalog.attack_class(one)) == wanted]
    if place != GRADIENT:
        named = [one for one in named if one != catalog.ONE_OF_N]
    usual = next(one for one in ("rss", catalog.ONE_OF_N, "dager") if one in named)  # each asks for nothing more
    again = f"discreet attack {'RUN' if scene.run is not None else f'--protect {name} …'} --attack {usual}"
    error = misfit(request.label, NOISY if identifies else READS[kind], name, place)
    raise UnsupportedError(f"{error} These fit: {', '.join(named)}; for example `{again}`.")


def _protect_set(name: str) -> Say:
    """Return how a setting of a protection is given to an attack, where that is not by an option of its own."""
    from discreet.protections.settings import settings_of

    known = {field.name for field in dataclasses.fields(settings_of(name))} - _OPTIONS

    def say(setting: str, value: str | None) -> str | None:
        return f"--protect-set {setting}={value or '…'}" if setting in known else None

    return say


def _public_vectors(scene: Scene, source: str | None) -> Callable[[], tuple[Tensor, Tensor | None]] | None:
    """Return how to come by vectors of the public text that a protection learns a projection from, if it names one."""
    if source is None:
        return None
    from discreet.data.sources import Columns
    from discreet.experiment.plan import public_text, public_vectors

    data = None if scene.run is None else scene.run.settings.data
    columns = Columns() if data is None else dataclasses.replace(data.columns, text_pair=None, unit=None)
    return lambda: public_vectors(scene.model, public_text(source, columns), "float32")
