"""The law book of protections, kept by every protection in the catalog.

How a protection is asked for, resolved, run and read back stands in the adapter alone; the laws below it hold for any
way of asking.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import WORDS
from tests.doors.edits import restated
from tests.planned import train
from torch import Tensor, nn

import discreet
from discreet.accounting.events import ComposedDpEvent, RandomizedResponseDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon as price
from discreet.accounting.ledger import Ledger
from discreet.core.errors import DiscreetError, LedgerError, SettingError, UnsupportedError
from discreet.core.guarantee import Adjacency, Caveat
from discreet.core.randomness import Rng, digest
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.runs.checkpoint import LEDGER
from discreet.statement.facts import read_facts

DELTA = 1e-6  # so small that a pure guarantee is hardly cheaper at it
UNDERCUT = 0.02
SETTINGS = TrainSettings(epochs=3, batch_size=8, learning_rate=1e-2)


# ---------------------------------------------------------------------------------------------------------------------
# The adapter: all that depends on how a protection is asked for today.

UNIT, ROW, WORD, NOTHING = "unit", "row", "word", "nothing"  # what an epsilon is the budget of
SENSITIVE = "a file of sensitive words"  # a placeholder, as the file is written by a test


@dataclass(frozen=True)
class Case:
    """A protection as it is asked for."""

    name: str
    values: Mapping[str, Any]
    budget_of: str = UNIT

    @property
    def epsilon(self) -> float:
        """The budget that was asked for."""
        found: float = self.values["epsilon_per_word" if self.budget_of == WORD else "epsilon"]
        return found


@dataclass(frozen=True)
class Outcome:
    """What a run did and left."""

    asked: Any
    guarantee: Mapping[str, Any]
    steps: int
    out_of_budget: bool
    folder: Path

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained weights as they lie on disk."""
        from discreet.runs.folder import load_run

        return dict(load_run(self.folder).model.state_dict())

    @property
    def ledger(self) -> Any:
        """The statement of the ledger in the run's folder."""
        return Ledger.read(self.folder / LEDGER)


