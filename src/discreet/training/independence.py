"""Whether a unit's gradient depends on that unit alone, for a loss and a collate function that are the user's.

Two things can mix the units of a batch. A loss may use several rows (a contrastive loss, a normalization over the
batch); then clipping a unit's gradient does not bound what the unit changes. And kernels choose the order of their
sums by the shape of their input, so a row's gradient is rounded by the rows next to it and by the width to which it is
padded with them; in bf16 that is several percent of the clip norm. Both are tried on made-up or public rows, in the
mode in which the model is trained: what a model does in train mode only is part of the training.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from discreet.clipping.independence import (
    bitwise_invariant,
    check_independent,
    check_others,
    fingerprints,
    fixed_kernels,
    recorded,
)
from discreet.clipping.record import Record
from discreet.clipping.tape import Flat, Tape, clipped_sum
from discreet.core.device import free_on_cuda, mapped, tensors_in
from discreet.core.errors import DataError, UnsupportedError
from discreet.data.batches import Part
from discreet.training.changes import changed_by_rows, persistent_buffers, sums_of, tensors_of
from discreet.training.recording import Modes, Shape, learning_buffer, modes_of, shapes_seen

# Uniform numbers in place of draws: code that runs for few draws must run for one of them. The first is always tried.
LOW, HIGH = 0.05, 0.95
LEVELS = (LOW, 1e-6, 1 - 1e-6, HIGH)
_NUMBERS = frozenset({"rand", "uniform", "randn", "normal", "exponential", "randint", "random"})
_NORMAL = 1.6  # the size of a normal number in place of draws, about that of the same quantiles
_MOST_DRAWS = 10_000  # in one pass: a loop that draws until a number fits must end
# Operations that a GPU aborts for bad values.
_ABORTING = frozenset(
    {
        "binary_cross_entropy",
        "multinomial",
        "embedding",
        "index",
        "index_select",
        "gather",
        "scatter",
        "nll_loss_forward",
    }
)


class ConstantDraws(TorchDispatchMode):
    """Replace what torch, Python and numpy draw by the number that belongs to a uniform `level`.

    With a low level dropout keeps everything, with a high one it drops everything. Draws of an order or of places
    (`randperm`, `multinomial`) stay random. `drew` is whether anything was replaced.
    """

    def __init__(self, level: float = LOW) -> None:
        """Replace draws by the number of a level between 0 and 1."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.level, self.drew = level, False
        self._draws, self._before = 0, []  # type: tuple[int, list[tuple[Any, str, Any]]]

    def __enter__(self) -> Self:
        """Replace draws from now on."""
        for module, replaced in ((random, _python(self.level)), (np.random, _numpy(self.level))):
            for name, constant in replaced.items():
                self._before.append((module, name, getattr(module, name)))
                setattr(module, name, self._or_drawn(constant, getattr(module, name)))
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Draw again."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        while self._before:
            setattr(*self._before.pop())

    def _or_drawn(self, constant: Callable[..., Any], draw: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that returns the constant, and draws after very many calls."""

        def replaced(*args: Any, **kwargs: Any) -> Any:
            self.drew = True
            self._draws += 1
            return (constant if self._draws <= _MOST_DRAWS else draw)(*args, **kwargs)

        return replaced

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, or return the constant in place of its draws."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self._draws += 1
        if self._draws > _MOST_DRAWS:
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        name = func._schema.name.partition("::")[2].rstrip("_").removesuffix("_like")
        if name == "bernoulli":
            self.drew = True
            p = given.get("p", given["self"])
            result = given["self"] if func._schema.name.endswith("_") else torch.empty_like(given["self"])
            return result.copy_(self.level < p) if isinstance(p, Tensor) else result.fill_(float(self.level < p))
        if name in _NUMBERS:
            self.drew = True
            return func(*args, **kwargs).fill_(_constant(name, self.level, given))
        for switch, off in (("dropout_p", 0.0), ("train", False), ("training", False)):
            if given.get(switch):
                self.drew = True
                given[switch] = off
                return func(**given)
        return func(*args, **kwargs)


def _constant(name: str, level: float, given: dict[str, Any]) -> float:
    """Return the number in place of the draws of an operation."""
    if name in {"randn", "normal"}:
        mean, std = given.get("mean", 0.0), given.get("std", 1.0)
        size = math.copysign(_NORMAL, level - 0.5)
        return size if isinstance(mean, Tensor) or isinstance(std, Tensor) else float(mean + size * std)
    if name == "exponential":
        return float(-math.log1p(-level) / given.get("lambd", 1.0))
    if name in {"randint", "random"}:
        least, above = given.get("low", given.get("from")) or 0, given.get("high")
        return float(least if above is None else _whole(least, above, level))
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return float(low + level * (high - low))


def _whole(least: int, above: int, level: float) -> int:
    """Return the whole number of a level, from `least` to below `above`."""
    return least + int(level * (above - least))


def _python(level: float) -> dict[str, Callable[..., Any]]:
    """Return functions in place of those of `random`."""
    normal = math.copysign(_NORMAL, level - 0.5)
    return {
        "random": lambda: level,
        "uniform": lambda a, b: a + level * (b - a),
        "gauss": lambda mu=0.0, sigma=1.0: mu + normal * sigma,
        "normalvariate": lambda mu=0.0, sigma=1.0: mu + normal * sigma,
        "randint": lambda a, b: _whole(a, b + 1, level),
        "choice": lambda seq: seq[_whole(0, len(seq), level)],
    }


def _numpy(level: float) -> dict[str, Callable[..., Any]]:
    """Return functions in place of those of `numpy.random`."""
    normal = math.copysign(_NORMAL, level - 0.5)

    def filled(value: Any, size: Any = None) -> Any:
        return value if size is None else np.full(size, value)

    def shaped(value: Any, size: Any) -> Any:
        if size is None:
            return value if np.ndim(value) else float(value)
        return np.broadcast_to(value, size).copy()

    def uniform(low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        value = low + level * (np.asarray(high) - low)
        return shaped(value, size)

    def normally(loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        value = loc + normal * np.asarray(scale)
        return shaped(value, size)

    return {
        "rand": lambda *shape: filled(level, shape or None),
        "random": lambda size=None: filled(level, size),
        "random_sample": lambda size=None: filled(level, size),
        "uniform": uniform,
        "randn": lambda *shape: filled(normal, shape or None),
        "standard_normal": lambda size=None: filled(normal, size),
        "normal": normally,
    }


class FirstOnCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute operations that a GPU aborts for bad values on the CPU first, where they raise an error instead.

    After such an abort no other operation of the process runs on the GPU.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, after a trial on the CPU."""
        if func._schema.name.partition("::")[2].rstrip("_") in _ABORTING:
            func(*mapped(args, _on_cpu), **mapped(kwargs or {}, _on_cpu))
        return func(*args, **(kwargs or {}))


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


Key = TypeVar("Key")
Outcome = TypeVar("Outcome")
Size = tuple[int, int]  # units of a part, and rows of each
_LEAST_ROWS = 4  # of made-up rows: three rows may mix where two do not
_FEW_ROWS = 8  # of the smaller of two made-up parts whose peaks of memory are compared
_SHARE_OF_MEMORY = 0.5  # of what is free, for one part: the user's own rows may be longer than those made up
# One made-up row is tried with these in place of, or times, its numbers: what a training row may hold.
_EXTREMES = {"a row with very large numbers": 1e6, "a row that is not a number": float("nan")}
_MOST_FILLED = 8  # made-up rows with which a whole part is filled, to see that its shape stays the same
# Bytes per trained weight in addition to a part: its sum, the optimizer's two moments, noise in float64.
BYTES_A_WEIGHT = 24
_SMALL = 0.05  # standard deviation of the numbers in place of zeros


class Kernels(Generic[Key, Outcome]):
    """The kernels of a training's parts, tried on made-up units for each size of part.

    On a GPU fused attention may add in an order that depends on other units. It is then computed by ordinary matrix
    products, for all parts, whatever units come. On a CPU there are no other kernels, and a size is tried when a part
    of it occurs.
    """

    def __init__(self, device: torch.device, tried: Callable[[Key], Outcome | None]) -> None:
        """Take the function that tries a size of part, and returns None where one unit changes another."""
        self.device, self._try = device, tried
        self.plain_attention = False
        self._outcomes: dict[Key, Outcome | None] = {}

    @property
    def can_change(self) -> bool:
        """Whether there are other kernels for attention."""
        return self.device.type == "cuda"

    def outcome(self, key: Key) -> Outcome | None:
        """Return what trying a size of part has shown."""
        if key not in self._outcomes:
            self._outcomes[key] = self._try(key)
        return self._outcomes[key]

    def choose(self, keys: Sequence[Key]) -> bool:
        """Choose the kernels on a GPU by all sizes that can occur; return whether units are independent in all.

        Call it before a private row is read. If a unit decided about the kernels, it would change how the gradients of
        all others are rounded.
        """
        if not self.can_change or self._are_independent(keys):
            return True
        if self.plain_attention:
            return False
        self.plain_attention = True
        self._outcomes.clear()
        return self._are_independent(keys)

    def forget(self, plain_attention: bool | None = None) -> None:
        """Try all sizes again; with a value, set how attention is computed."""
        self._outcomes.clear()
        self.plain_attention = self.plain_attention if plain_attention is None else plain_attention

    def _are_independent(self, keys: Sequence[Key]) -> bool:
        return all(self.outcome(key) is not None for key in keys)


def rows_that_fit(
    record_of: Callable[[int], Record], few: int, device: torch.device, trained: int, share: float
) -> int:
    """Return how many rows of a part fit the memory of a GPU, from the peak memory of two made-up parts.

    `record_of` computes a part of so many made-up rows, `few` are the rows of the smaller part, `trained` is the number
    of trained weights, and `share` is the share of the free memory for one part.
    """

    def peak(rows: int) -> int:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        clipped_sum(record_of(rows), Flat(1.0))
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before

    try:
        peak(few)  # the first time, libraries allocate memory of their own
        small, large = peak(few), peak(2 * few)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return 1
    each = max(1.0, (large - small) / few)
    room = share * free_on_cuda(device) - trained * BYTES_A_WEIGHT - max(0.0, small - few * each)
    return max(1, int(room / each))


@contextmanager
def without_zeros(model: nn.Module) -> Iterator[None]:
    """Fill trainable weights that are mostly zero with small random numbers, as long as the context lasts.

    A head that starts from a rule, or an adapter that starts as zero, hides how products are rounded once trained.
    """
    weights = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    sparse = [(p, p.detach().clone()) for p in weights if bool((p.detach() == 0).sum() * 2 > p.numel())]
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight, before in sparse:
            weight.add_(torch.randn(before.shape, generator=source).to(before.device, before.dtype) * _SMALL)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, before in sparse:
                weight.copy_(before)


@dataclass
class IndependenceCheck:
    """A loss function and made-up rows on which it is tried, for each size of part and each mode of training.

    `writes` is whether the forward pass writes values of rows into the model: into tensors, numbers, other attributes.
    Writing into buffers that are saved with the model is rejected.

    Guarantee: none; it reads made-up rows. It shows that the kernels in use do not let one made-up unit change another,
    and not that no input could make them do so.
    """

    tape: Tape
    losses_of: Callable[[Any], Tensor]
    rows: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    writes: bool = False
    _independent: set[Modes] = field(default_factory=set)
    _pool: Mapping[str, Tensor] | None = None  # the rows, collated once, where the collate function draws at random

    def __post_init__(self) -> None:
        """Reject too few rows, and a loss in which one row depends on another."""
        self._kernels: Kernels[tuple[Size, Modes], Shape] = Kernels(self._device, self._shape_of)
        if len(self.rows) < _LEAST_ROWS:
            raise DataError(
                f"Expected at least {_LEAST_ROWS} made-up rows, got {len(self.rows)}. Give rows of different lengths, "
                "as the collate function takes them."
            )
        with self._quiet():
            self._pool = self._drawn_once()
        self._check_mode(modes_of(self.tape.model))

    @property
    def plain_attention(self) -> bool:
        """Whether attention is computed by ordinary matrix products."""
        return self._kernels.plain_attention

    def prepare(self, sizes: Sequence[Size]) -> None:
        """Choose the kernels for parts of all sizes that can occur; call it before private rows are read."""
        model = self.tape.model
        for modes in dict.fromkeys((modes_of(model), tuple(True for _ in model.modules()))):
            with suppress(UnsupportedError):  # a mode in which the model cannot be trained
                self._kernels.choose([(size, modes) for size in sizes if size[0] > 1])

    def is_independent(self, size: Size, shape: Shape, modes: set[Modes]) -> bool:
        """Return whether units did not change each other in a part of this size, whose tensors had this shape.

        `modes` are those in which the part was computed. A mode in which rows are mixed is rejected, also where a part
        holds one unit: what mixes rows may also carry them from one part to the next.
        """
        for mode in modes:
            self._check_mode(mode)
        if size[0] == 1:
            return True
        outcomes = [self._kernels.outcome((size, mode)) for mode in modes]
        return len(outcomes) == 1 and outcomes[0] is not None and outcomes[0] == shape

    def is_independent_in(self, part: Part, values_of: Callable[[Any], Sequence[Tensor]]) -> bool:
        """Return whether made-up units have the same bits whatever others are in a part of this size.

        `values_of` returns tensors with one entry for each unit of a collated part; it replaces random draws itself.
        """
        with self._quiet():
            return bitwise_invariant(
                lambda chosen: values_of(self._batch(_rows_of(chosen, part.rows_each))), part.units, 1
            )

    def rows_that_fit(self) -> int | None:
        """Return how many rows of a part fit a GPU's memory, from the peaks of two made-up parts; None elsewhere."""
        if self._device.type != "cuda":
            return None

        def record_of(count: int) -> Record:
            with self.tape:
                losses = self._losses(range(count))
            return self.tape.backward(losses)

        trained = sum(p.numel() for p in self.tape.model.parameters() if p.requires_grad)
        with self._quiet():
            return rows_that_fit(record_of, _FEW_ROWS, self._device, trained, _SHARE_OF_MEMORY)

    @property
    def _device(self) -> torch.device:
        return next(self.tape.model.parameters()).device

    def _collated(self, numbers: Sequence[int], factors: Mapping[int, float] | None = None) -> Any:
        chosen = [self.rows[number % len(self.rows)] for number in numbers]
        for place, factor in (factors or {}).items():
            chosen[place] = _times(chosen[place], factor)
        return self.collate(chosen)

    def _drawn_once(self) -> Mapping[str, Tensor] | None:
        """Return the collated rows if collating them again gives other values, as random masks of words are."""
        numbers = range(len(self.rows))
        batch, again = self._collated(numbers), self._collated(numbers)
        pairs = list(zip(tensors_in(batch), tensors_in(again), strict=False))
        if not isinstance(batch, Mapping) or all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
            return None
        rows = all(isinstance(value, Tensor) and value.shape[:1] == (len(self.rows),) for value in batch.values())
        return batch if rows else None

    def _batch(self, numbers: Sequence[int], factors: Mapping[int, float] | None = None) -> Any:
        """Return made-up rows, collated; the numbers in the rows at some places are multiplied by factors."""
        if self._pool is None:
            return self._collated(numbers, factors)
        at = torch.tensor([number % len(self.rows) for number in numbers])
        batch = {name: value[at.to(value.device)] for name, value in self._pool.items()}
        for place, factor in (factors or {}).items():
            for value in batch.values():
                value[place] = _times(value[place], factor)
        return batch

    def _losses(self, numbers: Sequence[int]) -> Tensor:
        return self.losses_of(self._batch(numbers))

    def _check_mode(self, modes: Modes) -> None:
        """Reject a loss in which one row depends on another in this mode, unless it was checked."""
        if modes in self._independent:
            return
        with self._quiet(modes):
            self._check_writes()
            if self._check_levels():
                self._check_independent(None)
            self._check_extremes()
        self._independent.add(modes)

    def _check_levels(self) -> bool:
        """Check with constants in place of random numbers, once for each way to compute; return whether any are drawn.

        A level that gives the losses and gradients of another one runs the same code, and is not checked again.
        """
        batch = torch.linspace(0, len(self.rows) - 1, min(len(self.rows), _MOST_FILLED)).round().int().tolist()
        tried: list[Tensor] = []
        drew = False
        for level in LEVELS:
            draws = ConstantDraws(level)
            with self.tape, draws:
                losses = self._losses(batch)
            values = [losses.detach(), *recorded(self.tape.backward(losses))]
            drew = drew or draws.drew
            if tried and not (draws.drew and bool(torch.isfinite(losses).all())):
                continue
            found = fingerprints(values, len(batch))
            if not any(torch.equal(found, other) for other in tried):
                self._check_independent(level)
                tried.append(found)
        return drew

    def _check_extremes(self) -> None:
        """Reject a loss in which rows change if one row next to them is extreme, as a training row may be."""
        batch = range(min(len(self.rows), _MOST_FILLED))
        row = next((number for number in batch if self._has_numbers(number)), None)
        if row is None:
            return

        def losses() -> Tensor:
            with ConstantDraws():
                return self._losses(batch)

        for what, factor in _EXTREMES.items():

            def changed(factor: float = factor) -> Tensor:
                with FirstOnCpu() if self._device.type == "cuda" else nullcontext(), ConstantDraws():  # type: ignore[no-untyped-call]
                    return self.losses_of(self._batch(batch, {row: factor}))

            check_others(self.tape, losses, changed, row, what)

    def _has_numbers(self, row: int) -> bool:
        """Return whether a made-up row has numbers that extreme ones can take the place of."""
        found: list[bool] = []
        one = self.rows[row] if self._pool is None else {name: value[row] for name, value in self._pool.items()}
        mapped(one, lambda value: found.append(_is_real(value)))
        return any(found)

    def _check_independent(self, level: float | None) -> None:
        def losses(chosen: Tensor) -> Tensor:
            if level is None:
                return self._losses(chosen.tolist())
            with ConstantDraws(level):
                return self._losses(chosen.tolist())

        check_independent(self.tape, losses, rows=len(self.rows))

    def _check_writes(self) -> None:
        """Reject a forward pass that writes rows into saved buffers; note one that writes them elsewhere."""
        model, half = self.tape.model, len(self.rows) // 2
        sums: list[dict[str, Any]] = []

        def forward(number: int) -> None:
            with self.tape, ConstantDraws():
                self._losses(range(number * half, (number + 1) * half))
            if len(sums) < 2:
                sums.append(sums_of(dict(tensors_of(model))))

        forward(0)  # which may make what all others only read
        kept = changed_by_rows(model, forward)
        changed = {name for name in sums[0].keys() | sums[1].keys() if sums[0].get(name) != sums[1].get(name)}
        for name, _ in persistent_buffers(model):
            if name in {one.lstrip(".") for one in changed}:
                raise learning_buffer(name)
        self.writes = self.writes or bool(changed) or kept

    def _shape_of(self, key: tuple[Size, Modes]) -> Shape | None:
        """Return the shape of all parts of a size in a mode, if units do not change each other in them."""
        size, modes = key
        with self._quiet(modes):
            return self._try(*size)

    def _try(self, units: int, rows_each: int) -> Shape | None:
        """Return the one shape of all parts of this size in which units do not change each other, or None."""
        shapes: set[Shape] = set()
        owners = torch.arange(units, device=self._device).repeat_interleave(rows_each) if rows_each > 1 else None

        def values_of(chosen: Tensor) -> list[Tensor]:
            numbers = _rows_of(chosen, rows_each)
            with shapes_seen(self.tape.model) as seen, self.tape, ConstantDraws():
                losses = self._losses(numbers)
            shapes.add(seen.shape)
            return recorded(self.tape.backward(losses, owners))

        steady = bitwise_invariant(values_of, units, 1)
        for number in range(min(len(self.rows), _MOST_FILLED)):  # a part of short rows alone, of long rows alone
            with shapes_seen(self.tape.model) as seen, ConstantDraws():
                self.losses_of(self._collated([number] * (units * rows_each)))
            shapes.add(seen.shape)
        return next(iter(shapes)) if steady and len(shapes) == 1 and all(shapes) else None

    @contextmanager
    def _quiet(self, modes: Modes | None = None) -> Iterator[None]:
        """Leave torch's random numbers and the modes of all modules as they were; inside, use these modes."""
        modules = list(self.tape.model.modules())
        before = [module.training for module in modules]
        with ExitStack() as stack:
            devices = [self._device] if self._device.type == "cuda" else []
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(fixed_kernels(self.plain_attention))
            try:
                for module, training in zip(modules, modes or before, strict=True):
                    module.training = training
                yield
            finally:
                for module, training in zip(modules, before, strict=True):
                    module.training = training


def _rows_of(units: Tensor, each: int) -> list[int]:
    """Return the numbers of the rows of some units, each of which has so many."""
    numbers: list[int] = (units[:, None] * each + torch.arange(each)).flatten().tolist()
    return numbers


def _is_real(value: Any) -> bool:
    """Return whether a value holds numbers that are not whole: those that are may be classes, or places in a table."""
    if isinstance(value, Tensor | np.ndarray | np.floating | float):
        numbers = torch.as_tensor(value)
        return numbers.is_floating_point() and bool((numbers != numbers.round()).any())
    return False


def _times(row: Any, factor: float) -> Any:
    """Return a row with all of its numbers multiplied, but those that are whole."""
    return mapped(row, lambda value: value * factor if _is_real(value) else value)
