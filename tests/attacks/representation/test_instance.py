import numpy as np
import pytest
import torch
from reproductions.texthide.vector_metrics import recovered
from tests.attacks.representation.conftest import Scene, scene

from discreet.attacks.representation.instance import InstanceReconstruction
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge, RepresentationRelease

pytestmark = pytest.mark.search

PRIVATE, COUNT, WIDTH = 12, 60, 96


def encodings(masks: int, queries: int = 300) -> Scene:
    return scene(mix=3, masks=masks, queries=queries, private=PRIVATE, count=COUNT, width=WIDTH)


def found(attack: InstanceReconstruction, made: Scene, seen: RepresentationRelease | None = None) -> float:
    guess = attack.run(seen or made.seen, made.knows, Rng(0))
    assert len(guess.indices) == len(set(guess.indices)) == attack.count
    leak = recovered(guess.details["vectors"], made.vectors[:PRIVATE], chance=PRIVATE / COUNT)
    assert leak.value == pytest.approx(np.mean([row < PRIVATE for row in guess.indices]))
    return leak.value


@pytest.mark.parametrize("masks", [16, -1])
def test_masked_mixtures_give_all_their_vectors_away(masks: int) -> None:
    assert found(InstanceReconstruction(count=PRIVATE, mix=3, used=60), encodings(masks)) == 1.0


def test_mean_and_covariance_give_mixtures_away_and_noise_hides_them_gradually() -> None:
    made = encodings(0, 2000)
    attack = InstanceReconstruction(count=PRIVATE, mix=3, masked=False)
    noise = torch.randn(made.seen.vectors.shape, generator=torch.Generator().manual_seed(0))
    rates = [found(attack, made, RepresentationRelease(made.seen.vectors + s * noise)) for s in (0.0, 1.0, 100.0)]
    assert rates[0] == 1.0
    assert rates[0] >= rates[1] > 0.5
    assert rates[2] < 0.5  # chance is 0.2, of twelve


def test_noise_that_is_the_same_in_every_encoding_hides_nothing() -> None:
    made = encodings(0, 2000)
    noise = 100 * torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(0))
    seen = RepresentationRelease(made.seen.vectors + noise)
    assert found(InstanceReconstruction(count=PRIVATE, mix=3, masked=False, common_noise=True), made, seen) == 1.0


def test_candidates_that_nothing_speaks_for_are_named_at_chance_level() -> None:
    made = encodings(0)
    zeros = RepresentationRelease(torch.zeros(5, WIDTH))
    rates = []
    for seed in range(40):
        guess = InstanceReconstruction(count=PRIVATE).run(zeros, made.knows, Rng(seed))
        rates.append(np.mean([row < PRIVATE for row in guess.indices]))
    assert np.mean(rates) == pytest.approx(PRIVATE / COUNT, abs=0.12)


def test_what_cannot_be_used_is_refused() -> None:
    made = encodings(0, 3)
    with pytest.raises(SettingError, match="count to be at most 60, the candidates.*, got 100"):
        InstanceReconstruction().run(made.seen, made.knows, Rng(0))
    with pytest.raises(UnsupportedError, match="RepresentationRelease"):
        InstanceReconstruction().run(GradientRelease({}, 1), made.knows, Rng(0))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="candidates for Instance reconstruction"):
        InstanceReconstruction().run(made.seen, Knowledge(), Rng(0))
    with pytest.raises(SettingError, match="common_noise to be False if masked.*, got True"):
        InstanceReconstruction(common_noise=True)
