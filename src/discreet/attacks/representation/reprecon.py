"""Representation reconstruction: a network learns to rebuild plain vectors from released ones.

Paper: Huang et al. 2020, TextHide, appendix C.3 (RepRecon): two hidden layers of 1,024, squared error, 20 epochs, then
similarity search with what was rebuilt.
Differs: beside it, the same network from absolute values to absolute values. One network has to average over all masks
when it sees signs; absolute values are the same under every mask. Optimizer, rate and batch are not in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from discreet.attacks.base import Attack, Need
from discreet.attacks.representation.candidates import candidates, matrix, released
from discreet.attacks.representation.index import Index, unit
from discreet.core.errors import UnsupportedError, invalid, positive, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, Release, RepresentationRelease

_NAME = "Representation reconstruction"


@dataclass(frozen=True)
class RepRecon(Attack):
    """Train a network on pairs of released and plain vectors, rebuild what was released, and search for it.

    `absolute` lets it see and rebuild absolute values alone. The knowledge holds candidates as for similarity search,
    and `extra["pairs"]`, two matrices: released vectors, and the plain vectors of the same rows, which an attacker
    has who can run the defence on text of its own.

    The guess: as for similarity search, and `details["vectors"]` has what was rebuilt, `details["loss"]` the mean
    squared error over the pairs in the last epoch.
    """

    absolute: bool = False
    hidden: int = 1024
    epochs: int = 20
    batch_size: int = 128
    rate: float = 1e-3

    name: ClassVar[str] = "reprecon"
    sees: ClassVar[type[Release]] = RepresentationRelease
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.PAIRS})
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("hidden", "epochs", "batch_size"):
            whole(name, getattr(self, name))
        positive("rate", self.rate)

    def run(self, seen: RepresentationRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the candidate nearest to what the network rebuilds from each released vector."""
        queries = released(seen, _NAME)
        width = queries.shape[1]
        known = candidates(knows, width, _NAME)
        given, plain = _pairs(knows, width)
        change = np.abs if self.absolute else np.asarray
        network, loss = self._train(torch.from_numpy(change(given)), torch.from_numpy(change(plain)), rng)
        with torch.inference_mode():
            rebuilt = network(torch.from_numpy(change(queries)))
        ranked, cosines = Index(unit(change(known.vectors))).search(unit(rebuilt.numpy()), 5)
        best = tuple(int(row) for row in ranked[:, 0])
        details: dict[str, Any] = {
            "ranked": tuple(tuple(int(row) for row in rows) for rows in ranked),
            "vectors": rebuilt.clone(),
            "loss": loss,
        }
        return Guess(known.named(best), tuple(float(score) for score in cosines[:, 0]), best, details)

    def _train(self, given: Tensor, plain: Tensor, rng: Rng) -> tuple[nn.Module, float]:
        """Return the trained network and its loss in the last epoch."""
        width = given.shape[1]
        scale = float(plain.std().clamp_min(1e-6))  # so that the rate fits encoders of any scale
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.fork("network").seed(_NAME))
            network = nn.Sequential(
                nn.Linear(width, self.hidden), nn.ReLU(),
                nn.Linear(self.hidden, self.hidden), nn.ReLU(),
                nn.Linear(self.hidden, width),
            )  # fmt: skip
        optimizer = torch.optim.Adam(network.parameters(), lr=self.rate)
        last = 0.0
        for epoch in range(self.epochs):
            order = torch.from_numpy(rng.fork("order", epoch).permutation(len(given)))
            last = 0.0
            for rows in torch.split(order, self.batch_size):
                loss = (network(given[rows] / scale) - plain[rows] / scale).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                last += loss.item() * len(rows) / len(given)
        return _Scaled(network, scale), last * scale * scale


class _Scaled(nn.Module):
    """A network that works on numbers around one, for inputs of another scale."""

    def __init__(self, network: nn.Module, scale: float) -> None:
        super().__init__()
        self.network, self.scale = network, scale

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the network's answer at the scale of its input."""
        answer: Tensor = self.network(vectors / self.scale) * self.scale
        return answer


def _pairs(knows: Knowledge, width: int) -> tuple[Any, Any]:
    pairs = knows.extra.get("pairs")
    if pairs is None:
        raise UnsupportedError(
            f"Expected extra['pairs'] for {_NAME}: released vectors and the plain ones of the same rows, found none. "
            "Run the defence on text of your own."
        )
    given, plain = (matrix("extra['pairs']", rows, width) for rows in pairs)
    if len(given) != len(plain):
        raise invalid("extra['pairs']", (len(given), len(plain)), "of equal length", "Give one plain vector each.")
    return given, plain
