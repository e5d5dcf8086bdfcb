"""Privacy cost of a rewritten file, recorded with the training runs of the same people before the file is written."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from discreet.accounting.events import event_to_json
from discreet.accounting.interpret import guarantee_of
from discreet.accounting.ledger import Ledger, Terms
from discreet.core.guarantee import Caveat, Guarantee
from discreet.data.corpus import Corpus
from discreet.protections.words.swap import WordSwap
from discreet.runs.people import FIXED_SEED, SANITIZED, About, Entry, Marks, People, Shared

Summary = tuple[str, dict[str, Any]]  # the total as a sentence and as plain values


def rows_of(columns: Mapping[str, Sequence[str]], units: Sequence[str] | None, unit_name: str = "row") -> Corpus:
    """Return all texts of the columns of a file, each with its owner: the named unit, or its row.

    >>> rows = rows_of({"note": ["pain", ""], "plan": ["rest", "none"]}, None)
    >>> rows.texts, rows.units
    (('pain', 'rest', 'none'), ('0', '0', '1'))
    """
    owners = [str(row) for row in range(max(map(len, columns.values())))] if units is None else units
    pairs = [(text, owner) for column in columns.values() for text, owner in zip(column, owners, strict=True)]
    filled = [(text, owner) for text, owner in pairs if text.strip()]
    return Corpus("file", tuple(t for t, _ in filled), units=tuple(owner for _, owner in filled), unit_name=unit_name)


def marks_of(people: People, columns: Mapping[str, Sequence[str]], rows: Corpus, named: bool) -> Marks:
    """Return the hashes by which the units of a file are recognized.

    Rows without a named unit are identified by their texts. A training run may read one of the columns, or two as a
    pair, so each of these has a hash.
    """
    if named:
        return people.marks_of(rows)
    corpora = [Corpus("file", tuple(text for text in texts if text.strip())) for texts in columns.values()]
    for first, second in permutations(columns.values(), 2):
        pairs = [pair for pair in zip(first, second, strict=True) if all(text.strip() for text in pair)]
        corpora.append(Corpus("file", tuple(a for a, _ in pairs), second=tuple(b for _, b in pairs)))
    return np.unique(np.concatenate([people.marks_of(corpus) for corpus in corpora]))


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
) -> Iterator[Callable[[], Summary]]:
    """Prepare to record a rewritten file, and yield a function that records it and returns the total.

    Call that function before the file is written. The cost is that of the unit with the most words, recorded for these
    people on this machine, or in a named ledger. A total that would exceed the budget is rejected here, before a word
    is sampled. A file that could not be written stays recorded, because part of it may have left.

    Guarantee: none of its own; the total has one, over all recorded releases.
    """
    rows = rows_of(columns, units, unit_name)
    event = swap.cost(rows)
    planned = {event_to_json(event): 1}
    kind = SANITIZED if secret else FIXED_SEED
    stated = swap.stated(Guarantee(1.0, delta, unit_name, swap.adjacency, "pld"))  # for its assumptions
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

        def count() -> Summary:
            nonlocal finished
            own.spend(event, f"sanitize {secrets.token_hex(8)}", secure=secret, terms=terms)
            finished = True
            return counted.summary()

        try:
            yield count
        except BaseException:
            finished = False
            raise
        finally:
            counted.close(finished=finished)


def privacy_of(
    swap: WordSwap,
    columns: Mapping[str, Sequence[str]],
    units: Sequence[str] | None,
    unit_name: str,
    *,
    delta: float,
    secret: bool,
    copied: Sequence[str],
) -> dict[str, Any]:
    """Return what the file beside a rewritten file says: the guarantee of each unit, its cost and the method.

    The number of words of every text is visible in the rewritten file, and so is what this says.
    """
    rows = rows_of(columns, units, unit_name)
    event = swap.cost(rows)
    stated = swap.stated(guarantee_of(event, delta=delta, adjacency=swap.adjacency, unit=unit_name))
    if not secret:
        stated = stated.with_caveats({Caveat.FIXED_SEED})
    return {
        "guarantee": stated.as_dict(),
        "per_word": swap.word_guarantee(secret).as_dict(),
        "protection": swap.facts(),
        "unit": unit_name,
        "adjacency": swap.adjacency.value,
        "units": rows.unit_count,
        "texts": len(rows),
        "rewritten_columns": list(columns),
        "copied_columns": list(copied),
        "spent": {event_to_json(event): 1},
    }
