"""Recording the forward pass of one part in the user's code, from its first row to its losses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.clipping.independence import fixed_kernels
from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError, invalid
from discreet.core.randomness import Rng
from discreet.integrations.separation import Modes, Shape, learning_buffer, shapes_seen
from discreet.integrations.watch import persistent_buffers


class Recording:
    """The forward pass of one part: the tape runs, and random numbers come from the secret, until `backward`.

    `batch` is what the given function returns once the random numbers are secret.
    """

    def __init__(self, tape: Tape, source: Rng, batch: Callable[[], Any], plain_attention: bool = False) -> None:
        """Start to record."""
        self.tape = tape
        device = next(tape.model.parameters()).device
        self._versions: dict[str, tuple[int, int]] = {}
        with ExitStack() as stack:
            stack.enter_context(generators_of(source, device))
            self.batch = batch()
            stack.enter_context(fixed_kernels(plain_attention))
            self._seen = stack.enter_context(shapes_seen(tape.model))
            self._versions = self._buffer_versions()
            self._open = False
            self.start()
            self._stack = stack.pop_all()

    @property
    def shape(self) -> Shape:
        """The shapes and types of what the model was given, and its precision."""
        return self._seen.shape

    @property
    def modes(self) -> set[Modes]:
        """The modes of the model's modules in its forward passes."""
        return self._seen.modes

    def start(self) -> None:
        """Start the tape, or start it again."""
        if not self._open:
            self.tape.__enter__()
            self._open = True

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the tape; after an error, forget what was recorded."""
        if self._open:
            self._open = False
            self.tape.__exit__(None if error is None else type(error), error, None)

    def close(self) -> None:
        """Stop without a backward pass, and put everything back."""
        self.stop(UnsupportedError("The part was not used."))
        self._stack.close()

    def backward(self, losses: Tensor, owners: Tensor | None, weights: Tensor | None) -> Record:
        """Run the backward pass and return the record of every unit's gradient; afterwards everything is put back."""
        try:
            self.stop()
            self._check_buffers()
            if not isinstance(losses, Tensor):
                raise invalid("losses", type(losses).__name__, "a tensor with one loss for each row")
            if weights is not None and losses.dim() == 1 and len(losses) != len(weights):
                raise UnsupportedError(
                    f"Expected one loss for each of the {len(weights)} rows of the part, got {len(losses)}. Rows that "
                    "fill a part up are weighed with zero by step; leave none out."
                )
            weights = None if weights is None else weights.to(losses.device, losses.dtype)
            owners = None if owners is None else owners.to(losses.device)
            return self.tape.backward(losses, owners, seeds=weights)
        finally:
            self._stack.close()

    def _buffer_versions(self) -> dict[str, tuple[int, int]]:
        return {name: (id(buffer), buffer._version) for name, buffer in persistent_buffers(self.tape.model)}

    def _check_buffers(self) -> None:
        for name, state in self._buffer_versions().items():
            if self._versions.get(name, state) != state:
                raise learning_buffer(name)


@contextmanager
def generators_of(source: Rng, device: torch.device) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python from a source, and put them back afterwards.

    Dropout, random masks and augmentation draw from them in the order of the rows. If their seed were known, they would
    tell at which place of a part a row stood, and so who else was there.
    """
    python, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        source.seed_torch(device)
        random.seed(source.fork("python").bytes(32))
        np.random.seed(source.fork("numpy").words(4).astype(np.uint32))  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)  # noqa: NPY002
