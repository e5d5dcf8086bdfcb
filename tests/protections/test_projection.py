from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from discreet.core.errors import DataError, SettingError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.local import protection
from discreet.protections.local.projection import Projection, labelled, principal, query_axes, whole_space
from discreet.protections.local.protection import synthetic_vectors


def cloud(rows: int = 400, width: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    labels = torch.arange(rows) % 2
    vectors = torch.randn(rows, width, generator=make) * torch.linspace(3, 0.5, width)
    vectors[:, -1] += 2.0 * labels
    return vectors, labels


def test_principal_axes_are_the_strongest_and_use_no_label() -> None:
    vectors, _ = cloud()
    found = principal(vectors, 8, "a cloud")
    assert torch.allclose(found.matrix @ found.matrix.T, torch.eye(8), atol=1e-4)
    spread = found(vectors).std(0)
    assert (spread[:-1] >= spread[1:] - 1e-3).all()
    white = principal(vectors, 8, "a cloud", power=1.0)(vectors).std(0)
    assert torch.allclose(white, torch.ones(8), atol=0.01)


def test_vectors_of_synthetic_sentences_are_computed_once_for_each_encoder(
    tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Corpus("toy", ("the heart was dull", "a knee"), labels=(0, 1), label_names=("a", "b"))
    calls: list[int] = []
    encoded = protection._encoded
    monkeypatch.setattr(protection, "_encoded", lambda *args: calls.append(1) or encoded(*args))
    monkeypatch.setattr(protection, "_computed", {})

    def built(seed: int, **settings: object) -> Classifier:
        return Classifier.build(rows, rng=Rng(seed), encoder=str(tiny_encoder("bert")), **settings)

    first = built(0)
    once = synthetic_vectors(first, 300)
    first.tokenizer(["a text"], truncation=True, max_length=3)  # what a tokenizer did last does not matter
    once[0] = 0  # nor what happens to the result
    again = synthetic_vectors(built(1).train(), 300)
    assert len(calls) == 1 and torch.equal(once[1:], again[1:]) and again[0].abs().sum() > 0
    with torch.no_grad():
        next(first.encoder.parameters()).mul_(1.5)
    others = [synthetic_vectors(first, 300), synthetic_vectors(built(0, pooling="cls"), 300)]
    assert len(calls) == 3 and not any(torch.equal(again, other) for other in others)
    assert len(synthetic_vectors(built(0), 200)) == 200 and len(calls) == 4


def test_labelled_axes_put_the_label_to_the_fore() -> None:
    vectors, labels = cloud()
    found = labelled(vectors, labels, 8, "a cloud", spread=0.5, ridge=0.1)(vectors)
    gap = found[labels == 1].mean(0) - found[labels == 0].mean(0)
    assert gap.abs().argmax() == 0
    assert float(found[:, 1:].square().sum(1).mean().sqrt()) == pytest.approx(0.5, rel=0.1)


def test_projections_refuse_what_does_not_fit() -> None:
    vectors, _ = cloud()
    with pytest.raises(SettingError, match="dimension to be .*, got 13"):
        principal(vectors, 13, "a cloud")
    with pytest.raises(DataError, match="at least two classes"):
        labelled(vectors, torch.zeros(len(vectors)), 8, "a cloud")
    with pytest.raises(DataError, match="another encoder"):
        whole_space(12)(torch.zeros(2, 11))
    with pytest.raises(SettingError, match="matrix"):
        Projection(torch.zeros(3), torch.zeros(2, 4), "nothing")


def test_axes_keep_the_decisions_of_the_head() -> None:
    """Without noise, a query on its axes gets the answer the head would have given."""
    vectors, _ = cloud()
    make = torch.Generator().manual_seed(1)
    for classes in (2, 4):
        weights, bias = torch.randn(classes, 12, generator=make), torch.randn(classes, generator=make)
        axes = query_axes(weights, bias, vectors.mean(0), torch.cov(vectors.T), 8)
        again = axes.back(axes(vectors)) @ weights.T + bias
        said = vectors @ weights.T + bias
        assert (again.argmax(1) == said.argmax(1)).all()


def test_a_query_is_mostly_about_the_decision() -> None:
    vectors, _ = cloud()
    axes = query_axes(torch.eye(12)[:2], torch.zeros(2), vectors.mean(0), torch.cov(vectors.T), 8, spread=0.3)
    found = axes(vectors).square().mean(0)
    assert float(found[0]) == pytest.approx(1.0, rel=0.05)
    assert float(found[1:].sum()) == pytest.approx(0.09, rel=0.1)


def test_axes_of_a_score_lead_back_to_its_mean() -> None:
    vectors, _ = cloud()
    weights, bias = torch.ones(1, 12), torch.tensor([5.0])
    axes = query_axes(weights, bias, vectors.mean(0), torch.cov(vectors.T), 8)
    nothing = axes.back(torch.zeros(1, 8)) @ weights.T + bias
    assert float(nothing) == pytest.approx(float((vectors @ weights.T + bias).mean()), abs=1e-3)
    with pytest.raises(DataError, match="covariance"):
        query_axes(weights, bias, vectors.mean(0), torch.eye(3), 8)
