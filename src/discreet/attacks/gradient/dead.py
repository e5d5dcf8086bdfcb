"""Finds the numbers in a model whose gradient is zero for every text, such as the biases of attention's keys.

Softmax does not change if the same number is added to all its inputs, and a key's bias does just that. What a client
sends for it is rounding, or noise alone: it tells nothing of the text, but it does tell how large the noise is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from discreet.models.classifier import Classifier

_TEXTS, _LENGTH = 4, 7
_CANCELLED = 1e-4  # of the sum of absolute values is left: rounding leaves 1e-6, other numbers nearly all


def alive_masks(model: Classifier, words: Tensor) -> dict[str, Tensor]:
    """Return, for each bias of the encoder that has dead numbers, which of its numbers are alive.

    A few random texts are sent through the model. A number is dead if its output gradients, which are there, always
    cancel over the tokens of a text. Nothing private is looked at.
    """
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(len(words), (_TEXTS, _LENGTH), generator=source).to(words.device)
    kept: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def keep(_module: nn.Module, _given: object, returned: Tensor) -> None:
            kept[name] = returned

        return keep

    handles = [
        module.register_forward_hook(keeper(f"encoder.{name}.bias"))
        for name, module in model.encoder.named_modules()
        if isinstance(getattr(module, "bias", None), nn.Parameter) and not isinstance(module, nn.LayerNorm)
    ]
    inputs = {"inputs_embeds": words[ids].requires_grad_(), "attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in model.tokenizer.model_input_names:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    try:
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            scores = model(inputs)
            weights = torch.randn(scores.shape, generator=source).to(scores)
            found: Any = torch.autograd.grad((scores * weights).sum(), list(kept.values()), allow_unused=True)

    finally:
        for handle in handles:
            handle.remove()
    masks: dict[str, Tensor] = {}
    for name, grad in zip(kept, found, strict=True):
        if grad is None:
            continue
        rows = grad.reshape(_TEXTS, -1, grad.shape[-1])
        left, whole = rows.sum(1).abs().amax(0), rows.abs().sum(1).amax(0)
        alive = (left > _CANCELLED * whole) | (whole == 0)
        if not bool(alive.all()):
            masks[name] = alive
    return masks
