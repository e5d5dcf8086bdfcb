"""Record the input of each layer and the gradient of its output in one forward and one backward pass, and clip.

`Tape` records a model. A `Clip` rule computes a factor for every unit from what was recorded, and `clipped_sum` adds
the gradients up with these factors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.clipping.forwards import (
    Forward,
    Gradients,
    Kind,
    Layer,
    Recorder,
    Use,
    VectorUse,
    check_mode,
    find_layers,
    forward_of,
    is_deberta_encoder,
    modules_with_batch_arguments,
    modules_with_modes,
)
from discreet.clipping.norms import accumulator, capturing
from discreet.clipping.record import Call, Collector, Record
from discreet.clipping.slots import Units
from discreet.core.device import tensors_in
from discreet.core.errors import UnsupportedError, invalid, positive

Replacement = tuple[nn.Module, str, Forward]


@dataclass(frozen=True)
class PositionBiasUse:
    """out[row, head] = weight[ids, head] for ids of shape (queries, keys), shared by all rows."""

    layer: Layer
    weight: str
    buckets: int

    def collect(self, gradients: Gradients, inputs: Tensor | None, grads: Tensor) -> None:
        """Add the gradients of the table, from output gradients (rows, heads, queries, keys)."""
        assert inputs is not None
        one_hot = F.one_hot(inputs.flatten(), self.buckets).to(accumulator(grads.dtype))
        values = grads.flatten(2).to(one_hot.dtype) @ one_hot  # (rows, heads, buckets)
        gradients.add_vector(self.weight, values.transpose(1, 2).reshape(gradients.rows, -1))


def replacements(model: nn.Module, layers: tuple[Layer, ...], tape: Recorder) -> list[Replacement]:
    """Return the methods to replace while a tape records, as (module, name of the method, replacement)."""
    replaced = [_position_bias(layer, tape) for layer in layers if layer.kind is Kind.POSITION_BIAS]
    tables = {id(layer.parent): layer for layer in layers if layer.kind is Kind.POSITION_TABLE}
    for encoder in model.modules():
        if is_deberta_encoder(encoder):
            replaced.append(
                (encoder, "get_rel_embedding", _relative_embeddings(encoder, tables.get(id(encoder)), tape))
            )
            for name, module in encoder.named_modules():
                if hasattr(module, "disentangled_attention_bias"):
                    replaced.append((module, "disentangled_attention_bias", _disentangled_bias(name, module, tape)))
    return replaced


def _rows(tape: Recorder, name: str) -> int:
    if tape.batch_size is None:
        raise UnsupportedError(
            f"Expected the batch size to be known before layer {name!r} is called. Call the whole model, or call "
            "tape.expect(batch_size) first."
        )
    return tape.batch_size


def _position_bias(layer: Layer, tape: Recorder) -> Replacement:
    attention, table = layer.parent, layer.module
    assert attention is not None
    assert isinstance(table, nn.Embedding)
    use = PositionBiasUse(layer, layer.parameters["weight"], table.num_embeddings)
    compute: Any = attention.compute_bias

    def compute_bias(*args: Any, **kwargs: Any) -> Tensor:
        lookups: list[Tensor] = []
        handle = table.register_forward_pre_hook(lambda _, inputs: lookups.append(inputs[0]))
        try:
            bias: Tensor = compute(*args, **kwargs)
        finally:
            handle.remove()
        if len(lookups) != 1 or bias.shape != (1, table.embedding_dim, *lookups[0].shape):
            raise UnsupportedError(
                f"Expected layer {layer.name!r} to be looked up once, as (1, heads, queries, keys), got shape "
                f"{tuple(bias.shape)}. Freeze it with requires_grad_(False)."
            )
        return tape.record(use, lookups[0], bias.expand(_rows(tape, layer.name), *bias.shape[1:]))

    return attention, "compute_bias", compute_bias


def _relative_embeddings(encoder: nn.Module, layer: Layer | None, tape: Recorder) -> Forward:
    table: Any = encoder.rel_embeddings
    use = None if layer is None else VectorUse(layer, layer.parameters["weight"])

    def get_rel_embedding() -> Tensor:
        copies: Tensor = table.weight.detach()
        copies = copies.expand(_rows(tape, "rel_embeddings"), *copies.shape)
        if use is not None:
            copies = tape.record(use, None, copies)
        if "layer_norm" in encoder.norm_rel_ebd:  # type: ignore[operator]
            copies = encoder.LayerNorm(copies)  # type: ignore[operator]
        return copies

    return get_rel_embedding


def _disentangled_bias(name: str, module: Any, tape: Recorder) -> Forward:
    heads: int = module.num_attention_heads
    original = module.disentangled_attention_bias
    source = sys.modules[type(module).__module__]
    layer = Layer(name, module, Kind.POSITION_TABLE, {})

    def bias(query: Tensor, key: Tensor, relative: Tensor | None, embeddings: Tensor, scale_factor: int) -> Tensor:
        # Queries and keys are (rows * heads, time, width); the embeddings are (rows, positions, width).
        shape = {"bucket_size": module.position_buckets, "max_position": module.max_relative_positions}
        if relative is None:
            relative = source.build_relative_position(query, key, **shape)
        assert relative is not None
        span = module.pos_ebd_size
        distance = relative.to(query.device).view(1, *relative.shape[-2:])
        total = query.new_zeros(())

        def attended(projection: nn.Module, states: Tensor, places: Tensor) -> Tensor:
            """Return the scores of states with the embeddings of their relative positions."""
            vectors = module.transpose_for_scores(projection(embeddings[:, : 2 * span]), heads)
            scores = torch.bmm(states, vectors.mT) / math.sqrt(vectors.shape[-1] * scale_factor)
            places = places.long().clamp(0, 2 * span - 1)
            return scores.gather(-1, places.expand(states.shape[0], -1, -1))

        if "c2p" in module.pos_att_type:
            projection = module.key_proj if module.share_att_key else module.pos_key_proj
            total = total + attended(projection, query, distance + span)
        if "p2c" in module.pos_att_type:
            projection = module.query_proj if module.share_att_key else module.pos_query_proj
            between = distance
            if key.shape[-2] != query.shape[-2]:
                between = (
                    source.build_relative_position(key, key, **shape).to(query.device).view(1, *key.shape[1:2], -1)
                )
            total = total + attended(projection, key, span - between).mT
        if tape.is_first_call(layer):
            with torch.no_grad():
                first: Any = original(query[:heads], key[:heads], relative, embeddings[0], scale_factor)
            close = 1e-4 if total.dtype in (torch.float32, torch.float64) else 2e-2
            if isinstance(first, Tensor) and not torch.allclose(first, total[:heads], rtol=close, atol=close):
                raise UnsupportedError(
                    f"Expected layer {name!r} ({type(module).__name__}) to compute disentangled attention as "
                    "DeBERTa-v2 does, got another result. Freeze the encoder with requires_grad_(False)."
                )
        return total

    return bias


class Tape:
    """Recorder of per-example gradients for one model.

    It finds the trainable layers, and rejects by name what cannot be clipped. Inside `with tape:` the forward of each
    trainable layer is replaced by one that records its input and detaches its weights, so that the backward pass
    computes no weight gradients. Outside, the model is unchanged.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    >>> tape = Tape(model)
    >>> with tape:
    ...     losses = nn.functional.mse_loss(model(torch.randn(5, 3)), torch.zeros(5, 2), reduction="none").sum(1)
    >>> tape.backward(losses).norms().shape
    torch.Size([5])

    With `create_graph`, norms and inner products can be differentiated with respect to the model's inputs.

    Guarantee: none. It holds the raw gradients of a batch.
    """

    def __init__(self, model: nn.Module, *, create_graph: bool = False) -> None:
        """Find the layers of a model, or reject it."""
        self.model = model
        self.layers = find_layers(model)
        self.batch_size: int | None = None
        self._create_graph = create_graph
        self._parameters = {
            name: layer.module.get_parameter(local) for layer in self.layers for local, name in layer.parameters.items()
        }
        self._modes = modules_with_modes(model)
        self._replacements: list[Replacement] = [(la.module, "forward", forward_of(la, self)) for la in self.layers]
        self._replacements += replacements(model, self.layers, self)
        sized = modules_with_batch_arguments(model, self.layers)
        self._replacements += [(module, "forward", _sized(module, self)) for module in sized]
        self._expected: int | None = None
        self._replaced: list[Any] | None = None
        self._calls: list[Call] = []
        self._anchor: Tensor | None = None
        self._last_cast: tuple[Tensor, int, Tensor] | None = None
        self._called: set[str] = set()
        self._narrow: dict[Tensor, Tensor] | None = None  # weights in autocast's type, for the forward pass that runs
        self._buffers: dict[Tensor, Tensor] = {}

    def expect(self, batch_size: int) -> Self:
        """Set the number of rows of the next batch; needed only if an embedding is called outside its model."""
        self._expected = batch_size
        return self

    def __enter__(self) -> Self:
        """Start recording."""
        if self._replaced is not None:
            raise UnsupportedError("Expected a tape that is not recording. Leave the first `with tape:` block first.")
        for name, module in self._modes:
            check_mode(name, module)
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                raise UnsupportedError(f"Expected parameter {name!r} to be trainable. Make a new tape after freezing.")
        self._calls = []
        self.batch_size, self._expected = self._expected, None
        device = next(iter(self._parameters.values())).device
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._replaced = [module.__dict__.get(attribute) for module, attribute, _ in self._replacements]
        for module, attribute, function in self._replacements:
            module.__dict__[attribute] = function
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the forwards of the layers; after an error, discard what was recorded."""
        for (module, attribute, _), before in zip(self._replacements, self._replaced or (), strict=True):
            if before is None:
                module.__dict__.pop(attribute, None)
            else:
                module.__dict__[attribute] = before
        self._replaced, self._last_cast, self._narrow = None, None, None
        if error is not None:
            self._calls, self.batch_size = [], None

    def backward(self, losses: Tensor, units: Tensor | None = None, *, seeds: Tensor | None = None) -> Record:
        """Run the backward pass and return the record of every unit's gradient.

        `losses` holds one loss per row. A scalar is rejected, because it has already mixed the rows. `units` holds the
        index of each row's privacy unit, from 0: the gradients of a unit's rows are summed before they are measured.
        `seeds` are the weights of the losses in the backward pass, by default all one.
        """
        if self._replaced is not None:
            raise UnsupportedError("Expected backward after the `with tape:` block. Leave the block first.")
        calls, self._calls = self._calls, []
        size, self.batch_size = self.batch_size, None
        _check_losses(losses, size)
        rows = losses.shape[0]
        if rows == 0:
            return self.empty()
        if not calls:
            raise UnsupportedError("Expected a forward pass inside `with tape:` before backward, got none.")
        grouped = Units.of(units, rows)
        collector = Collector(self.layers, grouped, calls, rows, hold=self._create_graph)
        seeds = torch.ones_like(losses) if seeds is None else seeds
        with torch.autocast(losses.device.type, enabled=False):
            (self._differentiable if self._create_graph else self._once)(losses, seeds, calls)
            slots = collector.slots()
        for call in calls:
            call.release()
        return Record(slots, grouped, _wide(losses))

    def empty(self) -> Record:
        """Return the record of a batch without rows, which Poisson sampling may draw: all sums are zero."""
        like = _wide(next(iter(self._parameters.values())))
        return Record(Collector(self.layers, Units(0), [], 0, hold=False).slots(), Units(0), like)

    def record(self, use: Use, inputs: Tensor | None, out: Tensor) -> Tensor:
        """Record a layer's input, and its output's gradient when the backward pass computes it."""
        if not torch.is_grad_enabled():
            return out
        if not out.requires_grad:
            out = self.requiring_grad(out)
        self._calls.append(Call(use, inputs, out, self._create_graph))
        return out

    def requiring_grad(self, value: Tensor) -> Tensor:
        """Return a tensor that requires a gradient, even if nothing before it does."""
        if value.requires_grad or not torch.is_grad_enabled():
            return value
        return _Anchored.apply(value, self._anchor)  # type: ignore[no-any-return,no-untyped-call]

    def cast(self, value: Tensor) -> Tensor:
        """Return an input in autocast's type, cast once for consecutive layers with the same input."""
        if value.dtype != torch.float32:
            return value
        last = self._last_cast
        if last is not None and last[0] is value and last[1] == value._version:
            return last[2]
        if not torch.is_autocast_enabled(value.device.type):
            return value
        narrow = value.to(torch.get_autocast_dtype(value.device.type))
        self._last_cast = (value, value._version, narrow)
        return narrow

    def weight(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a detached weight or bias for an input of a type; autocast's casts of all layers take one launch.

        Under autocast a layer would cast its own weight and bias, one launch each, which is most of the time that a
        small layer takes on the host.
        """
        if dtype == parameter.dtype:
            return parameter.detach()
        if self._narrow is None:
            self._narrow = self._cast_weights(parameter.device.type, dtype)
        narrow = self._narrow.get(parameter)
        return parameter.detach() if narrow is None or narrow.dtype != dtype else narrow

    def _cast_weights(self, device: str, dtype: torch.dtype) -> dict[Tensor, Tensor]:
        """Return the float32 weights and biases of all linear layers in autocast's type, in buffers that are reused."""
        if self._create_graph or not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) != dtype:
            return {}
        linear = [layer.module for layer in self.layers if layer.kind in (Kind.LINEAR, Kind.CONV1D)]
        owned = [p for module in linear for p in module._parameters.values() if p is not None]
        weights: list[Tensor] = [
            p for p in dict.fromkeys(owned) if p.dtype == torch.float32 and p.device.type == device
        ]
        for p in weights:
            buffer = self._buffers.get(p)
            if buffer is None or buffer.dtype != dtype or buffer.shape != p.shape or buffer.device != p.device:
                self._buffers[p] = torch.empty_like(p, dtype=dtype, requires_grad=False)
        buffers = [self._buffers[p] for p in weights]
        if weights:
            with torch.no_grad():
                torch._foreach_copy_(buffers, weights)
        return dict(zip(weights, buffers, strict=True))

    def is_first_call(self, layer: Layer) -> bool:
        """Return whether a layer is called for the first time since the tape was made."""
        if layer.name in self._called:
            return False
        self._called.add(layer.name)
        return True

    def _once(self, losses: Tensor, seeds: Tensor, calls: list[Call]) -> None:
        # The layers detach their weights, so a weight that autograd still reaches is used outside its layer.
        before = [p.grad for p in self._parameters.values()]
        for p in self._parameters.values():
            p.grad = None
        try:
            torch.autograd.backward([losses], [seeds])
            outside = [name for name, p in self._parameters.items() if p.grad is not None]
        finally:
            for p, grad in zip(self._parameters.values(), before, strict=True):
                p.grad = grad
        _check_outside(outside)

    def _differentiable(self, losses: Tensor, seeds: Tensor, calls: list[Call]) -> None:
        edges = [call.edge for call in calls if call.edge is not None]
        targets: Any = [*edges, *self._parameters.values()]
        grads = torch.autograd.grad([losses], targets, [seeds], create_graph=True, allow_unused=True)
        _check_outside([n for n, g in zip(self._parameters, grads[len(edges) :], strict=True) if g is not None])


