"""`discreet cache`: what is kept of encoded text, and how to delete it."""

from __future__ import annotations

from typing import Annotated

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json, paragraph
from discreet.core.errors import one_of


def cache(
    action: Annotated[str, typer.Argument(metavar="[clear]", help="clear deletes everything.")] = "show",
    json: Json = False,
) -> None:
    """Show what is kept of encoded text, or delete it.

    The outputs of a frozen encoder are kept so that the next training does not
    compute them again. They reveal the text. A protected training keeps none,
    unless it is given --cache.
    """
    one_of("action", action, ("show", "clear"))
    from discreet.training.encode import cached, clear_cache

    found = clear_cache() if action == "clear" else cached()
    if json:
        as_json({"folder": str(found.folder), "files": found.files, "bytes": found.bytes, "cleared": action == "clear"})
    elif action == "clear" and found.files:
        paragraph(f"Deleted {found.files:,} files, {found.bytes / 1e6:.1f} MB, from {found.folder}.")
    else:
        paragraph(found.sentence())
