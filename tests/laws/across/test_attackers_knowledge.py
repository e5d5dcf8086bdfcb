"""Whatever is passed to an attack is named in its output: the law that a statement about an attacker is whole."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from discreet.attacks.base import Family
from discreet.catalog import ATTACKS, attack_class
from discreet.cli.attack_table import summary
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, Release, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.experiment import AttackRequest, Scene, attack_once
from discreet.models.classifier import Classifier, ModelSettings
from discreet.releases.description import GRADIENT
from discreet.releases.protected import protection_of

THINGS, WAYS = ("film", "plot", "pain", "knee", "hand", "child"), ("slow", "quick", "sharp", "calm")
CORPUS = Corpus(
    "toy",
    tuple(f"the {a} was {b}" for a in THINGS for b in WAYS),
    labels=(0, 1) * 12,
    splits=("validation",) * 12 + ("train",) * 12,
)
READERS = [
    name
    for name in ATTACKS
    if attack_class(name).family is Family.RECONSTRUCTION and not attack_class(name)().identifies
]
EXTRA = {
    "prior": "language model",
    "vectors": "vectors of the candidates",
    "public": "vectors of the texts",
    "auxiliary": "vectors of the texts",
    "pairs": "computed itself",
}


@pytest.fixture(scope="module")
def scenes(tiny_encoder: Callable[[str], Path]) -> dict[str, Scene]:
    folder = str(tiny_encoder("bert"))
    built = {
        train: Classifier.build(CORPUS, ModelSettings(encoder=folder, train=train, dropout=0.0), rng=Rng(0)).eval()
        for train in ("all", "head")
    }
    return {GRADIENT: Scene.of(CORPUS, built["all"]), "representation": Scene.of(CORPUS, built["head"])}


def spy_of(name: str, passed: list[tuple[Release, Knowledge]]) -> Any:
    """Return an attack that is given what the real one would be, notes it, and reads nothing."""
    real = attack_class(name)

    def run(self: Any, seen: Any, knows: Knowledge, rng: Rng) -> Guess:
        passed.append((seen, knows))
        return Guess(texts=("",) * 2)

    # a model of the attacker's making needs a wider encoder than the tiny one, and changes nothing here
    return type("Spy", (real,), {"run": run, "craft": lambda self, model, rng: model})()


def expected(seen: Release, knows: Knowledge, attacked: set[str]) -> list[str]:
    """Return words that must be in what the attacker was given, from the very things that were passed to it."""
    assert {f.name for f in dataclasses.fields(Knowledge)} == {"model", "auxiliary", "candidates", "defence", "extra"}
    told = {f.name for f in dataclasses.fields(seen)} - {"gradients", "vectors", "guarantee", "divisor"}
    assert told <= {"batch_size", "noise_std", "lengths", "labels"}
    words = ["weights"] if knows.model is not None else []
    words += [f"number of texts in a release ({seen.batch_size})"] if isinstance(seen, GradientRelease) else []
    words += ["length of each text"] if getattr(seen, "lengths", None) is not None else []
    words += ["label of each text"] if getattr(seen, "labels", None) is not None else []
    words += ["standard deviation of the noise"] if getattr(seen, "noise_std", 0.0) else []
    words += ["settings of the protection"] if knows.defence is not None else []
    words += [f"{len(knows.auxiliary)} other texts of the same corpus"] if knows.auxiliary else []
    words += [f"{len(knows.candidates)} candidate texts"] if knows.candidates else []
    words += [f"the {len(attacked)} private texts under attack"] if attacked & set(knows.candidates) else []
    return words + [EXTRA[name] for name in knows.extra]


@pytest.mark.parametrize("protected", [False, True])
@pytest.mark.parametrize("name", READERS)
def test_all_that_is_passed_is_named(
    name: str, protected: bool, scenes: dict[str, Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    passed: list[tuple[Release, Knowledge]] = []
    spy = spy_of(name, passed)
    scene = scenes[spy.sees.kind]
    gradient = spy.sees.kind == GRADIENT
    protect = None
    if protected:
        kind, values = ("dp-sgd", {"noise_multiplier": 1.0}) if gradient else ("texthide", {"mix": 1})
        protect = protection_of(kind, scene.model, values, delta=1e-5, batch_size=2)
    size = 1 if gradient else 2
    found = attack_once(AttackRequest(spy, protect, name, examples=2, batch_size=size, noise_seed=0), scene)
    seen, knows = passed[0]
    assert isinstance(seen, GradientRelease | RepresentationRelease)
    given = "; ".join(found.release["given"])
    for words in expected(seen, knows, {example.truth for example in found.examples}):
        assert words in given, f"{name} was given {words}, and its output says: {given}"
    summary(found, Console(width=4000))
    printed = capsys.readouterr().out
    assert all(words in printed for words in found.release["given"])
    assert found.as_dict()["release"]["given"] == found.release["given"]


def test_the_candidates_of_one_of_n_and_what_is_known_of_the_batch_are_named(scenes: dict[str, Scene]) -> None:
    request = AttackRequest(attack_class("one-of-n")(), name="one-of-n", candidates=8, draws=100)
    given = "; ".join(attack_once(request, scenes[GRADIENT]).release["given"])
    for words in ("weights", "8 candidate texts", "the private one among them", "all other members of the batch"):
        assert words in given


def test_an_attack_on_vectors_says_that_the_private_texts_are_among_the_candidates(scenes: dict[str, Scene]) -> None:
    request = AttackRequest(attack_class("rss")(), name="rss", examples=2, batch_size=2)
    given = "; ".join(attack_once(request, scenes["representation"]).release["given"])
    assert "12 candidate texts, among them the 2 private texts under attack" in given
