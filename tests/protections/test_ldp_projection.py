import pytest
import torch

from discreet.core.errors import DataError, SettingError
from discreet.protections.local.projection import Projection, labelled, principal, query_axes, whole_space


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
