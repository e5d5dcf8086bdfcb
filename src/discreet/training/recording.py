"""Recording the forward pass of a part in the user's code: from its first row to its losses, and what it was given."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.clipping.independence import fixed_kernels
from discreet.clipping.tape import Tape
from discreet.core.device import tensors_in
from discreet.core.errors import UnsupportedError, invalid
from discreet.core.randomness import Rng
from discreet.training.changes import persistent_buffers

Shape = tuple[Any, ...]
Modes = tuple[bool, ...]  # whether each module of the model is in train mode


class Recording:
    """The forward pass of one part: the tape runs, and random numbers come from the secret, until `ended`.

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
            self._open, self._paused = False, []  # type: tuple[bool, list[tuple[torch.Generator, Tensor]]]
            self.start()
            self._stack = stack.pop_all()

    @property
    def _generators(self) -> list[torch.Generator]:
        device = next(self.tape.model.parameters()).device
        if device.type != "cuda":
            return [torch.default_generator]
        index = torch.cuda.current_device() if device.index is None else device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]

    @property
    def shape(self) -> Shape:
        """The shapes and types of what the model was given, and its precision."""
        return self._seen.shape

    @property
    def modes(self) -> set[Modes]:
        """The modes of the model's modules in its forward passes."""
        return self._seen.modes

    def start(self) -> None:
        """Start the tape; after `pause`, start it again with the random numbers that were next then."""
        if not self._open:
            for generator, state in self._paused:
                generator.set_state(state)
            self._paused = []
            self.tape.__enter__()
            self._open = True

    def pause(self) -> None:
        """Stop the tape until `start`, without its forward pass."""
        self.stop(UnsupportedError("The part is computed otherwise."))
        self._paused = [(generator, generator.get_state()) for generator in self._generators]

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the tape; after an error, forget what was recorded."""
        if self._open:
            self._open = False
            self.tape.__exit__(None if error is None else type(error), error, None)

    def close(self) -> None:
        """Stop without a backward pass, and put everything back."""
        self.stop(UnsupportedError("The part was not used."))
        self._stack.close()

    @contextmanager
    def ended(self, losses: Any, rows: int | None) -> Iterator[Tensor]:
        """Stop the tape, and yield the losses of the part for the backward pass; then put everything back.

        `rows` is the number of rows of the part, if it is known.
        """
        try:
            self.stop()
            self._check_buffers()
            if not isinstance(losses, Tensor):
                raise invalid("losses", type(losses).__name__, "a tensor with one loss for each row")
            if rows is not None and losses.dim() == 1 and len(losses) != rows:
                raise UnsupportedError(
                    f"Expected one loss for each of the {rows} rows of the part, got {len(losses)}. Rows that fill a "
                    "part up are weighed with zero by step; leave none out."
                )
            yield losses
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
        random.seed(source.seed_bytes("python"))
        np.random.seed(np.frombuffer(source.seed_bytes("numpy"), dtype=np.uint32))  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)  # noqa: NPY002


def learning_buffer(name: str) -> UnsupportedError:
    """Return the error about a buffer that the forward pass changes."""
    return UnsupportedError(
        f"Expected buffer {name!r} unchanged by the forward pass. It is saved with the model, and what it learns from "
        "private rows is not protected; switch its updates off."
    )


def modes_of(model: torch.nn.Module) -> Modes:
    """Return whether each module of a model is in train mode."""
    return tuple(module.training for module in model.modules())


@dataclass
class Seen:
    """What the forward passes of a model were given, and the modes in which they ran."""

    entries: list[Any] = field(default_factory=list)
    modes: set[Modes] = field(default_factory=set)

    @property
    def shape(self) -> Shape:
        """What decides the kernels besides the modes."""
        return tuple(self.entries)


@contextmanager
def shapes_seen(model: torch.nn.Module) -> Iterator[Seen]:
    """Yield an object that receives what decides the kernels of the model's forward passes inside.

    These are the shapes and types of all tensors given to the model, the precision in which it computes, and the modes
    of its modules.
    """
    seen = Seen()

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # and not an evaluation next to the training
            seen.modes.add(modes_of(module))
            tensors = list(tensors_in([*args, *kwargs.values()]))
            seen.entries.extend((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
            for kind in sorted({tensor.device.type for tensor in tensors}):
                cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
                seen.entries.append((kind, cast, torch.get_float32_matmul_precision()))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
