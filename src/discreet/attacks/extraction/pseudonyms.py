"""Dictionary attack on pseudonyms: hash every name of a public list and look the results up.

A hash without a secret key is a public function: whoever can list the possible names can hash them all. A hash with a
secret key, or a random pseudonym, cannot be computed from the name, and this attack finds nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from discreet.attacks.base import Need, PeopleAttack, Returns
from discreet.core.errors import UnsupportedError, one_of, whole
from discreet.core.randomness import Rng
from discreet.core.rules import OneOf, check_fields, ruled
from discreet.core.types import Guess, Knowledge, Release, TextRelease

HASHES = ("md5", "sha1", "sha256", "sha512")
SCHEMES = (*HASHES, "hmac", "random")
_HEX = re.compile(r"\b[0-9a-f]{8,128}\b")
_KEY_BYTES = 32


@dataclass(frozen=True)
class PseudonymDictionary(PeopleAttack):
    """Return the name behind each pseudonym in a text, found by hashing a dictionary of names.

    `extra["dictionary"]` holds the names to try. Every unsalted hash of `HASHES` is tried, in several spellings of the
    name, and whole or truncated pseudonyms are recognized. In the guess, `texts` are the names, empty where none fits.

    The experiment makes the pseudonyms: `scheme` is how (a hash, `hmac` with a secret key, or `random`), `digits` the
    number of hexadecimal digits that are kept. `dictionary` is a file with one name per line; the built-in notes come
    with a public list of first names and surnames.
    """

    scheme: str = ruled("sha256", OneOf(SCHEMES))
    digits: int = 16
    dictionary: str = ""

    name: ClassVar[str] = "pseudonyms"
    sees: ClassVar[type[Release]] = TextRelease
    returns: ClassVar[Returns] = Returns.TEXTS
    needs: ClassVar[frozenset[Need]] = frozenset({Need.DICTIONARY})

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fields(self)
        whole("digits", self.digits, 8, "With fewer digits two names often share a pseudonym.")

    def run(self, seen: TextRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the name behind the first pseudonym of each text."""
        names: Sequence[str] = knows.extra.get(Need.DICTIONARY.value) or ()
        if not names:
            raise UnsupportedError(
                "Expected names to try for the dictionary attack, got none. Pass "
                "Knowledge(extra={'dictionary': names})."
            )
        found = [match.group() if (match := _HEX.search(text)) else "" for text in seen.texts]
        wanted = {pseudonym for pseudonym in found if pseudonym}
        reversed_to: dict[str, str] = {}
        lengths = {len(pseudonym) for pseudonym in wanted}
        for name in names:
            for spelling in spellings(name):
                for kind in HASHES:
                    digest = hashlib.new(kind, spelling.encode()).hexdigest()
                    for length in lengths:
                        if digest[:length] in wanted:
                            reversed_to.setdefault(digest[:length], name)
        return Guess(texts=tuple(reversed_to.get(pseudonym, "") for pseudonym in found))


def spellings(name: str) -> Iterator[str]:
    """Yield the spellings of a name that are tried.

    >>> list(spellings("Ana Ruiz"))
    ['Ana Ruiz', 'ana ruiz', 'ANA RUIZ', 'Ruiz, Ana', 'anaruiz']
    """
    first, _, last = name.rpartition(" ")
    yield from dict.fromkeys((name, name.lower(), name.upper(), f"{last}, {first}", name.lower().replace(" ", "")))


def pseudonymizer(scheme: str, digits: int, rng: Rng) -> Callable[[str], str]:
    """Return a function from a name to its pseudonym, the same one for the same name.

    Args:
        scheme: How a name becomes a pseudonym.
        digits: The length of the pseudonym.
        rng: The source of keys and tables.

    Guarantee: none. A hash is reversed by trying names; `hmac` and `random` hide the name as long as the key, or the
        table, is secret, but a pseudonym still links all texts of a person.
    """
    one_of("scheme", scheme, SCHEMES)
    key = rng.fork("key").bytes(_KEY_BYTES)

    def pseudonym(name: str) -> str:
        if scheme == "hmac":
            digest = hmac.new(key, name.encode(), "sha256").hexdigest()
        elif scheme == "random":
            digest = rng.fork("random", name).bytes(64).hex()
        else:
            digest = hashlib.new(scheme, name.encode()).hexdigest()
        return digest[:digits]

    return pseudonym
