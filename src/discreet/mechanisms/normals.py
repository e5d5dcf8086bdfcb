"""Normal noise in float64, added in float64 and rounded once: what a release shows of its noise is no lattice.

Normal numbers of a generator lie on a lattice (those of a 24-bit Box-Muller transform on circles that can be told
apart). Whoever knows what the noise was added to may test whether the difference lies on it. So noise is drawn in
float64, added to the value in float64, and the sum is rounded to a multiple of a power of two near 2^-16 of the noise's
standard deviation, and then to the precision of the value. Rounding the sum is post-processing. What is left is counted
in docs/decisions/noise.md.

A fused CUDA kernel for normal noise: it draws in float64, adds, rounds once and writes, where Triton is there.

A counter goes through Philox4x32-10. Of its 128 bits, 75 make the radius of a Box-Muller pair and 53 its angle. The
kernel is used on a device only after its numbers agreed there with `reference`, which is the same in numpy.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor

from discreet.core.errors import DataError
from discreet.core.first_test import passes

if TYPE_CHECKING:
    from discreet.core.randomness import Rng


Floats = npt.NDArray[np.float64]

# Numbers drawn at a time: half a megabyte, which stays in a core's cache until it is added.
_BLOCK = 1 << 16
# The release is a multiple of a power of two in (2^-17, 2^-16] times the noise's standard deviation. A coarser one
# would hide more of float64's rounding; this one adds less than 10^-10 of the noise's variance.
GRID_BITS = 16


def grid_of(std: float) -> float:
    """Return the power of two that a release with noise of this standard deviation is a multiple of.

    >>> grid_of(1.0) == 2.0**-16, grid_of(3.0) == 2.0**-15
    (True, True)
    """
    return math.ldexp(1.0, max(math.frexp(std)[1] - 1 - GRID_BITS, -960))


def on_grid(sums: Tensor, std: float) -> Tensor:
    """Round float64 sums in place to multiples of `grid_of(std)`, and return them.

    Adding and subtracting 1.5 * 2^52 grids rounds to a multiple of the grid; sums beyond 2^51 grids have no finer
    digits than that to lose.
    """
    return sums.add_(grid_shift(std)).sub_(grid_shift(std))


def grid_shift(std: float) -> float:
    """Return what is added and subtracted to round to multiples of the grid."""
    return 1.5 * 2.0**52 * grid_of(std)


def release(values: Tensor, noise: Tensor, std: float) -> Tensor:
    """Return values plus float64 noise of this standard deviation, rounded once, in the values' precision.

    Gradients pass to the values as if nothing was rounded.
    """
    with torch.no_grad():
        found = on_grid(values.double() + noise, std).to(values.dtype)
    return passed_through(values, found)


def passed_through(values: Tensor, released: Tensor) -> Tensor:
    """Return the release with the gradient of the values, if they have one."""
    if not (values.requires_grad and torch.is_grad_enabled()):
        return released
    found: Tensor = _PassThrough.apply(values, released)  # type: ignore[no-untyped-call]
    return found


class _PassThrough(torch.autograd.Function):
    """The second tensor in the forward pass, the first in the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, released: Tensor) -> Tensor:
        return released.view_as(released)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def add_normal(values: Tensor, std: float, rng: Rng) -> Tensor:
    """Return values plus normal noise, drawn and added in float64 and rounded once, in the values' precision.

    >>> from discreet import Rng
    >>> released = add_normal(torch.zeros(1000), 2.0, Rng(1))
    >>> released.dtype, 1.8 < float(released.std()) < 2.2
    (torch.float32, True)
    """
    return add_normals({"": values}, std, rng)[""]


def add_normals(values: Mapping[str, Tensor], std: float, rng: Rng) -> dict[str, Tensor]:
    """Return several tensors with normal noise, each from a stream of its own. NaN and infinity are rejected."""
    if values and not bool(torch.stack([torch.isfinite(v).all().cpu() for v in values.values()]).all()):
        raise DataError("Expected finite values, found NaN or infinity. Clip or clean them first: noise hides neither.")
    if std == 0:
        return {name: value.clone() for name, value in values.items()}
    source = NormalSource(rng)
    with torch.no_grad():
        found = {name: source.add(value, std, number) for number, (name, value) in enumerate(values.items())}
    return {name: passed_through(values[name], released) for name, released in found.items()}


