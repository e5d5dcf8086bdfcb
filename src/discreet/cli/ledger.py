"""`discreet ledger`: show the spends of a ledger, its guarantee and its remaining budget."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json, line, paragraph, working
from discreet.core.errors import invalid
from discreet.core.files import in_unfinished_run
from discreet.core.guarantee import LARGEST_DELTA, in_digits

if TYPE_CHECKING:
    from discreet.accounting.ledger_file import Statement
    from discreet.core.guarantee import Guarantee
    from discreet.runs.people import Record

_MOST_KINDS = 8  # ledgers with more kinds of events do not list what still fits in the budget


def ledger(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="Ledger file or run folder. Default: all recorded releases."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="Delta of the guarantee. Default: that of the budget.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the spends of a ledger, its guarantee, the remaining budget and traces of crashes.

    Without PATH, list the training runs and sanitized files recorded on this
    machine, and their total.
    """
    if path is None:
        _all_releases(json)
        return
    if (path / "client-0").is_dir() and not (path / "ledger.jsonl").exists():
        remedy = f"Each client of a federated run has its own ledger, such as {path / 'client-0'}."
        raise invalid("PATH", str(path), "the folder of one client", remedy)
    path = path / "ledger.jsonl" if path.is_dir() else path
    with working("reading the ledger and accounting for it"):
        from discreet.accounting.ledger import Ledger

        statement = Ledger.read(path)
        values = _values(path, statement, delta) if json else {}
        guarantee = None
        if delta is not None or statement.budget is not None:
            guarantee = statement.guarantee(delta)
        restated = _restated(statement, delta)
        budget, remaining, unfinished = statement.budget, _remaining(statement), in_unfinished_run(path)
        spent = 0.0 if budget is None else statement.guarantee().epsilon
    if json:
        as_json(values)
        return
    paragraph(f"{path}: for each {statement.unit}, under {statement.adjacency.value} adjacency.")
    line("Spent, with counts:" if statement.spent else "Nothing was spent.")
    for event, count in statement.spent:
        paragraph(_words(event), f"{count:12,}  ")
    for remark in _remarks(statement):
        paragraph(remark)
    if guarantee is None:
        paragraph("Pass --delta to see the guarantee: the ledger has no budget that sets it.")
        return
    if unfinished:
        paragraph("The run of this ledger is unfinished. All of its planned steps are counted already.")
    paragraph(guarantee.sentence())
    if restated is not None:
        paragraph(
            f"At delta {in_digits(restated.delta)}, the largest default delta of new runs: epsilon "
            f"{in_digits(restated.epsilon)}."
        )
    if budget is not None:
        paragraph(
            f"Budget: epsilon {in_digits(budget.epsilon)} at delta {in_digits(budget.delta)}, of which "
            f"{in_digits(spent)} is spent."
        )
        for event, more in remaining:
            paragraph(f"The budget allows {more:,} more spends of {_words(event)}.")


