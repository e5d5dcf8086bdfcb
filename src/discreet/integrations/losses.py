"""One loss for each row of a batch, for the tasks of Hugging Face models.

A model's own loss is a mean over all tokens of a batch, in which no row has a loss of its own. Here each row's loss is
the mean over its own labels, so a long row weighs as much as a short one. Labels of -100 are left out, as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from discreet.core.errors import UnsupportedError, setting

IGNORED = -100
RowLosses = Callable[[nn.Module, Mapping[str, Any]], Tensor]


def task_of(model: nn.Module) -> str:
    """Return the task of a Hugging Face model, also inside PEFT's, by the table of its class; others are rejected."""
    from transformers.models.auto import modeling_auto as auto

    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    name = type(base).__name__
    for task, (kind, _) in _TASKS.items():
        if name in getattr(auto, f"MODEL_FOR_{kind}_MAPPING_NAMES").values():
            return task
    raise UnsupportedError(
        f"Expected a model for {', '.join(_TASKS)}, got {name}. Pass {setting('loss_fn')}: a function of the model and "
        "its inputs that returns one loss for each row."
    )


def row_losses(task: str) -> RowLosses:
    """Return the function from a model and its inputs, with labels, to one loss for each row."""
    return _TASKS[task][1]


def mean_over_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """Return each row's mean cross-entropy over its labels; zero for a row without labels.

    >>> import torch
    >>> mean_over_tokens(torch.zeros(2, 3, 4), torch.tensor([[1, -100, 2], [-100, -100, -100]])).tolist()
    [1.3862943649291992, 0.0]
    """
    losses = F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return losses.sum(1) / labels.ne(IGNORED).sum(1).clamp_min(1)


def _split(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
    if "labels" not in inputs:
        raise UnsupportedError(
            f"Expected labels in every batch, got {', '.join(inputs)}. Add a column 'labels', or a collator that makes "
            "labels."
        )
    return {name: value for name, value in inputs.items() if name != "labels"}, inputs["labels"]


def _sequence_losses(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    given, labels = _split(inputs)
    logits: Tensor = model(**given).logits.float()
    kind = model.config.problem_type  # type: ignore[union-attr]
    if kind == "regression" or (kind is None and logits.shape[1] == 1):
        return (logits - labels.float().view_as(logits)).square().mean(1)
    if kind == "multi_label_classification" or labels.is_floating_point():
        return F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(1)
    return F.cross_entropy(logits, labels.view(-1), reduction="none")


def _token_losses(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    given, labels = _split(inputs)
    return mean_over_tokens(model(**given).logits, labels)


def _causal_losses(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    given, labels = _split(inputs)
    return mean_over_tokens(model(**given).logits[:, :-1], labels[:, 1:])


def _seq2seq_losses(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    given, labels = _split(inputs)
    if "decoder_input_ids" not in given:
        given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)  # type: ignore[operator]
    return mean_over_tokens(model(**given).logits, labels)


_TASKS: dict[str, tuple[str, RowLosses]] = {  # with the names of their tables in transformers
    "sequence classification": ("SEQUENCE_CLASSIFICATION", _sequence_losses),
    "token classification": ("TOKEN_CLASSIFICATION", _token_losses),
    "causal LM": ("CAUSAL_LM", _causal_losses),
    "masked LM": ("MASKED_LM", _token_losses),
    "seq2seq LM": ("SEQ_TO_SEQ_CAUSAL_LM", _seq2seq_losses),
}