CASES: dict[str, Case] = {
    "dp-sgd": Case("dp-sgd", {"epsilon": 3.0}),
    "dp-sgd, little": Case("dp-sgd", {"epsilon": 0.3}),
    "dp-sgd, per layer": Case("dp-sgd", {"epsilon": 3.0, "clipping": "per-layer"}),
    "dp-sgd, automatic": Case("dp-sgd", {"epsilon": 3.0, "clipping": "automatic"}),
    "dir-dp-sgd": Case("dir-dp-sgd", {"kappa": 1.0}, NOTHING),
    "dir-dp-sgd, budget": Case("dir-dp-sgd", {"epsilon": 2.0}),
    "dir-dp-sgd, layers": Case("dir-dp-sgd", {"kappa": 1.0, "partition": "layers"}, NOTHING),
    "texthide": Case("texthide", {"masks": 4, "mix": 2}, NOTHING),
    "texthide, fresh": Case("texthide", {"fresh_masks": True, "mix": 2}, NOTHING),
    "dp-ie": Case("dp-ie", {"epsilon": 8.0}),
    "dp-ie, mixed": Case("dp-ie", {"epsilon": 8.0, "mix": 2}),
    "dp-ie, laplace": Case("dp-ie", {"epsilon": 0.5, "mechanism": "laplace"}),
    "dp-ie, laplace-l2": Case("dp-ie", {"epsilon": 0.5, "mechanism": "laplace-l2", "mix": 3, "mix_cap": 0.5}),
    "dp-ie, labels": Case("dp-ie", {"epsilon": 2.0, "labels": "noisy"}),
    "ldp": Case("ldp", {"epsilon": 8.0, "dimension": 8}),
    "ldp, vmf": Case("ldp", {"epsilon": 0.5, "dimension": 8, "mechanism": "vmf"}),
    "ldp, gaussian alone": Case("ldp", {"epsilon": 8.0, "dimension": 8, "mechanism": "gaussian"}),
    "ldp, gaussian": Case("ldp", {"epsilon": 8.0, "dimension": 8, "mechanism": "gaussian", "label_epsilon": 1.0}),
    "ldp, drawn again": Case(
        "ldp",
        {"epsilon": 8.0, "dimension": 8, "mechanism": "gaussian", "label_epsilon": 1.0, "sampling": "fixed"},
        ROW,
    ),
    "santext": Case("santext", {"epsilon_per_word": 4.0}, WORD),
    "santext+": Case("santext+", {"epsilon_per_word": 4.0, "sensitive": SENSITIVE}, NOTHING),
    "word-noise": Case("word-noise", {"epsilon_per_word": 4.0}, WORD),
}
# No noise at all, for each protection; and so little that a guarantee must be worthless.
NOISELESS: dict[str, Mapping[str, Any]] = {
    "dp-sgd": {"noise_multiplier": 0.0},
    "dir-dp-sgd": {"kappa": math.inf},
    "texthide": {"masks": 0, "mix": 1},
    "dp-ie": {"epsilon": math.inf},
    "ldp": {"epsilon": math.inf},
    "santext": {"epsilon_per_word": math.inf},
    "santext+": {"epsilon_per_word": math.inf, "sensitive": SENSITIVE},
    "word-noise": {"epsilon_per_word": math.inf},
}
NEARLY_NOISELESS: dict[str, Mapping[str, Any]] = {
    "dp-sgd": {"noise_multiplier": 0.1},
    "dir-dp-sgd": {"kappa": 100.0},
    "texthide": {"masks": 1, "mix": 1},
    "dp-ie": {"epsilon": 1e4},
    "ldp": {"epsilon": 1e4, "mechanism": "gaussian", "dimension": 8},
    "santext": {"epsilon_per_word": 1e4},
    "santext+": {"epsilon_per_word": 1e4, "sensitive": SENSITIVE},
    "word-noise": {"epsilon_per_word": 1e4},
}
# A noise, and beside it an epsilon at which training stops.
LIMITED = {
    "dp-sgd": {"noise_multiplier": 0.8, "epsilon": 5.0},
    "dir-dp-sgd": {"kappa": 2.0, "epsilon": 3.0},
}


def catalog() -> tuple[str, ...]:
    """Return the names of all protections."""
    from discreet.catalog import PROTECTIONS

    return tuple(PROTECTIONS)


def ask(name: str, values: Mapping[str, Any], sensitive: Path) -> Any:
    """Return a protection as it is asked for, before model and corpus are known."""
    from discreet.catalog import protection

    given = {key: str(sensitive) if value == SENSITIVE else value for key, value in values.items()}
    return protection(name, given)


