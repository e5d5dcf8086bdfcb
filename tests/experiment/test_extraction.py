"""Attacks on what a model memorized, through the experiment: canaries, prompts and classes of small trained models."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from discreet.accounting.events import GaussianDpEvent
from discreet.attacks.extraction.exposure import ENUMERATED, FITTED, CanaryExposure, Exposure
from discreet.catalog import attack_of
from discreet.core.errors import DataError, UnsupportedError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, ModelRelease
from discreet.data.canaries import Canary, Planting, canaries_path, planted, read_canaries
from discreet.data.corpus import Corpus
from discreet.data.notes import LABEL_NAMES, notes
from discreet.data.sources import TextSource
from discreet.experiment import (
    AttackRequest,
    AttackResult,
    RunRequest,
    Scene,
    SceneRequest,
    attack_once,
    load_scene,
    train_once,
)
from discreet.experiment.attack.extraction import measure_exposure, p_value, secret_prompt, typical_words
from discreet.experiment.attack.scene import Target
from discreet.experiment.run import RunOptions, with_canaries
from discreet.models.encoder import quiet
from discreet.models.language_model import LanguageModel
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.runs.folder import RunChoices


@pytest.fixture(scope="module")
def run(tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with canaries of 1 and 60 copies."""
    out = tmp_path_factory.mktemp("runs") / "a"
    request = RunRequest(
        TextSource("notes", rows=60),
        ModelSettings(str(tiny_encoder("bert")), train="head", dropout=0.0),
        TrainSettings(epochs=3.0, learning_rate=0.01),
        canaries=Planting(4, (1, 60), digits=2, seed=5),
    )
    train_once(request, out)
    return out


def attacked(run: Path, name: str, **settings: object) -> AttackResult:
    return attack_once(AttackRequest(attack_of(name, settings), name=name), load_scene(SceneRequest(run=run)))


def test_a_run_with_canaries_keeps_its_secrets_beside_its_folder(run: Path) -> None:
    path = canaries_path(run)
    assert path.parent == run.parent and path.stat().st_mode & 0o077 == 0
    canaries = read_canaries(path)
    assert [canary.copies for canary in canaries] == [1, 60] * 4
    inside = b"".join(one.read_bytes() for one in run.rglob("*") if one.is_file() and one.suffix in {".toml", ".json"})
    assert not any(canary.text.encode() in inside for canary in canaries)


def test_a_resumed_run_plants_the_same_canaries(run: Path) -> None:
    corpus = notes(60)
    resumed, _ = with_canaries(Planting(4, (1, 60), digits=2), corpus, run, RunOptions(resume=True))
    assert resumed.texts == planted(corpus, read_canaries(canaries_path(run))).texts
    assert len(resumed) == 60 + 4 * 61


