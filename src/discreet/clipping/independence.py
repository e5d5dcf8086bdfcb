"""Whether an example's loss depends on that example alone, tested on a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError

_TOLERANCE = 1e-3


def check_independent(tape: Tape, losses_of: Callable[[Tensor], Tensor], rows: int) -> None:
    """Refuse a model in which one example's loss depends on another example of the batch.

    `losses_of` runs the model on some rows of a batch, given by their indices, and returns their losses. Two things are
    tried: the gradient of one row's loss must be zero in every other row, and a row's loss must be the same when it
    is computed without the others. It costs a few forward and backward passes: call it once, before training.

    Guarantee: none; it looks at private rows and says only yes or no.
    """
    if rows < 2:
        raise UnsupportedError(f"Expected rows={rows} >= 2. One example alone depends on no other.")
    every = torch.arange(rows)
    for row in {0, rows - 1}:
        with tape:
            losses = losses_of(every)
        seeds = torch.zeros_like(losses)
        seeds[row] = 1
        norms = tape.backward(losses, seeds=seeds).norms()
        others = norms[every.to(norms.device) != row]
        if bool((others != 0).any()):
            other = int((norms != 0).nonzero().flatten()[-1 if row == 0 else 0])
            raise UnsupportedError(
                f"Expected the loss of row {row} to depend on that row alone, found a gradient in row {other}. The "
                "model or its loss mixes the examples of a batch; put the batch first and normalise within a row."
            )
    training = [module for module in tape.model.modules() if module.training]
    tape.model.eval()
    try:
        with torch.no_grad():
            together, alone = losses_of(every)[:1].double(), losses_of(every[:1]).double()
    finally:
        for module in training:
            module.training = True
    if not torch.allclose(together, alone, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise UnsupportedError(
            f"Expected the loss of row 0 the same without the other rows, found {alone.item():.6g} and "
            f"{together.item():.6g} with them. The model or its loss mixes the examples of a batch."
        )
