"""LAMP, TAG and DLG: the published gradient matching attacks, as settings of the engine.

LAMP alternates gradient matching with discrete moves that a language model scores. TAG minimizes squared plus absolute
differences. DLG, the first attack of this kind, minimizes the squared distance.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from discreet.attacks.base import Need
from discreet.attacks.matching.engine import Matching, MatchingAttack, SearchSettings
from discreet.attacks.matching.objective import MatchingLoss, MeanCosine, SquaredAndAbsolute, SquaredDistance
from discreet.attacks.matching.polish import Polish
from discreet.core.errors import whole
from discreet.core.rules import OneOf, check_fields, ruled

LOSSES: dict[str, MatchingLoss] = {"cosine": MeanCosine(rows=0.5), "l1+l2": SquaredAndAbsolute()}


@dataclass(frozen=True)
class Lamp(SearchSettings, MatchingAttack):
    """Best of many starts, Adam with an embedding-norm regularizer, rounds of reordering with a prior, final polishing.

    `loss` is `cosine`, the mean over tensors, or `l1+l2`. `polish` is the number of polish rounds (0 for none).
    `SearchSettings` and `Polish` document the other settings. Lengths are known, and labels if the release has them.
    The word-embedding gradient is not used. The prior is `Knowledge(extra={"prior": …})`, or a 3-gram model of
    `Knowledge(auxiliary=…)`, or none; it must not be fitted to the attacked texts. `seconds` is an upper limit.

    Paper: Balunovic, Dimitrov, Jovanović and Vechev 2022, "LAMP: Extracting Text from Gradients with Language Model
    Priors".
    Differs: inner products come from layer inputs and output gradients, and many releases and candidates go through one
    pass; attention's key biases, whose gradient is zero, are left out; without noise, half of the loss is the mean
    cosine over the rows of the position-embedding gradient, each treated as a tensor, which determines the order; the
    rate is higher and decays with the progress of the search, with fewer starts, steps and proposals, so that a
    sentence takes less than a minute on one core instead of a quarter of an hour; several candidates may be followed
    and the worse half dropped; Adam's moments move with the tokens; the prior is an n-gram model, and has less weight
    the better the fit; under noise, tensors are weighted by their remaining signal, and the noise is measured on the
    key biases; the regularizer uses the mean norm of the model's word embeddings; at the end, tokens are replaced (also
    by tokens that the prior considers likely between their neighbours) and reordered as long as the loss decreases.
    """

    steps: int = 160
    rate: float = 0.02
    last_rate: float = 0.1
    starts: int = 16
    norm_weight: float = 1.0
    prior: float = 0.2
    every: int = 30
    proposals: int = 32
    loss: str = ruled("cosine", OneOf(tuple(LOSSES)))
    polish: int = 6
    near: int = 3
    cheap: int = 2
    orders: int = 32
    likely: int = 10
    places: float = 0.5

    name: ClassVar[str] = "lamp"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PRIOR})

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fields(self)
        whole("polish", self.polish, 0)
        self.engine()

    def engine(self) -> Matching:
        """Return the settings of the paper, with the departures above."""
        polish = None
        if self.polish:
            polish = Polish(self.polish, self.near, self.cheap, self.orders, self.likely, self.places)
        shared = {f.name: getattr(self, f.name) for f in fields(SearchSettings)}
        return Matching(loss=LOSSES[self.loss], polish=polish, **shared)


@dataclass(frozen=True)
class Tag(MatchingAttack):
    """Adam on the squared distance plus `absolute` times the sum of absolute differences; no prior, no discrete moves.

    Lengths are known, and labels if the release has them. The word-embedding gradient is not used. `seconds` is an
    upper limit.

    Paper: Deng et al. 2021, "TAG: Gradient Attack on Transformer-based Language Models".
    Differs: the weight of absolute differences is the same in all layers, as in the comparison by Balunovic et al.
    2022; both terms are relative to the norm of the release; special tokens keep their positions; attention's key
    biases are left out; against a clipped release the candidate's gradient is scaled to the best fit.
    """

    absolute: float = 0.01
    steps: int = 1000
    rate: float = 0.1
    seconds: float | None = None

    name: ClassVar[str] = "tag"

    def engine(self) -> Matching:
        """Return the settings of the paper, with the departures above."""
        loss = SquaredAndAbsolute(self.absolute)
        return Matching(loss=loss, steps=self.steps, rate=self.rate, seconds=self.seconds)


@dataclass(frozen=True)
class Dlg(MatchingAttack):
    """Squared distance, minimized by Adam (as for text) or L-BFGS (as in the paper); labels known or learned.

    `learn_labels` learns soft labels with the text even if the release has labels. If it has none, the label of a
    single text is read from the gradient of the head's bias (iDLG), and those of several texts are learned. `seconds`
    is an upper limit.

    Paper: Zhu, Liu and Han 2019, "Deep Leakage from Gradients"; Zhao, Mopuri and Bilen 2020, "iDLG: Improved Deep
    Leakage from Gradients", for the label.
    Differs: word vectors are optimized and then decoded as the nearest words; lengths are known and special tokens keep
    their positions; the distance is relative to the norm of the release; attention's key biases and the word-embedding
    gradient are left out; L-BFGS halves its step if the loss would increase, so that it does not diverge; against a
    clipped release the candidate's gradient is scaled to the best fit.
    """

    optimiser: str = "adam"
    steps: int = 1000
    rate: float = 0.1
    learn_labels: bool = False
    seconds: float | None = None

    name: ClassVar[str] = "dlg"

    def engine(self) -> Matching:
        """Return the settings of the paper, with the departures above."""
        return Matching(
            loss=SquaredDistance(),
            steps=self.steps,
            rate=self.rate,
            optimiser=self.optimiser,
            learn_labels=self.learn_labels,
            seconds=self.seconds,
        )
