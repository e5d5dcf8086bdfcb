"""Whether the fused kernels may be believed on a device: they must first agree with ordinary operations."""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.clipping import kernels
from discreet.core.first_test import passes

_checked: dict[torch.device, bool] = {}


def trusted(like: Tensor) -> bool:
    """Whether the kernels gave the right answers on this device when they were first asked for.

    A new driver, device or release of Triton must not be able to change what is clipped: on any doubt the ordinary
    operations do the same work. Nothing can be tried while a graph is recorded; until then they are not used.
    """
    if like.device not in _checked:
        if kernels.capturing(like):
            return False
        _checked[like.device] = agree(like.device)
    return _checked[like.device]


def agree(device: torch.device) -> bool:
    """Return whether the kernels agree with ordinary operations on a small example, and warn if not."""
    generator = torch.Generator(device=device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def right() -> bool:
        a, b, weights = draw(3, 70, 24), draw(3, 70, 40), draw(3).abs()
        one, two = (t.double() @ t.double().mT for t in (a, b))
        steps = one.diagonal(dim1=1, dim2=2).sqrt() * two.diagonal(dim1=1, dim2=2).sqrt()
        normal = torch.nn.functional.layer_norm(a.double(), a.shape[2:])
        _, squares, first, second, widest, span = kernels.pair_figures([(a, b)])
        by_weight, by_bias = kernels.norm_sums(a, b[:, :, :24].contiguous(), 1e-5)
        rows = a.flatten(1)
        wants = [
            (squares[0], (one * two).sum((1, 2))),
            (first[0], one.diagonal(dim1=1, dim2=2).sum(1)),
            (second[0], two.diagonal(dim1=1, dim2=2).sum(1)),
            (widest[0], two.abs().sum(2).amax(1)),
            (span[0], steps.sum(1)),
            (kernels.row_squares([rows])[0], rows.double().square().sum(1)),
            (kernels.weighted_rows([rows], weights)[0], weights.double() @ rows.double()),
            (kernels.scaled(rows, weights, torch.float32), rows.double() * weights.double()[:, None]),
            (by_weight, (normal * b[:, :, :24]).sum(1)),
            (by_bias, b[:, :, :24].double().sum(1)),
        ]
        return all(_near(got.double(), want.double()) for got, want in wants)

    return passes(right, f"Fused clipping is not used on {device}", "Clipping is right, but slower.")


def _near(got: Tensor, want: Tensor) -> bool:
    # TF32 keeps ten bits: what is compared are whole tensors, as single sums may cancel.
    return bool((got - want).norm() <= 1e-2 * want.norm())
