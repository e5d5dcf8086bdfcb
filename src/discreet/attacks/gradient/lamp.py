"""LAMP: gradient matching in turn with discrete moves that a language model judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from discreet.attacks.gradient.matching import Matching, Progress
from discreet.attacks.gradient.matching_loss import MatchingLoss, MeanCosine
from discreet.attacks.gradient.polish import Polish
from discreet.core.checks import whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge

_NAME = "LAMP"


@dataclass(frozen=True)
class Lamp:
    """Best of many starts, Adam on the mean cosine with a norm regulariser, and rounds of reordering with a prior."""

    loss: MatchingLoss = field(default_factory=MeanCosine)
    steps: int = 1000
    rate: float = 0.03
    last_rate: float = 0.05
    starts: int = 64
    shuffles: int = 32
    kept: int = 2
    prunings: tuple[float, ...] = (0.3,)
    norm_weight: float = 1.0
    prior: float = 0.2
    burn_in: float = 0.1
    every: int = 50
    proposals: int = 48
    pull: float = 0.0
    descent: float = 0.75
    polish: int = 12
    near: int = 3
    cheap: int = 6
    orders: int = 48
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        whole("polish", self.polish, 0)
        self._engine()

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng, progress: Progress | None = None) -> Guess:
        """Return the texts behind a release."""
        return self.run_many([seen], knows, rng, progress)[0]

    def run_many(
        self, seens: Sequence[GradientRelease], knows: Knowledge, rng: Rng, progress: Progress | None = None
    ) -> list[Guess]:
        """Return the texts behind several releases of one batch size, attacked together."""
        return self._engine().run(seens, knows, rng, _NAME, progress)

    def _engine(self) -> Matching:
        polish = Polish(self.polish, self.near, self.cheap, self.orders) if self.polish else None
        own = {"near", "cheap", "orders", "polish"}
        shared = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}
        return Matching(**shared, polish=polish)