def normals(shape: tuple[int, ...], rng: Rng, device: torch.device | str = "cpu") -> Tensor:
    """Return normal numbers in float64."""
    return NormalSource(rng).draw(shape, torch.device(device))


class NormalSource:
    """Normal numbers in float64 for one release: numbered arrays, drawn in blocks of their own streams.

    On a CPU block b of array a is drawn from a generator of its own, whose state is a hash of the key, a and b: the
    same numbers come out with any number of threads. On a GPU the position is part of a counter. A secure source draws
    every bit from the operating system, on the CPU.
    """

    def __init__(self, rng: Rng) -> None:
        """Take a fresh key from the source; two of one source draw different numbers."""
        self._key = None if rng.is_secure else rng.bytes(32)
        self._system = rng.floats() if rng.is_secure else None
        self._device_keys: dict[tuple[torch.device, float], Tensor] = {}

    def add(self, values: Tensor, std: float, number: int) -> Tensor:
        """Return values plus noise, rounded once; `number` is the array's own and may not be used twice."""
        values = values.detach()
        if values.is_cuda and self._key is not None and kernel_usable(values):
            return kernel_add(values, self.device_key(values.device, std), number)
        if not values.is_cuda:
            return self._add_on_cpu(values, std, number)
        noise = self._on_device(values.shape, values.device, number)
        return on_grid(noise.mul_(std).add_(values), std).to(values.dtype)

    def draw(self, shape: tuple[int, ...], device: torch.device, number: int = 0) -> Tensor:
        """Return normal numbers of a shape."""
        if device.type != "cpu":
            return self._on_device(shape, device, number)
        found = np.empty(math.prod(shape))
        self._blocks(len(found), lambda block, part: self._fill(found[part], number, block))
        return torch.from_numpy(found).view(shape)

    def _on_device(self, shape: tuple[int, ...], device: torch.device, number: int) -> Tensor:
        if self._key is not None and device.type == "cuda":
            found = torch.empty(shape, dtype=torch.float64, device=device)
            if kernel_usable(found):
                return kernel_fill(found, self.device_key(device), number)
            # One draw of 53 bits would show its lattice in the tail, once in 2^36; a sum of two does not.
            digest = hashlib.sha256(self._key + b"%d" % number).digest()
            generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            found.normal_(generator=generator)
            found += torch.empty_like(found).normal_(generator=generator)
            return found.mul_(math.sqrt(0.5))
        return self.draw(shape, torch.device("cpu"), number).to(device)

    def device_key(self, device: torch.device, std: float = 1.0) -> Tensor:
        """Return the key and the standard deviation as the kernel reads them, on the device."""
        if (device, std) not in self._device_keys:
            assert self._key is not None
            seed, nonce = np.frombuffer(hashlib.sha256(self._key + b"device").digest()[:16], dtype=np.int64).tolist()
            self._device_keys[device, std] = key_words(seed, nonce, std, grid_shift(std)).to(device)
        return self._device_keys[device, std]

    def _add_on_cpu(self, values: Tensor, std: float, number: int) -> Tensor:
        dtype = values.dtype if values.dtype in (torch.float32, torch.float64) else torch.float32
        flat = values.to(dtype).contiguous().view(-1).numpy()  # half precision fits into float32 exactly
        found = np.empty_like(flat)
        shift = grid_shift(std)

        def work(block: int, part: slice) -> None:
            sums = np.empty(len(flat[part]))
            self._fill(sums, number, block)
            np.multiply(sums, std, out=sums)
            np.add(sums, flat[part], out=sums)
            np.add(sums, shift, out=sums)
            np.subtract(sums, shift, out=found[part], casting="same_kind")

        self._blocks(len(flat), work)
        return torch.from_numpy(found).view(values.shape).to(values.dtype)

    def _blocks(self, count: int, work: Any) -> None:
        parts = [(block, slice(start, start + _BLOCK)) for block, start in enumerate(range(0, count, _BLOCK))]
        threads = min(torch.get_num_threads(), len(parts) // 2)
        if threads < 2 or self._key is None:
            for block, part in parts:
                work(block, part)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda one: work(*one), parts))

    def _fill(self, out: Floats, number: int, block: int) -> None:
        if self._system is not None:
            out[:] = self._system.standard_normal(len(out))
            return
        assert self._key is not None
        digest = hashlib.sha256(self._key + b"%d %d" % (number, block)).digest()
        np.random.Generator(np.random.SFC64(_State(digest))).standard_normal(out=out)  # type: ignore[arg-type]


