"""What a rewritten file costs the people in it: counted with their trainings before the file is written."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from discreet.accounting.events import event_to_json
from discreet.accounting.ledger import Ledger, Terms
from discreet.core.guarantee import Caveat, Guarantee
from discreet.data.corpus import Corpus
from discreet.protections.words.swap import WordSwap
from discreet.training.people import FIXED_SEED, SANITIZED, About, Entry, Marks, People, Shared

Told = tuple[str, dict[str, Any]]


def rows_of(columns: Mapping[str, Sequence[str]], units: Sequence[str] | None, unit_name: str = "row") -> Corpus:
    """Return all texts of the columns of a file, each with its owner: the unit that is named, or its row.

    >>> rows = rows_of({"note": ["pain", ""], "plan": ["rest", "none"]}, None)
    >>> rows.texts, rows.units
    (('pain', 'rest', 'none'), ('0', '0', '1'))
    """
    owners = [str(row) for row in range(max(map(len, columns.values())))] if units is None else units
    held = [(text, owner) for column in columns.values() for text, owner in zip(column, owners, strict=True)]
    filled = [(text, owner) for text, owner in held if text.strip()]
    return Corpus("file", tuple(t for t, _ in filled), units=tuple(owner for _, owner in filled), unit_name=unit_name)


def marks_of(people: People, columns: Mapping[str, Sequence[str]], rows: Corpus, named: bool) -> Marks:
    """Return by which marks the units of a file are found again.

    Rows without a named unit are known by their texts. A training may read one of the columns, or two as a pair, so
    each of these is a mark.
    """
    if named:
        return people.marks_of(rows)
    alone = [Corpus("file", tuple(text for text in texts if text.strip())) for texts in columns.values()]
    found = [people.marks_of(each) for each in alone]
    for first, second in permutations(columns.values(), 2):
        pairs = [pair for pair in zip(first, second, strict=True) if all(text.strip() for text in pair)]
        found.append(people.marks_of(Corpus("file", tuple(a for a, _ in pairs), second=tuple(b for _, b in pairs))))
    return np.unique(np.concatenate(found))


@contextmanager
def counted_file(
    swap: WordSwap,
    columns: Mapping[str, Sequence[str]],
    units: Sequence[str] | None,
    unit_name: str,
    *,
    delta: float,
    secret: bool,
    out: Path | None,
    ledger: Path | None = None,
    budget: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Callable[[], Told]]:
    """Count a file that is to be rewritten, and yield what must be called before it is written; that returns the total.

    It is counted in the record of these people on this machine, or in a named ledger, for the unit with the most words.
    What would go beyond the budget is rejected here, before a word is drawn. A file that was counted and then could not
    be written stays counted: part of it may have left.

    Guarantee: none of its own; the total has one, over all that is recorded there.
    """
    rows = rows_of(columns, units, unit_name)
    event = swap.cost(rows)
    planned = {event_to_json(event): 1}
    kind = SANITIZED if secret else FIXED_SEED
    stated = swap.stated(Guarantee(1.0, delta, unit_name, swap.adjacency, "pld"))  # for what any figure rests on
    terms = Terms(stated.assumptions, frozenset() if secret else frozenset({Caveat.FIXED_SEED}))
    counted: Entry | Shared
    with Ledger.open(None, unit=unit_name, adjacency=swap.adjacency) as own:
        if ledger is not None:
            counted = Shared.open(ledger, own, delta, planned, budget, SANITIZED)
        else:
            people = People()
            about = About(kind, delta, out, swap.name, "sanitize")
            marks = marks_of(people, columns, rows, units is not None)
            counted = Entry.of(people, rows, own, about, planned, budget, marks)
            before = counted.before()
            if before.releases or before.elsewhere:
                say("Before this file. " + before.sentence())
            counted.check()
        own.also = counted
        finished = False

        def count() -> Told:
            nonlocal finished
            own.spend(event, f"sanitize {secrets.token_hex(8)}", secure=secret, terms=terms)
            finished = True
            return counted.told()

        try:
            yield count
        except BaseException:
            finished = False
            raise
        finally:
            counted.close(finished=finished)