class _Anchored(torch.autograd.Function):
    """Identity whose result requires a gradient, even if nothing before it does."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor) -> Tensor:
        return value.detach()  # not a view, so that the model may still modify it in place

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        return None, None


def _sized(module: nn.Module, tape: Tape) -> Forward:
    """Return a module's forward that first sets the tape's batch size."""
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if tape.batch_size is None:
            tape.batch_size = max((t.shape[0] for t in tensors_in([*args, *kwargs.values()]) if t.dim()), default=None)
        return own(*args, **kwargs)

    return forward


def _check_losses(losses: Tensor, size: int | None) -> None:
    shape = tuple(losses.shape)
    if losses.dim() == 0:
        raise UnsupportedError(
            "Expected a vector of losses, one per row, got a scalar. A mean or a sum has already mixed the rows; "
            "compute the loss with reduction='none'."
        )
    if losses.dim() > 1 or (size is not None and shape != (size,)):
        rows = "each row" if size is None else f"each of {size} rows"
        raise UnsupportedError(
            f"Expected one loss for {rows}, got losses of shape {shape}. Sum or average the losses within a row."
        )
    if losses.shape[0] and not losses.requires_grad:
        raise UnsupportedError(
            "Expected losses that depend on the trainable parameters, got losses without a graph. Compute them inside "
            "`with tape:`."
        )


def _check_outside(names: list[str]) -> None:
    if names:
        raise UnsupportedError(
            f"Expected parameter {names[0]!r} to be used by its layers alone, got a use elsewhere in the model, whose "
            "gradient would not be clipped. Use a copy of it there, call its layer, or freeze it."
        )


def _wide(like: Tensor) -> Tensor:
    return like.detach() if like.dtype == torch.float64 else like.detach().float()


# Relative margin for rounding that no slot includes: the sums of squares and the division (measured below 2e-7).
_MARGIN = 2.0**-21
_LEAST = 1e-12


class Clip(Protocol):
    """A rule that computes a factor for every unit, so that no unit adds more than `sensitivity` to the sum."""

    @property
    def sensitivity(self) -> float:
        """The largest Euclidean norm of one unit's contribution to the sum."""
        ...

    def factors(self, record: Record) -> Tensor | dict[str, Tensor]:
        """Return each unit's factor, for all layers or by layer."""
        ...


