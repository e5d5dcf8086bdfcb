from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.release import open_release, protected_release


@pytest.fixture
def batch() -> Corpus:
    return Corpus("toy", ("the heart was dull", "a knee", "the lung"), labels=(0, 1, 0))


def build(batch: Corpus, folder: Path) -> Classifier:
    return Classifier.build(batch, rng=Rng(0), encoder=str(folder))


def test_an_open_release_is_the_mean_gradient(batch: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(batch, tiny_encoder("bert")).eval()
    seen = open_release(model, batch)
    found = model.tokenizer(list(batch.texts), padding=True, return_tensors="pt")
    loss = model.losses(dict(found), torch.tensor(batch.labels)).mean()
    parameters = dict(model.named_parameters())
    expected = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(seen.gradients[name], gradient, rtol=1e-4, atol=1e-6)
    assert seen.guarantee is None
    assert seen.batch_size == 3 and seen.lengths == (6, 4, 4) and seen.labels == (0, 1, 0)


def test_a_protected_release_carries_the_guarantee_of_that_release(
    batch: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    model = build(batch, tiny_encoder("bert"))
    seen = protected_release(model, batch, DPSGD(1.0, clip_norm=1.0), Rng(0), delta=1e-5)
    assert seen.guarantee is not None
    # the exact epsilon of one Gaussian release at noise 1 and delta 1e-5, without any amplification
    assert seen.guarantee.epsilon == pytest.approx(4.377, abs=0.001)
    assert seen.noise_std == pytest.approx(1 / 3)
    assert not seen.guarantee.certified and "whoever knows it" in str(seen.guarantee.reason)
    secret = protected_release(model, batch, DPSGD(1.0, clip_norm=1.0), Rng.secret(), delta=1e-5)
    assert secret.guarantee is not None and secret.guarantee.certified
    again = protected_release(model, batch, DPSGD(1.0, clip_norm=1.0), Rng(0), delta=1e-5)
    assert all(torch.equal(seen.gradients[n], again.gradients[n]) for n in seen.gradients)
    turned = protected_release(model, batch.take([0]), DirDPSGD.for_model(model, 20.0), Rng(0), delta=1e-5)
    length = torch.sqrt(sum(g.square().sum() for g in turned.gradients.values()))
    assert float(length) == pytest.approx(1.0, abs=1e-4)