def _all_releases(json: bool) -> None:
    from discreet.runs.people import COUNTED, STUDY, People, people_totals

    people = People()
    with working("adding up the recorded releases"):
        records, totals = people.records(), people_totals()
        guarantees = [people.guarantee_of(record) for record in records]
        pairs = list(zip(records, guarantees, strict=True))
    if json:

        def as_dict(record: Record, own: Guarantee | None) -> dict[str, Any]:
            return {**{key: getattr(record, key) for key in keys}, "guarantee": own and own.as_dict()}

        keys = ("kind", "began", "unit", "adjacency", "units", "protection", "out", "finished", "spends")
        as_json(
            {
                "home": str(people.home),
                "trainings": [as_dict(*pair) for pair in pairs if pair[0].command != "sanitize"],
                "sanitized_files": [as_dict(*pair) for pair in pairs if pair[0].command == "sanitize"],
                "totals": [
                    {"unit": total.guarantee.unit, "adjacency": total.guarantee.adjacency.value, **total.as_dict()}
                    for total in totals
                ],
            }
        )
        return
    what = "Training runs and sanitized files" if any(one.command == "sanitize" for one in records) else "Training runs"
    private = f"{what} recorded in {people.home} (private detail, do not share this list):"
    paragraph(private if records else "No release was recorded.")
    for record, own in pairs:
        study = record.kind == STUDY
        times = "spend" if record.spends == 1 else "spends"
        spends = "" if study else f", {record.units:,} {record.unit}s, {record.spends:,} {times}{_figure(own)}"
        state = "" if record.finished or study else ", unfinished"
        remark = (
            "" if record.kind in COUNTED else f" ({record.kind}, not in the total: for experiments, not for release)"
        )
        prefix = "sanitize " if record.command == "sanitize" else ""
        paragraph(f"{prefix}{record.protection}{spends}{state}: {record.out}{remark}", f"{record.began[:10]}  ")
    for total in totals:
        guarantee = total.guarantee
        unit, adjacency = guarantee.unit, guarantee.adjacency
        deltas = {own.delta for own in guarantees if own and (own.unit, own.adjacency) == (unit, adjacency)}
        restated = ""
        if len(deltas) > 1:
            restated = (
                f", all restated at their smallest delta, {in_digits(guarantee.delta)}, which makes an epsilon stated "
                "at a larger delta larger"
            )
        paragraph(
            f"The {unit} with the largest total over {total.over} ({adjacency.value}){restated}: {guarantee.sentence()}"
        )
        if total.remarks:
            paragraph(" ".join(total.remarks))


def _figure(guarantee: Guarantee | None) -> str:
    """Return the epsilon of one release at its own delta, with its adjacency."""
    if guarantee is None:
        return ""
    if not guarantee.exists:
        return f", no bound ({guarantee.adjacency.value})"
    kind = "" if guarantee.certified else "an estimated "
    figure = f"epsilon {in_digits(guarantee.epsilon)} at delta {in_digits(guarantee.delta)}"
    return f", {kind}{figure} ({guarantee.adjacency.value})"


def _values(path: Path, statement: Statement, delta: float | None) -> dict[str, Any]:
    import json as text

    from discreet.accounting.events import event_to_json

    has_delta = delta is not None or statement.budget is not None
    restated = _restated(statement, delta)
    return {
        "path": str(path),
        **statement.values(),
        "spent": [{"event": text.loads(event_to_json(event)), "count": count} for event, count in statement.spent],
        "unfinished": statement.unfinished,
        "unfinished_run": in_unfinished_run(path),
        "guarantee": statement.guarantee(delta).as_dict() if has_delta else None,
        **({} if restated is None else {"guarantee_at_default_delta": restated.as_dict()}),
        "remaining": [
            {"event": text.loads(event_to_json(event)), "spends": more} for event, more in _remaining(statement)
        ],
    }


def _restated(statement: Statement, delta: float | None) -> Guarantee | None:
    """Return the guarantee at the largest default delta, if that of the budget is larger and no other is wanted."""
    if delta is not None or statement.budget is None or statement.budget.delta <= LARGEST_DELTA:
        return None
    restated = statement.guarantee(LARGEST_DELTA)
    return restated if restated.exists else None


def _remaining(statement: Statement) -> list[tuple[Any, int]]:
    if statement.budget is None or len(statement.spent) > _MOST_KINDS:
        return []
    return [(event, statement.remaining(event)) for event, _ in statement.spent]


def _remarks(statement: Statement) -> list[str]:
    lines = []
    if statement.respent:
        lines.append(
            f"Repeated ids: {statement.respent:,}. Secure randomness does not repeat, so each of these spends counts."
        )
    if statement.torn:
        lines.append(f"Lines truncated by a crash: {statement.torn:,}. Each of them counts as spent.")
    if statement.unfinished:
        lines.append("The last line is incomplete: a crash truncated it, or it is being written now.")
    return lines


def _words(event: Any) -> str:
    """Return the Python expression of an event, with numbers to six digits; --json has all digits."""
    text = re.sub(r"\d+\.\d+(e[-+]\d+)?", lambda number: str(float(f"{float(number[0]):.6g}")), repr(event))
    text = text.replace("DpEvent(", "(")
    # A deeply nested event has no spaces where a line could be broken.
    return re.sub(r"\((?=events?=|\(|[A-Z])", "( ", text) if text.startswith("RepeatAndSelect(") else text
