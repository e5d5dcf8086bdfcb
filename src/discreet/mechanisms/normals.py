"""Normal noise, sampled and added in float64 and rounded once, so that a release does not reveal its lattice.

Normal numbers of a generator lie on a lattice (those of a 24-bit Box-Muller transform on distinguishable circles). An
attacker who knows the value can test whether the difference lies on it. So noise is sampled in float64, added to the
value in float64, and the sum is rounded to a multiple of a power of two near 2^-16 of the standard deviation of the
noise, and then to the precision of the value. Rounding the sum is post-processing. docs/decisions/noise.md accounts for
the remaining error.

On CUDA devices with Triton, a fused kernel samples in float64, adds, rounds once and writes. It applies Philox4x32-10
to a counter. Of the 128 bits, 75 give the radius of a Box-Muller pair and 53 its angle. The kernel is used on a device
only after its numbers agreed there with `reference`, the same computation in numpy.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor

from discreet.core.errors import DataError
from discreet.core.first_test import has_triton, passes

if TYPE_CHECKING:
    from discreet.core.randomness import Rng


Floats = npt.NDArray[np.float64]

# Numbers sampled at a time: half a megabyte, which stays in the cache of a core until it is added.
_BLOCK = 1 << 16
# The release is a multiple of a power of two in (2^-17, 2^-16] times the standard deviation of the noise. A coarser
# grid would hide more of the float64 rounding; this one adds less than 10^-10 of the variance of the noise.
GRID_BITS = 16


def grid_of(std: float) -> float:
    """Return the power of two that a release with noise of this standard deviation is a multiple of.

    >>> grid_of(1.0) == 2.0**-16, grid_of(3.0) == 2.0**-15
    (True, True)
    """
    return math.ldexp(1.0, max(math.frexp(std)[1] - 1 - GRID_BITS, -960))


def on_grid(sums: Tensor, std: float) -> Tensor:
    """Round float64 sums in place to multiples of `grid_of(std)`, and return them.

    Adding and subtracting 1.5 * 2^52 grid steps rounds to a multiple of the grid; sums beyond 2^51 grid steps have no
    finer digits.
    """
    return sums.add_(grid_shift(std)).sub_(grid_shift(std))


def grid_shift(std: float) -> float:
    """Return the number to add and subtract to round to multiples of the grid."""
    return 1.5 * 2.0**52 * grid_of(std)


def release(values: Tensor, noise: Tensor, std: float) -> Tensor:
    """Return values plus float64 noise of this standard deviation, rounded once, in the precision of the values.

    Gradients pass through to the values as if nothing was rounded.
    """
    with torch.no_grad():
        released = on_grid(values.double() + noise, std).to(values.dtype)
    return passed_through(values, released)


def passed_through(values: Tensor, released: Tensor) -> Tensor:
    """Return the release with the gradient of the values, if they require one."""
    if not (values.requires_grad and torch.is_grad_enabled()):
        return released
    result: Tensor = _PassThrough.apply(values, released)  # type: ignore[no-untyped-call]
    return result


class _PassThrough(torch.autograd.Function):
    """Return the second tensor in the forward pass and pass the gradient to the first."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, released: Tensor) -> Tensor:
        return released.view_as(released)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def add_normal(values: Tensor, std: float, rng: Rng) -> Tensor:
    """Return values plus normal noise, sampled and added in float64 and rounded once, in the precision of the values.

    >>> from discreet import Rng
    >>> released = add_normal(torch.zeros(1000), 2.0, Rng(1))
    >>> released.dtype, 1.8 < float(released.std()) < 2.2
    (torch.float32, True)
    """
    return add_normals({"": values}, std, rng)[""]


