"""The parts into which a private batch is divided: their shapes, their memory, and the independence of their units.

Kernels choose the order of additions by the shapes of their inputs, so the rounding of a unit's gradient depends on its
padded width and on the number of rows in its part. If these depended on the other units, one unit would change the
gradients of others: in bf16 by several per cent of the clip norm. So the padded width and the number of rows of a unit
are functions of that unit and a public grid; a part of each shape has a fixed number of units, and is filled up with
padding rows of weight zero.

Also here: the choice of device and precision (bf16 if the device supports it, float32 otherwise).
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from discreet.clipping.clip import Flat, clipped_sum
from discreet.clipping.independence import bitwise_invariant, recorded
from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.errors import ModelError, invalid, setting, whole
from discreet.core.randomness import Rng
from discreet.data.batches import Batch, Tokens, Vectors
from discreet.models.base import TextModel

_SMALL = 0.05  # standard deviation of the numbers in place of zeros
UNPADDED = 4  # every fourth synthetic unit has no padding
_SHARE_OF_MEMORY = 0.8  # share of the free memory for one part; the allocator cannot use all of it
# Bytes per trained weight in addition to a part: its sum, the optimizer's two moments, noise in float64.
BYTES_A_WEIGHT = 24
_TEST_TOKENS = 2048  # tokens in the smaller of two synthetic parts whose peak memory is compared


@dataclass
class PrivateParts:
    """Divide the units of a batch into parts of fixed shapes.

    Synthetic rows of each shape show whether the kernels compute every unit independently, bit for bit. On a GPU all
    shapes of the public grid are tested before the first private row is read: if one fails, attention is computed by
    ordinary matrix products for all of them, whatever shapes the private units have. If that does not help either,
    `unsteady` is True, and the guarantee is an estimate. On a CPU there are no other kernels to change to, and a shape
    is tested when it is used for the first time. `most_rows` is the largest number of rows of a unit if that is public.

    Guarantee: none of its own. The parts depend on public facts, and on the lengths and rows of each unit alone; if
        memory runs out in a private step, all parts are halved, and `unsteady` says so.
    """

    model: TextModel
    tape: Tape
    rows: Tokens | Vectors
    precision: str
    shapes: Shapes
    plain_attention: bool = False
    unsteady: bool = False
    most_rows: int | None = None
    _prepared: bool = False
    _steady: dict[tuple[int, int, int], bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: TextModel,
        tape: Tape,
        rows: Tokens | Vectors,
        precision: str,
        expected_units: int,
        most_rows: int | None = None,
    ) -> PrivateParts:
        """Return the parts for a model, from the expected number of units and the memory of a synthetic step."""
        tokens = isinstance(rows, Tokens)
        device = model.device.type if tokens else "cuda"  # vectors are cheap: few large parts on any device
        shapes = Shapes.of(device, model.max_length if tokens else 1, expected_units)
        parts = cls(model, tape, rows, precision, shapes, most_rows=most_rows)
        return parts.fitted() if tokens else parts

    def fitted(self) -> PrivateParts:
        """Return the same with parts that fit into memory, as measured on synthetic rows."""
        weights = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        if self.model.device.type == "cuda":
            rows = rows_on_cuda(self.shapes, self._measure, self.model.device, weights * BYTES_A_WEIGHT)
        else:
            rows = rows_on_cpu(self.shapes, self.tape, weights * BYTES_A_WEIGHT)
        return replace(self, shapes=self.shapes.at_most(rows))

    def layout(self) -> dict[str, Any]:
        """Return the chosen shapes, so that a resumed training rounds as an uninterrupted one."""
        return {"rows": [list(pair) for pair in self.shapes.rows], "plain_attention": self.plain_attention}

    def restore(self, layout: dict[str, Any]) -> None:
        """Restore the shapes of a stopped training run."""
        self.shapes = replace(self.shapes, rows=tuple((int(w), int(r)) for w, r in layout["rows"]))
        self.plain_attention = bool(layout["plain_attention"])
        self._steady.clear()
        self._prepared = False

    @property
    def has_other_kernels(self) -> bool:
        """Whether attention can be computed by other kernels, if those of a shape let one unit change another."""
        return self.model.device.type == "cuda"

    def prepare(self) -> None:
        """Choose the kernels by a test of all shapes of the public grid, before a private row is read.

        If one unit's shape decided about the kernels, that unit would change how the gradients of all others are
        rounded. The sizes of the parts are chosen here too: made-up rows that exhaust the memory halve them.
        """
        while self.has_other_kernels and not self._prepared:
            try:
                self._test(self.shapes.grid(self.most_rows), change=True)
                self._prepared = True
            except torch.OutOfMemoryError:
                self._halve()

    def shrink(self) -> None:
        """Halve the number of rows of each part, after memory ran out in a private step.

        That it did may be due to one unit, and smaller parts round the gradients of all units otherwise.
        """
        self._halve()
        self.unsteady = True

    def _halve(self) -> None:
        smaller = self.shapes.halved()
        if smaller is None:
            raise ModelError(
                "Expected enough memory for the rows of one unit. Use a smaller max_length or encoder, train the head "
                "alone, or limit the rows of each unit."
            )
        self.shapes = smaller
        self._steady.clear()
        self._prepared = False
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def of_units(self, rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> list[Part]:
        """Return the parts of a batch in which unit u owns `rows[starts[u] : starts[u + 1]]`; test new shapes."""
        self.prepare()
        lengths = self.rows.lengths if isinstance(self.rows, Tokens) else np.ones(len(self.rows), dtype=np.int64)
        parts = list(self.shapes.parts(rows, starts, lengths))
        self._test({part.shape for part in parts}, change=False)
        return parts

    def record(self, part: Part, weights: npt.NDArray[np.float32] | None = None) -> tuple[Record, Tensor]:
        """Return the record of a part's units, and the losses of its rows, which are zero for padding rows.

        `weights` multiply the losses of the rows; by default they are 1.
        """
        real = (part.rows >= 0).astype(np.float32)
        seeds = torch.from_numpy(real if weights is None else real * weights).to(self.model.device)
        record, losses = self._record(self.rows.part(part.rows, part.width), part.units, part.rows_each, seeds)
        record.padding = part.units - part.real
        return record, losses.detach() * seeds

    def _record(self, batch: Batch, units: int, rows_each: int, seeds: Tensor | None) -> tuple[Record, Tensor]:
        with fixed_kernels(self.plain_attention):
            with self.tape, autocast(self.model.device, self.precision):
                losses = self.model.losses(batch.inputs, batch.targets)
            owners = None
            if rows_each > 1:
                owners = torch.arange(units, device=self.model.device).repeat_interleave(rows_each)
            return self.tape.backward(losses, owners, seeds=seeds), losses

    def _test(self, shapes: set[tuple[int, int, int]], *, change: bool) -> None:
        """Test shapes; if one fails, change the kernels for all where that is allowed, else set `unsteady`."""
        if self.unsteady:
            return
        for shape in sorted(shapes):
            if shape not in self._steady:
                self._steady[shape] = self._is_steady(shape)
            if self._steady[shape]:
                continue
            if change and not self.plain_attention:
                self.plain_attention = True
                self._steady.clear()
                self._test(shapes, change=change)
            else:
                self.unsteady = True
            return

    def _is_steady(self, shape: tuple[int, int, int]) -> bool:
        units, each, width = shape
        pool = pool_of(self.model, self.rows, 2 * units, each, width)

        def values_of(chosen: Tensor) -> list[Tensor]:
            at = (chosen[:, None] * each + torch.arange(each)).flatten().to(self.model.device)
            batch = Batch({name: value[at] for name, value in pool.inputs.items()}, pool.targets[at])
            return recorded(self._record(batch, units, each, None)[0])

        training = [module for module in self.model.modules() if module.training]
        with torch.random.fork_rng(devices=[self.model.device] if self.model.device.type == "cuda" else []):
            self.model.eval()  # dropout depends on the position in a batch, not on the unit there
            try:
                with without_zeros(self.model):
                    return bitwise_invariant(values_of, units, UNPADDED)
            finally:
                for module in training:
                    module.training = True

    def _measure(self, rows: int, width: int) -> None:
        """Run the memory-intensive part of a step on synthetic rows."""
        batch = self.rows.made_up(rows, width, len(self.model.tokenizer), self.model.classes, Rng(0), padded=False)
        clipped_sum(self._record(batch, rows, 1, None)[0], Flat(1.0))


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


def pool_of(model: TextModel, rows: Tokens | Vectors, units: int, each: int, width: int) -> Batch:
    """Return synthetic rows of `units` units, every fourth of which has no padding."""
    padded, full = (
        rows.made_up(units * each, width, len(model.tokenizer), model.classes, Rng(0), padded=pad)
        for pad in (True, False)
    )
    unpadded = (torch.arange(units) % UNPADDED == 0).repeat_interleave(each).to(padded.targets.device)
    inputs = {
        name: torch.where(unpadded.view(-1, *(1 for _ in value.shape[1:])), full.inputs[name], value)
        for name, value in padded.inputs.items()
    }
    return Batch(inputs, padded.targets)


def rows_on_cuda(
    shapes: Shapes, take: Callable[[int, int], None], device: torch.device, reserved: int
) -> dict[int, int]:
    """Return how many rows of each width fit the memory of a GPU, from the peak memory of two synthetic parts."""

    def peak(rows: int, width: int) -> int:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        take(rows, width)
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before

    fitting: dict[int, int] = {}
    for width, _ in shapes.rows:
        few = max(2, _TEST_TOKENS // width)
        try:
            take(few, width)  # the first time, libraries allocate memory of their own
            small, large = peak(few, width), peak(2 * few, width)
        except torch.OutOfMemoryError:
            fitting[width] = 1
            torch.cuda.empty_cache()
            continue
        each = max(1.0, (large - small) / few)
        free = _SHARE_OF_MEMORY * free_on_cuda(device) - reserved - max(0.0, small - few * each)
        rows = int(free / each)
        fitting[width] = rows // 8 * 8 if rows >= 8 else max(1, rows)
    torch.cuda.empty_cache()
    return fitting


def free_on_cuda(device: torch.device) -> int:
    """Return the bytes of GPU memory that this process can still allocate."""
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - allocated
    share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    limit = total if share is None else int(total * share(device))
    return int(max(0, min(free + unused, limit - allocated)))


def rows_on_cpu(shapes: Shapes, tape: Tape, reserved: int) -> dict[int, int]:
    """Return how many rows of each width fit half of the available memory, from the bytes a layer stores per token."""
    free = available_memory()
    if free is None:
        return {}
    weights = [p for layer in tape.layers for p in layer.module.parameters(recurse=False)]
    # Inputs and outputs of a layer and their gradients, in float32, twice: stored by autograd, and scaled.
    each = 16 * sum(sum(p.shape) for p in weights if p.dim() == 2 and p.shape[0] < 2**14)
    tokens = int(max(0, free / 2 - reserved) / max(each, 1))
    return {width: max(1, tokens // width) for width, _ in shapes.rows}


def available_memory() -> int | None:
    """Return the bytes of main memory that can be allocated without swapping, or None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return None