def with_delta(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the delta of these laws, where a protection has one."""
    return dict(values) if name == "texthide" else {"delta": DELTA, **values}


def resolve(asked: Any, model: Classifier, corpus: Corpus) -> Any:
    """Return the protection that runs, resolved against public facts of model, corpus and training."""
    from discreet.protections.base import Conditions

    split = corpus.split("train")
    size = min(SETTINGS.size, split.unit_count)
    steps = round(SETTINGS.passes * -(-split.unit_count // size))
    return asked.resolve(Conditions(model, split.unit_count, len(split), size, steps, SETTINGS.passes, DELTA))


def request(asked: Any, encoder: Path, noise_seed: int | None, settings: TrainSettings) -> Any:
    """Return the training that the command line asks for."""
    from discreet.experiment.run import RunRequest

    model = ModelSettings(encoder=str(encoder), train="head", dropout=0.0)
    return RunRequest(TextSource("toy.csv"), model, settings, asked, noise_seed=noise_seed)


def run(
    asked: Any,
    corpus: Corpus,
    encoder: Path,
    folder: Path,
    noise_seed: int | None = None,
    settings: TrainSettings = SETTINGS,
) -> Outcome:
    """Train as the command line does; without a seed the noise is secret."""
    from discreet.experiment.run import train_once

    found = train_once(request(asked, encoder, noise_seed, settings), folder, corpus=corpus).values()
    return Outcome(asked, found["guarantee"], found["steps"], found["out_of_budget"], folder)


def read_back(folder: Path) -> tuple[Any, Mapping[str, Any]]:
    """Return the protection that a run was asked for, and its guarantee, from its folder."""
    from discreet.runs.folder import load_run

    found = load_run(folder)
    return found.settings.protect, found.metrics["guarantee"]


def one_release(case: Case, model: Classifier, corpus: Corpus, sensitive: Path) -> float:
    """Return the epsilon of one release to an attacker, asked for with the case's budget."""
    from discreet.releases.protected import protection_of
    from discreet.releases.representation import representation_release

    given = {key: str(sensitive) if value == SENSITIVE else value for key, value in case.values.items()}
    protect = protection_of(case.name, model, given, delta=DELTA, batch_size=len(corpus))
    if case.name in {"dp-sgd", "dir-dp-sgd"}:
        return float(price(protect.event, DELTA, protect.adjacency))
    seen, _ = representation_release(model, corpus, protect, Rng.secret(), delta=DELTA)
    assert seen.guarantee is not None
    return seen.guarantee.epsilon


def study_protection(case: Case, encoder: Path, corpus: Corpus, folder: Path, sensitive: Path) -> Any:
    """Return the protection that a trial of a study runs."""
    from discreet.experiment.run import make_plan
    from discreet.study.trial import training_request

    given = {key: str(sensitive) if value == SENSITIVE else value for key, value in case.values.items()}
    settings = {
        "data": {"source": "toy.csv"},
        "model": {"encoder": str(encoder), "train": "head"},
        "training": {"epochs": SETTINGS.epochs, "batch_size": SETTINGS.batch_size},
        "protect": {"name": case.name, **with_delta(case.name, given)},
    }
    asked = training_request(settings, corpus, 0)
    return make_plan(asked, Classifier.build(corpus, asked.model, rng=Rng(0)), corpus, lambda text: None).protect


DECLARED = {  # what callers may ask of a protection, by its place
    "gradient": ("name", "event", "visible", "adjacency", "gather", "release"),
    "representation": (
        "name", "place", "stored", "position", "sampling", "needs_public", "priced", "adjacency",
        "fit", "begin", "end", "views", "check", "once", "live",
    ),
    "text": ("name", "place", "adjacency", "rewrites_queries", "cost", "stated", "rewrite"),
}  # fmt: skip


def place(protect: Any) -> str:
    """Return where a protection acts."""
    return str(protect.place)


# ---------------------------------------------------------------------------------------------------------------------
# What the laws are tried on.


def toy(units: str, count: int = 64) -> Corpus:
    """Return a corpus of two classes whose units are rows, or persons of up to four rows."""
    texts = tuple(
        f"the {WORDS[(7 * i) % len(WORDS)]} {('heart', 'knee')[i % 2]} was {WORDS[(11 * i + 3) % len(WORDS)]}"
        for i in range(count)
    )
    held = count // 4
    people: dict[str, Any] = {}
    if units == "people":
        names = [f"p{max(i % (count // 3), i % 5)}" for i in range(count)]  # other people are held out
        held_out = (f"held out {name}" for name in names[count - held :])
        people = {"units": (*names[: count - held], *held_out), "unit_name": "person"}
    splits = ("train",) * (count - held) + ("validation",) * held
    labels = tuple(i % 2 for i in range(count))
    return Corpus("toy", texts, labels=labels, label_names=("0", "1"), splits=splits, **people)


ROWS, PEOPLE = toy("rows"), toy("people")


@pytest.fixture(scope="module")
def encoder(tiny_encoder: Callable[[str], Path]) -> Path:
    return tiny_encoder("bert")


@pytest.fixture(scope="module")
def sensitive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "sensitive.txt"
    path.write_text("\n".join(WORDS[:12]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs(
    encoder: Path, sensitive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str, int | None], Outcome]:
    """Return a function that runs a case once, on rows or people, and remembers how it went."""
    done: dict[tuple[str, str, int | None], Outcome] = {}
    folder = tmp_path_factory.mktemp("runs")

    def of(case: str, units: str = "rows", noise_seed: int | None = None) -> Outcome:
        key = (case, units, noise_seed)
        if key not in done:
            asked = ask(CASES[case].name, with_delta(CASES[case].name, CASES[case].values), sensitive)
            corpus = PEOPLE if units == "people" else ROWS
            done[key] = run(asked, corpus, encoder, folder / str(len(done)), noise_seed)
        return done[key]

    return of


def model_of(encoder: Path, corpus: Corpus = ROWS, part: str = "head") -> Classifier:
    return Classifier.build(corpus, rng=Rng(0), encoder=str(encoder), train=part, dropout=0.0)


def parts_of(event: Any) -> list[Any]:
    """Return what a budget was divided among, such as vectors and the labels of each row."""
    if isinstance(event, ComposedDpEvent):
        return [part for inner in event.events for part in parts_of(inner)]
    if isinstance(event, SelfComposedDpEvent) and (
        event.count == 1 or isinstance(event.event, RandomizedResponseDpEvent)
    ):
        return parts_of(event.event) * event.count
    return [event]


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---------------------------------------------------------------------------------------------------------------------
# The laws.


def test_every_protection_of_the_catalog_is_under_these_laws() -> None:
    assert {case.name for case in CASES.values()} == set(catalog())
    assert set(NOISELESS) == set(NEARLY_NOISELESS) == set(catalog())


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_frozen_value_with_the_members_that_its_place_declares(
    case: str, encoder: Path, sensitive: Path
) -> None:
    asked = ask(CASES[case].name, CASES[case].values, sensitive)
    protect = resolve(asked, model_of(encoder), ROWS)
    for value in (asked, protect):
        assert dataclasses.is_dataclass(value) and type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert [member for member in DECLARED[place(protect)] if not hasattr(protect, member)] == []
    assert protect.name and protect.adjacency in Adjacency


@pytest.mark.parametrize("case", CASES)
def test_the_same_source_gives_the_same_output_and_another_one_does_not(
    case: str, runs: Callable[..., Outcome], encoder: Path, tmp_path: Path
) -> None:
    first, other = runs(case, "rows", 5), runs(case, "rows", 6)
    again = run(first.asked, ROWS, encoder, tmp_path / "again", 5)
    assert equal(first.weights, again.weights) and first.guarantee == again.guarantee
    assert not equal(first.weights, other.weights)


@pytest.mark.parametrize("case", CASES)
def test_secret_noise_is_drawn_anew_and_only_it_is_certified(
    case: str, runs: Callable[..., Outcome], encoder: Path, tmp_path: Path
) -> None:
    first, fixed = runs(case), runs(case, "rows", 5)
    second = run(first.asked, ROWS, encoder, tmp_path / "second")
    assert not equal(first.weights, second.weights)
    assert not fixed.guarantee["certified"]
    if first.guarantee["epsilon"] is not None:
        assert first.guarantee["certified"] and not first.guarantee["caveats"]
        assert fixed.guarantee["caveats"] == [Caveat.FIXED_SEED]
        # Mixing weights are drawn too, and the noise is solved for them.
        assert fixed.guarantee["epsilon"] == pytest.approx(first.guarantee["epsilon"], rel=1e-5)


@pytest.mark.parametrize(
    ("case", "units"),
    [(case, "rows") for case in CASES if CASES[case].budget_of in {UNIT, ROW}]
    + [(case, "people") for case in CASES if CASES[case].budget_of == UNIT],
)
def test_a_budget_is_met_and_hardly_undercut(case: str, units: str, runs: Callable[..., Outcome]) -> None:
    """A budget that is divided among vectors and labels is divided by addition: all of it is given to the parts.

    What is certified for the parts together may then be less.
    """
    asked, found = CASES[case].epsilon, runs(case, units)
    spent, ledger = found.guarantee["epsilon"], found.ledger
    assert not found.out_of_budget and found.guarantee["certified"]
    assert found.guarantee["delta"] == DELTA and found.guarantee["unit"] == ("row" if units == "rows" else "person")
    assert spent <= asked
    given = sum(price(part, DELTA, ledger.adjacency) for part in parts_of(ledger.event))
    assert given >= (1 - UNDERCUT) * asked
    if len(parts_of(ledger.event)) == 1:
        assert spent >= (1 - UNDERCUT) * asked


@pytest.mark.parametrize(
    ("case", "units"), [(c, units) for c in CASES if CASES[c].budget_of == WORD for units in ("rows", "people")]
)
def test_a_budget_of_words_adds_up_over_the_words_of_a_unit(
    case: str, units: str, runs: Callable[..., Outcome]
) -> None:
    split = (ROWS if units == "rows" else PEOPLE).split("train")
    words = [0] * split.unit_count
    for text, unit in zip(split.texts, split.unit_index.tolist(), strict=True):
        words[unit] += len(text.split())
    spent = runs(case, units).guarantee["epsilon"]
    asked = CASES[case].epsilon * max(words)
    assert (1 - UNDERCUT) * asked <= spent <= asked


@pytest.mark.parametrize("name", LIMITED)
def test_an_epsilon_beside_a_noise_stops_training_at_the_last_step_that_it_allows(
    name: str, encoder: Path, sensitive: Path, tmp_path: Path
) -> None:
    values = LIMITED[name]
    found = run(ask(name, with_delta(name, values), sensitive), ROWS, encoder, tmp_path / "run")
    free = run(
        ask(name, with_delta(name, {k: v for k, v in values.items() if k != "epsilon"}), sensitive),
        ROWS, encoder, tmp_path / "free",
    )  # fmt: skip
    ledger = found.ledger
    assert found.out_of_budget and 0 < found.steps < free.steps
    assert found.guarantee["epsilon"] <= values["epsilon"] < free.guarantee["epsilon"]
    ((step, count),) = ledger.spent
    assert price(SelfComposedDpEvent(step, count + 1), DELTA, ledger.adjacency) > values["epsilon"]


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case].budget_of in {UNIT, ROW}] + ["dir-dp-sgd"])
def test_the_budget_of_one_release_to_an_attacker_is_met_and_hardly_undercut(
    case: str, encoder: Path, sensitive: Path
) -> None:
    asked = CASES[case] if case != "dir-dp-sgd" else Case(case, {"epsilon": 3.0})
    rows = ROWS.split("train").take(list(range(12)))
    if CASES[case].values.get("sampling") == "fixed" or "labels" in CASES[case].values:
        asked = Case(asked.name, {k: v for k, v in asked.values.items() if k not in {"labels", "sampling"}})
    if "label_epsilon" in asked.values:  # divided; the law of a training looks at its parts
        asked = Case(asked.name, {k: v for k, v in asked.values.items() if k != "label_epsilon"})
    spent = one_release(asked, model_of(encoder), rows, sensitive)
    assert (1 - UNDERCUT) * asked.epsilon <= spent <= asked.epsilon