def test_the_attack_is_given_losses_and_no_secret(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[Knowledge] = []
    original = CanaryExposure.run

    def spy(self: CanaryExposure, seen: ModelRelease, knows: Knowledge, rng: Rng) -> Guess:
        passed.append(knows)
        return original(self, seen, knows, rng)

    monkeypatch.setattr(CanaryExposure, "run", spy)
    attacked(run, "exposure")
    (knows,) = passed
    assert list(knows.extra) == ["canaries"]
    assert all(isinstance(row, np.ndarray) and row.shape == (93,) for row in knows.extra["canaries"])


def test_exposure_of_a_run(run: Path) -> None:
    result = attacked(run, "exposure")
    assert {leak.metric for leak in result.leakages} == {"exposure", "secrets_named", "exposure_1", "exposure_60"}
    assert [row["copies"] for row in result.details["exposure"]] == [1, 60]
    for one in result.details["canaries"]:
        assert one["method"] == ENUMERATED and one["candidates"] == 93 and 0 <= one["bits"] <= math.log2(93)
    assert result.leakages[0].n == 8 and not result.bounds and result.verdict
    assert result.leakages[0].chance == pytest.approx(1.39, abs=0.01)


def test_a_run_without_canaries_is_rejected_with_the_remedy(run: Path) -> None:
    scene = load_scene(SceneRequest(run=run))
    assert scene.target is not None
    bare = dataclasses.replace(scene, target=dataclasses.replace(scene.target, canaries=()))
    with pytest.raises(DataError, match="Train it with canaries"):
        attack_once(AttackRequest(attack_of("exposure")), bare)


def test_a_classifier_is_rejected_for_extraction(run: Path) -> None:
    with pytest.raises(UnsupportedError, match="causal language model"):
        attacked(run, "extraction")


def test_class_inversion_of_a_run(run: Path) -> None:
    result = attacked(run, "class-inversion", words=3, steps=2, restarts=1)
    assert [row["class"] for row in result.details["classes"]] == list(LABEL_NAMES)
    (leak,) = result.leakages
    assert leak.metric == "class_words_read" and 0 <= leak.value <= 1 and leak.chance is not None


def test_typical_words_of_a_class_are_those_that_the_others_lack() -> None:
    texts = ("sore heel and knee", "sore knee today", "sharp chest pain", "chest pain and cough")
    words = typical_words(Corpus("toy", texts, labels=(0, 0, 1, 1)), 2)
    assert words[0] == {"sore", "knee"} and words[1] == {"chest", "pain"}


def target_with(spread: bool, certified: bool = True) -> tuple[Target, tuple[Canary, ...]]:
    corpus = Corpus("toy", ("one text", "another"), labels=(0, 1))
    planting = Planting(10, (1, 10), digits=3, spread=spread, seed=1)
    _, canaries = planting.plant(corpus)
    event = GaussianDpEvent(2.0)
    guarantee = Guarantee(1.0, 1e-5, "row", Adjacency.ZERO_OUT, "pld") if certified else None
    choices = RunChoices(TextSource("notes"), ModelSettings(), TrainSettings(), canaries=planting)
    return Target(corpus, choices, event, Adjacency.ZERO_OUT, guarantee, None, canaries), canaries


@pytest.mark.parametrize("spread", [False, True])
def test_bounds_are_those_of_one_unit_or_of_a_group(spread: bool) -> None:
    target, canaries = target_with(spread)
    exposures = [Exposure(1.0, 500.0, 981, ENUMERATED, math.log2(981))] * 20
    measured = measure_exposure(canaries, exposures, [False] * 20, target, Rng(0))
    few, many = measured.details["exposure"]
    assert few["units"] == 1 and many["units"] == (10 if spread else 1)
    assert (few["bound"] < many["bound"]) == spread
    assert few["chance"] < few["bound"] < math.log2(981)
    assert ("exposure" in measured.bounds) == (not spread)
    assert measured.bounds["exposure_10"] == many["bound"]
    assert "certificate" in measured.verdict
    printed = float(measured.verdict.split("allows at most ")[1].split(" bits")[0])
    assert many["bound"] <= printed < many["bound"] + 0.1  # rounded up
    plain = measure_exposure(canaries, exposures, [False] * 20, target_with(spread, certified=False)[0], Rng(0))
    assert not plain.bounds and "certificate" not in plain.verdict


def test_the_p_value_is_uniform_without_memorization() -> None:
    ranks = Rng(0).numpy().integers(1, 1001, size=(400, 10))
    values = [p_value([Exposure(math.log2(1000 / r), r, 1000, ENUMERATED, 10) for r in row]) for row in ranks]
    assert np.mean(np.array(values) < 0.05) < 0.09
    assert 0.4 < np.mean(values) < 0.6


def test_the_p_value_counts_ranks_and_no_fit_beyond_them() -> None:
    ranked = Exposure(math.log2(1000), 1.0, 1000, ENUMERATED, math.log2(1000))
    fitted = dataclasses.replace(ranked, bits=60.0, method=FITTED, largest=60.0)
    assert p_value([fitted]) == p_value([ranked]) == pytest.approx(1e-3)


@pytest.fixture(scope="module")
def language_scene(tiny_encoder: Callable[[str], Path]) -> Scene:
    folder = tiny_encoder("gpt2")
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(1)
        network = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    model = LanguageModel.from_transformers(network, tokenizer).eval()
    texts = tuple(
        f"the {a} was {b} and the {c} is not good"
        for a in ("film", "pain")
        for b in ("slow", "calm")
        for c in ("knee", "hand")
    )
    corpus = Corpus("toy", texts, splits=("train",) * 6 + ("validation",) * 2)
    planting = Planting(3, digits=2, seed=1)
    _, canaries = planting.plant(corpus)
    choices = RunChoices(TextSource("notes", task="unlabelled"), ModelSettings(), TrainSettings(), canaries=planting)
    return Scene.of(corpus, model, split="train", target=Target(corpus, choices, canaries=canaries))


def test_extraction_of_a_language_model(language_scene: Scene) -> None:
    attack = attack_of("extraction", {"prefix": 3, "suffix": 3, "samples": 2})
    result = attack_once(AttackRequest(attack, name="extraction"), language_scene)
    names = [leak.metric for leak in result.leakages]
    assert names == [
        "extractable_at_1", "extractable_at_1000", "extractable_at_1000000", "extractable_greedy", "canaries_extracted",
    ]  # fmt: skip
    assert result.details["texts"] == 6 and result.details["unseen_texts"] == 2
    assert len(result.examples) == 6 and result.details["sampled_texts"] == 12
    for row in result.details["training"].values():
        assert row == sorted(row)
    assert result.leakages[0].chance is not None and "1,000 samples" in result.verdict
    assert result.leakages[-1].chance == pytest.approx(1 - (1 - 1 / 98) ** 100)


def test_texts_that_are_too_short_are_rejected_with_the_remedy(language_scene: Scene) -> None:
    attack = attack_of("extraction", {"prefix": 20, "suffix": 20})
    with pytest.raises(DataError, match="Use a shorter prompt"):
        attack_once(AttackRequest(attack, name="extraction"), language_scene)


def test_exposure_of_a_language_model_counts_every_token(language_scene: Scene) -> None:
    result = attack_once(AttackRequest(attack_of("exposure"), name="exposure"), language_scene)
    assert result.leakages[0].n == 3 and result.details["largest"] == pytest.approx(math.log2(98))


def test_the_tokens_of_a_secret_are_cut_out(language_scene: Scene) -> None:
    model, target = language_scene.model, language_scene.target
    assert isinstance(model, LanguageModel) and target is not None
    for canary in target.canaries:
        prompt = secret_prompt(model, canary)
        assert model.tokenizer.decode(list(prompt.suffix)).replace(" ", "").replace("##", "") == canary.secret
