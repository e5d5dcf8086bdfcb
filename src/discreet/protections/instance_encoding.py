"""DP instance encoding: sentence vectors are cut to a norm, mixed, and hidden by fresh noise before they leave.

Paper: Xie and Hong 2022, Differentially Private Instance Encoding against Privacy Attacks, Algorithm 1.
Differs: every output has noise of its own (the paper draws one vector for all of them); weights are absolute values;
labels pass through randomized response or are declared public; all vectors are encoded once and the head is trained on
what was stored; the noise is that of a proof under replace-one, and the paper's is there as calibration="paper".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from discreet.accounting.instance_encoding import CALIBRATIONS, InstanceEncodingCost, Load
from discreet.core.checks import one_of, open_probability, positive, refuse, whole
from discreet.core.errors import SettingError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.laplace import L2Laplace, Laplace
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.models.classifier import Classifier
from discreet.models.heads import head
from discreet.protections.ldp_projection import Projection
from discreet.protections.representation import Place, Rows, clip, most_rows, soft_targets
from discreet.protections.texthide import capped

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

# The mechanism by its name here -> the name of its noise in accounting.
MECHANISMS = {"gaussian": "gaussian", "laplace": "laplace", "laplace-l2": "l2-laplace"}
LABELS = ("public", "noisy")
ENCODER = "the encoder and the projection are frozen and public, or their training is counted in the same ledger"
PUBLIC_LABELS = "labels are public and not protected"
_ROUNDING = 1e-6
WEIGHTS = "the mixing weights were drawn without looking at the texts, and every output has fresh noise"


@dataclass(frozen=True)
class InstanceEncoding:
    """Clip to `clip_norm`, mix `mix` vectors, add noise for `epsilon` at `delta`; `rounds` outputs for each row.

    With `labels="noisy"`, `label_epsilon` of the epsilon goes to randomized response on the labels and the rest to the
    vectors. `stored=False` encodes anew at every step of at most `epochs` epochs, as the paper does.

    Guarantee: for each unit under replace-one, epsilon at delta, over all outputs together, if the encoder is frozen or
        public; labels only if they are noisy. With calibration="paper" it is an estimate: the true figure is in the
        ledger. An encoder that is trained on private text makes it an estimate too.

    >>> InstanceEncoding(epsilon=8.0, delta=1e-5).mechanism
    'gaussian'
    """

    epsilon: float
    delta: float
    clip_norm: float = 1.0
    mix: int = 1
    cap: float | None = None
    mechanism: str = "gaussian"
    labels: str = "public"
    label_epsilon: float | None = None
    calibration: str = "sound"
    rounds: int = 1
    stored: bool = True
    epochs: int = 1
    projection: Projection | None = field(default=None, repr=False)
    name: ClassVar[str] = "dp-ie"
    place: ClassVar[Place] = "representation"
    position: ClassVar[Literal["sentence"]] = "sentence"
    sampling: ClassVar[Literal["shuffled"]] = "shuffled"
    needs_public: ClassVar[bool] = False
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        positive("epsilon", self.epsilon, "It is the budget of the whole release; smaller is more private.")
        open_probability("delta", self.delta, "It should be far below one over the number of units.")
        positive("clip_norm", self.clip_norm, "Longer vectors are shortened to it.")
        whole("mix", self.mix, 1, "It counts the vectors in a mixture; 1 mixes nothing.")
        whole("rounds", self.rounds, 1, "It counts the outputs for each row.")
        whole("epochs", self.epochs)
        one_of("mechanism", self.mechanism, MECHANISMS)
        one_of("labels", self.labels, LABELS)
        one_of("calibration", self.calibration, CALIBRATIONS)
        if self.cap is not None and not 1 / self.mix <= self.cap <= 1:
            raise refuse("cap", self.cap, f"in [{1 / self.mix:.3g}, 1]", "The weights of a mixture add up to 1.")
        if self.label_epsilon is not None:
            if self.labels != "noisy":
                raise refuse("label_epsilon", self.label_epsilon, "left out", "It belongs to labels='noisy'.")
            if not 0 < self.label_epsilon < self.epsilon:
                rule = f"in (0, {self.epsilon:g})"
                raise refuse(
                    "label_epsilon", self.label_epsilon, rule, "It is a part of epsilon; vectors get the rest."
                )
        if self.calibration != "sound" and self.mechanism == "laplace-l2":
            raise refuse("mechanism", self.mechanism, "gaussian or laplace", "The paper has no other.")

    @property
    def spent_on_labels(self) -> float:
        """The part of epsilon that randomized response on the labels gets; 0 where labels are public."""
        if self.labels == "public":
            return 0.0
        return min(self.epsilon / 2, 3.0) if self.label_epsilon is None else self.label_epsilon

    def width(self, encoder: int) -> int:
        """Return the number of coordinates that leave."""
        return encoder if self.projection is None else self.projection.width

    def cost(self, load: Load, width: int) -> InstanceEncodingCost:
        """Return the cost of outputs that hold so much of a unit."""
        return InstanceEncodingCost(self.clip_norm, load, width, MECHANISMS[self.mechanism], self.calibration)

    def scale(self, load: Load, width: int) -> float:
        """Return the scale of the noise on the vectors, rounded up past what solving for it can be wrong."""
        return self.cost(load, width).scale(self.epsilon - self.spent_on_labels, self.delta) * (1 + _ROUNDING)

    def noise(self, scale: float, width: int) -> Gaussian | Laplace | L2Laplace:
        """Return the noise itself."""
        if self.mechanism == "gaussian":
            return Gaussian(scale)
        return Laplace(scale) if self.mechanism == "laplace" else L2Laplace(scale, width)

    def variance(self, scale: float, width: int) -> float:
        """Return the variance of the noise in one coordinate."""
        if self.mechanism == "gaussian":
            return scale**2
        return 2 * scale**2 if self.mechanism == "laplace" else (width + 1) * scale**2

    def label_event(self, classes: int, uses: int) -> DpEvent | None:
        """Return what the labels of a unit with so many rows cost, or None if they are public."""
        from discreet.accounting.events import SelfComposedDpEvent

        if self.labels == "public":
            return None
        return SelfComposedDpEvent(self.response(classes, uses).event, uses)

    def response(self, classes: int, uses: int) -> RandomizedResponse:
        """Return the noise on labels, a unit's part of epsilon shared out among its rows."""
        if not classes:
            raise refuse("labels", self.labels, "public for scores", "Randomized response needs classes.")
        return RandomizedResponse(self.spent_on_labels / uses, classes)

    def seen(self, vectors: Tensor) -> Tensor:
        """Return vectors as they are before mixing and noise: projected and cut to the norm, in float64."""
        vectors = vectors.double()
        if self.projection is not None:
            mean, matrix = (t.to(vectors) for t in (self.projection.mean, self.projection.matrix))
            vectors = (vectors - mean) @ matrix.T
        return clip(vectors, self.clip_norm)

    def check(self, batch_size: int, rows: int) -> None:
        """Refuse mixtures of more vectors than there are."""
        size = rows if self.stored else min(batch_size, rows)
        if self.mix > size:
            where = "rows" if self.stored else "rows of a batch"
            raise refuse("mix", self.mix, f"<= {size}, the {where}", "Mix fewer, or take more rows.")

    def fit(self, model: Classifier, rng: Rng) -> None:
        """Let the model read projected and clipped vectors, with a head of their width."""
        if isinstance(model.query, Clipped):
            return
        front = Clipped(model.width, self.clip_norm, None if self.projection is None else self.projection.width)
        if self.projection is not None:
            front.matrix.copy_(self.projection.matrix)
            front.mean.copy_(self.projection.mean)
        attach(model, front, rng)

    def begin(self, model: Classifier, secret: Rng) -> None:
        """Do nothing: a query is asked without noise, by whoever has the model."""

    def end(self, model: Classifier) -> None:
        """Do nothing: the projection is public and stays with the weights."""

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Encodings:
        """Return the release of all rows: mixing weights are drawn, so that its cost is known."""
        return Encodings.drawn(self, owners, width, classes, secret)

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> LiveEncodings:
        """Return what encodes the vectors of every step anew."""
        return LiveEncodings(self, rows, width, classes, secret.fork("dp-ie"), device)


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

    @property
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
        from discreet.protections.texthide import mixtures

        source = self.secret.fork("batch", step)
        table, _ = mixtures(1, len(rows), self.asked.mix, self.asked.cap, False, source.numpy("InstanceEncoding"))
        width = self.asked.width(self.width)
        nothing = torch.zeros(len(rows), width, dtype=torch.float64)
        noise = self.asked.noise(self.scale, width)(nothing, source.fork("noise"))
        drawn = {"mix": torch.from_numpy(table[0]).float(), "noise": noise.float()}
        if self.asked.labels == "noisy":
            # the same answer for the same row at every step, so that a label is released once
            shift = self._answers()[rows]
            drawn["shift"] = torch.from_numpy(shift)
        return {name: value.to(self.device, non_blocking=True) for name, value in drawn.items()}

    def _answers(self) -> Rows:
        """Return for each row by how many classes its label is told wrong; 0 is the truth."""
        response = self.asked.response(self.classes, 1)
        told = response(torch.zeros(self.rows, dtype=torch.int64), self.secret.fork("labels"))
        return np.asarray(told.numpy(), dtype=np.int64)

    def hide(
        self, vectors: Tensor, targets: Tensor, drawn: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return noisy mixtures of clipped vectors, and the mixtures of their labels."""
        vectors = vectors.float()
        with torch.autocast(vectors.device.type, enabled=False):
            if self.asked.projection is not None:
                mean, matrix = (t.to(vectors) for t in (self.asked.projection.mean, self.asked.projection.matrix))
                vectors = (vectors - mean) @ matrix.T
            # a hair below the norm, so that rounding to single precision cannot carry a vector past it
            mixed = drawn["mix"] @ clip(vectors, self.asked.clip_norm * (1 - _ROUNDING)) + drawn["noise"]
            if "shift" in drawn:
                targets = (targets + drawn["shift"]) % self.classes
            return mixed, drawn["mix"] @ soft_targets(targets, self.classes)

    def __repr__(self) -> str:
        """Return the settings, and no secret."""
        return f"LiveEncodings({self.asked})"


class Clipped(nn.Module):
    """What a query passes through: the public projection, if there is one, and the clip; no noise."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, width: int, clip_norm: float, dimension: int | None) -> None:
        """Make room for the projection; its numbers come with the weights."""
        super().__init__()
        self.clip_norm = clip_norm
        self.projects = dimension is not None
        self.register_buffer("matrix", torch.zeros(dimension or 0, width))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return what the head was trained on, less the noise."""
        vectors = vectors.float()
        if self.projects:
            vectors = (vectors - self.mean) @ self.matrix.T
        return clip(vectors, self.clip_norm)


def attach(model: Classifier, front: Clipped, rng: Rng) -> None:
    """Give a model a front and a head of the width that comes out of it."""
    if front.projects:
        if model.pooler is not None:
            raise SettingError(
                "Expected no pooler with a projection. The head reads what is projected; use --no-pooler."
            )
        outputs = len(model.label_names) if model.task == "classification" else 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.fork("head").seed())
            fresh = head(model.settings.head, front.matrix.shape[0], outputs, model.settings.hidden)
        model.head = fresh.to(model.device)
    model.query = front.to(model.device)


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
    if asked.calibration == "sound" or not found.exists:
        return dataclasses.replace(found, assumptions=said)
    true = f"{found.epsilon:.4g}" if math.isfinite(found.epsilon) else "infinite"
    reason = (
        f"the published calibration takes half the distance of two clipped vectors or less and counts no composition; "
        f"the epsilon of this noise is {true}"
    )
    return dataclasses.replace(
        found, epsilon=asked.epsilon, certified=False, accountant="paper", reason=reason, assumptions=said
    )