@pytest.mark.parametrize("case", CASES)
def test_a_study_runs_the_protection_that_the_command_line_runs(
    case: str, encoder: Path, sensitive: Path, tmp_path: Path
) -> None:
    asked = ask(CASES[case].name, with_delta(CASES[case].name, CASES[case].values), sensitive)
    in_study = study_protection(CASES[case], encoder, ROWS, tmp_path / "study", sensitive)
    assert digest(in_study) == digest(resolve(asked, model_of(encoder), ROWS))


@pytest.mark.parametrize("name", catalog())
def test_no_noise_claims_nothing(name: str, encoder: Path, sensitive: Path, tmp_path: Path) -> None:
    """Settings without any noise are rejected by the name of the setting, or give no guarantee."""
    values = NOISELESS[name]
    try:
        asked = ask(name, with_delta(name, values), sensitive)
    except SettingError as error:
        assert next(iter(values)) in str(error) and math.inf in values.values()
        return
    found = run(asked, ROWS, encoder, tmp_path / "run").guarantee
    assert found["epsilon"] is None and not found["certified"] and found["reason"]
    assert found["strength"] == "no practical protection" and "No guarantee" in found["sentence"]


@pytest.mark.parametrize("name", catalog())
def test_hardly_any_noise_claims_hardly_anything(name: str, encoder: Path, sensitive: Path, tmp_path: Path) -> None:
    asked = ask(name, with_delta(name, NEARLY_NOISELESS[name]), sensitive)
    found = run(asked, ROWS, encoder, tmp_path / "run", settings=dataclasses.replace(SETTINGS, epochs=1)).guarantee
    assert found["epsilon"] is None or found["epsilon"] > 100
    assert found["strength"] == "no practical protection"


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_read_back_with_an_equal_protection_and_an_equal_guarantee(
    case: str, runs: Callable[..., Outcome], encoder: Path
) -> None:
    found = runs(case)
    asked, guarantee = read_back(found.folder)
    assert asked == found.asked and guarantee == found.guarantee
    model = model_of(encoder)
    assert digest(resolve(asked, model, ROWS)) == digest(resolve(found.asked, model, ROWS))
    in_ledger = found.ledger.guarantee(guarantee["delta"])
    assert in_ledger.as_dict()["epsilon"] == guarantee["epsilon"]
    assert in_ledger.certified == guarantee["certified"] and sorted(in_ledger.caveats) == guarantee["caveats"]
    assert (in_ledger.unit, in_ledger.adjacency) == (guarantee["unit"], guarantee["adjacency"])
    assert set(in_ledger.assumptions) == set(guarantee["assumptions"]) or guarantee["epsilon"] is None


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be protected is rejected by name, and before anything is spent or learned.


