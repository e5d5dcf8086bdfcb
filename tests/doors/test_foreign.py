"""What becomes of a guarantee whose protection is not of this package, at every entry point.

The protections of `foreign.py` state the cost of built-in ones. Nothing checks that their code does what they state, so
no figure of theirs is certified, not even where they say so themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doors import test_audit, test_make_private
from tests.doors.commands import CLASSES, Answer, answer, check, door_of
from tests.doors.edits import without_digests
from tests.doors.foreign import Everybody, Quiet, QuietServer, SameName
from tests.doors.table import ESTIMATE, REJECTED, door
from tests.doors.test_federated import TASK, Settings
from tests.doors.test_federated import settings as settings  # a fixture
from tests.doors.test_make_private import FORMS
from tests.doors.test_private_trainer import trainer
from tests.doors.test_python_train import corpus as corpus  # a fixture
from tests.doors.test_python_train import model as model  # a fixture
from tests.doors.test_representations import Command
from tests.doors.test_representations import command as command  # a fixture
from tests.doors.test_text_classifier import CLASSES as NAMES
from tests.doors.test_text_classifier import LABELS, QUICK, TEXTS

from discreet import DPSGD, TextClassifier, TrainSettings
from discreet.accounting.ledger import Ledger
from discreet.attacks import Dager, OneOfN
from discreet.audit.protections import protection_subject
from discreet.core.errors import LedgerError, SettingError, UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.data.corpus import Corpus
from discreet.experiment import AttackRequest, SceneRequest, attack_once, load_scene
from discreet.federated.client import Client
from discreet.federated.flower import with_own_settings
from discreet.federated.run import FederateOptions, federate
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.local.protection import LocalPrivacy
from discreet.training import TrainingPlan, train
from discreet.training.plan import PrivatePlan
from discreet.training.tuning import SearchPlan

FOREIGN = frozenset({Caveat.THIRD_PARTY_PROTECTION})
MODULE = "tests.doors.foreign"
QUIET = Quiet(noise_multiplier=2.0, delta=1e-5)


def is_an_estimate(stated: Guarantee | None, ledger: Path | None = None) -> bool:
    """Whether a figure is an estimate for this reason alone, and the ledger says so too."""
    assert stated is not None and stated.exists
    if ledger is not None:
        assert Ledger.read(ledger).guarantee(stated.delta).caveats == FOREIGN
    return not stated.certified and stated.caveats == FOREIGN and "outside discreet" in str(stated.reason)


@door("train", "foreign", ESTIMATE)
def test_the_figure_of_a_named_class_is_an_estimate_in_the_folder_and_in_the_ledger(
    tmp_path: Path, tiny_encoder: Callable[[str], Path], toy_rows: list[tuple[str, str]]
) -> None:
    here, run = door_of(tmp_path, tiny_encoder("bert"), toy_rows), tmp_path / "run"
    quiet = ("--protect", f"{MODULE}:Quiet", "--noise-multiplier", 2, "--unit", "patient_id", *CLASSES, "--json")
    said = here.say("train", *quiet, out=run)
    assert said.status == 0, said.err
    assert said.values["protection"]["name"] == f"{MODULE}:Quiet"
    assert is_an_estimate(Guarantee.from_dict(_stored(run)), run / "ledger.jsonl")
    assert check(run, here.home).status == 0 and _checked(run, here.home).status == 1
    told = answer("statement", run, "--format", "json", home=here.home)
    assert "another package" in json.loads(told.out)["algorithm"]["label"], told.err
    without_digests(run / "metrics.json", guarantee__certified=True, guarantee__caveats=[], guarantee__reason=None)
    assert check(run, here.home).status == 2  # the ledger has the caveat too


def _checked(run: Path, home: Path) -> Answer:
    """Run the gate with a policy that accepts no caveat."""
    policy = run.with_name("no caveats.toml")
    policy.write_text("[guarantee]\nepsilon = 50.0\ncaveats = []\n", encoding="utf-8")
    return answer("check", run, "--policy", policy, home=home)


def _stored(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["guarantee"]
    return values


@door("tune", "foreign", REJECTED)
def test_a_search_takes_dp_sgd_and_nothing_that_is_derived_from_it(
    model: Classifier, corpus: Corpus, tmp_path: Path
) -> None:
    said = answer("tune", "notes", "--out", tmp_path / "t", "--protect", f"{MODULE}:Quiet", home=tmp_path)
    assert said.status == 2 and "No such option" in said.err
    short = TrainSettings(epochs=2, batch_size=10)
    grid = {"learning_rate": (0.01, 0.1)}
    SearchPlan.make(model, corpus, grid, protect=DPSGD(epsilon=4.0), training=short)
    with pytest.raises(SettingError, match="to be dp-sgd in a private search"):
        SearchPlan.make(model, corpus, grid, protect=Quiet(epsilon=4.0), training=short)


def plan_ledger(plan: TrainingPlan, path: Path) -> Ledger:
    assert isinstance(plan, PrivatePlan)
    return plan.open_ledger(path)


@door("discreet.training.train", "foreign", ESTIMATE)
def test_a_training_in_python_under_it_has_an_estimate(model: Classifier, corpus: Corpus, tmp_path: Path) -> None:
    for protect, certified in ((DPSGD(noise_multiplier=2.0), True), (Quiet(noise_multiplier=2.0), False)):
        plan = TrainingPlan.make(model, corpus, protect=protect, training=TrainSettings(epochs=1, batch_size=10))
        path = tmp_path / f"{protect.name}.jsonl"
        with plan_ledger(plan, path) as ledger:
            stated = train(model, corpus, plan, ledger=ledger).guarantee
        assert stated is not None and stated.certified is certified
    assert type(plan.protect) is Quiet and is_an_estimate(stated, path)


@door("discreet.training.train", "foreign", ESTIMATE)
def test_a_sampler_of_the_users_own_has_an_estimate(model: Classifier, corpus: Corpus, tmp_path: Path) -> None:
    settings = TrainSettings(epochs=1, batch_size=10)
    plan = TrainingPlan.make(
        model, corpus, protect=DPSGD(noise_multiplier=2.0), training=settings, sampler=Everybody(rate=0.25)
    )
    path = tmp_path / "ledger.jsonl"
    with plan_ledger(plan, path) as ledger:
        assert is_an_estimate(train(model, corpus, plan, ledger=ledger).guarantee)
    assert Ledger.read(path).guarantee(1e-5).caveats == FOREIGN


def test_a_single_release_names_no_built_in_protection_in_its_place(
    tiny_encoder: Callable[[str], Path], toy_csv: Path, tmp_path: Path
) -> None:
    words = ("attack", "--attack", "dager", "--data", toy_csv, "--model", tiny_encoder("bert"), "--examples", 1)
    said = answer(*words, "--protect", f"{MODULE}:Outer", "--noise-multiplier", 1, home=tmp_path)
    assert said.status == 2 and "to resolve to a class of its own for a single release" in said.err


@door("step", "foreign", ESTIMATE)
@door("capture", "foreign", ESTIMATE)
@door("gradients", "foreign", ESTIMATE)
@door("record", "foreign", ESTIMATE)
@pytest.mark.parametrize("form", FORMS)
def test_a_loop_of_the_users_own_has_an_estimate(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_make_private, "NOISE", Quiet(noise_multiplier=2.0, clip_norm=0.5))
    stated = test_make_private.trained(form, tmp_path).guarantee
    assert stated.exists and not stated.certified and stated.caveats >= FOREIGN
    assert Ledger.read(tmp_path / "ledger.jsonl").guarantee(1e-5).caveats >= FOREIGN


@door("PrivateTrainer", "foreign", ESTIMATE)
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_with_it_has_an_estimate(tmp_path: Path) -> None:
    trained = trainer(tmp_path, protect=Quiet(noise_multiplier=1.0, clip_norm=0.5))
    trained.train()
    assert is_an_estimate(trained.guarantee)


@door("TextClassifier", "foreign", ESTIMATE)
def test_a_classifier_with_it_has_an_estimate(tiny_encoder: Callable[[str], Path]) -> None:
    made = TextClassifier(str(tiny_encoder("bert")), protect=QUIET, train="head", training=QUICK, classes=NAMES)
    assert is_an_estimate(made.fit(TEXTS, LABELS).guarantee_)


@door("federated client", "foreign", ESTIMATE)
def test_a_client_with_it_has_an_estimate(settings: Settings, tmp_path: Path) -> None:
    client = Client(settings(protect=Quiet(epsilon=4.0)), 0, tmp_path / "client")
    assert client.training(TASK).plan.caveats == FOREIGN
    result = federate(settings(protect=QUIET), tmp_path / "fed", FederateOptions(in_process=True))
    assert is_an_estimate(Guarantee.from_dict(result["guarantee"]))


@door("federated server", "foreign", ESTIMATE)
@door("federated server", "foreign", REJECTED)
def test_a_server_with_an_aggregation_of_its_own_has_an_estimate_and_no_file_can_name_one(
    settings: Settings, tmp_path: Path
) -> None:
    private = QuietServer(epsilon=2.0, delta=1e-3, rate=0.4)
    federation = settings(aggregation=private)
    result = federate(federation, tmp_path / "fed", FederateOptions(in_process=True))
    assert is_an_estimate(Guarantee.from_dict(result["client_guarantee"]))
    lines = (tmp_path / "fed" / "server" / "ledger.jsonl").read_text().splitlines()
    said = [number for number, line in enumerate(lines) if Caveat.THIRD_PARTY_PROTECTION.value in line]
    # with the first round and not at the end, so that the ledger of a stopped server has it too
    assert said and said[0] < len(lines) - 1
    from discreet.catalog import aggregation_from_table

    with pytest.raises(SettingError, match="aggregation to be one of mean, central-dp, secure-sum"):
        aggregation_from_table({"name": f"{MODULE}:QuietServer", "epsilon": 2.0})


@pytest.mark.parametrize("name", ["QuietVectors", "QuietLocal"])
@door("dp-ie", "foreign", ESTIMATE)
@door("ldp", "foreign", ESTIMATE)
def test_vectors_of_it_have_an_estimate_even_if_it_removes_the_caveat_or_resolves_to_a_built_in_layer(
    name: str, command: Command
) -> None:
    status, result, said = command(f"{MODULE}:{name}", "run")
    assert status == 0, said
    assert is_an_estimate(Guarantee.from_dict(result["guarantee"]), command.folder / "run" / "ledger.jsonl")
    assert _checked(command.folder / "run", command.folder).status == 1


def test_a_node_with_a_limit_of_its_own_stays_out(settings: Settings) -> None:
    assert with_own_settings(settings(protect=DPSGD(epsilon=4.0)), 0, {"epsilon": 5.0})
    with pytest.raises(LedgerError, match="whose cost nobody has checked"):
        with_own_settings(settings(protect=Quiet(epsilon=4.0)), 0, {"epsilon": 5.0})


def test_a_class_under_a_built_in_name_is_not_audited_in_its_place() -> None:
    assert protection_subject(LocalPrivacy(epsilon=4.0), delta=1e-5)
    with pytest.raises(SettingError, match="protect to be one of"):
        protection_subject(SameName(epsilon=4.0), delta=1e-5)


@door("sanitize", "foreign", REJECTED)
def test_a_file_is_rewritten_by_the_mechanisms_of_this_package_alone(
    tmp_path: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    (tmp_path / "a.txt").write_text("the heart was sharp\n")
    words = ("sanitize", tmp_path / "a.txt", "--out", tmp_path / "b.txt", "--epsilon-per-word", 1)
    said: Answer = answer(*words, "--mechanism", f"{MODULE}:Quiet", "--model", tiny_encoder("bert"), home=tmp_path)
    assert said.status == 2 and "--mechanism to be one of santext" in said.err


@door("audit", "foreign", ESTIMATE)
@door("audit", "foreign", REJECTED)
def test_an_audited_run_keeps_its_caveat_and_one_release_of_it_has_no_audit(
    tmp_path: Path, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_audit, "PROTECT", Quiet(noise_multiplier=2.0, delta=1e-3))
    result = test_audit.Door(tiny_encoder("bert")).train(tmp_path / "run")
    assert is_an_estimate(Guarantee.from_dict(result["guarantee"]))
    said = answer("audit", "--protect", f"{MODULE}:Quiet", "--set", "noise_multiplier=1", home=tmp_path)
    assert said.status == 2 and "--protect to be one of dp-sgd" in said.err


def test_one_of_n_is_not_simulated_with_noise_that_may_not_be_added(
    tiny_encoder: Callable[[str], Path], toy_csv: Path
) -> None:
    settings = ModelSettings(encoder=str(tiny_encoder("bert")), train="all", dropout=0.0)
    scene = load_scene(SceneRequest(str(toy_csv), model=settings))
    request = AttackRequest(OneOfN(), Quiet(2.0), candidates=8, draws=500)
    with pytest.raises(UnsupportedError, match="dp-sgd or dir-dp-sgd itself for 1-of-n, got tests.doors.foreign:Quiet"):
        attack_once(request, scene)
    read = attack_once(AttackRequest(Dager(), Quiet(2.0), name="dager", examples=1, max_words=6), scene)
    assert read.guarantee is not None and read.guarantee.caveats >= FOREIGN and not read.guarantee.certified