def add_normals(values: Mapping[str, Tensor], std: float, rng: Rng) -> dict[str, Tensor]:
    """Return several tensors plus normal noise, each from a separate stream; NaN and infinity are rejected."""
    check_finite(values.values())
    if std == 0:
        return {name: value.clone() for name, value in values.items()}
    source = NormalSource(rng)
    with torch.no_grad():
        noisy = {name: source.add(value, std, number) for number, (name, value) in enumerate(values.items())}
    return {name: passed_through(values[name], released) for name, released in noisy.items()}


def check_finite(values: Iterable[Tensor]) -> None:
    """Reject NaN and infinity, which noise does not hide."""
    if not _all_finite([value.detach() for value in values]):
        raise DataError("Expected finite values, got NaN or infinity. Clean them first: noise does not hide them.")


def _all_finite(values: list[Tensor]) -> bool:
    """Return whether no number is NaN or infinite, with one result read from the device for all tensors."""
    one_kind = len({(value.device, value.dtype) for value in values}) == 1
    # A sum of squares is finite only if all its terms are. If it is not, a large number may have overflowed.
    if one_kind and bool(torch.isfinite(torch.stack(torch._foreach_norm(values))).all()):
        return True
    return all(bool(torch.isfinite(value).all()) for value in values)


def normals(shape: tuple[int, ...], rng: Rng, device: torch.device | str = "cpu") -> Tensor:
    """Return normal numbers in float64."""
    return NormalSource(rng).draw(shape, torch.device(device))


class NormalSource:
    """Normal numbers in float64 for one release: numbered arrays, sampled in blocks with separate streams.

    On a CPU, block b of array a has its own generator, whose state is a hash of the key, a and b, so the numbers do not
    depend on the number of threads. On a GPU the position is part of a counter. A secure source reads every bit from
    the operating system, on the CPU.
    """

    def __init__(self, rng: Rng) -> None:
        """Take a new key from the source, so that two objects of one source give different numbers."""
        self._key = None if rng.is_secure else rng.bytes(32)
        self._system = rng.floats() if rng.is_secure else None
        self._device_keys: dict[tuple[torch.device, float], Tensor] = {}

    def add(self, values: Tensor, std: float, number: int) -> Tensor:
        """Return values plus noise, rounded once; `number` identifies the array and must not be used twice."""
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
        noise = np.empty(math.prod(shape))
        self._blocks(len(noise), lambda block, part: self._fill(noise[part], number, block))
        return torch.from_numpy(noise).view(shape)

    def _on_device(self, shape: tuple[int, ...], device: torch.device, number: int) -> Tensor:
        if self._key is not None and device.type == "cuda":
            noise = torch.empty(shape, dtype=torch.float64, device=device)
            if kernel_usable(noise):
                return kernel_fill(noise, self.device_key(device), number)
            # One sample of 53 bits reveals its lattice in the tail, once in 2^36; a sum of two does not.
            digest = hashlib.sha256(self._key + b"%d" % number).digest()
            generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            noise.normal_(generator=generator)
            noise += torch.empty_like(noise).normal_(generator=generator)
            return noise.mul_(math.sqrt(0.5))
        return self.draw(shape, torch.device("cpu"), number).to(device)

    def device_key(self, device: torch.device, std: float = 1.0) -> Tensor:
        """Return the key and the standard deviation in the format of the kernel, on the device."""
        if (device, std) not in self._device_keys:
            self._device_keys[device, std] = self.kernel_key(std).to(device)
        return self._device_keys[device, std]

    def kernel_key(self, std: float) -> Tensor:
        """Return the key and the standard deviation in the format of the kernel."""
        assert self._key is not None
        seed, nonce = np.frombuffer(hashlib.sha256(self._key + b"device").digest()[:16], dtype=np.int64).tolist()
        return key_words(seed, nonce, std, grid_shift(std))

    def _add_on_cpu(self, values: Tensor, std: float, number: int) -> Tensor:
        dtype = values.dtype if values.dtype in (torch.float32, torch.float64) else torch.float32
        flat = values.to(dtype).contiguous().view(-1).numpy()  # half precision is exact in float32
        released = np.empty_like(flat)
        shift = grid_shift(std)

        def work(block: int, part: slice) -> None:
            sums = np.empty(len(flat[part]))
            self._fill(sums, number, block)
            np.multiply(sums, std, out=sums)
            np.add(sums, flat[part], out=sums)
            np.add(sums, shift, out=sums)
            np.subtract(sums, shift, out=released[part], casting="same_kind")

        self._blocks(len(flat), work)
        return torch.from_numpy(released).view(values.shape).to(values.dtype)

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


