"""Settings of the training loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from discreet.core.errors import invalid, non_negative, one_of, positive, probability, setting, whole
from discreet.core.settings import option_field

if TYPE_CHECKING:
    from discreet.protections.base import TrainDefaults

PRECISIONS = ("auto", "float32", "bf16")
OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training loop; None selects a default that depends on the trained part, protection and size.

    `head_rate` multiplies the learning rate of the head and the pooler, which start untrained.
    """

    epochs: float | None = option_field(
        None, "Passes over the text.", "Training", "3; 8 for few pairs; 20 for the head; depends on the protection"
    )
    batch_size: int | None = option_field(
        None, "Rows in a batch; with dp-sgd, the expected number of units.", "Training", "32; depends on the protection"
    )
    learning_rate: float | None = option_field(
        None, "Highest learning rate.", "Training", "depends on what is trained and on the protection"
    )
    head_share: float | None = option_field(
        None, "Share of the steps that train only the head, before all layers.", "Training", "0; 0.2 with dp-sgd"
    )
    head_rate: float | None = option_field(
        None,
        "Learning rate of the head, as a multiple of the encoder's.",
        "Training",
        "1; 10 for few pairs, unprotected",
    )
    warmup: float = option_field(0.06, "Share of the steps in which the learning rate rises.", "Training")
    weight_decay: float | None = option_field(
        None, "Weight decay of matrices.", "Training", "0.01; 0 with dp-sgd, dir-dp-sgd"
    )
    optimizer: str = option_field("adamw", "adamw or sgd.", "Training")
    momentum: float = 0.9
    averaging: float = 0.0
    gradient_norm: float = 1.0
    accumulate: int = option_field(1, "Read each batch in this many parts, to save memory.", "Training")
    patience: int | None = option_field(None, "Stop after this many epochs without improvement.", "Training")
    precision: str = option_field("auto", "auto (bf16 on a GPU, else float32), float32 or bf16.", "Training")

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        if self.epochs is not None:
            positive("epochs", self.epochs, "One epoch reads the corpus once.")
        if self.batch_size is not None:
            whole("batch_size", self.batch_size)
        whole("accumulate", self.accumulate)
        if self.batch_size is not None and self.accumulate > self.batch_size:
            raise invalid(
                "accumulate", self.accumulate, f"<= {setting('batch_size', self.batch_size)}", "Each part needs a row."
            )
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)
        remedy = "It is the share of the steps that train only the head; 0 trains all layers from the start."
        if self.head_share is not None and not probability("head_share", self.head_share, remedy) < 1:
            raise invalid("head_share", self.head_share, "in [0, 1)", remedy)
        if self.head_rate is not None:
            positive("head_rate", self.head_rate, "It multiplies the learning rate of the head.")
        probability("warmup", self.warmup, "It is the share of the steps in which the learning rate rises.")
        if self.weight_decay is not None:
            non_negative("weight_decay", self.weight_decay)
        positive("gradient_norm", self.gradient_norm, "Gradients are clipped to this norm.")
        if self.patience is not None:
            whole("patience", self.patience, 1, "It counts the epochs without improvement before an early stop.")
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        remedy = "It is the decay rate of the moving average of the weights; 0 disables averaging."
        if not probability("averaging", self.averaging, remedy) < 1:
            raise invalid("averaging", self.averaging, "in [0, 1)", remedy)
        probability("momentum", self.momentum, "It is the weight of past gradients in a step.")
        one_of("precision", self.precision, PRECISIONS)

    def completed(self, defaults: TrainDefaults) -> TrainSettings:
        """Return the settings with defaults for those that are None."""
        names = ("epochs", "batch_size", "learning_rate", "weight_decay", "head_share", "head_rate")
        return replace(self, **{n: getattr(defaults, n) for n in names if getattr(self, n) is None})

    @property
    def passes(self) -> float:
        """Number of epochs of completed settings."""
        assert self.epochs is not None
        return self.epochs

    @property
    def size(self) -> int:
        """Batch size of completed settings."""
        assert self.batch_size is not None
        return self.batch_size

    def rate_at(self, step: int, total: int, peak: float) -> float:
        """Return the learning rate of a step: a linear rise over the warm-up, then a linear fall to zero.

        >>> [round(TrainSettings(warmup=0.5).rate_at(s, 4, 1.0), 2) for s in range(4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        rise = round(self.warmup * total)
        if step < rise:
            return peak * (step + 1) / rise
        return peak * (total - step) / max(1, total - rise)
