"""What holds for every attack on representations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from discreet.attacks.representation.blind import BlindReconstruction
from discreet.attacks.representation.instance import InstanceReconstruction
from discreet.attacks.representation.inversion import EmbeddingInversion
from discreet.attacks.representation.reprecon import RepRecon
from discreet.attacks.representation.similarity import SCORES, Similarity
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, ModelRelease, RepresentationRelease, TextRelease

WIDTH, COUNT, PRIVATE = 24, 40, 8
VECTORS = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(0)) + 0.5
TEXTS = tuple(f"a{i % 5} b{i % 7} c{i % 3}" for i in range(COUNT))
KNOWS = Knowledge(
    candidates=TEXTS,
    auxiliary=TEXTS,
    extra={"vectors": VECTORS, "public": VECTORS, "pairs": (VECTORS, VECTORS), "auxiliary": VECTORS},
)
ATTACKS: list[Any] = [
    *(Similarity(score) for score in SCORES),
    RepRecon(hidden=8, epochs=1),
    RepRecon(absolute=True, hidden=8, epochs=1),
    InstanceReconstruction(count=PRIVATE, used=20),
    InstanceReconstruction(count=PRIVATE, masked=False),
    BlindReconstruction(count=PRIVATE, masks=2, turns=2),
    EmbeddingInversion(hidden=8, epochs=1),
]
each = pytest.mark.parametrize("attack", ATTACKS, ids=repr)


def shown(guess: Guess) -> tuple[Any, ...]:
    rebuilt = guess.details.get("vectors")
    return guess.texts, guess.scores, guess.indices, None if rebuilt is None else rebuilt.tolist()


@each
def test_the_same_release_and_source_give_the_same_guess(attack: Any) -> None:
    seen = RepresentationRelease(VECTORS[:20] * 1.5)
    assert shown(attack.run(seen, KNOWS, Rng(4))) == shown(attack.run(seen, KNOWS, Rng(4)))


@each
def test_a_release_of_zeros_is_safe(attack: Any) -> None:
    guess = attack.run(RepresentationRelease(torch.zeros(PRIVATE, WIDTH)), KNOWS, Rng(0))
    assert np.isfinite(guess.scores).all()


@each
def test_another_kind_of_release_is_refused(attack: Any) -> None:
    for seen in (GradientRelease({}, 1), TextRelease(("a",)), ModelRelease(torch.nn.Linear(1, 1))):
        with pytest.raises(UnsupportedError, match=rf"seen to be a RepresentationRelease, got a {type(seen).__name__}"):
            attack.run(seen, KNOWS, Rng(0))


@each
def test_vectors_that_do_not_fit_are_refused_with_value_rule_and_remedy(attack: Any) -> None:
    with pytest.raises(SettingError, match=rf"width to be {WIDTH - 1}, .*, got {WIDTH}. Use the same encoder"):
        attack.run(RepresentationRelease(VECTORS[:, 1:]), KNOWS, Rng(0))
    with pytest.raises(SettingError, match=r"shape to be \(rows, width\), neither of them 0.*, got \(0, 24\)"):
        attack.run(RepresentationRelease(VECTORS[:0]), KNOWS, Rng(0))
    with pytest.raises(SettingError, match="finite"):
        attack.run(RepresentationRelease(torch.full((9, WIDTH), torch.inf)), KNOWS, Rng(0))


@each
def test_an_attacker_who_knows_nothing_is_told_what_is_needed(attack: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"Expected .* got none\. "):
        attack.run(RepresentationRelease(VECTORS), Knowledge(), Rng(0))


@each
def test_settings_are_public_and_frozen(attack: Any) -> None:
    with pytest.raises((AttributeError, TypeError)):
        attack.anything = 1
    assert type(attack).__name__ in repr(attack)
