"""The server's side of a locally private classifier: a head over released vectors, and a refusal of all else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.core.errors import DataError
from discreet.core.types import RepresentationRelease
from discreet.training.local_head import fit_classes, fit_score


@dataclass(frozen=True)
class ServerSide:
    """What stands on the server: a head over released vectors. It has no tokenizer and takes no text.

    Guarantee: all it does is post-processing of releases.
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
        """Return the side fitted to a release, for queries of a known noise; the server needs nothing else.

        Guarantee: that of the release, as this is post-processing.
        """
        if release.labels is None:
            raise DataError("Expected a release with labels or scores to learn from, found none.")
        _check_vectors(release.vectors, None)
        if task == "classification":
            weights, bias = fit_classes(
                release.vectors, release.labels, len(label_names), noise=noise, query_noise=query_noise, truth=truth
            )
        else:
            weights, bias = fit_score(release.vectors, release.labels, noise=noise, query_noise=query_noise)
        about = "" if release.guarantee is None else release.guarantee.sentence()
        return cls(linear(weights, bias), int(weights.shape[1]), label_names, task, about)

    def answer(self, release: RepresentationRelease | Tensor) -> npt.NDArray[np.float32]:
        """Return class probabilities, (rows, classes), or scores, (rows, 1), of released vectors."""
        vectors = _check_vectors(release.vectors if isinstance(release, RepresentationRelease) else release, self.width)
        with torch.inference_mode():
            scores = self.head(vectors.float())
            if self.task == "classification":
                scores = scores.softmax(dim=1)
        found: npt.NDArray[np.float32] = scores.cpu().numpy()
        return found

    @classmethod
    def load(cls, folder: Path | str) -> ServerSide:
        """Return the server's side of a finished run."""
        from discreet.training.local_folder import load_server

        return load_server(Path(folder))


def linear(weights: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear head with these weights."""
    made = nn.Linear(weights.shape[1], len(weights))
    with torch.no_grad():
        made.weight.copy_(weights)
        made.bias.copy_(bias)
    return made.requires_grad_(False)


def _check_vectors(vectors: Any, width: int | None) -> Tensor:
    """Refuse whatever is not a table of finite numbers of the right width: text above all."""
    if not isinstance(vectors, Tensor):
        raise DataError(
            f"Expected released vectors, found {type(vectors).__name__}. The server takes no text: protect it on the "
            "user's side and send the release."
        )
    if vectors.ndim != 2 or len(vectors) == 0 or (width is not None and vectors.shape[1] != width):
        wanted = "" if width is None else f" {width} wide"
        raise DataError(
            f"Expected a release of vectors{wanted}, found shape {tuple(vectors.shape)}. It was made for another "
            "server; use the client that was written with this one."
        )
    if not vectors.is_floating_point() or not bool(torch.isfinite(vectors).all()):
        raise DataError("Expected a release of finite numbers, found NaN, infinity or integers. Protect it again.")
    return vectors
