"""The number of units: public and certified under zero-out, or not used at all and certified under add/remove.

Rate, divisor, delta and the number of steps are functions of it. While add/remove was claimed, final weights alone told
60 rows from 59 in 25 of 25, at a certified epsilon of 0.1: the noise of the released update was divided by n.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.planned import train

from discreet.accounting.interpret import epsilon
from discreet.accounting.ledger import Ledger
from discreet.catalog import PROTECTIONS, protection_class
from discreet.cli.main import main
from discreet.core.errors import LedgerError, SettingError
from discreet.core.guarantee import Adjacency, delta_for
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.samplers import FixedSize, Poisson, Shuffled
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.loop import Trained

CLIP, RATE, POPULATION = 0.5, 1.0, 50
# Every unit is in the one batch, and only the noise and the clipped gradients move the weights.
ONE_STEP = TrainSettings(
    epochs=1, batch_size=64, optimizer="sgd", learning_rate=RATE, warmup=0.0, weight_decay=0.0, momentum=0.0
)


def rows(count: int) -> Corpus:
    words = ("heart", "knee", "cough", "scan")
    texts = tuple(f"the {words[i % 4]} was {words[i % 3]} {i}" for i in range(count))
    return Corpus("toy", texts, labels=tuple(i % 2 for i in range(count)), label_names=("a", "b"))


def released(corpus: Corpus, encoder: Path, noise: float, **more: object) -> tuple[torch.Tensor, Trained]:
    """Return how one step moves the weights, with noise that can be repeated."""
    settings = ModelSettings(encoder=str(encoder), train="head", dropout=0.0, embeddings=False)
    model = Classifier.build(corpus, settings, rng=Rng(1))
    before = torch.cat([p.detach().flatten().clone() for p in model.head.parameters()])
    done = train(model, corpus, ONE_STEP, seed=3, protect=DPSGD(noise, CLIP), secret=Rng(4), **more)  # type: ignore[arg-type]
    return torch.cat([p.detach().flatten() for p in model.head.parameters()]) - before, done


def test_with_a_population_one_row_less_moves_the_update_by_one_clipped_gradient(
    tiny_encoder: Callable[[str], Path],
) -> None:
    """With n as the divisor the noise itself, thousands of times as long, would be scaled: the attack that found it."""
    full, one = released(rows(60), tiny_encoder("bert"), 1000.0, population=POPULATION)
    less, two = released(rows(59), tiny_encoder("bert"), 1000.0, population=POPULATION)
    apart = float((full - less).norm())
    # batches of 64 of a population of 50 are all of it, and the divisor is 50
    assert apart <= RATE * CLIP / POPULATION * 1.001 + 2e-6 * float(full.norm())
    assert one.steps == two.steps and one.guarantee == two.guarantee
    assert one.guarantee is not None and one.guarantee.adjacency is Adjacency.ADD_REMOVE
    assert one.guarantee.delta == delta_for(POPULATION)


def test_without_one_the_number_is_public_and_the_certificate_zero_out(tiny_encoder: Callable[[str], Path]) -> None:
    full, one = released(rows(60), tiny_encoder("bert"), 1000.0)
    less, _ = released(rows(59), tiny_encoder("bert"), 1000.0)
    assert float((full - less).norm()) > 20 * RATE * CLIP / 60, (
        "this is what tells 60 from 59, and why the number is stated as public"
    )
    promise = one.guarantee
    assert promise is not None and promise.adjacency is Adjacency.ZERO_OUT
    assert "present or absent" not in promise.sentence() and "the number of rows is public" in promise.sentence()
    assert any("the number of units" in told and "public" in told for told in promise.assumptions)


@pytest.mark.parametrize("noise", [0.8, 1.3, 4.0])
@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0])
def test_the_figure_is_the_same_under_both(noise: float, rate: float) -> None:
    event = Poisson(rate).amplify(DPSGD(noise).event, 100)
    assert epsilon(event, 1e-5, "zero-out") == pytest.approx(epsilon(event, 1e-5, "add/remove"), rel=1e-6)


@pytest.mark.parametrize("population", [40, 60, 1000])
def test_a_population_decides_rate_steps_and_delta_whatever_is_there(
    tiny_encoder: Callable[[str], Path], population: int
) -> None:
    settings = TrainSettings(epochs=2, batch_size=20, learning_rate=1e-2)
    told = set()
    for count in (30, 31, 61):
        corpus = rows(count)
        model = Classifier.build(corpus, ModelSettings(encoder=str(tiny_encoder("bert")), train="head"), rng=Rng(1))
        with Ledger.open(None, unit="row", adjacency="add/remove") as ledger:
            done = train(model, corpus, settings, seed=0, protect=DPSGD(1.0), ledger=ledger, population=population)
            told.add((done.steps, repr(ledger.event), repr(done.guarantee)))
    assert len(told) == 1
    steps, event, promise = told.pop()
    assert steps == 2 * -(-population // 20) and str(20 / population) in event and f"{population:,}" in promise


def test_add_remove_needs_a_population_and_a_population_needs_poisson(tiny_encoder: Callable[[str], Path]) -> None:
    corpus = rows(60)
    model = Classifier.build(corpus, ModelSettings(encoder=str(tiny_encoder("bert")), train="head"), rng=Rng(1))
    settings = TrainSettings(epochs=1, batch_size=20, learning_rate=1e-2)
    with (
        Ledger.open(None, unit="row", adjacency="add/remove") as ledger,
        pytest.raises(SettingError, match=r"population to be set under add/remove, got None.*\(population\)"),
    ):
        train(model, corpus, settings, seed=0, protect=DPSGD(1.0), ledger=ledger)
    for sampler in (FixedSize(20), Shuffled(20)):
        with pytest.raises(SettingError, match="Poisson under add/remove"):
            train(model, corpus, settings, seed=0, protect=DPSGD(1.0), sampler=sampler, population=50)
    with pytest.raises(SettingError, match="left out for dir-dp-sgd"):
        train(model, corpus, settings, seed=0, protect=DirDPSGD.for_model(model, 5.0), population=50)
    with pytest.raises(SettingError, match="population to be .*, got 0"):
        train(model, corpus, settings, seed=0, protect=DPSGD(1.0), population=0)
    with pytest.raises(SettingError, match="left out without protect"):
        train(model, corpus, settings, seed=0, population=50)


def test_an_old_ledger_keeps_its_adjacency_and_is_continued_only_under_it(
    tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus = rows(60)
    model = Classifier.build(corpus, ModelSettings(encoder=str(tiny_encoder("bert")), train="head"), rng=Rng(1))
    settings = TrainSettings(epochs=1, batch_size=20, learning_rate=1e-2)
    Ledger.open(tmp_path / "old", unit="row", adjacency="add/remove").close()
    with pytest.raises(LedgerError, match="add/remove"):
        Ledger.open(tmp_path / "old", unit="row", adjacency="zero-out")
    with Ledger.open(tmp_path / "old", unit="row", adjacency="add/remove") as ledger:
        done = train(model, corpus, settings, seed=0, protect=DPSGD(1.0), ledger=ledger, population=50)
    assert done.guarantee is not None and done.guarantee.adjacency is Adjacency.ADD_REMOVE


def test_only_sums_take_a_population() -> None:
    """Where each text or vector is seen, so is who is absent: no other protection may claim add/remove."""
    summed = {name for name in PROTECTIONS if protection_class(name).place == "gradient"}
    assert summed == {"dp-sgd", "dir-dp-sgd"}
    assert DPSGD(1.0).visible == "sum" and DPSGD(1.0).adjacency is Adjacency.ZERO_OUT


# --- said everywhere --------------------------------------------------------------------------------------------------


def trained(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[str, str]:
    assert main([str(word) for word in words]) == 0
    return capfd.readouterr()


@pytest.mark.parametrize("population", [None, 90])
def test_the_adjacency_is_said_in_terminal_folder_card_and_ledger(
    population: int | None,
    toy_csv: Path,
    tiny_encoder: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words: list[object] = ["train", toy_csv, "--model", tiny_encoder("bert"), "--train", "head", "--device", "cpu"]
    words += ["--classes", "clinic,ward"]
    words += ["--protect", "dp-sgd", "--epsilon", 3, "--epochs", 2, "--out", tmp_path / "a"]
    words += [] if population is None else ["--population", population]
    name = "zero-out" if population is None else "add/remove"
    absent = "one row is present or absent"
    said = " ".join(trained(capfd, *words)[0].split())
    assert (absent in said) == (population is not None)
    metrics = json.loads((tmp_path / "a" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["guarantee"]["adjacency"] == name
    assert (metrics["epsilon_by_adjacency"]["add/remove"] is None) == (population is None)
    assert ("units" in metrics, metrics.get("population")) == (population is None, population)
    card = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert (absent in card) == (population is not None)
    assert ("add/remove not defined" in card) == (population is None)
    assert Ledger.read(tmp_path / "a" / "ledger.jsonl").adjacency is Adjacency(name)
    assert name in trained(capfd, "ledger", tmp_path / "a" / "ledger.jsonl")[0]
    again = json.loads(trained(capfd, "evaluate", tmp_path / "a", toy_csv, "--json")[0])
    assert again["utility"] == pytest.approx(metrics["utility"]), "the same rows are held out again"


def test_the_true_number_goes_to_the_owner_alone(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train", toy_csv, "--model", tiny_encoder("bert"), "--train", "head", "--device", "cpu"]
    words += ["--protect", "dp-sgd", "--epsilon", 3, "--epochs", 2, "--population", 400, "--out", tmp_path / "a"]
    err = trained(capfd, *words)[1]
    assert "Private detail, do not share this line: the training rows hold" in err
    found = err.split("the training rows hold ")[1].split()[0]
    for path in (tmp_path / "a").rglob("*"):
        if path.suffix in {".json", ".jsonl", ".toml", ".md"} and path.parent.name != "tokenizer":
            assert f" {found}" not in path.read_text(encoding="utf-8"), path.name