def rejected(
    protect: Any, model: Any, corpus: Any, match: str, kind: type[Exception] = DiscreetError, fitted: bool = False
) -> None:
    """Assert that a training is rejected with a reason, with nothing spent and nothing learned.

    With `fitted` the model may have been given the head that the protection needs.
    """
    before = digest(model) if isinstance(model, nn.Module) else ""
    unit = corpus.unit_name if isinstance(corpus, Corpus) else "row"
    adjacency = getattr(protect, "adjacency", Adjacency.ZERO_OUT)
    adjacency = adjacency if isinstance(adjacency, Adjacency) else Adjacency.ZERO_OUT
    with Ledger.open(None, unit=unit, adjacency=adjacency) as ledger:
        with pytest.raises(kind, match=match):
            train(model, corpus, SETTINGS, seed=0, protect=protect, secret=Rng(1), ledger=ledger)
        assert ledger.statement.spends == 0
    if isinstance(model, nn.Module) and not fitted:
        assert digest(model) == before, "a rejected training changed the model"


@pytest.fixture(scope="module")
def resolved(encoder: Path, sensitive: Path) -> Callable[[str], Any]:
    """Return a function from a case to the protection that runs."""

    def of(case: str, corpus: Corpus = ROWS) -> Any:
        asked = ask(CASES[case].name, with_delta(CASES[case].name, CASES[case].values), sensitive)
        return resolve(asked, model_of(encoder, corpus), corpus)

    return of


