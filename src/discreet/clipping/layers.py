"""The layers that can be clipped, found in a model, and the refusal, by name, of what cannot.

The forward of each kind of layer with its weights hidden from autograd, so that no weight gradient is computed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from discreet.core.errors import UnsupportedError


class Kind(enum.Enum):
    """How a layer uses its parameters."""

    LINEAR = "Linear"
    CONV1D = "Conv1D"
    EMBEDDING = "Embedding"
    LAYER_NORM = "LayerNorm"
    RMS_NORM = "RMSNorm"
    SCALE_NORM = "a norm with one weight vector, like LlamaRMSNorm"


@dataclass(frozen=True)
class Layer:
    """A layer with trainable parameters: its name in the model, its kind, and the full names of those parameters."""

    name: str
    module: nn.Module
    kind: Kind
    parameters: dict[str, str]


_KNOWN = (
    (nn.Linear, Kind.LINEAR),
    (nn.Embedding, Kind.EMBEDDING),
    (nn.LayerNorm, Kind.LAYER_NORM),
    (nn.RMSNorm, Kind.RMS_NORM),
)
_SCALE_NORM_NAMES = ("RMSNorm", "T5LayerNorm")
_REMEDY = "Freeze it with requires_grad_(False), or build it from layers that can be clipped"


def find_layers(model: nn.Module) -> tuple[Layer, ...]:
    """Return the trainable layers of a model, or refuse by name what cannot be clipped.

    >>> [layer.name for layer in find_layers(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))]
    ['0', '2']
    >>> find_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    Traceback (most recent call last):
    ...
    discreet.core.errors.UnsupportedError: Expected no batch normalisation, found '1' (BatchNorm1d). It mixes the \
