"""The classifier: an encoder, pooling and a head, and which of its parts are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.core.errors import UnsupportedError, one_of, whole
from discreet.core.randomness import Rng
from discreet.core.task import Task
from discreet.models.base import TextModel, choose_trainable, set_dropout
from discreet.models.encoder import Encoder, assemble, load_encoder, pool
from discreet.models.pairs import (
    LARGEST,
    PAIR_WIDTH,
    SEPARATE,
    pair_features,
    separate,
    start_from_cosine,
    tokens_with_digits,
)
from discreet.models.sequence_classifier import base_of, parts_of, target_of
from discreet.models.settings import TEXTHIDE_HIDDEN
from discreet.models.settings import ModelSettings as ModelSettings

VECTORS = "vectors"  # key of sentence vectors in a batch, instead of tokens


class Labelled(Protocol):
    """Anything with a task and class names, such as a corpus."""

    @property
    def task(self) -> Task:
        """What the model is asked."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The class names, in the order of the labels."""


class Classifier(TextModel):
    """An encoder, an optional pooler and a head, with the tokenizer and the class names."""

    digits: Tensor  # which tokens hold a digit, for pairs that are read separately

    def __init__(
        self,
        encoder: Encoder,
        settings: ModelSettings,
        target: Labelled,
        rng: Rng,
        score_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        """Assemble the parts; new parts are initialized from `rng`.

        The head of pairs that are read separately starts from their cosine; `score_range` are the scores of two texts
        that have nothing in common and of two that are equal, which must be public.
        """
        super().__init__(encoder, settings, target.task, tuple(target.label_names))
        outputs = self.classes or 1
        if settings.pairs == SEPARATE:
            self.width, self.opening = PAIR_WIDTH, self.frame[0] or 0
            table = tokens_with_digits(self.tokenizer.get_vocab(), len(self.tokenizer))
            self.register_buffer("digits", table, persistent=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.fork("head").seed())
            self.head = head(settings.head, self.width, outputs, settings.hidden, self.shift)
            self.pooler: nn.Linear | None = None
            if settings.has_pooler:
                fits = self.width == encoder.width and encoder.pooler is not None
                self.pooler = encoder.pooler if fits else nn.Linear(self.width, self.width)
        if settings.pairs == SEPARATE and self.pooler is None and settings.head != "mlp":
            layers = [layer for layer in self.head.modules() if isinstance(layer, nn.Linear)]
            start_from_cosine(layers[0], self.task, score_range)
        if settings.dropout is not None:
            set_dropout(self, settings.dropout)
        choose_trainable(self.encoder, settings, rng)
        if self.pooler is not None:
            self.pooler.requires_grad_(settings.train != "head")

    @classmethod
    def build(
        cls,
        target: Labelled,
        settings: ModelSettings | None = None,
        *,
        rng: Rng,
        download: bool = False,
        score_range: tuple[float, float] = (0.0, 1.0),
        **changes: Any,
    ) -> Classifier:
        """Return a classifier for the task of a corpus; settings may be passed by name."""
        settings = settings or ModelSettings(**changes)
        return cls(load_encoder(settings.encoder, rng=rng, download=download), settings, target, rng, score_range)

    @classmethod
    def from_transformers(cls, network: Any, tokenizer: Any) -> Classifier:
        """Return an `AutoModelForSequenceClassification` of transformers as a classifier that shares its weights.

        It can be trained, evaluated and attacked here; `save_pretrained` of `discreet.models.pretrained` writes it
        back. A model of another structure than the common families is rejected by name. What is trained stays what it
        is: weights with `requires_grad`.

        Differs: dropout between the layers behind the encoder is left out.
        """
        network = base_of(network)
        target = target_of(network)
        parts = parts_of(network, tokenizer)
        flags = {weight: weight.requires_grad for weight in network.parameters()}
        settings = ModelSettings(type(network).__name__, pooling=parts.pooling, pooler=parts.pooler is not None)
        known = assemble(settings.encoder, parts.encoder, tokenizer, "")
        encoder = Encoder(
            known.name, known.module, parts.pooler, known.tokenizer, known.width, known.max_length, known.fingerprint
        )
        model = cls(encoder, settings, target, Rng(0))
        model.head = parts.head
        for weight, trained in flags.items():
            weight.requires_grad_(trained)
        object.__setattr__(model, "network", network)  # its parts are registered once, as encoder, pooler and head
        return model.train(network.training)

    @property
    def shift(self) -> float:
        """What is added to the features of pairs, so that all are positive, if the head reads absolute values."""
        return LARGEST if self.settings.pairs == SEPARATE and self.settings.head == ABSOLUTE else 0.0

    def replace_head(self, width: int, rng: Rng) -> None:
        """Replace the head by a new one for vectors of another width."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.seed())
            new_head = head(self.settings.head, width, self.classes or 1, self.settings.hidden, self.shift)
        self.head = new_head.to(self.device)

    def represent(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return one vector per text, (batch, width): those of the batch, or pooled from the encoder's states.

        For pairs that are read separately, it holds the features of the two vectors.
        """
        if VECTORS in inputs:
            return inputs[VECTORS]
        if self.settings.pairs == SEPARATE:
            return self._compare(separate(inputs, self.opening))
        return pool(self.states(inputs), inputs["attention_mask"], self.settings.pooling)

    def _compare(self, texts: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]) -> Tensor:
        """Return the features of pairs, all of them positive if the head reads absolute values."""
        layers = [self.encoder(**text, output_hidden_states=True).hidden_states for text in texts]
        states = [(one[0], one[-2], one[-1]) for one in layers]
        vectors = [
            pool(one[-1], text["attention_mask"], self.settings.pooling)
            for one, text in zip(states, texts, strict=True)
        ]
        with torch.autocast(self.device.type, enabled=False):
            return pair_features(texts, states, vectors, self.digits) + self.shift

    def decide(self, vectors: Tensor) -> Tensor:
        """Return class scores, (batch, classes), or numbers, (batch, 1), from sentence vectors."""
        if self.pooler is not None:
            vectors = torch.tanh(self.pooler(vectors))
        scores: Tensor = self.head(vectors)
        return scores

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return class scores or numbers from tokens or sentence vectors."""
        return self.decide(self.represent(inputs))

    def losses(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Return one loss per example: cross entropy (hard or soft labels) or squared error."""
        return losses(self(inputs), targets, self.task)