@pytest.mark.parametrize("case", CASES)
def test_models_and_data_of_another_kind_are_rejected_by_name(
    case: str, resolved: Callable[..., Any], encoder: Path
) -> None:
    protect, model = resolved(case), model_of(encoder)
    rejected(protect, nn.Linear(2, 2), ROWS, "Classifier or LanguageModel, got Linear", UnsupportedError)
    rejected(protect, model.encoder, ROWS, "Classifier or LanguageModel, got BertModel")
    rejected(protect, model, list(ROWS.texts), "Expected corpus to be a discreet.Corpus, got list")
    rejected(protect, model, dataclasses.replace(ROWS, labels=None), "Expected data for classification")
    scores = dataclasses.replace(ROWS, labels=None, scores=tuple(map(float, range(len(ROWS)))))
    rejected(protect, model, scores, "Expected data for classification, got regression")
    rejected(protect, model, ROWS.split("validation"), "Expected a 'train' split in corpus 'toy'")


def not_protections(encoder: Path) -> dict[str, Any]:
    table = discreet.protections.WordTable.of_encoder(str(encoder))
    return {
        "LDPLayer": discreet.protections.LDPLayer("privunit", 16, 8.0),
        "TokenNoise": discreet.protections.TokenNoise(table, 8.0),
        "Gaussian": discreet.mechanisms.Gaussian(1.0),
        "VonMisesFisher": discreet.mechanisms.VonMisesFisher(1.0, 16),
        "Flat": discreet.clipping.Flat(1.0),
        "the class DPSGD": discreet.DPSGD,
        "the class TextHide": discreet.TextHide,
        "str": "dp-sgd",
        "dict": {"name": "dp-sgd"},
    }


