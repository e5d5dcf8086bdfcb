from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.texthide import TextHide
from discreet.releases.gradient import hidden_release, open_release, protected_release
from discreet.releases.representation import representation_release


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


def test_a_hidden_release_is_the_gradient_of_the_hidden_batch(
    batch: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    model = build(batch, tiny_encoder("bert"))
    seen = hidden_release(model, batch, TextHide(masks=0, mix=1), Rng(0))
    plain = open_release(model, batch)
    for name, gradient in plain.gradients.items():
        torch.testing.assert_close(seen.gradients[name], gradient, rtol=1e-3, atol=1e-6)
    assert seen.guarantee is not None and not seen.guarantee.exists and seen.lengths == plain.lengths
    hidden = hidden_release(model, batch, TextHide(masks=16, mix=2), Rng(0))
    again = hidden_release(model, batch, TextHide(masks=16, mix=2), Rng(0))
    assert all(torch.equal(hidden.gradients[n], again.gradients[n]) for n in hidden.gradients)
    assert not torch.allclose(hidden.gradients["head.weight"], plain.gradients["head.weight"], atol=1e-3)
    public = Corpus("web", ("a film", "the plot was slow", "good"))
    other = hidden_release(model, batch, TextHide(masks=16, mix=2, public="given"), Rng(0), public=public)
    assert set(other.gradients) == set(plain.gradients)


def test_what_is_counted_as_hidden_by_sampling_is_drawn_so(tiny_encoder: Callable[[str], Path]) -> None:
    from discreet.accounting.local_layer import Sending
    from discreet.protections.local.layer import LDPLayer
    from discreet.protections.local.projection import whole_space
    from discreet.protections.local.release import LocalLayer

    texts = tuple(f"the heart {'was dull' if i % 2 else 'a knee'} {i}" for i in range(12))
    corpus = Corpus("toy", texts, labels=tuple(i % 2 for i in range(12)))
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    layer = LDPLayer("gaussian", model.width, 1e-6)
    sending = Sending(12, 3, 4, sampling="fixed")
    local = LocalLayer(layer, layer, whole_space(model.width), sending, 1e-5, label_epsilon=1.0)
    _, truth = representation_release(model, corpus, local, Rng(1), batch_size=3, delta=1e-5)
    drawn = truth.rows[:, 0].tolist()
    assert sorted(drawn) != list(range(12))  # four fresh draws of three, and not every row once
    assert any(drawn[i : i + 3] != sorted(drawn[i : i + 3]) for i in range(0, 12, 3))
    with pytest.raises(SettingError, match="3 of 12 sentences, as counted"):
        representation_release(model, corpus, local, Rng(1), batch_size=4)
    with pytest.raises(SettingError, match="3 of 12 sentences, as counted"):
        hidden_release(model, corpus.take([0, 1, 2]), local, Rng(1))


def test_the_gradient_of_an_encoder_is_not_paid_for_by_noise_behind_it(
    batch: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    protect = InstanceEncoding(4.0, 1e-5, stored=False)
    for train, certified in (("all", False), ("head", True)):
        model = Classifier.build(batch, rng=Rng(0), encoder=str(tiny_encoder("bert")), train=train)
        promise = hidden_release(model, batch, protect, Rng.secret(), delta=1e-5).guarantee
        assert promise is not None and promise.delta == 1e-5
        assert promise.exists is promise.certified is certified
        assert certified or "gradient of the encoder" in str(promise.reason)
    owned = Corpus("toy", batch.texts, labels=batch.labels, units=("a", "a", "b"))
    with pytest.raises(SettingError, match="of one row each for a live dp-ie"):
        hidden_release(model, owned, protect, Rng(0))


def test_two_releases_from_one_secret_have_noise_of_their_own(
    batch: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    """The difference of two releases with the same noise would have none."""
    model = Classifier.build(batch, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    secret = Rng.secret()
    first, second = (
        protected_release(model, batch, DPSGD(1.0), secret, delta=1e-5).gradients["head.weight"] for _ in range(2)
    )
    assert not torch.allclose(first, second)
    for protect in (InstanceEncoding(4.0, 1e-5), InstanceEncoding(4.0, 1e-5, stored=False)):
        one, two = (representation_release(model, batch, protect, secret, delta=1e-5)[0].vectors for _ in range(2))
        assert not torch.allclose(one, two)
    one, two = (hidden_release(model, batch, protect, secret, delta=1e-5).gradients["head.weight"] for _ in range(2))
    assert not torch.allclose(one, two)
