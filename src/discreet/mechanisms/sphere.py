"""Random unit vectors at a given angle to given directions, drawn and turned in float64 and rounded once.

Two fused CUDA kernels for directions on the sphere: one pass to measure, one to turn; used where Triton is there.

Ordinary operations read the noise and the direction four times and write three times; these read twice and write once.
The noise is in float64, and so are all sums; the turned noise is rounded once. They are used on a device only after
they agreed there with ordinary operations.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.errors import DataError
from discreet.core.first_test import passes

if TYPE_CHECKING:
    import torch

    from discreet.core.randomness import Rng


# From this dimension on, no normal vector comes near enough to a fixed direction to lose digits.
_MANY = 128
# A block of rows is drawn, projected and scaled while it is still in the processor's cache; on a GPU, at half a GiB.
_BLOCK = {"cpu": 1 << 17, "cuda": 1 << 26}
_PIECE = 1 << 15
# Squared lengths outside this range may have overflowed or lost digits in float64.
_SMALL, _LARGE = 1e-240, 1e240


def directions_around(
    x: torch.Tensor, cosine: npt.NDArray[Any], sine: npt.NDArray[Any], rng: Rng, length: float = 1.0
) -> torch.Tensor:
    """Return for each row of x (n, d) a vector of a given length and cosine with it, otherwise uniform.

    With u = x / |x| and a normal vector xi, y = cosine * u + sine * (xi - <xi, u> u) / |xi - <xi, u> u|, computed in
    float64, times `length`, rounded to a multiple of about 2^-16 of a coordinate's size and then to the precision of x.
    A row of zeros has no direction: its result is a uniform one.
    """
    import torch

    from discreet.mechanisms.normals import NormalSource

    count, dimension = x.shape
    result = torch.empty_like(x, memory_format=torch.contiguous_format, requires_grad=False)
    cosines = torch.from_numpy(length * cosine).to(x.device)
    sines = torch.from_numpy(length * sine).to(x.device)
    rows, source = max(1, _BLOCK.get(x.device.type, 1 << 17) // dimension), NormalSource(rng)
    with torch.no_grad():
        for number, start in enumerate(range(0, count, rows)):
            part = slice(start, min(start + rows, count))
            noise = source.draw((part.stop - start, dimension), x.device, number)
            _turn(noise, x[part].detach(), cosines[part], sines[part], length, result[part])
    return result


def _turn(
    noise: torch.Tensor, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, length: float, out: torch.Tensor
) -> None:
    """Write the turned and rounded noise to `out`; the noise is overwritten."""
    import torch

    from discreet.mechanisms.normals import grid_shift, on_grid

    deviation = length / math.sqrt(x.shape[-1])
    fused = None
    if noise.is_cuda and x.shape[-1] >= _MANY:
        fused = sphere_kernels if usable(noise, x, out) else None
    alone = x.shape[0] == 1 and x.device.type == "cpu"  # a long row is read piece by piece, and never copied whole
    if not fused and not alone:
        x = x.double()
    noise_square, inner, square = fused.products(noise, x) if fused else (None, None, _square(x))
    unusual = ~((square > _SMALL) & (square < _LARGE))
    if bool(unusual.any()):
        x, square = _rescaled(x.double(), square, unusual)
        inner = None
    long = square.sqrt()
    empty = square == 0
    along = torch.where(empty, 0.0, (_inner(noise, x if alone else x.double()) if inner is None else inner) / long)
    if x.shape[-1] < _MANY:
        # In few dimensions the noise may be nearly parallel to x: subtract first, then take the length.
        noise.addcmul_(x.double(), torch.where(empty, 0.0, -along / long)[:, None])
        along = torch.zeros_like(along)
    across = ((_square(noise) if noise_square is None else noise_square) - along * along).sqrt()
    scale = torch.where(empty, length, sine) / across
    shift = torch.where(empty, 0.0, (cosine - scale * along) / long)
    if fused:
        fused.turn(noise, x, scale, shift, grid_shift(deviation), out)
        return
    if alone:
        for start in range(0, x.shape[1], _PIECE):
            part = slice(start, start + _PIECE)
            turned = noise[0, part].mul_(float(scale)).add_(x[0, part], alpha=float(shift))
            out[0, part].copy_(on_grid(turned, deviation))
        return
    out.copy_(on_grid(noise.mul_(scale[:, None]).addcmul_(x, shift[:, None]), deviation))


def _square(a: torch.Tensor) -> torch.Tensor:
    import torch

    if a.device.type == "cpu":
        return _inner(a, a)
    length: torch.Tensor = torch.linalg.vector_norm(a, dim=-1)  # one pass; a product would be written out first
    return length.square()


def _inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import torch

    if a.shape[0] == 1 and a.device.type == "cpu":
        parts = [slice(start, start + _PIECE) for start in range(0, a.shape[1], _PIECE)]
        return torch.stack([torch.dot(a[0, part].double(), b[0, part].double()) for part in parts]).sum()[None]
    return (a * b).sum(-1)


def _rescaled(x: torch.Tensor, square: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and its squared lengths with the very long and very short rows brought to length 1."""
    import torch

    some = x[rows]
    if not bool(torch.isfinite(some).all()):
        raise DataError(
            "Expected finite vectors, found NaN or infinity. Clip or clean them first: noise hides neither."
        )
    # Two divisions: the largest coordinate first, so that no square overflows or vanishes.
    top = some.abs().amax(-1, keepdim=True)
    some = some / torch.where(top > 0, top, 1.0)
    some = some / torch.where(top > 0, torch.linalg.vector_norm(some, dim=-1, keepdim=True), 1.0)
    x, square = x.clone(), square.clone()
    x[rows] = some
    square[rows] = (some * some).sum(-1)
    return x, square


