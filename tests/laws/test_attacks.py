"""The law book of attacks, kept by every attack in the catalog."""

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binom
from transformers import AutoConfig, AutoModel

from discreet.attacks.base import Family
from discreet.catalog import ATTACKS, attack_class, attack_of
from discreet.core.errors import DiscreetError, SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge, Release, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.experiment import AttackRequest, Scene, attack_once
from discreet.experiment.attack.reconstruction import knowledge, make_release, mixing
from discreet.experiment.attack.scoring import metrics_for, score_guess
from discreet.metrics.table import METRICS
from discreet.models.classifier import Classifier
from discreet.models.encoder import quiet
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.description import GRADIENT

THINGS, WAYS = ("film", "plot", "pain", "child", "knee", "hand"), ("slow", "quick", "sharp", "calm")
CORPUS = Corpus(
    "toy",
    (
        "the heart was dull", "a knee", "very slow walk and sharp pain", "the lung is bright", "fever and cough",
        "the nurse was calm", "a dose of water", "sleep and rest", "the scan is not good", "a bad week",
        "call the doctor", "quick food", *(f"the {a} was {b}" for a in THINGS for b in WAYS),
    ),
    labels=(0, 1) * 18,
    splits=("validation",) * 8 + ("train",) * 28,
)  # fmt: skip
GRADIENTS = [name for name in ATTACKS if attack_class(name).sees.kind == GRADIENT]
READERS = [
    name
    for name in ATTACKS
    if attack_class(name).family is Family.RECONSTRUCTION and not attack_class(name)().identifies
]
ONE_OF_N = "one-of-n"
SECONDS = 0.5
# by the clock, how busy the machine is would decide how far it gets
QUICK: dict[str, Any] = {"seconds": None, "steps": 3, "rounds": 3, "polish": 0, "epochs": 2}
# Trials of the law of chance level, the rows that a guess may name, and how often the law may fail by bad luck.
TRIALS, ROWS, FALSE_ALARM = 18, 8, 1e-6


