"""What one backward pass left behind: everything needed for norms, inner products and weighted sums, once.

Turns the output gradients that arrive during the backward pass into slots, one for each parameter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from discreet.clipping.forwards import Use
from discreet.clipping.layers import Layer
from discreet.clipping.norms import accumulator, capturing, weighted_rows
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
    takes_vectors,
    vector_sizes,
)
from discreet.core.errors import UnsupportedError, invalid

# Norms below this are not told apart from zero: their squares fall under float32. A clip is refused below 1e-12.
_TINY_SQUARE = 1e-36
# A unit whose squared norm may be off by more than this share of it has its gradient formed in float64. On a GPU, Gram
# matrices from half precision and TF32 are summed in float32, and the share is larger, for ordinary units reach 1e-3.
_SHARE, _SHARE_ON_GPU = 1e-3, 2.0**-5
_UNSEEN_SQUARE = 1e-24  # no clip is as small as its root
_HELD = 1 << 27  # numbers of several units' gradients that are formed at once


class Record:
    """The per-unit gradients of one batch, never formed: asked for norms and inner products, then summed once.

    Guarantee: none, for these are the raw gradients of the batch; they leave only through a clip and noise.
    """

    def __init__(self, slots: Sequence[Slot], units: Units, like: Tensor) -> None:
        """Keep the slots of one backward pass."""
        self.slots = tuple(slots)
        self.units = units
        self.padding = 0  # so many of the last units are no one's: they fill up a shape, and their gradients are zero
        self._like = like
        self._sizes: dict[str, Sizes] = {}
        self._all: Sizes | None = None
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

        A unit in whose gradient so much cancels that rounding could show has its gradient formed in float64. Not so
        while a CUDA graph is recorded, or kept for differentiation: there `upper_norms` is the bound to use.
        """
        total = self._whole() if names is None else self._total(self._chosen(names))
        return self._rooted(total.squares)

    def layer_norms(self) -> dict[str, Tensor]:
        """Return the norm of each unit's gradient for each layer by name."""
        return {
            layer: self._rooted(self._total([s for s in self.slots if s.layer == layer]).squares)
            for layer in self.layers
        }

    def upper_norms(self, layer: str | None = None) -> Tensor:
        """Return a bound on the norm of what each unit adds to a sum with weight one, rounding counted in.

        Under the model of rounding in `precision`, the computed sum with weights w_u is exactly a sum of one vector for
        each unit, and unit u's is no longer than w_u times this bound, but for a few roundings of the bound itself.
        """
        total = self._whole() if layer is None else self._total([s for s in self.slots if s.layer == layer])
        squares = total.squares.clamp_min(0) + _TINY_SQUARE
        return ((squares + total.error).sqrt() + total.drift.sqrt()).to(self._like.dtype)

    def inner(self, vectors: Mapping[str, Tensor], unit: int | None = None) -> Tensor:
        """Return <g_u, v> for every unit, or for one, v given by parameter name; those not named count as zero.

        For one unit only that unit's rows are touched, so that a stream of noise vectors, one to each unit, costs one
        pass over the batch in all.
        """
        slots = self._chosen(list(vectors))
        for slot in slots:
            if vectors[slot.name].shape != slot.shape:
                shape = tuple(vectors[slot.name].shape)
                raise invalid(f"vectors[{slot.name!r}].shape", shape, f"equal to {tuple(slot.shape)}", "")
        if unit is not None and not 0 <= unit < len(self):
            raise invalid("unit", unit, f"in 0 … {len(self) - 1}", "It numbers the units of this batch.")
        with _quiet(self._like):
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

        Unless `keep` is set, each layer's record is freed as its sum is formed, and the record answers nothing more.
        With `into`, the sums are added to those tensors: a large batch in parts.
        """
        slots = self._chosen(None)
        sums = {} if into is None else into
        shared: Shared = {}
        if not keep:
            self.slots, self._spent = (), True
            self._sizes, self._all = {}, None
        remaining = list(reversed(slots))
        del slots
        small: list[Vectors] = []
        large: list[Vectors] = []
        with torch.no_grad(), _quiet(self._like):
            if isinstance(weights, Tensor):
                flat = Weights.of(weights, self.units)
                for kind, chosen in ((_is_small, small), (takes_vectors, large)):
                    chosen += [slot for slot in remaining if isinstance(slot, Vectors) and kind(slot)]
                    remaining = [slot for slot in remaining if not kind(slot)]
                for name, part in fused_sums(large, weights).items():
                    _add(sums, name, part)
            else:
                layered = {layer: Weights.of(one, self.units) for layer, one in weights.items()}
            while remaining:
                slot = remaining.pop()
                mine = flat if isinstance(weights, Tensor) else layered[slot.layer]
                _add(sums, slot.name, slot.weighted(mine, shared))
            if small:
                joined = weighted_rows(flat.units, torch.cat([slot.values for slot in small], 1))
                for slot, part in zip(small, torch.split(joined, [s.values.shape[1] for s in small]), strict=True):
                    _add(sums, slot.name, part.view(slot.shape))
        return sums

    def gradients(self) -> dict[str, Tensor]:
        """Return every unit's gradient, (units, *shape) by parameter name: for proofs and small models."""
        with _quiet(self._like):
            return {slot.name: slot.gradients() for slot in self._chosen(None)}

    def gram(self) -> Tensor:
        """Return the inner products of all pairs of units' gradients, one layer's gradients formed at a time.

        Where that would be too much to hold, as for a table of words, it is one unit's gradient at a time.
        """
        total = self._like.new_zeros(len(self), len(self))
        with _quiet(self._like):
            for slot in self._chosen(None):
                if len(self) * slot.shape.numel() <= _HELD:
                    rows = slot.gradients().flatten(1)
                    total = total + rows @ rows.mT
                    continue
                for unit, alone in enumerate(torch.eye(len(self), device=total.device)):
                    total[unit] += slot.inner(slot.weighted(Weights.of(alone, self.units), {}))
        return total

    def zero(self, units: Tensor) -> None:
        """Set the gradients of the units marked True to zero, also where they are not finite."""
        for slot in self._chosen(None):
            slot.zero(units)
        self._sizes, self._all = {}, None

    def _chosen(self, names: Sequence[str] | None) -> Sequence[Slot]:
        if self._spent:
            raise UnsupportedError("Expected a record that is not spent. weighted_sum freed it; pass keep=True there.")
        if names is None:
            return self.slots
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise invalid("name", unknown[0], "a trainable parameter of the model", "See record.names.")
        return [slot for slot in self.slots if slot.name in set(names)]

    def _whole(self) -> Sizes:
        if self._all is None:
            self._all = self._total(self._chosen(None))
        return self._all

    def _total(self, slots: Sequence[Slot]) -> Sizes:
        self._chosen(None)
        shared: Shared = {}
        found: list[Sizes] = []
        with _quiet(self._like):
            small = [slot.values for slot in slots if isinstance(slot, Vectors) and _is_small(slot)]
            if small:
                found.append(vector_sizes(torch.cat(small, 1)))
            self._sizes |= fused_sizes([slot for slot in slots if slot.name not in self._sizes])
            for slot in slots:
                if _is_small(slot):
                    continue
                if slot.name not in self._sizes:
                    self._sizes[slot.name] = slot.sizes(shared)
                found.append(self._sizes[slot.name])
            total = _sum(found, self._like, len(self))
            large = [slot for slot in slots if not _is_small(slot)]
            if large and self._refine(large, total):
                rest = found[: len(found) - len(large)]
                return _sum([*rest, *(self._sizes[slot.name] for slot in large)], self._like, len(self))
            return total

    def _refine(self, slots: Sequence[Slot], total: Sizes) -> bool:
        """Form, in float64, the gradients of units of which rounding left too little known; whether there are any."""
        if capturing(total.squares) or total.squares.requires_grad:
            return False
        share = (_SHARE_ON_GPU if total.squares.is_cuda else _SHARE) * total.squares.clamp_min(0) + _UNSEEN_SQUARE
        real = len(self) - self.padding  # the gradient of padding is zero, whatever is known of its size
        units = (total.error > share)[:real].nonzero().flatten().tolist()
        for unit in units:
            for slot in slots:
                sizes = self._sizes[slot.name]
                if len(slots) * float(sizes.error[unit]) > float(share[unit]):
                    square, error = slot.exact(unit)
                    at = torch.tensor([unit], device=square.device)
                    self._sizes[slot.name] = Sizes(
                        sizes.squares.double().index_copy(0, at, square[None]),
                        sizes.error.double().index_copy(0, at, error[None]),
                        sizes.drift,
                    )
        return bool(units)

    def _rooted(self, squares: Tensor) -> Tensor:
        return squares.clamp_min(0).sqrt().to(self._like.dtype)