examples of a batch, so no example has a gradient of its own; use LayerNorm.
    """
    layers: list[Layer] = []
    owner: dict[int, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            _refuse_batch_norm(name, module)
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            raise UnsupportedError(
                f"Expected {name or 'the model'!r} not compiled. What is compiled cannot be recorded layer by layer; "
                "give the tape the model as it was, and record the whole step as a CUDA graph if it is to run faster."
            )
        trainable = {k: p for k, p in module.named_parameters(recurse=False) if p.requires_grad}
        if not trainable:
            continue
        prefix = f"{name}." if name else ""
        for local, parameter in trainable.items():
            if id(parameter) in owner:
                raise UnsupportedError(
                    f"Expected parameter {prefix + local!r} used by one layer alone, found it tied to "
                    f"{owner[id(parameter)]!r}. Tied weights are not clipped; untie them by a copy, or freeze them."
                )
            owner[id(parameter)] = prefix + local
        kind = _kind(name, module)
        layers.append(Layer(name, module, kind, {local: prefix + local for local in trainable}))
    if not layers:
        raise UnsupportedError("Expected a model with trainable parameters, found none. Set requires_grad_(True).")
    return tuple(layers)


def _kind(name: str, module: nn.Module) -> Kind:
    cls = type(module)
    shown = f"layer {name!r} ({cls.__name__})"
    if "forward" in vars(module):
        raise UnsupportedError(f"Expected {shown} with the forward of its class, found it replaced. Restore it first.")
    for known, kind in _KNOWN:
        # A subclass may do anything in a forward of its own, so only the known forward is taken for known.
        if isinstance(module, known) and cls.forward is known.forward:
            _refuse_options(shown, module)
            return kind
    if cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils":
        return Kind.CONV1D
    own = dict(module.named_parameters(recurse=False))
    if cls.__name__.endswith(_SCALE_NORM_NAMES) and list(own) == ["weight"] and own["weight"].dim() == 1:
        return Kind.SCALE_NORM
    kinds = ", ".join(kind.value for kind in Kind)
    more = ""
    if isinstance(module, nn.RNNBase):
        more = " The fused recurrent layers hide their steps; discreet.models has a BiLSTM built from Linear."
    raise UnsupportedError(f"Expected {shown} among the layers that can be clipped: {kinds}. {_REMEDY}.{more}")


def _refuse_options(shown: str, module: nn.Module) -> None:
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None:
            raise UnsupportedError(
                f"Expected {shown} without max_norm. It changes the weights during the forward pass."
            )
        if module.scale_grad_by_freq:
            raise UnsupportedError(f"Expected {shown} without scale_grad_by_freq. It mixes the examples of a batch.")


def _refuse_batch_norm(name: str, module: nn.Module) -> None:
    trainable = any(p.requires_grad for p in module.parameters(recurse=False))
    if trainable or module.training:
        raise UnsupportedError(
            f"Expected no batch normalisation, found {name!r} ({type(module).__name__}). It mixes the examples of a "
            "batch, so no example has a gradient of its own; use LayerNorm."
        )


def around_tables(model: nn.Module, layers: tuple[Layer, ...]) -> list[nn.Module]:
    """Return the model and the modules around its embeddings, whose arguments tell how many rows a batch has."""
    named = dict(model.named_modules())
    paths = [layer.name.split(".")[:-1] for layer in layers if layer.kind is Kind.EMBEDDING and layer.name]
    outer = {".".join(path[:depth]) for path in paths for depth in range(len(path) + 1)} | {""}
    own = {id(layer.module) for layer in layers}
    return [named[name] for name in sorted(outer) if id(named[name]) not in own]


def watched(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules, by name, whose mode must be looked at before every forward pass."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) or hasattr(module, "gradient_checkpointing")
    ]


def refuse_mode(name: str, module: nn.Module) -> None:
    """Refuse a mode in which examples mix or the forward pass runs twice."""
    if isinstance(module, _BatchNorm):
        _refuse_batch_norm(name, module)
    if module.training and getattr(module, "gradient_checkpointing", False):
        raise UnsupportedError(
            f"Expected {name or 'the model'!r} without gradient checkpointing. It runs the forward pass twice; call "
            "gradient_checkpointing_disable()."
        )


Forward = Callable[..., Any]


class Recorder(Protocol):
    """What a layer's forward needs of the tape."""

    batch_size: int | None

    def keep(self, layer: Layer, kept: Tensor | None, out: Tensor) -> Tensor:
        """Keep an input and listen for the gradient of an output."""
        ...

    def cast(self, value: Tensor) -> Tensor:
        """Return an input in the type that autocast would give it."""
        ...

    def first_time(self, layer: Layer) -> bool:
        """Whether a layer is called for the first time since the tape was made."""
        ...


def forward_of(layer: Layer, tape: Recorder) -> Forward:
    """Return the recording forward of a layer."""
    return _FORWARDS[layer.kind](layer, tape)


def _hidden(module: nn.Module, name: str) -> Any:
    # Straight from the module's own table: this runs once for every layer and step.
    parameter = module._parameters[name]
    return None if parameter is None else parameter.detach()


def _refuse_flat(layer: Layer, given: Tensor) -> None:
    if given.dim() < 2:
        raise UnsupportedError(
            f"Expected the input of layer {layer.name!r} with the batch as the first of two or more dimensions, found "
            f"shape {tuple(given.shape)}. Without it no row has a gradient of its own."
        )


def _linear(layer: Layer, tape: Recorder) -> Forward:
    module, keeps = layer.module, "weight" in layer.parameters
    assert isinstance(module, nn.Linear)

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        _refuse_flat(layer, input)
        given = tape.cast(input)
        out = F.linear(given, _hidden(module, "weight"), _hidden(module, "bias"))
        return tape.keep(layer, given if keeps else None, out)

    return forward


def _conv1d(layer: Layer, tape: Recorder) -> Forward:
    weight, bias = layer.module.get_parameter("weight"), layer.module.get_parameter("bias")
    keeps = "weight" in layer.parameters

    def forward(x: Tensor) -> Tensor:
        _refuse_flat(layer, x)
        given = tape.cast(x)
        out = torch.addmm(bias.detach(), given.reshape(-1, given.shape[-1]), weight.detach())
        return tape.keep(layer, given if keeps else None, out.view(*x.shape[:-1], -1))

    return forward


