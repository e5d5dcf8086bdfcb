"""The server's side of a locally private classifier: a head over released vectors.

Everything it does is post-processing of releases; `discreet.models.closed_form` says how its head was fitted to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.core.errors import DataError, ModelError
from discreet.core.files import load_tensors
from discreet.core.task import Task
from discreet.core.types import RepresentationRelease
from discreet.local.folder import HEAD, ServerSettings, damaged, read_side
from discreet.models.classifier import classifier_of
from discreet.models.classifier import head as head_of
from discreet.models.encoder import WRONG_KIND
from discreet.runs.folder import load_run


@dataclass(frozen=True)
class ServerSide:
    """The server's side: a head over released vectors. It has no tokenizer and accepts no text.

    Guarantee: everything it does is post-processing of releases.
    """

    head: nn.Module = field(repr=False)
    width: int
    label_names: tuple[str, ...]
    task: Task = Task.CLASSIFICATION
    about: str = ""

    def answer(self, release: RepresentationRelease | Tensor) -> npt.NDArray[np.float32]:
        """Return class probabilities, (rows, classes), or scores, (rows, 1), of released vectors."""
        vectors = _check_vectors(release.vectors if isinstance(release, RepresentationRelease) else release, self.width)
        with torch.inference_mode():
            scores = self.head(vectors.float())
            if self.task.has_classes:
                scores = scores.softmax(dim=1)
        answers: npt.NDArray[np.float32] = scores.cpu().numpy()
        return answers

    @classmethod
    def of_run(cls, folder: Path | str) -> ServerSide:
        """Return the head of an ordinary run, for vectors of its encoder that arrive encrypted.

        Guarantee: that of the run; it reads no text.
        """
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
        """Return the server's side of a finished run, from its folder."""
        folder = Path(folder)
        settings = read_side(ServerSettings, folder, "server")
        try:
            tensors, _ = load_tensors(folder / HEAD)
            outputs = len(settings.classes) if settings.task.has_classes else 1
            head = head_of(settings.head, settings.width, outputs, settings.hidden)
            head.load_state_dict(tensors)
        except (OSError, RuntimeError, KeyError, ValueError, *WRONG_KIND) as error:
            raise damaged(folder, error) from None
        head.requires_grad_(False).eval()
        return cls(head, settings.width, settings.classes, settings.task, settings.about)


def linear_head(weights: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear head with these weights."""
    head = nn.Linear(weights.shape[1], len(weights))
    with torch.no_grad():
        head.weight.copy_(weights)
        head.bias.copy_(bias)
    return head.requires_grad_(False)


def _check_vectors(vectors: Any, width: int) -> Tensor:
    """Reject anything but a matrix of finite numbers of the right width, in particular text."""
    if not isinstance(vectors, Tensor):
        raise DataError(
            f"Expected released vectors, got {type(vectors).__name__}. The server takes no text: protect it on the "
            "user's side and send the release."
        )
    if vectors.ndim != 2 or len(vectors) == 0 or vectors.shape[1] != width:
        raise DataError(
            f"Expected a release of vectors of width {width}, got shape {tuple(vectors.shape)}. It was made for "
            "another server; use the client that was written with this one."
        )
    if not vectors.is_floating_point() or not bool(torch.isfinite(vectors).all()):
        raise DataError("Expected a release of finite numbers, got NaN, infinity or integers. Protect it again.")
    return vectors
