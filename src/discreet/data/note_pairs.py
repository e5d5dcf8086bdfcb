"""Pairs of clinic notes: about the same patient or not, or how similar the two visits are.

Both notes of a pair are from one household, which is the privacy unit, because a pair may hold two patients. The task
is not trivial: members often share a surname and a telephone, some their full name; and the second note of a patient
may have a wrong digit in its record number, or another telephone.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator

from discreet.core.errors import whole
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus, hold_out
from discreet.data.notes import DEPARTMENTS, HELD_OUT, Patient, RandomChoices, Visit, in_words, patients, visit

PAIRS = 2000
SAME = ("different patients", "same patient")

_NAMESAKES = 0.15  # share of further household members with the same name as its head
_SLIPS = 0.3  # probability of a wrong digit in the record, and of another telephone, in the second note of a patient

# Points, of five, for each part that two visits have in common.
_POINTS = {"complaint": 2.0, "finding": 1.25, "plan": 1.0, "department": 0.75}


def note_pairs(count: int = PAIRS, seed: int = 0, scores: bool = False) -> Corpus:
    """Return pairs of notes: same patient or not, or with `scores` the similarity of the visits, from 0 to 5.

    A score adds 2 for the same complaint, 1.25 for the same finding, 1 for the same plan and 0.75 for the same
    department, in any wording. A tenth of the households is for validation. The same seed gives the same pairs for
    both tasks.

    >>> note_pairs(100)
    Corpus('notes-pairs', 100 rows, classification with 2 classes on pairs, 26 household units, train 92, validation 8)
    """
    whole("count", count, 20, "A corpus of pairs needs a few households.")
    rng = Rng(seed).fork("notes-pairs")
    choices = RandomChoices(rng.fork("visits"))
    rows: list[tuple[str, str, str, bool, float]] = []
    for number, members in enumerate(_households(rng.fork("patients"), choices), start=1):
        for _ in range(3 + choices.below(3)):
            same = choices.chance(0.5)
            first = choices.pick(members)
            second = choices.pick([member for member in members if member is not first])
            one, two = _two_visits(first.home, choices)
            if same:
                second = _as_written_later(first, choices)
            texts = in_words(first, one, choices, whole_story=True), in_words(second, two, choices, whole_story=True)
            rows.append((*texts, f"household-{number:05d}", same, likeness(one, two)))
        if len(rows) >= count:
            break
    rows = rows[:count]
    corpus = Corpus(
        name="notes-pairs-scores" if scores else "notes-pairs",
        texts=tuple(row[0] for row in rows),
        second=tuple(row[1] for row in rows),
        labels=None if scores else tuple(int(row[3]) for row in rows),
        scores=tuple(row[4] for row in rows) if scores else None,
        label_names=() if scores else SAME,
        units=tuple(row[2] for row in rows),
        unit_name="household",
    )
    return hold_out(corpus, 0.1, seed=HELD_OUT, every_class=False)


def likeness(one: Visit, two: Visit) -> float:
    """Return the similarity of two visits, from 0 (nothing in common) to 5."""
    return sum((points for part, points in _POINTS.items() if getattr(one, part) == getattr(two, part)), 0.0)


def _households(rng: Rng, choices: RandomChoices) -> Iterator[list[Patient]]:
    """Yield groups of two or three patients: most share the head's surname and telephone, a few the full name."""
    people = patients(rng)
    while True:
        head = next(people)
        members = [head]
        for member in [next(people) for _ in range(1 + choices.below(2))]:
            if choices.chance(_NAMESAKES):
                member = dataclasses.replace(member, name=head.name, woman=head.woman)
            elif choices.chance(0.7):
                member = dataclasses.replace(member, name=f"{member.name.split()[0]} {head.name.split()[-1]}")
            if choices.chance(0.7):
                member = dataclasses.replace(member, phone=head.phone)
            # Records differ in at least three digits, so that one wrong digit is not ambiguous.
            while any(_digits_apart(member.record, other.record) < 3 for other in members):
                member = dataclasses.replace(member, record=next(people).record)
            members.append(member)
        yield members


def _as_written_later(patient: Patient, choices: RandomChoices) -> Patient:
    """Return a patient with, at random, a wrong digit in the record and another telephone."""
    record, phone = patient.record, patient.phone
    if choices.chance(_SLIPS):
        place = 1 + choices.below(len(record) - 1)
        digit = (int(record[place]) + 1 + choices.below(9)) % 10
        record = f"{record[:place]}{digit}{record[place + 1 :]}"
    if choices.chance(_SLIPS):
        phone = f"{phone[:-2]}{(int(phone[-2:]) + 1 + choices.below(99)) % 100:02d}"
    return dataclasses.replace(patient, record=record, phone=phone)


def _digits_apart(one: str, two: str) -> int:
    return sum(a != b for a, b in zip(one, two, strict=True))


def _two_visits(home: str, choices: RandomChoices) -> tuple[Visit, Visit]:
    """Return two visits with a random number of common parts."""
    day = datetime.date(2021, 1, 4) + datetime.timedelta(days=choices.below(900))
    later = day + datetime.timedelta(days=3 + choices.below(150))
    one = visit(home, day, choices)
    common = choices.pick((0.0, 0.2, 0.4, 0.6, 0.8, 0.9))
    two = visit(home if choices.chance(common) else choices.pick(list(DEPARTMENTS)), later, choices)
    shared = {part: getattr(one, part) for part in ("complaint", "finding", "plan") if choices.chance(common)}
    return dataclasses.replace(one, history=None), dataclasses.replace(two, history=None, **shared)
