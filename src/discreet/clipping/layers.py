"""Find the layers of a model that can be clipped, and reject by name what cannot."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from discreet.core.errors import UnsupportedError


class Kind(enum.Enum):
    """Kinds of layers that can be clipped."""

    LINEAR = "Linear"
    CONV1D = "Conv1D"
    EMBEDDING = "Embedding"
    SCALED_EMBEDDING = "an embedding times a constant, like GemmaTextScaledWordEmbedding"
    LAYER_NORM = "LayerNorm"
    RMS_NORM = "RMSNorm"
    SCALE_NORM = "a norm with one weight vector, like LlamaRMSNorm"
    GROUP_NORM = "GroupNorm"
    CONVOLUTION = "Conv1d"
    RECURRENT = "LSTM, GRU, RNN"
    ATTENTION = "MultiheadAttention"
    POSITION_BIAS = "the relative position bias of T5"
    POSITION_TABLE = "the relative position embeddings of DeBERTa-v2"


@dataclass(frozen=True)
class Layer:
    """A layer with trainable parameters: its name in the model, its kind, and the full names of those parameters.

    A tied parameter has one full name, the first that `model.named_parameters()` gives it, in all of its layers.
    `parent` is the module that holds the layer.
    """

    name: str
    module: nn.Module
    kind: Kind
    parameters: dict[str, str]
    parent: nn.Module | None = None


_KINDS: tuple[tuple[type[nn.Module], Kind], ...] = (
    (nn.Linear, Kind.LINEAR),
    (nn.Embedding, Kind.EMBEDDING),
    (nn.LayerNorm, Kind.LAYER_NORM),
    (nn.RMSNorm, Kind.RMS_NORM),
    (nn.GroupNorm, Kind.GROUP_NORM),
    (nn.Conv1d, Kind.CONVOLUTION),
    (nn.LSTM, Kind.RECURRENT),
    (nn.GRU, Kind.RECURRENT),
    (nn.RNN, Kind.RECURRENT),
    (nn.MultiheadAttention, Kind.ATTENTION),
)
_SCALE_NORM_NAMES = ("RMSNorm", "T5LayerNorm")
_REMEDY = "Freeze it with requires_grad_(False), or build it from layers that can be clipped"


def find_layers(model: nn.Module) -> tuple[Layer, ...]:
    """Return the trainable layers of a model, or reject by name what cannot be clipped.

    >>> [layer.name for layer in find_layers(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))]
    ['0', '2']
    >>> find_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    Traceback (most recent call last):
    ...
    discreet.core.errors.UnsupportedError: Expected no batch normalization, got '1' (BatchNorm1d). It mixes the \
examples of a batch, so no example has a gradient of its own; use LayerNorm.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    modules = dict(model.named_modules())
    layers: list[Layer] = []
    rejected: list[tuple[str, nn.Module]] = []
    for name, module in modules.items():
        if isinstance(module, _BatchNorm):
            _check_batch_norm(name, module)
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            raise UnsupportedError(
                f"Expected {name or 'the model'!r} not to be compiled. The layers of a compiled model cannot be "
                "recorded one by one; pass the original model, and capture the whole step as a CUDA graph for speed."
            )
        own = {k: p for k, p in module.named_parameters(recurse=False) if p.requires_grad}
        if not own and not (isinstance(module, nn.MultiheadAttention) and _trains(module)):
            continue
        parent = modules.get(name.rpartition(".")[0]) if name else None
        kind = _kind(name, module, parent)
        if kind is None:
            rejected.append((name, module))
        else:
            layers.append(Layer(name, module, kind, {local: names[id(p)] for local, p in own.items()}, parent))
    _check_rejected(rejected, {name for layer in layers for name in layer.parameters.values()}, names)
    if not layers:
        raise UnsupportedError("Expected a model with trainable parameters, got none. Set requires_grad_(True).")
    return tuple(layers)


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _kind(name: str, module: nn.Module, parent: nn.Module | None) -> Kind | None:
    cls = type(module)
    shown = f"layer {name!r} ({cls.__name__})"
    if "forward" in vars(module):
        raise UnsupportedError(f"Expected {shown} to have the forward of its class, got another. Restore it first.")
    for known, kind in _KINDS:
        # A subclass may do anything in a forward of its own, so only the forward of the known class is accepted.
        if isinstance(module, known) and cls.forward is known.forward:
            _check_options(shown, module)
            return _kind_in(parent, name.rpartition(".")[2]) if kind is Kind.EMBEDDING else kind
    if isinstance(module, nn.Embedding) and _is_transformers(module, "ScaledWordEmbedding"):
        return Kind.SCALED_EMBEDDING
    if cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils":
        return Kind.CONV1D
    own = dict(module.named_parameters(recurse=False))
    if cls.__name__.endswith(_SCALE_NORM_NAMES) and list(own) == ["weight"] and own["weight"].dim() == 1:
        return Kind.SCALE_NORM
    return None


