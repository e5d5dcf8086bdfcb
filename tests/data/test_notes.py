import datetime
import itertools
from collections import Counter

import numpy as np
import pytest

from discreet.core.errors import DataError, SettingError
from discreet.core.randomness import Rng
from discreet.data import notes as notes_module
from discreet.data.corpus import Corpus
from discreet.data.notes import LONGEST, RandomChoices, in_words, notes, patients, secrets_in, secrets_of, visits

NOTES = notes()


def test_there_are_two_thousand_notes_of_four_departments() -> None:
    assert len(NOTES) == 2000
    assert NOTES.label_names == ("cardiology", "gastroenterology", "neurology", "orthopaedics")
    shares = np.bincount(NOTES.labels or (), minlength=4) / 2000
    assert shares.min() > 0.2
    assert shares.max() < 0.3


def test_no_note_is_long_and_none_occurs_twice() -> None:
    assert max(len(text.split()) for text in NOTES.texts) <= LONGEST == 40
    assert len(set(NOTES.texts)) == 2000
    more = notes(6000)
    assert len(set(more.texts)) == 6000


def test_the_seed_alone_decides() -> None:
    assert notes(300, seed=4) == notes(300, seed=4)
    assert not set(notes(300, seed=4).texts) & set(notes(300, seed=5).texts)


def test_the_default_notes_do_not_change_unnoticed() -> None:
    # Figures in the documents rest on these very notes: a change here is a change there.
    assert secrets_in(NOTES.texts[0]).record == "1102555"
    assert secrets_in(NOTES.texts[-1]).phone == "658-555-0109"


def test_patients_have_several_notes_and_stand_on_one_side_only() -> None:
    counts = Counter(NOTES.units or ())
    assert 350 < len(counts) < 550
    assert sorted(counts.values())[1] >= 2
    assert NOTES.unit_name == "patient"
    train, held = NOTES.split("train"), NOTES.split("validation")
    assert not set(train.unit_names) & set(held.unit_names)
    assert 150 < len(held) < 260


def test_patients_visit_more_than_one_department() -> None:
    seen: dict[str, set[int]] = {}
    for unit, label in zip(NOTES.units or (), NOTES.labels or (), strict=True):
        seen.setdefault(unit, set()).add(label)
    assert sum(len(labels) > 1 for labels in seen.values()) > len(seen) / 2


def test_every_note_holds_the_secrets_of_its_patient() -> None:
    choices = RandomChoices(Rng(1).fork("visits"))
    for patient in itertools.islice(patients(Rng(1)), 200):
        for visit in visits(patient, choices):
            text = in_words(patient, visit, choices)
            found = secrets_in(text)
            assert (found.name, found.record, found.phone) == (patient.name, patient.record, patient.phone)
            assert str(visit.day.year) in found.date
            assert text.count(found.name) == text.count(found.record) == text.count(found.phone) == 1
            if "-" in found.date:
                assert datetime.date.fromisoformat(found.date) == visit.day
            else:
                assert str(visit.day.day) in found.date
                assert notes_module.MONTHS[visit.day.month - 1][:3] in found.date


def test_the_secrets_of_a_part_are_those_of_its_rows() -> None:
    secrets = secrets_of(NOTES)
    assert len(secrets) == 2000
    assert secrets_of(NOTES.take([7, 3])) == (secrets[7], secrets[3])
    by_unit = {unit: secret.record for unit, secret in zip(NOTES.units or (), secrets, strict=True)}
    assert all(by_unit[u] == s.record for u, s in zip(NOTES.units or (), secrets, strict=True))


def test_no_two_patients_share_a_name_a_record_or_a_telephone() -> None:
    people = list(itertools.islice(patients(Rng(0)), 30_000))
    assert len({person.name for person in people}) == 30_000
    assert len({person.record for person in people}) == 30_000
    assert len({person.phone for person in people}) == 30_000


def test_telephone_numbers_are_reserved_for_fiction() -> None:
    for person in itertools.islice(patients(Rng(2)), 2000):
        area, exchange, line = person.phone.split("-")
        assert exchange == "555"
        assert 100 <= int(line) <= 199
        assert 200 <= int(area) <= 989


def test_the_words_are_filed_under_known_departments_and_said_in_two_ways() -> None:
    for table in (notes_module.COMPLAINTS, notes_module.FINDINGS, notes_module.PLANS):
        assert set(table) == {"C", "G", "N", "O", "CG", "CN", "CO", "GN", "GO", "NO", "CGNO"}
        said = [words for concepts in table.values() for concept in concepts for words in concept]
        assert len(said) == len(set(said))
        assert all(len(concept) == 2 for concepts in table.values() for concept in concepts)


def test_the_label_can_often_but_not_always_be_told() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train, held = NOTES, notes(1000, seed=9)
    words = TfidfVectorizer(ngram_range=(1, 2))
    model = LogisticRegression(C=10.0, max_iter=1000).fit(words.fit_transform(train.texts), train.labels)
    assert 0.85 < model.score(words.transform(held.texts), held.labels) < 0.97


def test_other_texts_have_no_secrets_and_too_few_notes_are_refused() -> None:
    with pytest.raises(DataError, match="row 1"):
        secrets_of(Corpus("x", ("nothing", "here")))
    with pytest.raises(SettingError, match="count to be .*, got 3"):
        notes(3)
