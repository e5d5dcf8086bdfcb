"""Selections made with a public seed: where a unit goes depends on its own identity alone.

A permutation of all units would be a function of how many there are: with one patient more or less, other patients
would change sides, and a guarantee for that one patient would not hold. So each unit draws its own number, a keyed hash
of its identity, and the number is compared with a share. The key is public: a selection hides nothing, it is only
independent of everybody else.

The identity of a unit is its name where a column names units. Where each row is its own unit it is the row's position
under zero-out and replace-one (the number of rows is public, and a record that changes stays where it was), and the
row's text under add/remove (positions move when a row is removed; equal texts go together).
"""

from __future__ import annotations

import enum
import hashlib

import numpy as np
import numpy.typing as npt

from discreet.core.errors import invalid, probability, setting, whole
from discreet.core.guarantee import Adjacency
from discreet.data.corpus import Corpus

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
