"""Linear heads in closed form, for vectors and labels with known noise.

Noise does not change the class means; the noise of training is subtracted from the covariance, and that of queries
added. The head is then the one that training at the noise of queries would give.
"""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.core.errors import DataError, non_negative, whole

_RIDGE = 1e-4


def fit_classes(
    vectors: Tensor,
    labels: Tensor,
    classes: int,
    *,
    noise: float = 0.0,
    query_noise: float | None = None,
    truth: float = 1.0,
    balanced: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return weights (classes, width) and biases of a linear discriminant for queries with known noise.

    `noise` and `query_noise` are variances of one coordinate in training and in queries. `truth` is the probability
    that a label is the true one; the other labels are equally likely. Class means and frequencies are corrected for it.
    `balanced` ignores class frequencies: under much noise they alone would decide.

    Guarantee: post-processing of a release; no budget is spent.

    >>> x = torch.tensor([[0.0, 1.0], [0.2, 1.1], [2.0, 1.0], [2.2, 0.9]])
    >>> weights, bias = fit_classes(x, torch.tensor([0, 0, 1, 1]), 2)
    >>> (x @ weights.T + bias).argmax(1).tolist()
    [0, 0, 1, 1]
    """
    x = vectors.double()
    centre = x.mean(0)
    means, shares = _class_means(x - centre, labels, whole("classes", classes, 2), truth)
    between = (means * shares[:, None]).T @ means
    within = _covariance_for(x - centre, non_negative("noise", noise), query_noise, between)
    weights = torch.linalg.solve(within, means.T).T
    prior = torch.zeros_like(shares) if balanced else shares.clamp_min(1e-6).log()
    biases = prior - (weights * means).sum(1) / 2 - weights @ centre
    return weights.float(), biases.float()


def fit_score(
    vectors: Tensor, scores: Tensor, *, noise: float = 0.0, query_noise: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return weights (1, width) and the bias of a linear regression for queries with known noise."""
    x, y = vectors.double(), scores.double()
    centre, level = x.mean(0), y.mean()
    spread = _covariance_for(x - centre, noise, query_noise, x.new_zeros(x.shape[1], x.shape[1]))
    weights = torch.linalg.solve(spread, (x - centre).T @ (y - level) / len(x))
    return weights[None].float(), (level - weights @ centre)[None].float()


def _class_means(x: Tensor, labels: Tensor, classes: int, truth: float) -> tuple[Tensor, Tensor]:
    """Return the mean vector and the frequency of every true class, from labels that are true with a probability."""
    reported = torch.nn.functional.one_hot(labels.long(), classes).double()
    confusion = torch.full((classes, classes), (1 - truth) / (classes - 1), dtype=torch.float64, device=x.device)
    confusion.fill_diagonal_(truth)
    sums = torch.linalg.solve(confusion, reported.T @ x / len(x))
    shares = torch.linalg.solve(confusion, reported.mean(0))
    if bool((reported.sum(0) == 0).any()):
        raise DataError("Expected released vectors of every class, got a class without any. Send more of it.")
    shares = shares.clamp_min(1 / len(x))
    return sums / shares[:, None], shares / shares.sum()


def _covariance_for(x: Tensor, noise: float, query_noise: float | None, between: Tensor) -> Tensor:
    """Return the within-class covariance of queries: that of the release, minus its noise, plus theirs."""
    total = x.T @ x / len(x) - between
    values, basis = torch.linalg.eigh(total)
    added = noise if query_noise is None else query_noise
    clean = (values - noise).clamp_min(0)
    floor = _RIDGE * float((clean + added).mean()) + 1e-12
    covariance: Tensor = basis @ torch.diag(clean + added + floor) @ basis.T
    return covariance
