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
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from discreet.accounting.instance_encoding import CALIBRATIONS, InstanceEncodingCost, Load
from discreet.core.errors import DataError, SettingError, UnsupportedError, invalid, one_of, positive, setting, whole
from discreet.core.guarantee import Adjacency, Caveat, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.core.settings import option
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.laplace import L2Laplace, Laplace
from discreet.mechanisms.normals import release
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.models.classifier import Classifier
from discreet.protections.base import (
    DELTA,
    RESOLVED,
    Conditions,
    RepresentationProtection,
    Rows,
    check_budget,
    clip,
    fields_of,
    most_rows,
    soft_targets,
    steps_at_once,
)
from discreet.protections.local.projection import Projection, labelled, principal
from discreet.protections.texthide import capped, mixtures

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


# The mechanism by its name here -> the name of its noise in accounting.
MECHANISMS = {"gaussian": "gaussian", "laplace": "laplace", "laplace-l2": "l2-laplace"}
LABELS = ("public", "noisy")
ROUNDING = 1e-6


@dataclass(frozen=True)
class InstanceEncoding(RepresentationProtection):
    """Clip to `clip_norm`, mix `mix` vectors, add noise for `epsilon` at `delta`; `rounds` outputs for each row.

    With `labels="noisy"`, `label_epsilon` of the epsilon goes to randomized response on the labels and the rest to the
    vectors. With a `public` corpus and a `dimension`, a projection is learned from it first. Where the encoder is
    trained, vectors are encoded anew at every step of at most `epochs` epochs, as in the paper, instead of once.

    Guarantee: for each unit under replace-one, epsilon at delta, over all outputs together, if the encoder is frozen or
        public; labels only if they are noisy. With calibration="paper" it is an estimate: the true figure is in the
        ledger. An encoder that is trained on private text makes it an estimate too.

    >>> InstanceEncoding(epsilon=8.0, delta=1e-5).mechanism
    'gaussian'
    """

    epsilon: float | None = field(
        default=None, metadata=option("Privacy budget of all released vectors and labels, for one unit.", "Budget")
    )
    delta: float | None = field(default=None, metadata=DELTA)
    clip_norm: float = field(default=1.0, metadata=option("Vectors are clipped to this norm.", "Method"))
    mix: int = field(default=1, metadata=option("Sentences in a mixture; 1 mixes nothing.", "Method"))
    mix_cap: float | None = field(default=None, metadata=option("Largest weight of a sentence in a mixture.", "Method"))
    mechanism: str = field(default="gaussian", metadata=option("Noise: gaussian, laplace or laplace-l2.", "Method"))
    labels: str = field(
        default="public", metadata=option("public (sent as they are), or noisy (by randomized response).", "Method")
    )
    label_epsilon: float | None = field(
        default=None, metadata=option("The part of epsilon that goes to noisy labels.", "Budget")
    )
    calibration: str = field(
        default="sound",
        metadata=option("sound (proven), or paper (as published; then epsilon is an estimate).", "Method"),
    )
    rounds: int = field(default=1, metadata=RESOLVED)
    stored: bool = field(default=True, metadata=RESOLVED)
    epochs: int = field(default=1, metadata=RESOLVED)
    projection: Projection | None = field(default=None, repr=False, metadata=RESOLVED)
    dimension: int | None = field(
        default=None,
        repr=False,
        metadata=option("Project vectors to this many dimensions, learned from public text.", "Method"),
    )
    public: str | None = field(
        default=None, repr=False, metadata=option("Public data from which the projection is learned.", "Method")
    )
    name: ClassVar[str] = "dp-ie"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    default_part: ClassVar[str] = "head"

    def __post_init__(self) -> None:
        """Reject settings outside their range, and no budget."""
        if self.epsilon is None:
            raise SettingError(
                f"Expected {setting('epsilon')} for dp-ie. It is the budget of the release; 8 is a common start."
            )
        check_budget(self.epsilon, self.delta)
        if (self.dimension is None) != (self.public is None):
            missing, given = ("public", "dimension") if self.public is None else ("dimension", "public")
            raise SettingError(
                f"Expected {setting(missing)} beside {setting(given)} for dp-ie. A "
                "projection is learned from public text, to so many dimensions."
            )
        if self.dimension is not None:
            whole("dimension", self.dimension)
        positive("clip_norm", self.clip_norm, "Longer vectors are shortened to it.")
        whole("mix", self.mix, 1, "It counts the vectors in a mixture; 1 mixes nothing.")
        whole("rounds", self.rounds, 1, "It counts the outputs for each row.")
        whole("epochs", self.epochs)
        one_of("mechanism", self.mechanism, MECHANISMS)
        one_of("labels", self.labels, LABELS)
        one_of("calibration", self.calibration, CALIBRATIONS)
        if self.mix_cap is not None and not 1 / self.mix <= self.mix_cap <= 1:
            rule = f"in [{1 / self.mix:.3g}, 1]"
            raise invalid("mix_cap", self.mix_cap, rule, "The weights of a mixture add up to 1.")
        if self.label_epsilon is not None:
            if self.labels != "noisy":
                raise invalid(
                    "label_epsilon", self.label_epsilon, "left out", f"It belongs to {setting('labels', 'noisy')}."
                )
            if not 0 < self.label_epsilon < self.budget:
                rule = f"in (0, {self.epsilon:g})"
                raise invalid(
                    "label_epsilon", self.label_epsilon, rule, "It is a part of epsilon; vectors get the rest."
                )
        if self.calibration != "sound" and self.mechanism == "laplace-l2":
            raise invalid("mechanism", self.mechanism, "gaussian or laplace", "The paper has no other.")

    def resolve(self, conditions: Conditions) -> InstanceEncoding:
        """Return the protection: stored for a frozen encoder, at every step for one that is trained."""
        projection = None
        if self.dimension is not None and self.projection is None:
            if conditions.public is None:
                raise DataError(f"Expected the public text {self.public!r} for the projection of dp-ie. Give public=.")
            vectors, labels = conditions.public()
            projection = learned(vectors.cpu(), None if labels is None else labels.cpu(), self.dimension)
        resolved = dataclasses.replace(
            self,
            delta=conditions.delta,
            stored=self.stored and conditions.model.settings.frozen,
            epochs=max(self.epochs, math.ceil(conditions.epochs)),
            projection=self.projection or projection,
        )
        resolved.check(conditions.batch_size, conditions.rows)
        return resolved

    def shape(self, model: Classifier) -> None:
        """Make room in a model for the weights of a run."""
        attach(model, Clipped(model.width, self.clip_norm, self.dimension), Rng(0))

    def identity(self) -> object:
        """Return what decides its draws, in the order and under the names of the first version."""
        kept = [name for name in (field.name for field in fields_of(self)) if name not in {"dimension", "public"}]
        return "InstanceEncoding", {"cap" if name == "mix_cap" else name: getattr(self, name) for name in kept}

    def public_settings(self) -> dict[str, Any]:
        """Return the settings under the names that reports have always used."""
        named = super().public_settings()
        return {"cap" if key == "mix_cap" else key: value for key, value in named.items()}

    @property
    def limits(self) -> bool:
        """Whether the ledger may hold training to the epsilon: the paper's noise costs more than it claims."""
        return self.calibration == "sound"

    @property
    def budget(self) -> float:
        """The epsilon of the whole release."""
        assert self.epsilon is not None
        return self.epsilon

    @property
    def at_delta(self) -> float:
        """The delta of a resolved protection."""
        if self.delta is None:
            raise UnsupportedError(
                "Expected a resolved dp-ie, found one without delta. Give delta, make a training plan, or call "
                "resolve(conditions)."
            )
        return self.delta

    @property
    def mixes(self) -> int:
        """How many vectors are in a mixture."""
        return self.mix

    @property
    def projected_to(self) -> int | None:
        """How many coordinates are released, where fewer than the encoder's."""
        return None if self.projection is None else self.projection.width

    @property
    def spent_on_labels(self) -> float:
        """The part of epsilon that randomized response on the labels gets; 0 where labels are public."""
        if self.labels == "public":
            return 0.0
        return min(self.budget / 2, 3.0) if self.label_epsilon is None else self.label_epsilon

    def width(self, encoder: int) -> int:
        """Return the number of coordinates that leave."""
        return encoder if self.projection is None else self.projection.width

    def cost(self, load: Load, width: int) -> InstanceEncodingCost:
        """Return the cost of outputs that hold so much of a unit."""
        return InstanceEncodingCost(self.clip_norm, load, width, MECHANISMS[self.mechanism], self.calibration)

    def scale(self, load: Load, width: int) -> float:
        """Return the scale of the noise on the vectors, rounded up past what solving for it can be wrong."""
        return self.cost(load, width).scale(self.budget - self.spent_on_labels, self.at_delta) * (1 + ROUNDING)

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
            raise invalid("labels", self.labels, "public for scores", "Randomized response needs classes.")
        return RandomizedResponse(self.spent_on_labels / uses, classes)

    def seen(self, vectors: Tensor) -> Tensor:
        """Return vectors as they are before mixing and noise: projected and cut to the norm, in float64."""
        return clip(self.projected(vectors.double()), self.clip_norm)

    def projected(self, vectors: Tensor) -> Tensor:
        """Return vectors in the coordinates of the projection, if there is one, in their own precision."""
        if self.projection is None:
            return vectors
        mean, matrix = (t.to(vectors) for t in (self.projection.mean, self.projection.matrix))
        return (vectors - mean) @ matrix.T

    def check(self, batch_size: int, rows: int) -> None:
        """Refuse mixtures of more vectors than there are."""
        size = rows if self.stored else min(batch_size, rows)
        if self.mix > size:
            where = "rows" if self.stored else "rows of a batch"
            raise invalid("mix", self.mix, f"<= {size}, the {where}", "Mix fewer, or take more rows.")

    def fit(self, model: Classifier, rng: Rng) -> None:
        """Let the model read projected and clipped vectors, with a head of their width."""
        if isinstance(model.query, Clipped):
            return
        front = Clipped(model.width, self.clip_norm, None if self.projection is None else self.projection.width)
        if self.projection is not None:
            front.matrix.copy_(self.projection.matrix)
            front.mean.copy_(self.projection.mean)
        attach(model, front, rng)

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Encodings:
        """Return the release of all rows: mixing weights are drawn, so that its cost is known."""
        return Encodings.drawn(self, owners, width, classes, secret)

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> LiveEncodings:
        """Return what encodes the vectors of every step anew."""
        return LiveEncodings(self, rows, width, classes, secret.fork("dp-ie"), device)


