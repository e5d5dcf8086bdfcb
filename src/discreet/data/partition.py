"""Ways to divide a corpus: hold-out, members and non-members, clients."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from discreet.core.checks import open_probability, positive, refuse, whole
from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus

Indices = npt.NDArray[np.int64]


def hold_out(corpus: Corpus, fraction: float, rng: Rng) -> Corpus:
    """Return the corpus with a fraction of its training rows moved to the split "validation".

    Whole units are moved if the corpus names units, so that no patient stands on both sides; otherwise rows are drawn
    class by class, so that each class keeps its share, or at random if there are no classes.
    """
    open_probability("fraction", fraction, "It is the share of rows to hold out.")
    rows = np.array([i for i, split in enumerate(corpus.splits) if split == "train"], dtype=np.int64)
    if corpus.units is not None:
        moved, how = _some_units(corpus, rows, fraction, rng), f"whole {corpus.unit_name} units"
    elif corpus.labels is not None:
        moved, how = _some_of_each_class(np.array(corpus.labels)[rows], rows, fraction, rng), "each class by its share"
    else:
        moved, how = rows[rng.permutation(len(rows))[: _share(len(rows), fraction)]], "at random"
    if len(moved) == 0:
        raise DataError(
            f"Expected enough rows in corpus {corpus.name!r} to hold out {fraction:.0%}, found {len(rows)}. "
            "Add rows, or give a validation file."
        )
    splits = list(corpus.splits)
    for row in moved.tolist():
        splits[row] = "validation"
    remark = f"{len(moved)} of {len(rows)} rows were held out as validation ({how}), as the source has no such split"
    return dataclasses.replace(corpus, splits=tuple(splits), remarks=(*corpus.remarks, remark))


def _share(count: int, fraction: float) -> int:
    """Return how many of `count` to take: the nearest whole number, at least one, and never all."""
    return min(max(round(count * fraction), 1), count - 1) if count > 1 else 0


def _some_units(corpus: Corpus, rows: Indices, fraction: float, rng: Rng) -> Indices:
    units = np.unique(corpus.unit_index[rows])
    taken = units[rng.permutation(len(units))[: _share(len(units), fraction)]]
    return np.asarray(rows[np.isin(corpus.unit_index[rows], taken)], dtype=np.int64)


def _some_of_each_class(labels: npt.NDArray[np.int64], rows: Indices, fraction: float, rng: Rng) -> Indices:
    order = rng.permutation(len(rows))
    moved: list[int] = []
    for label in np.unique(labels):
        of_class = [int(i) for i in order if labels[i] == label]
        moved += of_class[: min(round(len(of_class) * fraction), len(of_class) - 1)]
    if not moved:
        # Every class is small: one row of the largest, if it can spare one.
        values, counts = np.unique(labels, return_counts=True)
        if len(counts) and counts.max() > 1:
            moved = [int(next(i for i in order if labels[i] == values[counts.argmax()]))]
    return rows[np.sort(np.array(moved, dtype=np.int64))]


def halves(corpus: Corpus, rng: Rng) -> tuple[Corpus, Corpus]:
    """Return members and non-members: two random halves, by units, of a corpus.

    With an odd number of units one is left out, so that guessing is right exactly half the time.
    """
    half = corpus.unit_count // 2
    if half == 0:
        raise DataError(
            f"Expected at least 2 units in corpus {corpus.name!r}, found {corpus.unit_count}. "
            "Members and non-members need one each."
        )
    order = rng.permutation(corpus.unit_count)
    members, others = np.sort(order[:half]), np.sort(order[half : 2 * half])
    return (
        corpus.take(np.sort(corpus.rows_of(members))).renamed(f"{corpus.name} (members)"),
        corpus.take(np.sort(corpus.rows_of(others))).renamed(f"{corpus.name} (non-members)"),
    )


def equal_clients(corpus: Corpus, clients: int, rng: Rng) -> tuple[Indices, ...]:
    """Return, for each client, the rows it holds: random rows, as many for each as for any other, give or take one."""
    _check_clients(clients, len(corpus), "rows")
    return tuple(np.sort(part) for part in np.array_split(rng.permutation(len(corpus)), clients))


def clients_by_unit(corpus: Corpus, clients: int, rng: Rng) -> tuple[Indices, ...]:
    """Return, for each client, the rows it holds: whole units at random, so that no person is at two clients."""
    _check_clients(clients, corpus.unit_count, "units")
    order = rng.permutation(corpus.unit_count)
    return tuple(np.sort(corpus.rows_of(part)) for part in np.array_split(order, clients))


def dirichlet_clients(
    corpus: Corpus, clients: int, concentration: float, rng: Rng, least: int = 1
) -> tuple[Indices, ...]:
    """Return, for each client, the rows it holds, its mix of classes drawn from a Dirichlet distribution.

    A small concentration gives clients with few classes; a large one makes them alike. Rows are moved from the largest
    clients to those with fewer than `least`, so that none is empty.

    Paper: Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification.
    Differs: each class is spread over the clients by its own Dirichlet draw, so every row is used exactly once.
    """
    if corpus.labels is None:
        raise DataError(f"Expected classes in corpus {corpus.name!r}, found {corpus.task}. Use equal_clients.")
    positive("concentration", concentration, "Small is uneven, large is even; 0.5 is common.")
    whole("least", least, 0)
    _check_clients(clients, len(corpus) // max(least, 1), f"groups of {least} rows")
    source = rng.numpy("dirichlet_clients")
    labels = np.array(corpus.labels)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        rows = source.permutation(np.flatnonzero(labels == label))
        shares = source.dirichlet(np.full(clients, concentration))
        # A tiny concentration can underflow to no shares at all: then one client has the class.
        shares = np.nan_to_num(shares) if shares.sum() > 0 else np.eye(clients)[source.integers(clients)]
        cuts = np.round(np.cumsum(shares / shares.sum())[:-1] * len(rows)).astype(np.int64)
        for client, piece in enumerate(np.split(rows, cuts)):
            parts[client] += piece.tolist()
    for poor in parts:
        while len(poor) < least:
            rich = max(parts, key=len)
            poor.append(rich.pop(int(source.integers(len(rich)))))
    return tuple(np.sort(np.array(part, dtype=np.int64)) for part in parts)


def _check_clients(clients: int, available: int, what: str) -> None:
    whole("clients", clients)
    if clients > available:
        raise refuse("clients", clients, f"<= {available}, the number of {what}", "Take fewer clients.")
