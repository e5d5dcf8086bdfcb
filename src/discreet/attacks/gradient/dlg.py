"""DLG: gradient matching by squared distance, the first of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from discreet.attacks.gradient.matching import Matching, MatchingAttack
from discreet.attacks.gradient.matching_loss import SquaredDistance


@dataclass(frozen=True)
class Dlg(MatchingAttack):
    """Squared distance, minimised by Adam (as for text) or L-BFGS (as in the paper); labels known or learned.

    `learn_labels` learns soft labels beside the text even if the release has them. If it has none, the label of a
    single text is read off the head's bias (iDLG), and those of several are learned. `seconds` is an upper limit.

    Paper: Zhu, Liu and Han 2019, "Deep Leakage from Gradients"; Zhao, Mopuri and Bilen 2020, "iDLG: Improved Deep
    Leakage from Gradients", for the label.
    Differs: the vectors of words are searched for and then read as the nearest words; lengths are known and special
    tokens keep their places; the distance is relative to the length of the release; attention's key biases and the
    word-embedding gradient are left out; L-BFGS halves its step where the loss would rise, so that it does not diverge;
    against a clipped release the candidate's length is the one that fits best.
    """

    optimiser: str = "adam"
    steps: int = 1000
    rate: float = 0.1
    learn_labels: bool = False
    seconds: float | None = None

    paper: ClassVar[str] = "DLG"

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        self.engine()

    def engine(self) -> Matching:
        """Return the engine as the paper, with the departures above, sets it."""
        return Matching(
            loss=SquaredDistance(),
            steps=self.steps,
            rate=self.rate,
            optimiser=self.optimiser,
            learn_labels=self.learn_labels,
            seconds=self.seconds,
        )
