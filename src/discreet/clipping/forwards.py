"""The kinds of layers that can be clipped, forward passes that record them, and how gradients follow from the record.

What cannot be clipped is rejected by name.

Each forward computes what the module's own forward computes, with its weights detached, so that the backward pass
computes no weight gradients. A `Use` says how the gradient of a parameter follows from a layer's input and the gradient
of its output.
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

from discreet.clipping import kernels
from discreet.clipping.norms import accumulator
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


Forward = Callable[..., Any]


class Gradients(Protocol):
    """Per-row gradients of the parameters of one batch, added to as the backward pass reaches each layer."""

    rows: int

    def add_matrix(self, name: str, inputs: Tensor, grads: Tensor, transposed: bool = False) -> bool:
        """Add sum_t grad_t input_t^T to the gradients of a matrix; return whether the factors are kept."""
        ...

    def add_time_sum(self, name: str, grads: Tensor, kept: bool) -> None:
        """Add the sum over time of (rows, time, width); if the tensor is kept anyway, all are summed at once later."""
        ...

    def add_lookup(self, name: str, ids: Tensor, grads: Tensor, padding: int | None) -> None:
        """Add output gradients (rows, time, width) to the rows of a table that ids (rows, time) name."""
        ...

    def add_norm(self, weight: str, bias: str, inputs: Tensor, grads: Tensor, eps: float) -> None:
        """Add the gradients of a layer norm with inputs and output gradients (rows, time, width) on a GPU."""
        ...

    def add_vector(self, name: str, values: Tensor) -> None:
        """Add the gradients themselves, (rows, numbers)."""
        ...


class Use(Protocol):
    """One way in which a layer uses its parameters."""

    @property
    def layer(self) -> Layer:
        """The layer."""
        ...

    @property
    def weight(self) -> str | None:
        """The full name of the weight, if it is trained."""
        ...

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of the parameters, from the recorded input and the gradient of the output."""
        ...


