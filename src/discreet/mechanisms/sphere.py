"""Random unit vectors at a given angle to given directions, in one pass over memory and no second copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from discreet.core.errors import DataError

if TYPE_CHECKING:
    import torch

# From this dimension on, no normal vector comes near enough to a fixed direction to lose digits in float32.
_SINGLE = 128
# A block of rows is drawn, projected and scaled while it is still in the processor's cache.
_BLOCK = 1 << 17
_SUM = 1 << 14
# Squared lengths outside this range may have overflowed or lost digits in float32.
_SMALL, _LARGE = 1e-24, 1e24


def directions_around(
    x: torch.Tensor, cosine: npt.NDArray[Any], sine: npt.NDArray[Any], generator: torch.Generator
) -> torch.Tensor:
    """Return for each row of x (n, d) a unit vector whose cosine with it is given, otherwise uniform.

    With u = x / |x| and a normal vector xi, y = cosine * u + sine * (xi - <xi, u> u) / |xi - <xi, u> u|. The noise is
    drawn into the result and scaled there. A row of zeros has no direction: its result is a uniform one.
    """
    import torch

    count, dimension = x.shape
    single = dimension >= _SINGLE and x.dtype != torch.float64
    result = x.new_empty((count, dimension), dtype=torch.float32 if single else torch.float64)
    cosines = torch.from_numpy(cosine).to(x.device)
    sines = torch.from_numpy(sine).to(x.device)
    rows = count if x.device.type != "cpu" else max(1, _BLOCK // dimension)
    with torch.no_grad():
        for start in range(0, count, max(rows, 1)):
            part = slice(start, start + rows)
            result[part].normal_(generator=generator)
            _turn(result[part], x[part].detach().to(result.dtype), cosines[part], sines[part])
    return result.to(x.dtype)


def _turn(noise: torch.Tensor, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    import torch

    fused = None
    if noise.is_cuda and x.shape[-1] >= _SINGLE:
        from discreet.mechanisms import sphere_kernels

        fused = sphere_kernels if sphere_kernels.usable(noise, x) else None
    noise_square, inner, square = fused.products(noise, x) if fused else (None, None, _square(x))
    unusual = ~((square > _SMALL) & (square < _LARGE))
    if bool(unusual.any()):
        x, square = _rescaled(x, square, unusual)
        inner = None
    length = square.sqrt()
    empty = square == 0
    along = torch.where(empty, 0.0, (_inner(noise, x) if inner is None else inner) / length)
    if x.shape[-1] < _SINGLE:
        # In few dimensions the noise may be nearly parallel to x: subtract first, then take the length.
        noise.addcmul_(x, torch.where(empty, 0.0, -along / length)[:, None])
        along = torch.zeros_like(along)
    across = ((_square(noise) if noise_square is None else noise_square) - along * along).sqrt()
    scale = torch.where(empty, 1.0, sine) / across
    shift = torch.where(empty, 0.0, (cosine - scale * along) / length)
    if fused:
        fused.turn(noise, x, scale, shift)
        return
    noise.mul_(scale.to(noise.dtype)[:, None]).addcmul_(x, shift.to(noise.dtype)[:, None])


def _square(a: torch.Tensor) -> torch.Tensor:
    import torch

    if a.device.type == "cpu":
        return _inner(a, a)
    length: torch.Tensor = torch.linalg.vector_norm(a, dim=-1)  # one pass; a product would be written out first
    return length.double().square()


def _inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import torch

    if a.shape[0] == 1 and a.device.type == "cpu":
        # Short sums, added in float64: one float32 sum over a million squares is off by 1e-5.
        starts = range(0, a.shape[1], _SUM)
        return torch.stack([torch.dot(a[0, s : s + _SUM], b[0, s : s + _SUM]) for s in starts]).double().sum()[None]
    return (a * b).sum(-1).double()


def _rescaled(x: torch.Tensor, square: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and its squared lengths with the very long and very short rows brought to length 1."""
    import torch

    some = x[rows].double()
    if not bool(torch.isfinite(some).all()):
        raise DataError(
            "Expected finite vectors, found NaN or infinity. Clip or clean them first: noise hides neither."
        )
    # Two divisions: the largest coordinate first, so that no square overflows or vanishes.
    top = some.abs().amax(-1, keepdim=True)
    some = some / torch.where(top > 0, top, 1.0)
    some = some / torch.where(top > 0, torch.linalg.vector_norm(some, dim=-1, keepdim=True), 1.0)
    x, square = x.clone(), square.clone()
    x[rows] = some.to(x.dtype)
    square[rows] = (some * some).sum(-1)
    return x, square


def uniform_directions(count: int, dimension: int, generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    """Return uniformly random unit vectors on the device of `like`, in float64 or, for many coordinates, float32."""
    import torch

    single = dimension >= _SINGLE and like.dtype != torch.float64
    result = like.new_empty((count, dimension), dtype=torch.float32 if single else torch.float64)
    result = result.detach().normal_(generator=generator)
    return result.div_(torch.linalg.vector_norm(result, dim=-1, keepdim=True))