Numbers = npt.NDArray[np.int64]

# Resolution of the grid of widths, in steps per doubling, and the smallest width. On a CPU the cost of a part is about
# that of its tokens; on a GPU a part costs at least as much as ten thousand tokens, so there are few shapes.
_STEPS = {"cpu": 8, "cuda": 1}
_LEAST_WIDTH = {"cpu": 4, "cuda": 16}
# Tokens of a part on a CPU: a larger part is not faster, and wastes more on padding.
_CPU_TOKENS = (256, 512)
# Tokens of a part on a GPU: a larger part is not faster, and a smaller one is hardly faster than one of 8,192 tokens.
# Notes of 391 patients, 64 of them expected in a batch, are read in 4.5 parts instead of 9.5 with this lower limit.
MOST_TOKENS = 1 << 17
_LEAST_TOKENS = 1 << 13


@dataclass(frozen=True)
class Part:
    """Units of one shape: the indices of their rows, -1 for padding rows, and the number of real units."""

    rows: Numbers
    units: int
    rows_each: int
    width: int
    real: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Units, rows of each, and padded width."""
        return self.units, self.rows_each, self.width


@dataclass(frozen=True)
class Shapes:
    """Number of rows of a part at each width of a public grid.

    >>> shapes = Shapes.of("cpu", max_length=128, expected_units=256)
    >>> [shapes.width_of(length) for length in (1, 12, 33, 127)]
    [4, 12, 36, 128]
    >>> shapes.units_of(1, 64), shapes.units_of(3, 64), shapes.units_of(100, 64)
    (8, 2, 1)
    """

    device: str
    max_length: int
    rows: tuple[tuple[int, int], ...]  # (width, rows of a part), by width

    @classmethod
    def of(cls, device: str, max_length: int, expected_units: int) -> Shapes:
        """Return the shapes for a device, the maximum length of a text, and the expected number of units per batch."""
        whole("expected_units", expected_units)
        widths = sorted({_rounded_up(n, _STEPS[device], _LEAST_WIDTH[device]) for n in range(1, max_length + 1)})
        widths = [*(width for width in widths if width < max_length), max_length]
        return cls(device, max_length, tuple((width, _rows_at(device, width, expected_units)) for width in widths))

    def width_of(self, length: int) -> int:
        """Return the padded width of a unit whose longest row has `length` tokens."""
        width = _rounded_up(max(1, length), _STEPS[self.device], _LEAST_WIDTH[self.device])
        return min(width, self.max_length)

    def rows_of(self, rows: int) -> int:
        """Return the padded number of rows of a unit with `rows` rows."""
        return _rounded_up(rows, min(4, _STEPS[self.device]), 1)

    def units_of(self, rows_each: int, width: int) -> int:
        """Return the number of units of a part, for a number of rows per unit and a width."""
        return max(1, dict(self.rows)[width] // rows_each)

    def grid(self, most_rows: int | None = None) -> set[tuple[int, int, int]]:
        """Return the shapes of all parts of several units: units, rows of each, and padded width.

        `most_rows` is the largest number of rows of a unit, if that is public. A part of a single unit needs no test.

        >>> sorted(Shapes.of("cuda", max_length=32, expected_units=4).at_most({16: 4, 32: 2}).grid())
        [(2, 1, 32), (2, 2, 16), (4, 1, 16)]
        """
        shapes = set()
        for width, _ in self.rows:
            each = self.rows_of(1)
            while (units := self.units_of(each, width)) > 1 and (most_rows is None or each <= self.rows_of(most_rows)):
                shapes.add((units, each, width))
                each = self.rows_of(each + 1)
        return shapes

    def at_most(self, rows: dict[int, int]) -> Shapes:
        """Return the same shapes with at most `rows[width]` rows for each width, but at least one."""
        return replace(self, rows=tuple((w, max(1, min(r, rows.get(w, r)))) for w, r in self.rows))

    def halved(self) -> Shapes | None:
        """Return the shapes with half as many rows in each, or None if none can be halved."""
        if all(rows == 1 for _, rows in self.rows):
            return None
        return replace(self, rows=tuple((width, max(1, rows // 2)) for width, rows in self.rows))

    def parts(self, rows: Numbers, starts: Numbers, lengths: Numbers) -> Iterator[Part]:
        """Yield the parts of a batch in which unit u owns `rows[starts[u] : starts[u + 1]]`.

        `lengths` are the numbers of tokens of all rows of the corpus. Units of one shape are grouped in their order; a
        unit is never divided.
        """
        counts = np.diff(starts)
        longest = np.maximum.reduceat(lengths[rows], starts[:-1]) if len(counts) else counts
        kinds: dict[tuple[int, int], list[int]] = {}
        for unit, (count, length) in enumerate(zip(counts.tolist(), longest.tolist(), strict=True)):
            kinds.setdefault((self.width_of(length), self.rows_of(count)), []).append(unit)
        for (width, each), members in sorted(kinds.items(), reverse=True):
            size = self.units_of(each, width)
            for start in range(0, len(members), size):
                chosen = members[start : start + size]
                filled = np.full((size, each), -1, dtype=np.int64)
                for place, unit in enumerate(chosen):
                    filled[place, : counts[unit]] = rows[starts[unit] : starts[unit + 1]]
                yield Part(filled.reshape(-1), size, each, width, len(chosen))


def _rounded_up(value: int, steps: int, least: int) -> int:
    """Return the next number of a grid with `steps` steps per doubling, in multiples of `least`.

    >>> [_rounded_up(value, 8, 4) for value in (3, 31, 33, 65)], [_rounded_up(value, 1, 16) for value in (3, 33)]
    ([4, 32, 36, 72], [16, 64])
    """
    power = 1 << (max(value - 1, 1).bit_length() - 1)
    step = max(least, power // steps)
    return -(-value // step) * step


def _rows_at(device: str, width: int, expected_units: int) -> int:
    if device == "cpu":
        tokens = min(max(expected_units, _CPU_TOKENS[0]), _CPU_TOKENS[1])
        multiple = 8 if width < 128 else 4 if width < 256 else 2
        return max(multiple, tokens // width // multiple * multiple)
    # Two parts if all units have this width, with a margin for the varying size of a Poisson batch.
    rows = math.ceil((expected_units + 4 * math.sqrt(expected_units)) / 2 / 8) * 8
    least = _LEAST_TOKENS // width if width > 1 else 1  # vectors of a frozen encoder have width 1, and are cheap
    return max(1, min(max(rows, least), MOST_TOKENS // width))


def find_device(name: str = "auto") -> torch.device:
    """Return the device by name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise invalid("device", name, "one of auto, cpu, cuda, cuda:N", "") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise invalid(
            "device", name, "a device of this machine", f"There is no usable GPU; use {setting('device', 'cpu')}."
        )
    if device.type not in {"cpu", "cuda"}:
        raise invalid("device", name, "one of auto, cpu, cuda, cuda:N", "Other devices are not tested.")
    return device


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context of a precision; `auto` is bf16 on a GPU that supports it, and float32 elsewhere."""
    bf16 = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16)


_SKIPS_MASKS = ("_ignore_bidirectional_mask_sdpa", "_ignore_causal_mask_sdpa")


@contextmanager
def fixed_kernels(plain_attention: bool = False) -> Iterator[None]:
    """Make a model choose its kernels by the shapes of its inputs, and not by their values.

    By default, transformers passes no attention mask if no row of a batch is padded, and another kernel then computes
    every row. With `plain_attention`, attention is computed by ordinary matrix products, because the fused kernels of a
    GPU may add in an order that changes from run to run.
    """
    masks = sys.modules.get("transformers.masking_utils")
    before = {name: getattr(masks, name) for name in _SKIPS_MASKS if hasattr(masks, name)}
    for name in before:
        setattr(masks, name, lambda *_, **__: False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if plain_attention else nullcontext():
            yield
    finally:
        for name, skips in before.items():
            setattr(masks, name, skips)
