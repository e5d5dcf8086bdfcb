"""Pairs of clinic notes: are they about the same patient, and how alike are the two visits?

Both notes of a pair are from one household, whose members often share a surname and a telephone, so that telling
patients apart takes more than one look; and the household is the unit of privacy, as a pair may hold two patients.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator

from discreet.core.checks import whole
from discreet.core.randomness import Rng
from discreet.data import note_words as words
from discreet.data.corpus import Corpus
from discreet.data.notes import Dice, Patient, Visit, in_words, patients, visit
from discreet.data.partition import hold_out

PAIRS = 2000
SAME = ("different patients", "same patient")

# What two visits have in common, and how many of the five points of likeness each is worth.
_POINTS = {"complaint": 2.0, "finding": 1.25, "plan": 1.0, "department": 0.75}


def note_pairs(count: int = PAIRS, seed: int = 0, scores: bool = False) -> Corpus:
    """Return pairs of notes: same patient or not, or with `scores` how alike the visits are, from 0 to 5.

    A score adds 2 for the same complaint, 1.25 for the same finding, 1 for the same plan and 0.75 for the same
    department, however they are worded. A tenth of the households is for validation. The same seed gives the same
    pairs, which both tasks share.

    >>> note_pairs(100)
    Corpus('notes-pairs', 100 rows, classification with 2 classes on pairs, 25 household units, train 92, validation 8)
    """
    whole("count", count, 20, "A corpus of pairs needs a few households.")
    rng = Rng(seed).fork("notes-pairs")
    dice = Dice(rng.fork("visits"))
    rows: list[tuple[str, str, str, bool, float]] = []
    for number, members in enumerate(_households(rng.fork("patients"), dice), start=1):
        for _ in range(3 + dice.below(3)):
            same = dice.chance(0.5)
            first = dice.pick(members)
            second = first if same else dice.pick([member for member in members if member is not first])
            one, two = _two_visits(first.home, dice)
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
    return hold_out(corpus, 0.1, Rng(0).fork("hold-out"))


def likeness(one: Visit, two: Visit) -> float:
    """Return how alike two visits are, from 0 (nothing in common) to 5."""
    return sum((points for part, points in _POINTS.items() if getattr(one, part) == getattr(two, part)), 0.0)


def _households(rng: Rng, dice: Dice) -> Iterator[list[Patient]]:
    """Yield groups of two or three patients, each with the surname and the telephone of the first half of the time."""
    people = patients(rng)
    while True:
        head = next(people)
        members = [head]
        for member in [next(people) for _ in range(1 + dice.below(2))]:
            if dice.chance(0.5):
                given, surname = member.name.split()[0], head.name.split()[-1]
                # Two of one name in a household would be two patients that nobody could tell apart.
                if given not in [other.name.split()[0] for other in members]:
                    member = dataclasses.replace(member, name=f"{given} {surname}")
            if dice.chance(0.5):
                member = dataclasses.replace(member, phone=head.phone)
            members.append(member)
        yield members


def _two_visits(home: str, dice: Dice) -> tuple[Visit, Visit]:
    """Return two visits with little, much or everything in common."""
    day = datetime.date(2021, 1, 4) + datetime.timedelta(days=dice.below(900))
    later = day + datetime.timedelta(days=3 + dice.below(150))
    one = visit(home, day, dice)
    common = dice.pick((0.0, 0.2, 0.4, 0.6, 0.8, 0.9))
    two = visit(home if dice.chance(common) else dice.pick(list(words.DEPARTMENTS)), later, dice)
    kept = {part: getattr(one, part) for part in ("complaint", "finding", "plan") if dice.chance(common)}
    return dataclasses.replace(one, history=None), dataclasses.replace(two, history=None, **kept)
