"""What DP instance encoding lets go: mixtures with fresh noise, released once or drawn anew at every step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from discreet.accounting.instance_encoding import Load
from discreet.core.guarantee import Caveat, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.mechanisms.normals import release
from discreet.protections.instance_encoding import ROUNDING, InstanceEncoding
from discreet.protections.representation import Rows, clip, most_rows, soft_targets, steps_at_once
from discreet.protections.texthide import capped, mixtures

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

ENCODER = "the encoder and the projection are frozen and public, or their training is counted in the same ledger"
PUBLIC_LABELS = "labels are public and not protected"
WEIGHTS = "the mixing weights were drawn without looking at the texts, and every output has fresh noise"


@dataclass(repr=False)
class Encodings:
    """One release, with its secret partners and weights; its repr shows none of them."""

    asked: InstanceEncoding
    partners: Rows
    weights: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    load: Load
    uses: int
    width: int
    classes: int
    secret: Rng

    @classmethod
    def drawn(cls, asked: InstanceEncoding, owners: Rows, width: int, classes: int, secret: Rng) -> Encodings:
        """Return a release whose partners and weights are drawn without looking at the vectors."""
        asked.check(len(owners), len(owners))
        source = secret.fork("mixtures").numpy("InstanceEncoding")
        n, outputs = len(owners), len(owners) * asked.rounds
        first = np.tile(np.arange(n), asked.rounds)
        others = [np.concatenate([source.permutation(n) for _ in range(asked.rounds)]) for _ in range(asked.mix - 1)]
        partners = np.stack([first, *others], axis=1)
        weights = np.ones((outputs, 1))
        if asked.mix > 1:
            weights = capped(np.abs(source.standard_normal((outputs, asked.mix))), asked.cap)
        load = load_of(partners, weights, owners)
        return cls(asked, partners, weights, load, most_rows(owners), asked.width(width), classes, secret)

    @property
    def scale(self) -> float:
        """The scale of the noise."""
        return self.asked.scale(self.load, self.width)

    @property
    def noise_variance(self) -> float:
        """The variance of the noise in one coordinate, which is public."""
        return self.asked.variance(self.scale, self.width)

    @property
    def label_truth(self) -> float:
        """The probability that a label is the true one, which is public."""
        return 1.0 if self.asked.labels == "public" else self.asked.response(self.classes, self.uses).truth

    @property
    def event(self) -> DpEvent:
        """What really happens to the dearest unit, whatever the calibration claims."""
        from discreet.accounting.events import ComposedDpEvent

        vectors = self.asked.cost(self.load, self.width).event(self.scale)
        labels = self.asked.label_event(self.classes, self.uses)
        return vectors if labels is None else ComposedDpEvent([vectors, labels])

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee with its assumptions, or the paper's claim with the true figure beside it."""
        return stated(self.asked, found)

    def __call__(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encodings and what their heads should say.

        Guarantee: that of `event`, for each unit, over all of them together.
        """
        seen = self.asked.seen(vectors)
        if self.asked.labels == "noisy":
            told = self.asked.response(self.classes, self.uses)(targets.cpu(), self.secret.fork("labels"))
            targets = told.to(targets.device)
        weights = torch.from_numpy(self.weights).to(seen.device)
        partners = torch.from_numpy(self.partners).to(seen.device)
        mixed = torch.zeros(len(partners), self.width, dtype=torch.float64, device=seen.device)
        for j in range(partners.shape[1]):
            mixed += weights[:, j : j + 1] * seen[partners[:, j]]
        noisy = self.asked.noise(self.scale, self.width)(mixed, self.secret.fork("noise"))
        if self.asked.mix == 1:
            return noisy.float(), targets[partners[:, 0]]
        soft = soft_targets(targets, self.classes)
        shares = weights.float()
        goals = sum(
            (shares[:, j : j + 1] if soft.ndim == 2 else shares[:, j]) * soft[partners[:, j]]
            for j in range(partners.shape[1])
        )
        assert isinstance(goals, Tensor)
        return noisy.float(), goals

    def __repr__(self) -> str:
        """Return the settings, and no secret."""
        return f"Encodings({self.asked})"


@dataclass(repr=False)
class LiveEncodings:
    """Encodings drawn anew at every step: a row enters at most `mix` outputs an epoch, each time up to the cap."""

    asked: InstanceEncoding
    rows: int
    width: int
    classes: int
    secret: Rng
    device: torch.device
    ahead: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)

    @cached_property
    def scale(self) -> float:
        """The scale of the noise, for all epochs together."""
        return self.asked.scale(self.load(self.asked.epochs), self.asked.width(self.width))

    def load(self, epochs: int) -> Load:
        """Return the most that so many epochs release of a row.

        A row may meet itself in an output, where its weights add up past the cap; no weight exceeds 1, so that none is
        less than its square.
        """
        most = self.asked.mix * epochs * (self.asked.cap or 1.0)
        return Load(most, most)

    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return the cost of an epoch, counted once; labels are counted once for all epochs, in the first."""
        from discreet.accounting.events import ComposedDpEvent

        event = self.asked.cost(self.load(1), self.asked.width(self.width)).event(self.scale)
        labels = self.asked.label_event(self.classes, 1) if epoch == 0 else None
        return (event if labels is None else ComposedDpEvent([event, labels])), f"epoch {epoch}"

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee with its assumptions, or the paper's claim with the true figure beside it."""
        return stated(self.asked, found)

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the mixture of each row and its noise."""
        block, place = divmod(step, self.at_once(len(rows)))
        drawn = {name: value[place] for name, value in self.drawn_at(block, len(rows)).items()}
        if self.asked.labels == "noisy":
            # the same answer for the same row at every step, so that a label is released once
            drawn["shift"] = torch.from_numpy(self.answers[rows]).to(self.device, non_blocking=True)
        return drawn

    def at_once(self, count: int) -> int:
        """Return for how many steps is drawn at once; the same for every batch of so many rows, also after a crash."""
        return steps_at_once(count * (count + self.asked.width(self.width)))

    def drawn_at(self, block: int, count: int) -> dict[str, Tensor]:
        """Return mixtures and noise of some steps in a row, for batches of so many rows: drawn at once, each used once.

        One by one they take longer than a short step on a GPU does.
        """
        if (block, count) not in self.ahead:
            source, width = self.secret.fork("block", block, count), self.asked.width(self.width)
            maker, steps = source.numpy("InstanceEncoding"), self.at_once(count)
            for old in [key for key in self.ahead if key[1] == count]:
                del self.ahead[old]
            table = mixtures(steps, count, self.asked.mix, self.asked.cap, False, maker)
            # In float64 until it is added: rounded noise would show what it was added to.
            drawn = self.asked.noise(self.scale, width).drawn((steps * count, width), source.fork("noise"), self.device)
            self.ahead[block, count] = {
                "mix": torch.from_numpy(table).float().to(self.device),
                "noise": drawn.view(steps, count, width),
            }
        return self.ahead[block, count]

    @cached_property
    def answers(self) -> Rows:
        """By how many classes the label of each row is told wrong; 0 is the truth."""
        response = self.asked.response(self.classes, 1)
        told = response(torch.zeros(self.rows, dtype=torch.int64), self.secret.fork("labels"))
        return np.asarray(told.numpy(), dtype=np.int64)

    def hide(
        self, vectors: Tensor, targets: Tensor, drawn: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return noisy mixtures of clipped vectors, and the mixtures of their labels."""
        vectors = vectors.float()
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = self.asked.projected(vectors)
            # a hair below the norm, so that rounding to single precision cannot carry a vector past it
            mixed = drawn["mix"] @ clip(vectors, self.asked.clip_norm * (1 - ROUNDING))
            width = self.asked.width(self.width)
            mixed = release(mixed, drawn["noise"], self.asked.noise(self.scale, width).deviation)
            if "shift" in drawn:
                targets = (targets + drawn["shift"]) % self.classes
            return mixed, drawn["mix"] @ soft_targets(targets, self.classes)

    def __repr__(self) -> str:
        """Return the settings, and no secret."""
        return f"LiveEncodings({self.asked})"


def load_of(partners: Rows, weights: np.ndarray[tuple[int, ...], np.dtype[np.float64]], owners: Rows) -> Load:
    """Return how much of one unit all outputs together hold at most.

    >>> load_of(np.array([[0, 1], [1, 0]]), np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))
    Load(squares=0.8125, total=1.25)
    """
    units = int(owners.max(initial=0)) + 1
    outputs = np.repeat(np.arange(len(partners)), partners.shape[1])
    keys, place = np.unique(outputs * units + owners[partners.ravel()], return_inverse=True)
    held = np.bincount(place, weights=weights.ravel())
    unit = keys % units
    squares, total = np.bincount(unit, weights=held**2), np.bincount(unit, weights=held)
    return Load(float(squares.max()), float(total.max()))


def stated(asked: InstanceEncoding, found: Guarantee) -> Guarantee:
    """Return a guarantee with its assumptions; under the paper's calibration its claim, with the true figure said."""
    said = (*found.assumptions, ENCODER, WEIGHTS, *((PUBLIC_LABELS,) if asked.labels == "public" else ()))
    said = tuple(dict.fromkeys(said))
    if asked.projection is not None and not asked.projection.public and found.exists:
        found = found.with_caveats({Caveat.PRIVATE_PROJECTION})
    if asked.calibration == "sound" or not found.exists:
        return dataclasses.replace(found, assumptions=said)
    true = in_digits(found.epsilon) if math.isfinite(found.epsilon) else "infinite"
    reason = (
        f"the published calibration takes half the distance of two clipped vectors or less and counts no composition; "
        f"the epsilon of this noise is {true}"
    )
    caveats = found.caveats | {Caveat.PAPER_CALIBRATION}
    return dataclasses.replace(
        found,
        epsilon=asked.epsilon,
        certified=False,
        accountant="paper",
        reason=reason,
        assumptions=said,
        caveats=caveats,
    )