_AT_GRADIENT = "A language model has no sentence vectors; protect its gradients, with dp-sgd or dir-dp-sgd."


def classifier_of(model: TextModel, what: str, remedy: str = _AT_GRADIENT) -> Classifier:
    """Return a model as a classifier, for what needs its sentence vectors, or reject it."""
    if not isinstance(model, Classifier):
        raise UnsupportedError(f"Expected a Classifier for {what}, got {type(model).__name__}. {remedy}")
    return model


def losses(scores: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return one loss per example in float32."""
    if Task(task).has_classes:
        return F.cross_entropy(scores.float(), targets, reduction="none")
    return (scores.float().squeeze(-1) - targets).square()


ABSOLUTE = "absolute"
HEADS = ("linear", "mlp", ABSOLUTE)


class Absolute(nn.Module):
    """The absolute value of every coordinate, which a sign mask does not change, less a public constant."""

    def __init__(self, shift: float = 0.0) -> None:
        """Keep the constant."""
        super().__init__()
        self.shift = shift

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the absolute values, less the constant."""
        return vectors.abs() - self.shift


def head(
    kind: str, width: int, outputs: int, hidden: tuple[int, ...] = TEXTHIDE_HIDDEN, shift: float = 0.0
) -> nn.Module:
    """Return a linear head, one on absolute values less `shift`, or an MLP with hidden layers of these sizes.

    Paper: Huang et al. 2020, TextHide, uses three hidden layers of 768.

    >>> sum(p.numel() for p in head("linear", 384, 2).parameters())
    770
    """
    one_of("head", kind, HEADS)
    whole("outputs", outputs)
    if kind == "linear":
        return nn.Linear(width, outputs)
    if kind == ABSOLUTE:
        return nn.Sequential(Absolute(shift), nn.Linear(width, outputs))
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, whole("hidden", size)), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, outputs))
