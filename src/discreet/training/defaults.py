"""Settings a newcomer gets a good model with, found by measurement.

docs/decisions/training.md and docs/decisions/private_training.md have the figures.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defaults:
    """What is chosen for the user where nothing was said."""

    epochs: float
    batch_size: int
    learning_rate: float
    weight_decay: float
    dropout: float | None
    embeddings: bool


def defaults_for(train: str, protect: str | None, units: int, width: int = 384) -> Defaults:
    """Return good settings for what is trained, whether and how it is protected, and how much text there is.

    >>> defaults_for("all", None, 2000).batch_size
    32
    >>> defaults_for("all", "dp-sgd", 67349).batch_size
    4096
    """
    frozen = train in {"head", "pooler+head"}
    if protect not in {"dp-sgd", "dir-dp-sgd"}:  # not protected, or before the gradient: a step is an ordinary one
        fine = 5e-5 if width <= 512 else 3e-5
        return Defaults(20.0 if frozen else 3.0, 32, 2e-3 if frozen else fine, 0.01, None, True)
    if protect == "dir-dp-sgd":
        return Defaults(5.0, min(128, units), 1e-2 if frozen else 1e-3, 0.0, 0.0, False)
    # Large batches, so that one noise is shared by many gradients; but never so large that few steps are left.
    batch = max(64, min(4096, units // 8))
    return Defaults(40.0 if frozen else 15.0, batch, 2e-2 if frozen else 1e-3, 0.0, 0.0, False)
