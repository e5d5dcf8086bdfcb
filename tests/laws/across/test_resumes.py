"""A run that was stopped or killed is billed as an undisturbed one, and is not resumed on another ledger or secret."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from discreet.accounting.events import GaussianDpEvent
from discreet.accounting.ledger import Ledger
from discreet.catalog import protection
from discreet.core.errors import LedgerError, ModelError
from discreet.core.randomness import Rng
from discreet.data.sources import TextSource
from discreet.experiment import RunOptions, RunRequest, train_once
from discreet.models.classifier import ModelSettings
from discreet.models.settings import TrainSettings
from discreet.runs.folder import load_run
from discreet.runs.people import People

PROTECTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "dp-sgd": ({"noise_multiplier": 1.0}, "head"),
    "dir-dp-sgd": ({"kappa": 5.0}, "head"),
    "texthide": ({"masks": 4, "mix": 2}, "head"),
    "dp-ie": ({"epsilon": 40.0}, "all"),
    "ldp": (
        {"epsilon": 8.0, "dimension": 8, "query_dimension": 8, "sampling": "fixed", "mechanism": "gaussian"},
        "head",
    ),
    "santext": ({"epsilon_per_word": 4.0}, "head"),
}
named = pytest.mark.parametrize("name", list(PROTECTIONS))


class Killed(BaseException):
    """What ends a process without a chance to tidy up."""


@dataclass
class Runs:
    """Trains one protection with or without interruptions."""

    rows: Path
    public: Path
    encoder: Path

    def request(self, name: str) -> RunRequest:
        given, part = PROTECTIONS[name]
        more = {"public": str(self.public)} if name == "ldp" else {}
        model = ModelSettings(encoder=str(self.encoder), train=part, dropout=0.0, embeddings=False)
        settings = TrainSettings(epochs=2, batch_size=20, learning_rate=0.01)
        return RunRequest(TextSource(str(self.rows)), model, settings, protection(name, {**given, **more}))

    def go(self, name: str, out: Path, *, stop: int | None = None, kill: bool = False, **more: Any) -> dict[str, Any]:
        """Train; after `stop` steps the training is stopped, or killed before it saves anything."""
        steps = 0

        def asked() -> bool:
            nonlocal steps
            steps += 1
            if kill and steps == stop:
                raise Killed
            return stop is not None and steps >= stop

        request = replace(self.request(name), noise_seed=more.pop("noise_seed", None))
        return train_once(request, out, options=RunOptions(should_stop=asked, **more)).values()


@pytest.fixture
def runs(tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("DISCREET_HOME", str(tmp_path / "home"))
    public = tmp_path / "public.csv"
    public.write_text("text,label\n" + "".join(f"a slow film {i},{i % 2}\n" for i in range(40)), encoding="utf-8")
    return Runs(toy_csv, public, tiny_encoder("bert"))


def bill(folder: Path) -> list[tuple[Any, int]]:
    return list(Ledger.read(folder / "ledger.jsonl").spent)


@named
def test_stopped_or_killed_and_resumed_the_bill_and_the_record_are_those_of_one_training(
    name: str, runs: Runs, tmp_path: Path
) -> None:
    whole = runs.go(name, tmp_path / "whole")
    assert runs.go(name, tmp_path / "part", stop=2)["finished"] is False
    with pytest.raises(Killed):
        runs.go(name, tmp_path / "part", resume=True, stop=2, kill=True)
    part = runs.go(name, tmp_path / "part", resume=True)
    # The randomness differs, so where the cost depends on the draw only the number of spends is the same.
    assert Ledger.read(tmp_path / "part" / "ledger.jsonl").spends == sum(count for _, count in bill(tmp_path / "whole"))
    if name != "texthide":  # which guarantees nothing
        assert part["guarantee"]["epsilon"] == pytest.approx(whole["guarantee"]["epsilon"], rel=0.2)
    records = {Path(record.out).name: record for record in People().records()}
    assert {name: record.spends for name, record in records.items()} == {
        out: sum(count for _, count in bill(tmp_path / out)) for out in ("whole", "part")
    }
    assert all(record.finished for record in records.values())


def ids(path: Path) -> list[str]:
    """Return the names of all spends in a ledger."""
    values = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [value[0] for value in values if isinstance(value, list)]


@named
def test_the_names_in_a_ledger_with_a_fixed_seed_tell_nothing_of_the_data_and_are_found_again(
    name: str, runs: Runs, tmp_path: Path
) -> None:
    """The attack: whoever guesses the corpus and knows the seed trains on the guess, and compares the ledgers."""
    shared = tmp_path / "all.jsonl"
    runs.go(name, tmp_path / "whole", noise_seed=3, ledger=shared)
    assert ids(shared) == ids(tmp_path / "whole" / "ledger.jsonl")
    runs.go(name, tmp_path / "guess", noise_seed=3)
    assert not set(ids(shared)) & set(ids(tmp_path / "guess" / "ledger.jsonl"))
    # Stopped, killed and resumed, every step is found under the name that it was counted by.
    runs.go(name, tmp_path / "part", stop=2, noise_seed=3)
    with pytest.raises(Killed):
        runs.go(name, tmp_path / "part", resume=True, stop=2, kill=True, noise_seed=3)
    runs.go(name, tmp_path / "part", resume=True, noise_seed=3)
    assert bill(tmp_path / "part") == bill(tmp_path / "whole")
    weights = [load_run(tmp_path / out).model.state_dict() for out in ("whole", "part")]
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    assert not (tmp_path / "part" / "secret").exists(), "what the names were made with is deleted with the checkpoint"


@named
def test_a_killed_training_is_on_record_and_stays_there_when_its_folder_is_deleted(
    name: str, runs: Runs, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        runs.go(name, tmp_path / "a", stop=1, kill=True)
    spent = Ledger.read(tmp_path / "a.unfinished" / "ledger.jsonl").spends
    shutil.rmtree(tmp_path / "a.unfinished")
    (record,) = People().records()
    assert record.spends >= spent >= 1 and not record.finished
    assert runs.go(name, tmp_path / "b")["people"]["trainings"] == 2


@named
def test_without_its_secret_or_its_ledger_a_run_is_not_resumed(name: str, runs: Runs, tmp_path: Path) -> None:
    runs.go(name, tmp_path / "a", stop=2)
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "a.unfinished", kept)
    (tmp_path / "a.unfinished" / "secret").unlink()
    with pytest.raises(ModelError, match="seed of the noise"):
        runs.go(name, tmp_path / "a", resume=True)
    shutil.rmtree(tmp_path / "a.unfinished")
    shutil.copytree(kept, tmp_path / "a.unfinished")
    runs.go(name, tmp_path / "other", stop=2)
    stolen = (tmp_path / "other.unfinished" / "secret").read_bytes()
    (tmp_path / "a.unfinished" / "secret").write_bytes(stolen)
    with pytest.raises(ModelError, match="something has changed"):
        runs.go(name, tmp_path / "a", resume=True)


@pytest.mark.parametrize("name", ["dp-sgd", "dir-dp-sgd", "ldp", "dp-ie"])
@pytest.mark.parametrize("fault", ["lost", "swapped", "shorter"])
def test_a_ledger_that_lacks_a_step_of_the_checkpoint_is_rejected(
    name: str, fault: str, runs: Runs, tmp_path: Path
) -> None:
    runs.go(name, tmp_path / "a", stop=3)
    ledger = tmp_path / "a.unfinished" / "ledger.jsonl"
    if fault == "lost":
        ledger.unlink()
    elif fault == "swapped":
        runs.go(name, tmp_path / "b", stop=3)
        ledger.write_bytes((tmp_path / "b.unfinished" / "ledger.jsonl").read_bytes())
    else:  # cut at the end of a line, as from an older copy
        lines = ledger.read_bytes().splitlines(keepends=True)
        ledger.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError, match="Expected (step|[0-9]+ spends)"):
        runs.go(name, tmp_path / "a", resume=True)


def test_a_run_is_not_resumed_from_other_weights(runs: Runs, tmp_path: Path) -> None:
    """The encoder is the same by its fingerprint's name and holds other weights: the identity sees the weights."""
    from tests.planned import train

    from discreet.data.sources import load
    from discreet.models.classifier import Classifier
    from discreet.protections.dp_sgd import DPSGD

    corpus = load(runs.rows)
    settings = TrainSettings(epochs=2, batch_size=20, learning_rate=0.01)

    def go(change: float, stop: bool) -> None:
        model = Classifier.build(corpus, rng=Rng(1), encoder=str(runs.encoder), train="head", dropout=0.0)
        with torch.no_grad():
            model.head.weight += change
        train(model, corpus, settings, seed=0, protect=DPSGD(1.0), workspace=tmp_path / "a", should_stop=lambda: stop)

    (tmp_path / "a").mkdir()
    go(0.0, True)
    with pytest.raises(ModelError, match="something has changed"):
        go(0.5, False)
    go(0.0, False)


def test_a_shared_ledger_is_named_again_when_a_run_is_resumed(runs: Runs, tmp_path: Path) -> None:
    shared = tmp_path / "all.jsonl"
    runs.go("dp-sgd", tmp_path / "whole", ledger=shared)
    once = Ledger.read(shared).spends
    runs.go("dp-sgd", tmp_path / "a", stop=2, ledger=shared)
    with pytest.raises(LedgerError, match="the ledger that the run was started with"):
        runs.go("dp-sgd", tmp_path / "a", resume=True, ledger=tmp_path / "another.jsonl")
    runs.go("dp-sgd", tmp_path / "a", resume=True, ledger=shared)
    assert Ledger.read(shared).spends == 2 * once
    assert load_run(tmp_path / "a").metrics["finished"]


def test_a_shared_ledger_is_continued_under_its_own_adjacency_only(runs: Runs, tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    with Ledger.open(shared, unit="row", adjacency="add/remove") as ledger:
        ledger.spend(GaussianDpEvent(4.0), "earlier")
    before = Ledger.read(shared)
    with pytest.raises(LedgerError, match="adjacency"):
        runs.go("dp-sgd", tmp_path / "a", ledger=shared)
    assert Ledger.read(shared) == before
