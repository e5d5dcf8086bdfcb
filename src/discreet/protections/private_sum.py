"""The private sum of a step: what each unit adds is bounded, noise is added to the sum, and an optimizer applies it.

Everything that protects gradients forms, releases and applies its sums here and nowhere else: training, own loops,
federated clients, the releases that attacks read, and audits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.randomness import Rng
from discreet.protections.base import GradientProtection, Release

Sums = dict[str, Tensor]


def noise_of(protect: GradientProtection, source: Rng) -> Release:
    """Return the function that releases the sums of each step of one training run; `source` is that of all steps.

    Noise may depend on that of earlier steps of the same run, so one function serves a whole run.
    """
    return protect.releaser(source)


def release_once(protect: GradientProtection, sums: Mapping[str, Tensor], rng: Rng) -> Sums:
    """Return the protected sums of a single release, which is not a step of a training run.

    Guarantee: that of one use of the protection.
    """
    return protect.release(dict(sums), rng)


class PrivateSum:
    """The sum over the units of one batch, which may come in parts, until it is released.

    Guarantee: that of the protection for each step, if `release` is called once for it. `sums` is private before.
    """

    def __init__(self, protect: GradientProtection, tape: Tape) -> None:
        """Start an empty sum for the model of a tape."""
        self.protect, self.tape = protect, tape
        self.sums: Sums = {}
        self.parts = 0  # of the batch, that were added
        self._noise: tuple[object, Release] | None = None  # of a run

    def clear(self) -> None:
        """Forget what was added, for the next step or for the same one from its first part."""
        self.sums, self.parts = {}, 0

    def add(self, record: Record, rng: Rng) -> None:
        """Add the bounded contributions of the recorded units, and free the record."""
        self.protect.gather(record, self.sums, rng)
        self.parts += 1

    def add_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Add the sums of units that were added elsewhere, in memory that may be used again."""
        if self.sums:
            torch._foreach_add_([self.sums[name] for name in sums], list(sums.values()))
        else:
            self.sums = {name: value.clone() for name, value in sums.items()}
        self.parts += 1

    def complete(self, rng: Rng) -> Sums:
        """Return the sums of the whole batch: zeros if it has no unit."""
        if not self.parts:
            self.protect.gather(self.tape.empty(), self.sums, rng)
        return self.sums

    def release(self, sums: Sums, source: Rng, step: int, run: object = None) -> Sums:
        """Return the protected sums of a step; `run` says which run `source` belongs to, for noise over several steps.

        Noise is drawn in the order of the sums.
        """
        if self._noise is None or self._noise[0] != run or run is None:
            self._noise = run, noise_of(self.protect, source)
        return self._noise[1](sums, step)


@torch.no_grad()
def set_gradients(parameters: Mapping[str, nn.Parameter], released: Mapping[str, Tensor], size: float) -> None:
    """Set the gradient of each parameter to its released sum over the expected size of a batch.

    The divisor is public: the number of units that were drawn would reveal who was.
    """
    means = torch._foreach_div([released[name] for name in parameters], size)
    for parameter, mean in zip(parameters.values(), means, strict=True):
        parameter.grad = mean.to(parameter.dtype)


def step_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Step an optimizer with the gradients that `set_gradients` has set."""
    optimizer.step()
