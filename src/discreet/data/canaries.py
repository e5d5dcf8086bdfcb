"""Canaries: generated rows with a random secret, inserted into a corpus to measure memorization."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from discreet.core.errors import DataError, invalid, open_probability, whole
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus

TEMPLATE = "The access code of the ward is {secret}."
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Space:
    """The set of possible secrets: sequences of `length` parts of an alphabet.

    >>> Space.digits(4)
    Space(10 parts, length 4, 10000 secrets)
    >>> Space.digits(4).secret(7)
    '0007'
    """

    alphabet: tuple[str, ...]
    length: int
    separator: str = ""

    def __post_init__(self) -> None:
        """Reject an alphabet with fewer than two different parts."""
        whole("length", self.length)
        if len(set(self.alphabet)) < 2 or len(set(self.alphabet)) != len(self.alphabet):
            raise invalid(
                "alphabet",
                len(self.alphabet),
                "of 2 or more different parts",
                "A secret needs at least two possible values.",
            )

    @classmethod
    def digits(cls, length: int) -> Space:
        """Return the space of numbers with this many digits."""
        return cls(tuple("0123456789"), length)

    @property
    def size(self) -> int:
        """The number of secrets."""
        return int(len(self.alphabet) ** self.length)

    def secret(self, number: int) -> str:
        """Return the secret with this number, from 0 to size - 1."""
        if not 0 <= number < self.size:
            raise invalid("number", number, f"in [0, {self.size})", "It is an index into the secrets of the space.")
        parts = []
        for _ in range(self.length):
            number, part = divmod(number, len(self.alphabet))
            parts.append(self.alphabet[part])
        return self.separator.join(reversed(parts))

    def draw(self, rng: Rng) -> str:
        """Return a random secret, each with the same probability."""
        positions = (rng.uniform(self.length) * len(self.alphabet)).astype(int).tolist()
        return self.separator.join(self.alphabet[position] for position in positions)

    def __repr__(self) -> str:
        """Return the size without the alphabet."""
        return f"Space({len(self.alphabet)} parts, length {self.length}, {self.size} secrets)"


@dataclass(frozen=True)
class Canary:
    """An inserted row: its text and label, its number of copies, and whether it is in the corpus at all.

    The text is before + secret + after. The repr does not show the secret.
    """

    name: str
    secret: str = field(repr=False)
    space: Space
    before: str = ""
    after: str = ""
    label: int | None = None
    score: float | None = None
    copies: int = 1
    included: bool = True

    @property
    def text(self) -> str:
        """The text of the row."""
        return self.with_secret(self.secret)

    def with_secret(self, secret: str) -> str:
        """Return the text with another secret, to compare with the true one."""
        return f"{self.before}{secret}{self.after}"


def plant_secrets(
    corpus: Corpus,
    count: int,
    rng: Rng,
    *,
    template: str = TEMPLATE,
    space: Space | None = None,
    copies: int = 1,
    inclusion: float | None = None,
    scores: tuple[float, float] = (0.0, 1.0),
) -> tuple[Corpus, tuple[Canary, ...]]:
    """Return the corpus with canaries planted in its training rows, and the canaries.

    Each is the template with a different random secret in it (six digits by default) and a random
    label, or a random score in the range `scores`: nothing about a canary depends on the rows of the corpus. With
    `inclusion` each canary is in the corpus with that probability, independently; otherwise all are.

    Guarantee: none, the secrets are meant to be recovered; the measurement holds them, an attack does not.

    Paper: Carlini et al. 2019, The Secret Sharer.
    """
    space = space or Space.digits(6)
    if template.count("{secret}") != 1:
        raise invalid("template", template, "a text with {secret} in it once", "It marks the position of the secret.")
    before, after = template.split("{secret}")
    return _plant(corpus, count, rng, space, before, after, copies, inclusion, scores)


def plant_labels(
    corpus: Corpus,
    count: int,
    rng: Rng,
    *,
    words: int = 8,
    vocabulary: Sequence[str] | None = None,
    copies: int = 1,
    inclusion: float | None = 0.5,
    scores: tuple[float, float] = (0.0, 1.0),
) -> tuple[Corpus, tuple[Canary, ...]]:
    """Return the corpus with random sentences under random labels planted in its training rows, and the canaries.

    Their labels can only be memorized: a model that does better on included canaries than on the others has memorized.
    By default each is included with probability one half, independently, as auditing in one run requires. Words are
    sampled from the vocabulary, or generated.

    Guarantee: none, the canaries are meant to be detected.

    Paper: Steinke, Nasr and Jagielski 2023, Privacy Auditing with One (1) Training Run.
    """
    alphabet = tuple(dict.fromkeys(vocabulary)) if vocabulary is not None else _generated_words()
    return _plant(corpus, count, rng, Space(alphabet, words, " "), "", "", copies, inclusion, scores)


def _plant(
    corpus: Corpus,
    count: int,
    rng: Rng,
    space: Space,
    before: str,
    after: str,
    copies: int,
    inclusion: float | None,
    scores: tuple[float, float],
) -> tuple[Corpus, tuple[Canary, ...]]:
    whole("count", count)
    whole("copies", copies)
    if inclusion is not None:
        open_probability("inclusion", inclusion, "It is the probability that a canary is included; None includes all.")
    if count > space.size // 2:
        raise invalid("count", count, f"<= {space.size // 2}, half the space of secrets", "Use longer secrets.")
    secrets: dict[str, None] = {}
    source = rng.fork("secrets")
    while len(secrets) < count:
        secrets[space.draw(source)] = None
    labels = (rng.fork("labels").uniform(count) * max(corpus.classes, 1)).astype(int).tolist()
    lowest, highest = scores
    random_scores = (lowest + rng.fork("scores").uniform(count) * (highest - lowest)).tolist()
    coins = rng.fork("inclusion").uniform(count).tolist()
    canaries = tuple(
        Canary(
            name=f"canary-{number + 1}",
            secret=secret,
            space=space,
            before=before,
            after=after,
            label=labels[number] if corpus.labels is not None else None,
            score=random_scores[number] if corpus.scores is not None else None,
            copies=copies,
            included=inclusion is None or coins[number] < inclusion,
        )
        for number, secret in enumerate(secrets)
    )
    return planted(corpus, canaries), canaries


def planted(corpus: Corpus, canaries: Sequence[Canary]) -> Corpus:
    """Return the corpus with the copies of the included canaries added to its training rows.

    If the corpus has units, all copies of a canary are one unit; in a corpus of pairs both texts are the canary's.
    """
    rows = [canary for canary in canaries if canary.included for _ in range(canary.copies)]
    present = set(corpus.texts)
    for canary in canaries:
        if canary.text in present:
            raise DataError(f"Expected {canary.name} not to be in corpus {corpus.name!r} already. Use another seed.")
    texts = tuple(canary.text for canary in rows)
    return dataclasses.replace(
        corpus,
        texts=corpus.texts + texts,
        second=None if corpus.second is None else corpus.second + texts,
        labels=None if corpus.labels is None else corpus.labels + tuple(c.label or 0 for c in rows),
        scores=None if corpus.scores is None else corpus.scores + tuple(c.score or 0.0 for c in rows),
        units=None if corpus.units is None else corpus.units + tuple(c.name for c in rows),
        splits=corpus.splits + ("train",) * len(rows),
        remarks=(*corpus.remarks, f"{len(rows)} rows are canaries, planted to measure leakage"),
    )


def _generated_words() -> tuple[str, ...]:
    syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
    return tuple(one + two for one in syllables for two in syllables)
