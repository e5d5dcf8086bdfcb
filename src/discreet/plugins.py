"""Attacks, protections, metrics and corpora of other packages: plug-ins, and classes named as `module:Name`.

An installed package declares plug-ins as entry points of the groups `discreet.attacks`, `discreet.protections`,
`discreet.metrics` and `discreet.corpora`. `Names` holds the entries of one kind that belong to this package, and finds
the others: `module:Name` is imported, any other name is searched among the entry points. They are read only for a name
that is not built in, or to list names; a plug-in is imported only when it is used.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Generic, TypeVar

from discreet.core.errors import SettingError, did_you_mean, first_line, invalid, shown

E = TypeVar("E")
# Makes an entry of what a plug-in names: its name, "module:Name", and the object. Raises `Unfit` for a wrong object.
Make = Callable[[str, str, Any], E]

GROUPS = {
    kind: f"discreet.{plural}"
    for kind, plural in (
        ("attack", "attacks"),
        ("protection", "protections"),
        ("metric", "metrics"),
        ("corpus", "corpora"),
    )
}
_PACKAGE = __name__.partition(".")[0]
_WORD = r"[^\W\d]\w*"
_PATH = re.compile(rf"{_WORD}(\.{_WORD})*:{_WORD}(\.{_WORD})*")
_NAME = re.compile(r"[\w+-]+")  # of a plug-in: neither a path nor a file name
_HUB = "hub:"  # begins the name of a data set of the Hugging Face hub


class Unfit(Exception):  # noqa: N818 (it completes a sentence, which `PlugInError` holds)
    """What is wrong with a plug-in: the rule, which completes "Expected it to …", and what it is instead."""

    def __init__(self, rule: str, got: str) -> None:
        """Store the two parts of the sentence."""
        super().__init__(rule, got)
        self.rule, self.got = rule, got


class PlugInError(SettingError):
    """A plug-in, or a class named as `module:Name`, cannot be used; the message names it and its package."""


@dataclass(frozen=True)
class PlugIn:
    """An entry point of an installed package: a name and "module:Name"; `package` is the package and its version."""

    name: str
    path: str
    package: str


@dataclass(frozen=True)
class Listed(Generic[E]):
    """A plug-in in a list of names: its entry, or a sentence that says why it cannot be used."""

    plug_in: PlugIn
    entry: E | None = None
    fault: str = ""


@functools.cache
def plug_ins(kind: str) -> tuple[PlugIn, ...]:
    """Return the plug-ins of a kind that installed packages declare, without importing them."""
    from importlib.metadata import entry_points  # which takes longer to import than this package

    found = {
        PlugIn(point.name, point.value, "" if point.dist is None else f"{point.dist.name} {point.dist.version}")
        for point in entry_points(group=GROUPS[kind])
    }
    return tuple(sorted(found, key=lambda one: (one.name, one.package)))


def is_path(name: object) -> bool:
    """Return whether a name has the form `module:Name`.

    >>> is_path("pkg.module:Class"), is_path("dp-sgd"), is_path("hub:imdb")
    (True, False, False)
    """
    return isinstance(name, str) and _PATH.fullmatch(name) is not None and not name.startswith(_HUB)


def is_of_package(kind: type) -> bool:
    """Return whether a class is defined in this package.

    >>> is_of_package(PlugIn), is_of_package(Path)
    (True, False)
    """
    if kind.__module__.partition(".")[0] != _PACKAGE:
        return False
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def name_of(kind: type, what: str, name: str) -> str:
    """Return the name by which a class is found again: its own, or `module:Name` if that is not the name of a plug-in.

    >>> name_of(Path, "attack", "lamp")
    'pathlib:Path'
    """
    path = f"{kind.__module__}:{kind.__qualname__}"
    if is_of_package(kind) or [one.path for one in plug_ins(what) if one.name == name] == [path]:
        return name
    return path


def check_name(name: str, declared: object) -> None:
    """Reject an object of a plug-in that declares another name than its entry point, under which it is not found."""
    if not is_path(name) and declared != name:
        raise Unfit("named like its entry point", f"the name {shown(declared)}")


def docstring_line(documented: object) -> str:
    """Return the first line of a docstring, or an empty string."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


