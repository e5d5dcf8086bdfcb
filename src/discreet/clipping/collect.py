"""Turns the output gradients that arrive during the backward pass into slots, one for each parameter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from discreet.clipping import kernels
from discreet.clipping.layers import Kind, Layer
from discreet.clipping.precision import accumulator
from discreet.clipping.slots import Lookup, Pair, Slot, Vectors, instantiate
from discreet.clipping.units import Units
from discreet.core.errors import UnsupportedError

# Arithmetic a device does in the time it moves a byte to memory; measured on an H200 in bfloat16 and on a server CPU.
_WORK_PER_BYTE = {"cuda": 100.0, "cpu": 5.0}
# Gradients may be kept instead of their factors if they take at most this many times the memory.
_ROOM = 1.25


class Call:
    """One call of a layer: what it was given, and where to deliver the gradient of what it returned."""

    __slots__ = ("collector", "edge", "kept", "layer", "rows", "version")

    def __init__(self, layer: Layer, kept: Tensor | None, out: Tensor, differentiable: bool) -> None:
        """Keep a layer's input and listen for its output's gradient."""
        self.layer = layer
        self.kept = kept if kept is None or differentiable else kept.detach()
        self.version = 0 if kept is None else kept._version
        self.rows = out.shape[0] if out.dim() else 0
        self.collector: Collector | None = None
        # An edge holds the node that holds this call, so it is made only where it is needed and let go afterwards.
        self.edge: GradientEdge | None = get_gradient_edge(out) if differentiable else None
        out.register_hook(self.receive)  # type: ignore[no-untyped-call]

    def receive(self, grad: Tensor) -> None:
        """Pass on the gradient of the output, with the input, and let both go."""
        if self.collector is None:
            return
        if self.kept is not None and self.kept._version != self.version:
            raise UnsupportedError(
                f"Expected the input of layer {self.layer.name!r} unchanged, found it changed in place after the layer "
                "read it. Use an operation that makes a new tensor."
            )
        self.collector.take(self.layer, self.kept, grad)
        self.collector = self.kept = None

    def let_go(self) -> None:
        """Let go of whatever no gradient came for."""
        self.collector = self.kept = self.edge = None


class Collector:
    """Gathers the pieces of each parameter's gradients over the calls of its layer."""

    def __init__(self, layers: Sequence[Layer], units: Units, calls: Iterable[Call], rows: int, hold: bool) -> None:
        """Make ready for the gradients of a batch; `hold` keeps every factor as it is."""
        self._layers = layers
        self._units = units
        self._rows = rows
        self._hold = hold
        self._pairs: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._vectors: dict[str, Tensor] = {}
        self._times: Counter[str] = Counter()
        for call in calls:
            if call.rows != rows:
                raise UnsupportedError(
                    f"Expected layer {call.layer.name!r} to return {rows} rows, one for each loss, found {call.rows}. "
                    "Put the batch first; for positions looked up outside their model, say tape.expect(batch_size)."
                )
            self._times[call.layer.name] += 1
            call.collector = self

    def take(self, layer: Layer, kept: Tensor | None, grad: Tensor) -> None:
        """Take the gradient of what a layer returned, with what it was given."""
        kind, names = layer.kind, layer.parameters
        if kind is Kind.LAYER_NORM:
            self._layer_norm(layer, kept, grad)
            return
        if kind is Kind.RMS_NORM or kind is Kind.SCALE_NORM:
            self._vector(names["weight"], grad.reshape(self._rows, -1))
            return
        grad = self._timed(grad)
        if kind is Kind.EMBEDDING:
            assert kept is not None
            self._pairs[names["weight"]].append((kept.reshape(self._rows, -1), grad))
            return
        if "weight" in names:
            assert kept is not None
            self._matrix(layer, self._timed(kept), grad)
        if "bias" in names:
            self._vector(names["bias"], grad.sum(1, dtype=accumulator(grad.dtype)))

    def _timed(self, values: Tensor) -> Tensor:
        return values if values.dim() == 3 else values.reshape(self._rows, -1, values.shape[-1])

    def slots(self) -> list[Slot]:
        """Return the slots of all parameters, or refuse by name a parameter that the loss does not reach."""
        return [self._slot(layer, local, name) for layer in self._layers for local, name in layer.parameters.items()]

    def _slot(self, layer: Layer, local: str, name: str) -> Slot:
        parameter = layer.module._parameters[local]
        assert parameter is not None
        values = self._vectors.get(name)
        if values is not None:
            return Vectors(name, layer.name, parameter.shape, values)
        pieces = self._pairs.pop(name, None)
        if pieces is None:
            if self._rows:
                raise UnsupportedError(
                    f"Expected parameter {name!r} to be reached by the losses, found no gradient for it. Freeze it "
                    "with requires_grad_(False), or leave its layer out of the model."
                )
            wide = accumulator(parameter.dtype)
            return Vectors(name, layer.name, parameter.shape, parameter.new_zeros((0, parameter.numel()), dtype=wide))
        first, grads = pieces[0]
        if len(pieces) > 1:  # a layer used several times: its calls are laid end to end in time
            first = torch.cat([piece[0] for piece in pieces], 1)
            grads = torch.cat([piece[1] for piece in pieces], 1)
        if layer.kind is Kind.EMBEDDING:
            padding = layer.module.padding_idx
            assert padding is None or isinstance(padding, int)
            return Lookup(name, layer.name, parameter.shape, first, grads, self._units, padding)
        return Pair(name, layer.name, parameter.shape, first, grads, self._units, layer.kind is Kind.CONV1D)

    def _matrix(self, layer: Layer, inputs: Tensor, grads: Tensor) -> None:
        name = layer.parameters["weight"]
        if (
            self._hold
            or self._times[layer.name] > 1
            or not keeps_gradients(inputs, grads, self._rows / self._units.count)
        ):
            self._pairs[name].append((inputs, grads))
            return
        turned = layer.kind is Kind.CONV1D
        (self._vectors[name],) = self._units.apply(lambda i, g: (instantiate(i, g, turned).flatten(1),), inputs, grads)

    def _layer_norm(self, layer: Layer, kept: Tensor | None, grad: Tensor) -> None:
        wide = accumulator(grad.dtype)
        names, shape = layer.parameters, grad.shape[grad.dim() - layer.module.weight.dim() :]  # type: ignore[operator]
        if len(names) == 2 and kept is not None and len(shape) == 1 and kernels.usable(kept, grad):
            flat = (self._rows, -1, shape[0])
            weight, bias = kernels.norm_sums(kept.reshape(flat), grad.reshape(flat), layer.module.eps)  # type: ignore[arg-type]
            self._vector(names["weight"], weight)
            self._vector(names["bias"], bias)
            return
        if "weight" in names:
            assert kept is not None
            normal = F.layer_norm(kept.to(wide), tuple(shape), None, None, layer.module.eps)  # type: ignore[arg-type]
            self._vector(names["weight"], (normal * grad).reshape(self._rows, -1, shape.numel()).sum(1))
        if "bias" in names:
            self._vector(names["bias"], grad.reshape(self._rows, -1, shape.numel()).sum(1, dtype=wide))

    def _vector(self, name: str, values: Tensor) -> None:
        if values.dtype.itemsize < 4:
            values = values.float()
        values = self._units.total(values)
        self._vectors[name] = self._vectors[name] + values if name in self._vectors else values


def keeps_gradients(inputs: Tensor, grads: Tensor, rows_a_unit: float = 1.0) -> bool:
    """Whether to keep the gradients of a matrix rather than their factors: at great length they are cheaper.

    The factors then cost two Gram matrices, which grow with the square of the length; the gradients cost their passage
    through memory, once written and twice read.

    >>> keeps_gradients(torch.empty(16, 512, 768), torch.empty(16, 512, 768))
    True
    >>> keeps_gradients(torch.empty(64, 128, 768), torch.empty(64, 128, 768))
    False
    """
    length = inputs.shape[1] * rows_a_unit
    into, out = inputs.shape[-1], grads.shape[-1]
    if into * out > _ROOM * length * (into + out):
        return False
    item = torch.promote_types(inputs.dtype, grads.dtype).itemsize
    return 2 * length * length * (into + out) > 3 * item * _WORK_PER_BYTE.get(inputs.device.type, 5.0) * into * out
