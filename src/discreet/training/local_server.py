"""The server's side of a locally private classifier: a head over released vectors, fitted in closed form.

A server knows the variance of the noise in training vectors and in queries. Noise does not change the class means; from
the covariance the server subtracts the noise of training and adds that of queries. The head is then the one that
training at the noise of queries would give, in closed form. All of it is post-processing of the release.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.core.errors import DataError, ModelError, non_negative, whole
from discreet.core.types import RepresentationRelease


@dataclass(frozen=True)
class ServerSide:
    """The server's side: a head over released vectors. It has no tokenizer and accepts no text.

    Guarantee: everything it does is post-processing of releases.
    """

    head: nn.Module = field(repr=False)
    width: int
    label_names: tuple[str, ...]
    task: str = "classification"
    about: str = ""

    @classmethod
    def fit(
        cls,
        release: RepresentationRelease,
        *,
        label_names: tuple[str, ...] = (),
        task: str = "classification",
        noise: float,
        query_noise: float,
        truth: float = 1.0,
    ) -> ServerSide:
        """Return the server's side fitted to a release; `noise` and `query_noise` are variances of one coordinate.

        Guarantee: that of the release, as this is post-processing.
        """
        if release.labels is None:
            raise DataError("Expected a release with labels or scores to train on, got none.")
        _check_vectors(release.vectors, None)
        if task == "classification":
            weights, bias = fit_classes(
                release.vectors, release.labels, len(label_names), noise=noise, query_noise=query_noise, truth=truth
            )
        else:
            weights, bias = fit_score(release.vectors, release.labels, noise=noise, query_noise=query_noise)
        about = "" if release.guarantee is None else release.guarantee.sentence()
        return cls(linear_head(weights, bias), int(weights.shape[1]), label_names, task, about)

    def answer(self, release: RepresentationRelease | Tensor) -> npt.NDArray[np.float32]:
        """Return class probabilities, (rows, classes), or scores, (rows, 1), of released vectors."""
        vectors = _check_vectors(release.vectors if isinstance(release, RepresentationRelease) else release, self.width)
        with torch.inference_mode():
            scores = self.head(vectors.float())
            if self.task == "classification":
                scores = scores.softmax(dim=1)
        answers: npt.NDArray[np.float32] = scores.cpu().numpy()
        return answers

    @classmethod
    def of_run(cls, folder: Path | str) -> ServerSide:
        """Return the head of an ordinary run, for vectors of its encoder that arrive encrypted.

        Guarantee: that of the run; it reads no text.
        """
        from discreet.models.classifier import classifier_of
        from discreet.training.run_folder import load_run

        run = load_run(Path(folder))
        model = classifier_of(run.model, "a server", "Encrypted answers need the head of a classifier.")
        if model.query is not None:
            raise ModelError(
                f"Expected a run without local privacy at {str(folder)!r}. Its server folder is "
                f"{str(Path(folder) / 'server')!r}."
            )
        return cls(model.head, model.width, model.label_names, model.task)

    @classmethod
    def load(cls, folder: Path | str) -> ServerSide:
        """Return the server's side of a finished run."""
        from discreet.training.local_folder import load_server

        return load_server(Path(folder))


def linear_head(weights: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear head with these weights."""
    head = nn.Linear(weights.shape[1], len(weights))
    with torch.no_grad():
        head.weight.copy_(weights)
        head.bias.copy_(bias)
    return head.requires_grad_(False)


def _check_vectors(vectors: Any, width: int | None) -> Tensor:
    """Reject anything but a matrix of finite numbers of the right width, in particular text."""
    if not isinstance(vectors, Tensor):
        raise DataError(
            f"Expected released vectors, got {type(vectors).__name__}. The server takes no text: protect it on the "
            "user's side and send the release."
        )
    if vectors.ndim != 2 or len(vectors) == 0 or (width is not None and vectors.shape[1] != width):
        expected = "" if width is None else f" of width {width}"
        raise DataError(
            f"Expected a release of vectors{expected}, got shape {tuple(vectors.shape)}. It was made for another "
            "server; use the client that was written with this one."
        )
    if not vectors.is_floating_point() or not bool(torch.isfinite(vectors).all()):
        raise DataError("Expected a release of finite numbers, got NaN, infinity or integers. Protect it again.")
    return vectors


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
