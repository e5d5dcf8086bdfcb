"""The outputs of a model on texts, as the arrays that membership attacks read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.attacks.membership.signals import Outputs, TokenScores
from discreet.core.device import autocast
from discreet.core.errors import DataError
from discreet.data.batches import Tokens, Vectors
from discreet.models.base import TextModel
from discreet.models.classifier import Classifier, classifier_of
from discreet.models.language_model import LanguageModel
from discreet.training.evaluate import by_length, represent

_TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}  # a language model scores its whole vocabulary for each token
_ROWS_AT_ONCE = 256

Floats = npt.NDArray[np.float64]


def outputs_of(model: TextModel, rows: Tokens | Vectors, precision: str = "float32") -> Outputs:
    """Return the losses and confidences of a model on texts with their true labels.

    Guarantee: none for the texts; that of the model does not change, as this is post-processing.
    """
    if isinstance(model, LanguageModel):
        assert isinstance(rows, Tokens)
        scores = token_scores(model, rows, precision=precision)
        losses = -(scores.target * scores.real).sum(axis=1) / scores.real.sum(axis=1)
        return Outputs(losses, -losses)
    classifier = classifier_of(model, "membership")
    answers = _answers(classifier, rows, precision)
    targets = rows.targets.cpu().numpy()
    if classifier.task == "regression":
        losses = np.square(answers[:, 0] - targets)
        return Outputs(losses, -losses)
    return classified(answers, targets)


def classified(log_probabilities: Floats, labels: npt.NDArray[np.int64]) -> Outputs:
    """Return the outputs of a classifier from its log-probabilities, (..., examples, classes), and the true classes.

    The confidence log p - log(1 - p) is computed from the other classes' probabilities, so that it keeps its precision
    for p near 1.

    >>> one = classified(np.log(np.array([[0.9, 0.1]])), np.array([0]))
    >>> round(float(one.logits[0]), 4), round(float(one.losses[0]), 4)
    (2.1972, 0.1054)
    """
    at = np.broadcast_to(labels[:, None], (*log_probabilities.shape[:-1], 1))
    own = np.take_along_axis(log_probabilities, at, axis=-1)[..., 0]
    others = log_probabilities.copy()
    np.put_along_axis(others, at, -np.inf, axis=-1)
    largest = others.max(axis=-1)
    rest = largest + np.log(np.exp(others - largest[..., None]).sum(axis=-1))
    return Outputs(-own, own - rest, np.exp(log_probabilities))


@torch.inference_mode()
def _answers(model: Classifier, rows: Tokens | Vectors, precision: str) -> Floats:
    """Return log-probabilities of the classes, or scores, in float64."""
    was_training = model.training
    model.eval()
    with autocast(model.device, precision):
        vectors = rows.vectors if isinstance(rows, Vectors) else represent(model, rows, precision)
    parts: list[Tensor] = []
    for part in torch.split(vectors, _ROWS_AT_ONCE):
        inputs = part if model.query is None else model.query(part)
        scores = model.decide(inputs.float()).double()
        if model.task == "classification":
            scores = scores.log_softmax(dim=-1)
            if inputs.ndim > 2:  # several views of a text, whose predictions are averaged
                scores = scores.logsumexp(dim=0) - float(np.log(len(scores)))
        elif inputs.ndim > 2:
            scores = scores.mean(dim=0)
        parts.append(scores.cpu())
    model.train(was_training)
    return torch.cat(parts).numpy()


@torch.inference_mode()
def token_scores(
    model: LanguageModel, tokens: Tokens, pretrained: LanguageModel | None = None, precision: str = "float32"
) -> TokenScores:
    """Return the log-probability of every true token under a language model, and under the model it started from.

    A model of another vocabulary is rejected: its probabilities are not those of the same tokens.

    Guarantee: none for the texts; that of the model does not change, as this is post-processing.
    """
    if pretrained is not None:
        check_same_tokens(model, pretrained)
    width = int(tokens.columns["input_ids"].shape[1])  # on a GPU, batches are padded beyond the longest text
    target = np.zeros((len(tokens), width))
    hits, real = np.zeros(target.shape, dtype=bool), np.zeros(target.shape, dtype=bool)
    before = None if pretrained is None else np.zeros(target.shape)
    for rows in by_length(tokens.lengths, _TOKENS_AT_ONCE[model.device.type]):
        values, best, mask = _token_scores(model, tokens, rows, precision)
        columns = min(values.shape[1], width)  # on a GPU batches are padded to fixed lengths
        target[rows, :columns], hits[rows, :columns] = values[:, :columns], best[:, :columns]
        real[rows, :columns] = mask[:, :columns]
        if before is not None and pretrained is not None:
            before[rows, :columns] = _token_scores(pretrained, tokens, rows, precision)[0][:, :columns]
    return TokenScores(target, hits, real, before)


def _token_scores(
    model: LanguageModel, tokens: Tokens, rows: npt.NDArray[np.int64], precision: str
) -> tuple[Floats, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    was_training = model.training
    model.eval()
    with autocast(model.device, precision):
        scores, targets, mask = model.token_scores(tokens.batch(rows).inputs)
    model.train(was_training)
    logs = scores.float().log_softmax(dim=-1)
    values = logs.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1).double() * mask
    hits = (scores.argmax(dim=-1) == targets) & mask
    return values.cpu().numpy(), hits.cpu().numpy(), mask.bool().cpu().numpy()


def check_same_tokens(model: TextModel, other: TextModel) -> None:
    """Reject a model that reads texts as other tokens than the target does."""
    if model.tokenizer.get_vocab() != other.tokenizer.get_vocab() or model.frame != other.frame:
        raise DataError(
            f"Expected a reference with the tokenizer of the target ({len(model.tokenizer):,} tokens), got another "
            f"({len(other.tokenizer):,} tokens). Use the model that the target was fine-tuned from."
        )


def stacked(outputs: Sequence[Outputs]) -> Outputs:
    """Return the outputs of several models as one, with a row for each."""
    probabilities = [one.probabilities for one in outputs if one.probabilities is not None]
    return Outputs(
        np.stack([one.losses for one in outputs]),
        np.stack([one.logits for one in outputs]),
        np.stack(probabilities) if len(probabilities) == len(outputs) else None,
    )