class Recorder(Protocol):
    """The methods of `Tape` that a layer's forward calls."""

    batch_size: int | None

    def record(self, use: Use, inputs: Tensor | None, out: Tensor) -> Tensor:
        """Record a layer's input, and its output's gradient when the backward pass computes it."""
        ...

    def requiring_grad(self, value: Tensor) -> Tensor:
        """Return a tensor that requires a gradient."""
        ...

    def cast(self, value: Tensor) -> Tensor:
        """Return an input in the type that autocast would give it."""
        ...

    def weight(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a detached weight or bias for an input of a type."""
        ...

    def is_first_call(self, layer: Layer) -> bool:
        """Return whether a layer is called for the first time since the tape was made."""
        ...


@dataclass(frozen=True)
class LinearUse:
    """out = inputs @ weight^T + bias, or inputs @ weight if the weight is stored transposed.

    With `outputs`, the layer is a block of rows, from `start`, of a weight that has so many.
    """

    layer: Layer
    weight: str | None
    bias: str | None
    transposed: bool = False
    start: int = 0
    outputs: int | None = None

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of weight and bias."""
        grads = _by_time(grads, gradients.rows)
        if self.outputs is not None:
            grads = F.pad(grads, (self.start, self.outputs - self.start - grads.shape[-1]))
        kept = False
        if self.weight is not None:
            assert inputs is not None
            kept = gradients.add_matrix(self.weight, _by_time(inputs, gradients.rows), grads, self.transposed)
        if self.bias is not None:
            gradients.add_time_sum(self.bias, grads, kept)


@dataclass(frozen=True)
class LookupUse:
    """out = weight[ids]."""

    layer: Layer
    weight: str
    padding: int | None = None

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of the table."""
        assert inputs is not None
        ids = inputs.reshape(gradients.rows, -1)
        gradients.add_lookup(self.weight, ids, _by_time(grads, gradients.rows), self.padding)


@dataclass(frozen=True)
class VectorUse:
    """out = weight, one copy for each row, so that autograd computes each row's gradient."""

    layer: Layer
    weight: str

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of the copies."""
        gradients.add_vector(self.weight, grads.reshape(gradients.rows, -1))


@dataclass(frozen=True)
class NormUse:
    """out = normalize(inputs) * weight + bias, as in LayerNorm."""

    layer: Layer
    weight: str | None
    bias: str | None
    shape: tuple[int, ...]
    eps: float

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of weight and bias."""
        rows, wide = gradients.rows, accumulator(grads.dtype)
        size = torch.Size(self.shape).numel()
        if self.weight and self.bias and inputs is not None and len(self.shape) == 1 and kernels.usable(inputs, grads):
            flat = (rows, -1, size)
            gradients.add_norm(self.weight, self.bias, inputs.reshape(flat), grads.reshape(flat), self.eps)
            return
        if self.weight is not None:
            assert inputs is not None
            normalized = F.layer_norm(inputs.to(wide), self.shape, None, None, self.eps)
            gradients.add_vector(self.weight, (normalized * grads).reshape(rows, -1, size).sum(1))
        if self.bias is not None:
            gradients.add_vector(self.bias, grads.reshape(rows, -1, size).sum(1, dtype=wide))


@dataclass(frozen=True)
class GroupNormUse:
    """out = normalize(inputs) * weight + bias with one weight and bias for each channel, as in GroupNorm."""

    layer: Layer
    weight: str | None
    bias: str | None
    groups: int
    eps: float

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of weight and bias."""
        wide = accumulator(grads.dtype)
        channels = (*grads.shape[:2], -1)
        if self.weight is not None:
            assert inputs is not None
            normalized = F.group_norm(inputs.to(wide), self.groups, None, None, self.eps)
            gradients.add_vector(self.weight, (normalized * grads).reshape(channels).sum(2))
        if self.bias is not None:
            gradients.add_vector(self.bias, grads.reshape(channels).sum(2, dtype=wide))


@dataclass(frozen=True)
class ConvolutionUse:
    """out[t] = sum_k weight[k] inputs[stride t + dilation k] + bias, as in Conv1d; the inputs include the padding."""

    layer: Layer
    weight: str | None
    bias: str | None
    kernel: int
    stride: int
    dilation: int
    groups: int

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of weight and bias."""
        rows, wide = gradients.rows, accumulator(grads.dtype)
        if self.bias is not None:
            gradients.add_vector(self.bias, grads.sum(2, dtype=wide))
        if self.weight is None:
            return
        assert inputs is not None
        windows = inputs.unfold(2, self.dilation * (self.kernel - 1) + 1, self.stride)[..., :: self.dilation]
        if self.groups == 1:
            windows = windows.transpose(1, 2).flatten(2)  # (rows, time, channels * kernel)
            gradients.add_matrix(self.weight, windows, grads.transpose(1, 2))
            return
        windows = windows.reshape(rows, self.groups, -1, *windows.shape[2:]).transpose(2, 3).flatten(3)
        outputs = grads.reshape(rows, self.groups, -1, grads.shape[2])
        gradients.add_vector(self.weight, (outputs.to(wide) @ windows.to(wide)).reshape(rows, -1))


def _by_time(values: Tensor, rows: int) -> Tensor:
    return values if values.dim() == 3 else values.reshape(rows, -1, values.shape[-1])


def forward_of(layer: Layer, tape: Recorder) -> Forward:
    """Return the recording forward of a layer."""
    return _FORWARDS[layer.kind](layer, tape)


def _detached(module: nn.Module, name: str) -> Any:
    # Read from the module's own table: this runs once for every layer and step.
    parameter = module._parameters[name]
    return None if parameter is None else parameter.detach()


def _check_batched(layer: Layer, value: Tensor, dimensions: int = 2) -> None:
    if value.dim() < dimensions:
        raise UnsupportedError(
            f"Expected the input of layer {layer.name!r} to have a batch dimension and at least {dimensions} "
            f"dimensions in all, got shape {tuple(value.shape)}. Without it no row has a gradient of its own."
        )


def _linear(layer: Layer, tape: Recorder) -> Forward:
    module, names = layer.module, layer.parameters
    use = LinearUse(layer, names.get("weight"), names.get("bias"))
    assert isinstance(module, nn.Linear)

    parameters, kept = module._parameters, use.weight is not None

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        if input.dim() < 2:
            _check_batched(layer, input)
        inputs, weight, bias = tape.cast(input), parameters["weight"], parameters["bias"]
        assert weight is not None
        dtype = inputs.dtype
        out = F.linear(inputs, tape.weight(weight, dtype), None if bias is None else tape.weight(bias, dtype))
        return tape.record(use, inputs if kept else None, out)

    return forward


def _conv1d(layer: Layer, tape: Recorder) -> Forward:
    module, names = layer.module, layer.parameters
    use = LinearUse(layer, names.get("weight"), names.get("bias"), transposed=True)

    def forward(x: Tensor) -> Tensor:
        _check_batched(layer, x)
        inputs = tape.cast(x)
        weight, bias = (tape.weight(module.get_parameter(name), inputs.dtype) for name in ("weight", "bias"))
        out = torch.addmm(bias, inputs.reshape(-1, inputs.shape[-1]), weight).view(*x.shape[:-1], -1)
        return tape.record(use, None if use.weight is None else inputs, out)

    return forward


def _embedding(layer: Layer, tape: Recorder) -> Forward:
    module = layer.module
    assert isinstance(module, nn.Embedding)
    use = LookupUse(layer, layer.parameters["weight"], module.padding_idx)

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        ids = input
        if ids.dim() < 2:
            raise UnsupportedError(
                f"Expected the ids of layer {layer.name!r} to have a batch dimension and at least 2 dimensions in all, "
                f"got shape {tuple(ids.shape)}. Pass positions shared by all rows with shape (1, length): ids[None]; "
                "pass one id per row with shape (rows, 1): ids[:, None]."
            )
        out = F.embedding(ids, _detached(module, "weight"), module.padding_idx)
        rows = tape.batch_size
        if ids.shape[0] == 1 and rows is not None and rows > 1:
            # Positions are looked up once and broadcast over the batch; each row needs a gradient of its own.
            ids, out = ids.expand(rows, *ids.shape[1:]), out.expand(rows, *out.shape[1:])
        return tape.record(use, ids, out)

    return forward


def _scaled_embedding(layer: Layer, tape: Recorder) -> Forward:
    module, lookup = layer.module, _embedding(layer, tape)

    def forward(input_ids: Tensor) -> Tensor:
        scale: Any = module.embed_scale
        out: Tensor = lookup(input_ids)
        out = out * (scale.to(out.dtype) if isinstance(scale, Tensor) else scale)
        _check_first_call(layer, tape, out, "to multiply its embeddings by embed_scale", input_ids)
        return out

    return forward


def _check_first_call(layer: Layer, tape: Recorder, out: Tensor, rule: str, *args: Tensor) -> None:
    """Reject a layer, on its first call, whose class computes something else."""
    if not tape.is_first_call(layer):
        return
    with torch.no_grad():
        expected: Tensor = type(layer.module).forward(layer.module, *args)
    close = 1e-5 if expected.dtype in (torch.float32, torch.float64) else 2e-2
    try:
        same = expected.dtype == out.dtype and torch.allclose(expected.expand_as(out), out, rtol=close, atol=close)
    except RuntimeError:  # the shapes differ
        same = False
    if not same:
        raise UnsupportedError(
            f"Expected layer {layer.name!r} ({type(layer.module).__name__}) {rule}, got another result. Freeze it with "
            "requires_grad_(False)."
        )


def _layer_norm(layer: Layer, tape: Recorder) -> Forward:
    module, names = layer.module, layer.parameters
    assert isinstance(module, nn.LayerNorm)
    use = NormUse(layer, names.get("weight"), names.get("bias"), tuple(module.normalized_shape), module.eps)
    return _normalization(
        use, tape, lambda x, weight, bias: F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)
    )


