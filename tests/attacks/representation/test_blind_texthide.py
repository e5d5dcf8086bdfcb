"""The real protections against the attacks: what they hide, and what they do not."""

import numpy as np
import pytest
import torch
from reproductions.texthide.vector_metrics import recovered

from discreet.attacks.representation.blind import BlindReconstruction
from discreet.attacks.representation.instance import InstanceReconstruction
from discreet.attacks.representation.similarity import Similarity
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, RepresentationRelease
from discreet.protections.base import clip
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.texthide import TextHide

pytestmark = pytest.mark.search

WIDTH, PRIVATE = 96, 30


def correlated(rows: int, seed: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(7)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=source))[0] * torch.logspace(0.3, -0.4, WIDTH)
    mean = 0.5 * torch.randn(WIDTH, generator=source)
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)) @ turn.T + mean


def hidden(protect: TextHide, vectors: torch.Tensor, epochs: int = 1) -> tuple[torch.Tensor, np.ndarray]:
    """Return what leaves in some epochs of one batch each, and the heaviest row of each output."""
    live = protect.live(len(vectors), WIDTH, 2, Rng(3), torch.device("cpu"))
    rows = np.arange(len(vectors))
    drawn = [live.draw(rows, (len(rows), WIDTH), step, step) for step in range(epochs)]
    out = [live.hide(vectors, torch.zeros(len(rows)).long(), each)[0] for each in drawn]
    return torch.cat(out), np.concatenate([each["mix"].numpy().argmax(axis=1) for each in drawn])


VECTORS = correlated(200, 0)
KNOWS = Knowledge(extra={"vectors": VECTORS, "public": correlated(1500, 1)})


def rate(score: str, protect: TextHide) -> float:
    seen, truth = hidden(protect, VECTORS[:PRIVATE], 2)
    guess = Similarity(score).run(RepresentationRelease(seen), KNOWS, Rng(0))
    return float((np.array(guess.indices) == truth).mean())


@pytest.mark.parametrize("protect", [TextHide(masks=256, mix=3), TextHide(mix=3, fresh_masks=True)], ids=str)
def test_masks_stop_signed_cosine_alone(protect: TextHide) -> None:
    assert rate("signed", protect) < 0.15
    assert rate("absolute", protect) > 0.5
    assert rate("least-squares", protect) > 0.9


def test_at_inference_nothing_is_mixed_and_absolute_values_are_exact() -> None:
    assert rate("absolute", TextHide(masks=256, mix=1)) == 1.0


def test_reused_masks_give_the_private_set_away_with_candidates_and_without() -> None:
    private = VECTORS[:PRIVATE]
    seen, _ = hidden(TextHide(masks=4, mix=3), private, 40)
    release = RepresentationRelease(seen)
    named = InstanceReconstruction(PRIVATE, mix=3, used=120).run(release, KNOWS, Rng(0))
    assert set(named.indices) == set(range(PRIVATE))
    blind = BlindReconstruction(PRIVATE, masks=4).run(
        release, Knowledge(extra={"public": KNOWS.extra["public"]}), Rng(0)
    )
    assert recovered(blind.details["vectors"], private, 0.9).value > 0.8


def test_noise_of_a_small_epsilon_hides_who_was_encoded_and_of_a_large_one_does_not() -> None:
    norm = float(torch.linalg.vector_norm(VECTORS, dim=1).median())
    clipped = clip(VECTORS, norm)
    knows = Knowledge(extra={"vectors": clipped})
    attack = InstanceReconstruction(PRIVATE, mix=3, masked=False)
    rates = {}
    for epsilon in (1.0, 1e5):
        once = InstanceEncoding(epsilon, 1e-5, norm, mix=3, rounds=40).once(np.arange(PRIVATE), WIDTH, 2, Rng(0))
        encodings, _ = once(VECTORS[:PRIVATE], torch.zeros(PRIVATE).long())
        rates[epsilon] = recovered(
            attack.run(RepresentationRelease(encodings), knows, Rng(0)).details["vectors"], clipped[:PRIVATE]
        ).value
    assert rates[1.0] < 0.4  # chance is 0.15, of thirty
    assert rates[1e5] > 0.9
