"""DP instance encoding: clip sentence vectors, mix them, and add fresh noise before they are released.

Paper: Xie and Hong 2022, Differentially Private Instance Encoding against Privacy Attacks, Algorithm 1.
Differs: every output has its own noise (the paper samples one noise vector for all outputs); weights are absolute
values; labels pass through randomized response or are declared public; all vectors are encoded once and the head is
trained on the stored release; the noise is calibrated by a proof under replace-one. The paper's noise is available as
calibration="paper".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from discreet.accounting.events import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from discreet.accounting.instance_encoding import CALIBRATIONS, InstanceEncodingCost, Load
from discreet.accounting.local_layer import LABELS_PUBLIC
from discreet.core.errors import DataError, SettingError, UnsupportedError, invalid, setting, whole
from discreet.core.guarantee import Adjacency, Caveat, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.core.rules import OneOf, Positive, Whole, check_fields
from discreet.core.settings import option_field
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.laplace import L2Laplace, Laplace
from discreet.mechanisms.normals import release
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.models.classifier import Classifier
from discreet.protections.base import (
    BUDGET,
    DELTA,
    RESOLVED,
    Conditions,
    Live,
    Once,
    RepresentationProtection,
    Rows,
    clip,
    fields_of,
    most_rows,
    soft_targets,
    steps_at_once,
)
from discreet.protections.local.projection import Projection, labelled, principal
from discreet.protections.texthide import Floats, capped, mixtures

# Name of the mechanism -> name of its noise in `accounting`.
MECHANISMS = {"gaussian": "gaussian", "laplace": "laplace", "laplace-l2": "l2-laplace"}
LABELS = ("public", "noisy")
ROUNDING = 1e-6
ENCODER = "the encoder and the projection are frozen and public, or their training is counted in the same ledger"
WEIGHTS = "the mixing weights were drawn without looking at the texts, and every output has fresh noise"


@dataclass(frozen=True)
class InstanceEncoding(RepresentationProtection):
    """Clip to `clip_norm`, mix `mix` vectors, add noise for `epsilon` at `delta`; release `rounds` outputs per row.

    With `labels="noisy"`, randomized response on the labels uses `label_epsilon` of the epsilon and the vectors use the
    rest. With a `public` corpus and a `dimension`, a projection is learned from it first. If the encoder is trained,
    vectors are encoded again at every step of at most `epochs` epochs, as in the paper, instead of once.

    Args:
        epsilon: Privacy budget of all released vectors and labels, for one unit.
        delta: Delta of the guarantee; well below 1 / number of units. By default 0.1 / number of units, at most 1e-5.
        clip_norm: Vectors are clipped to this norm.
        mix: Sentences in a mixture; 1 mixes nothing.
        mix_cap: Largest weight of a sentence in a mixture.
        mechanism: Noise: gaussian, laplace or laplace-l2.
        labels: public (sent as they are), or noisy (by randomized response).
        label_epsilon: The part of epsilon that goes to noisy labels.
        calibration: sound (proven), or paper (as published; then epsilon is an estimate).
        rounds: Outputs for each row, set when the protection is resolved.
        stored: Whether each row is released once, set when the protection is resolved.
        epochs: Epochs that are released, set when the protection is resolved.
        projection: The projection learned from `public`, set when the protection is resolved.
        dimension: Project vectors to this many dimensions, learned from public text.
        public: Public data from which the projection is learned.

    Guarantee: for each unit under replace-one, epsilon at delta over all outputs together, if the encoder is frozen or
        public; labels only if they are noisy. With calibration="paper" it is an estimate: the ledger holds the true
        figure. An encoder that is trained on private text makes it an estimate too.

    >>> InstanceEncoding(epsilon=8.0, delta=1e-5).mechanism
    'gaussian'
    """

    epsilon: float | None = option_field(
        None, "Privacy budget of all released vectors and labels, for one unit.", "Budget", rule=BUDGET
    )
    delta: float | None = field(default=None, metadata=DELTA)
    clip_norm: float = option_field(
        1.0, "Vectors are clipped to this norm.", "Method", rule=Positive("Longer vectors are clipped to it.")
    )
    mix: int = option_field(
        1,
        "Sentences in a mixture; 1 mixes nothing.",
        "Method",
        rule=Whole(1, "It is the number of vectors in a mixture; 1 mixes nothing."),
    )
    mix_cap: float | None = option_field(None, "Largest weight of a sentence in a mixture.", "Method")
    mechanism: str = option_field(
        "gaussian", "Noise: gaussian, laplace or laplace-l2.", "Method", rule=OneOf(tuple(MECHANISMS))
    )
    labels: str = option_field(
        "public", "public (sent as they are), or noisy (by randomized response).", "Method", rule=OneOf(tuple(LABELS))
    )
    label_epsilon: float | None = option_field(None, "The part of epsilon that goes to noisy labels.", "Budget")
    calibration: str = option_field(
        "sound",
        "sound (proven), or paper (as published; then epsilon is an estimate).",
        "Method",
        rule=OneOf(tuple(CALIBRATIONS)),
    )
    rounds: int = field(default=1, metadata=RESOLVED)
    stored: bool = field(default=True, metadata=RESOLVED)
    epochs: int = field(default=1, metadata=RESOLVED)
    projection: Projection | None = field(default=None, repr=False, metadata=RESOLVED)
    dimension: int | None = option_field(
        None, "Project vectors to this many dimensions, learned from public text.", "Method", show=False, rule=Whole()
    )
    public: str | None = option_field(None, "Public data from which the projection is learned.", "Method", show=False)
    computes_noise_from_rows: ClassVar[bool] = True
    name: ClassVar[str] = "dp-ie"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    default_part: ClassVar[str] = "head"

    def __post_init__(self) -> None:
        """Reject settings outside their range, and a missing budget."""
        if self.epsilon is None:
            raise SettingError(
                f"Expected {setting('epsilon')} for dp-ie. It is the budget of the release; 8 is a common start."
            )
        check_fields(self)
        if (self.dimension is None) != (self.public is None):
            missing, present = ("public", "dimension") if self.public is None else ("dimension", "public")
            raise SettingError(
                f"Expected {setting(missing)} together with {setting(present)} for dp-ie. The projection to that many "
                "dimensions is learned from public text."
            )
        whole("rounds", self.rounds, 1, "It is the number of outputs for each row.")
        whole("epochs", self.epochs)
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
        """Return the protection: one stored release for a frozen encoder, a release at every step otherwise."""
        projection = None
        if self.dimension is not None and self.projection is None:
            if conditions.public is None:
                raise DataError(f"Expected the public text {self.public!r} for the projection of dp-ie. Pass public=.")
            vectors, labels = conditions.public()
            projection = learn_projection(vectors.cpu(), None if labels is None else labels.cpu(), self.dimension)
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
        """Add the query module and the head of a run, so that its weights can be loaded."""
        attach(model, Clipped(model.width, self.clip_norm, self.dimension), Rng(0))

    def identity(self) -> object:
        """Return the settings that determine its random values."""
        names = [field.name for field in fields_of(self) if field.name not in {"dimension", "public"}]
        return "InstanceEncoding", {name: getattr(self, name) for name in names}

    def public_settings(self) -> dict[str, Any]:
        """Return the settings under the names that stored reports use."""
        settings = super().public_settings()
        return {"cap" if name == "mix_cap" else name: value for name, value in settings.items()}

    @property
    def limits(self) -> bool:
        """Whether the ledger can enforce epsilon: the paper's noise costs more than it claims."""
        return self.calibration == "sound"

    @property
    def budget(self) -> float:
        """Epsilon of the whole release."""
        assert self.epsilon is not None
        return self.epsilon

    @property
    def at_delta(self) -> float:
        """Delta of a resolved protection."""
        if self.delta is None:
            raise UnsupportedError(
                "Expected a resolved dp-ie, got one without delta. Set delta, make a training plan, or call "
                "resolve(conditions)."
            )
        return self.delta

    @property
    def mixes(self) -> int:
        """Number of vectors in a mixture."""
        return self.mix

    @property
    def projected_to(self) -> int | None:
        """Number of released coordinates, or None if it is the encoder's width."""
        return None if self.projection is None else self.projection.width

    @property
    def protects_labels(self) -> bool:
        """Whether labels are reported by randomized response."""
        return self.labels == "noisy"

    @property
    def spent_on_labels(self) -> float:
        """Part of epsilon used for randomized response on the labels; 0 if labels are public."""
        if self.labels == "public":
            return 0.0
        return min(self.budget / 2, 3.0) if self.label_epsilon is None else self.label_epsilon

    def width(self, encoder: int) -> int:
        """Return the number of released coordinates."""
        return self.projected_to or encoder

    def cost(self, load: Load, width: int) -> InstanceEncodingCost:
        """Return the cost of outputs that hold at most `load` of a unit."""
        return InstanceEncodingCost(self.clip_norm, load, width, MECHANISMS[self.mechanism], self.calibration)

    def scale(self, load: Load, width: int) -> float:
        """Return the scale of the noise on the vectors, increased by a margin for the error of the solver."""
        return self.cost(load, width).scale(self.budget - self.spent_on_labels, self.at_delta) * (1 + ROUNDING)

    def noise(self, scale: float, width: int) -> Gaussian | Laplace | L2Laplace:
        """Return the noise mechanism."""
        if self.mechanism == "gaussian":
            return Gaussian(scale)
        return Laplace(scale) if self.mechanism == "laplace" else L2Laplace(scale, width)

    def variance(self, scale: float, width: int) -> float:
        """Return the variance of the noise in one coordinate."""
        return {"gaussian": 1, "laplace": 2, "laplace-l2": width + 1}[self.mechanism] * scale**2

    def with_labels(self, vectors: DpEvent, classes: int, uses: int) -> DpEvent:
        """Return the event of vectors together with the labels of a unit with `uses` rows, if these are noisy."""
        if self.labels == "public":
            return vectors
        return ComposedDpEvent([vectors, SelfComposedDpEvent(self.response(classes, uses).event, uses)])

    def response(self, classes: int, uses: int) -> RandomizedResponse:
        """Return the randomized response of one label; the `uses` rows of a unit share its label budget."""
        if not classes:
            raise invalid("labels", self.labels, "public for scores", "Randomized response needs classes.")
        return RandomizedResponse(self.spent_on_labels / uses, classes)

    def seen(self, vectors: Tensor) -> Tensor:
        """Return projected and clipped vectors in float64, before mixing and noise."""
        return clip(self.projected(vectors.double()), self.clip_norm)

    def projected(self, vectors: Tensor) -> Tensor:
        """Return vectors in the coordinates of the projection, if there is one, in their own precision."""
        if self.projection is None:
            return vectors
        mean, matrix = (t.to(vectors) for t in (self.projection.mean, self.projection.matrix))
        return (vectors - mean) @ matrix.T

    def stated(self, guarantee: Guarantee) -> Guarantee:
        """Return a guarantee with its assumptions; with the paper's calibration, its claim and the true figure."""
        public_labels = (LABELS_PUBLIC,) if self.labels == "public" else ()
        assumptions = tuple(dict.fromkeys((*guarantee.assumptions, ENCODER, WEIGHTS, *public_labels)))
        if self.projection is not None and not self.projection.public and guarantee.exists:
            guarantee = guarantee.with_caveats({Caveat.PRIVATE_PROJECTION})
        if self.calibration == "sound" or not guarantee.exists:
            return dataclasses.replace(guarantee, assumptions=assumptions)
        true = in_digits(guarantee.epsilon) if math.isfinite(guarantee.epsilon) else "infinite"
        return dataclasses.replace(
            guarantee,
            epsilon=self.budget,
            certified=False,
            accountant="paper",
            reason="the published calibration takes half the distance of two clipped vectors or less and counts no "
            f"composition; the epsilon of this noise is {true}",
            assumptions=assumptions,
            caveats=guarantee.caveats | {Caveat.PAPER_CALIBRATION},
        )

    def check(self, batch_size: int, rows: int) -> None:
        """Reject mixtures of more vectors than there are."""
        size = rows if self.stored else min(batch_size, rows)
        if self.mix > size:
            where = "rows" if self.stored else "rows of a batch"
            raise invalid("mix", self.mix, f"<= {size}, the {where}", "Mix fewer vectors, or use more rows.")

    def fit(self, model: Classifier, rng: Rng) -> None:
        """Make the model read projected and clipped vectors, with a head of their width."""
        if isinstance(model.query, Clipped):
            return
        query = Clipped(model.width, self.clip_norm, self.projected_to)
        if self.projection is not None:
            query.matrix.copy_(self.projection.matrix)
            query.mean.copy_(self.projection.mean)
        attach(model, query, rng)

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Encodings:
        """Return the release of all rows; its mixing weights are already sampled, so its cost is known."""
        return Encodings.sample(self, owners, width, classes, secret)

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> LiveEncodings:
        """Return the object that encodes the vectors of every step."""
        return LiveEncodings(self, rows, self.width(width), classes, secret.fork("dp-ie"), device)


