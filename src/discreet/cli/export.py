"""`discreet export`: write a trained model as a folder that transformers can load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import Json, RunFolder
from discreet.cli.output import as_json, line, working


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist yet.")],
    json: Json = False,
) -> None:
    """Write the model of a run as a folder for transformers.

    LoRA adapters are merged into the model. The model card states the
    guarantee, in words and in its front matter.
    """
    with working("exporting"):
        from discreet.runs.folder import load_run

        loaded = load_run(run)
        kind = loaded.save_pretrained(out)
    if json:
        as_json({"run": str(run), "out": str(out), "class": kind})
        return
    line(f"Written to {out}. Open it with transformers.{kind}.from_pretrained({str(out)!r}).")
