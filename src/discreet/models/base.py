"""The contract of a model that is trained on text: a tokenizer, a transformer, and one loss for each text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from discreet.core.errors import invalid
from discreet.core.randomness import Rng
from discreet.models.encoder import Encoder, layers_of
from discreet.models.lora import add_lora
from discreet.models.model_settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HEAD_NAMES = ("head.", "pooler.")  # how the names of parameters behind the encoder begin
LM = "lm"  # the task of a language model; those of a classifier are classification and regression


class TextModel(nn.Module):
    """What training, gradients and attacks need of a model.

    `encoder` is the transformer without what stands behind it, and `head` is what stands behind it. `max_length` is the
    length of the longest text in tokens, `width` the length of a hidden state. `fingerprint` tells the weights apart
    that the model starts from. `start` and `end` are the tokens that the model reads before and after every text, where
    its tokenizer does not add them. `unread` is the number of tokens at the end of a text that are only predicted: the
    encoder's gradient does not depend on what it computes from them.
    """

    encoder: nn.Module
    head: nn.Module
    tokenizer: PreTrainedTokenizerBase
    start: int | None = None
    end: int | None = None
    unread: int = 0

    def __init__(self, encoder: Encoder, settings: ModelSettings, task: str, label_names: tuple[str, ...] = ()) -> None:
        """Take the transformer and what is known about it; a subclass adds the head."""
        super().__init__()
        self.settings = settings
        self.task = task
        self.label_names = label_names
        self.tokenizer = encoder.tokenizer
        self.fingerprint = encoder.fingerprint
        self.width = encoder.width
        self.max_length = min(settings.max_length or encoder.max_length, encoder.max_length)
        self.encoder = encoder.module
        # What sentence vectors pass through before the head when the model is asked; a protection may set it.
        self.query: Callable[[Tensor], Tensor] | None = None

    @abstractmethod
    def losses(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Return one loss for each text of a batch."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.head.parameters()).device

    @property
    def classes(self) -> int:
        """The number of classes, 0 for a model without classes."""
        return len(self.label_names) if self.task == "classification" else 0

    @property
    def label_task(self) -> Literal["regression", "unlabelled"] | None:
        """How labels are read for this model: as scores, not at all, or (None) as classes."""
        return "regression" if self.task == "regression" else "unlabelled" if self.task == LM else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the owner should know about this model before it is trained, one sentence each."""
        return ()

    @property
    def frame(self) -> tuple[int | None, int | None]:
        """The tokens that open and close every text the model reads, where there are such."""
        bare = [int(token) for token in self.tokenizer("")["input_ids"]]
        opening = self.start if self.start is not None else bare[0] if bare else None
        return opening, self.end if self.end is not None else bare[-1] if len(bare) > 1 else None

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by name, each one once: those that two layers share under the first name."""
        named = dict(self.named_parameters(remove_duplicate=False))
        first = {id(weight): name for name, weight in reversed(named.items())}
        return {
            name: value
            for name, value in self.state_dict().items()
            if name not in named or first[id(named[name])] == name
        }

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Read what `weights` returned; missing and unknown names raise RuntimeError."""
        missing = sorted(self.weights().keys() ^ weights.keys())
        if missing:
            raise RuntimeError(f"Expected the same names of weights, found a difference in {missing[0]!r}.")
        self.load_state_dict(weights, strict=False)

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the encoder's last hidden states, (batch, tokens, width)."""
        states: Tensor = self.encoder(**inputs).last_hidden_state
        return states


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Disable dropout temporarily."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def set_dropout(module: nn.Module, rate: float) -> None:
    """Set every dropout in a network to a rate, the ones inside attention too."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = rate
        for name in ("dropout_prob", "attention_dropout", "attn_dropout"):  # attention keeps its rate as a number
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, rate)


def choose_trainable(encoder: nn.Module, settings: ModelSettings, rng: Rng) -> None:
    """Mark the weights of an encoder that are trained: none, the last N blocks, all, or adapters that are added."""
    choice = settings.train
    encoder.requires_grad_(choice == "all")
    if settings.rank is not None:
        add_lora(encoder, settings.rank, rng)
    if choice.startswith("top-"):
        blocks = layers_of(encoder)
        count = int(choice.removeprefix("top-"))
        if not blocks or count > len(blocks):
            raise invalid("train", choice, f"top-N with N at most {len(blocks)}", "The encoder has no more blocks.")
        for block in blocks[-count:]:
            block.requires_grad_(True)
    if choice == "all" and not settings.embeddings:
        for part in encoder.modules():
            if isinstance(part, nn.Embedding):
                part.requires_grad_(False)
