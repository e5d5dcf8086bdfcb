"""LoRA: low-rank adapters beside frozen linear layers, so that few weights are trained (extra `lora`).

Paper: Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models.
Differs: no dropout before the adapters, and a fixed scale of two over the rank's share, as noise leaves little to tune.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from discreet.core.errors import ExtraError, UnsupportedError, setting
from discreet.core.randomness import Rng
from discreet.models.encoder import layers_of

_SCALE = 2  # what the adapters add is multiplied by this, whatever their rank


def add_lora(encoder: nn.Module, rank: int, rng: Rng) -> None:
    """Freeze a transformer and put adapters of a rank beside its attention layers, in place.

    The model computes the same as before until they are trained. Which layers get adapters is peft's choice for the
    kind of model (queries and values for most), or all linear layers of its blocks for a kind that peft does not know.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS
    except ImportError:
        raise ExtraError(
            f"Expected the package peft for {setting('train', 'lora')}. Install it: pip install 'discreet[lora]'."
        ) from None
    encoder.requires_grad_(False)
    config: Any = encoder.config
    targets = TARGETS.get(getattr(config, "model_type", "")) or _linear_layers(encoder)
    if not targets:
        raise UnsupportedError(
            f"Expected a transformer with linear layers for LoRA, found none in {type(encoder).__name__}. Use "
            f"{setting('train', 'all')}."
        )
    turned = any(type(module).__name__ == "Conv1D" for module in encoder.modules())
    asked = LoraConfig(
        r=rank, lora_alpha=_SCALE * rank, target_modules=targets, lora_dropout=0.0, fan_in_fan_out=turned
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.manual_seed(rng.fork("lora").seed())
        inject_adapter_in_model(asked, encoder)


def is_adapter(name: str) -> bool:
    """Return whether a parameter of this name belongs to an adapter.

    >>> is_adapter("encoder.layer.0.query.lora_A.default.weight"), is_adapter("encoder.layer.0.query.base_layer.weight")
    (True, False)
    """
    return ".lora_A." in name or ".lora_B." in name


def merged(module: nn.Module) -> nn.Module:
    """Return a copy of a network in which every adapter is added to the layer that it stands beside."""
    found = copy.deepcopy(module)
    for name, part in list(found.named_modules()):
        if hasattr(part, "lora_A"):
            part.merge()
            parent, _, last = name.rpartition(".")
            setattr(found.get_submodule(parent), last, part.get_base_layer())
    for attribute in ("peft_config", "_hf_peft_config_loaded"):  # what injection left in the network
        if attribute in vars(found):
            delattr(found, attribute)
    return found


def _linear_layers(encoder: nn.Module) -> list[str]:
    inside = {part for block in layers_of(encoder) for part in block.modules() if isinstance(part, nn.Linear)}
    return [name for name, part in encoder.named_modules() if part in inside]
