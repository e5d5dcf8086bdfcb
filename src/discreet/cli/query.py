"""`discreet query`: protect text here, count it, send the release, and print what the server says."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, TextPair
from discreet.cli.output import as_json, note
from discreet.core.errors import BudgetError, DataError, OutputError

if TYPE_CHECKING:
    from discreet.training.local import UserSide


def query(
    folder: Annotated[
        Path, typer.Argument(metavar="CLIENT", help="The client folder of a run, such as runs/a/client.")
    ],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to ask about; without any, see --file.")
    ] = None,
    server: Annotated[str, typer.Option("--server", help="Address of the server.")] = "http://127.0.0.1:8765",
    source: Annotated[
        str, typer.Option("--file", help="One text a line, or CSV, TSV, JSONL, Parquet; - reads stdin.")
    ] = "-",
    text: Annotated[str, typer.Option("--text", help="Column with the text.")] = "text",
    text_pair: TextPair = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 10.0,
    json: Json = False,
) -> None:
    """Print a label and its probability, or a score, for each text, which never leaves this machine.

    Every text is counted in the client's ledger before its release is sent. In plain lines, and as arguments, the two
    texts of a pair are separated by a tab.
    """
    from discreet.core.checks import positive
    from discreet.serving.client import RemoteServer
    from discreet.training.local import UserSide

    remote = RemoteServer(server, positive("timeout", timeout, "It is in seconds."))
    with UserSide.load(folder) as user:
        first, second = _texts(texts, source, text, text_pair, user.pairs)
        about = remote.about()  # a server that is not there, or is another's, costs nothing
        if about.width != user.width:
            raise DataError(
                f"Expected a server for vectors {user.width} wide, found {about.width} at {server!r}. Use "
                "the server folder that was written with this client. Nothing was spent or sent."
            )
        try:
            release = user.protect(first, second)
        except BudgetError as error:
            raise BudgetError(f"{error} Nothing was sent.") from None
        try:
            answers = remote.answers(release.vectors.numpy(), about)
        except (DataError, OutputError) as error:
            raise type(error)(f"{error} The ledger has counted {len(first)} texts: they may have been seen.") from None
        _print(answers, user, json)


def _texts(
    given: list[str] | None, source: str, text: str, text_pair: str | None, pairs: bool
) -> tuple[list[str], list[str] | None]:
    from discreet.data.columns import read_columns
    from discreet.data.corpus import check_texts

    lines = list(given or ())
    if not lines:
        suffix = Path(source).suffix.lower() if source != "-" else ".txt"
        columns = (text, text_pair) if text_pair else (text,)
        if source == "-" and sys.stdin.isatty():
            raise DataError("Expected a text, --file FILE, or text on stdin. Give one of them.")
        found = read_columns(source, suffix, columns).texts
        if text_pair:
            return found[text], found[text_pair]
        lines = [line for line in found[text] if line.strip()]
    check_texts(lines, "the command line" if given else source)
    if not pairs:
        return lines, None
    split = [line.split("\t") for line in lines]
    for number, parts in enumerate(split, start=1):
        if len(parts) != 2:
            raise DataError(f"Expected two texts separated by a tab in text {number}. The model reads pairs.")
    return [a for a, _ in split], [b for _, b in split]


def _print(answers: list[dict[str, Any]], user: UserSide, json: bool) -> None:
    spent = user.spent()
    left = user.ledger.remaining(user.layer.event) if user.ledger.budget is not None else None
    if json:
        as_json(
            {
                "answers": answers,
                "per_text": user.guarantee.as_dict(),
                "spent": spent.as_dict(),
                "queries_left": left,
            }
        )
        return
    for answer in answers:
        said = (f"{answer['score']:.4f}",) if "score" in answer else (answer["label"], f"{answer['probability']:.4f}")
        print(*said, sep="\t")
    sys.stdout.flush()
    kind = "" if user.guarantee.certified else " (an estimate)"
    note(f"Each text: epsilon = {user.guarantee.epsilon:.4g}, delta = {user.guarantee.delta:.3g}{kind}.")
    total = f"{spent.epsilon:.4g}" if math.isfinite(spent.epsilon) else "unbounded"
    note(
        f"All queries from here so far: epsilon = {total}" + ("." if left is None else f"; {left:,} more are allowed.")
    )
