"""Noise chosen by risk: what is proven to keep a ceiling, what is measured to, and how far they lie apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from discreet.accounting.calibrate import least, most
from discreet.accounting.events import DpEvent
from discreet.accounting.risk import most_identified
from discreet.core.checks import open_probability, refuse, whole
from discreet.core.guarantee import Adjacency, in_digits
from discreet.core.types import UPDATE
from discreet.metrics.intervals import clopper_pearson

_RAISE = 1.05
# From a noise to right answers and attempts, with the same random numbers for every noise.
Attempt = Callable[[float], tuple[int, int]]


@dataclass(frozen=True)
class Recommendation:
    """A noise that keeps a ceiling, how it is known to, and what it costs.

    `certified` means a proven bound for every attack on this release; otherwise it is an estimate from one attack and
    one kind of text, `limit` its upper 95% confidence limit on text that the choice did not see, unless it
    was `raised` for that text.
    """

    noise: float
    limit: float
    certified: bool
    event: str
    adjacency: str
    checked_on: int = 0
    raised: int = 0

    def sentence(self, ceiling: float, candidates: int) -> str:
        """Return the recommendation in words, both figures rounded up: less noise would not keep the limit.

        >>> Recommendation(1.96543, 0.049871, True, "one release", "add/remove").sentence(0.05, 64)[:83]
        'Certified: noise multiplier 1.966 for one release. No attack reaches more than 4.99'
        """
        noise, limit = in_digits(self.noise), in_digits(100 * self.limit, 3)
        what = f"naming the right one of {candidates}"
        if self.certified:
            return (
                f"Certified: noise multiplier {noise} for {self.event}. No attack reaches more than "
                f"{limit}% at {what} (ceiling {100 * ceiling:g}%, {self.adjacency})."
            )
        return (
            f"Estimate, not a bound: noise multiplier {noise} for {self.event}. The best attack run "
            f"stays, with 95% confidence, within {limit}% at {what} on {self.checked_on} held-out texts "
            f"(ceiling {100 * ceiling:g}%). Other text and stronger knowledge may do better."
            + (f" It was raised by 5% {self.raised} times, as those texts asked for more." if self.raised else "")
        )


@dataclass(frozen=True)
class RiskFirst:
    """The two recommendations for one ceiling, side by side; `scope` is the release: one update or the training."""

    ceiling: float
    candidates: int
    certified: Recommendation
    measured: Recommendation
    scope: str = UPDATE

    @property
    def ratio(self) -> float:
        """How many times more noise the proof asks for than the measurement."""
        return self.certified.noise / self.measured.noise

    def as_dict(self) -> dict[str, Any]:
        """Return both as plain values, with their sentences."""
        told = {
            kind: {**asdict(found), "sentence": found.sentence(self.ceiling, self.candidates)}
            for kind, found in (("certified", self.certified), ("measured", self.measured))
        }
        common = {"ceiling": self.ceiling, "candidates": self.candidates, "scope": self.scope}
        return {**common, **told, "ratio": self.ratio}


def certified_noise(
    make: Callable[[float], DpEvent],
    *,
    ceiling: float,
    candidates: int,
    event: str,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    tolerance: float = 1e-3,
) -> Recommendation:
    """Return the least noise under which no attack names the right one of n more often than the ceiling.

    Guarantee: the bound holds for any attack on the event, under the adjacency; the noise is within `tolerance` of the
        least whose bound meets the ceiling, on the safe side.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> round(certified_noise(GaussianDpEvent, ceiling=0.05, candidates=64, event="one release").noise, 3)
    1.965
    """
    chance = 1 / whole("candidates", candidates, 2)
    open_probability("ceiling", ceiling)
    if ceiling <= chance:
        raise refuse("ceiling", ceiling, f"> {chance:.4g}", "Guessing blindly already reaches one in the candidates.")

    def excess(noise: float) -> float:
        return most_identified(make(noise), candidates, adjacency) - chance

    noise = least(excess, ceiling - chance, low=1e-3, high=1e6, guess=1.0, tolerance=tolerance)
    return Recommendation(noise, excess(noise) + chance, True, event, str(Adjacency(adjacency)))


def certified_concentration(
    make: Callable[[float], DpEvent],
    *,
    ceiling: float,
    candidates: int,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    tolerance: float = 1e-3,
) -> float:
    """Return the largest concentration, or other parameter that only adds risk, that keeps a ceiling for any attack."""
    chance = 1 / whole("candidates", candidates, 2)
    return most(
        lambda kappa: most_identified(make(kappa), candidates, adjacency) - chance,
        ceiling - chance,
        low=1e-3,
        high=1e9,
        guess=100.0,
        tolerance=tolerance,
    )


def upper_limit(hits: int, attempts: int) -> float:
    """Return the upper end of the exact one-sided 95% interval of a rate."""
    return clopper_pearson(hits, attempts, 0.90)[1]


def measured_noise(
    chosen_on: Attempt,
    checked_on: Attempt,
    *,
    ceiling: float,
    event: str,
    texts: int,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    margin: float = 1.1,
    guess: float = 1.0,
    proven: Recommendation | None = None,
    tolerance: float = 0.02,
) -> Recommendation:
    """Return the least noise whose measured success keeps a ceiling, chosen on some texts and checked on others.

    The noise is solved for on the texts of `chosen_on`: the least at which the upper limit is under the ceiling, and a
    `margin` for other texts. Then the held-out texts of `checked_on` are attacked; where their upper limit is above the
    ceiling the noise is raised in steps of 5%, and the recommendation says how often. It is never more than a `proven`
    recommendation, which no attack beats.

    Guarantee: none, an estimate: a stronger attack, other texts or other knowledge may do better.
    """

    def limit(attempt: Attempt, noise: float) -> float:
        return upper_limit(*attempt(noise))

    noise = margin * least(lambda x: limit(chosen_on, x), ceiling, low=1e-3, high=1e4, guess=guess, tolerance=tolerance)
    raised = 0
    while (proven is None or noise < proven.noise) and (seen := limit(checked_on, noise)) > ceiling:
        noise, raised = noise * _RAISE, raised + 1
    if proven is not None and noise >= proven.noise:
        # The attack comes so close to the bound that a measured limit would ask for more than the proof does.
        noise, seen = proven.noise, min(proven.limit, limit(checked_on, proven.noise))
    return Recommendation(noise, seen, False, event, str(Adjacency(adjacency)), texts, raised)
