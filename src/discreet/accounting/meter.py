"""The cost so far, step by step: one step is taken apart once, then any number of steps is asked for cheaply."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from discreet.accounting.curve import Array
from discreet.accounting.events import DpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon
from discreet.accounting.losses import powers_of
from discreet.accounting.parts import Parts, take_apart
from discreet.accounting.powers import Powers
from discreet.accounting.pure import pure_epsilon
from discreet.accounting.renyi import ORDERS, renyi_divergences
from discreet.core.checks import open_probability, whole
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency

_MANY = 1_000_000  # steps for which the grid is made to reach far enough


@dataclass(frozen=True)
class Meter:
    """Epsilon after any number of equal steps, for a progress line or a solver.

    >>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent
    >>> meter = Meter(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0)), delta=1e-5)
    >>> [round(meter.epsilon(steps), 3) for steps in (0, 1, 1000, 10_000)]
    [0.0, 0.199, 1.829, 6.19]
    """

    step: DpEvent
    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    accountant: str = "pld"

    def __post_init__(self) -> None:
        """Refuse a delta of 0 or 1."""
        open_probability("delta", self.delta)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    def epsilon(self, steps: int) -> float:
        """Return epsilon after this many steps, an upper bound wherever `discreet.accounting.interpret.epsilon` is."""
        if whole("steps", steps, 0) == 0:
            return 0.0
        if steps == 1 or not self._parts.uses or self._parts.reasons or self.accountant == "gdp":
            return epsilon(SelfComposedDpEvent(self.step, steps), self.delta, self.adjacency, self.accountant)
        most = steps * self._pure
        if self.accountant == "rdp":
            return min(most, float(compute_epsilon(ORDERS, steps * self._divergences, self.delta)[0]))
        other = self._renyi(steps)
        try:
            one, count = self._powers
        except OverflowError:
            return min(most, other)
        return min(most, other, one.epsilon(count * steps, self.delta))

    def _renyi(self, steps: int) -> float:
        """Return epsilon by Renyi divergences, infinite where they do not cover the step."""
        try:
            return float(compute_epsilon(ORDERS, steps * self._divergences, self.delta)[0])
        except UnsupportedError:
            return math.inf

    @cached_property
    def _parts(self) -> Parts:
        return take_apart(self.step, self.adjacency)

    @cached_property
    def _pure(self) -> float:
        return pure_epsilon(self._parts, self.adjacency)

    @cached_property
    def _divergences(self) -> Array:
        return renyi_divergences(self._parts, self.adjacency)

    @cached_property
    def _powers(self) -> tuple[Powers, int]:
        return powers_of(self._parts, self.adjacency, self.delta, _MANY)