class _State(ISeedSequence):
    """The initial state of a generator, as it is."""

    def __init__(self, state: bytes) -> None:
        self._state = state

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        """Return the first words of the state."""
        return np.frombuffer(self._state, dtype=dtype, count=n_words).copy()


_KERNEL_BLOCK = 512
_LARGEST = 1 << 32
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_trusted: dict[torch.device, bool] = {}


def kernel_usable(like: Tensor) -> bool:
    """Whether the kernel takes this tensor: float32 or float64 on a CUDA device where it proved right."""
    fit = like.is_cuda and like.dtype in (torch.float32, torch.float64) and 0 < like.numel() < _LARGEST
    if not fit or importlib.util.find_spec("triton") is None:
        return False
    if like.device not in _trusted:
        if torch.cuda.is_current_stream_capturing():
            return False  # nothing can be compared while a graph is recorded
        _trusted[like.device] = agree(like.device)
    return _trusted[like.device]


def key_words(seed: int, nonce: int, std: float, shift: float) -> Tensor:
    """Return what the kernel reads: the key, a step that a recorded graph may count up, and two numbers as bits."""
    bits = [int.from_bytes(struct.pack("<d", number), "little", signed=True) for number in (std, shift)]
    return torch.tensor([seed, nonce, 0, *bits], dtype=torch.int64)


def kernel_add(values: Tensor, key: Tensor, number: int, out: Tensor | None = None) -> Tensor:
    """Return values plus the noise of an array's number, in float64, rounded as the key says and then once to `out`."""
    values = values.contiguous()
    out = torch.empty_like(values) if out is None else out
    _launch(values, out, key, number, True)
    return out


def kernel_fill(out: Tensor, key: Tensor, number: int) -> Tensor:
    """Fill a contiguous tensor with normal numbers and return it."""
    _launch(out, out, key, number, False)
    return out