def learn_projection(vectors: Tensor, labels: Tensor | None, dimension: int) -> Projection:
    """Return a projection learned from public vectors, and their labels if there are any, with median length 1."""
    if labels is None or labels.is_floating_point() or dimension < 2:
        projection = principal(vectors, dimension, "public text")
    else:
        projection = labelled(vectors, labels, dimension, "public text with labels")
    length = float(torch.linalg.vector_norm(projection(vectors), dim=1).median())
    return dataclasses.replace(projection, matrix=projection.matrix / max(length, 1e-12))


class Clipped(nn.Module):
    """Project a query, if there is a projection, and clip it; no noise is added."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, width: int, clip_norm: float, dimension: int | None) -> None:
        """Allocate the projection; its values are loaded with the weights."""
        super().__init__()
        self.clip_norm = clip_norm
        self.projects = dimension is not None
        self.register_buffer("matrix", torch.zeros(dimension or 0, width))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the input of the head: what it was trained on, without the noise."""
        vectors = vectors.float()
        if self.projects:
            vectors = (vectors - self.mean) @ self.matrix.T
        return clip(vectors, self.clip_norm)


def attach(model: Classifier, query: Clipped, rng: Rng) -> None:
    """Set the query module of a model, and a head of the projected width."""
    if query.projects:
        if model.pooler is not None:
            raise SettingError(
                "Expected no pooler with a projection. The head reads projected vectors; use "
                f"{setting('pooler', False)}."
            )
        model.replace_head(query.matrix.shape[0], rng.fork("head"))
    model.query = query.to(model.device)


