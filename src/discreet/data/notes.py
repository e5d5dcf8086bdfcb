"""The built-in corpus: generated clinic notes of fictional patients.

Every note holds a patient's name, record number, telephone number and the date of the visit: the secrets that attacks
try to recover. The department is the label. Departments share some complaints, findings and plans, so that the label is
not always certain, as in real notes. Telephone numbers are from 555-0100 to 555-0199, which are reserved for fiction in
every area code.

A concept is a tuple of phrases with the same meaning, keyed by the departments it indicates: "C" is cardiology only,
"CG" cardiology or gastroenterology, "CGNO" any. `{side}` becomes left or right. A complaint that ends in a full stop
gets no duration such as "for two days".
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from discreet.core.errors import DataError, whole
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus, hold_out

Concept = tuple[str, ...]
Concepts = dict[str, tuple[Concept, ...]]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DEPARTMENTS = {"C": "cardiology", "G": "gastroenterology", "N": "neurology", "O": "orthopaedics"}

WOMEN = _listed(
    """
    Adaeze Agnes Alma Amelia Amina Anneke Asha Beatriz Bridget Camille Carmen Chiara Clara Dagmar Daniela Delphine
    Edith Eleni Elsa Emiko Esther Farida Fatima Fiona Freya Gloria Greta Hana Harriet Ines Ingrid Irena Isla Jolanta
    Joyce Judith Kavita Laila Leonie Lucia Magda Mairead Malin Marta Mei Miriam Nadia Naomi Ngozi Nora Olga Paloma
    Petra Priya Rosa Ruth Saoirse Selma Shreya Sigrid Sofia Tamar Teresa Thandi Ursula Vera Wanda Yasmin Yuki Zofia
    """
)

MEN = _listed(
    """
    Aaron Abdul Albert Alejandro Anton Arjun Arthur Bakary Bela Benedikt Bruno Callum Cedric Chidi Conrad Cyril
    Dario Declan Dmitri Edgar Elias Emeka Enzo Farhan Felix Finn Gareth Georg Hamid Hector Henrik Hiroshi Hugo
    Ibrahim Igor Ivo Jakub Jamal Jonas Joaquin Karim Kenji Kwame Lars Leon Luca Magnus Marek Mateus Milan Mohan
    Nabil Niall Oscar Otto Pavel Piotr Rafael Rashid Rohan Ruben Samir Sergei Stefan Tariq Teodor Tomas Viktor
    Walter Yusuf
    """
)

SURNAMES = _listed(
    """
    Abara Adeyemi Almeida Andersen Aoki Bakker Banerjee Barros Bergstrom Bianchi Bielski Blackwood Bouchard Brandt
    Brennan Calloway Carvalho Castellano Chaudhry Cohen Costa Crawley Dahl Danso Delacroix Demir Devlin Diallo
    Dobrev Drummond Eklund Erikson Escobar Eze Farrell Ferrante Fischer Fitzgerald Fontaine Fraser Fujita Gallagher
    Garrido Ghosh Greaves Grigoryan Haddad Halvorsen Hargreaves Hashemi Hedlund Horvath Hussein Ibarra Iyer
    Jablonski Jansen Jimenez Kamau Kapoor Karlsen Kaya Keller Kovacs Kowalczyk Kruger Kuznetsov Lachance Lambert
    Larkin Lindholm Lombardi Lopes Lundgren Macleod Maduro Mahmood Makinen Malhotra Marchetti Mbeki McAllister
    Mendoza Mikkelsen Moreau Mwangi Nakamura Nasser Navarro Nguyen Novak Nwosu Obeng Okafor Okonkwo Olsen Ortega
    Osei Ozturk Papadakis Pellegrini Pereira Petrov Popescu Quigley Quintero Rahman Rasmussen Reddy Renaud Ricci
    Romano Rosen Rossi Rybak Saito Salazar Sandoval Santoro Sato Schneider Sharma Silveira Sinclair Sokolov Sorensen
    Stavros Sullivan Svensson Takeda Tanaka Thornbury Toivonen Tremblay Ueda Vasquez Venter Vidal Vogel Volkov
    Wachira Walczak Weber Whitlock Winther Yamada Yilmaz Zapata Zielinski
    """
)

JOBS = """baker,bus driver,carpenter,retired teacher,nurse,farmer,student,accountant,chef,electrician,librarian,postman,
shopkeeper,software developer,taxi driver,violinist,warehouse worker,gardener,tailor,civil servant,bricklayer,cleaner,
retired miner,translator,hairdresser,lorry driver,pharmacist,receptionist,plumber,journalist""".replace("\n", "").split(
    ","
)

COMPLAINTS: Concepts = {
    "C": (
        ("tightness across the chest when climbing stairs", "chest pressure on exertion that eases with rest"),
        ("palpitations at night", "a racing, irregular heartbeat in the evenings"),
        ("swollen ankles and breathlessness lying flat", "ankle swelling and needing three pillows to sleep"),
        ("skipped heartbeats several times a day", "a fluttering feeling behind the ribs"),
        ("breathlessness on one flight of stairs", "getting out of breath on gentle hills"),
        ("home blood pressure above 170", "high blood pressure despite two tablets"),
        ("a collapse while running for a bus.", "a sudden blackout during exercise."),
        ("a pulse that races after very little effort", "a pounding pulse on the stairs"),
    ),
    "G": (
        ("burning behind the breastbone after meals", "heartburn after spicy food"),
        ("loose stools six times a day", "frequent watery diarrhoea"),
        ("bright red bleeding with bowel movements", "blood on the toilet paper"),
        ("colicky belly pain with bloating", "cramps low in the abdomen, eased by a bowel movement"),
        ("food sticking halfway down", "trouble swallowing bread and meat"),
        ("yellow eyes and dark urine", "jaundice with itching"),
        ("gas and swelling of the belly after dairy", "bloating whenever milk is taken"),
        ("constipation despite laxatives", "hard stools only twice a week"),
    ),
    "N": (
        ("one-sided headaches with flashing lights", "migraine with zigzag lines in the vision"),
        ("a tremor of the {side} hand at rest", "shaking of the {side} hand when sitting still"),
        ("a witnessed convulsion with tongue biting.", "a fit lasting two minutes."),
        ("forgetting names and repeating questions", "memory lapses noticed by the family"),
        ("slurred speech for half an hour.", "a drooping face that recovered within the hour."),
        ("double vision late in the day", "seeing double when tired"),
        ("small handwriting and slow movements", "a shuffling walk and a soft voice"),
        ("electric jolts along the jaw", "shooting pain in the {side} cheek when chewing"),
    ),
    "O": (
        ("{side} knee pain with clicking on stairs", "a {side} knee that locks and gives way"),
        ("{side} shoulder pain on reaching overhead", "a stiff {side} shoulder that aches at night"),
        ("a swollen wrist after a fall on ice.", "wrist pain after landing on an outstretched hand"),
        ("heel pain with the first morning steps", "a sore heel on getting out of bed"),
        ("{side} hip pain that limits walking", "groin pain and a limp from a worn hip"),
        ("a twisted ankle that will not settle", "an ankle still swollen weeks after a sprain."),
        ("a finger that catches when bending", "a thumb that clicks painfully"),
        ("elbow pain from gripping tools", "a tender outer elbow when lifting"),
    ),
    "CG": (
        ("chest discomfort after heavy meals", "pain in the middle of the chest after supper"),
        ("upper abdominal pain with sweating", "pain below the breastbone and cold sweats"),
        ("nausea with a heavy feeling in the chest", "queasiness and an uneasy chest"),
    ),
    "CN": (
        ("light-headedness on standing up", "dizzy spells on getting out of bed"),
        ("a brief loss of consciousness.", "fainting in a warm room."),
        ("a grey curtain before the eyes, then weakness.", "sudden weakness that passed in minutes."),
    ),
    "CO": (
        ("{side} arm ache on carrying bags", "aching in the {side} arm after lifting"),
        ("pain between the shoulder blades", "an ache across the upper back"),
        ("calf pain on walking that eases with rest", "cramping calves on longer walks"),
    ),
    "GN": (
        ("vomiting every morning", "early nausea and retching"),
        ("coughing when drinking", "trouble swallowing liquids"),
        ("poor appetite and tingling feet", "weight loss with burning feet"),
    ),
    "GO": (
        ("{side} flank pain on bending", "an ache under the {side} ribs on turning"),
        ("groin pain on coughing", "a dragging feeling in the {side} groin"),
        ("an upset stomach from painkillers", "stomach ache since starting ibuprofen."),
    ),
    "NO": (
        ("low back pain running down the {side} leg", "shooting pain from the back to the {side} foot"),
        ("tingling in the {side} hand at night", "numb fingers on the {side} side"),
        ("a stiff neck with a tingling arm", "neck pain spreading to the {side} arm"),
        ("unsteady walking and two falls.", "three falls since the spring."),
    ),
    "CGNO": (
        ("tiredness and poor sleep", "constant fatigue"),
        ("feeling generally unwell", "a run-down feeling"),
        ("questions about the tablets.", "worries about side effects."),
        ("test results to discuss.", "a wish to hear the results."),
        ("symptoms that come and go", "the same trouble as last time."),
        ("slow recovery since discharge.", "little progress since the hospital stay."),
    ),
}

FINDINGS: Concepts = {
    "C": (
        ("ECG shows atrial fibrillation", "The tracing shows an irregular rhythm"),
        ("A soft murmur is heard", "There is a systolic murmur"),
        ("Echo shows a weak left ventricle", "Ejection fraction is 40 percent"),
        ("The stress test is positive", "ST changes appear on the treadmill"),
    ),
    "G": (
        ("Gastroscopy shows mild oesophagitis", "The gullet is inflamed on endoscopy"),
        ("Calprotectin is raised", "Stool markers suggest inflammation"),
        ("Liver enzymes are twice normal", "Liver tests are abnormal"),
        ("Ultrasound shows gallstones", "Stones are seen in the gallbladder"),
    ),
    "N": (
        ("Reflexes are brisk on the {side}", "The {side} plantar response is abnormal"),
        ("Brain MRI shows small white-matter lesions", "The head scan shows old small strokes"),
        ("EEG shows sharp waves", "The EEG is abnormal"),
        ("The {side} wrist shows cogwheel rigidity", "Arm swing is reduced on the {side}"),
    ),
    "O": (
        ("X-ray shows loss of joint space", "The joint is worn on the films"),
        ("The joint line is tender and swollen", "There is fluid in the joint"),
        ("MRI shows a torn meniscus", "The scan shows a ligament tear"),
        ("Rotation is limited by pain", "Movement stops at 60 degrees"),
    ),
    "CG": (("Haemoglobin is low at 9", "There is iron-deficiency anaemia"),),
    "CN": (("Blood pressure drops on standing", "Standing pressure falls by thirty"),),
    "CO": (("The calf is firm and tender", "One calf is larger than the other"),),
    "GN": (("Vitamin B12 is low", "B12 is well below range"),),
    "GO": (("The lower ribs are tender", "Pressing the flank is sore"),),
    "NO": (
        ("Straight leg raise is painful on the {side}", "The {side} ankle jerk is absent"),
        ("Grip is weak on the {side}", "The {side} thumb muscles are thin"),
    ),
    "CGNO": (
        ("Vital signs are normal", "Observations are stable"),
        ("Examination is unremarkable", "Nothing abnormal on examination"),
        ("Inflammatory markers are slightly raised", "CRP is a little high"),
        ("Weight is down three kilos", "Three kilos lighter than last visit"),
        ("Blood tests are pending", "Results are awaited"),
        ("Looks well", "In no distress today"),
    ),
}

PLANS: Concepts = {
    "C": (
        ("Start bisoprolol", "Begin a low-dose beta blocker"),
        ("Holter monitor for 24 hours", "Wear a heart monitor for a day"),
        ("Coronary angiogram booked", "Listed for angiography"),
        ("Increase ramipril and repeat potassium", "Raise the ramipril dose"),
    ),
    "G": (
        ("Start omeprazole", "Begin an acid blocker"),
        ("Colonoscopy next week", "Listed for colonoscopy"),
        ("Low-FODMAP diet for a month", "Try a diet without dairy"),
        ("Breath test for Helicobacter", "Send a stool sample"),
    ),
    "N": (
        ("Sumatriptan for attacks", "Start topiramate at night"),
        ("EEG and brain MRI requested", "Brain scan requested"),
        ("Trial of levodopa", "Start levodopa slowly"),
        ("Lumbar puncture discussed", "Memory clinic referral"),
    ),
    "O": (
        ("Steroid injection given", "Injected the joint today"),
        ("Listed for joint replacement", "Surgery date to follow"),
        ("Splint for six weeks", "Cast check in ten days"),
        ("Arthroscopy booked", "Keyhole surgery discussed"),
    ),
    "CG": (("Stop aspirin and add pantoprazole", "Pause aspirin"),),
    "CN": (("No driving until reviewed", "Tilt-table test requested"),),
    "CO": (("Compression stockings", "Leg scan to exclude a clot"),),
    "GN": (("Anti-sickness tablets and dietician", "Vitamin injections for six weeks"),),
    "GO": (("Swap ibuprofen for paracetamol", "Stop the anti-inflammatory"),),
    "NO": (
        ("Nerve conduction studies", "Nerve tests requested"),
        ("Physiotherapy twice weekly", "Refer to physiotherapy"),
    ),
    "CGNO": (
        ("Review in {weeks} weeks", "See again in {weeks} weeks"),
        ("Discharge to family doctor", "Back to the family doctor"),
        ("Repeat blood tests next month", "Bloods again next month"),
        ("Keep a symptom diary", "Asked to note each episode"),
        ("Call if worse", "Return if it worsens"),
        ("Continue current treatment", "No change to medication"),
    ),
}

CONDITIONS = {
    "C": ("atrial fibrillation", "hypertension", "a heart attack", "a pacemaker"),
    "G": ("reflux", "coeliac disease", "Crohn's disease", "gallstones"),
    "N": ("migraine", "epilepsy", "a small stroke", "neuropathy"),
    "O": ("osteoarthritis", "a hip replacement", "a wrist fracture", "gout"),
}

DURATIONS = (
    "for two days",
    "for a week",
    "for three weeks",
    "for two months",
    "since Sunday",
    "since the summer",
    "on and off for a year",
    "for some time",
    "since the last visit",
    "for five days",
)

MONTHS = _listed("January February March April May June July August September October November December")


NOTES = 2000
LONGEST = 40
HELD_OUT = 2436  # the seed of the hold-out: with it small corpora of invented people have validation rows too
LABEL_NAMES = tuple(DEPARTMENTS.values())

# How often a note's complaint, finding and plan point to its department alone, or to one of two; the rest point to any.
# With these a fine-tuned encoder is right about nine times in ten.
_CLEAR = {"complaint": 0.62, "finding": 0.38, "plan": 0.38}
_BETWEEN = {"complaint": 0.25, "finding": 0.25, "plan": 0.25}
_HOME = 0.6  # the share of a patient's visits that go to the department it mostly visits
_OWN_HISTORY = 0.4

T = TypeVar("T")


@dataclass(frozen=True)
class Secrets:
    """The secrets of a note, as written in it."""

    name: str
    record: str
    phone: str
    date: str


@dataclass(frozen=True)
class Patient:
    """A fictional patient."""

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
    """The content of a note, before it is worded."""

    department: str
    complaint: Concept
    finding: Concept
    plan: Concept
    day: datetime.date
    history: str | None


class RandomChoices:
    """Fast random choices from a generator, the same on every machine."""

    def __init__(self, rng: Rng) -> None:
        """Use the numbers of a generator."""
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
    """Return clinic notes: department as label, patient as privacy unit, a tenth of the patients for validation.

    The same seed gives the same notes; no text occurs twice.

    >>> corpus = notes(200)
    >>> corpus
    Corpus('notes', 200 rows, classification with 4 classes, 42 patient units, train 172, validation 28)
    """
    whole("count", count, 20, "A corpus of notes needs a few patients.")
    rng = Rng(seed).fork("notes")
    choices = RandomChoices(rng.fork("visits"))
    texts: dict[str, tuple[str, str]] = {}
    for patient in patients(rng.fork("patients")):
        for visit in visits(patient, choices):
            while (text := in_words(patient, visit, choices)) in texts:
                pass
            texts[text] = patient.unit, visit.department
        if len(texts) >= count:
            break
    rows = list(texts.items())[:count]
    letters = list(DEPARTMENTS)
    corpus = Corpus(
        name="notes",
        texts=tuple(text for text, _ in rows),
        labels=tuple(letters.index(letter) for _, (_, letter) in rows),
        label_names=LABEL_NAMES,
        units=tuple(unit for _, (unit, _) in rows),
        unit_name="patient",
    )
    return hold_out(corpus, 0.1, seed=HELD_OUT, every_class=False)


def patients(rng: Rng) -> Iterator[Patient]:
    """Yield patients forever; no two share a name, a record number or, up to 71,200 patients, a telephone number."""
    first_names = [(name, True) for name in WOMEN] + [(name, False) for name in MEN]
    people = len(first_names) * len(SURNAMES)
    order = rng.fork("names").permutation(people)
    codes = [code for code in range(200, 990) if code % 100 < 90 and code % 100 != 11]
    lines = rng.fork("phones").permutation(len(codes) * 100)
    records: set[int] = set()
    choices = RandomChoices(rng.fork("people"))
    number = 0
    while True:
        round_, place = divmod(number, people)
        surname, which = divmod(int(order[place]), len(first_names))
        first, woman = first_names[which]
        middle = f" {chr(ord('A') + (round_ - 1) % 26)}." if round_ else ""
        code, line = divmod(int(lines[number % len(lines)]), 100)
        age = 18 + choices.below(72)
        while (record := 1_000_000 + choices.below(9_000_000)) in records:
            pass
        records.add(record)
        yield Patient(
            unit=f"patient-{number + 1:05d}",
            name=f"{first}{middle} {SURNAMES[surname]}",
            woman=woman,
            age=age,
            job=choices.pick([job for job in JOBS if _plausible(job, age)]),
            record=str(record),
            phone=f"{codes[code]}-555-01{line:02d}",
            home=choices.pick(list(DEPARTMENTS)),
        )
        number += 1


def _plausible(job: str, age: int) -> bool:
    return not (job.startswith("retired") and age < 62) and not (job == "student" and age > 30)


def visits(patient: Patient, choices: RandomChoices) -> list[Visit]:
    """Return two to seven visits of a patient, most to one department."""
    count = 2 + choices.below(6)
    day = datetime.date(2021, 1, 4) + datetime.timedelta(days=choices.below(900))
    result = []
    for _ in range(count):
        department = patient.home if choices.chance(_HOME) else choices.pick(list(DEPARTMENTS))
        result.append(visit(department, day, choices))
        day += datetime.timedelta(days=3 + choices.below(150))
    return result


def visit(department: str, day: datetime.date, choices: RandomChoices) -> Visit:
    """Return the content of a visit to a department on a day."""
    history = None
    if choices.chance(0.35):
        of = department if choices.chance(_OWN_HISTORY) else choices.pick(list(CONDITIONS))
        history = choices.pick(CONDITIONS[of])
    return Visit(
        department=department,
        complaint=_concept(COMPLAINTS, "complaint", department, choices),
        finding=_concept(FINDINGS, "finding", department, choices),
        plan=_concept(PLANS, "plan", department, choices),
        day=day,
        history=history,
    )


def _concept(table: Concepts, part: str, department: str, choices: RandomChoices) -> Concept:
    if choices.chance(_CLEAR[part]):
        return choices.pick(table[department])
    if choices.chance(_BETWEEN[part] / (1 - _CLEAR[part])):
        pairs = [letters for letters in table if len(letters) == 2 and department in letters]
        return choices.pick(table[choices.pick(pairs)])
    return choices.pick(table["CGNO"])


def in_words(patient: Patient, visit: Visit, choices: RandomChoices, whole_story: bool = False) -> str:
    """Return a note of at most forty words about a visit, in one of many wordings.

    A note may omit the finding or the plan; with `whole_story` it omits only the history.
    """
    side = choices.pick(("left", "right"))
    weeks = choices.pick(("two", "four", "six", "eight"))

    def phrase(concept: Concept) -> str:
        return choices.pick(concept).format(side=side, weeks=weeks)

    complaint, finding, plan = phrase(visit.complaint), phrase(visit.finding), phrase(visit.plan)
    # A complaint that ends in a full stop states its own duration.
    duration = "" if complaint.endswith(".") or choices.chance(0.4) else f" {choices.pick(DURATIONS)}"
    date = _date(visit.day, choices)
    opening = _opening(patient, date, complaint.rstrip(".") + duration, choices)
    history = _history(visit.history, choices) if visit.history else ""
    contact = choices.pick(_CONTACTS).format(phone=patient.phone)
    middle = [finding, plan] if choices.chance(0.8) or whole_story else [plan]
    if choices.chance(0.15) and not whole_story:
        middle = middle[:1]
    # If the note is too long, omit the history, then the finding.
    for sentences in (
        [opening, history, *middle, contact],
        [opening, *middle, contact],
        [opening, middle[-1], contact],
    ):
        text = " ".join(f"{sentence}." for sentence in sentences if sentence)
        if len(text.split()) <= LONGEST:
            return text
    return f"{opening}. {contact}."


def _opening(patient: Patient, date: str, complaint: str, choices: RandomChoices) -> str:
    who = choices.pick(
        (
            f"{patient.age}-year-old {patient.job}",
            f"{patient.age}-year-old {'woman' if patient.woman else 'man'}",
            f"a {patient.job}" if patient.job[0] not in "aeiou" else f"an {patient.job}",
            f"aged {patient.age}",
        )
    )
    return choices.pick(_OPENINGS).format(
        name=patient.name,
        record=patient.record,
        date=date,
        who=who,
        complaint=complaint,
        Complaint=complaint[0].upper() + complaint[1:],
    )


_OPENINGS = (
    "{name} (record {record}) was seen on {date} with {complaint}",
    "{date}: {name} (record {record}), {who}, reports {complaint}",
    "{name} (record {record}), {who}, came in on {date} because of {complaint}",
    "Seen {date}: {name}, record {record}, {who}, with {complaint}",
    "Record {record}, {name}, visit of {date}. {Complaint}",
    "On {date} {name} (record {record}) described {complaint}",
    "{name}, record no. {record}, attended on {date}. Complains of {complaint}",
    "Clinic {date}. {name}, {who}, record {record}, mentions {complaint}",
    "{name} (record {record}) returned on {date}. The main problem is {complaint}",
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


def _history(condition: str, choices: RandomChoices) -> str:
    return choices.pick(("History of {0}", "Past history: {0}", "Background: {0}", "Also known: {0}")).format(condition)


def _date(day: datetime.date, choices: RandomChoices) -> str:
    month = MONTHS[day.month - 1]
    return choices.pick(
        (
            f"{day.day} {month} {day.year}",
            f"{month} {day.day}, {day.year}",
            f"{day.day} {month[:3]} {day.year}",
            day.isoformat(),
        )
    )


_FIND_RECORD = re.compile(r"\b[1-9][0-9]{6}\b")
_FIND_PHONE = re.compile(r"\b[2-9][0-9]{2}-555-01[0-9]{2}\b")
_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" if len(month) > 3 else month for month in MONTHS)
_FIND_DATE = re.compile(rf"\b(?:\d{{4}}-\d\d-\d\d|\d{{1,2}} (?:{_MONTH}) \d{{4}}|(?:{_MONTH}) \d{{1,2}}, \d{{4}})\b")
_FIND_NAME = re.compile(rf"\b(?:{'|'.join(WOMEN + MEN)})(?: [A-Z]\.)? (?:{'|'.join(SURNAMES)})\b")


def secrets_of(corpus: Corpus) -> tuple[Secrets, ...]:
    """Return the secrets of each note, row by row; it works on any subset of the notes.

    >>> secrets_of(notes(20))[0]
    Secrets(name='Samir Jablonski', record='1102555', phone='616-555-0171', date='June 24, 2021')
    """
    return tuple(secrets_in(text, row) for row, text in enumerate(corpus.texts, start=1))


def secrets_in(text: str, row: int = 1) -> Secrets:
    """Return the secrets in one note."""
    matches = [pattern.search(text) for pattern in (_FIND_NAME, _FIND_RECORD, _FIND_PHONE, _FIND_DATE)]
    if any(match is None for match in matches):
        raise DataError(
            f"Expected a clinic note in row {row}, but its secrets were not found. Only notes have secrets."
        )
    return Secrets(*(match.group() for match in matches if match is not None))


def without_identifiers(text: str, name: str = "[name]", record: str = "[record]", phone: str = "[phone]") -> str:
    """Return a note without its direct identifiers: the name, the record number and the telephone number.

    Guarantee: none. What remains, such as age, work and the date of the visit, still tells people apart.

    >>> without_identifiers("Ruth Dahl (record 1234567) was seen. Phone 616-555-0171.")
    '[name] (record [record]) was seen. Phone [phone].'
    """
    for pattern, replacement in ((_FIND_NAME, name), (_FIND_RECORD, record), (_FIND_PHONE, phone)):
        text = pattern.sub(lambda match, value=replacement: value, text)  # type: ignore[misc]
    return text


def identifiers_in(text: str) -> list[str]:
    """Return the names, record numbers and telephone numbers in a text, which need not be a note."""
    return [match for pattern in (_FIND_NAME, _FIND_RECORD, _FIND_PHONE) for match in pattern.findall(text)]


def patients_of(corpus: Corpus, seeds: Sequence[int]) -> dict[str, Patient]:
    """Return the fictional patient of each unit of the notes, which were generated with one of the seeds."""
    if corpus.units is None or not corpus.texts:
        raise DataError("Expected notes whose units are patients. Load the built-in notes without another unit.")
    wanted = set(corpus.units)
    first = secrets_in(corpus.texts[0])
    for seed in dict.fromkeys(seeds):
        people: dict[str, Patient] = {}
        last = max(wanted)
        for patient in patients(Rng(seed).fork("notes").fork("patients")):
            people[patient.unit] = patient
            if patient.unit >= last:
                break
        if wanted <= people.keys() and people[corpus.units[0]].name == first.name:
            return {unit: people[unit] for unit in dict.fromkeys(corpus.units)}
    raise DataError(
        f"Expected notes that were generated with seed {', '.join(map(str, seeds))}. Use the run's own text."
    )


def public_names() -> tuple[str, ...]:
    """Return every first name with every surname of the lists that the notes are made from, as a public directory."""
    return tuple(f"{first} {last}" for first in (*WOMEN, *MEN) for last in SURNAMES)
