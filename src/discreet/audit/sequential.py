"""A many-run audit that stops by itself: it may be looked at after every batch of draws, at no cost in confidence.

For any set S, an (epsilon, delta) mechanism has P[S] - e^epsilon Q[S] - delta <= 0. Whoever bets on the contrary, with
a stake fixed before each draw, wins nothing on average: the capital is a supermartingale, and it ever reaches 1 / (1 -
confidence) with probability at most 1 - confidence (Ville's inequality). Half of the capital bets on each order of
the neighbours. The claims epsilon_1 < epsilon_2 < ... are tested together: one is refuted if it and all smaller ones
are, so no correction is needed.

Paper: Ville 1939; Waudby-Smith and Ramdas 2023, Estimating Means of Bounded Random Variables by Betting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from discreet.audit.many_runs import CONFIDENCE, Draw, Scores, Test, best_test, scoring
from discreet.core.errors import invalid, non_negative, open_probability, positive, probability, whole
from discreet.core.randomness import Rng

_SAFE = 0.95  # share of the largest stake that cannot lose everything


@dataclass(frozen=True)
class Sequential:
    """The result: whether the claim was refuted, the lower bound so far, and after how many draws it stopped."""

    refuted: bool
    epsilon: float
    delta: float
    confidence: float
    draws: int


@dataclass
class _Bet:
    """The capital that bets against one epsilon on one order of the neighbours, with the outcomes so far."""

    epsilon: float
    delta: float
    log_capital: float = 0.0
    counts: Scores = field(default_factory=lambda: np.zeros(4))

    @property
    def payoffs(self) -> Scores:
        """What a stake of 1 wins if the likely neighbour, the unlikely one, both or neither is in the set."""
        factor = math.exp(self.epsilon)
        return np.array([1 - self.delta, -factor - self.delta, 1 - factor - self.delta, -self.delta])

    def stake(self) -> float:
        """Return the stake that would have grown the capital most on the draws before, which it may depend on."""
        payoffs, highest = self.payoffs, _SAFE / (math.exp(self.epsilon) + self.delta)
        if not self.counts.sum() or float(self.counts @ payoffs) <= 0:
            return 0.0
        low, high = 0.0, highest
        for _ in range(40):
            middle = (low + high) / 2
            growth = float(self.counts @ (payoffs / (1 + middle * payoffs)))
            low, high = (middle, high) if growth > 0 else (low, middle)
        return low

    def add(self, counts: Scores) -> None:
        """Bet on a batch, with the stake fixed before it."""
        self.log_capital += float(counts @ np.log1p(self.stake() * self.payoffs))
        self.counts = self.counts + counts


def audit_sequentially(
    draw: Draw,
    *,
    epsilon: float,
    delta: float,
    rng: Rng,
    confidence: float = CONFIDENCE,
    batch: int = 2000,
    most: int = 1_000_000,
    grid: Sequence[float] | None = None,
    watch: Callable[[Sequential], None] = lambda so_far: None,
) -> Sequential:
    """Test a claimed epsilon at delta; stop when it is refuted, or after `most` draws of each neighbour.

    `watch` is called after every batch and may raise to stop at any time: what was reported holds with `confidence`.
    `grid` are the epsilons that can be reported, by default 20 up to the claim. The first batch only chooses the sets;
    each later batch is bet on with sets and stakes from the batches before it.

    Args:
        draw: Takes the neighbour (True or False), a number of draws and an `Rng`, and returns so many outcomes.
        epsilon: The claim.
        delta: Its delta.
        rng: The source of the random numbers.
        confidence: The probability that what is reported holds.
        batch: The number of draws of each neighbour in a batch.
        most: The most draws of each neighbour.
        grid: The epsilons that can be reported; by default 20 up to the claim.
        watch: Called after every batch; it may raise to stop at any time.
    """
    claim = positive("epsilon", epsilon, "It is the claim that is tested.")
    probability("delta", delta)
    needed = -math.log(1 - open_probability("confidence", confidence))
    whole("most", most, 2 * whole("batch", batch, 100))
    epsilons = sorted(non_negative("grid", e) for e in (np.linspace(claim / 20, claim, 20) if grid is None else grid))
    if not epsilons or epsilons[-1] < claim:
        raise invalid("grid", epsilons, f"up to the claim, {claim:g}", "Add the claim to it.")
    bets = [(_Bet(e, delta), _Bet(e, delta)) for e in epsilons]
    refuted = [False] * len(epsilons)
    learning = tuple(np.asarray(draw(side, batch, rng.fork(0, int(side)))) for side in (True, False))
    score = scoring(learning[0], learning[1], delta, 1 - confidence)
    seen: tuple[Scores, Scores] = (score(learning[0]), score(learning[1]))
    result, drawn = Sequential(False, 0.0, delta, confidence, batch), batch
    while drawn < most and not result.refuted:
        tests = [best_test(*seen, delta, 1 - confidence, likely=(side,))[0] for side in (True, False)]
        present, absent = (score(np.asarray(draw(side, batch, rng.fork(drawn, int(side))))) for side in (True, False))
        drawn += batch
        counts = [_counts(test, present, absent) for test in tests]
        for place, pair in enumerate(bets):
            for one, count in zip(pair, counts, strict=True):
                one.add(count)
            if np.logaddexp(pair[0].log_capital, pair[1].log_capital) - math.log(2) >= needed:
                refuted[place] = True
        first = next((place for place, gone in enumerate(refuted) if not gone), len(refuted))
        shown = epsilons[first - 1] if first else 0.0
        result = Sequential(shown >= claim, shown, delta, confidence, drawn)
        watch(result)
        if len(seen[0]) < 50 * batch:  # more draws hardly change the sets
            seen = np.concatenate((seen[0], present)), np.concatenate((seen[1], absent))
    return result


def _counts(test: Test, present: Scores, absent: Scores) -> Scores:
    """Return how often only the likely neighbour, only the unlikely one, both or neither was in the set."""
    likely, unlikely = test.inside(present, absent)
    sets = (likely & ~unlikely, ~likely & unlikely, likely & unlikely, ~likely & ~unlikely)
    return np.array([one.sum() for one in sets], dtype=np.float64)
