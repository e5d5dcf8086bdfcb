"""State the cost of a release under another adjacency than its own, where a bound is known.

From the strongest statement to the weakest: add/remove, zero-out, replace-one. A release can be restated downwards:

- add/remove as zero-out: an empty record adds nothing, so emptying a record is the same as removing it;
- add/remove or zero-out as replace-one: exchanging a record is removing (or emptying) it and then adding the other one,
  which are two steps. Noise on a sum of clipped vectors has its own analysis under replace-one. Anything else is
  bounded by group privacy: (epsilon, delta) for one step is (2 epsilon, (1 + e^epsilon) delta) for two.

Upwards nothing is known in general: a release under replace-one may show how many records there are, or how long they
are, and a release under zero-out may show the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from discreet.accounting.events import (
    ClippedSumDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    NoGuaranteeDpEvent,
    VonMisesFisherDpEvent,
)
from discreet.accounting.interpret import epsilon, pure_epsilon
from discreet.accounting.parts import check_covered, decompose, inner_events, leaves, simplify
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency

# From the strongest statement to the weakest.
_ORDER = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
_MOST_ROUNDS = 50
_LARGEST_EPSILON = 300.0  # e^epsilon times a delta must be representable


def weakest(adjacencies: Iterable[Adjacency]) -> Adjacency:
    """Return the adjacency under which releases under all of these can be stated together.

    >>> weakest([Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE]).value
    'zero-out'
    """
    return max(adjacencies, key=_ORDER.index)


def can_restate(adjacency: Adjacency, to: Adjacency) -> bool:
    """Return whether a release under one adjacency has a bound under another."""
    return _ORDER.index(adjacency) <= _ORDER.index(to)


def restated(event: DpEvent, adjacency: Adjacency, to: Adjacency, delta: float) -> DpEvent:
    """Return an event that costs under `to` at least what `event`, whose cost is known under `adjacency`, costs there.

    Where only group privacy gives a bound, it takes at most `delta` of the delta of the whole.

    >>> restated(ClippedSumDpEvent(2.0), Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE, 1e-6)
    ClippedSumDpEvent(noise_multiplier=2.0, occurrences=1)
    """
    if adjacency is to:
        return event
    if not can_restate(adjacency, to):
        raise UnsupportedError(
            f"Expected a release under {to.value} or a stronger adjacency, got {adjacency.value}. No bound is known."
        )
    if to is Adjacency.ZERO_OUT:
        return event if _is_covered(event, to) else _steps(event, adjacency, 1, delta)
    if _has_own_distance(event) and _is_covered(event, to):
        return event
    return _steps(event, adjacency, 2, delta)


def _is_covered(event: DpEvent, adjacency: Adjacency) -> bool:
    try:
        check_covered(simplify(event), adjacency)
    except UnsupportedError:
        return False
    return True


def _has_own_distance(event: DpEvent) -> bool:
    """Return whether all noise in an event is relative to a bound on each vector, not to a given sensitivity."""
    for use, _ in leaves(simplify(event)):
        inner = inner_events(use)
        if inner and not all(map(_has_own_distance, inner)):
            return False
        if not inner and not isinstance(use, ClippedSumDpEvent | VonMisesFisherDpEvent):
            return False
    return True


def _steps(event: DpEvent, adjacency: Adjacency, steps: int, delta: float) -> DpEvent:
    """Return the cost of one or two steps under an adjacency, by group privacy, with at most this delta."""
    parts = decompose(event, adjacency)
    if parts.reasons:
        return NoGuaranteeDpEvent("; ".join(parts.reasons))
    pure = pure_epsilon(parts, adjacency)
    one, bound = delta, math.inf
    for _ in range(_MOST_ROUNDS):
        # A smaller delta of one step has a larger epsilon, which makes the delta of two steps larger again.
        bound = epsilon(event, one, adjacency)
        factor = 1.0 if steps == 1 or bound > _LARGEST_EPSILON else 1.0 + math.exp(bound)
        if bound > _LARGEST_EPSILON or factor * one <= delta:
            break
        one = delta / factor / 1.01
    else:
        bound = math.inf
    if bound <= _LARGEST_EPSILON and bound < pure:
        return EpsilonDeltaDpEvent(steps * bound, delta)
    if math.isfinite(pure):
        return EpsilonDeltaDpEvent(steps * pure, 0.0)
    return NoGuaranteeDpEvent(f"no bound is known for a release under {adjacency.value} with so large an epsilon")
