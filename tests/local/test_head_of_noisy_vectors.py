import pytest
import torch

from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.models.closed_form import fit_classes, fit_score
from discreet.protections.local.layer import LDPLayer


def cloud(rows: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    labels = (torch.rand(rows, generator=make) < 0.3).long()
    vectors = torch.randn(rows, 8, generator=make) * torch.tensor([0.2, 1, 1, 1, 1, 1, 1, 1])
    vectors[:, 0] += labels - 0.5
    return vectors, labels


def test_noise_is_taken_off_and_that_of_queries_put_on() -> None:
    """The head from a noisy release, meant for clean queries, is the head of the clean vectors."""
    vectors, labels = cloud()
    clean, _ = fit_classes(vectors, labels, 2)
    noisy = vectors + 0.5 * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    aware, _ = fit_classes(noisy, labels, 2, noise=0.25, query_noise=0.0)
    blind, _ = fit_classes(noisy, labels, 2)
    assert float((aware - clean).norm()) < 0.15 * float(clean.norm())
    assert float((blind - clean).norm()) > 0.5 * float(clean.norm())


def test_lies_in_labels_are_corrected() -> None:
    vectors, labels = cloud()
    response = RandomizedResponse(1.0)
    told = response(labels, Rng(0))
    clean, _ = fit_classes(vectors, labels, 2)
    found, _ = fit_classes(vectors, told, 2, truth=response.truth)
    assert float(torch.nn.functional.cosine_similarity(found[1], clean[1], dim=0)) > 0.99
    uncorrected, _ = fit_classes(vectors, told, 2)
    assert float((found - clean).norm()) < 0.5 * float((uncorrected - clean).norm())


def test_classes_part_where_they_part_however_many_there_are_of_each() -> None:
    vectors, labels = cloud()
    layer = LDPLayer.for_budget("privunit", dimension=8, epsilon=2.0)
    weights, bias = fit_classes(layer(vectors, Rng(0)), labels, 2, noise=layer.variance)
    said = (layer.bounded(vectors) @ weights.T + bias).argmax(1)
    assert 0.2 < float(said.float().mean()) < 0.6
    assert float((said == labels).float().mean()) > 0.8


def test_scores_are_fitted_too() -> None:
    vectors, _ = cloud()
    weights, bias = fit_score(vectors, vectors[:, 0] * 3 + 1)
    assert float(weights[0, 0]) == pytest.approx(3.0, rel=0.02)
    assert float(bias) == pytest.approx(1.0, abs=0.02)


def test_a_class_without_vectors_is_refused() -> None:
    with pytest.raises(DataError, match="every class"):
        fit_classes(torch.randn(10, 8), torch.zeros(10, dtype=torch.int64), 2)
