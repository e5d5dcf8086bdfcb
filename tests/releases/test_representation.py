from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.texthide import TextHide
from discreet.releases.representation import representation_release


@pytest.fixture
def batch() -> Corpus:
    return Corpus("toy", ("the heart was dull", "a knee", "the lung"), labels=(0, 1, 0))


def build(batch: Corpus, folder: Path) -> Classifier:
    return Classifier.build(batch, rng=Rng(0), encoder=str(folder))


def test_a_representation_release_comes_with_its_truth(batch: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(batch, tiny_encoder("bert"))
    plain, truth = representation_release(model, batch, None, Rng(0))
    assert plain.guarantee is None and truth.rows.flatten().tolist() == [0, 1, 2]
    asked = TextHide(masks=4, mix=2)
    hidden, mixture = representation_release(model, batch, asked, Rng(0), epochs=5)
    assert hidden.vectors.shape == (15, model.width) and hidden.labels is not None and hidden.labels.shape == (15, 2)
    mixed = (mixture.weights[..., None] * plain.vectors[mixture.rows]).sum(dim=1)
    torch.testing.assert_close(hidden.vectors.abs(), mixed.abs(), rtol=1e-4, atol=1e-5)
    assert (mixture.weights[:, 0] >= mixture.weights[:, 1]).all()
    assert hidden.guarantee is not None and not hidden.guarantee.exists


def test_a_noisy_representation_release_has_its_guarantee(batch: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(batch, tiny_encoder("bert"))
    asked = InstanceEncoding(4.0, 1e-5, rounds=3, mix=2)
    seen, mixture = representation_release(model, batch, asked, Rng.secret(), delta=1e-5)
    assert seen.vectors.shape == (9, model.width) and mixture.rows.shape == (9, 2)
    assert seen.guarantee is not None and seen.guarantee.certified
    assert seen.guarantee.epsilon == pytest.approx(4.0, rel=1e-3)
    assert any("labels are public" in said for said in seen.guarantee.assumptions)
    paper, _ = representation_release(
        model, batch, InstanceEncoding(4.0, 1e-5, calibration="paper"), Rng.secret(), delta=1e-5
    )
    assert paper.guarantee is not None and not paper.guarantee.certified and paper.guarantee.epsilon == 4.0
    assert "the epsilon of this noise is 6.38" in str(paper.guarantee.reason)
