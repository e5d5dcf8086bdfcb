"""`discreet report`: write the report of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json, line, paragraph


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that `discreet calibrate` wrote.")],
    json: Json = False,
) -> None:
    """Write report.html, report.md and model_card.md into a study's folder.

    The page is one file that opens offline. It shows private texts: keep it as private as the data.
    """
    from discreet.report import check_installed

    check_installed()
    from discreet.report.page import write_report

    written = write_report(folder)
    if json:
        as_json(
            {
                "report": str(written.page),
                "markdown": str(written.markdown),
                "card": str(written.card),
                "verdict": list(written.verdict),
            }
        )
        return
    paragraph(" ".join(written.verdict))
    line(f"Report: {written.page}")
