"""Attacks on the people behind released notes: linkage, pseudonyms and attributes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.attacks.base import Attack
from discreet.catalog import attack_class, attack_of
from discreet.core.errors import DataError, DiscreetError, SettingError
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge
from discreet.data.corpus import Corpus
from discreet.data.notes import notes, patients_of, public_names, secrets_of, without_identifiers
from discreet.experiment import AttackRequest, AttackResult, Scene, attack_once
from discreet.experiment.attack.people import owners_of
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.protected import protection_of

NOTES = notes(120)


@pytest.fixture(scope="module")
def scene(tiny_encoder: Callable[[str], Path]) -> Scene:
    settings = ModelSettings(str(tiny_encoder("bert")), train="head", dropout=0.0)
    return Scene.of(NOTES, Classifier.build(NOTES, settings, rng=Rng(0)).eval(), split="train")


def run(scene: Scene, name: str, examples: int = 40, **settings: object) -> AttackResult:
    return attack_once(AttackRequest(attack_of(name, settings), name=name, examples=examples, noise_seed=0), scene)


def test_direct_identifiers_are_removed_and_the_rest_stays() -> None:
    for text, secret in zip(NOTES.texts, secrets_of(NOTES), strict=True):
        bare = without_identifiers(text)
        assert secret.date in bare
        assert not any(one in bare for one in (secret.name, secret.record, secret.phone))
    assert without_identifiers("Ruth Dahl, 616-555-0171", name="x", phone="y") == "x, y"


def test_the_patients_of_the_notes_are_those_of_the_generator() -> None:
    people, names = patients_of(NOTES, [7, 0]), set(public_names())
    for unit, secret in zip(NOTES.units or (), secrets_of(NOTES), strict=True):
        assert people[unit].name == secret.name and people[unit].record == secret.record
        assert people[unit].name in names
    with pytest.raises(DataError, match="generated with seed 7"):
        patients_of(NOTES, [7])


def test_more_knowledge_links_more_notes_and_names_alone_do_not_help(scene: Scene) -> None:
    values = [run(scene, "linkage", columns=known).leakages[0] for known in ("sex", "age,sex,job", "age,sex,job,date")]
    assert [leak.metric for leak in values] == ["re_identified"] * 3
    assert values[0].value < values[1].value < values[2].value
    assert values[2].value > 0.8 and values[0].chance == pytest.approx(1 / NOTES.unit_count)


def test_pseudonyms_without_a_key_are_reversed(scene: Scene) -> None:
    open_ = run(scene, "pseudonyms", scheme="sha1")
    keyed = run(scene, "pseudonyms", scheme="hmac")
    assert open_.leakages[0].value == 1.0 and keyed.leakages[0].value == 0.0
    assert open_.leakages[0].chance == pytest.approx(1 / len(public_names()))


def test_attributes_are_predicted_beside_the_majority(scene: Scene) -> None:
    for attribute in ("label", "sex", "age"):
        result = run(scene, "attribute", attribute=attribute)
        (leak,) = result.leakages
        assert leak.metric == "attribute_accuracy" and leak.chance is not None
        assert len(result.details["classes"]) == {"label": 4, "sex": 2, "age": 4}[attribute]
    with pytest.raises(SettingError, match="one of label, age, sex, job, date"):
        run(scene, "attribute", attribute="blood group")


def test_a_register_with_missing_people_or_ages_is_no_crash(scene: Scene, tmp_path: Path) -> None:
    people = sorted(set(NOTES.units or ()))
    file = tmp_path / "people.csv"
    file.write_text("unit,age\n" + "".join(f"{unit},{20 + place % 60}\n" for place, unit in enumerate(people[1:])))
    with pytest.raises(DataError, match=f"1 of {len(people)} are missing"):
        run(scene, "attribute", attribute="age", register=str(file))
    file.write_text(file.read_text() + f"{people[0]},\n")
    assert "unknown" in run(scene, "attribute", attribute="age", register=str(file)).details["classes"]


def test_generated_texts_belong_to_the_patient_whose_identifiers_they_hold() -> None:
    row = NOTES.splits.index("train")
    secret = secrets_of(NOTES)[row]
    texts = [NOTES.texts[row], f"call {secret.phone}", "record 1000000", "nothing"]
    unit = (NOTES.units or ())[row]
    assert owners_of(texts, NOTES) == [unit, unit, None, None]


def test_a_register_of_your_own(scene: Scene, tmp_path: Path) -> None:
    people = ("p1", "p2", "p3")
    texts = tuple(f"a {job} with a cough, {n}" for n, job in enumerate(("baker", "nurse", "tailor", "baker")))
    corpus = Corpus("own", texts, labels=(0, 1, 0, 1), units=("p1", "p2", "p3", "p1"), unit_name="person")
    own = Scene.of(corpus, scene.model)
    path = tmp_path / "people.csv"
    path.write_text(
        "unit,job\n" + "".join(f"{p},{j}\n" for p, j in zip(people, ("baker", "nurse", "tailor"), strict=True))
    )
    assert run(own, "linkage", 4, register=str(path)).leakages[0].value == 1.0
    path.write_text("unit,job\np1,baker\np2,nurse\n")
    with pytest.raises(DataError, match="1 of 3 are missing"):
        run(own, "linkage", 4, register=str(path))
    path.write_text("person,job\np1,baker\np2,nurse\n")
    with pytest.raises(DataError, match="column 'unit'"):
        run(own, "linkage", 4, register=str(path))
    with pytest.raises(SettingError, match="register"):
        run(own, "linkage", 4)
    with pytest.raises(SettingError, match="dictionary"):
        run(own, "pseudonyms", 4)
    names = tmp_path / "names.txt"
    names.write_text("p1\np2\np3\np4\n")
    assert run(own, "pseudonyms", 4, dictionary=str(names)).leakages[0].value == 1.0


@pytest.mark.parametrize(("name", "values"), [("ldp", {"epsilon": 50.0}), ("texthide", {"mix": 2, "masks": 4})])
def test_attributes_of_protected_vectors(scene: Scene, name: str, values: dict[str, object]) -> None:
    protect = protection_of(name, scene.model, values, delta=1e-5, batch_size=20)
    attack = attack_of("attribute", {"attribute": "sex"})
    request = AttackRequest(attack, protect, name="attribute", examples=20, batch_size=20, noise_seed=0)
    result = attack_once(request, scene)
    assert result.leakages[0].n == 20 and result.release["protection"]["name"] == name


@pytest.mark.parametrize("name", ["linkage", "pseudonyms", "attribute"])
def test_the_attack_is_not_given_the_answer(scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No true name, record or telephone number is in what is seen or known, except as one of many to try."""
    passed: list[tuple[object, Knowledge]] = []
    kind = attack_class(name)
    original = kind.run

    def spy(self: Attack, seen: object, knows: Knowledge, rng: Rng) -> Guess:
        passed.append((seen, knows))
        return original(self, seen, knows, rng)

    monkeypatch.setattr(kind, "run", spy)
    run(scene, name, 20)
    ((seen, knows),) = passed
    told = repr(seen) + repr({key: value for key, value in knows.extra.items() if key != "dictionary"})
    assert not any(one in told for secret in secrets_of(NOTES) for one in (secret.name, secret.record, secret.phone))
    assert not knows.candidates and not knows.auxiliary


def test_a_protection_of_gradients_does_not_fit(scene: Scene) -> None:
    with pytest.raises(DiscreetError, match="dp-sgd releases gradients"):
        attack_once(AttackRequest(attack_of("linkage"), DPSGD(1.0, 1.0), name="linkage"), scene)