def _launch(values: Tensor, out: Tensor, key: Tensor, number: int, add_up: bool) -> None:
    programs = -(-((values.numel() + 1) // 2) // _KERNEL_BLOCK)
    with torch.cuda.device(values.device):
        _compiled()[(programs,)](values, out, key, values.numel(), number, ADD=add_up, BLOCK=_KERNEL_BLOCK)


def agree(device: torch.device) -> bool:
    """Return whether the kernel's numbers agree with the reference on a small example, and warn if not."""

    def right() -> bool:
        shift = 1.5 * 2.0**32
        key = key_words(-(2**62) + 12345, 0x1234567, 3.0, shift)
        placed, count = key.to(device), 3 * _KERNEL_BLOCK + 77
        wanted = reference(key.tolist(), count, 5)
        drawn = kernel_fill(torch.empty(count, dtype=torch.float64, device=device), placed, 5)
        near = np.abs(drawn.cpu().numpy() - wanted).max() < 1e-12
        values = torch.linspace(-2, 2, count, device=device)
        sums = values.cpu().double().numpy() + 3.0 * wanted
        wide = kernel_add(values.double(), placed, 5).cpu().numpy()
        rounded = bool((np.abs(wide - sums) <= 2.0**-21 + 1e-9).all()) and bool((wide * 2.0**20 % 1 == 0).all())
        narrow = kernel_add(values, placed, 5).cpu().numpy()
        return bool(near) and rounded and bool((np.abs(narrow - wide) <= 2.0**-20).all())

    return passes(right, f"Fused noise is not used on {device}", "Noise is right, but slower.")


def reference(key: list[int], count: int, number: int) -> Floats:
    """Return the kernel's normal numbers, by numpy."""
    half = (count + 1) // 2
    at = np.arange(half, dtype=np.uint64)
    counter = [at & _LOW, _full(key[2], half), _full(number, half), _full(key[1], half)]
    w = philox(counter, key[0])
    uniform = ((w[0] << _WORD) | w[1]).astype(np.float64) * 2.0**-64
    uniform += ((w[2] & np.uint64(2047)).astype(np.float64) + 0.5) * 2.0**-75
    radius = np.sqrt(-2.0 * np.log(uniform))
    within = (((w[2] >> np.uint64(11)) & np.uint64(0x3FFFF)) << _WORD | w[3]).astype(np.float64)
    angle = (within + 0.5) * (math.pi / 4 * 2.0**-50)
    octant = w[2] >> np.uint64(29)
    swapped = octant & np.uint64(1) != 0
    cos = np.where(swapped, np.sin(angle), np.cos(angle)) * np.where(octant & np.uint64(2) != 0, -1.0, 1.0)
    sin = np.where(swapped, np.cos(angle), np.sin(angle)) * np.where(octant & np.uint64(4) != 0, -1.0, 1.0)
    return np.concatenate([radius * cos, radius * sin])[:count]


def _full(value: int, count: int) -> npt.NDArray[np.uint64]:
    return np.full(count, value & 0xFFFFFFFF, dtype=np.uint64)


def philox(counter: list[npt.NDArray[np.uint64]], key: int) -> list[npt.NDArray[np.uint64]]:
    """Return the four 32-bit words of Philox4x32-10 for counters of four 32-bit words and a 64-bit key.

    Paper: Salmon, Moraes, Dror and Shaw 2011, Parallel random numbers: as easy as 1, 2, 3.
    """
    a, b, c, d = counter
    low, high = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for turn in range(10):
        k0, k1 = (np.uint64((k + turn * step) & 0xFFFFFFFF) for k, step in ((low, 0x9E3779B9), (high, 0xBB67AE85)))
        one, two = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (two >> _WORD) ^ b ^ k0, two & _LOW, (one >> _WORD) ^ d ^ k1, one & _LOW
    return [a, b, c, d]


@functools.cache
def _compiled() -> Any:
    import triton  # type: ignore[import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

    @triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator,unused-ignore]
    def noise(values, out, key, count, number, ADD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        half = (count + 1) // 2
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        c0 = at.to(tl.int32)
        c1 = c0 * 0 + tl.load(key + 2).to(tl.int32)
        c2 = c0 * 0 + number
        c3 = c0 * 0 + tl.load(key + 1).to(tl.int32)
        w0, w1, w2, w3 = tl.philox(tl.load(key), c0, c1, c2, c3)
        uniform = ((w0.to(tl.uint64) << 32) | w1.to(tl.uint64)).to(tl.float64) * 5.421010862427522e-20
        uniform += ((w2 & 2047).to(tl.float64) + 0.5) * 2.6469779601696886e-23
        radius = tl.sqrt(-2.0 * tl.log(uniform))
        within = ((((w2 >> 11) & 0x3FFFF).to(tl.uint64) << 32) | w3.to(tl.uint64)).to(tl.float64)
        angle = (within + 0.5) * 6.975736996017264e-16
        # Taylor series: below pi / 4 the first term left out is under 1e-17.
        x = angle * angle
        cos = x * 0.0 + 1.0
        sin = x * 0.0 + 1.0
        for k in tl.static_range(8):
            cos = 1.0 - cos * x * (1.0 / ((16 - 2 * k) * (15 - 2 * k)))
            sin = 1.0 - sin * x * (1.0 / ((17 - 2 * k) * (16 - 2 * k)))
        sin = sin * angle
        octant = w2 >> 29
        swapped = (octant & 1) != 0
        first = radius * tl.where(swapped, sin, cos)
        second = radius * tl.where(swapped, cos, sin)
        first = tl.where((octant & 2) != 0, -first, first)
        second = tl.where((octant & 4) != 0, -second, second)
        if ADD:
            std = tl.load(key + 3).to(tl.float64, bitcast=True)
            shift = tl.load(key + 4).to(tl.float64, bitcast=True)
            first = tl.load(values + at, at < half, 0.0).to(tl.float64) + std * first
            second = tl.load(values + half + at, half + at < count, 0.0).to(tl.float64) + std * second
            first = (first + shift) - shift
            second = (second + shift) - shift
        tl.store(out + at, first, at < half)
        tl.store(out + half + at, second, half + at < count)

    return noise