NOT_PROTECTIONS = (
    "LDPLayer", "TokenNoise", "Gaussian", "VonMisesFisher", "Flat", "the class DPSGD", "the class TextHide", "str",
    "dict",
)  # fmt: skip


@pytest.mark.parametrize("kind", NOT_PROTECTIONS)
def test_what_is_not_a_protection_is_rejected_by_name(kind: str, encoder: Path) -> None:
    protect, model = not_protections(encoder)[kind], model_of(encoder)
    rejected(protect, model, ROWS, f"Expected protect to be a protection of .* got {kind}", UnsupportedError)
    rows, got = ROWS.take([0, 1]), f"got {kind}"
    with pytest.raises(UnsupportedError, match=got):
        discreet.releases.protected_release(model, rows, protect, Rng(0), delta=DELTA)
    with pytest.raises(UnsupportedError, match=got):
        discreet.releases.hidden_release(model, rows, protect, Rng(0))
    with pytest.raises(UnsupportedError, match=got):
        discreet.releases.representation_release(model, rows, protect, Rng(0))


def test_the_examples_of_what_is_not_a_protection_are_all_there(encoder: Path) -> None:
    assert tuple(not_protections(encoder)) == NOT_PROTECTIONS


class MixesRows(nn.Module):
    """A head that compares the rows of a batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.layer(vectors - vectors.mean(0))
        return found


class Unknown(nn.Module):
    """A head with a parameter of its own, which no layer of torch owns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width, 2))

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors @ self.scale


@pytest.mark.parametrize("case", [c for c in CASES if CASES[c].name in {"dp-sgd", "dir-dp-sgd"}])
def test_models_whose_gradients_cannot_be_told_apart_are_rejected_by_name(
    case: str, resolved: Callable[..., Any], encoder: Path
) -> None:
    protect = resolved(case)
    for head, match in (
        (MixesRows(16), "mixes the examples of a batch"),
        (nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 2)), "head.0.*BatchNorm1d|BatchNorm1d.*head.0"),
        (Unknown(16), "head.scale|Unknown"),
    ):
        model = model_of(encoder)
        model.head = head
        rejected(protect, model, ROWS, match, UnsupportedError)
    frozen = model_of(encoder)
    frozen.head.requires_grad_(False)
    rejected(protect, frozen, ROWS, "trainable|nothing to train")


