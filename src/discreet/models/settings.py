"""The settings of a classifier and of the training loop. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from discreet.core.errors import invalid, setting
from discreet.core.rules import NonNegative, OneOf, Pattern, Positive, Probability, Whole, check_fields, ruled
from discreet.core.settings import option, option_field

POOLINGS = ("cls", "mean", "last")
JOINT, SEPARATE = "joint", "separate"  # how pairs of texts are read
PAIRS = (JOINT, SEPARATE)
LAYERS = Pattern(
    "head|pooler[+]head|(top|lora)-[1-9][0-9]*|lora|all",
    "one of head, pooler+head, top-N, lora, lora-N, all",
    "N is the number of last blocks, or the rank of the adapters.",
)
RANK = 8  # of adapters where none is asked for
TEXTHIDE_HIDDEN = (768, 768, 768)
PRECISIONS = ("auto", "float32", "bf16")
OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True)
class ModelSettings:
    """Encoder, pooling, head, and which parts are trained.

    `embeddings=False` freezes the word, position and type embeddings; `dropout=None` keeps the encoder's own rate.

    Args:
        encoder: minilm, bilstm, a folder, or a name on the hub.
        pooling: Pooling of token states: cls, mean or last.
        head: linear, mlp or absolute. By default linear; depends on the protection.
        hidden: Widths of the hidden layers of an mlp head.
        train: Part to train: head, pooler+head, top-N (the last N blocks), lora (adapters), or all. By default all;
            with most protections, head.
        embeddings: Train the embeddings too. By default yes; no with dp-sgd, dir-dp-sgd.
        pooler: Add a dense layer with tanh before the head.
        dropout: Dropout rate. By default the encoder's; 0 with dp-sgd, dir-dp-sgd.
        max_length: Truncate texts to this many tokens.
        pairs: Read the texts of a pair as one sequence (joint), or as two vectors that the head compares (separate).

    >>> ModelSettings("minilm", train="head").frozen
    True
    """

    encoder: str = field(default="minilm", metadata=option("minilm, bilstm, a folder, or a name on the hub.", "Model"))
    pooling: str = field(
        default="mean", metadata=option("Pooling of token states: cls, mean or last.", "Model", rule=OneOf(POOLINGS))
    )
    head: str = field(
        default="linear", metadata=option("linear, mlp or absolute.", "Model", "linear; depends on the protection")
    )
    hidden: tuple[int, ...] = TEXTHIDE_HIDDEN
    train: str = field(
        default="all",
        metadata=option(
            "Part to train: head, pooler+head, top-N (the last N blocks), lora (adapters), or all.",
            "Model",
            "all; with most protections, head",
            LAYERS,
        ),
    )
    embeddings: bool = field(
        default=True, metadata=option("Train the embeddings too.", "Model", "yes; no with dp-sgd, dir-dp-sgd")
    )
    pooler: bool | None = field(default=None, metadata=option("Add a dense layer with tanh before the head.", "Model"))
    dropout: float | None = field(
        default=None,
        metadata=option("Dropout rate.", "Model", "the encoder's; 0 with dp-sgd, dir-dp-sgd", Probability()),
    )
    max_length: int | None = option_field(
        None,
        "Truncate texts to this many tokens.",
        "Model",
        rule=Whole(3, "The first and the last token are special tokens."),
    )
    pairs: str = field(
        default=JOINT,
        metadata=option(
            "Read the texts of a pair as one sequence (joint), or as two vectors that the head compares (separate).",
            "Model",
            rule=OneOf(PAIRS),
        ),
    )

    def __post_init__(self) -> None:
        """Reject invalid settings."""
        check_fields(self)
        if self.train == "pooler+head" and self.pooler is False:
            rule = f"left out or true with {setting('train', 'pooler+head')}"
            raise invalid("pooler", False, rule, "The pooler is the trained part.")

    @property
    def has_pooler(self) -> bool:
        """Whether there is a dense layer with tanh before the head; by default only if it is trained."""
        return self.train == "pooler+head" if self.pooler is None else self.pooler

    @property
    def rank(self) -> int | None:
        """The rank of the adapters that are trained, or None where there are none.

        >>> ModelSettings(train="lora").rank, ModelSettings(train="lora-4").rank, ModelSettings(train="all").rank
        (8, 4, None)
        """
        if not self.train.startswith("lora"):
            return None
        return int(self.train.removeprefix("lora").removeprefix("-") or RANK)

    @property
    def frozen(self) -> bool:
        """Whether the encoder is frozen, so that its outputs can be computed once."""
        return self.train in {"head", "pooler+head"}


@dataclass(frozen=True)
class TrainDefaults:
    """Default settings of a training run; docs/decisions has the measurements."""

    epochs: float
    batch_size: int
    learning_rate: float
    weight_decay: float
    dropout: float | None
    embeddings: bool
    head_share: float = 0.0
    head_rate: float = 1.0


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training loop; None selects a default that depends on the trained part, protection and size.

    `head_rate` multiplies the learning rate of the head and the pooler, which start untrained.

    Args:
        epochs: Passes over the text. By default 3; 8 for few pairs; 20 for the head; depends on the protection.
        batch_size: Rows in a batch; with dp-sgd, the expected number of units. By default 32; depends on the
            protection.
        learning_rate: Highest learning rate. By default depends on what is trained and on the protection.
        head_share: Share of the steps that train only the head, before all layers. By default 0; 0.2 with dp-sgd.
        head_rate: Learning rate of the head, as a multiple of the encoder's. By default 1; 10 for few pairs,
            unprotected.
        warmup: Share of the steps in which the learning rate rises.
        weight_decay: Weight decay of matrices. By default 0.01; 0 with dp-sgd, dir-dp-sgd.
        optimizer: adamw or sgd.
        momentum: Momentum of sgd, and the first beta of adamw.
        averaging: Decay rate of the moving average of the weights, in [0, 1); 0 disables averaging.
        gradient_norm: Without a protection of gradients, the gradient of a batch is clipped to this norm.
        accumulate: Read each batch in this many parts, to save memory.
        patience: Stop after this many epochs without improvement.
        precision: auto (bf16 on a GPU, else float32), float32 or bf16.

    >>> TrainSettings(epochs=5, batch_size=64).epochs
    5
    """

    epochs: float | None = option_field(
        None,
        "Passes over the text.",
        "Training",
        "3; 8 for few pairs; 20 for the head; depends on the protection",
        rule=Positive("One epoch reads the corpus once."),
    )
    batch_size: int | None = option_field(
        None,
        "Rows in a batch; with dp-sgd, the expected number of units.",
        "Training",
        "32; depends on the protection",
        rule=Whole(),
    )
    learning_rate: float | None = option_field(
        None,
        "Highest learning rate.",
        "Training",
        "depends on what is trained and on the protection",
        rule=Positive(),
    )
    head_share: float | None = option_field(
        None,
        "Share of the steps that train only the head, before all layers.",
        "Training",
        "0; 0.2 with dp-sgd",
        rule=Probability(
            "It is the share of the steps that train only the head; 0 trains all layers from the start.", below_one=True
        ),
    )
    head_rate: float | None = option_field(
        None,
        "Learning rate of the head, as a multiple of the encoder's.",
        "Training",
        "1; 10 for few pairs, unprotected",
        rule=Positive("It multiplies the learning rate of the head."),
    )
    warmup: float = option_field(
        0.06,
        "Share of the steps in which the learning rate rises.",
        "Training",
        rule=Probability("It is the share of the steps in which the learning rate rises."),
    )
    weight_decay: float | None = option_field(
        None, "Weight decay of matrices.", "Training", "0.01; 0 with dp-sgd, dir-dp-sgd", rule=NonNegative()
    )
    optimizer: str = option_field("adamw", "adamw or sgd.", "Training", rule=OneOf(OPTIMIZERS))
    momentum: float = ruled(0.9, Probability("It is the weight of past gradients in a step."))
    averaging: float = ruled(
        0.0,
        Probability("It is the decay rate of the moving average of the weights; 0 disables averaging.", below_one=True),
    )
    gradient_norm: float = ruled(1.0, Positive("Gradients are clipped to this norm."))
    accumulate: int = option_field(1, "Read each batch in this many parts, to save memory.", "Training", rule=Whole())
    patience: int | None = option_field(
        None,
        "Stop after this many epochs without improvement.",
        "Training",
        rule=Whole(1, "It counts the epochs without improvement before an early stop."),
    )
    precision: str = option_field(
        "auto", "auto (bf16 on a GPU, else float32), float32 or bf16.", "Training", rule=OneOf(PRECISIONS)
    )

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        check_fields(self)
        if self.batch_size is not None and self.accumulate > self.batch_size:
            raise invalid(
                "accumulate", self.accumulate, f"<= {setting('batch_size', self.batch_size)}", "Each part needs a row."
            )

    def completed(self, defaults: TrainDefaults) -> TrainSettings:
        """Return the settings with defaults for those that are None.

        Args:
            defaults: The defaults for the settings that are None.
        """
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

        Args:
            step: The step, from 0.
            total: The number of steps.
            peak: The highest learning rate.

        >>> [round(TrainSettings(warmup=0.5).rate_at(s, 4, 1.0), 2) for s in range(4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        rise = round(self.warmup * total)
        if step < rise:
            return peak * (step + 1) / rise
        return peak * (total - step) / max(1, total - rise)
