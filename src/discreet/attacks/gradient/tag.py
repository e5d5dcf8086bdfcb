"""TAG: gradient matching by squared plus absolute differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from discreet.attacks.gradient.matching import Matching
from discreet.attacks.gradient.matching_loss import SquaredAndAbsolute
from discreet.attacks.gradient.search import Progress
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge

_NAME = "TAG"


@dataclass(frozen=True)
class Tag:
    """Adam on the squared distance plus `absolute` times the sum of absolute differences; no prior, no discrete moves.

    Lengths are known, labels if the release has them; the word-embedding gradient is not used. `seconds` ends the
    search with the best so far.

    Paper: Deng et al. 2021, "TAG: Gradient Attack on Transformer-based Language Models".
    Differs: the weight of absolute differences is the same in all layers, as in the comparison by Balunovic et al.
    2022; both terms are relative to the length of the release; special tokens keep their places; attention's key biases
    are left out; against a clipped release the candidate's length is the one that fits best.
    """

    absolute: float = 0.01
    steps: int = 1000
    rate: float = 0.1
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
        loss = SquaredAndAbsolute(self.absolute)
        return Matching(loss=loss, steps=self.steps, rate=self.rate, seconds=self.seconds)
