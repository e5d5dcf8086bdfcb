"""DLG: gradient matching by squared distance, the first of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from discreet.attacks.gradient.matching import Matching
from discreet.attacks.gradient.matching_loss import SquaredDistance
from discreet.attacks.gradient.search import Progress
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge

_NAME = "DLG"


@dataclass(frozen=True)
class Dlg:
    """Squared distance, minimised by Adam (as for text) or L-BFGS (as in the paper); labels known or learned.

    `learn_labels` learns soft labels beside the text even if the release has them. If it has none, the label of a
    single text is read off the head's bias (iDLG), and those of several are learned. `seconds` ends the search with
    the best so far.

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

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        self._engine()

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng, progress: Progress | None = None) -> Guess:
        """Return the texts behind a release; `details` has the token ids, the loss and the steps taken."""
        return self.run_many([seen], knows, rng, progress)[0]

    def run_many(
        self, seens: Sequence[GradientRelease], knows: Knowledge, rng: Rng, progress: Progress | None = None
    ) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""
        return self._engine().run(seens, knows, rng, _NAME, progress)

    def _engine(self) -> Matching:
        return Matching(
            loss=SquaredDistance(),
            steps=self.steps,
            rate=self.rate,
            optimiser=self.optimiser,
            learn_labels=self.learn_labels,
            seconds=self.seconds,
        )
