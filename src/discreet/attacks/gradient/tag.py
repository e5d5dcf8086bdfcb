"""TAG: gradient matching by squared plus absolute differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from discreet.attacks.gradient.matching import Matching, MatchingAttack
from discreet.attacks.gradient.matching_loss import SquaredAndAbsolute


@dataclass(frozen=True)
class Tag(MatchingAttack):
    """Adam on the squared distance plus `absolute` times the sum of absolute differences; no prior, no discrete moves.

    Lengths are known, labels if the release has them; the word-embedding gradient is not used. `seconds` is an upper
    limit.

    Paper: Deng et al. 2021, "TAG: Gradient Attack on Transformer-based Language Models".
    Differs: the weight of absolute differences is the same in all layers, as in the comparison by Balunovic et al.
    2022; both terms are relative to the length of the release; special tokens keep their places; attention's key biases
    are left out; against a clipped release the candidate's length is the one that fits best.
    """

    absolute: float = 0.01
    steps: int = 1000
    rate: float = 0.1
    seconds: float | None = None

    paper: ClassVar[str] = "TAG"

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        self.engine()

    def engine(self) -> Matching:
        """Return the engine as the paper, with the departures above, sets it."""
        loss = SquaredAndAbsolute(self.absolute)
        return Matching(loss=loss, steps=self.steps, rate=self.rate, seconds=self.seconds)