def _embedding(layer: Layer, tape: Recorder) -> Forward:
    module = layer.module
    assert isinstance(module, nn.Embedding)

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        ids = input
        if ids.dim() < 2:
            raise UnsupportedError(
                f"Expected the ids of layer {layer.name!r} with the batch as the first of two or more dimensions, "
                f"found shape {tuple(ids.shape)}. Positions alike for all rows take shape (1, length): ids[None]; one "
                "id a row takes shape (rows, 1): ids[:, None]."
            )
        out = F.embedding(ids, module.weight.detach(), module.padding_idx)
        rows = tape.batch_size
        if ids.dim() > 1 and ids.shape[0] == 1 and rows is not None and rows > 1:
            # Positions are looked up once and broadcast over the batch; each row needs a gradient of its own.
            ids, out = ids.expand(rows, *ids.shape[1:]), out.expand(rows, *out.shape[1:])
        return tape.keep(layer, ids, out)

    return forward


def _layer_norm(layer: Layer, tape: Recorder) -> Forward:
    module, keeps = layer.module, "weight" in layer.parameters
    assert isinstance(module, nn.LayerNorm)

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        _refuse_flat(layer, input)
        weight, bias = _hidden(module, "weight"), _hidden(module, "bias")
        out = F.layer_norm(input, module.normalized_shape, weight, bias, module.eps)
        return tape.keep(layer, input if keeps else None, out)

    return forward


def _rms_norm(layer: Layer, tape: Recorder) -> Forward:
    module = layer.module
    assert isinstance(module, nn.RMSNorm)

    def scaled(weight: Tensor, x: Tensor) -> Tensor:
        return (F.rms_norm(x, module.normalized_shape, None, module.eps) * weight).to(x.dtype)

    return _scaling(layer, tape, scaled)


def _scale_norm(layer: Layer, tape: Recorder) -> Forward:
    module = layer.module

    def scaled(weight: Tensor, x: Tensor) -> Tensor:
        parameter = module._parameters["weight"]
        module._parameters["weight"] = weight  # type: ignore[assignment]
        try:
            return type(module).forward(module, x)  # type: ignore[no-any-return]
        finally:
            module._parameters["weight"] = parameter

    return _scaling(layer, tape, scaled)


def _scaling(layer: Layer, tape: Recorder, scaled: Callable[[Tensor, Tensor], Tensor]) -> Forward:
    """Return a forward in which every row has its own copy of the weight vector, so that autograd tells rows apart."""
    module = layer.module

    def forward(*args: Tensor, **kwargs: Tensor) -> Tensor:
        (x,) = (*args, *kwargs.values())
        _refuse_flat(layer, x)
        weight = module.get_parameter("weight").detach()
        each = weight.expand(x.shape[0], *(1 for _ in range(x.dim() - 1 - weight.dim())), *weight.shape)
        out = scaled(tape.keep(layer, None, each), x)
        if tape.first_time(layer):
            with torch.no_grad():
                plain = type(module).forward(module, x)
            close = 1e-5 if plain.dtype in (torch.float32, torch.float64) else 2e-2
            if plain.dtype != out.dtype or not torch.allclose(plain, out, rtol=close, atol=close):
                raise UnsupportedError(
                    f"Expected layer {layer.name!r} ({type(module).__name__}) to scale each row by its weight vector, "
                    "found that it does something else. Freeze it with requires_grad_(False)."
                )
        return out

    return forward


_FORWARDS: dict[Kind, Callable[[Layer, Recorder], Forward]] = {
    Kind.LINEAR: _linear,
    Kind.CONV1D: _conv1d,
    Kind.EMBEDDING: _embedding,
    Kind.LAYER_NORM: _layer_norm,
    Kind.RMS_NORM: _rms_norm,
    Kind.SCALE_NORM: _scale_norm,
}