@pytest.fixture(scope="module")
def model(tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """A tiny BERT, wide enough to tell a few sentences apart."""
    folder = tmp_path_factory.mktemp("wide")
    shutil.copytree(tiny_encoder("bert"), folder, dirs_exist_ok=True)
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(folder, hidden_size=64, intermediate_size=128, num_hidden_layers=3)
        fresh = AutoModel.from_config(config)
        for weight in fresh.parameters():  # fresh weights of 0.02 make every token much the same
            if weight.dim() == 2:
                weight.data.mul_(4)
        fresh.save_pretrained(folder)
    return Classifier.build(CORPUS, rng=Rng(0), encoder=str(folder), dropout=0.0).eval()


@pytest.fixture(scope="module")
def scene(model: Classifier) -> Scene:
    return Scene.of(CORPUS, model)


def request_for(name: str, **changes: Any) -> AttackRequest:
    asked: dict[str, Any] = {"examples": 4, "batch_size": 1, "seconds": SECONDS, "noise_seed": 0, "candidates": 8}
    return AttackRequest(attack_of(name), name=name, **{**asked, **changes})


def prepared(name: str, scene: Scene, rows: Corpus) -> tuple[Any, Classifier, Knowledge]:
    """Return an attack, the model it is used with, and what it knows."""
    request = request_for(name)
    attack: Any = request.attack.within(SECONDS).informed(mixing(request))
    model = attack.craft(scene.model, Rng(0))
    return attack, model, knowledge(request, scene, model, rows)


def quickly(attack: Any) -> Any:
    """Return an attack that searches for a few steps only, by count and not by the clock."""
    return dataclasses.replace(attack, **{name: value for name, value in QUICK.items() if hasattr(attack, name)})


def random_release(name: str, model: Classifier, seed: int) -> Release:
    source = torch.Generator().manual_seed(seed)
    if name in GRADIENTS:
        drawn = {n: torch.randn(p.shape, generator=source) for n, p in model.named_parameters()}
        return GradientRelease(drawn, 1, noise_std=1.0, lengths=(6,), labels=(0,))
    return RepresentationRelease(torch.randn(1, model.width, generator=source))


def strings(value: Any) -> Iterator[str]:
    """Yield every text that can be reached from a value."""
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from strings(getattr(value, field.name))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(key)
            yield from strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings(inner)


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_a_frozen_dataclass_whose_settings_all_have_defaults(name: str) -> None:
    attack = attack_class(name)()
    assert dataclasses.is_dataclass(attack) and type(attack).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert attack == attack_of(name)
    assert attack.sees.kind in {"gradient", "representation", "text", "model"}
    assert attack.sees.kind == ATTACKS[name].sees
    with pytest.raises(SettingError, match="only known keys"):
        attack_of(name, {"no_such_setting": 1})


def is_named(scores: Sequence[float], truth: int, rng: Rng) -> bool:
    """Return whether a guess is closest to the truth among all rows, ties being decided by lot."""
    closest = [row for row, score in enumerate(scores) if score == max(scores)]
    return closest[int(rng.uniform(1)[0] * len(closest))] == truth


def beyond_chance(hits: int) -> bool:
    """Return whether so many right rows cannot be luck: the exact binomial tail is below the false-alarm rate."""
    return bool(binom.sf(hits - 1, TRIALS, 1 / ROWS) < FALSE_ALARM)


@pytest.mark.parametrize("name", READERS)
def test_a_release_that_tells_nothing_gives_chance_level(name: str, scene: Scene) -> None:
    """The truth is drawn at random and prepared for as in a real attack, but the release is noise.

    Nothing but what the attacker knows besides can then tell which row it is, so that the guess is closest to the right
    one of 8 rows in at most one of 8 trials, on average. No trial may be rejected: the release has all that is needed.
    """
    truths = (Rng(7).fork("truths").uniform(TRIALS) * ROWS).astype(int).tolist()
    hits = 0
    for trial, truth in enumerate(truths):
        attack, model, knows = prepared(name, scene, scene.rows.take([truth]))
        attack = quickly(attack)
        metric = metrics_for(attack, ("rouge_1", "bag_recall"))[0]
        guess = attack.run(random_release(name, model, trial), knows, Rng(trial))
        scores = [
            METRICS[metric].score(example.guess, example.scored)
            for row in range(ROWS)
            for example in score_guess(attack, guess, scene.rows.take([row]), model, (metric,), 0)
        ]
        hits += is_named(scores, truth, Rng(7).fork("ties", trial))
    assert not beyond_chance(hits), f"{hits} of {TRIALS} right where {TRIALS / ROWS} are chance"


def test_the_law_of_chance_level_tells_knowledge_from_luck() -> None:
    """An attack that is told the truth in two trials of three is found out; one that names a row by lot is not."""
    assert len(CORPUS.split("validation")) == ROWS
    assert beyond_chance(2 * TRIALS // 3)
    lot = Rng(3).fork("lot")
    guessed = [is_named([0.0] * ROWS, trial % ROWS, lot) for trial in range(TRIALS)]
    assert not beyond_chance(sum(guessed))
    assert is_named([0.0, 0.5, 0.2], 1, lot) and not is_named([0.0, 0.5, 0.2], 2, lot)


@pytest.mark.parametrize("name", READERS)
def test_the_same_source_gives_the_same_guess(name: str, scene: Scene) -> None:
    rows = scene.rows.take([0])
    attack, model, knows = prepared(name, scene, rows)
    attack = quickly(attack)
    seen = make_release(request_for(name), model, rows, Rng(0)).seen
    first, second = (attack.run(seen, knows, Rng(3)) for _ in range(2))
    assert first.texts == second.texts and first.indices == second.indices


@pytest.mark.parametrize("name", READERS)
def test_neither_the_release_nor_the_knowledge_holds_the_truth(name: str, scene: Scene) -> None:
    rows = scene.rows.take([0, 1])
    attack, model, knows = prepared(name, scene, rows)
    for protect in (None, DPSGD(1.0, 1.0)) if name in GRADIENTS else (None,):
        seen = make_release(request_for(name, protect=protect), model, rows, Rng(0)).seen
        assert not set(rows.texts) & set(strings(seen))
    assert not set(rows.texts) & set(knows.auxiliary)
    if attack.sees.kind == GRADIENT:
        assert not set(rows.texts) & set(strings((knows.auxiliary, knows.candidates, dict(knows.extra))))
    else:  # candidates hold it among others, in an order that says nothing
        assert len(knows.candidates) > len(rows)


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_release_that_it_cannot_use_is_refused(name: str, scene: Scene) -> None:
    rows = scene.rows.take([0])
    attack, _, knows = prepared(name, scene, rows)
    if name == ONE_OF_N:
        knows = dataclasses.replace(knows, extra={"candidates": scene.rows})
    other = GradientRelease({"another.weight": torch.ones(3, 3)}, 1, lengths=(6,), labels=(0,))
    with pytest.raises(UnsupportedError):
        attack.run(other, knows, Rng(0))
    with pytest.raises(UnsupportedError):
        attack.run(other, Knowledge(), Rng(0))


@pytest.mark.parametrize("name", [name for name in GRADIENTS if name in {"dager", "decepticons", "embedding-rows"}])
def test_a_head_alone_is_refused_with_the_reason(name: str, scene: Scene) -> None:
    head = Classifier.build(CORPUS, rng=Rng(0), encoder=scene.model.settings.encoder, train="head")
    with pytest.raises(UnsupportedError, match=r"got none|No gradient|frozen|head"):
        attack_once(request_for(name), Scene.of(CORPUS, head))


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_protection_of_something_else_is_refused(name: str, scene: Scene) -> None:
    class Other:
        name = "other"
        place = "update"
        stored = True

    with pytest.raises(DiscreetError, match=f"fits other, got {name}, which reads gradients.* other releases updates"):
        attack_once(request_for(name, protect=Other()), scene)


@pytest.mark.parametrize("name", [name for name in READERS if name not in GRADIENTS])
def test_a_protection_of_gradients_is_refused_for_vectors_before_any_text_is_encoded(
    name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "discreet.experiment.attack.reconstruction.knowledge", lambda *given: pytest.fail("it took its time")
    )
    with pytest.raises(UnsupportedError, match=f"fits dp-sgd, got {name}, which reads sentence vectors"):
        attack_once(request_for(name, protect=DPSGD(1.0, 1.0)), scene)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("kind", ["dp-sgd", "dir-dp-sgd"])
def test_no_identification_beats_the_bound(kind: str, steps: int, scene: Scene) -> None:
    values = (
        (0.03, 0.1, 0.3, 1.0, 4.0) if kind == "dp-sgd" else (1e5, 1e4, 1e3, 300.0, 10.0)[steps // 5 :: 1 + steps // 5]
    )
    reached = []
    for value in values:
        protect = DPSGD(value, 1.0) if kind == "dp-sgd" else DirDPSGD.for_model(scene.model, value)
        found = attack_once(request_for(ONE_OF_N, protect=protect, steps=steps), scene)
        (leak,) = found.leakages
        assert leak.n >= 20_000 and leak.chance == 1 / 8 and found.bound is not None
        assert leak.low <= found.bound <= 1
        assert found.release["steps"] == steps
        reached.append(leak.value)
    assert reached[0] > 0.99 and reached[-1] < 0.5
    assert all(a >= b - 0.01 for a, b in itertools.pairwise(reached))
    assert sum(isinstance(key, tuple) and key[0] == "gram" for key in scene.cache) == 1  # it served all strengths
