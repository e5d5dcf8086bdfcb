"""Recorded messages of a federated run, as the server, one client or the wire sees them.

    FOLDER/record/round-00007/weights.safetensors           what the server sent to all clients of the round
    FOLDER/record/round-00007/update-client-2.safetensors   what client 2 answered, at each stage of the aggregation
    FOLDER/record/round-00007/total.safetensors             the mean that the server computed

A recorded answer is everything that left the client, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from discreet.core.errors import DataError
from discreet.core.files import load_tensors, save_tensors
from discreet.federated.aggregation import Payload, Total
from discreet.federated.client import FINISH

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.federated.server import Outgoing

RECORD = "record"
_WEIGHTS, _TOTAL = "weights.safetensors", "total.safetensors"


class Recorder:
    """Write every message of the server's folder."""

    def __init__(self, folder: Path) -> None:
        """Record into a subfolder."""
        self.folder = folder / RECORD

    def add(self, stage: str, sent: Mapping[int, Outgoing], received: Mapping[int, Payload]) -> None:
        """Write the messages of one stage; those outside a round are not recorded."""
        first = next(iter(sent.values()), None)
        if first is None or "round" not in first.values:
            return
        # The final weights are those that the next round would begin with.
        number = int(first.values["round"]) + (stage == FINISH)
        folder = self.folder / f"round-{number:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        if first.weights:
            save_tensors(_tensors(first.weights), folder / _WEIGHTS)
        for client, answer in received.items():
            values = {k: {"hex": v.hex()} if isinstance(v, bytes) else v for k, v in answer.values.items()}
            about = {"stage": stage, "client": client, "values": values}
            path = folder / f"{stage}-client-{client}.safetensors"
            save_tensors(_tensors(answer.arrays), path, {"message": json.dumps(about, default=str)})

    def add_total(self, number: int, total: Total) -> None:
        """Write the mean of a round and who is in it, which the server knows however it was summed."""
        folder = self.folder / f"round-{number:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(_tensors(total.mean()), folder / _TOTAL, {"clients": json.dumps(list(total.clients))})


@dataclass(frozen=True)
class RecordedRound:
    """The messages of one round: the weights that were sent, the answers by stage and client, and the mean."""

    number: int
    weights: dict[str, Tensor]
    answers: dict[tuple[str, int], dict[str, Tensor]]
    total: dict[str, Tensor]
    counted: tuple[int, ...]


def read_rounds(folder: Path) -> list[RecordedRound]:
    """Return the recorded rounds of a server's folder, in order."""
    paths = sorted((folder / RECORD).glob("round-*"))
    if not paths:
        raise DataError(f"Expected recorded messages in {str(folder / RECORD)!r}. Record them when the run is started.")
    return [_read_round(path) for path in paths]


def _read_round(folder: Path) -> RecordedRound:
    weights, _ = load_tensors(folder / _WEIGHTS) if (folder / _WEIGHTS).exists() else ({}, {})
    answers: dict[tuple[str, int], dict[str, Tensor]] = {}
    for path in sorted(folder.glob("*-client-*.safetensors")):
        tensors, metadata = load_tensors(path)
        about = json.loads(metadata["message"])
        answers[about["stage"], int(about["client"])] = tensors
    total, about = load_tensors(folder / _TOTAL) if (folder / _TOTAL).exists() else ({}, {})
    counted = tuple(json.loads(about.get("clients", "[]")))
    return RecordedRound(int(folder.name.removeprefix("round-")), weights, answers, total, counted)


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