class Names(dict[str, E], Generic[E]):
    """The entries of one kind by name.

    Iterating gives the entries of this package. `in` and `[]` also find plug-ins and `module:Name`; a name of this
    package is never that of a plug-in. `kind` is one of `GROUPS`.
    """

    def __init__(self, kind: str, entries: Mapping[str, E], make: Make[E]) -> None:
        """Hold the entries of this package; `make` checks what a plug-in names, and returns its entry."""
        super().__init__(entries)
        self.kind, self._make = kind, make
        self._made: dict[str, E] = {}

    def __contains__(self, name: object) -> bool:
        """Return whether there is an entry, a plug-in or a `module:Name` of this name; nothing is imported."""
        return self.owns(name) or is_path(name) or bool(self._plug_ins_named(name))

    def __missing__(self, name: str) -> E:
        """Return the entry of a plug-in or of `module:Name`, which is imported."""
        if name in self._made:
            return self._made[name]
        if is_path(name):
            entry = self._checked(name, name, f"the {self.kind} {name!r}", of_package=False)
        else:
            plug_in = self._one(name)
            entry = self._checked(name, plug_in.path, self._in_words(plug_in), of_package=True)
        self._made[name] = entry
        return entry

    def owns(self, name: object) -> bool:
        """Return whether a name is that of an entry of this package."""
        return super().__contains__(name) if isinstance(name, str) else False

    def known(self, name: str) -> E | None:
        """Return the entry of a name, or None; for labels in reports, which need no entry.

        A plug-in that cannot be used has none. The module of `module:Name` is not imported for it.
        """
        if is_path(name) and name.partition(":")[0] not in sys.modules:
            return None
        if name not in self:
            return None
        try:
            return self[name]
        except PlugInError:
            return None

    def check(self, setting: str, name: str, *others: str) -> str:
        """Return the name of an entry or of `others`, or raise SettingError for the setting that names it."""
        if (self.owns(name) or name in others) or (isinstance(name, str) and name in self):
            return name
        names = [*others, *self, *sorted({one.name for one in self.plug_ins})]
        remedy = f"No installed package has a {self.kind} of this name."
        guess = did_you_mean(name, names) if isinstance(name, str) else ""
        raise invalid(setting, name, "one of " + ", ".join(names), guess or remedy)

    @property
    def plug_ins(self) -> tuple[PlugIn, ...]:
        """The plug-ins of this kind whose names are not taken by entries of this package."""
        return tuple(one for one in plug_ins(self.kind) if not self.owns(one.name))

    def usable(self) -> dict[str, E]:
        """Return the entries of this package and of every plug-in that can be used, which is imported."""
        found = {one.name: entry for one in self.plug_ins if (entry := self.known(one.name)) is not None}
        return {**self, **found}

    def listed(self) -> list[Listed[E]]:
        """Return every plug-in with its entry, or with a sentence that says why it cannot be used; all are imported."""
        found: list[Listed[E]] = []
        for one in plug_ins(self.kind):
            try:
                if self.owns(one.name):
                    raise self._error(
                        self._in_words(one), "named differently from every built-in one", f"{one.name!r} is built in"
                    )
                found.append(Listed(one, self[one.name]))
            except PlugInError as error:
                found.append(Listed(one, fault=str(error)))
        return found

    def _plug_ins_named(self, name: object) -> list[PlugIn]:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            return []  # a file, which is not worth reading what is installed
        return [one for one in plug_ins(self.kind) if one.name == name]

    def _one(self, name: str) -> PlugIn:
        found = self._plug_ins_named(name)
        if not found:
            raise KeyError(name)
        if len(found) > 1:
            packages = " and ".join(one.package or one.path for one in found)
            raise PlugInError(
                f"Expected one package with the {self.kind} {name!r}, got {packages}. Uninstall one of them, or name "
                f"the class: {found[0].path}."
            )
        return found[0]

    def _in_words(self, plug_in: PlugIn) -> str:
        return f"the {self.kind} {plug_in.name!r} of the package {plug_in.package} ({plug_in.path})"

    def _checked(self, name: str, path: str, words: str, *, of_package: bool) -> E:
        try:
            return self._make(name, path, _imported(path))
        except Unfit as error:
            remedy = "Fix or uninstall the package."
            if not of_package:
                remedy = "Fix it, install its package, or put its folder on PYTHONPATH."
            raise self._error(words, error.rule, error.got, remedy) from error.__cause__

    def _error(self, words: str, rule: str, got: str, remedy: str = "Rename or uninstall it.") -> PlugInError:
        return PlugInError(f"Expected {words} to be {rule}, got {got}. {remedy}")


def _imported(path: str) -> Any:
    """Import "module:Name" and return what it names; raise `Unfit` whatever goes wrong in the module."""
    module, _, name = path.partition(":")
    if not is_path(path):
        raise Unfit("of the form module:Name", repr(path))
    _check_place(module)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise Unfit("importable", f"{type(error).__name__}: {first_line(error)}") from error
    return found


def _check_place(module: str) -> None:
    """Reject a module that nobody installed: one of the working folder, or of Python's own library.

    A study, a run folder or somebody else's message may name any module. One that is installed, imported already or
    in a folder of PYTHONPATH was chosen by the user; a file that came with the study was not.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise Unfit("in an installed package", f"the standard-library module {top!r}")
    if module in sys.modules or top in sys.modules:
        return
    here = Path.cwd().resolve()
    chosen = [Path(one).resolve() for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    others = [one for one in sys.path if one and (Path(one).resolve() != here or here in chosen)]
    found, elsewhere = PathFinder.find_spec(top), PathFinder.find_spec(top, others)
    if found is None:
        return
    places = [Path(one) for one in found.submodule_search_locations or ()] if found.origin is None else []
    installed = [*chosen, *(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))]
    is_loose = any(not any(one.is_relative_to(folder) for folder in installed) for one in places)  # a folder of files
    if is_loose or elsewhere is None or elsewhere.origin != found.origin:
        raise Unfit(
            "in a folder of PYTHONPATH, or installed",
            f"the module {top!r} of the working folder, which is not imported by its name alone",
        )