@dataclass(repr=False)
class Encodings(Once):
    """One release of all rows, with its secret partners and weights; its repr does not show them."""

    protect: InstanceEncoding
    load: Load
    uses: int
    width: int
    classes: int
    secret: Rng
    partners: Rows
    weights: Floats

    @classmethod
    def sample(cls, protect: InstanceEncoding, owners: Rows, width: int, classes: int, secret: Rng) -> Encodings:
        """Return a release whose partners and weights are sampled independently of the vectors."""
        protect.check(len(owners), len(owners))
        source = secret.fork("mixtures").numpy("InstanceEncoding")
        n, rounds, mix = len(owners), protect.rounds, protect.mix
        first = np.tile(np.arange(n), rounds)
        others = [np.concatenate([source.permutation(n) for _ in range(rounds)]) for _ in range(mix - 1)]
        partners = np.stack([first, *others], axis=1)
        weights = np.ones((n * rounds, 1))
        if mix > 1:
            weights = capped(np.abs(source.standard_normal((n * rounds, mix))), protect.mix_cap)
        load = load_of(partners, weights, owners)
        return cls(protect, load, most_rows(owners), protect.width(width), classes, secret, partners, weights)

    @property
    def scale(self) -> float:
        """Scale of the noise."""
        return self.protect.scale(self.load, self.width)

    @property
    def noise_variance(self) -> float:
        """Public variance of the noise in one coordinate."""
        return self.protect.variance(self.scale, self.width)

    @property
    def label_truth(self) -> float:
        """Public probability that a label is the true one."""
        return 1.0 if self.protect.labels == "public" else self.protect.response(self.classes, self.uses).truth

    @property
    def event(self) -> DpEvent:
        """True cost for the unit with the largest epsilon, whatever the calibration claims."""
        vectors = self.protect.cost(self.load, self.width).event(self.scale)
        return self.protect.with_labels(vectors, self.classes, self.uses)

    def send(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encodings and their targets.

        Guarantee: that of `event`, for each unit, over all encodings together.
        """
        clipped = self.protect.seen(vectors)
        if self.protect.labels == "noisy":
            response = self.protect.response(self.classes, self.uses)
            targets = response(targets.cpu(), self.secret.fork("labels")).to(targets.device)
        weights = torch.from_numpy(self.weights).to(clipped.device)
        partners = torch.from_numpy(self.partners).to(clipped.device)
        mixed = torch.zeros(len(partners), self.width, dtype=torch.float64, device=clipped.device)
        for j in range(partners.shape[1]):
            mixed += weights[:, j : j + 1] * clipped[partners[:, j]]
        noisy = self.protect.noise(self.scale, self.width)(mixed, self.secret.fork("noise"))
        if self.protect.mix == 1:
            return noisy.float(), targets[partners[:, 0]]
        soft, shares = soft_targets(targets, self.classes), weights.float()
        mixed_targets = sum(
            (shares[:, j : j + 1] if soft.ndim == 2 else shares[:, j]) * soft[partners[:, j]]
            for j in range(partners.shape[1])
        )
        assert isinstance(mixed_targets, Tensor)
        return noisy.float(), mixed_targets


@dataclass(repr=False)
class LiveEncodings(Live):
    """Encodings sampled again at every step: a row enters at most `mix` outputs per epoch, each up to the cap."""

    protect: InstanceEncoding
    rows: int
    width: int
    classes: int
    secret: Rng
    device: torch.device
    ahead: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)

    @cached_property
    def scale(self) -> float:
        """Scale of the noise, calibrated for all epochs together."""
        return self.protect.scale(self.load(self.protect.epochs), self.width)

    def load(self, epochs: int) -> Load:
        """Return the most that so many epochs release of a row.

        A row may be its own partner in an output, where its weights add up past the cap; no weight exceeds 1, so no
        weight is less than its square.
        """
        most = self.protect.mix * epochs * (self.protect.mix_cap or 1.0)
        return Load(most, most)

    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return the cost of an epoch, counted once; the first epoch includes the labels of all epochs."""
        event: DpEvent = self.protect.cost(self.load(1), self.width).event(self.scale)
        return self.protect.with_labels(event, self.classes, 1) if epoch == 0 else event, f"epoch {epoch}"

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the mixture of each row and its noise."""
        block, place = divmod(step, self.at_once(len(rows)))
        draws = {name: value[place] for name, value in self.draws_of(block, len(rows)).items()}
        if self.protect.labels == "noisy":
            # The same response for the same row at every step, so that a label is released once.
            draws["shift"] = torch.from_numpy(self.shifts[rows]).to(self.device, non_blocking=True)
        return draws

    def at_once(self, count: int) -> int:
        """Return the number of steps sampled together, a function of the number of rows alone."""
        return steps_at_once(count * (count + self.width))

    def draws_of(self, block: int, count: int) -> dict[str, Tensor]:
        """Return mixtures and noise of consecutive steps with `count` rows each: sampled together, each used once.

        Sampled step by step they take longer than a short step on a GPU.
        """
        if (block, count) not in self.ahead:
            source, steps = self.secret.fork("block", block, count), self.at_once(count)
            for old in [key for key in self.ahead if key[1] == count]:
                del self.ahead[old]
            generator = source.numpy("InstanceEncoding")
            table = mixtures(steps, count, self.protect.mix, self.protect.mix_cap, False, generator)
            # In float64 until it is added: rounded noise would reveal what it was added to.
            mechanism = self.protect.noise(self.scale, self.width)
            noise = mechanism.sample((steps * count, self.width), source.fork("noise"), self.device)
            self.ahead[block, count] = {
                "mix": torch.from_numpy(table).float().to(self.device),
                "noise": noise.view(steps, count, self.width),
            }
        return self.ahead[block, count]

    @cached_property
    def shifts(self) -> Rows:
        """How many classes the reported label of each row is shifted by; 0 is the truth."""
        response = self.protect.response(self.classes, 1)
        shifts = response(torch.zeros(self.rows, dtype=torch.int64), self.secret.fork("labels"))
        return np.asarray(shifts.numpy(), dtype=np.int64)

    def hide(
        self, vectors: Tensor, targets: Tensor, draws: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return noisy mixtures of clipped vectors, and the mixtures of their labels."""
        vectors = vectors.float()
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = self.protect.projected(vectors)
            # Slightly below the norm, so that rounding to single precision cannot move a vector past it.
            mixed = draws["mix"] @ clip(vectors, self.protect.clip_norm * (1 - ROUNDING))
            mixed = release(mixed, draws["noise"], self.protect.noise(self.scale, self.width).deviation)
            if "shift" in draws:
                targets = (targets + draws["shift"]) % self.classes
            return mixed, draws["mix"] @ soft_targets(targets, self.classes)


def load_of(partners: Rows, weights: Floats, owners: Rows) -> Load:
    """Return the most that all outputs together hold of one unit.

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
