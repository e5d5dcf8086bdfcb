"""Ways to divide a corpus: hold-out, sub-sampling, members and non-members, clients.

Each unit's side depends on its own identity alone (`discreet.data.selection`), so sizes vary around the share that was
asked for.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, invalid, open_probability, positive, probability, setting, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.selection import Purpose, exactly, places, refuse_exact, share_of, uniform

Indices = npt.NDArray[np.int64]
_SHOWN = 3  # classes that an error names
_LONGEST = 30  # letters of a class that an error names


def hold_out(
    corpus: Corpus,
    fraction: float,
    *,
    seed: int = 0,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    every_class: bool = True,
) -> Corpus:
    """Return the corpus with about a fraction of its training units moved to the split "validation".

    Each unit is moved with this probability, by a keyed hash of its own identity: whoever else is in the corpus changes
    nothing. Whole units are moved, so that no patient stands on both sides. A side without rows is refused, and, with
    `every_class`, a side that lacks a class of the other.
    """
    open_probability("fraction", fraction, "It is the share of units to hold out.")
    train = np.array([split == "train" for split in corpus.splits], dtype=bool)
    moved = train & share_of(corpus, fraction, Purpose.HOLD_OUT, seed, adjacency)
    count, held = int(train.sum()), int(moved.sum())
    if held in {0, count}:
        side = "validation" if held == 0 else "training"
        raise DataError(
            f"Expected {side} rows after holding out {fraction:.0%} of the {count} rows of corpus {corpus.name!r}, "
            f"found none. Each unit is held out by its own draw; {_REMEDY}"
        )
    splits = tuple("validation" if gone else split for gone, split in zip(moved.tolist(), corpus.splits, strict=True))
    what = f"{corpus.unit_name} units" if corpus.units is not None else "rows"
    remark = (
        f"{held} of {count} rows were held out as validation (each of the {what} by a draw of its own), as the source "
        "has no such split"
    )
    divided = dataclasses.replace(corpus, splits=splits, remarks=(*corpus.remarks, remark))
    if every_class:
        _check_classes(divided)
    return divided


_REMEDY = f"give a validation file, hold out another share ({setting('validation', 0.2)}), or add rows."


def _check_classes(corpus: Corpus) -> None:
    """Refuse a hold-out in which one side lacks a class that the other has."""
    if corpus.labels is None:
        return
    sides: dict[str, set[int]] = {"train": set(), "validation": set()}
    for label, split in zip(corpus.labels, corpus.splits, strict=True):
        if split in sides:
            sides[split].add(label)
    for side, other in (("train", "validation"), ("validation", "train")):
        missing = sorted(sides[other] - sides[side])
        if missing:
            # A long label is perhaps a text from a column named by mistake, and texts are private.
            names = [repr(name) for name in (corpus.label_names[label] for label in missing) if len(name) <= _LONGEST]
            shown = f" ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})" if names else ""
            raise DataError(
                f"Expected every class among the {side} rows of corpus {corpus.name!r}, but {len(missing)} of "
                f"{len(corpus.label_names)} classes{shown} stand only among the {other} rows. Each unit is held out by "
                f"its own draw, whatever its class; merge or remove rare classes, {_REMEDY}"
            )


def keep_share(
    corpus: Corpus, share: float, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> Corpus:
    """Return the corpus with about a share of its training units, each kept by a draw of its own."""
    if not probability("share", share, "It is the share of the training units to keep.") > 0:
        raise invalid("share", share, "in (0, 1]", "It is the share of the training units to keep.")
    if share == 1:
        return corpus
    return _fewer(corpus, share_of(corpus, share, Purpose.SHARE, seed, adjacency), f"share {share:g} and seed {seed}")


def keep_rows(corpus: Corpus, rows: int, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> Corpus:
    """Return the corpus with exactly `rows` of its training rows, or all if there are fewer.

    Refused under add/remove and where a column names units: an exact number cannot be kept without moving others.
    """
    whole("rows", rows, remedy="It is the number of rows to keep.")
    refuse_exact("rows", rows, corpus, adjacency)
    train = np.flatnonzero([split == "train" for split in corpus.splits])
    if rows >= len(train):
        return corpus
    kept = np.zeros(len(corpus), dtype=bool)
    kept[train] = exactly(corpus.take(train), rows, Purpose.ROWS, seed, adjacency)
    return _fewer(corpus, kept, f"seed {seed}")


def _fewer(corpus: Corpus, kept: npt.NDArray[np.bool_], how: str) -> Corpus:
    """Return the corpus with these of its training rows, in order."""
    train = np.array([split == "train" for split in corpus.splits], dtype=bool)
    found, count = int((kept & train).sum()), int(train.sum())
    if found == 0:
        raise DataError(
            f"Expected at least one of the {count} training rows of corpus {corpus.name!r} to be kept, found none. "
            "Each unit is kept by its own draw; take a larger share, or add rows."
        )
    remark = f"{found} of {count} training rows were drawn with {how}"
    return corpus.take(np.flatnonzero(kept | ~train)).renamed(corpus.name, remark)


def halves(corpus: Corpus, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> tuple[Corpus, Corpus]:
    """Return members and non-members: each unit is in one or the other by a fair draw of its own."""
    member = share_of(corpus, 0.5, Purpose.HALVES, seed, adjacency)
    if member.all() or not member.any():
        raise DataError(
            f"Expected members and non-members in corpus {corpus.name!r}, found one side empty with "
            f"{corpus.unit_count} units. Each unit is drawn by itself; add units, or take another seed."
        )
    return (
        corpus.take(np.flatnonzero(member)).renamed(f"{corpus.name} (members)"),
        corpus.take(np.flatnonzero(~member)).renamed(f"{corpus.name} (non-members)"),
    )


def equal_clients(
    corpus: Corpus, clients: int, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> tuple[Indices, ...]:
    """Return, for each client, the rows it holds: random rows, as many for each as for any other, give or take one.

    Refused under add/remove and where a column names units: use `clients_by_unit`.
    """
    _check_clients(clients, len(corpus), "rows")
    refuse_exact("equal clients", clients, corpus, adjacency, "use clients_by_unit")
    order = np.argsort(places(corpus, Purpose.EQUAL_CLIENTS, seed, adjacency), kind="stable")
    return tuple(np.sort(part).astype(np.int64) for part in np.array_split(order, clients))


def clients_by_unit(
    corpus: Corpus, clients: int, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> tuple[Indices, ...]:
    """Return, for each client, the rows it holds: whole units, each at a client by a draw of its own.

    No person is at two clients; a client without rows is refused.
    """
    _check_clients(clients, corpus.unit_count, "units")
    at = (uniform(corpus, Purpose.CLIENTS, seed, adjacency) * clients).astype(np.int64)
    return _by_client(corpus, at, clients, 1, "Take fewer clients, another seed, or more units.")


def dirichlet_clients(
    corpus: Corpus,
    clients: int,
    concentration: float,
    *,
    seed: int = 0,
    least: int = 1,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
) -> tuple[Indices, ...]:
    """Return, for each client, the rows it holds, its mix of classes drawn from a Dirichlet distribution.

    A small concentration gives clients with few classes; a large one makes them alike. A client with fewer than `least`
    rows is refused.

    Paper: Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification.
    Differs: each class is spread over the clients by its own Dirichlet draw, and each row goes by a draw of its own, so
    every row is used exactly once and none depends on the others.
    """
    if corpus.labels is None:
        raise DataError(f"Expected classes in corpus {corpus.name!r}, found {corpus.task}. Use equal_clients.")
    positive("concentration", concentration, "Small is uneven, large is even; 0.5 is common.")
    whole("least", least, 0)
    _check_clients(clients, len(corpus) // max(least, 1), f"groups of {least} rows")
    drawn = uniform(corpus, Purpose.DIRICHLET_CLIENTS, seed, adjacency)
    labels = np.array(corpus.labels)
    at = np.zeros(len(corpus), dtype=np.int64)
    for label in range(len(corpus.label_names)):
        source = Rng(seed).fork("dirichlet clients", label).numpy("dirichlet_clients")
        shares = source.dirichlet(np.full(clients, concentration))
        # A tiny concentration can underflow to no shares at all: then one client has the class.
        shares = np.nan_to_num(shares) if shares.sum() > 0 else np.eye(clients)[source.integers(clients)]
        cuts = np.cumsum(shares / shares.sum())[:-1]
        rows = labels == label
        at[rows] = np.searchsorted(cuts, drawn[rows], side="right")
    remedy = "Take fewer clients, a larger concentration, another seed, or more rows."
    return _by_client(corpus, at, clients, least, remedy)


def _by_client(corpus: Corpus, at: Indices, clients: int, least: int, remedy: str) -> tuple[Indices, ...]:
    sizes = np.bincount(at, minlength=clients)
    if sizes.min() < least:
        raise DataError(
            f"Expected at least {least} rows of corpus {corpus.name!r} at each of {clients} clients, found "
            f"{int(sizes.min())} at one. Each unit goes to a client by its own draw. {remedy}"
        )
    return tuple(np.flatnonzero(at == client).astype(np.int64) for client in range(clients))


def _check_clients(clients: int, available: int, what: str) -> None:
    whole("clients", clients)
    if clients > available:
        raise invalid("clients", clients, f"<= {available}, the number of {what}", "Take fewer clients.")
