"""Releases: what an outsider sees of private text, with or without a protection, and its description in words."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.core.types import GradientRelease as GradientRelease
    from discreet.core.types import ModelRelease as ModelRelease
    from discreet.core.types import Release as Release
    from discreet.core.types import RepresentationRelease as RepresentationRelease
    from discreet.core.types import TextRelease as TextRelease
    from discreet.releases.description import Misfit as Misfit
    from discreet.releases.gradient import hidden_release as hidden_release
    from discreet.releases.gradient import open_release as open_release
    from discreet.releases.gradient import protected_release as protected_release
    from discreet.releases.gradient import rewritten_release as rewritten_release
    from discreet.releases.protected import Released as Released
    from discreet.releases.protected import misfit as misfit
    from discreet.releases.protected import release_of as release_of
    from discreet.releases.representation import representation_release as representation_release

_NAMES = {
    "discreet.core.types": ("GradientRelease", "ModelRelease", "Release", "RepresentationRelease", "TextRelease"),
    "discreet.releases.description": ("Misfit",),
    "discreet.releases.gradient": ("hidden_release", "open_release", "protected_release", "rewritten_release"),
    "discreet.releases.protected": ("Released", "misfit", "release_of"),
    "discreet.releases.representation": ("representation_release",),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