@dataclass(frozen=True)
class Flat:
    """Clip the gradient of a unit, over all layers, to norm at most `norm`.

    >>> Flat(0.0)
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected norm to be > 0 and finite, got 0.0. It bounds ...
    """

    norm: float

    def __post_init__(self) -> None:
        """Check the norm."""
        _bound("norm", self.norm)

    @property
    def sensitivity(self) -> float:
        """The largest norm of one unit's contribution to the sum."""
        return self.norm

    def factors(self, record: Record) -> Tensor:
        """Return each unit's factor."""
        return _factors(record.upper_norms(), self.norm)


@dataclass(frozen=True)
class PerLayer:
    """Clip each layer's gradient of a unit separately: all layers to norm/sqrt(layers), or each to its own bound.

    >>> PerLayer(bounds={"encoder": 3.0, "head": 4.0}).sensitivity
    5.0
    """

    norm: float | None = None
    bounds: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        """Check that exactly one of norm and bounds is set, and its values."""
        if (self.norm is None) == (self.bounds is None):
            raise invalid(
                "norm",
                self.norm,
                "set if bounds is None, and None otherwise",
                "Set exactly one of the two.",
            )
        if self.norm is not None:
            _bound("norm", self.norm)
        for layer, bound in (self.bounds or {}).items():
            _bound(f"bounds[{layer!r}]", bound)

    @property
    def sensitivity(self) -> float:
        """The largest norm of one unit's contribution to the sum, over all layers."""
        if self.norm is not None:
            return self.norm
        return math.sqrt(sum(bound**2 for bound in (self.bounds or {}).values()))

    def factors(self, record: Record) -> dict[str, Tensor]:
        """Return each unit's factor, by layer."""
        layers = record.layers
        if self.norm is not None:
            bounds: Mapping[str, float] = dict.fromkeys(layers, self.norm / math.sqrt(max(len(layers), 1)))
        else:
            bounds = self.bounds or {}
            mismatched = sorted(set(bounds) ^ set(layers))
            if mismatched:
                raise invalid(
                    "bounds",
                    mismatched[0],
                    "names of every trainable layer and no other",
                    f"Layers: {', '.join(layers)}.",
                )
        return {layer: _factors(record.upper_norms(layer), bounds[layer]) for layer in layers}