def test_settings_that_do_not_fit_the_model_or_the_data_are_rejected_by_name(
    resolved: Callable[..., Any], encoder: Path, sensitive: Path
) -> None:
    whole_model = model_of(encoder, part="all")
    rejected(resolved("ldp"), whole_model, ROWS, "train to be head or pooler.head for a stored ldp", SettingError, True)
    few = toy("rows", 8)
    for name in ("texthide", "dp-ie"):
        mixed = ask(name, {**({} if name == "texthide" else {"epsilon": 8.0}), "mix": 7}, sensitive)
        with pytest.raises(SettingError, match="mix to be <= 6.*, got 7"):
            resolve(mixed, model_of(encoder), few)
    again = resolved("ldp, drawn again")
    rejected(again, model_of(encoder), few, "batch_size|of 48 sentences", SettingError, True)
    with pytest.raises(SettingError, match="sampling to be once for units of several rows.*, got 'fixed'"):
        resolved("ldp, drawn again", PEOPLE)
    live = dataclasses.replace(resolved("dp-ie"), stored=False)
    rejected(live, whole_model, PEOPLE, "unit to be of one row each for a live dp-ie", SettingError, True)
    scores = dataclasses.replace(ROWS, labels=None, label_names=(), scores=tuple(i / 64 for i in range(64)))
    to_scores = model_of(encoder, scores)
    rejected(resolved("dp-ie, labels"), to_scores, scores, "labels to be public for scores", SettingError, True)
    rejected(
        resolved("ldp, gaussian"), to_scores, scores, "label_epsilon to be left out for scores", SettingError, True
    )
    strict = ask("santext", {"epsilon_per_word": 4.0, "unknown": "refuse"}, sensitive)
    strange = dataclasses.replace(ROWS, texts=("qqq zzz", *ROWS.texts[1:]))
    with pytest.raises(DiscreetError, match="word 1 of text 1 is not"):
        train(model_of(encoder), strange, SETTINGS, seed=0, protect=resolve(strict, model_of(encoder), ROWS))


def test_every_public_class_with_a_budget_is_a_protection_or_rejected_by_name(encoder: Path) -> None:
    """A public class that looks like a protection, because it has a price, is one that `train` takes or rejects."""
    from discreet.protections.base import check_protection

    values = [
        *not_protections(encoder).values(),
        discreet.DPSGD(1.0),
        discreet.TextHide(),
        None,
        3,
        [discreet.DPSGD(1.0)],
    ]
    for value, places in itertools.product(values, ((), ("gradient",), ("text",), ("representation",))):
        try:
            check_protection(value, *places)
        except UnsupportedError as error:
            expected = (
                "Expected one protection" if isinstance(value, list) else "Expected protect to be a protection of"
            )
            assert expected in str(error)
        else:
            assert type(value) in {discreet.DPSGD, discreet.TextHide}


@pytest.mark.parametrize("noise_seed", [None, 5])
@pytest.mark.parametrize("case", CASES)
def test_the_gate_finds_the_same_figure_in_the_ledger_and_rejects_another(
    case: str, noise_seed: int | None, runs: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder = runs(case, "rows", noise_seed).folder
    stated = read_facts(folder).guarantee
    assert stated is not None and stated.certified is (noise_seed is None and stated.exists)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    metrics = json.loads((copy / "metrics.json").read_text())
    smaller = {**metrics["guarantee"], "epsilon": 0.9 * stated.epsilon if stated.exists else 1.0, "reason": "edited"}
    restated(copy, {**metrics, "guarantee": smaller})  # with digests that fit
    with pytest.raises(LedgerError, match="Expected epsilon in .* to agree"):
        read_facts(copy)
