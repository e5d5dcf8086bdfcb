"""Representation reconstruction: a network learns to reconstruct unprotected vectors from released ones.

Paper: Huang et al. 2020, TextHide, appendix C.3 (RepRecon): two hidden layers of 1,024, squared error, 20 epochs, then
similarity search with the reconstruction.
Differs: optionally, the same network maps absolute values to absolute values. A network that sees signs has to average
over all masks; absolute values are the same under every mask. The paper does not state optimizer, rate and batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from discreet.attacks.base import Need, VectorAttack
from discreet.attacks.representation.candidates import candidates, matrix, released
from discreet.attacks.representation.index import nearest
from discreet.core.errors import UnsupportedError, invalid, positive, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, RepresentationRelease

_NAME = "Representation reconstruction"


@dataclass(frozen=True)
class RepRecon(VectorAttack):
    """Train a network on pairs of released and unprotected vectors, reconstruct the release, and search for it.

    With `absolute` the network maps absolute values only. `Knowledge` holds candidates as for similarity search, and
    `extra["pairs"]`, two matrices: released vectors, and the unprotected vectors of the same rows. An attacker gets
    them by running the protection on its own text.

    The guess is as for similarity search; `details["vectors"]` has the reconstruction, and `details["loss"]` the mean
    squared error over the pairs in the last epoch.
    """

    absolute: bool = False
    hidden: int = 1024
    epochs: int = 20
    batch_size: int = 128
    rate: float = 1e-3

    name: ClassVar[str] = "reprecon"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.PAIRS})
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("hidden", "epochs", "batch_size"):
            whole(name, getattr(self, name))
        positive("rate", self.rate)

    def run(self, seen: RepresentationRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the candidate nearest to the reconstruction of each released vector."""
        queries = released(seen, _NAME)
        width = queries.shape[1]
        pool = candidates(knows, width, _NAME)
        inputs, targets = _pairs(knows, width)
        transform = np.abs if self.absolute else np.asarray
        network, loss = self._train(torch.from_numpy(transform(inputs)), torch.from_numpy(transform(targets)), rng)
        with torch.inference_mode():
            vectors = network(torch.from_numpy(transform(queries)))
        return nearest(pool, transform(pool.vectors), vectors.numpy(), vectors=vectors.clone(), loss=loss)

    def _train(self, inputs: Tensor, targets: Tensor, rng: Rng) -> tuple[nn.Module, float]:
        """Return the trained network and its loss in the last epoch."""
        width = inputs.shape[1]
        scale = float(targets.std().clamp_min(1e-6))  # so that the rate suits encoders of any scale
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
            order = torch.from_numpy(rng.fork("order", epoch).permutation(len(inputs)))
            last = 0.0
            for rows in torch.split(order, self.batch_size):
                loss = (network(inputs[rows] / scale) - targets[rows] / scale).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                last += loss.item() * len(rows) / len(inputs)
        return _Scaled(network, scale), last * scale * scale


class _Scaled(nn.Module):
    """A network for inputs of unit scale, applied to inputs of another scale."""

    def __init__(self, network: nn.Module, scale: float) -> None:
        super().__init__()
        self.network, self.scale = network, scale

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the output at the scale of the input."""
        output: Tensor = self.network(vectors / self.scale) * self.scale
        return output


def _pairs(knows: Knowledge, width: int) -> tuple[Any, Any]:
    pairs = knows.extra.get("pairs")
    if pairs is None:
        raise UnsupportedError(
            f"Expected extra['pairs'], released and unprotected vectors of the same rows, for {_NAME}, got none. Run "
            "the protection on your own text."
        )
    inputs, targets = (matrix("extra['pairs']", rows, width) for rows in pairs)
    if len(inputs) != len(targets):
        remedy = "Pass one unprotected vector per released vector."
        raise invalid("extra['pairs']", (len(inputs), len(targets)), "of equal length", remedy)
    return inputs, targets
