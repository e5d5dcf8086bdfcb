"""DP instance encoding: sentence vectors are cut to a norm, mixed, and hidden by fresh noise before they leave.

Paper: Xie and Hong 2022, Differentially Private Instance Encoding against Privacy Attacks, Algorithm 1.
Differs: every output has noise of its own (the paper draws one vector for all of them); weights are absolute values;
labels pass through randomized response or are declared public; all vectors are encoded once and the head is trained on
what was stored; the noise is that of a proof under replace-one, and the paper's is there as calibration="paper".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from discreet.accounting.instance_encoding import CALIBRATIONS, InstanceEncodingCost, Load
from discreet.core.checks import one_of, open_probability, positive, refuse, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.laplace import L2Laplace, Laplace
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.models.classifier import Classifier
from discreet.protections.clipped_query import Clipped, attach
from discreet.protections.ldp_projection import Projection
from discreet.protections.representation import Place, Rows, clip

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.protections.encodings import Encodings, LiveEncodings

# The mechanism by its name here -> the name of its noise in accounting.
MECHANISMS = {"gaussian": "gaussian", "laplace": "laplace", "laplace-l2": "l2-laplace"}
LABELS = ("public", "noisy")
ROUNDING = 1e-6


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
    priced: ClassVar[bool] = True
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
        return self.cost(load, width).scale(self.epsilon - self.spent_on_labels, self.delta) * (1 + ROUNDING)

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
        return clip(self.projected(vectors.double()), self.clip_norm)

    def projected(self, vectors: Tensor) -> Tensor:
        """Return vectors in the coordinates of the projection, if there is one, in their own precision."""
        if self.projection is None:
            return vectors
        mean, matrix = (t.to(vectors) for t in (self.projection.mean, self.projection.matrix))
        return (vectors - mean) @ matrix.T

    def views(self, width: int, secret: Rng) -> None:
        """A query is seen in one way."""

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
        from discreet.protections.encodings import Encodings

        return Encodings.drawn(self, owners, width, classes, secret)

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> LiveEncodings:
        """Return what encodes the vectors of every step anew."""
        from discreet.protections.encodings import LiveEncodings

        return LiveEncodings(self, rows, width, classes, secret.fork("dp-ie"), device)