def _kind_in(parent: nn.Module | None, attribute: str) -> Kind:
    """Return the kind of an embedding, which two models apply once for all rows of a batch."""
    if is_t5_attention(parent) and attribute == "relative_attention_bias":
        return Kind.POSITION_BIAS
    if is_deberta_encoder(parent) and attribute == "rel_embeddings":
        return Kind.POSITION_TABLE
    return Kind.EMBEDDING


def is_t5_attention(module: nn.Module | None) -> bool:
    """Return whether a module is an attention layer of T5 or of a model derived from it."""
    return _is_transformers(module, "T5Attention") and hasattr(module, "compute_bias")


def is_deberta_encoder(module: nn.Module | None) -> bool:
    """Return whether a module is the encoder of DeBERTa-v2 or -v3 with relative positions."""
    return _is_transformers(module, "DebertaV2Encoder") and bool(getattr(module, "relative_attention", False))


def _is_transformers(module: nn.Module | None, ending: str) -> bool:
    cls = type(module)
    return cls.__name__.endswith(ending) and cls.__module__.startswith("transformers.models.")


def _check_rejected(rejected: list[tuple[str, nn.Module]], recorded: set[str], names: dict[int, str]) -> None:
    """Raise for a module of an unknown kind, unless all its parameters are tied to layers that can be clipped.

    Such a module, like the head of a masked language model, may hold a parameter and leave its use to another layer.
    Uses of its own are detected in every backward pass.
    """
    for name, module in rejected:
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if any(names[id(parameter)] not in recorded for parameter in own):
            kinds = ", ".join(kind.value for kind in Kind)
            raise UnsupportedError(
                f"Expected layer {name!r} ({type(module).__name__}) to be one of the layers that can be clipped: "
                f"{kinds}. {_REMEDY}."
            )


def _check_options(shown: str, module: nn.Module) -> None:
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None:
            raise UnsupportedError(f"Expected {shown} to have no max_norm. It changes the weights in the forward pass.")
        if module.scale_grad_by_freq:
            raise UnsupportedError(f"Expected {shown} to have no scale_grad_by_freq. It mixes the examples of a batch.")


def _check_batch_norm(name: str, module: nn.Module) -> None:
    trainable = any(p.requires_grad for p in module.parameters(recurse=False))
    if trainable or module.training:
        raise UnsupportedError(
            f"Expected no batch normalization, got {name!r} ({type(module).__name__}). It mixes the examples of a "
            "batch, so no example has a gradient of its own; use LayerNorm."
        )


def modules_with_batch_arguments(model: nn.Module, layers: tuple[Layer, ...]) -> list[nn.Module]:
    """Return the model and the modules that contain its embeddings. Their arguments show the batch size."""
    modules = dict(model.named_modules())
    tables = (Kind.EMBEDDING, Kind.SCALED_EMBEDDING, Kind.POSITION_BIAS, Kind.POSITION_TABLE)
    paths = [layer.name.split(".")[:-1] for layer in layers if layer.kind in tables and layer.name]
    paths += [name.split(".") for name, module in modules.items() if is_deberta_encoder(module) and name]
    outer = {".".join(path[:depth]) for path in paths for depth in range(len(path) + 1)} | {""}
    recorded = {id(layer.module) for layer in layers}
    return [modules[name] for name in sorted(outer) if id(modules[name]) not in recorded]


def modules_with_modes(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules, by name, whose mode must be checked before every forward pass."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) or hasattr(module, "gradient_checkpointing")
    ]


def check_mode(name: str, module: nn.Module) -> None:
    """Reject a mode in which examples mix or the forward pass runs twice."""
    if isinstance(module, _BatchNorm):
        _check_batch_norm(name, module)
    if module.training and getattr(module, "gradient_checkpointing", False):
        raise UnsupportedError(
            f"Expected {name or 'the model'!r} to run without gradient checkpointing. It runs the forward pass twice; "
            "call gradient_checkpointing_disable()."
        )
