"""What earlier versions wrote: finished runs load, ledgers are read, unfinished runs are rejected with a remedy.

`tests/fixtures/format_1` was written by the version before checkpoints had a format: a tiny encoder, 48 rows, a
finished private run, one that was stopped after three steps, and the ledger of a run with a fixed seed.
"""

import shutil
from pathlib import Path

import pytest
from tests.planned import train

from discreet.accounting.ledger import Ledger
from discreet.core.errors import ModelError
from discreet.core.randomness import Rng
from discreet.data.sources import load
from discreet.models.classifier import Classifier
from discreet.protections.dp_sgd import DPSGD
from discreet.training.evaluate import evaluate
from discreet.training.run_folder import load_run, workspace_of
from discreet.training.settings import TrainSettings

OLD = Path(__file__).parents[1] / "fixtures" / "format_1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_a_finished_run_loads_and_answers(old: Path) -> None:
    run = load_run(old / "finished")
    assert run.settings.protect.name == "dp-sgd" and run.metrics["guarantee"]["certified"]
    assert set(evaluate(run.model, load(old / "toy.csv"))) >= {"accuracy"}
    assert Ledger.read(old / "finished" / "ledger.jsonl").guarantee(1e-5).adjacency == "add/remove"


def test_an_unfinished_run_is_not_resumed(old: Path) -> None:
    before = {path.name: path.read_bytes() for path in (old / "begun.unfinished").iterdir()}
    with pytest.raises(ModelError, match="started by an earlier version"):
        workspace_of(old / "begun", resume=True)
    corpus = load(old / "toy.csv")
    model = Classifier.build(corpus, rng=Rng(0).fork("model"), encoder=str(old / "encoder"), train="head")
    with (
        Ledger.open(None, unit="row", adjacency=DPSGD(1.0).adjacency) as ledger,
        pytest.raises(ModelError, match="The spends in its ledger stay recorded"),
    ):
        train(
            model, corpus, TrainSettings(epochs=2, batch_size=16), seed=0, protect=DPSGD(1.0), ledger=ledger,
            workspace=old / "begun.unfinished",
        )  # fmt: skip
    assert {path.name: path.read_bytes() for path in (old / "begun.unfinished").iterdir()} == before
    assert Ledger.read(old / "begun.unfinished" / "ledger.jsonl").spends == 3
