"""The processes of a data-parallel training: one ledger and one noise on rank 0, and the same result on all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from discreet.core import errors
from discreet.core.errors import DiscreetError, UnsupportedError

if dist.is_available():
    # Its functions have the process group of the time of their import as a default argument. torch imports it with the
    # first optimizer; a group that exists by then is kept past destroy_process_group, and its threads abort the process
    # if they still hold a tensor when the interpreter ends. Imported here, before a group exists, it keeps none.
    import torch.distributed.nn.functional

T = TypeVar("T")


class Processes:
    """The ranks of `torch.distributed` if it is initialized, and this process alone otherwise.

    Values travel between ranks as JSON and tensors, never as pickles.
    """

    def __init__(self, *, alone: bool = False) -> None:
        """Read rank and world size; `alone` is this process without the others, whether or not there are any."""
        active = not alone and dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if active else 0
        self.size = dist.get_world_size() if active else 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which holds the ledger and draws the noise."""
        return self.rank == 0

    def from_first(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0 and return its result, which is plain JSON, or raise its error, on all ranks."""
        if self.size == 1:
            return function()
        error: Exception | None = None
        answer: dict[str, object] = {}
        if self.is_first:
            try:
                answer = {"value": function()}
            except Exception as raised:
                error = raised
                message = raised.message.marked if isinstance(raised, DiscreetError) else str(raised)
                answer = {"error": type(raised).__name__, "message": message}
        answer = json.loads(self._text(json.dumps(answer)))
        if error is not None:
            raise error
        if "error" in answer:
            kind = getattr(errors, str(answer["error"]), RuntimeError)
            raise kind(answer["message"])
        return answer["value"]  # type: ignore[return-value]

    def check_equal(self, name: str, value: str) -> None:
        """Reject, on all ranks, a text that is not the same on every rank."""
        if self.size == 1:
            return
        if self.any_of([self.from_first(lambda: value) != value])[0]:
            raise UnsupportedError(
                f"Expected {name} to be the same on all {self.size} ranks, got different ones. Every rank runs the "
                "same script on the same data, and takes its share of each batch by itself."
            )

    def any_of(self, flags: list[bool]) -> list[bool]:
        """Return, on all ranks, which flags are set on at least one rank."""
        if self.size == 1:
            return flags
        values = torch.tensor([int(flag) for flag in flags], device=self._device)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return [bool(value) for value in values.tolist()]

    def start_equal(self, tensors: list[Tensor]) -> None:
        """Overwrite tensors on all ranks with those of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def sum_to_first(self, sums: dict[str, Tensor]) -> None:
        """Add the tensors of all ranks into those of rank 0."""
        if self.size > 1:
            for name in sorted(sums):
                dist.reduce(sums[name], dst=0)

    def share(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of rank 0 on all ranks; each rank passes tensors of the same shapes and types."""
        if self.size > 1:
            for name in sorted(tensors):
                tensors[name] = tensors[name].contiguous()
                dist.broadcast(tensors[name], src=0)
        return tensors

    def _text(self, text: str) -> str:
        """Return the text of rank 0."""
        data = text.encode() if self.is_first else b""
        length = torch.tensor(len(data), device=self._device)
        dist.broadcast(length, src=0)
        values = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first:
            values = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        values = values.to(self._device)
        dist.broadcast(values, src=0)
        return bytes(values.cpu().tolist()).decode()

    @property
    def _device(self) -> torch.device:
        return (
            torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
        )
