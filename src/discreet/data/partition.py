"""Ways to divide a corpus: hold-out, sub-sampling, members and non-members, clients.

Each unit's side depends on its own identity alone (`discreet.data.partition`), so sizes vary around the share that was
asked for.

Selections made with a public seed: where a unit goes depends on its own identity alone.

A permutation of all units would be a function of how many there are: with one patient more or less, other patients
would change sides, and a guarantee for that one patient would not hold. So each unit draws its own number, a keyed hash
of its identity, and the number is compared with a share. The key is public: a selection hides nothing, it is only
independent of everybody else.

The identity of a unit is its name where a column names units. Where each row is its own unit it is the row's position
under zero-out and replace-one (the number of rows is public, and a record that changes stays where it was), and the
row's text under add/remove (positions move when a row is removed; equal texts go together).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, invalid, open_probability, positive, probability, setting, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus

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


Places = npt.NDArray[np.uint64]
Chosen = npt.NDArray[np.bool_]
_KEY = b"discreet selection"


class Purpose(enum.StrEnum):
    """What units are selected for; every selection with a public seed has one, and a law that tests it."""

    HOLD_OUT = "hold-out"
    ROWS = "rows"
    SHARE = "share"
    HALVES = "halves"
    EQUAL_CLIENTS = "equal clients"
    CLIENTS = "clients"
    DIRICHLET_CLIENTS = "dirichlet clients"
    CANARIES = "canaries"


EXACT = frozenset({Purpose.ROWS, Purpose.EQUAL_CLIENTS})
"""Selections of an exact number: who is the last one in depends on how many there are. Refused under add/remove."""


def identities(corpus: Corpus, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> list[bytes]:
    """Return, row by row, the identity of the unit that owns it."""
    if corpus.units is not None:
        return [name.encode("utf-8", "surrogatepass") for name in corpus.units]
    if Adjacency(adjacency) is not Adjacency.ADD_REMOVE:
        return [str(row).encode("ascii") for row in range(len(corpus))]
    second = corpus.second or ("",) * len(corpus)
    return [f"{len(one)} {one}{two}".encode() for one, two in zip(corpus.texts, second, strict=True)]


def places(corpus: Corpus, purpose: Purpose, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> Places:
    """Return, row by row, a uniform 64-bit number that is a keyed hash of the identity of the row's unit.

    >>> corpus = Corpus("toy", ("a", "b", "c"), units=("ann", "bob", "ann"))
    >>> ann, bob, again = places(corpus, Purpose.HOLD_OUT).tolist()
    >>> ann == again != bob
    True
    """
    about = f"{purpose.value}\0{int(seed)}".encode()
    key = hashlib.blake2b(about, key=_KEY, digest_size=32).digest()
    known: dict[bytes, int] = {}
    found = np.empty(len(corpus), dtype=np.uint64)
    for row, identity in enumerate(identities(corpus, adjacency)):
        if identity not in known:
            known[identity] = int.from_bytes(hashlib.blake2b(identity, key=key, digest_size=8).digest(), "little")
        found[row] = known[identity]
    return found


def uniform(
    corpus: Corpus, purpose: Purpose, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> npt.NDArray[np.float64]:
    """Return, row by row, the number of the row's unit in [0, 1)."""
    return np.asarray((places(corpus, purpose, seed, adjacency) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def share_of(
    corpus: Corpus, share: float, purpose: Purpose, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> Chosen:
    """Return, row by row, whether its unit is among a share of all units; their number varies around the share.

    A larger share holds all units of a smaller one.
    """
    probability("share", share, "It is the share of units to take.")
    return np.asarray(uniform(corpus, purpose, seed, adjacency) < share)


def exactly(
    corpus: Corpus, count: int, purpose: Purpose, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> Chosen:
    """Return, row by row, whether it is among the `count` rows with the smallest numbers, each row its own unit.

    Under zero-out and replace-one the number of rows is public and this is a function of positions alone.
    """
    whole(purpose.value, count)
    refuse_exact(purpose.value, count, corpus, adjacency)
    chosen = np.zeros(len(corpus), dtype=bool)
    chosen[np.argsort(places(corpus, purpose, seed, adjacency), kind="stable")[:count]] = True
    return chosen


def refuse_exact(
    name: str,
    value: object,
    corpus: Corpus,
    adjacency: Adjacency | str,
    instead: str = f"keep a share of the units ({setting('share')})",
) -> None:
    """Refuse an exact number of rows where it would make one unit's side depend on the others."""
    if Adjacency(adjacency) is Adjacency.ADD_REMOVE:
        remedy = f"With one unit less another would take its place; {instead}."
        raise invalid(name, value, "left out under add/remove", remedy)
    if corpus.units is not None:
        remedy = f"A {corpus.unit_name} with one row more would push others out; {instead}."
        raise invalid(name, value, f"left out where a column names each row's {corpus.unit_name}", remedy)
