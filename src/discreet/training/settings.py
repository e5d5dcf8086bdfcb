"""How long, how fast and how exactly to train."""

from __future__ import annotations

from dataclasses import dataclass

from discreet.core.checks import non_negative, one_of, positive, probability, refuse, whole

PRECISIONS = ("auto", "float32", "bf16")
OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True)
class TrainSettings:
    """The settings of the loop; a learning rate of None is chosen by what is trained.

    `head_rate` is how many times as fast the head and the pooler learn, which start from nothing.
    """

    epochs: float = 3.0
    batch_size: int = 32
    learning_rate: float | None = None
    head_rate: float = 1.0
    warmup: float = 0.06
    weight_decay: float = 0.01
    optimizer: str = "adamw"
    momentum: float = 0.9
    averaging: float = 0.0
    gradient_norm: float = 1.0
    accumulate: int = 1
    patience: int | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        positive("epochs", self.epochs, "One epoch reads the corpus once.")
        whole("batch_size", self.batch_size)
        whole("accumulate", self.accumulate)
        if self.accumulate > self.batch_size:
            raise refuse("accumulate", self.accumulate, f"<= batch_size={self.batch_size}", "Each part has a row.")
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)
        positive("head_rate", self.head_rate, "It multiplies the learning rate of the head.")
        probability("warmup", self.warmup, "It is the share of the steps in which the learning rate rises.")
        non_negative("weight_decay", self.weight_decay)
        positive("gradient_norm", self.gradient_norm, "Gradients longer than this are shortened.")
        if self.patience is not None:
            whole("patience", self.patience, 1, "It counts the epochs without improvement before an early stop.")
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        remedy = "It is the share of the past in the averaged weights; 0 keeps the last ones."
        if not probability("averaging", self.averaging, remedy) < 1:
            raise refuse("averaging", self.averaging, "in [0, 1)", remedy)
        probability("momentum", self.momentum, "It is the share of the past in the direction of a step.")
        one_of("precision", self.precision, PRECISIONS)

    def rate_at(self, step: int, total: int, peak: float) -> float:
        """Return the learning rate of a step: a linear rise over the warm-up, then a linear fall to zero.

        >>> [round(TrainSettings(warmup=0.5).rate_at(s, 4, 1.0), 2) for s in range(4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        rise = round(self.warmup * total)
        if step < rise:
            return peak * (step + 1) / rise
        return peak * (total - step) / max(1, total - rise)
