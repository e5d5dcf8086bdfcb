"""The parts of a sequence classifier of transformers: encoder, pooling and the layers behind it.

Each family of transformers writes them anew. The parts are found by name, put together in the order that the families
use, and accepted only if they give the scores of the model itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.errors import UnsupportedError
from discreet.core.task import Task
from discreet.models.encoder import pool

_SAME = 1e-4


_PROBE = 5  # tokens of the longer of two texts with which the parts are tried


@dataclass(frozen=True)
class Parts:
    """The parts of a sequence classifier: how states are pooled, an optional dense layer with tanh, and the rest."""

    encoder: nn.Module
    pooling: str
    pooler: nn.Linear | None
    head: nn.Module

    def scores(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the class scores that these parts give."""
        vectors = pool(self.encoder(**inputs).last_hidden_state, inputs["attention_mask"], self.pooling)
        scores: Tensor = self.head(vectors if self.pooler is None else torch.tanh(self.pooler(vectors)))
        return scores


@dataclass(frozen=True)
class Target:
    """What a sequence classifier predicts, from its configuration."""

    task: Task
    label_names: tuple[str, ...]


def base_of(network: Any) -> Any:
    """Return the model of transformers behind a model of peft, with the adapters in it, or the model itself."""
    return network.get_base_model() if hasattr(network, "get_base_model") else network


def target_of(network: Any) -> Target:
    """Return what a sequence classifier predicts, or reject several labels for one text."""
    config = network.config
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise UnsupportedError(
            f"Expected one label for each text, got {type(network).__name__} with multi_label_classification. Train it "
            "in your own loop with discreet.make_private."
        )
    if config.num_labels == 1:
        return Target(Task.REGRESSION, ())
    names = {int(number): str(label) for number, label in config.id2label.items()}
    return Target(Task.CLASSIFICATION, tuple(names[number] for number in range(config.num_labels)))


def parts_of(network: Any, tokenizer: Any) -> Parts:
    """Return the parts of a sequence classifier that give its scores, or reject it by name."""
    inputs = probe(network, tokenizer)
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            wanted = network(**inputs).logits
            for parts in _candidates(network):
                scores = parts.scores(inputs)
                if scores.shape == wanted.shape and same_scores(scores, wanted):
                    return parts
    finally:
        network.train(training)
    raise UnsupportedError(
        f"Expected a sequence classifier built like BERT, DistilBERT, RoBERTa, ELECTRA, ALBERT, DeBERTa, ModernBERT, "
        f"GPT-2 or Llama, got {type(network).__name__}. Train it in your own loop with discreet.make_private."
    )


def same_scores(scores: Tensor, wanted: Tensor) -> bool:
    """Return whether two computations of the same scores agree up to rounding."""
    return float((scores - wanted).abs().max()) <= _SAME * float(wanted.abs().max())


def probe(network: Any, tokenizer: Any) -> dict[str, Tensor]:
    """Return two texts of different length, made of ordinary tokens."""
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in range(min(len(tokenizer), 200)) if token not in special][-_PROBE:]
    device = next(network.parameters()).device
    pad = network.config.pad_token_id
    pad = tokenizer.pad_token_id if pad is None else pad
    if network.config.pad_token_id is None:
        network.config.pad_token_id = pad  # else models that pool the last token reject two texts at once
    ids = torch.tensor([ordinary, [*ordinary[:-2], pad, pad]], device=device)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _candidates(network: Any) -> Iterator[Parts]:
    """Yield the ways in which the families of transformers put a classifier behind an encoder."""
    encoder = without_pooler(network.base_model)
    dense = _dense(getattr(network.base_model, "pooler", None))
    last, score = (unwrapped(getattr(network, name, None)) for name in ("classifier", "score"))
    if isinstance(score, nn.Linear):
        yield Parts(encoder, "last", None, score)
    if isinstance(last, nn.Linear):
        if dense is not None:  # BERT, ALBERT
            yield Parts(encoder, "cls", dense, last)
        if isinstance(getattr(network, "pre_classifier", None), nn.Linear):  # DistilBERT
            yield Parts(encoder, "cls", None, nn.Sequential(network.pre_classifier, nn.ReLU(), last))
        own = _dense(getattr(network, "pooler", None))
        if own is not None:  # DeBERTa
            yield Parts(encoder, "cls", None, nn.Sequential(own, nn.GELU(), last))
        for pooling in ("cls", "mean"):
            if isinstance(getattr(network, "head", None), nn.Module):  # ModernBERT
                yield Parts(encoder, pooling, None, nn.Sequential(network.head, last))
            yield Parts(encoder, pooling, None, last)
    elif (first := _dense(last)) is not None and isinstance(second := getattr(last, "out_proj", None), nn.Linear):
        yield Parts(encoder, "cls", first, second)  # RoBERTa
        yield Parts(encoder, "cls", None, nn.Sequential(first, nn.GELU(), second))  # ELECTRA


def unwrapped(part: Any) -> Any:
    """Return the layer that peft trains in place of a part, or the part itself."""
    trained = getattr(part, "modules_to_save", None)
    return next(iter(trained.values())) if isinstance(trained, nn.ModuleDict) and len(trained) else part


def _dense(part: Any) -> nn.Linear | None:
    found = part if isinstance(part, nn.Linear) else getattr(part, "dense", None)
    return found if isinstance(found, nn.Linear) else None


def without_pooler(module: Any) -> nn.Module:
    """Return a network that shares all parts but its pooler, which stays where it is in the other one."""
    shell: nn.Module = copy.copy(module)
    shell._modules = dict(module._modules)
    if "pooler" in shell._modules:
        shell._modules["pooler"] = None
    return shell
