"""Storage of the per-unit gradients of each parameter, as factors or as the gradients themselves.

A slot holds the gradients of one parameter for all units of a batch. It computes their squared norms, their inner
products with a vector, their weighted sum and, for small models and tests, the gradients themselves. `Units` maps the
rows of a batch to privacy units. `fused_sizes`, `fused_sums`, `pair_sums` and `time_sums` process many slots in one
kernel launch for each shape where the kernels can be used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.clipping import kernels, norms
from discreet.clipping.norms import (
    FLOAT32_UNIT,
    FLOAT64_UNIT,
    accumulator,
    batched,
    batched_product,
    bounded,
    drift_of_lookup,
    drift_of_pair,
    drift_of_rows,
    gamma,
    operand_truncation,
    product,
    product_precision,
    promoted,
    scattered,
    weighted_rows,
)
from discreet.core.errors import invalid

Key = tuple[int, int, torch.Size, torch.dtype]
# Below this size an ordinary operation takes less time than the launch of a kernel of ours, except in a captured graph.
_LARGE, _LARGE_IN_GRAPH = 2**23, 2**18
_ALIGNED = 8  # numbers: the most that a kernel reads at once
_WIDE = 2**13  # above this width, as of a vocabulary, a library's matrix product is faster than one program per tile
_STRETCH = 2**8  # squares that are summed in float32 before the sum is converted to float64
Shared = dict[tuple[object, ...], Tensor]  # results that slots with the same input share, as query, key and value do


@dataclass(frozen=True)
class Weights:
    """Weights of the units of a batch and of its rows."""

    units: Tensor
    rows: Tensor
    spread: Tensor  # the weights of the rows as (rows, 1, 1)

    @staticmethod
    def of(weights: Tensor, units: Units) -> Weights:
        """Return the weights of units and rows."""
        rows = units.rows(weights)
        return Weights(weights, rows, rows.view(-1, 1, 1))


@dataclass(frozen=True)
class Sizes:
    """Squared norms (units,), bounds on their errors, and the squared distance by which rounding may move the sum."""

    squares: Tensor
    error: Tensor
    drift: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Sizes:
        """Apply a function to each of the three."""
        return Sizes(function(self.squares), function(self.error), function(self.drift))


class Slot(Protocol):
    """The gradients of one parameter, for every unit of a batch."""

    name: str
    layer: str
    shape: torch.Size

    def sizes(self, shared: Shared) -> Sizes:
        """Return the squared norms of the units' gradients."""
        ...

    def exact(self, units: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return some units' squared norms from float64, and bounds on their errors."""
        ...

    def inner(self, vector: Tensor) -> Tensor:
        """Return the inner product of each unit's gradient with a vector."""
        ...

    def inner_of(self, vector: Tensor, unit: int) -> Tensor:
        """Return the inner product of one unit's gradient with a vector, reading only its rows."""
        ...

    def weighted(self, weights: Weights, shared: Shared) -> Tensor:
        """Return the sum of the units' gradients, each times its weight."""
        ...

    def gradients(self) -> Tensor:
        """Return the units' gradients, of shape (units, *shape)."""
        ...

    def zero(self, units: Tensor) -> None:
        """Set the gradients of the units marked True to zero, also where they are not finite."""
        ...

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the stored tensors, with one entry per row or unit."""
        ...


def key_of(tensor: Tensor) -> Key:
    """Return a key that identifies a stored tensor."""
    return (tensor.data_ptr(), int(tensor.storage_offset()), tensor.shape, tensor.dtype)


@dataclass
class Vectors:
    """Per-unit gradients themselves: of a bias, of a norm's weight, or of a matrix that is smaller than its factors."""

    name: str
    layer: str
    shape: torch.Size
    values: Tensor  # (units, numbers)

    def sizes(self, shared: Shared) -> Sizes:
        """Return the squared norms."""
        return vector_sizes(self.values)

    def exact(self, units: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return some units' squared norms in float64."""
        squares = torch.stack([self.values[unit].double().square().sum() for unit in units])
        return squares, squares * gamma(self.values.shape[1] + 4, FLOAT64_UNIT)

    def inner(self, vector: Tensor) -> Tensor:
        """Return the inner product of each unit's gradient with a vector."""
        wide = accumulator(self.values.dtype)
        return self.values.to(wide) @ vector.reshape(-1).to(wide)

    def inner_of(self, vector: Tensor, unit: int) -> Tensor:
        """Return the inner product of one unit's gradient with a vector."""
        wide = accumulator(self.values.dtype)
        return self.values[unit].to(wide) @ vector.reshape(-1).to(wide)

    def weighted(self, weights: Weights, shared: Shared) -> Tensor:
        """Return the weighted sum."""
        return weighted_rows(weights.units, self.values).view(self.shape)

    def gradients(self) -> Tensor:
        """Return the units' gradients."""
        return self.values.to(accumulator(self.values.dtype)).view(-1, *self.shape)

    def zero(self, units: Tensor) -> None:
        """Set the gradients of some units to zero."""
        self.values = self.values.masked_fill(units[:, None], 0)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the stored tensors."""
        return (self.values,)


@dataclass
class Pair:
    """A matrix whose gradient is sum_t grad_t input_t^T, stored as the two factors.

    `transposed` means that the matrix is stored as (inputs, outputs), as in GPT-2's Conv1D.
    """

    name: str
    layer: str
    shape: torch.Size
    inputs: Tensor  # (rows, time, inputs)
    grads: Tensor  # (rows, time, outputs)
    units: Units
    transposed: bool = False

    @property
    def scales_inputs(self) -> bool:
        """Whether the inputs are scaled: the narrower factor, or on a tie the one that other layers may share."""
        return self.inputs.shape[-1] <= self.grads.shape[-1]

    @property
    def scaled_key(self) -> tuple[object, ...]:
        """The factor to which the weights are applied, and the type of the product."""
        scaled, other = (self.inputs, self.grads) if self.scales_inputs else (self.grads, self.inputs)
        return (*key_of(scaled), other.dtype)

    def sizes(self, shared: Shared) -> Sizes:
        """Return the squared norms by the ghost formula."""
        inputs, grads = promoted(self.inputs, self.grads)
        if self.units.index is None and inputs.shape[1] > 1:
            figures = norms.shared_sizes(inputs, grads, self.scales_inputs, key_of(self.inputs), shared)
        elif self.scales_inputs:
            figures = norms.Figures(*self.units.apply(norms.pair_sizes, inputs, grads))
        else:
            figures = norms.Figures(*self.units.apply(norms.pair_sizes, grads, inputs))
        drift = drift_of_pair(figures.size, figures.span, inputs.dtype, inputs.device)
        return Sizes(figures.squares, figures.error, drift)

    def exact(self, units: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return some units' squared norms from float64: from Gram matrices, or if much cancels from the gradients."""
        if self.units.index is None and self.inputs.is_cuda:
            at = torch.tensor(units, device=self.inputs.device)
            figures = norms.pair_sizes(self.inputs[at].double(), self.grads[at].double())
            if bool((figures.error <= norms.SHARE * figures.squares).all()):
                return figures.squares, figures.error
        return _stacked(self._exact(unit) for unit in units)

    def _exact(self, unit: int) -> tuple[Tensor, Tensor]:
        rows = self.units.rows_of(unit)
        return norms.exact_pair(self.inputs[rows].flatten(0, 1), self.grads[rows].flatten(0, 1))

    def inner(self, vector: Tensor) -> Tensor:
        """Return the inner product of each unit's gradient with a vector by the ghost formula."""
        return self.units.total(_pair_inner(self.inputs, self.grads, self._as_matrix(vector)))

    def inner_of(self, vector: Tensor, unit: int) -> Tensor:
        """Return the inner product of one unit's gradient with a vector."""
        rows = self.units.rows_of(unit)
        return _pair_inner(self.inputs[rows], self.grads[rows], self._as_matrix(vector)).sum()

    def _as_matrix(self, vector: Tensor) -> Tensor:
        return vector.mT if self.transposed else vector.flatten(1)  # (outputs, inputs)

    def weighted(self, weights: Weights, shared: Shared) -> Tensor:
        """Return the weighted sum as one matrix product, or a few for a large batch."""
        inputs, grads = self.inputs, self.grads
        key = (*self.scaled_key, id(weights))
        scaled = shared.get(key)
        if scaled is None:
            shared.clear()  # only consecutive layers share an input, and a scaled copy takes as much memory as it
            factor, other = (inputs, grads) if self.scales_inputs else (grads, inputs)
            scaled = shared[key] = _scaled(factor, weights, other.dtype)
        if self.scales_inputs:
            inputs = scaled
        else:
            grads = scaled
        inputs, grads = promoted(inputs.flatten(0, 1), grads.flatten(0, 1))
        return (product(inputs, grads) if self.transposed else product(grads, inputs)).view(self.shape)

    def gradients(self) -> Tensor:
        """Return the units' gradients."""
        formed = self.units.total(instantiate(self.inputs, self.grads, self.transposed, wide=True))
        return formed.view(-1, *self.shape)

    def zero(self, units: Tensor) -> None:
        """Set the gradients of some units to zero."""
        rows = self.units.rows(units)[:, None, None]
        self.inputs, self.grads = self.inputs.masked_fill(rows, 0), self.grads.masked_fill(rows, 0)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the stored tensors."""
        return self.inputs, self.grads


@dataclass
class Lookup:
    """An embedding table, whose gradient adds each output gradient to the row of its id."""

    name: str
    layer: str
    shape: torch.Size
    ids: Tensor  # (rows, time)
    grads: Tensor  # (rows, time, width)
    units: Units
    padding: int | None = None

    def sizes(self, shared: Shared) -> Sizes:
        """Return the squared norms: rows that share an id are summed before they are squared."""
        sizes = self.units.apply(lambda i, g: norms.id_sizes(i, g, self.padding), self.ids, self.grads)
        figures = norms.Figures(*sizes)
        drift = drift_of_lookup(figures.size, self.shape.numel(), self.grads.dtype)
        return Sizes(figures.squares, figures.error, drift)

    def exact(self, units: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return some units' squared norms from their gradients, formed in float64."""
        return _stacked(self._exact(unit) for unit in units)

    def _exact(self, unit: int) -> tuple[Tensor, Tensor]:
        rows = self.units.rows_of(unit)
        return norms.exact_lookup(self.ids[rows].flatten(), self.grads[rows].flatten(0, 1), self.padding)

    def inner(self, vector: Tensor) -> Tensor:
        """Return the inner product of each unit's gradient with a vector."""
        return self.units.total(self._inner(self.ids, self.grads, vector))

    def inner_of(self, vector: Tensor, unit: int) -> Tensor:
        """Return the inner product of one unit's gradient with a vector."""
        rows = self.units.rows_of(unit)
        return self._inner(self.ids[rows], self.grads[rows], vector).sum()

    def _inner(self, ids: Tensor, grads: Tensor, vector: Tensor) -> Tensor:
        wide = accumulator(grads.dtype)
        each = (vector.to(wide)[ids] * grads.to(wide)).sum(-1)
        return (each if self.padding is None else each * (ids != self.padding)).sum(1)

    def weighted(self, weights: Weights, shared: Shared) -> Tensor:
        """Return the weighted sum: a scatter into a table of zeros."""
        grads = _scaled(self.grads, weights, accumulator(self.grads.dtype))
        padding = -1 if self.padding is None else self.padding
        return scattered(grads, self.ids, self.shape[0], padding)

    def gradients(self) -> Tensor:
        """Return the units' gradients."""
        grads = self.grads.to(accumulator(self.grads.dtype))
        if self.padding is not None:
            grads = grads * (self.ids != self.padding)[..., None]
        rows, length = self.ids.shape
        place = self.ids + self.shape[0] * torch.arange(rows, device=self.ids.device)[:, None]
        table = grads.new_zeros(rows * self.shape[0], self.shape[1])
        table = table.index_add(0, place.flatten(), grads.reshape(rows * length, -1))
        return self.units.total(table.view(rows, *self.shape))

    def zero(self, units: Tensor) -> None:
        """Set the gradients of some units to zero."""
        self.grads = self.grads.masked_fill(self.units.rows(units)[:, None, None], 0)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the stored tensors."""
        return self.ids, self.grads


@dataclass
class Tied:
    """A matrix that a linear layer and an embedding share: its gradient is the sum of a pair's and a lookup's.

    |P + L|^2 = |P|^2 + |L|^2 + 2 <P, L>, and <P, L> = sum_ts grad_t[id_s] <input_t, lookup_grad_s> needs the output
    gradients at the ids alone. So nothing of shape (units, vocabulary, width) is formed.
    """

    name: str
    layer: str
    shape: torch.Size
    pair: Pair
    lookup: Lookup
    units: Units

    def sizes(self, shared: Shared) -> Sizes:
        """Return the squared norms of the summed gradients."""
        pair, lookup = self.pair.sizes({}), self.lookup.sizes({})
        left, right = (
            (self.pair.inputs, self.pair.grads) if self.pair.transposed else (self.pair.grads, self.pair.inputs)
        )
        cross, error = self.units.apply(
            lambda left, right, ids, grads: norms.cross_sizes(left, right, ids, grads, self.lookup.padding),
            *(left, right, self.lookup.ids, self.lookup.grads),
        )
        squares = pair.squares.double() + lookup.squares.double() + 2 * cross
        # Both parts may move in the same direction when they are summed.
        drift = (pair.drift.double().sqrt() + lookup.drift.double().sqrt()).square() * norms.SLACK
        return Sizes(squares, (pair.error.double() + lookup.error.double() + 2 * error) * norms.SLACK, drift)

    def exact(self, units: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return some units' squared norms from their gradients, formed in float64."""
        return _stacked(self._exact(unit) for unit in units)

    def _exact(self, unit: int) -> tuple[Tensor, Tensor]:
        rows = self.units.rows_of(unit)
        left, right = self.pair.grads[rows].flatten(0, 1), self.pair.inputs[rows].flatten(0, 1)
        if self.pair.transposed:
            left, right = right, left
        ids, grads = self.lookup.ids[rows].flatten(), self.lookup.grads[rows].flatten(0, 1)
        return norms.exact_tied(left, right, ids, grads, self.lookup.padding)

    def inner(self, vector: Tensor) -> Tensor:
        """Return the inner product of each unit's gradient with a vector."""
        return self.pair.inner(vector) + self.lookup.inner(vector)

    def inner_of(self, vector: Tensor, unit: int) -> Tensor:
        """Return the inner product of one unit's gradient with a vector."""
        return self.pair.inner_of(vector, unit) + self.lookup.inner_of(vector, unit)

    def weighted(self, weights: Weights, shared: Shared) -> Tensor:
        """Return the weighted sum of both parts."""
        return self.pair.weighted(weights, {}).add_(self.lookup.weighted(weights, {}))

    def gradients(self) -> Tensor:
        """Return the units' gradients."""
        return self.pair.gradients() + self.lookup.gradients()

    def zero(self, units: Tensor) -> None:
        """Set the gradients of some units to zero."""
        self.pair.zero(units)
        self.lookup.zero(units)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the stored tensors."""
        return *self.pair.tensors(), *self.lookup.tensors()


def _stacked(results: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    squares, errors = zip(*results, strict=True)
    return torch.stack(squares), torch.stack(errors)


def instantiate(inputs: Tensor, grads: Tensor, transposed: bool, wide: bool = False) -> Tensor:
    """Return each row's gradient of a matrix, in float32 or wider if `wide`, otherwise in the type of the factors."""
    inputs, grads = promoted(inputs, grads)
    left, right = (inputs, grads) if transposed else (grads, inputs)
    return batched(left.mT, right) if wide else torch.bmm(left.mT, right)


def vector_sizes(values: Tensor) -> Sizes:
    """Return the squared norm of each row; squares do not cancel, so the relative error is small.

    Blocks of squares are summed in float32 or wider, and the blocks in float64.
    """
    wide = accumulator(values.dtype)
    rows, width = values.shape
    # A GPU adds a row in an order that depends on its alignment in memory. Padding aligns all rows, so that a unit's
    # norm does not depend on its position.
    values = F.pad(values, (0, -width % (_ALIGNED if width <= _STRETCH else _ALIGNED * _STRETCH)))
    if width <= _STRETCH:
        squares = torch.linalg.vector_norm(values, dim=1, dtype=wide).double().square()
    else:
        parts = torch.linalg.vector_norm(values.view(rows, values.shape[1] // _STRETCH, _STRETCH), dim=2, dtype=wide)
        squares = parts.double().square().sum(1)
    # The second block of terms covers the root, its square and the sum in float64.
    unit = FLOAT64_UNIT if values.dtype == torch.float64 else FLOAT32_UNIT
    error = squares.detach() * gamma(2 * _STRETCH, unit)
    return Sizes(squares, error, drift_of_rows(squares.detach(), values.dtype, values.device))


def _pair_inner(inputs: Tensor, grads: Tensor, matrix: Tensor) -> Tensor:
    wide = accumulator(inputs.dtype)
    return ((inputs.to(wide) @ matrix.to(wide).mT) * grads.to(wide)).sum((1, 2))


def _scaled(values: Tensor, weights: Weights, dtype: torch.dtype) -> Tensor:
    wide = dtype if values.dtype == dtype else torch.promote_types(values.dtype, dtype)
    if values.is_cuda and values.numel() > (_LARGE_IN_GRAPH if norms.capturing(values) else _LARGE):
        values, rows = values.contiguous(), weights.rows.contiguous()
        if kernels.usable(values, rows):
            return kernels.scaled([values], rows, wide)[0]
    if values.dtype in (torch.float32, torch.float64) or torch.is_grad_enabled():
        return (values * weights.spread.to(accumulator(values.dtype))).to(wide)
    # One pass from the stored type to the type of the product, computed in float32 inside the kernel.
    return torch.mul(values, weights.spread, out=torch.empty_like(values, dtype=wide))


@dataclass(frozen=True)
class Units:
    """The privacy units of the rows of a batch.

    `index` is None if every row is a unit of its own. Otherwise it holds each row's unit, and `buckets` lists the units
    by their number of rows: (units, rows) with shapes (k,) and (k, r).

    >>> units = Units.of(torch.tensor([0, 1, 0]), 3)
    >>> units.count, [(u.tolist(), r.tolist()) for u, r in units.buckets]
    (2, [([1], [[1]]), ([0], [[0, 2]])])
    """

    count: int
    index: Tensor | None = None
    buckets: tuple[tuple[Tensor, Tensor], ...] = ()

    @staticmethod
    def of(index: Tensor | None, rows: int) -> Units:
        """Return the units of a batch from each row's unit index, or one unit per row if there is no index."""
        if index is None:
            return Units(rows)
        if index.shape != (rows,) or index.is_floating_point():
            raise invalid("units", tuple(index.shape), f"integers of shape ({rows},)", "Pass the unit of each row.")
        if rows == 0:
            return Units(0)
        sizes = torch.bincount(index)  # rejects negative numbers
        if not bool((sizes > 0).all()):
            empty = int((sizes == 0).nonzero()[0])
            raise invalid(
                "units", f"units without {empty}", "numbered from 0 without gaps", "Renumber the units of the batch."
            )
        if sizes.numel() == rows and bool((index == torch.arange(rows, device=index.device)).all()):
            return Units(rows)
        order = torch.argsort(index, stable=True)
        starts = torch.cumsum(sizes, 0) - sizes
        buckets = []
        for size in torch.unique(sizes).tolist():
            units = (sizes == size).nonzero().flatten()
            steps = torch.arange(size, device=index.device)
            buckets.append((units, order[starts[units, None] + steps]))
        return Units(int(sizes.numel()), index, tuple(buckets))

    def rows(self, per_unit: Tensor) -> Tensor:
        """Return each row's value from each unit's value."""
        return per_unit if self.index is None else per_unit[self.index]

    def total(self, per_row: Tensor) -> Tensor:
        """Return each unit's sum over its rows."""
        if self.index is None:
            return per_row
        # index_add is not used: on a GPU its order of additions changes from run to run.
        parts = [per_row[rows].sum(1) for _, rows in self.buckets]
        return parts[0] if len(parts) == 1 else torch.cat(parts)[self._inverse]

    def rows_of(self, unit: int) -> Tensor | slice:
        """Return the rows of one unit."""
        if self.index is None:
            return slice(unit, unit + 1)
        return (self.index == unit).nonzero().flatten()

    def apply(self, function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Apply a function of (units, time, …) to tensors (rows, time, …), with a unit's rows concatenated in time."""
        if self.index is None:
            return function(*tensors)
        parts = [
            function(*(t[rows].reshape(rows.shape[0], rows.shape[1] * t.shape[1], *t.shape[2:]) for t in tensors))
            for _, rows in self.buckets
        ]
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(column)[self._inverse] for column in zip(*parts, strict=True))

    @property
    def _inverse(self) -> Tensor:
        return torch.argsort(torch.cat([units for units, _ in self.buckets]))


# Stored gradients, or scaled factors, are summed in groups of this many bytes, and freed.
_SUM_BYTES = 2**28


def fused_sizes(slots: Sequence[Slot]) -> list[tuple[list[str], Sizes]]:
    """Return the sizes of the slots that the kernels support: names of parameters and sizes (parameters, units)."""
    pairs: dict[tuple[torch.Size, torch.dtype], list[Pair]] = defaultdict(list)
    formed: dict[tuple[torch.Size, torch.dtype], list[Vectors]] = defaultdict(list)
    for slot in slots:
        if isinstance(slot, Pair) and _takes_pair(slot):
            dtype = torch.promote_types(slot.inputs.dtype, slot.grads.dtype)
            pairs[slot.inputs.shape[:2], dtype].append(slot)
        elif takes_vectors(slot):
            assert isinstance(slot, Vectors)
            formed[slot.values.shape, slot.values.dtype].append(slot)
    sizes = [_pair_sizes(group, shape[1], dtype) for (shape, dtype), group in pairs.items()]
    for vectors in formed.values():
        squares = kernels.row_squares([slot.values for slot in vectors])
        errors = squares * gamma(kernels.SQUARES_TERMS, FLOAT32_UNIT)
        drifts = drift_of_rows(squares, torch.float32, squares.device)
        sizes.append(([slot.name for slot in vectors], Sizes(squares, errors, drifts)))
    return sizes


def fused_sums(slots: list[Vectors], weights: Tensor) -> dict[str, Tensor]:
    """Return the weighted sums of stored gradients by parameter name, and empty the list as they are formed."""
    results: dict[str, Tensor] = {}
    while slots:
        shape, dtype = slots[-1].values.shape, slots[-1].values.dtype
        group: list[Vectors] = []
        limit = max(1, _SUM_BYTES // (shape.numel() * dtype.itemsize))
        while slots and len(group) < limit and slots[-1].values.shape == shape and slots[-1].values.dtype == dtype:
            group.append(slots.pop())
        sums = kernels.weighted_rows([slot.values for slot in group], weights)
        results |= {slot.name: total.view(slot.shape) for slot, total in zip(group, sums.unbind(), strict=True)}
    return results


def pair_sums(pairs: list[Pair], weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Yield the weighted sums of pairs by parameter name, and empty the list as they are formed.

    On a GPU, pairs of one shape are summed in one batched product, and the factors of the others are scaled together,
    up to a limit on memory. While a CUDA graph is captured launches cost nothing, and pairs are not copied together.
    """
    if pairs and pairs[0].inputs.is_cuda and not norms.capturing(pairs[0].inputs):
        yield from _sums_by_shape(pairs, weights)
    shared: Shared = {}
    while pairs:
        group: list[Pair] = []
        factors: dict[tuple[object, ...], Tensor] = {}
        size = 0
        while pairs and (not group or (size < _SUM_BYTES and pairs[-1].inputs.is_cuda)):
            pair = pairs.pop()
            group.insert(0, pair)
            key = (*pair.scaled_key, id(weights))
            if key not in factors:
                factors[key] = pair.inputs if pair.scales_inputs else pair.grads
                size += factors[key].numel() * factors[key].element_size()
        if len(factors) > 1:
            shared = _scaled_together(factors, weights)
        factors.clear()
        while group:
            pair = group.pop()
            yield pair.name, pair.weighted(weights, shared)


def _sums_by_shape(pairs: list[Pair], weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Yield the sums of pairs that share their shape with another one, and remove them from the list."""
    groups: dict[tuple[object, ...], list[Pair]] = defaultdict(list)
    while pairs:
        pair = pairs.pop()
        groups[pair.inputs.shape, pair.grads.shape, pair.inputs.dtype, pair.grads.dtype, pair.transposed].append(pair)
    for group in groups.values():
        size = sum(tensor.numel() * tensor.element_size() for tensor in group[0].tensors())
        while len(group) > 1 and 2 * size <= _SUM_BYTES:
            some = [group.pop() for _ in range(min(_SUM_BYTES // size, len(group)))]
            yield from zip([pair.name for pair in some], stacked_sums(some, weights), strict=True)
        pairs += group


def stacked_sums(pairs: Sequence[Pair], weights: Weights) -> list[Tensor]:
    """Return the weighted sums of pairs of one shape, in one batched product of stacked factors."""
    first = pairs[0]
    dtype = torch.promote_types(first.inputs.dtype, first.grads.dtype)
    scaled = _scaled_stack([pair.inputs if first.scales_inputs else pair.grads for pair in pairs], weights, dtype)
    other = torch.stack([pair.grads if first.scales_inputs else pair.inputs for pair in pairs]).to(dtype)
    inputs, grads = (scaled, other) if first.scales_inputs else (other, scaled)
    left, right = (inputs, grads) if first.transposed else (grads, inputs)
    sums = batched_product(left.flatten(1, 2), right.flatten(1, 2))
    return [total.view(first.shape) for total in sums.unbind()]


def _scaled_stack(factors: Sequence[Tensor], weights: Weights, dtype: torch.dtype) -> Tensor:
    stack = torch.stack(list(factors))
    if stack.dtype in (torch.float32, torch.float64) or torch.is_grad_enabled():
        return (stack * weights.spread.to(accumulator(stack.dtype))).to(dtype)
    # One pass from the stored type to the type of the product, computed in float32 inside the kernel.
    return torch.mul(stack, weights.spread, out=stack if stack.dtype == dtype else torch.empty_like(stack, dtype=dtype))


def _scaled_together(factors: dict[tuple[object, ...], Tensor], weights: Weights) -> Shared:
    """Return the scaled copies of factors by key, one launch per shape, or nothing if the kernels cannot be used."""
    values = {key: factor.contiguous() for key, factor in factors.items()}
    rows = weights.rows.float().contiguous()
    if not kernels.usable(rows, *values.values()):
        return {}
    groups: dict[tuple[object, ...], list[tuple[object, ...]]] = defaultdict(list)
    for key, value in values.items():
        groups[value.shape, value.dtype, key[-2]].append(key)
    scaled: Shared = {}
    for (_, dtype, other), keys in groups.items():
        assert isinstance(dtype, torch.dtype)
        assert isinstance(other, torch.dtype)
        out = kernels.scaled([values[key] for key in keys], rows, torch.promote_types(dtype, other))
        scaled |= dict(zip(keys, out.unbind(), strict=True))
    return scaled


def time_sums(values: Sequence[Tensor]) -> list[Tensor]:
    """Return the sums over time of tensors (rows, time, width), those of one layout in one launch."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, value in enumerate(values):
        groups[value.shape, value.stride(), value.dtype].append(place)
    sums: list[Tensor] = list(values)
    for places in groups.values():
        group = [values[place] for place in places]
        if len(group) > 1 and kernels.usable(*group):
            results: Sequence[Tensor] = kernels.time_sums(group).unbind()
        else:
            results = [value.sum(1, dtype=accumulator(value.dtype)) for value in group]
        for place, result in zip(places, results, strict=True):
            sums[place] = result
    return sums


def takes_vectors(slot: Slot) -> bool:
    """Return whether the kernels support a slot: a matrix whose gradients are stored."""
    return isinstance(slot, Vectors) and len(slot.shape) > 1 and slot.values.numel() > 0 and kernels.usable(slot.values)


def _takes_pair(slot: Pair) -> bool:
    if slot.units.index is not None or slot.inputs.shape[1] == 1 or not kernels.usable(slot.inputs, slot.grads):
        return False
    if max(slot.inputs.shape[-1], slot.grads.shape[-1]) > _WIDE:
        return False
    half = slot.inputs.element_size() == 2 and slot.grads.element_size() == 2
    return half or product_precision(slot.inputs.device) == "tf32"


def _pair_sizes(pairs: list[Pair], length: int, dtype: torch.dtype) -> tuple[list[str], Sizes]:
    factors = []
    for pair in pairs:
        inputs, grads = promoted(pair.inputs, pair.grads)
        factors.append((inputs, grads) if pair.scales_inputs else (grads, inputs))
    order, squares, first, second, widest, span = kernels.pair_figures(factors)
    width = max(max(pair.inputs.shape[-1], pair.grads.shape[-1]) for pair in pairs)
    figures = bounded(squares, (first, second), widest, span, (width, width, max(length, kernels.TILE)), wide=False)
    # TF32 truncates the factors before it multiplies them, so the squares are those of truncated factors.
    moved = figures.span * (2 * operand_truncation(dtype, span.device))
    errors = figures.error + moved * (2 * (squares.clamp_min(0) + figures.error).sqrt() + moved)
    drifts = drift_of_pair(figures.size, figures.span, dtype, span.device)
    return [pairs[k].name for k in order], Sizes(squares, errors, drifts)
