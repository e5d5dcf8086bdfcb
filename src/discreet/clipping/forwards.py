"""The forward of each kind of layer with its weights hidden from autograd, so that no weight gradient is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.clipping.layers import Kind, Layer
from discreet.core.errors import UnsupportedError

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
