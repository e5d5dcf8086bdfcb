"""Token classifiers of transformers: one class for each token of a text, and one loss for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.core.errors import DataError, UnsupportedError
from discreet.core.task import Task
from discreet.models.base import TextModel
from discreet.models.encoder import assemble
from discreet.models.sequence_classifier import base_of, probe, same_scores, unwrapped, without_pooler
from discreet.models.settings import ModelSettings

_UNLABELLED = -100  # the class of a token that is not asked for, as in transformers


class TokenClassifier(TextModel):
    """An encoder and a linear map from each state to scores of classes; the weights are those of a network.

    A text's loss is the mean over its labelled tokens. A target is the number of a row of `labels`, which holds the
    class of each token of a text, -100 for those that are not asked for; without labels, every token is of class 0.
    """

    labels: Tensor | None

    def __init__(self, network: Any, tokenizer: Any, labels: Sequence[Sequence[int]] | None = None) -> None:
        """Find the parts of an `AutoModelForTokenClassification`, or reject it; what is trained stays what it is."""
        network = base_of(network)
        head = unwrapped(getattr(network, "classifier", None) or getattr(network, "score", None))
        if not isinstance(head, nn.Linear):
            raise _other(network)
        encoder = without_pooler(network.base_model)
        flags = {weight: weight.requires_grad for weight in network.parameters()}
        name = type(network).__name__
        super().__init__(assemble(name, encoder, tokenizer, ""), ModelSettings(name), Task.TOKEN_CLASSIFICATION)
        self.head = head
        object.__setattr__(self, "network", network)  # its parts are registered once, as encoder and head
        for weight, trained in flags.items():
            weight.requires_grad_(trained)
        self.register_buffer("labels", None if labels is None else _table(labels), persistent=False)
        inputs, training = probe(network, tokenizer), network.training
        network.eval()
        with torch.no_grad():
            wanted, scores = network(**inputs).logits, self(inputs)
        network.train(training)
        self.train(training)
        if scores.shape != wanted.shape or not same_scores(scores, wanted):
            raise _other(network)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return scores of the classes at every position, (batch, tokens, classes)."""
        scores: Tensor = self.head(self.states(inputs))
        return scores

    def losses(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Return one loss per text, the mean over its labelled tokens.

        Guarantee: none, a loss and its gradient depend on every token.
        """
        scores, real = self(inputs), inputs["attention_mask"].bool()
        wanted = torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)
        if self.labels is not None:
            rows = self.labels[targets.long()][:, : wanted.shape[1]]
            wanted = F.pad(rows, (0, wanted.shape[1] - rows.shape[1]), value=_UNLABELLED)
        asked = real & (wanted != _UNLABELLED)
        each = F.cross_entropy(scores.float().flatten(0, 1), wanted.clamp_min(0).flatten(), reduction="none")
        return (each.view(wanted.shape) * asked).sum(dim=1) / asked.sum(dim=1).clamp_min(1)


def _table(labels: Sequence[Sequence[int]]) -> Tensor:
    if not all(labels):
        raise DataError("Expected a class for each token of every text, got a text without any.")
    table = torch.full((len(labels), max(map(len, labels))), _UNLABELLED, dtype=torch.int64)
    for row, classes in enumerate(labels):
        table[row, : len(classes)] = torch.tensor(list(classes))
    return table


def _other(network: Any) -> UnsupportedError:
    return UnsupportedError(
        f"Expected a token classifier that scores classes by a linear map of its last states, got "
        f"{type(network).__name__}."
    )