def _normalization(
    use: NormUse | GroupNormUse, tape: Recorder, norm: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
) -> Forward:
    """Return the recording forward of a normalization with a weight and a bias."""
    layer = use.layer

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        _check_batched(layer, input)
        out = norm(input, _detached(layer.module, "weight"), _detached(layer.module, "bias"))
        return tape.record(use, None if use.weight is None else input, out)

    return forward


def _group_norm(layer: Layer, tape: Recorder) -> Forward:
    module, names = layer.module, layer.parameters
    assert isinstance(module, nn.GroupNorm)
    use = GroupNormUse(layer, names.get("weight"), names.get("bias"), module.num_groups, module.eps)
    return _normalization(
        use, tape, lambda x, weight, bias: F.group_norm(x, module.num_groups, weight, bias, module.eps)
    )


def _convolution(layer: Layer, tape: Recorder) -> Forward:
    module, names = layer.module, layer.parameters
    assert isinstance(module, nn.Conv1d)
    (kernel,), (stride,), (dilation,) = module.kernel_size, module.stride, module.dilation
    use = ConvolutionUse(layer, names.get("weight"), names.get("bias"), kernel, stride, dilation, module.groups)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        _check_batched(layer, input, 3)
        inputs = tape.cast(input)
        padding: list[int] = list(module._reversed_padding_repeated_twice)
        if any(padding):
            inputs = F.pad(inputs, padding, mode)
        weight, bias = _detached(module, "weight"), _detached(module, "bias")
        out = F.conv1d(inputs, weight, bias, stride, 0, dilation, module.groups)
        return tape.record(use, None if use.weight is None else inputs, out)

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
    """Return a forward in which every row has its own copy of the weight vector."""
    use = VectorUse(layer, layer.parameters["weight"])

    def forward(*args: Tensor, **kwargs: Tensor) -> Tensor:
        (x,) = (*args, *kwargs.values())
        _check_batched(layer, x)
        weight: Tensor = _detached(layer.module, "weight")
        copies = weight.expand(x.shape[0], *(1 for _ in range(x.dim() - 1 - weight.dim())), *weight.shape)
        out = scaled(tape.record(use, None, copies), x)
        _check_first_call(layer, tape, out, "to scale each row by its weight vector", x)
        return out

    return forward


