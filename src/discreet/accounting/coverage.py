"""Which events have a proven cost under which adjacency: one rule book, asked before any accountant.

Two kinds of release differ in what the receiver sees. Noise on a *sum* shows one value whoever took part, so a record
may be absent. A release *per record* (von Mises–Fisher, PrivUnit, randomized response, a word, anything inside
`VisibleVectorsDpEvent`) is seen to be missing when its record is: under add/remove nothing is proven for it, and no
sampling of a sum hides it.
"""

from __future__ import annotations

from discreet.accounting.events import (
    ClippedSumDpEvent,
    DiscreteGaussianDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    MetricDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
)
from discreet.accounting.tree import SAMPLED, describe, draws_all, leaves
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency

LARGEST_GRID = 4_000_000
# noise on a sum: a null record adds nothing, exactly like one that was not drawn
_SUMS = (
    GaussianDpEvent,
    ClippedSumDpEvent,
    LaplaceDpEvent,
    DiscreteLaplaceDpEvent,
    DiscreteGaussianDpEvent,
    ZCDpEvent,
)
_PER_RECORD = (VonMisesFisherDpEvent, RandomizedResponseDpEvent, LocalDpEvent, MetricDpEvent)
_MISSED = "The release of a record that is absent would be missed: use replace-one, or zero-out where it is covered."


def refuse_pair(event: DpEvent, adjacency: Adjacency, accountant: str, remedy: str) -> UnsupportedError:
    """Return the refusal of an event under an adjacency by an accountant."""
    return UnsupportedError(
        f"Expected an event that the {accountant} accountant covers under {adjacency.value}, "
        f"found {describe(event)}. {remedy}"
    )


def check_covered(event: DpEvent, adjacency: Adjacency) -> None:
    """Refuse by name whatever in a simplified event has no proof under an adjacency.

    What passes is covered by the pld accountant; the others cover less and refuse the rest themselves.
    """
    for use, _ in leaves(event):
        remedy = _open(use, adjacency)
        if remedy:
            raise refuse_pair(use, adjacency, "pld", remedy)
        if isinstance(use, SAMPLED):
            check_covered(use.event, adjacency)


def _open(use: DpEvent, adjacency: Adjacency) -> str | None:
    """Return what is to be done instead where a use, taken without what is inside it, has no proof, else None."""
    if isinstance(use, PoissonSampledDpEvent):
        return _poisson(use.event, adjacency)
    if isinstance(use, VisibleVectorsDpEvent | SampledWithoutReplacementDpEvent):
        return _fixed(use, adjacency)
    if isinstance(use, MetricDpEvent):
        return None if adjacency is Adjacency.REPLACE_ONE else "A distance is between two records: use replace-one."
    if isinstance(use, _PER_RECORD):
        return _MISSED if adjacency is Adjacency.ADD_REMOVE else None
    if isinstance(use, DiscreteGaussianDpEvent) and 24 * use.sigma + 2 * use.sensitivity > LARGEST_GRID:
        return "Its grid is too fine; use ZCDpEvent(rho=sensitivity**2 / (2 * sigma**2))."
    if isinstance(use, (*_SUMS, EpsilonDeltaDpEvent)):
        return None
    return "No proof is at hand; account for it as EpsilonDeltaDpEvent."


def _poisson(inner: DpEvent, adjacency: Adjacency) -> str | None:
    if adjacency is Adjacency.REPLACE_ONE and isinstance(inner, ClippedSumDpEvent):
        return None
    if isinstance(inner, VisibleVectorsDpEvent) and draws_all(inner):
        if adjacency is Adjacency.REPLACE_ONE:
            return None
        return "Visible vectors drawn independently are covered by replace-one."
    if _holds(inner, VisibleVectorsDpEvent):
        return "Visible vectors inside another draw are covered alone, over all records and by replace-one."
    if _holds(inner, *_PER_RECORD):
        return "Each release is visible, and no sum hides it: use VisibleVectorsDpEvent."
    if adjacency is Adjacency.REPLACE_ONE:
        return (
            "It does not say what a record that is not drawn leaves behind: use ClippedSumDpEvent for a sum, "
            "VisibleVectorsDpEvent for vectors seen one by one."
        )
    if adjacency is Adjacency.ZERO_OUT and not all(isinstance(part, _SUMS) for part, _ in leaves(inner)):
        return "Its null record is not the same as a record that is not drawn."
    return None


def _fixed(use: DpEvent, adjacency: Adjacency) -> str | None:
    seen = isinstance(use, VisibleVectorsDpEvent)
    if adjacency is Adjacency.REPLACE_ONE:
        return None
    if adjacency is Adjacency.ADD_REMOVE:
        if seen:
            return "A vector that is missing is seen: use replace-one, or zero-out where it is covered."
        return "A fixed number drawn has no meaning when the corpus may have one record less. Use replace-one."
    if not seen and _holds(use.event, *_PER_RECORD):
        return "Each release is visible, and no sum hides it: use VisibleVectorsDpEvent."
    known = (ClippedSumDpEvent, VonMisesFisherDpEvent) if seen else (ClippedSumDpEvent,)
    if draws_all(use) or all(isinstance(part, known) for part, _ in leaves(use.event)):
        return None
    return (
        "Draws that miss the record exchange it for a real one, whose distance is not known here. Use replace-one, or "
        "ClippedSumDpEvent for vectors of bounded norm."
    )


def _holds(event: DpEvent, *kinds: type[DpEvent]) -> bool:
    return any(
        isinstance(part, kinds) or (isinstance(part, SAMPLED) and _holds(part.event, *kinds))
        for part, _ in leaves(event)
    )
