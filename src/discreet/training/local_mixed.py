"""Queries among decoys: what is sent step by step, and the one answer that is made of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.accounting.local_layer import Sending
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import RepresentationRelease
from discreet.protections.local.layer import LDPLayer


@dataclass(frozen=True)
class Mixed:
    """Queries among decoys, step by step: what is sent, and which rows of it are true (the user's secret).

    Row i of every step is for query i; `true[t][i]` says whether step t sent the query itself there, or a decoy.
    """

    steps: tuple[RepresentationRelease, ...]
    true: tuple[npt.NDArray[np.bool_], ...] = field(repr=False)
    guarantee: Guarantee

    @classmethod
    def draw(cls, coordinates: Tensor, layer: LDPLayer, sending: Sending, guarantee: Guarantee, source: Rng) -> Mixed:
        """Return what every step sends: of each query's own pool, itself and its decoys, one row with fresh noise.

        `coordinates` are the queries and then, query by query in turn, their first decoys, their second ones, and so
        on; `guarantee` is what each query has over all steps, counted before this is called.

        Guarantee: the one given, if the server does not learn which steps were true.
        """
        count = sending.decoys
        n = len(coordinates) // (1 + count)
        rows = np.arange(n * (1 + count)).reshape(1 + count, n)  # column i is query i, then its decoys
        releases, places = [], []
        for step in range(sending.steps):
            one = np.minimum((source.fork("draw", step).uniform(n) * (1 + count)).astype(np.int64), count)
            sent = layer(coordinates[torch.from_numpy(rows[one, np.arange(n)])], source.fork("noise", step))
            releases.append(RepresentationRelease(sent, guarantee=None))
            places.append(one == 0)
        return cls(tuple(releases), tuple(places), guarantee)

    def collect(self, answers: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
        """Return one answer for each query, the mean of all that came back for it; NaN where it was never drawn."""
        said, true = np.stack(answers).astype(np.float64), np.stack(self.true)[:, :, None]
        count = true.sum(0)
        total = np.where(true, said, 0.0).sum(0)
        return np.asarray(total / np.where(count > 0, count, np.nan), dtype=np.float32)