def _sum(found: Sequence[Sizes], like: Tensor, units: int) -> Sizes:
    if not found:
        zeros = like.new_zeros(units, dtype=torch.float64)
        return Sizes(zeros, zeros, zeros)
    return Sizes(
        torch.stack([sizes.squares.double() for sizes in found]).sum(0),
        torch.stack([sizes.error.double() for sizes in found]).sum(0),
        torch.stack([sizes.drift.double() for sizes in found]).sum(0),
    )


def _is_small(slot: Slot) -> bool:
    return len(slot.shape) == 1


def _add(sums: dict[str, Tensor], name: str, part: Tensor) -> None:
    if name in sums:
        sums[name].add_(part)
    else:
        sums[name] = part


def _quiet(like: Tensor) -> torch.autocast:
    # Norms and sums choose their own precision, whatever the caller's autocast says.
    return torch.autocast(like.device.type, enabled=False)


# Arithmetic a device does in the time it moves a byte to memory; measured on an H200 in bfloat16 and on a server CPU.
_WORK_PER_BYTE = {"cuda": 100.0, "cpu": 5.0}
# Gradients may be kept instead of their factors if they take at most this many times the memory.
_MEMORY_RATIO = 1.25


class Call:
    """One call of a layer: its input, and the destination of its output's gradient."""

    __slots__ = ("collector", "edge", "inputs", "rows", "use", "version")

    def __init__(self, use: Use, inputs: Tensor | None, out: Tensor, differentiable: bool) -> None:
        """Store a layer's input and register a hook for its output's gradient."""
        self.use = use
        self.inputs = inputs if inputs is None or differentiable else inputs.detach()
        self.version = 0 if inputs is None else inputs._version
        self.rows = out.shape[0] if out.dim() else 0
        self.collector: Collector | None = None
        # An edge holds the node that holds this call, so it exists only where it is needed and is released afterwards.
        self.edge: GradientEdge | None = get_gradient_edge(out) if differentiable else None
        out.register_hook(self.receive)  # type: ignore[no-untyped-call]

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

    def add_matrix(self, name: str, inputs: Tensor, grads: Tensor, transposed: bool = False) -> None:
        """Add sum_t grad_t input_t^T to the gradients of a matrix; the factors are (rows, time, width)."""
        if self._hold or self._uses[name] > 1 or not keeps_gradients(inputs, grads, self.rows / self._units.count):
            self._matrices[name].append((inputs, grads, transposed))
            return
        (self._vectors[name],) = self._units.apply(
            lambda i, g: (instantiate(i, g, transposed).flatten(1),), inputs, grads
        )

    def add_lookup(self, name: str, ids: Tensor, grads: Tensor, padding: int | None) -> None:
        """Add output gradients (rows, time, width) to the rows of a table that ids (rows, time) name."""
        self._lookups[name].append((ids, grads, padding))

    def add_vector(self, name: str, values: Tensor) -> None:
        """Add the gradients themselves, (rows, numbers)."""
        if values.dtype.itemsize < 4:
            values = values.float()
        values = self._units.total(values)
        self._vectors[name] = self._vectors[name] + values if name in self._vectors else values

    def slots(self) -> list[Slot]:
        """Return the slots of all parameters, or reject by name a parameter that the losses do not reach."""
        first = {name: (layer, local) for layer in reversed(self._layers) for local, name in layer.parameters.items()}
        names = dict.fromkeys(name for layer in self._layers for name in layer.parameters.values())
        return [self._slot(name, *first[name]) for name in names]

    def _slot(self, name: str, layer: Layer, local: str) -> Slot:
        parameter = layer.module._parameters[local]
        assert parameter is not None
        shape = parameter.shape
        pair, lookup = self._pair(name, layer.name, shape), self._lookup(name, layer.name, shape)
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

    def _pair(self, name: str, layer: str, shape: torch.Size) -> Pair | None:
        parts = self._matrices.pop(name, None)
        if parts is None:
            return None
        inputs, grads, transposed = parts[0]
        if len(parts) > 1:  # a layer used several times, or tied: its calls are concatenated in time
            if any(part[2] != transposed for part in parts):
                parts = [(part[1], part[0], False) if part[2] else part for part in parts]
                transposed = False
            inputs = torch.cat([part[0] for part in parts], 1)
            grads = torch.cat([part[1] for part in parts], 1)
        return Pair(name, layer, shape, inputs, grads, self._units, transposed)

    def _lookup(self, name: str, layer: str, shape: torch.Size) -> Lookup | None:
        parts = self._lookups.pop(name, None)
        if parts is None:
            return None
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
