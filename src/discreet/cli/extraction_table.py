"""Tables below the metrics of `discreet attack` with an attack on what a model memorized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from discreet.cli.output import plain
from discreet.report.words import at_most

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_details(details: Mapping[str, Any], console: Console) -> None:
    """Print what an attack found, in tables that fit 80 columns."""
    if "exposure" in details:
        console.print(exposure_table(details["exposure"]))
    if "trials" in details:
        console.print(share_table(details))
        console.print(item_table(details["items"]))
    for row in details.get("classes", ()):
        if isinstance(row, Mapping):
            console.print(plain(f"{row['class']} ({row['probability']:.4f}): {row['text']}"))


def exposure_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the mean exposure in bits by the number of copies of a canary."""
    bounded = any(row["bound"] is not None for row in rows)
    table = _table(["copies", "canaries", "mean bits", "95% interval", "chance", *(["at most"] if bounded else [])])
    for row in rows:
        cells = [str(row["copies"]), str(row["canaries"]), f"{row['mean']:.2f}"]
        cells += [f"[{row['low']:.2f}, {row['high']:.2f}]", f"{row['chance']:.2f}"]
        table.add_row(*cells, *([at_most(row["bound"], 3)] if bounded else []))
    return table


def share_table(details: Mapping[str, Any]) -> Table:
    """Return the share of texts whose continuation appears within n samples with probability p, by n and p."""
    training, unseen = details["training"], details["unseen"]
    table = _table(["samples n", *(f"p={p}" for p in training), *(f"unseen {p}" for p in unseen or ())])
    for place, trials in enumerate(details["trials"]):
        shares = [row[place] for part in (training, unseen or {}) for row in part.values()]
        table.add_row(f"{trials:,}", *(f"{share:.3f}" for share in shares))
    return table


def item_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return by category what sampled texts hold, and where else it stands."""
    table = _table(["sampled", "different", "in training text", "there only", "elsewhere"])
    table.columns[0].justify = "left"
    for row in rows:
        elsewhere = row["in_unseen_text_only"] + row["in_neither"]
        counts = (row["sampled"], row["in_training_text"], row["in_training_text_only"], elsewhere)
        table.add_row(str(row["category"]), *(f"{count:,}" for count in counts))
    return table


def _table(heads: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right")
    return table
