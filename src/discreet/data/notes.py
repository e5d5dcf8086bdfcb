"""The built-in corpus: clinic notes that look private and belong to nobody.

Every note holds a patient's name, record number, telephone number and the date of the visit: the secrets that attacks
try to read. The department is the label. Complaints, findings and plans are shared between departments to a degree, so
that the label cannot always be told, as in life. Telephone numbers are from 555-0100 to 555-0199, which are reserved
for fiction in every area code.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from discreet.core.errors import DataError, whole
from discreet.core.randomness import Rng
from discreet.data import note_words as words
from discreet.data.corpus import Corpus
from discreet.data.partition import hold_out

NOTES = 2000
LONGEST = 40
HELD_OUT = 2436  # the seed of the hold-out: with it small corpora of invented people have validation rows too
LABEL_NAMES = tuple(words.DEPARTMENTS.values())

# How often a note's complaint, finding and plan point to its department alone, or to one of two; the rest point to any.
# With these a fine-tuned encoder is right about nine times in ten.
_CLEAR = {"complaint": 0.62, "finding": 0.38, "plan": 0.38}
_BETWEEN = {"complaint": 0.25, "finding": 0.25, "plan": 0.25}
_HOME = 0.6  # the share of a patient's visits that go to the department it mostly visits
_OWN_HISTORY = 0.4

T = TypeVar("T")


@dataclass(frozen=True)
class Secrets:
    """What an attacker would like to read in a note, as it is written there."""

    name: str
    record: str
    phone: str
    date: str


@dataclass(frozen=True)
class Patient:
    """One invented person."""

    unit: str
    name: str
    woman: bool
    age: int
    job: str
    record: str
    phone: str
    home: str


@dataclass(frozen=True)
class Visit:
    """What a note is about, before it is put in words."""

    department: str
    complaint: words.Concept
    finding: words.Concept
    plan: words.Concept
    day: datetime.date
    history: str | None


class Dice:
    """Choices from a source of randomness, many at little cost, the same on every machine."""

    def __init__(self, rng: Rng) -> None:
        """Take numbers from a source."""
        self._numbers = self._stream(rng)

    @staticmethod
    def _stream(rng: Rng) -> Iterator[float]:
        while True:
            yield from rng.uniform(4096).tolist()

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return next(self._numbers) < probability

    def below(self, count: int) -> int:
        """Return an integer from 0 to count - 1."""
        return int(next(self._numbers) * count)

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]


def notes(count: int = NOTES, seed: int = 0) -> Corpus:
    """Return clinic notes: department as label, patient as unit of privacy, a tenth of the patients for validation.

    The same seed gives the same notes; no text occurs twice.

    >>> corpus = notes(200)
    >>> corpus
    Corpus('notes', 200 rows, classification with 4 classes, 42 patient units, train 172, validation 28)
    """
    whole("count", count, 20, "A corpus of notes needs a few patients.")
    rng = Rng(seed).fork("notes")
    dice = Dice(rng.fork("visits"))
    texts: dict[str, tuple[str, str]] = {}
    for patient in patients(rng.fork("patients")):
        for visit in visits(patient, dice):
            while (text := in_words(patient, visit, dice)) in texts:
                pass
            texts[text] = patient.unit, visit.department
        if len(texts) >= count:
            break
    kept = list(texts.items())[:count]
    letters = list(words.DEPARTMENTS)
    corpus = Corpus(
        name="notes",
        texts=tuple(text for text, _ in kept),
        labels=tuple(letters.index(letter) for _, (_, letter) in kept),
        label_names=LABEL_NAMES,
        units=tuple(unit for _, (unit, _) in kept),
        unit_name="patient",
    )
    return hold_out(corpus, 0.1, seed=HELD_OUT, every_class=False)


def patients(rng: Rng) -> Iterator[Patient]:
    """Yield patients without end; no two share a name, a record number or, up to 71,200 of them, a telephone number."""
    given = [(name, True) for name in words.WOMEN] + [(name, False) for name in words.MEN]
    people = len(given) * len(words.SURNAMES)
    order = rng.fork("names").permutation(people)
    codes = [code for code in range(200, 990) if code % 100 < 90 and code % 100 != 11]
    lines = rng.fork("phones").permutation(len(codes) * 100)
    records: set[int] = set()
    dice = Dice(rng.fork("people"))
    number = 0
    while True:
        round_, place = divmod(number, people)
        surname, which = divmod(int(order[place]), len(given))
        first, woman = given[which]
        middle = f" {chr(ord('A') + (round_ - 1) % 26)}." if round_ else ""
        code, line = divmod(int(lines[number % len(lines)]), 100)
        age = 18 + dice.below(72)
        while (record := 1_000_000 + dice.below(9_000_000)) in records:
            pass
        records.add(record)
        yield Patient(
            unit=f"patient-{number + 1:05d}",
            name=f"{first}{middle} {words.SURNAMES[surname]}",
            woman=woman,
            age=age,
            job=dice.pick([job for job in words.JOBS if _plausible(job, age)]),
            record=str(record),
            phone=f"{codes[code]}-555-01{line:02d}",
            home=dice.pick(list(words.DEPARTMENTS)),
        )
        number += 1


def _plausible(job: str, age: int) -> bool:
    return not (job.startswith("retired") and age < 62) and not (job == "student" and age > 30)


def visits(patient: Patient, dice: Dice) -> list[Visit]:
    """Return a patient's visits, two to seven of them, most to one department."""
    count = 2 + dice.below(6)
    day = datetime.date(2021, 1, 4) + datetime.timedelta(days=dice.below(900))
    result = []
    for _ in range(count):
        department = patient.home if dice.chance(_HOME) else dice.pick(list(words.DEPARTMENTS))
        result.append(visit(department, day, dice))
        day += datetime.timedelta(days=3 + dice.below(150))
    return result


