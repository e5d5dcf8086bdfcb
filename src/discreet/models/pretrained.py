"""A trained model as a folder that transformers opens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discreet.core.errors import ModelError, UnsupportedError
from discreet.core.files import cannot_write, save_tensors, write_atomic
from discreet.models.base import TextModel
from discreet.models.classifier import Classifier
from discreet.models.encoder import quiet, save_tokenizer
from discreet.models.language_model import LanguageModel
from discreet.models.lora import merged
from discreet.models.sequence_classifier import parts_of

HEAD = "head.safetensors"  # what stands behind the encoder, where transformers has no class for it


def save_pretrained(model: TextModel, folder: Path | str, card: Callable[[str], str] | None = None) -> str:
    """Write a model as a folder that transformers opens, and return the name of the class that opens it.

    Adapters are merged into the layers they stand beside. A classifier for which transformers has no class is written
    as its encoder (`AutoModel`), with what stands behind it in `head.safetensors`. `card` gives the model card for the
    name of that class.

    Guarantee: that of the model, unchanged; writing is post-processing.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ModelError(f"Expected no folder at {str(folder)!r}, or an empty one. Choose another name.")
    kind, network, head = _plain(model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            network.save_pretrained(folder)
            save_tokenizer(model.tokenizer, folder)
        if head:
            save_tensors(head, folder / HEAD, {"format": "pt"})
        if card is not None:
            write_atomic(folder / "README.md", card(kind), private=False)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return kind


def _plain(model: TextModel) -> tuple[str, Any, dict[str, Tensor]]:
    """Return a model as one of transformers: the class that opens it, the network, and what it does not hold."""
    if isinstance(model, LanguageModel) and model.network is not None:
        return "AutoModelForCausalLM", merged(model.network), {}
    network = vars(model).get("network")
    if network is not None:
        return "AutoModelForSequenceClassification", merged(network), {}
    encoder: Any = merged(model.encoder)
    if not hasattr(encoder, "save_pretrained"):
        raise UnsupportedError(
            f"Expected a model of transformers, got {type(encoder).__name__}, which transformers cannot open. Keep the "
            "run folder."
        )
    found = _as_sequence_classifier(model, encoder)
    if found is not None:
        return "AutoModelForSequenceClassification", found, {}
    head = {name: value for name, value in model.weights().items() if not name.startswith("encoder.")}
    return "AutoModel", encoder, head


def _as_sequence_classifier(model: TextModel, encoder: Any) -> Any:
    """Return a classifier as a sequence classifier of transformers, or None where it has no such class."""
    from transformers import AutoModelForSequenceClassification

    if not isinstance(model, Classifier) or model.query is not None:
        return None
    config = copy.deepcopy(encoder.config)
    names = dict(enumerate(model.label_names)) or {0: "score"}
    config.id2label, config.label2id = names, {name: number for number, name in names.items()}
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            network = AutoModelForSequenceClassification.from_config(config)
        parts = parts_of(network, model.tokenizer)
    except (ValueError, UnsupportedError):
        return None
    same = (parts.pooling, parts.pooler is None) == (model.settings.pooling, model.pooler is None)
    ours, theirs = model.head.state_dict(), parts.head.state_dict()
    if not same or {n: v.shape for n, v in ours.items()} != {n: v.shape for n, v in theirs.items()}:
        return None
    parts.encoder.load_state_dict(encoder.state_dict())
    parts.head.load_state_dict(ours)
    if parts.pooler is not None and model.pooler is not None:
        parts.pooler.load_state_dict(model.pooler.state_dict())
    return network
