"""Random vectors at given angles to given directions, computed in float64 and rounded once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from discreet.core.errors import DataError

if TYPE_CHECKING:
    import torch

    from discreet.core.randomness import Rng

# From this dimension on, no normal vector is close enough to a fixed direction to lose digits.
_MANY = 128
# Numbers per block: on a CPU a block stays in the cache while it is processed, on a GPU it takes half a GiB.
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
    A row of zeros has no direction and gives a uniform one.
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
    """Write the rotated and rounded noise to `out`; the noise is overwritten."""
    import torch

    from discreet.mechanisms.normals import grid_shift, on_grid

    deviation = length / math.sqrt(x.shape[-1])
    fused = None
    if noise.is_cuda and x.shape[-1] >= _MANY:
        from discreet.mechanisms import sphere_kernels

        fused = sphere_kernels if sphere_kernels.usable(noise, x, out) else None
    alone = x.shape[0] == 1 and x.device.type == "cpu"  # a long row is processed in pieces, to avoid a copy
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
    length: torch.Tensor = torch.linalg.vector_norm(a, dim=-1)  # one pass; a product would allocate a temporary
    return length.square()


def _inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import torch

    if a.shape[0] == 1 and a.device.type == "cpu":
        parts = [slice(start, start + _PIECE) for start in range(0, a.shape[1], _PIECE)]
        return torch.stack([torch.dot(a[0, part].double(), b[0, part].double()) for part in parts]).sum()[None]
    return (a * b).sum(-1)


def _rescaled(x: torch.Tensor, square: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and its squared lengths with the very long and very short rows scaled to length 1."""
    import torch

    selected = x[rows]
    if not bool(torch.isfinite(selected).all()):
        raise DataError("Expected finite vectors, got NaN or infinity. Clean them first: noise does not hide them.")
    # Divide by the largest coordinate first, so that no square overflows or underflows.
    top = selected.abs().amax(-1, keepdim=True)
    selected = selected / torch.where(top > 0, top, 1.0)
    selected = selected / torch.where(top > 0, torch.linalg.vector_norm(selected, dim=-1, keepdim=True), 1.0)
    x, square = x.clone(), square.clone()
    x[rows] = selected
    square[rows] = (selected * selected).sum(-1)
    return x, square


def uniform_directions(count: int, dimension: int, rng: Rng, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return uniformly random unit vectors in float64."""
    import torch

    from discreet.mechanisms.normals import normals

    result = normals((count, dimension), rng, device)
    return result.div_(torch.linalg.vector_norm(result, dim=-1, keepdim=True))
