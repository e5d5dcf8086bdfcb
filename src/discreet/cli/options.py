"""Options that several commands share, each described once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.catalog import CORPORA
from discreet.core.errors import SettingError

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help=f"{', '.join(CORPORA)}, a CSV, TSV, JSONL or Parquet file, a folder "
        "with train.* and validation.*, or hub:NAME.",
    ),
]
Text = Annotated[str, typer.Option("--text", help="Column with the text.")]
TextPair = Annotated[str | None, typer.Option("--text-pair", help="Column with the second text of a pair.")]
Label = Annotated[str, typer.Option("--label", help="Column with the class or the score.")]
Unit = Annotated[str | None, typer.Option("--unit", help="Column that names whose privacy is at stake.")]
Rows = Annotated[
    int | None,
    typer.Option("--rows", help="Keep exactly this many training rows, or make this many notes; else use --share."),
]
Share = Annotated[float | None, typer.Option("--share", help="Keep about this share of the training units.")]
Separator = Annotated[
    str | None,
    typer.Option("--separator", help="Between the columns of CSV and TSV files: ',' or tab by their name, or ';'."),
]
Quoting = Annotated[
    str | None,
    typer.Option(
        "--quoting",
        help="csv: quotation marks stand around fields; none: they are text. CSV is quoted; a TSV is if its header is, "
        "else where only one reading fits, and is rejected where both do.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="The same seed repeats the run.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]
RunText = Annotated[str | None, typer.Option("--text", help="Column with the text; the run's own if not given.")]
RunLabel = Annotated[str | None, typer.Option("--label", help="Column with the label; the run's own if not given.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


def settings_given(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Return settings written as NAME=VALUE, the values as TOML has them, or as plain words.

    >>> settings_given(["steps=200", "rate=0.05", "score=absolute"], "--set")
    {'steps': 200, 'rate': 0.05, 'score': 'absolute'}
    """
    import tomllib

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise SettingError(f"Expected {option} {pair!r} as NAME=VALUE. For example {option} steps=200.")
        try:
            found[name.strip().replace("-", "_")] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip().replace("-", "_")] = value
    return found
