"""Pairs of clinic notes: are they about the same patient, and how alike are the two visits?

Both notes of a pair are from one household, which is the unit of privacy, as a pair may hold two patients. Telling them
apart takes more than one look: members often share a surname and a telephone, some their whole name; and the second
note of one patient may have a wrong digit in its record number, or another telephone.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator

from discreet.core.errors import whole
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.notes import DEPARTMENTS, HELD_OUT, Dice, Patient, Visit, in_words, patients, visit
from discreet.data.partition import hold_out

PAIRS = 2000
SAME = ("different patients", "same patient")

_NAMESAKES = 0.15  # the share of a household's further members who bear the name of its head
_SLIPS = 0.3  # how often the second note of one patient has a wrong digit in the record, or another telephone

# What two visits have in common, and how many of the five points of likeness each is worth.
_POINTS = {"complaint": 2.0, "finding": 1.25, "plan": 1.0, "department": 0.75}


def note_pairs(count: int = PAIRS, seed: int = 0, scores: bool = False) -> Corpus:
    """Return pairs of notes: same patient or not, or with `scores` how alike the visits are, from 0 to 5.

    A score adds 2 for the same complaint, 1.25 for the same finding, 1 for the same plan and 0.75 for the same
    department, however they are worded. A tenth of the households is for validation. The same seed gives the same
    pairs, which both tasks share.

    >>> note_pairs(100)
    Corpus('notes-pairs', 100 rows, classification with 2 classes on pairs, 26 household units, train 92, validation 8)
    """
    whole("count", count, 20, "A corpus of pairs needs a few households.")
    rng = Rng(seed).fork("notes-pairs")
    dice = Dice(rng.fork("visits"))
    rows: list[tuple[str, str, str, bool, float]] = []
    for number, members in enumerate(_households(rng.fork("patients"), dice), start=1):
        for _ in range(3 + dice.below(3)):
            same = dice.chance(0.5)
            first = dice.pick(members)
            second = dice.pick([member for member in members if member is not first])
            one, two = _two_visits(first.home, dice)
            if same:
                second = _as_written_later(first, dice)
            texts = in_words(first, one, dice, whole_story=True), in_words(second, two, dice, whole_story=True)
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
    """Return how alike two visits are, from 0 (nothing in common) to 5."""
    return sum((points for part, points in _POINTS.items() if getattr(one, part) == getattr(two, part)), 0.0)


def _households(rng: Rng, dice: Dice) -> Iterator[list[Patient]]:
    """Yield groups of two or three patients: most share the head's surname and telephone, a few the whole name."""
    people = patients(rng)
    while True:
        head = next(people)
        members = [head]
        for member in [next(people) for _ in range(1 + dice.below(2))]:
            if dice.chance(_NAMESAKES):
                member = dataclasses.replace(member, name=head.name, woman=head.woman)
            elif dice.chance(0.7):
                member = dataclasses.replace(member, name=f"{member.name.split()[0]} {head.name.split()[-1]}")
            if dice.chance(0.7):
                member = dataclasses.replace(member, phone=head.phone)
            # Two records are told apart by three digits or more, so that one wrong digit leaves no doubt.
            while any(_digits_apart(member.record, other.record) < 3 for other in members):
                member = dataclasses.replace(member, record=next(people).record)
            members.append(member)
        yield members


def _as_written_later(patient: Patient, dice: Dice) -> Patient:
    """Return a patient as another clerk wrote it down: perhaps a wrong digit in the record, perhaps a new telephone."""
    record, phone = patient.record, patient.phone
    if dice.chance(_SLIPS):
        place = 1 + dice.below(len(record) - 1)
        digit = (int(record[place]) + 1 + dice.below(9)) % 10
        record = f"{record[:place]}{digit}{record[place + 1 :]}"
    if dice.chance(_SLIPS):
        phone = f"{phone[:-2]}{(int(phone[-2:]) + 1 + dice.below(99)) % 100:02d}"
    return dataclasses.replace(patient, record=record, phone=phone)


def _digits_apart(one: str, two: str) -> int:
    return sum(a != b for a, b in zip(one, two, strict=True))


def _two_visits(home: str, dice: Dice) -> tuple[Visit, Visit]:
    """Return two visits with little, much or everything in common."""
    day = datetime.date(2021, 1, 4) + datetime.timedelta(days=dice.below(900))
    later = day + datetime.timedelta(days=3 + dice.below(150))
    one = visit(home, day, dice)
    common = dice.pick((0.0, 0.2, 0.4, 0.6, 0.8, 0.9))
    two = visit(home if dice.chance(common) else dice.pick(list(DEPARTMENTS)), later, dice)
    kept = {part: getattr(one, part) for part in ("complaint", "finding", "plan") if dice.chance(common)}
    return dataclasses.replace(one, history=None), dataclasses.replace(two, history=None, **kept)
