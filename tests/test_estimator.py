"""The front door in Python: a classifier with scikit-learn's conventions."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import discreet
from discreet import DPSGD, InstanceEncoding, LocalPrivacy, TextClassifier, TrainSettings
from discreet.cli.main import main
from discreet.core.errors import BudgetError, DataError, OutputError, SettingError
from discreet.core.guarantee import Adjacency
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.estimator import SpendsAgain
from discreet.protections.base import RepresentationProtection
from discreet.runs.people import People
from discreet.training import TrainingPlan

GOOD, BAD = "a good calm film", "a bad dull plot"
TEXTS = [f"{GOOD if i % 2 else BAD} {'very ' * (i % 3)}" for i in range(60)]
LABELS = ["good" if i % 2 else "bad" for i in range(60)]
PATIENTS = [i // 2 for i in range(60)]
QUICK = TrainSettings(epochs=8, batch_size=20, learning_rate=0.05)


@pytest.fixture
def encoder(tiny_encoder: Callable[[str], Path]) -> str:
    return str(tiny_encoder("bert"))


def test_it_fits_predicts_and_says_what_it_cost(encoder: str) -> None:
    made = TextClassifier(
        encoder, protect=DPSGD(epsilon=30), train="head", training=QUICK, unit="patient", classes=["bad", "good"]
    )
    assert made.fit(TEXTS, LABELS, groups=PATIENTS) is made
    stated = made.guarantee_
    assert stated is not None and stated.certified and stated.unit == "patient" and 29 < stated.epsilon <= 30
    assert made.classes_.tolist() == ["bad", "good"]
    assert set(made.predict(TEXTS[:4])) <= {"bad", "good"}
    assert np.allclose(made.predict_proba(TEXTS[:4]).sum(axis=1), 1, atol=1e-5)
    assert made.score(TEXTS, LABELS) > 0.8


@pytest.mark.parametrize("protect", [None, DPSGD(epsilon=8), InstanceEncoding(epsilon=8)], ids=str)
def test_what_is_saved_comes_back_as_it_was(protect: DPSGD | None, encoder: str, tmp_path: Path) -> None:
    numbers = [int(label == "good") for label in LABELS]
    made = TextClassifier(encoder, protect=protect, train="head", training=QUICK, seed=3).fit(TEXTS, numbers)
    made.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model")
    assert again.classes_.tolist() == [0, 1]
    assert np.allclose(again.predict_proba(TEXTS), made.predict_proba(TEXTS), atol=1e-6)
    assert again.guarantee_ == made.guarantee_
    assert (again.train, again.training is not None, again.seed) == ("head", True, 3)
    with pytest.raises(OutputError, match="exists"):
        made.save(tmp_path / "model")
    files = [path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert not any(text.encode() in data for data in files for text in (GOOD, BAD))


def test_every_fold_spends_and_a_budget_ends_it(encoder: str) -> None:
    made = TextClassifier(encoder, protect=DPSGD(epsilon=4), train="head", training=QUICK, unit="patient")
    assert clone(made).get_params() == made.get_params()
    with pytest.raises(DataError, match=r"cross_val_score: params=\{'groups'"):
        cross_val_score(made, TEXTS, LABELS, cv=2, error_score="raise")
    with pytest.warns(SpendsAgain, match="spends again") as caught:
        scores = cross_val_score(made, TEXTS, LABELS, cv=2, params={"groups": PATIENTS})
        made.fit(TEXTS, LABELS, groups=PATIENTS)
    assert len(scores) == 2 and np.isfinite(scores).all()
    assert caught[-1].filename == __file__  # the warning points to the call of fit
    with warnings.catch_warnings(), pytest.raises(BudgetError):
        warnings.simplefilter("ignore", SpendsAgain)
        clone(made).set_params(budget=5.0).fit(TEXTS, LABELS, groups=PATIENTS)


def test_a_class_of_one_person_must_be_named_beforehand(encoder: str) -> None:
    odd = [*LABELS[:-1], "rare"]
    made = TextClassifier(encoder, protect=DPSGD(epsilon=8), train="head", training=QUICK)
    with pytest.raises(DataError, match="at least 2 persons"):
        made.fit(TEXTS, odd, groups=PATIENTS)
    named = clone(made).set_params(classes=["bad", "good", "rare"])
    assert named.fit(TEXTS, odd, groups=PATIENTS).predict_proba(TEXTS[:1]).shape == (1, 3)
    with pytest.raises(DataError, match="the label of row 60 to be one of classes"):
        clone(made).set_params(classes=["bad", "good"]).fit(TEXTS, odd, groups=PATIENTS)


@pytest.mark.parametrize(
    "groups",
    [
        np.array([float(i // 2) if i % 2 else i // 2 for i in range(60)], dtype=object),
        [1 if i < 5 else 1.0 if i < 10 else f"p{i}" for i in range(60)],
        [-0.0 if i % 2 else 0.0 for i in range(60)],
    ],
    ids=["object array", "list", "signed zero"],
)
def test_groups_in_which_one_person_would_be_two_are_rejected(groups: list[object], encoder: str) -> None:
    made = TextClassifier(encoder, protect=DPSGD(epsilon=8), train="head", training=QUICK)
    with pytest.raises(DataError, match="a name or an integer as unit in rows? .*, got float in groups"):
        made.fit(TEXTS, LABELS, groups=groups)


@pytest.mark.parametrize("missing", [None, float("nan"), "", " "], ids=repr)
def test_a_row_without_a_group_is_rejected(missing: object, encoder: str) -> None:
    made = TextClassifier(encoder, protect=DPSGD(epsilon=8), train="head", training=QUICK)
    with pytest.raises(DataError, match="a unit in row 3 .*, but groups is empty there"):
        made.fit(TEXTS, LABELS, groups=[*"ab", missing, *(f"p{i // 2}" for i in range(57))])


@pytest.mark.parametrize("groups", [PATIENTS, [str(p) for p in PATIENTS], np.array(PATIENTS)], ids=["int", "str", "np"])
def test_people_are_the_same_as_those_of_a_file(groups: list[object], encoder: str) -> None:
    read = Corpus("file", tuple(TEXTS), units=tuple(str(p) for p in PATIENTS), unit_name="patient")
    made = TextClassifier(encoder, protect=DPSGD(epsilon=8), train="head", training=QUICK, unit="patient")
    made.fit(TEXTS, LABELS, groups=groups)
    total = People().total(People().marks_of(read), "patient", Adjacency.ZERO_OUT, 1e-5)
    assert total.trainings == 1 and 7 < total.guarantee.epsilon <= 8


def test_the_readme_trains_privately_in_six_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    block = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)[0]
    lines = [line for line in block.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 6 and "epsilon=3" in block
    monkeypatch.chdir(tmp_path)
    few = load("notes", rows=80)
    monkeypatch.setattr(discreet, "load", lambda name: few)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    made = names["same"]
    assert isinstance(made, TextClassifier) and made.guarantee_ is not None
    assert made.guarantee_.certified and made.guarantee_.epsilon <= 3 and made.guarantee_.unit == "patient"


@pytest.mark.parametrize("kind", [InstanceEncoding, LocalPrivacy])
def test_public_text_that_is_asked_for_is_used_or_missed(kind: type[Any], encoder: str, tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    path.write_text("text,label\n" + "".join(f"a calm film of day {i},{i % 2}\n" for i in range(40)), encoding="utf-8")
    protect = kind(epsilon=8, dimension=8, public=str(path))
    made = TextClassifier(encoder, protect=protect, train="head", training=QUICK).fit(TEXTS, LABELS)
    assert isinstance(made.plan_.protect, RepresentationProtection) and made.plan_.public is not None
    assert made.plan_.protect.projected_to == 8
    corpus = Corpus("toy", tuple(TEXTS), labels=tuple(i % 2 for i in range(60)))
    with pytest.raises(DataError, match="Expected the public text"):
        TrainingPlan.make(made.model_, corpus, protect=protect)


def test_one_string_is_not_a_list_of_texts(encoder: str) -> None:
    made = TextClassifier(encoder, train="head", training=QUICK).fit(TEXTS, LABELS)
    for call in (made.predict, made.predict_proba, lambda texts: made.fit(texts, LABELS)):
        with pytest.raises(DataError, match="list of texts, got one string"):
            call("a good film")


def test_a_saved_run_says_that_no_file_holds_its_text(
    encoder: str, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TextClassifier(encoder, train="head", training=QUICK).fit(TEXTS, ["clinic", "ward"] * 30).save(tmp_path / "c1")
    for words, option in (["evaluate", str(tmp_path / "c1")], "DATA"), (["attack", str(tmp_path / "c1")], "--data"):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "texts given in Python" in error and f"name a file ({option})" in error
    assert main(["evaluate", str(tmp_path / "c1"), str(toy_csv)]) == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"train": "heads"}, r"Expected train to be one of head, pooler\+head, top-N, lora, lora-N, all, got 'heads'"),
        ({"train": 2}, r"Expected train to be one of head, pooler\+head, top-N, lora, lora-N, all, got 2"),
        ({"train": QUICK}, r"Expected train to be one of head, .*TrainSettings.*Pass .* as training"),
        ({"training": "head"}, r"Expected training to be TrainSettings.*'head'.*train='head'"),
    ],
)
def test_the_trained_layers_and_the_training_are_not_confused(
    encoder: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        TextClassifier(encoder, **settings).fit(TEXTS, LABELS)