def visit(department: str, day: datetime.date, dice: Dice) -> Visit:
    """Return what a visit to a department on a day is about."""
    history = None
    if dice.chance(0.35):
        of = department if dice.chance(_OWN_HISTORY) else dice.pick(list(words.CONDITIONS))
        history = dice.pick(words.CONDITIONS[of])
    return Visit(
        department=department,
        complaint=_concept(words.COMPLAINTS, "complaint", department, dice),
        finding=_concept(words.FINDINGS, "finding", department, dice),
        plan=_concept(words.PLANS, "plan", department, dice),
        day=day,
        history=history,
    )


def _concept(table: words.Concepts, part: str, department: str, dice: Dice) -> words.Concept:
    if dice.chance(_CLEAR[part]):
        return dice.pick(table[department])
    if dice.chance(_BETWEEN[part] / (1 - _CLEAR[part])):
        pairs = [letters for letters in table if len(letters) == 2 and department in letters]
        return dice.pick(table[dice.pick(pairs)])
    return dice.pick(table["CGNO"])


def in_words(patient: Patient, visit: Visit, dice: Dice, whole_story: bool = False) -> str:
    """Return a visit as a note of at most forty words, said one of many ways.

    A note may leave out what was found or what was planned; `whole_story` leaves out nothing but the history.
    """
    side = dice.pick(("left", "right"))
    weeks = dice.pick(("two", "four", "six", "eight"))

    def say(concept: words.Concept) -> str:
        return dice.pick(concept).format(side=side, weeks=weeks)

    complaint, finding, plan = say(visit.complaint), say(visit.finding), say(visit.plan)
    # A complaint that ends in a full stop says its own time.
    duration = "" if complaint.endswith(".") or dice.chance(0.4) else f" {dice.pick(words.DURATIONS)}"
    date = _date(visit.day, dice)
    opening = _opening(patient, date, complaint.rstrip(".") + duration, dice)
    history = _history(visit.history, dice) if visit.history else ""
    contact = dice.pick(_CONTACTS).format(phone=patient.phone)
    middle = [finding, plan] if dice.chance(0.8) or whole_story else [plan]
    if dice.chance(0.15) and not whole_story:
        middle = middle[:1]
    # What is left out first when the note grows too long: the history, then what was found.
    for sentences in (
        [opening, history, *middle, contact],
        [opening, *middle, contact],
        [opening, middle[-1], contact],
    ):
        text = " ".join(f"{sentence}." for sentence in sentences if sentence)
        if len(text.split()) <= LONGEST:
            return text
    return f"{opening}. {contact}."


