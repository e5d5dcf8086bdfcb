"""Client-level differential privacy: a trusted server clips every update and adds noise to their sum.

Paper: McMahan, Ramage, Talwar and Zhang 2018, Learning differentially private recurrent language models.
Differs: every client has the same weight; the divisor is the expected number of clients; the server clips, so that the
bound does not depend on what clients do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from discreet.core.errors import SettingError, UnsupportedError, invalid, positive, probability, setting
from discreet.core.guarantee import HELD_OUT
from discreet.core.randomness import Rng
from discreet.core.settings import option_field
from discreet.data.samplers import Poisson
from discreet.federated.aggregation import (
    PUBLIC_SIZES,
    UPDATE,
    Aggregation,
    Array,
    Local,
    Payload,
    Round,
    Total,
    Visible,
    norm_of,
    why_invalid,
)
from discreet.mechanisms.normals import add_normals

if TYPE_CHECKING:
    from discreet.accounting.events import DpEvent

_MARGIN = 1 - 1e-6  # clipped below the bound, so that rounding to float32 does not exceed it


@dataclass(frozen=True)
class CentralDP(Aggregation):
    """Clip each client's update to `clip_norm` at the server and add Gaussian noise to the sum.

    Set a budget (`epsilon`, at `delta`) or the noise. Each client takes part in a round with probability `rate`. An
    update that has NaN or the wrong shape counts as zero. No update is judged by the others, because the sum would then
    change by more than one clipped update if one client were missing.

    Sampling reduces epsilon only if nobody learns which clients took part, so the run writes and prints nothing that
    depends on it. With `public_clients`, or if messages are recorded, it does, and epsilon is that of a client that
    takes part in every round.

    Guarantee: for one client (its whole training data), the epsilon of its event composed over the rounds, under
        zero-out: the number of clients is public. The server is trusted: it sees every update, and who takes part. The
        model that it sends out is protected, not the messages of the clients.
    """

    epsilon: float | None = option_field(None, "Privacy budget of one client for the whole run.", "Aggregation")
    delta: float = option_field(1e-3, "Delta of the guarantee for clients.", "Aggregation")
    noise_multiplier: float | None = option_field(
        None, "Standard deviation of the noise over the clip norm.", "Aggregation"
    )
    clip_norm: float = option_field(1.0, "Updates of a client are clipped to this norm.", "Aggregation")
    rate: float = option_field(1.0, "Probability that a client takes part in a round.", "Aggregation")
    public_clients: bool = option_field(
        False, "Say which clients took part in each round; sampling then does not reduce epsilon.", "Aggregation"
    )
    expected: float | None = None  # number of clients in a round, set by `resolve`
    name: ClassVar[str] = "central-dp"
    visible: ClassVar[Visible] = "each"

    def __post_init__(self) -> None:
        """Reject settings outside their range, and settings that do not determine the noise."""
        if self.epsilon is None and self.noise_multiplier is None:
            raise SettingError(
                f"Expected {setting('epsilon')} or {setting('noise_multiplier')} for {self.name}. One of them sets the "
                "noise."
            )
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
        if self.noise_multiplier is not None:
            positive("noise_multiplier", self.noise_multiplier)
        positive("clip_norm", self.clip_norm)
        if not probability("rate", self.rate) > 0:
            raise invalid("rate", self.rate, "in (0, 1]", "It is the probability that a client takes part.")

    @property
    def is_noisy(self) -> bool:
        """Whether noise protects clients: always."""
        return True

    @property
    def secret_clients(self) -> bool:
        """Whether it must stay secret who takes part: unless it is public and counted so."""
        return not self.public_clients

    def recorded(self) -> CentralDP:
        """Return the aggregation with public clients: recorded messages name them."""
        return replace(self, public_clients=True)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee for a client assumes."""
        trust: tuple[str, ...] = ("the server is trusted: it sees every update",)
        if not self.public_clients:
            trust = (
                "the server is trusted: it sees every update and which clients take part in a round, and both stay "
                "secret",
                "no client tells others in which rounds it took part, and nobody else sees its messages",
                "how long a round takes is not released",
            )
        return (*trust, HELD_OUT, PUBLIC_SIZES)

    def resolve(self, clients: int, rounds: int, parameters: int) -> CentralDP:
        """Return the aggregation with its noise: the one that was set, or the least that the budget allows."""
        noise = self.noise_multiplier
        if noise is None:
            from discreet.protections.dp_sgd import DPSGD

            assert self.epsilon is not None
            noise = DPSGD.for_budget(self.epsilon, self.delta, sampling_rate=self._secret_rate, steps=rounds).noise
        return replace(self, noise_multiplier=noise, expected=self.rate * clients)

    @property
    def event(self) -> DpEvent:
        """Privacy event of one round: a noisy sum of clipped updates of sampled clients."""
        from discreet.accounting.events import ClippedSumDpEvent

        if self.noise_multiplier is None:
            raise UnsupportedError("Expected a resolved aggregation, got one with a budget only. Call resolve.")
        event = ClippedSumDpEvent(self.noise_multiplier)
        return event if self._secret_rate == 1 else Poisson(self._secret_rate).amplify(event, 1)

    @property
    def _secret_rate(self) -> float:
        """Rate of the sampling that nobody sees, which is the one that reduces epsilon."""
        return 1.0 if self.public_clients else self.rate

    def choose(self, clients: Sequence[int], secret: Rng) -> tuple[int, ...]:
        """Return the clients that take part: each with probability `rate`, independently."""
        sampled = Poisson(self.rate).draw(0, len(clients), secret.fork("clients"))
        return tuple(clients[i] for i in sampled.tolist())

    def respond(self, stage: str, request: Payload, local: Local) -> Payload:
        """Return the update as it is; the server clips it."""
        if stage != UPDATE:
            raise UnsupportedError(f"Expected stage to be {UPDATE!r} for {self.name}, got {stage!r}.")
        return Payload(local.update().arrays)

    def collect(self, about: Round, secret: Rng) -> Total:
        """Return the noisy sum of clipped updates; its weight is the expected number of clients.

        Guarantee: that of `event`, which the caller recorded.
        """
        if self.noise_multiplier is None or self.expected is None:
            raise UnsupportedError("Expected a resolved aggregation, got one with a budget only. Call resolve.")
        answers = about.ask(UPDATE, {client: Payload() for client in about.clients})
        sums = {name: np.zeros(value.shape, np.float64) for name, value in about.template.items()}
        for client in sorted(answers):
            reason = why_invalid(answers[client].arrays, about.template)
            if reason is not None:
                about.log(f"Round {about.number}: the update of client {client} counts as zero: {reason}.")
                continue
            for name, value in clipped(answers[client].arrays, self.clip_norm).items():
                sums[name] += value
        tensors = {name: torch.from_numpy(value).to(torch.float32) for name, value in sums.items()}
        noisy = add_normals(tensors, self.noise_multiplier * self.clip_norm, secret.fork("noise"))
        arrays = {name: value.numpy().astype(np.float64) for name, value in noisy.items()}
        return Total(arrays, self.expected, tuple(sorted(answers)))


def clipped(arrays: Mapping[str, Array], norm: float) -> dict[str, np.ndarray]:
    """Return arrays scaled down so that their norm together is at most `norm`.

    >>> short = clipped({"a": np.array([3.0]), "b": np.array([4.0])}, 1.0)
    >>> [value.round(3).tolist() for value in short.values()]
    [[0.6], [0.8]]
    """
    length = norm_of(arrays)
    scale = 1.0 if length <= norm * _MARGIN else norm * _MARGIN / length
    return {name: value.astype(np.float64) * scale for name, value in arrays.items()}