class RepeatedNormals:
    """The noise of `add_normals` for tensors on a GPU, drawn again by a captured graph with a key that `use` sets.

    Values must be finite: that is checked before the graph is replayed.
    """

    def __init__(self, std: float, device: torch.device) -> None:
        """Take the standard deviation; `use` sets the first key."""
        self.std = std
        self.key = key_words(0, 0, std, grid_shift(std)).to(device)

    @staticmethod
    def fits(values: Tensor) -> bool:
        """Return whether the kernel can add noise to this tensor."""
        return kernel_usable(values)

    def use(self, rng: Rng) -> None:
        """Take a new key: the noise is then that of `add_normals` with this source."""
        self.key.copy_(NormalSource(rng).kernel_key(self.std))

    def add(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors plus noise."""
        return {name: kernel_add(value, self.key, number) for number, (name, value) in enumerate(values.items())}


class _State(ISeedSequence):
    """A seed sequence that returns a fixed initial state."""

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
    """Return whether the kernel supports this tensor (float32 or float64 on CUDA) and passed its self-test."""
    fit = like.is_cuda and like.dtype in (torch.float32, torch.float64) and 0 < like.numel() < _LARGEST
    if not fit or not has_triton():
        return False
    if like.device not in _trusted:
        if torch.cuda.is_current_stream_capturing():
            return False  # no comparison is possible during graph capture
        _trusted[like.device] = agree(like.device)
    return _trusted[like.device]


def key_words(seed: int, nonce: int, std: float, shift: float) -> Tensor:
    """Return the input of the kernel: the key, a step that a captured graph can increment, and two numbers as bits."""
    bits = [int.from_bytes(struct.pack("<d", number), "little", signed=True) for number in (std, shift)]
    return torch.tensor([seed, nonce, 0, *bits], dtype=torch.int64)


def kernel_add(values: Tensor, key: Tensor, number: int, out: Tensor | None = None) -> Tensor:
    """Return values plus the noise of an array number, rounded to the grid in the key and then to the type of `out`."""
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
    """Return whether the kernel agrees with the reference on a small example; warn if not."""

    def test() -> bool:
        shift = 1.5 * 2.0**32
        key = key_words(-(2**62) + 12345, 0x1234567, 3.0, shift)
        device_key, count = key.to(device), 3 * _KERNEL_BLOCK + 77
        expected = reference(key.tolist(), count, 5)
        noise = kernel_fill(torch.empty(count, dtype=torch.float64, device=device), device_key, 5)
        close = np.abs(noise.cpu().numpy() - expected).max() < 1e-12
        values = torch.linspace(-2, 2, count, device=device)
        sums = values.cpu().double().numpy() + 3.0 * expected
        in_double = kernel_add(values.double(), device_key, 5).cpu().numpy()
        rounded = bool((np.abs(in_double - sums) <= 2.0**-21 + 1e-9).all() and (in_double * 2.0**20 % 1 == 0).all())
        in_single = kernel_add(values, device_key, 5).cpu().numpy()
        return bool(close) and rounded and bool((np.abs(in_single - in_double) <= 2.0**-20).all())

    return passes(test, f"The fused noise kernel is not used on {device}", "Results are correct, but slower.")


def reference(key: list[int], count: int, number: int) -> Floats:
    """Return the normal numbers of the kernel, computed in numpy."""
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
        # Taylor series: below pi / 4 the first omitted term is below 1e-17.
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
