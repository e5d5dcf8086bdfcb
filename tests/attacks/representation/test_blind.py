import numpy as np
import pytest
import torch
from reproductions.texthide.vector_metrics import recovered

from discreet.attacks.representation.blind import BlindReconstruction, corners, groups, remove_masks
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, RepresentationRelease

pytestmark = pytest.mark.search

PRIVATE, WIDTH, MASKS, OUTPUTS = 12, 40, 4, 1200


def made(masks: int = MASKS, seed: int = 0):
    """Return vectors of correlated coordinates that lean one way, mixtures of a few of them, and masks on those."""
    source = np.random.default_rng(seed)
    turn = np.linalg.qr(source.standard_normal((WIDTH, WIDTH)))[0] * np.geomspace(2, 0.4, WIDTH)
    mean = 0.6 * source.standard_normal(WIDTH)
    public = source.standard_normal((2000, WIDTH)) @ turn.T + mean
    private = source.standard_normal((PRIVATE, WIDTH)) @ turn.T + mean
    weights = np.zeros((OUTPUTS, PRIVATE))
    shares = np.abs(source.standard_normal((OUTPUTS, 3)))
    shares /= shares.sum(axis=1, keepdims=True)
    for j in range(3):
        np.add.at(weights, (np.arange(OUTPUTS), source.integers(PRIVATE, size=OUTPUTS)), shares[:, j])
    mixed = weights @ private
    whose = source.integers(max(masks, 1), size=OUTPUTS)
    pool = source.choice([-1.0, 1.0], size=(max(masks, 1), WIDTH)) if masks else np.ones((1, WIDTH))
    return private, public, mixed, mixed * pool[whose], whose


def test_encodings_are_grouped_by_their_mask_and_the_masks_come_off() -> None:
    _, public, mixed, seen, whose = made()
    found = groups(seen, MASKS)
    assert all(len(set(found[whose == number].tolist())) == 1 for number in range(MASKS))
    right = (np.sign(remove_masks(seen, public, MASKS)) == np.sign(mixed)).mean()
    assert right > 0.95


def test_corners_of_mixtures_are_what_was_mixed() -> None:
    private, _, mixed, _, _ = made(masks=0)
    found, misfit = corners(mixed, PRIVATE, 8)
    assert misfit < 0.02
    assert recovered(found, private, 0.99).value == 1.0


@pytest.mark.parametrize("masks", [0, MASKS])
def test_private_vectors_are_rebuilt_without_candidates(masks: int) -> None:
    private, public, _, seen, _ = made(masks)
    knows = Knowledge(extra={"public": torch.from_numpy(public)})
    guess = BlindReconstruction(PRIVATE, masks).run(RepresentationRelease(torch.from_numpy(seen)), knows, Rng(0))
    assert guess.indices == ()
    assert recovered(guess.details["vectors"], private, 0.9).value >= 0.9


def test_candidates_name_what_was_rebuilt() -> None:
    private, public, _, seen, _ = made(0)
    held = np.concatenate([public[:30], private])
    texts = tuple(f"sentence {i}" for i in range(len(held)))
    knows = Knowledge(candidates=texts, extra={"public": public, "vectors": held})
    guess = BlindReconstruction(PRIVATE, 0).run(RepresentationRelease(torch.from_numpy(seen)), knows, Rng(0))
    assert set(guess.indices) == set(range(30, 30 + PRIVATE))
    assert guess.texts[0] == f"sentence {guess.indices[0]}"


def test_random_vectors_rebuild_nothing() -> None:
    private, public, _, _, _ = made()
    noise = RepresentationRelease(torch.randn(500, WIDTH, generator=torch.Generator().manual_seed(0)))
    guess = BlindReconstruction(PRIVATE, MASKS).run(noise, Knowledge(extra={"public": public}), Rng(0))
    assert recovered(guess.details["vectors"], private).value == 0.0


def test_what_cannot_be_used_is_refused() -> None:
    seen = RepresentationRelease(torch.ones(50, WIDTH))
    with pytest.raises(UnsupportedError, match=r"extra\['public'\].*Encode text of the same kind"):
        BlindReconstruction(PRIVATE).run(seen, Knowledge(), Rng(0))
    with pytest.raises(SettingError, match="count to be below 40, the width, and at most 50.*, got 45"):
        BlindReconstruction(45).run(seen, Knowledge(extra={"public": torch.ones(9, WIDTH)}), Rng(0))
