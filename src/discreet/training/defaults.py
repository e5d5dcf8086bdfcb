"""Settings a newcomer gets a good model with, found by measurement.

docs/decisions/training.md and docs/decisions/private_training.md have the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from discreet.models.encoder import BILSTM

FEW_UNITS = 5000  # below, a protected training of all layers mostly learns nothing
_LEARNS_LITTLE = {"dp-sgd", "dir-dp-sgd", "texthide"}


@dataclass(frozen=True)
class Defaults:
    """What is chosen for the user where nothing was said."""

    epochs: float
    batch_size: int
    learning_rate: float
    weight_decay: float
    dropout: float | None
    embeddings: bool


def part_to_train(default: str, protect: str | None, units: int, encoder: str = "minilm") -> str:
    """Return what is trained where nothing was said: the head alone where noise meets few units.

    300 tickets under epsilon 3: all layers reach .571 in 210 s, the head 1.000 in 10 s. The 2,000 notes under TextHide:
    all layers give every note the same class, the head reaches .757. An encoder that was never trained is not frozen.

    >>> part_to_train("all", "dp-sgd", 300), part_to_train("all", "dp-sgd", 67349), part_to_train("all", None, 300)
    ('head', 'all', 'all')
    """
    few = protect in _LEARNS_LITTLE and units < FEW_UNITS
    return "head" if few and default == "all" and encoder != BILSTM else default


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
        # Mixing and masks hide most of a vector at each step, so that few rows must be seen more often.
        long = 60.0 if protect == "texthide" and units < FEW_UNITS else 20.0
        return Defaults(long if frozen else 3.0, 32, 2e-3 if frozen else fine, 0.01, None, True)
    if protect == "dir-dp-sgd":
        return Defaults(5.0, min(128, units), 1e-2 if frozen else 1e-3, 0.0, 0.0, False)
    # Large batches, so that one noise is shared by many gradients; but never so large that few steps are left.
    batch = max(64, min(4096, units // 8))
    return Defaults(40.0 if frozen else 15.0, batch, 2e-2 if frozen else 1e-3, 0.0, 0.0, False)