def _recurrent(layer: Layer, tape: Recorder) -> Forward:
    """Return the forward of an LSTM, GRU or RNN that runs one step of time after the other."""
    module = layer.module
    assert isinstance(module, nn.RNNBase)

    def forward(input: Any, hx: Any = None) -> tuple[Any, Any]:  # noqa: A002
        packed = isinstance(input, nn.utils.rnn.PackedSequence)
        if packed:
            x, lengths = nn.utils.rnn.pad_packed_sequence(input, batch_first=True)
            valid: Tensor | None = torch.arange(x.shape[1])[None] < lengths[:, None]
            valid = valid.to(x.device)  # type: ignore[union-attr]
        else:
            _check_batched(layer, input, 3)
            x, valid = (input if module.batch_first else input.transpose(0, 1)), None
        initial = (hx,) if isinstance(hx, Tensor) else hx
        ends: list[tuple[Tensor, ...]] = []
        ways = 2 if module.bidirectional else 1
        for depth in range(module.num_layers):
            outputs = []
            for way in range(ways):
                start = None if initial is None else tuple(state[len(ends)] for state in initial)
                out, end = _run(layer, tape, x, valid, f"l{depth}" + ("_reverse" if way else ""), start)
                outputs.append(out)
                ends.append(end)
            x = outputs[0] if ways == 1 else torch.cat(outputs, 2)
            if module.dropout and module.training and depth < module.num_layers - 1:
                x = F.dropout(x, module.dropout)
        states = tuple(torch.stack(column) for column in zip(*ends, strict=True))
        last: Any = states if module.mode == "LSTM" else states[0]
        if packed:
            return _packed_like(input, x, lengths), last
        return (x if module.batch_first else x.transpose(0, 1)), last

    return forward


def _packed_like(packed: nn.utils.rnn.PackedSequence, x: Tensor, lengths: Tensor) -> nn.utils.rnn.PackedSequence:
    order = packed.sorted_indices
    if order is not None:
        x, lengths = x[order], lengths[order.cpu()]
    data = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True).data
    return nn.utils.rnn.PackedSequence(data, packed.batch_sizes, order, packed.unsorted_indices)