def uniform_directions(count: int, dimension: int, rng: Rng, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return uniformly random unit vectors in float64."""
    import torch

    from discreet.mechanisms.normals import normals

    result = normals((count, dimension), rng, device)
    return result.div_(torch.linalg.vector_norm(result, dim=-1, keepdim=True))


_KERNEL_BLOCK, _TURNS = 1024, 16
_trusted: dict[torch.device, bool] = {}


def usable(noise: Tensor, x: Tensor, out: Tensor) -> bool:
    """Whether the kernels take these tensors: dense rows on a CUDA device where they proved right, noise in float64."""
    fit = all(t.is_cuda and t.stride(-1) == 1 for t in (noise, x, out)) and noise.dtype == torch.float64
    fit = fit and all(t.dtype in (torch.float32, torch.float64) for t in (x, out))
    if not fit or importlib.util.find_spec("triton") is None or torch.cuda.is_current_stream_capturing():
        return False
    if noise.device not in _trusted:
        _trusted[noise.device] = agree(noise.device)
    return _trusted[noise.device]


def products(noise: Tensor, x: Tensor) -> Tensor:
    """Return <noise, noise>, <noise, x> and <x, x> of each row, (3, rows), in float64, in one pass over both."""
    rows, width = noise.shape
    chunks = -(-width // (_KERNEL_BLOCK * _TURNS))
    parts = torch.empty(3, rows, chunks, dtype=torch.float64, device=noise.device)
    _compiled()["products"][(chunks, rows)](
        noise, x, parts, width, noise.stride(0), x.stride(0), rows * chunks, chunks, BLOCK=_KERNEL_BLOCK, TURNS=_TURNS
    )
    return parts.sum(-1)


def turn(noise: Tensor, x: Tensor, scale: Tensor, shift: Tensor, grid: float, out: Tensor) -> None:
    """Write scale * noise + shift * x, plus and minus `grid`, which rounds it, to each row of `out`, in one pass.

    `grid` is 1.5 times a power of two, and so exact as the float32 that a kernel is given.
    """
    rows, width = noise.shape
    chunks = -(-width // (_KERNEL_BLOCK * _TURNS))
    _compiled()["turn"][(chunks, rows)](
        noise,
        x,
        out,
        scale.double().contiguous(),
        shift.double().contiguous(),
        grid,
        width,
        *(noise.stride(0), x.stride(0), out.stride(0)),
        BLOCK=_KERNEL_BLOCK,
        TURNS=_TURNS,
    )


def agree(device: torch.device) -> bool:
    """Return whether the kernels agree with ordinary operations on a small example, and warn if not."""
    generator = torch.Generator(device=device).manual_seed(0)
    noise, x = (torch.randn(3, _KERNEL_BLOCK * _TURNS + 77, generator=generator, device=device) for _ in range(2))
    scale, shift = (torch.rand(3, generator=generator, device=device, dtype=torch.float64) for _ in range(2))
    noise = noise.double() * math.pi
    grid = 1.5 * 2.0**32

    def right() -> bool:
        exact = torch.stack(
            [(a * b).sum(-1) for a, b in ((noise, noise), (noise, x.double()), (x.double(), x.double()))]
        )
        turned = scale[:, None] * noise + shift[:, None] * x
        size = (exact[0] * exact[2]).sqrt()
        near = ((products(noise, x) - exact).abs() <= 1e-12 * torch.stack([exact[0], size, exact[2]])).all()
        wide, narrow = torch.empty_like(noise), torch.empty_like(x)
        turn(noise, x, scale, shift, grid, wide)
        turn(noise, x, scale, shift, grid, narrow)
        steps = wide * 2.0**20
        whole = bool((steps == steps.round()).all()) and bool((wide - turned).abs().max() <= 2.0**-21 + 1e-12)
        return bool(near) and whole and bool((narrow - wide).abs().max() <= 1e-5)

    return passes(right, f"Fused turning is not used on {device}", "Directions are right, but slower.")


@functools.cache
def _compiled() -> dict[str, Any]:
    import triton  # type: ignore[import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def products(a, b, out, width, a_row, b_row, plane, chunks, BLOCK: tl.constexpr, TURNS: tl.constexpr):  # type: ignore[no-untyped-def]
        chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
        aa = tl.zeros([BLOCK], tl.float64)
        ab = tl.zeros([BLOCK], tl.float64)
        bb = tl.zeros([BLOCK], tl.float64)
        for k in range(TURNS):
            at = (chunk * TURNS + k) * BLOCK + tl.arange(0, BLOCK)
            one = tl.load(a + row * a_row + at, at < width, 0.0)
            two = tl.load(b + row * b_row + at, at < width, 0.0).to(tl.float64)
            aa += one * one
            ab += one * two
            bb += two * two
        where = out + row * chunks + chunk
        tl.store(where, tl.sum(aa))
        tl.store(where + plane, tl.sum(ab))
        tl.store(where + 2 * plane, tl.sum(bb))

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def turn(a, b, out, scale, shift, rounder, width, a_row, b_row, out_row, BLOCK: tl.constexpr, TURNS: tl.constexpr):  # type: ignore[no-untyped-def]
        chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
        times, plus = tl.load(scale + row), tl.load(shift + row)
        for k in range(TURNS):
            at = (chunk * TURNS + k) * BLOCK + tl.arange(0, BLOCK)
            one = tl.load(a + row * a_row + at, at < width, 0.0)
            two = tl.load(b + row * b_row + at, at < width, 0.0).to(tl.float64)
            turned = times * one + plus * two
            rounded = (turned + rounder.to(tl.float64)) - rounder.to(tl.float64)
            tl.store(out + row * out_row + at, rounded, at < width)

    return {"products": products, "turn": turn}
