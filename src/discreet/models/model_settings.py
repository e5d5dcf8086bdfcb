"""The settings of a classifier: encoder, pooling, head and trained parts. Importable without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from discreet.core.errors import invalid, one_of, probability, setting, whole
from discreet.core.settings import option

POOLINGS = ("cls", "mean", "last")
JOINT, SEPARATE = "joint", "separate"  # how pairs of texts are read
PAIRS = (JOINT, SEPARATE)
TRAINABLE = ("head", "pooler+head", "lora", "all")
RANK = 8  # of adapters where none is asked for
TEXTHIDE_HIDDEN = (768, 768, 768)


@dataclass(frozen=True)
class ModelSettings:
    """Encoder, pooling, head, and which parts are trained.

    `embeddings=False` freezes the word, position and type embeddings; `dropout=None` keeps the encoder's own rate.
    """

    encoder: str = field(default="minilm", metadata=option("minilm, bilstm, a folder, or a name on the hub.", "Model"))
    pooling: str = field(default="mean", metadata=option("Pooling of token states: cls, mean or last.", "Model"))
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
        ),
    )
    embeddings: bool = field(
        default=True, metadata=option("Train the embeddings too.", "Model", "yes; no with dp-sgd, dir-dp-sgd")
    )
    pooler: bool | None = field(default=None, metadata=option("Add a dense layer with tanh before the head.", "Model"))
    dropout: float | None = field(
        default=None, metadata=option("Dropout rate.", "Model", "the encoder's; 0 with dp-sgd, dir-dp-sgd")
    )
    max_length: int | None = field(default=None, metadata=option("Truncate texts to this many tokens.", "Model"))
    pairs: str = field(
        default=JOINT,
        metadata=option(
            "Read the texts of a pair as one sequence (joint), or as two vectors that the head compares (separate).",
            "Model",
        ),
    )

    def __post_init__(self) -> None:
        """Reject invalid settings."""
        one_of("pooling", self.pooling, POOLINGS)
        one_of("pairs", self.pairs, PAIRS)
        if self.train not in TRAINABLE and not re.fullmatch(r"(top|lora)-[1-9]\d*", self.train):
            remedy = "N is the number of last blocks, or the rank of the adapters."
            raise invalid("train", self.train, "one of head, pooler+head, top-N, lora, lora-N, all", remedy)
        if self.train == "pooler+head" and self.pooler is False:
            rule = f"left out or true with {setting('train', 'pooler+head')}"
            raise invalid("pooler", False, rule, "The pooler is the trained part.")
        if self.dropout is not None:
            probability("dropout", self.dropout)
        if self.max_length is not None:
            whole("max_length", self.max_length, 3, "The first and the last token are special tokens.")

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