def _run(
    layer: Layer, tape: Recorder, x: Tensor, valid: Tensor | None, suffix: str, start: tuple[Tensor, ...] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one direction of one layer of a recurrent module over (rows, time, width).

    The gates' biases enter each step as one tensor over all steps, so that its gradient, (rows, time, gates), arrives
    in one piece.
    """
    module, rows = layer.module, x.shape[0]
    assert isinstance(module, nn.RNNBase)

    def part(kind: str) -> tuple[LinearUse, Tensor, Tensor | None]:
        weight, bias = f"weight_{kind}_{suffix}", f"bias_{kind}_{suffix}"
        use = LinearUse(layer, layer.parameters.get(weight), layer.parameters.get(bias))
        return use, _detached(module, weight), _detached(module, bias) if bias in module._parameters else None

    use, weight, bias = part("ih")
    inputs = tape.cast(x)
    projected = tape.record(use, None if use.weight is None else inputs, F.linear(inputs, weight, bias))
    hidden_use, hidden_weight, hidden_bias = part("hh")
    hidden_weight = hidden_weight.to(projected.dtype)
    width = hidden_weight.shape[1]  # of the hidden state, after its projection
    offsets = _offsets(tape, projected, hidden_bias, hidden_weight.shape[0])
    projects = module.mode == "LSTM" and module.proj_size > 0
    if projects:
        out_use, out_weight, _ = part("hr")
        out_offsets = _offsets(tape, projected, None, width)
        out_steps = out_offsets.unbind(1)
    if start is None:
        start = (projected.new_zeros(rows, width), projected.new_zeros(rows, module.hidden_size))
    hidden, cell = start[0], start[-1]
    before, unprojected, after = ([x] * x.shape[1] for _ in range(3))
    gates, steps = projected.unbind(1), offsets.unbind(1)
    for t in reversed(range(x.shape[1])) if suffix.endswith("_reverse") else range(x.shape[1]):
        before[t] = hidden
        recurrent = torch.addmm(steps[t], hidden.to(hidden_weight.dtype), hidden_weight.t())
        new_hidden, new_cell = _cell(module.mode, gates[t], recurrent, hidden, cell)
        if projects:
            unprojected[t] = new_hidden
            new_hidden = torch.addmm(out_steps[t], new_hidden, out_weight.to(new_hidden.dtype).t())
        after[t] = new_hidden
        if valid is not None:
            live = valid[:, t, None]
            after[t] = new_hidden * live
            new_hidden, new_cell = torch.where(live, new_hidden, hidden), torch.where(live, new_cell, cell)
        hidden, cell = new_hidden, new_cell
    tape.record(hidden_use, None if hidden_use.weight is None else torch.stack(before, 1), offsets)
    if projects:
        tape.record(out_use, None if out_use.weight is None else torch.stack(unprojected, 1), out_offsets)
    return torch.stack(after, 1), (hidden, cell) if module.mode == "LSTM" else (hidden,)


def _offsets(tape: Recorder, like: Tensor, bias: Tensor | None, width: int) -> Tensor:
    values = like.new_zeros(width) if bias is None else bias.to(like.dtype)
    return tape.requiring_grad(values.expand(*like.shape[:2], width))


def _cell(mode: str, gates: Tensor, recurrent: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next hidden state and cell state; where there is no cell state, the hidden state twice."""
    if mode == "LSTM":
        i, f, g, o = (gates + recurrent).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    if mode == "GRU":
        (r, z, n), (hr, hz, hn) = gates.chunk(3, 1), recurrent.chunk(3, 1)
        z = (z + hz).sigmoid()
        new = (n + (r + hr).sigmoid() * hn).tanh()
        hidden = (1 - z) * new + z * hidden
    else:
        hidden = torch.relu(gates + recurrent) if mode == "RNN_RELU" else torch.tanh(gates + recurrent)
    return hidden, hidden


def _attention(layer: Layer, tape: Recorder) -> Forward:
    """Return the forward of MultiheadAttention, whose output projection records itself."""
    module = layer.module
    assert isinstance(module, nn.MultiheadAttention)

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        for tensor in (query, key, value):
            _check_batched(layer, tensor, 3)
        if is_causal and attn_mask is None:
            raise RuntimeError("Expected attn_mask with is_causal, got None. Pass the causal mask.")
        q, k, v = _projected(layer, tape, query, key, value)
        if not module.batch_first:
            q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
        rows, length = q.shape[:2]
        added = 0
        for name in ("bias_k", "bias_v"):
            if getattr(module, name) is not None:
                extra: Tensor = _detached(module, name).expand(rows, 1, -1).to(q.dtype)
                if name in layer.parameters:
                    extra = tape.record(VectorUse(layer, layer.parameters[name]), None, extra)
                k, v = (torch.cat((k, extra), 1), v) if name == "bias_k" else (k, torch.cat((v, extra), 1))
                added = 1
        heads = module.num_heads
        q, k, v = (t.reshape(rows, -1, heads, module.head_dim).transpose(1, 2) for t in (q, k, v))
        if module.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            added += 1
        mask = _merged_mask(q, attn_mask, key_padding_mask, heads, added)
        dropout = module.dropout if module.training else 0.0
        weights = None
        if need_weights:
            scores = (q * module.head_dim**-0.5) @ k.mT
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            context = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            context = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        context = context.transpose(1, 2).reshape(rows, length, -1)
        out: Tensor = module.out_proj(context)
        return (out if module.batch_first else out.transpose(0, 1)), weights

    return forward


def _projected(layer: Layer, tape: Recorder, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Return query, key and value after their projections, in the layout of the inputs.

    Self-attention projects all three in one product, whose gradient is one pair of factors. Otherwise each projection
    is a block of rows of the joint weight.
    """
    module = layer.module
    assert isinstance(module, nn.MultiheadAttention)
    bias: Tensor | None = _detached(module, "in_proj_bias")
    names, width = layer.parameters, module.embed_dim
    joint = module.in_proj_weight is not None

    def project(inputs: Tensor, weight: Tensor, blocks: slice, use: LinearUse) -> Tensor:
        inputs = tape.cast(inputs if module.batch_first else inputs.transpose(0, 1))
        out = F.linear(inputs, weight, None if bias is None else bias[blocks])
        if use.weight is not None or use.bias is not None:
            out = tape.record(use, None if use.weight is None else inputs, out)
        return out if module.batch_first else out.transpose(0, 1)

    bias_name = names.get("in_proj_bias")
    if joint and query is key and key is value:
        use = LinearUse(layer, names.get("in_proj_weight"), bias_name)
        return project(query, _detached(module, "in_proj_weight"), slice(None), use).chunk(3, -1)
    outs = []
    for place, (letter, inputs) in enumerate(zip("qkv", (query, key, value), strict=True)):
        blocks = slice(place * width, (place + 1) * width)
        if joint:
            weight = _detached(module, "in_proj_weight")[blocks]
            use = LinearUse(layer, names.get("in_proj_weight"), bias_name, start=blocks.start, outputs=3 * width)
            outs.append(project(inputs, weight, blocks, use))
            continue
        # The weights are separate, the bias is joint: its gradient is recorded apart.
        name = f"{letter}_proj_weight"
        out = project(inputs, _detached(module, name), blocks, LinearUse(layer, names.get(name), None))
        if bias_name is not None:
            batched = out if module.batch_first else out.transpose(0, 1)
            use = LinearUse(layer, None, bias_name, start=blocks.start, outputs=3 * width)
            batched = tape.record(use, None, batched)
            out = batched if module.batch_first else batched.transpose(0, 1)
        outs.append(out)
    return tuple(outs)


def _merged_mask(
    q: Tensor, attn_mask: Tensor | None, padding_mask: Tensor | None, heads: int, added: int
) -> Tensor | None:
    """Return one mask to add to the scores (rows, heads, length, keys), with `added` keys that are never masked."""
    merged: Tensor | None = None
    for mask, shape in ((attn_mask, None), (padding_mask, (q.shape[0], 1, 1, -1))):
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
        if shape is not None:
            mask = mask.view(shape)
        elif mask.dim() == 3:
            mask = mask.view(q.shape[0], heads, *mask.shape[1:])
        mask = F.pad(mask.to(q.dtype), (0, added))
        merged = mask if merged is None else merged + mask
    return merged


def _position_bias(layer: Layer, tape: Recorder) -> Forward:
    # The lookup itself records nothing: `positions` records it after its result is broadcast over the batch.
    module = layer.module
    assert isinstance(module, nn.Embedding)

    def forward(input: Tensor) -> Tensor:  # noqa: A002
        return F.embedding(input, _detached(module, "weight"), module.padding_idx)

    return forward


_FORWARDS: dict[Kind, Callable[[Layer, Recorder], Forward]] = {
    Kind.LINEAR: _linear,
    Kind.CONV1D: _conv1d,
    Kind.EMBEDDING: _embedding,
    Kind.SCALED_EMBEDDING: _scaled_embedding,
    Kind.LAYER_NORM: _layer_norm,
    Kind.RMS_NORM: _rms_norm,
    Kind.SCALE_NORM: _scale_norm,
    Kind.GROUP_NORM: _group_norm,
    Kind.CONVOLUTION: _convolution,
    Kind.RECURRENT: _recurrent,
    Kind.ATTENTION: _attention,
    Kind.POSITION_BIAS: _position_bias,
    Kind.POSITION_TABLE: _embedding,
}
