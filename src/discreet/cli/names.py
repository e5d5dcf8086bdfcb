"""`discreet names`: the attacks, protections, metrics and corpora by name, with those of other packages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from discreet.catalog import ATTACKS, CORPORA, PROTECTIONS, Entry, metrics
from discreet.cli.options import Json
from discreet.cli.output import as_json, line, note, working
from discreet.core.errors import one_of

_BUILT_IN = "built in"
_KINDS = ("attacks", "protections", "metrics", "corpora")


def names(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help=", ".join(_KINDS) + ".", show_default="all kinds")
    ] = None,
    json: Json = False,
) -> None:
    """List the attacks, protections, metrics and corpora that a command, a study or Python can name.

    Those of other packages are imported and listed with their package. One
    that cannot be used is reported, and the others are listed.
    """
    kinds = _KINDS if kind is None else (one_of("kind", kind, _KINDS),)
    with working("starting"):
        found = {one: _rows(one) for one in kinds}
    if json:
        as_json(found)
        return
    for one, rows in found.items():
        line(f"{one}:")
        for row in rows:
            if not row["fault"]:
                line(f"  {row['name']}", row["package"], row["help"], sep="\t")
    for rows in found.values():
        for row in rows:
            if row["fault"]:
                note(row["fault"])


def _rows(kind: str) -> list[dict[str, Any]]:
    """Return the name, package and help of every entry of a kind, and why a plug-in cannot be used."""
    table: Any = {"attacks": ATTACKS, "protections": PROTECTIONS, "corpora": CORPORA}.get(kind)
    table = metrics() if table is None else table
    rows = [_row(name, _BUILT_IN, entry) for name, entry in table.items()]
    return rows + [_row(one.plug_in.name, one.plug_in.package, one.entry, one.fault) for one in table.listed()]


def _row(name: str, package: str, entry: Any, fault: str = "") -> dict[str, Any]:
    about = "" if entry is None else entry.help if isinstance(entry, Entry) else entry.label
    return {"name": name, "package": package, "help": about, "fault": fault}
