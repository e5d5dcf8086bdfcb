"""What a locally private training sends: every vector once, or some of them at every step with fresh noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from discreet.accounting.events import ComposedDpEvent, NoOpDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon as price
from discreet.core.guarantee import Adjacency, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.normals import release
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.protections.ldp_query import clip_states
from discreet.protections.representation import Rows

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.protections.ldp_protection import LocalLayer


@dataclass(frozen=True, repr=False)
class SentOnce:
    """All vectors, each sent once; the rows of one unit add up."""

    protect: LocalLayer
    rows: int
    response: RandomizedResponse | None
    secret: Rng

    @property
    def event(self) -> DpEvent:
        """What all sentences of the dearest unit cost together."""
        one = with_label(self.protect.training.event, self.response)
        return one if self.rows == 1 else SelfComposedDpEvent(one, self.rows)

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be said, with that of one sentence where a unit owns several."""
        if self.rows > 1:
            one = price(with_label(self.protect.training.event, self.response), found.delta, Adjacency.REPLACE_ONE)
            said = (
                f"each sentence has epsilon {in_digits(one)}, and those of up to {self.rows} sentences of one "
                f"{found.unit} are added up"
            )
            found = replace(found, assumptions=tuple(dict.fromkeys((said, *found.assumptions))))  # beside the figure
        return self.protect.stated(found)

    def send(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what leaves the users: a vector for each row, in their order, and the labels that go with them."""
        layer = self.protect.training
        sent = layer(self.protect.projection.on(vectors.device)(vectors.float()), self.secret.fork("vectors"))
        if self.response is not None:
            targets = self.response(targets, self.secret.fork("labels"))
        return sent, targets

    def __call__(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the server learns from: what it was sent, made more like what it will be asked."""
        layer, query = self.protect.training, self.protect.inference
        sent, targets = self.send(vectors, targets)
        more = query.variance - layer.variance
        if self.protect.retrain and more > 0 and query.dimension == layer.dimension:  # learn at the noise of queries
            extra = torch.empty_like(sent).normal_(generator=self.secret.fork("retrain").torch(sent.device))
            sent = sent + extra * math.sqrt(more)
        if query.dimension < layer.dimension and not targets.is_floating_point():
            kept = balanced(targets, self.secret.fork("balance"))
            sent, targets = sent[kept], targets[kept]
        return sent, targets


@dataclass(frozen=True, repr=False)
class SentAgain:
    """Some vectors at every step, a fixed number or by coins, with fresh noise each time."""

    protect: LocalLayer
    response: RandomizedResponse | None
    secret: Rng
    device: torch.device

    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return what a step costs; with noise by the size of a batch, what one of this size does, which is public."""
        layer, sending = self.protect.training, self.protect.sending
        if self.protect.dynamic and size is not None:
            if not size:
                return NoOpDpEvent(), f"step {step}"
            layer = replace(layer, strength=self.noise_std(size))
            sending = replace(sending, drawn=size, sampling="fixed")
        return sending.step(with_label(layer.event, self.response)), f"step {step}"

    def noise_std(self, size: int) -> float:
        """Return the noise of a step that sends so many vectors."""
        layer = self.protect.training
        return layer.strength * size / self.protect.sending.drawn if self.protect.dynamic else layer.strength

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be said."""
        return self.protect.stated(found)

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the noise of a step, and the labels' answers."""
        layer, secret = self.protect.training, self.secret.fork("noise", step)
        # In float64 until it is added: rounded noise would show what it was added to.
        noise = Gaussian(self.noise_std(len(rows))).drawn((*shape[:-1], layer.dimension), secret, self.device)
        drawn = {"noise": noise}
        if self.response is not None:
            truth = torch.zeros(len(rows), dtype=torch.int64)
            shift = self.response(truth, secret.fork("labels"))  # how far each label is turned, none being the truth
            drawn["turn"] = shift.to(self.device)
        return drawn

    def hide(
        self, vectors: Tensor, targets: Tensor, drawn: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the clipped and noised vectors; gradients flow through."""
        if self.response is not None:
            targets = (targets + drawn["turn"]) % self.response.categories
        projection, norm = self.protect.projection, self.protect.training.clip_norm
        std = self.noise_std(len(vectors))
        if self.protect.position == "token":
            return release(clip_states(vectors.float(), norm), drawn["noise"], std), targets
        inside = projection.on(vectors.device)(vectors.float())
        length = torch.linalg.vector_norm(inside, dim=1, keepdim=True)
        bounded = inside * (norm * (1 - 1e-6) / length.clamp_min(norm))
        return release(bounded, drawn["noise"], std), targets


def with_label(vector: DpEvent, response: RandomizedResponse | None) -> DpEvent:
    """Return the cost of a vector and, if it is reported, of its label."""
    return vector if response is None else ComposedDpEvent([vector, response.event])


def balanced(targets: Tensor, rng: Rng) -> Tensor:
    """Return rows with equally many of every class, drawn at random.

    Under much noise a head mostly learns which class is more frequent; a query's axes need where the classes part.

    >>> balanced(torch.tensor([0, 1, 1, 1]), Rng(0)).tolist()
    [0, 1]
    """
    labels = targets.cpu().numpy()
    fewest = min(int((labels == c).sum()) for c in np.unique(labels))
    rows = []
    for c in np.unique(labels):
        found = np.flatnonzero(labels == c)
        rows.append(found[rng.fork(int(c)).permutation(len(found))[:fewest]])
    return torch.from_numpy(np.sort(np.concatenate(rows))).to(targets.device)
