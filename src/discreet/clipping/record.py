"""The record of one backward pass: norms, inner products and weighted sums of per-unit gradients.

A `Collector` turns the output gradients that arrive during the backward pass into slots, one for each parameter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from discreet.clipping import kernels
from discreet.clipping.forwards import Layer, Use
from discreet.clipping.norms import SHARE, accumulator, capturing, weighted_rows
from discreet.clipping.slots import (
    Lookup,
    Pair,
    Shared,
    Sizes,
    Slot,
    Tied,
    Units,
    Vectors,
    Weights,
    fused_sizes,
    fused_sums,
    instantiate,
    pair_sums,
    takes_vectors,
    time_sums,
    vector_sizes,
)
from discreet.core.errors import UnsupportedError, invalid

# Squared norms below this are treated as zero: they underflow in float32. Clips below 1e-12 are rejected.
_TINY_SQUARE = 1e-36
# The share of a squared norm that rounding may reach on a GPU before it is recomputed in float64. Gram matrices from
# half precision and TF32 are summed in float32 there, and ordinary units reach 1e-3.
_SHARE_ON_GPU = 2.0**-5
_UNSEEN_SQUARE = 1e-24  # the square root is below every clip
_DEFERRED_BYTES = 1 << 28  # of inputs and output gradients of layer norms that are computed at once
_HELD = 1 << 27  # numbers of units' gradients that are formed at once


class Record:
    """Per-unit gradients of one batch, stored as factors: norms and inner products can be computed, then one sum.

    `padding` is the number of last units that only fill up a shape and whose gradients are zero. `refined` is the
    number of units whose norm was recomputed in float64.

    Guarantee: none. These are the raw gradients of the batch; release them only after a clip and noise.
    """

    def __init__(self, slots: Sequence[Slot], units: Units, like: Tensor) -> None:
        """Store the slots of one backward pass."""
        self.slots = tuple(slots)
        self.units = units
        self.padding = 0
        self._like = like
        self._sizes: dict[str, Sizes] = {}
        self._together: list[tuple[list[str], Sizes]] = []  # sizes of several slots that are not yet in _sizes
        self._total: Sizes | None = None
        self.refined = 0
        self._spent = False

    def __len__(self) -> int:
        """Return the number of units."""
        return self.units.count

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the trainable parameters, in the model's order."""
        return tuple(slot.name for slot in self.slots)

    @property
    def layers(self) -> tuple[str, ...]:
        """Return the names of the layers, in the model's order."""
        return tuple(dict.fromkeys(slot.layer for slot in self.slots))

    def norms(self, names: Sequence[str] | None = None) -> Tensor:
        """Return the norm of each unit's gradient, over all trainable parameters or over those named.

        Where so much of a unit's gradient cancels that rounding errors matter, its norm is recomputed in float64. This
        is not done while a CUDA graph is captured or the norms are differentiated: use the bound `upper_norms` there.
        """
        total = self._sizes_of_all() if names is None else self._sizes_of(self._select(names))
        return self._root(total.squares)

    def layer_norms(self) -> dict[str, Tensor]:
        """Return the norm of each unit's gradient for each layer by name."""
        return {
            layer: self._root(self._sizes_of([s for s in self.slots if s.layer == layer]).squares)
            for layer in self.layers
        }

    def upper_norms(self, layer: str | None = None) -> Tensor:
        """Return a bound on the norm of each unit's contribution to a sum with weight one, including rounding.

        Under the model of rounding in `norms`, the computed sum with weights w_u is exactly a sum of one vector per
        unit, and the norm of unit u's is at most w_u times this bound, up to a few roundings of the bound itself.
        """
        total = self._sizes_of_all() if layer is None else self._sizes_of([s for s in self.slots if s.layer == layer])
        squares = total.squares.clamp_min(0) + _TINY_SQUARE
        return ((squares + total.error).sqrt() + total.drift.sqrt()).to(self._like.dtype)

    def inner(self, vectors: Mapping[str, Tensor], unit: int | None = None) -> Tensor:
        """Return <g_u, v> for every unit, or for one; v is given by parameter name, and is zero where it is not given.

        For one unit only its rows are read, so that one noise vector per unit costs one pass over the batch in all.
        """
        slots = self._select(list(vectors))
        for slot in slots:
            if vectors[slot.name].shape != slot.shape:
                shape = tuple(vectors[slot.name].shape)
                raise invalid(f"vectors[{slot.name!r}].shape", shape, f"equal to {tuple(slot.shape)}", "")
        if unit is not None and not 0 <= unit < len(self):
            raise invalid("unit", unit, f"in 0 … {len(self) - 1}", "It numbers the units of this batch.")
        with _without_autocast(self._like):
            if unit is not None:
                parts = [slot.inner_of(vectors[slot.name], unit) for slot in slots]
            else:
                parts = [slot.inner(vectors[slot.name]) for slot in slots]
            zero = self._like.new_zeros(() if unit is not None else (len(self),))
            return torch.stack(parts).sum(0) if parts else zero

    def weighted_sum(
        self,
        weights: Tensor | Mapping[str, Tensor],
        *,
        keep: bool = False,
        into: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return sum_u w_u g_u by parameter name; the weights may differ by layer.

        Unless `keep` is set, each layer's part of the record is freed as its sum is formed, and the record cannot be
        used any more. With `into`, the sums are added to those tensors, for a large batch in parts.
        """
        remaining = list(reversed(self._select(None)))
        names, sums = self.names, {} if into is None else into
        new = not sums
        if not keep:
            self.slots, self._spent = (), True
            self._forget()
        with torch.no_grad(), _without_autocast(self._like):
            if isinstance(weights, Tensor):
                everywhere = Weights.of(weights, self.units)
                small = [slot for slot in remaining if isinstance(slot, Vectors) and _is_small(slot)]
                large = [slot for slot in remaining if isinstance(slot, Vectors) and takes_vectors(slot)]
                pairs = [slot for slot in remaining if isinstance(slot, Pair)]
                remaining = [s for s in remaining if not (isinstance(s, Pair) or _is_small(s) or takes_vectors(s))]
                for name, part in fused_sums(large, weights).items():
                    _add(sums, name, part)
                for name, part in pair_sums(pairs, everywhere):
                    _add(sums, name, part)
                if small:
                    joined = weighted_rows(everywhere.units, torch.cat([slot.values for slot in small], 1))
                    widths = [vectors.values.shape[1] for vectors in small]
                    for vectors, part in zip(small, torch.split(joined, widths), strict=True):
                        _add(sums, vectors.name, part.view(vectors.shape))
                by_layer = {slot.layer: everywhere for slot in remaining}
            else:
                by_layer = {layer: Weights.of(one, self.units) for layer, one in weights.items()}
            shared: Shared = {}
            while remaining:
                slot = remaining.pop()
                _add(sums, slot.name, slot.weighted(by_layer[slot.layer], shared))
        if new:  # in the model's order
            ordered = {name: sums[name] for name in names}
            sums.clear()
            sums.update(ordered)
        return sums

    def gradients(self) -> dict[str, Tensor]:
        """Return every unit's gradient, (units, *shape), by parameter name; for tests and small models."""
        with _without_autocast(self._like):
            return {slot.name: slot.gradients() for slot in self._select(None)}

    def gram(self) -> Tensor:
        """Return the inner products of all pairs of units' gradients.

        One layer's gradients are formed at a time, or one unit's where those would take too much memory.
        """
        total = self._like.new_zeros(len(self), len(self))
        with _without_autocast(self._like):
            for slot in self._select(None):
                if len(self) * slot.shape.numel() <= _HELD:
                    rows = slot.gradients().flatten(1)
                    total = total + rows @ rows.mT
                    continue
                for unit, one_hot in enumerate(torch.eye(len(self), device=total.device)):
                    total[unit] += slot.inner(slot.weighted(Weights.of(one_hot, self.units), {}))
        return total

    def zero(self, units: Tensor) -> None:
        """Set the gradients of the units marked True to zero, also where they are not finite."""
        for slot in self._select(None):
            slot.zero(units)
        self._forget()

    def _select(self, names: Sequence[str] | None) -> Sequence[Slot]:
        if self._spent:
            raise UnsupportedError("Expected a record that is not freed. weighted_sum freed it; pass keep=True to it.")
        if names is None:
            return self.slots
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise invalid("name", unknown[0], "a trainable parameter of the model", "See record.names.")
        return [slot for slot in self.slots if slot.name in set(names)]

    def _sizes_of_all(self) -> Sizes:
        if self._total is None:
            self._total = self._sizes_of(self._select(None))
        return self._total

    def _sizes_of(self, slots: Sequence[Slot]) -> Sizes:
        self._select(None)
        shared: Shared = {}
        small_parts: list[Sizes] = []
        with _without_autocast(self._like):
            small = [slot.values for slot in slots if isinstance(slot, Vectors) and _is_small(slot)]
            if small:
                small_parts.append(vector_sizes(torch.cat(small, 1)))
            parts = [*small_parts]
            large = [slot for slot in slots if not _is_small(slot)]
            self._separate()
            self._together = fused_sizes([slot for slot in large if slot.name not in self._sizes])
            parts += [sizes.map(lambda values: values.sum(0)) for _, sizes in self._together]
            fused = {name for names, _ in self._together for name in names}
            for slot in large:
                if slot.name not in fused:
                    if slot.name not in self._sizes:
                        self._sizes[slot.name] = slot.sizes(shared)
                    parts.append(self._sizes[slot.name])
            total = _sum(parts, self._like, len(self))
            if large and self._refine(large, total):
                parts = [*small_parts, *(self._sizes[slot.name] for slot in large)]
                return _sum(parts, self._like, len(self))
            return total

    def _separate(self) -> None:
        """Store the sizes of slots that were measured together by their names."""
        for names, sizes in self._together:
            columns = zip(sizes.squares.unbind(), sizes.error.unbind(), sizes.drift.unbind(), strict=True)
            self._sizes |= {name: Sizes(*column) for name, column in zip(names, columns, strict=True)}
        self._together = []

    def _forget(self) -> None:
        self._sizes, self._together, self._total = {}, [], None

    def _refine(self, slots: Sequence[Slot], total: Sizes) -> bool:
        """Recompute in float64 the norms of units that rounding may have changed too much; return whether any was."""
        if capturing(total.squares) or total.squares.requires_grad:
            return False
        share = (_SHARE_ON_GPU if total.squares.is_cuda else SHARE) * total.squares.clamp_min(0) + _UNSEEN_SQUARE
        real = len(self) - self.padding  # the gradients of padding are zero
        uncertain = (total.error > share)[:real].tolist()
        if not any(uncertain):
            return False
        self._separate()
        # One transfer from the device for all slots and units.
        errors = torch.stack([self._sizes[slot.name].error.double() for slot in slots])
        exceeded = (len(slots) * errors > share).tolist()
        for slot, flags in zip(slots, exceeded, strict=True):
            units = [unit for unit in range(real) if uncertain[unit] and flags[unit]]
            if units:
                sizes, (squares, error) = self._sizes[slot.name], slot.exact(units)
                at = torch.tensor(units, device=squares.device)
                self._sizes[slot.name] = Sizes(
                    sizes.squares.double().index_copy(0, at, squares),
                    sizes.error.double().index_copy(0, at, error),
                    sizes.drift,
                )
        self.refined = sum(uncertain)
        return True

    def _root(self, squares: Tensor) -> Tensor:
        return squares.clamp_min(0).sqrt().to(self._like.dtype)


def _sum(parts: Sequence[Sizes], like: Tensor, units: int) -> Sizes:
    if not parts:
        zeros = like.new_zeros(units, dtype=torch.float64)
        return Sizes(zeros, zeros, zeros)
    return Sizes(
        torch.stack([sizes.squares.double() for sizes in parts]).sum(0),
        torch.stack([sizes.error.double() for sizes in parts]).sum(0),
        torch.stack([sizes.drift.double() for sizes in parts]).sum(0),
    )


def _is_small(slot: Slot) -> bool:
    return len(slot.shape) == 1


def _add(sums: dict[str, Tensor], name: str, part: Tensor) -> None:
    if name in sums:
        sums[name].add_(part)
    else:
        sums[name] = part


def _without_autocast(like: Tensor) -> torch.autocast:
    # Norms and sums choose their own precision.
    return torch.autocast(like.device.type, enabled=False)


# Arithmetic a device does in the time it moves a byte to memory; measured on an H200 in bfloat16 and on a server CPU.
_WORK_PER_BYTE = {"cuda": 100.0, "cpu": 5.0}
# Gradients may be kept instead of their factors if they take at most this many times the memory.
_MEMORY_RATIO = 1.25


class Call:
    """One call of a layer: its input, and the destination of its output's gradient."""

    __slots__ = ("collector", "edge", "inputs", "place", "rows", "use", "version")

    def __init__(self, use: Use, inputs: Tensor | None, out: Tensor, differentiable: bool) -> None:
        """Store a layer's input and register a hook for its output's gradient."""
        self.use = use
        self.inputs = inputs if inputs is None or differentiable else inputs.detach()
        self.version = 0 if inputs is None else inputs._version
        self.rows = out.shape[0] if out.dim() else 0
        self.collector: Collector | None = None
        # An edge holds the node that holds this call, so it exists only where it is needed and is released afterwards.
        self.edge: GradientEdge | None = get_gradient_edge(out) if differentiable else None
        self.place = out.output_nr
        if differentiable:
            out.register_hook(self.receive)  # type: ignore[no-untyped-call]
        else:
            # A hook on the node takes half the time of one on the tensor. It runs in a backward pass without inputs.
            assert out.grad_fn is not None
            out.grad_fn.register_prehook(self._receive_from_node)

    def _receive_from_node(self, grads: Sequence[Tensor | None]) -> None:
        if (grad := grads[self.place]) is not None:
            self.receive(grad)

    def receive(self, grads: Tensor) -> None:
        """Pass the gradient of the output and the input to the collector, and release both."""
        if self.collector is None:
            return
        if self.inputs is not None and self.inputs._version != self.version:
            raise UnsupportedError(
                f"Expected the input of layer {self.use.layer.name!r} to be unchanged, got one that was modified in "
                "place after the layer read it. Use an operation that makes a new tensor."
            )
        self.use.collect(self.collector, self.inputs, grads)
        self.collector = self.inputs = None

    def release(self) -> None:
        """Release everything, whether or not a gradient arrived."""
        self.collector = self.inputs = self.edge = None


class Collector:
    """Gradients of the parameters of one batch, collected over the calls of their layers."""

    def __init__(self, layers: Sequence[Layer], units: Units, calls: Iterable[Call], rows: int, hold: bool) -> None:
        """Prepare for the gradients of a batch; `hold` keeps all factors as they are."""
        self.rows = rows
        self._layers = layers
        self._units = units
        self._hold = hold
        self._matrices: dict[str, list[tuple[Tensor, Tensor, bool]]] = defaultdict(list)
        self._lookups: dict[str, list[tuple[Tensor, Tensor, int | None]]] = defaultdict(list)
        self._vectors: dict[str, Tensor] = {}
        self._time_sums: list[tuple[str, Tensor]] = []
        self._norms: list[tuple[str, str, Tensor, Tensor, float]] = []
        self._norm_bytes = 0
        self._uses: Counter[str | None] = Counter()
        for call in calls:
            if call.rows != rows:
                raise UnsupportedError(
                    f"Expected layer {call.use.layer.name!r} to return {rows} rows, one for each loss, got "
                    f"{call.rows}. Put the batch first; for positions looked up outside their model, call "
                    "tape.expect(batch_size)."
                )
            self._uses[call.use.weight] += 1
            call.collector = self

    def add_matrix(self, name: str, inputs: Tensor, grads: Tensor, transposed: bool = False) -> bool:
        """Add sum_t grad_t input_t^T to the gradients of a matrix; return whether the factors are kept."""
        if self._hold or self._uses[name] > 1 or not keeps_gradients(inputs, grads, self.rows / self._units.count):
            self._matrices[name].append((inputs, grads, transposed))
            return True
        (self._vectors[name],) = self._units.apply(
            lambda i, g: (instantiate(i, g, transposed).flatten(1),), inputs, grads
        )
        return False

    def add_time_sum(self, name: str, grads: Tensor, kept: bool) -> None:
        """Add the sum over time of (rows, time, width); if the tensor is kept anyway, all are summed at once later."""
        if kept and grads.is_cuda and not self._hold:
            self._time_sums.append((name, grads))
        else:
            self.add_vector(name, grads.sum(1, dtype=accumulator(grads.dtype)))

    def add_lookup(self, name: str, ids: Tensor, grads: Tensor, padding: int | None) -> None:
        """Add output gradients (rows, time, width) to the rows of a table that ids (rows, time) name."""
        self._lookups[name].append((ids, grads, padding))

    def add_norm(self, weight: str, bias: str, inputs: Tensor, grads: Tensor, eps: float) -> None:
        """Add the gradients of a layer norm; several norms are computed in one launch, up to a limit on memory."""
        self._norms.append((weight, bias, inputs, grads, eps))
        self._norm_bytes += inputs.numel() * inputs.element_size() + grads.numel() * grads.element_size()
        if self._norm_bytes > _DEFERRED_BYTES:
            self._compute_norms()

    def _compute_norms(self) -> None:
        norms, self._norms, self._norm_bytes = self._norms, [], 0
        groups: dict[tuple[object, ...], list[tuple[str, str, Tensor, Tensor, float]]] = defaultdict(list)
        for norm in norms:
            _, _, inputs, grads, eps = norm
            groups[inputs.shape, inputs.stride(), grads.stride(), inputs.dtype, grads.dtype, eps].append(norm)
        for group in groups.values():
            weights, biases = kernels.norm_sums([(inputs, grads) for _, _, inputs, grads, _ in group], group[0][4])
            for (weight, bias, *_), by_weight, by_bias in zip(group, weights.unbind(), biases.unbind(), strict=True):
                self.add_vector(weight, by_weight)
                self.add_vector(bias, by_bias)

    def add_vector(self, name: str, values: Tensor) -> None:
        """Add the gradients themselves, (rows, numbers)."""
        if values.dtype.itemsize < 4:
            values = values.float()
        values = self._units.total(values)
        self._vectors[name] = self._vectors[name] + values if name in self._vectors else values

    def slots(self) -> list[Slot]:
        """Return the slots of all parameters, or reject by name a parameter that the losses do not depend on."""
        self._compute_norms()
        sums = time_sums([grads for _, grads in self._time_sums])
        for (name, _), values in zip(self._time_sums, sums, strict=True):
            self.add_vector(name, values)
        self._time_sums = []
        first = {name: (layer, local) for layer in reversed(self._layers) for local, name in layer.parameters.items()}
        names = dict.fromkeys(name for layer in self._layers for name in layer.parameters.values())
        return [self._slot(name, *first[name]) for name in names]

    def _slot(self, name: str, layer: Layer, local: str) -> Slot:
        parameter = layer.module._parameters[local]
        assert parameter is not None
        shape = parameter.shape
        pair = self._pair(name, layer.name, shape) if name in self._matrices else None
        lookup = self._lookup(name, layer.name, shape) if name in self._lookups else None
        values = self._vectors.pop(name, None)
        if values is None and self.rows == 0:
            values = parameter.new_zeros((0, parameter.numel()), dtype=accumulator(parameter.dtype))
        if values is not None:
            for slot in (pair, lookup):  # another layer with the same weight; its gradients are small enough to form
                if slot is not None:
                    values = values + slot.gradients().flatten(1)
            return Vectors(name, layer.name, shape, values)
        if pair is not None and lookup is not None:
            return Tied(name, layer.name, shape, pair, lookup, self._units)
        slot = pair or lookup
        if slot is None:
            raise UnsupportedError(
                f"Expected the losses to depend on parameter {name!r}, got no gradient for it. Freeze it with "
                "requires_grad_(False), or remove its layer from the model."
            )
        return slot

    def _pair(self, name: str, layer: str, shape: torch.Size) -> Pair:
        parts = self._matrices.pop(name)
        inputs, grads, transposed = parts[0]
        if len(parts) > 1:  # a layer used several times, or tied: its calls are concatenated in time
            if any(part[2] != transposed for part in parts):
                parts = [(part[1], part[0], False) if part[2] else part for part in parts]
                transposed = False
            inputs = torch.cat([part[0] for part in parts], 1)
            grads = torch.cat([part[1] for part in parts], 1)
        return Pair(name, layer, shape, inputs, grads, self._units, transposed)

    def _lookup(self, name: str, layer: str, shape: torch.Size) -> Lookup:
        parts = self._lookups.pop(name)
        ids, grads, padding = parts[0]
        if len(parts) > 1:
            if any(part[2] != padding for part in parts):
                parts = [(i, g if p is None else g * (i != p)[..., None], None) for i, g, p in parts]
                padding = None
            ids = torch.cat([part[0] for part in parts], 1)
            grads = torch.cat([part[1] for part in parts], 1)
        return Lookup(name, layer, shape, ids, grads, self._units, padding)


def keeps_gradients(inputs: Tensor, grads: Tensor, rows_a_unit: float = 1.0) -> bool:
    """Return whether to keep the gradients of a matrix instead of their factors, which is cheaper for long sequences.

    The factors cost two Gram matrices, which grow with the square of the length. The gradients cost memory bandwidth:
    they are written once and read twice.

    >>> keeps_gradients(torch.empty(16, 512, 768), torch.empty(16, 512, 768))
    True
    >>> keeps_gradients(torch.empty(64, 128, 768), torch.empty(64, 128, 768))
    False
    """
    length = inputs.shape[1] * rows_a_unit
    into, out = inputs.shape[-1], grads.shape[-1]
    if into * out > _MEMORY_RATIO * length * (into + out):
        return False
    item = torch.promote_types(inputs.dtype, grads.dtype).itemsize
    return 2 * length * length * (into + out) > 3 * item * _WORK_PER_BYTE.get(inputs.device.type, 5.0) * into * out