@dataclass(frozen=True)
class Automatic:
    """Normalize instead of clipping: divide every gradient by its norm plus `stability`, and scale it to `norm`.

    Paper: Bu et al. 2023, Automatic clipping: differentially private deep learning made easier and stronger.
    """

    norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        """Check norm and stability."""
        _bound("norm", self.norm)
        positive("stability", self.stability, "It keeps small gradients small; the paper uses 0.01.")

    @property
    def sensitivity(self) -> float:
        """The largest norm of one unit's contribution to the sum."""
        return self.norm

    def factors(self, record: Record) -> Tensor:
        """Return each unit's factor."""
        return self.norm / (record.upper_norms() * (1 + _MARGIN) + self.stability)


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped gradients by parameter name, with each unit's norm before clipping and its factor.

    Guarantee: none by itself. No unit adds more than the clip's sensitivity to `gradients`, to which noise can be
    calibrated. `norms` and `factors` are private, with one number per unit.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    factors: Tensor | dict[str, Tensor]

    def __len__(self) -> int:
        """Return the number of units."""
        return self.norms.shape[0]

    def __add__(self, other: ClippedSum) -> ClippedSum:
        """Return the sum of two parts of a large batch. No unit may be in both."""
        gradients = {
            name: g if g is other.gradients[name] else g + other.gradients[name] for name, g in self.gradients.items()
        }
        return ClippedSum(gradients, torch.cat((self.norms, other.norms)), _joined(self.factors, other.factors))


