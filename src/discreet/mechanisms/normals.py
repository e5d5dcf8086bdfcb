"""Normal noise in float64, added in float64 and rounded once: what a release shows of its noise is no lattice.

Normal numbers of a generator lie on a lattice (those of a 24-bit Box-Muller transform on circles that can be told
apart). Whoever knows what the noise was added to may test whether the difference lies on it. So noise is drawn in
float64, added to the value in float64, and the sum is rounded to a multiple of a power of two near 2^-16 of the noise's
standard deviation, and then to the precision of the value. Rounding the sum is post-processing. What is left is counted
in docs/decisions/noise.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random.bit_generator import ISeedSequence
from torch import Tensor

from discreet.core.errors import DataError

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
        if values.is_cuda and self._key is not None:
            from discreet.mechanisms import normal_kernels

            if normal_kernels.usable(values):
                return normal_kernels.add(values, self.device_key(values.device, std), number)
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
            from discreet.mechanisms import normal_kernels

            found = torch.empty(shape, dtype=torch.float64, device=device)
            if normal_kernels.usable(found):
                return normal_kernels.fill(found, self.device_key(device), number)
            # One draw of 53 bits would show its lattice in the tail, once in 2^36; a sum of two does not.
            digest = hashlib.sha256(self._key + b"%d" % number).digest()
            generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            found.normal_(generator=generator)
            found += torch.empty_like(found).normal_(generator=generator)
            return found.mul_(math.sqrt(0.5))
        return self.draw(shape, torch.device("cpu"), number).to(device)

    def device_key(self, device: torch.device, std: float = 1.0) -> Tensor:
        """Return the key and the standard deviation as the kernel reads them, on the device."""
        from discreet.mechanisms import normal_kernels

        if (device, std) not in self._device_keys:
            assert self._key is not None
            seed, nonce = np.frombuffer(hashlib.sha256(self._key + b"device").digest()[:16], dtype=np.int64).tolist()
            self._device_keys[device, std] = normal_kernels.key_words(seed, nonce, std, grid_shift(std)).to(device)
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