def _opening(patient: Patient, date: str, complaint: str, dice: Dice) -> str:
    who = dice.pick(
        (
            f"{patient.age}-year-old {patient.job}",
            f"{patient.age}-year-old {'woman' if patient.woman else 'man'}",
            f"a {patient.job}" if patient.job[0] not in "aeiou" else f"an {patient.job}",
            f"aged {patient.age}",
        )
    )
    plain = f"{patient.name} (record {patient.record})"
    form = dice.pick(_OPENINGS)
    return form.format(
        plain=plain,
        name=patient.name,
        record=patient.record,
        date=date,
        who=who,
        complaint=complaint,
        Complaint=complaint[0].upper() + complaint[1:],
    )


_OPENINGS = (
    "{plain} was seen on {date} with {complaint}",
    "{date}: {plain}, {who}, reports {complaint}",
    "{plain}, {who}, came in on {date} because of {complaint}",
    "Seen {date}: {name}, record {record}, {who}, with {complaint}",
    "Record {record}, {name}, visit of {date}. {Complaint}",
    "On {date} {name} (record {record}) described {complaint}",
    "{name}, record no. {record}, attended on {date}. Complains of {complaint}",
    "Clinic {date}. {name}, {who}, record {record}, mentions {complaint}",
    "{plain} returned on {date}. The main problem is {complaint}",
    "Reviewed {name} (record {record}) on {date} for {complaint}",
)

_CONTACTS = (
    "Phone {phone}",
    "Tel. {phone}",
    "Call back on {phone}",
    "Reachable at {phone}",
    "Contact number {phone}",
    "Results by phone to {phone}",
    "Mobile {phone}",
)


def _history(condition: str, dice: Dice) -> str:
    return dice.pick(("History of {0}", "Past history: {0}", "Background: {0}", "Also known: {0}")).format(condition)


def _date(day: datetime.date, dice: Dice) -> str:
    month = words.MONTHS[day.month - 1]
    return dice.pick(
        (
            f"{day.day} {month} {day.year}",
            f"{month} {day.day}, {day.year}",
            f"{day.day} {month[:3]} {day.year}",
            day.isoformat(),
        )
    )


_FIND_RECORD = re.compile(r"\b[1-9][0-9]{6}\b")
_FIND_PHONE = re.compile(r"\b[2-9][0-9]{2}-555-01[0-9]{2}\b")
_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" if len(month) > 3 else month for month in words.MONTHS)
_FIND_DATE = re.compile(rf"\b(?:\d{{4}}-\d\d-\d\d|\d{{1,2}} (?:{_MONTH}) \d{{4}}|(?:{_MONTH}) \d{{1,2}}, \d{{4}})\b")
_FIND_NAME = re.compile(rf"\b(?:{'|'.join(words.WOMEN + words.MEN)})(?: [A-Z]\.)? (?:{'|'.join(words.SURNAMES)})\b")


def secrets_of(corpus: Corpus) -> tuple[Secrets, ...]:
    """Return the secrets of each note, in the order of the rows; it works on any part of the notes.

    >>> secrets_of(notes(20))[0]
    Secrets(name='Samir Jablonski', record='1102555', phone='616-555-0171', date='June 24, 2021')
    """
    return tuple(secrets_in(text, row) for row, text in enumerate(corpus.texts, start=1))


def secrets_in(text: str, row: int = 1) -> Secrets:
    """Return the secrets that stand in one note."""
    found = [pattern.search(text) for pattern in (_FIND_NAME, _FIND_RECORD, _FIND_PHONE, _FIND_DATE)]
    if any(match is None for match in found):
        raise DataError(
            f"Expected a clinic note in row {row}, but its secrets were not found. Only notes have secrets."
        )
    return Secrets(*(match.group() for match in found if match is not None))