def clipped_sum(record: Record, clip: Clip, *, keep: bool = False, into: dict[str, Tensor] | None = None) -> ClippedSum:
    """Return the sum over units of their clipped gradients, and free the record unless `keep` is set.

    A unit whose gradient is not finite adds nothing. Like any clip, this rule depends on that unit alone. With `into`,
    the sum is added to those tensors, which are returned, for a large batch in parts.

    Guarantee: none by itself. No unit adds more than `clip.sensitivity` to the sum, including the rounding of the
    scaled products. The sum is private until noise is added.
    """
    with torch.no_grad():
        norms = record.norms()
        if not capturing(norms):  # the code that replays a captured graph checks the norms
            not_finite = ~torch.isfinite(norms)
            if bool(not_finite.any()):
                record.zero(not_finite)
        factors = clip.factors(record)
        gradients = record.weighted_sum(factors, keep=keep, into=into)
    return ClippedSum(gradients, norms, factors)


def _bound(name: str, value: float) -> None:
    positive(name, value, "It bounds the contribution of one unit to the sum.")
    if value < _LEAST:
        raise invalid(name, value, f">= {_LEAST}", "Squares of smaller norms underflow in float32.")


def _factors(norms: Tensor, bound: float) -> Tensor:
    return (bound * (1 - _MARGIN) / norms).clamp_max(1.0)


def _joined(one: Tensor | dict[str, Tensor], other: Tensor | dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.cat((one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return {layer: torch.cat((f, other[layer])) for layer, f in one.items()}
    raise invalid("factors", "both kinds", "from one kind of clip", "Add parts that were clipped by the same rule.")