def learned(vectors: Tensor, labels: Tensor | None, dimension: int) -> Projection:
    """Return a projection learned from public vectors, with their labels where there are any; typical length 1."""
    if labels is None or labels.is_floating_point() or dimension < 2:
        found = principal(vectors, dimension, "public text")
    else:
        found = labelled(vectors, labels, dimension, "public text with labels")
    typical = float(torch.linalg.vector_norm(found(vectors), dim=1).median())
    return dataclasses.replace(found, matrix=found.matrix / max(typical, 1e-12))


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
                "Expected no pooler with a projection. The head reads what is projected; use "
                f"{setting('pooler', False)}."
            )
        model.replace_head(front.matrix.shape[0], rng.fork("head"))
    model.query = front.to(model.device)


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
            weights = capped(np.abs(source.standard_normal((outputs, asked.mix))), asked.mix_cap)
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
        """The true cost of the unit with the largest epsilon, whatever the calibration claims."""
        from discreet.accounting.events import ComposedDpEvent

        vectors = self.asked.cost(self.load, self.width).event(self.scale)
        labels = self.asked.label_event(self.classes, self.uses)
        return vectors if labels is None else ComposedDpEvent([vectors, labels])

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee with its assumptions, or the paper's claim with the true figure beside it."""
        return stated(self.asked, found)

    def send(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encodings and what their heads should say.

        Guarantee: that of `event`, for each unit, over all of them together.
        """
        return self(vectors, targets)

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
        most = self.asked.mix * epochs * (self.asked.mix_cap or 1.0)
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
            table = mixtures(steps, count, self.asked.mix, self.asked.mix_cap, False, maker)
            # In float64 until it is added: rounded noise would show what it was added to.
            drawn = self.asked.noise(self.scale, width).sample(
                (steps * count, width), source.fork("noise"), self.device
            )
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
        epsilon=asked.budget,
        certified=False,
        accountant="paper",
        reason=reason,
        assumptions=said,
        caveats=caveats,
    )
