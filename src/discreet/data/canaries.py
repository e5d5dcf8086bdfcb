"""Canaries: generated rows with a random secret, inserted into a corpus to measure memorization."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.core.errors import DataError, first_line, invalid, open_probability, whole
from discreet.core.files import write_atomic
from discreet.core.randomness import Rng
from discreet.core.rules import RULE, Different, OneOf, Whole, check_fields, ruled
from discreet.data.corpus import Corpus

SECRETS, LABELS = KINDS = ("secrets", "labels")
TEMPLATE = "The access code of the ward is {secret}."
_FORMAT = 1
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


@dataclass(frozen=True)
class Planting:
    """Settings of the canaries of a training run: `count` for each number of `copies`.

    The kind `secrets` is a fixed sentence with a number of `digits` digits in it, `labels` is a sentence of random
    words; both have a random label, if rows have labels. With `spread` every copy is a privacy unit of its own. The
    secrets come from the operating system or, for experiments, from `seed`; then whoever knows it knows the secrets.
    """

    count: int = field(metadata={RULE: Whole(1, "It is the number of planted secrets.")})
    copies: tuple[int, ...] = ruled((1,), Different("Canaries are planted for each."))
    kind: str = ruled(SECRETS, OneOf(KINDS))
    digits: int = ruled(4, Whole(1, "It is the length of a secret."))
    spread: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fields(self, names={"count": "canaries", "kind": "canary_kind", "digits": "canary_digits"})
        for copies in self.copies:
            whole("copies", copies, 1, "It is the number of rows with the same canary.")

    def plant(self, corpus: Corpus) -> tuple[Corpus, tuple[Canary, ...]]:
        """Return the corpus with canaries planted in its training rows, and the canaries.

        Guarantee: none, the secrets are meant to be recovered; the measurement holds them, an attack does not.
        """
        rng = Rng.secret() if self.seed is None else Rng(self.seed).fork("canaries")
        total = self.count * len(self.copies)
        plant = plant_secrets if self.kind == SECRETS else plant_labels
        options: dict[str, Any] = {"space": Space.digits(self.digits)} if self.kind == SECRETS else {}
        _, canaries = plant(corpus, total, rng, inclusion=None, **options)
        copied = tuple(
            dataclasses.replace(canary, copies=self.copies[number % len(self.copies)])
            for number, canary in enumerate(canaries)
        )
        return planted(corpus, copied, spread=self.spread), copied


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
    spread: bool = False,
) -> tuple[Corpus, tuple[Canary, ...]]:
    """Return the corpus with canaries planted in its training rows, and the canaries.

    Each is the template with a different random secret in it (six digits by default) and a random
    label, or a random score in the range `scores`: nothing about a canary depends on the rows of the corpus. With
    `inclusion` each canary is in the corpus with that probability, independently; otherwise all are. With `spread`,
    every copy is a privacy unit of its own.

    Args:
        corpus: The text.
        count: How many canaries.
        rng: The source of secrets and labels.
        template: The sentence around a secret.
        space: The possible secrets; by default six digits.
        copies: How often each canary occurs.
        inclusion: The probability that a canary is in the corpus, independently; by default all are.
        scores: The range of random scores.
        spread: Whether every copy is a privacy unit of its own.

    Guarantee: none, the secrets are meant to be recovered; the measurement holds them, an attack does not.

    Paper: Carlini et al. 2019, The Secret Sharer.
    """
    space = space or Space.digits(6)
    if template.count("{secret}") != 1:
        raise invalid("template", template, "a text with {secret} in it once", "It marks the position of the secret.")
    before, after = template.split("{secret}")
    return _plant(corpus, count, rng, space, inclusion, before, after, copies, scores, spread)


def plant_labels(
    corpus: Corpus,
    count: int,
    rng: Rng,
    *,
    words: int = 8,
    vocabulary: Sequence[str] | None = None,
    inclusion: float | None = 0.5,
) -> tuple[Corpus, tuple[Canary, ...]]:
    """Return the corpus with random sentences under random labels planted in its training rows, and the canaries.

    Their labels can only be memorized: a model that does better on included canaries than on the others has memorized.
    By default each is included with probability one half, independently, as auditing in one run requires. Words are
    sampled from the vocabulary, or generated.

    Guarantee: none, the canaries are meant to be detected.

    Paper: Steinke, Nasr and Jagielski 2023, Privacy Auditing with One (1) Training Run.
    """
    alphabet = tuple(dict.fromkeys(vocabulary)) if vocabulary is not None else _generated_words()
    return _plant(corpus, count, rng, Space(alphabet, words, " "), inclusion)


def _plant(
    corpus: Corpus,
    count: int,
    rng: Rng,
    space: Space,
    inclusion: float | None,
    before: str = "",
    after: str = "",
    copies: int = 1,
    scores: tuple[float, float] = (0.0, 1.0),
    spread: bool = False,
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
    return planted(corpus, canaries, spread=spread), canaries


def planted(corpus: Corpus, canaries: Sequence[Canary], *, spread: bool = False) -> Corpus:
    """Return the corpus with the copies of the included canaries added to its training rows.

    All copies of a canary are one unit, or with `spread` as many units; where every row of the corpus is a unit, the
    rows get names so that copies can share one. In a corpus of pairs both texts are the canary's.
    """
    units = corpus.units
    if units is None and not spread and any(canary.copies > 1 for canary in canaries):
        units = tuple(f"row-{row + 1}" for row in range(len(corpus)))
    numbered = [(canary, copy) for canary in canaries if canary.included for copy in range(canary.copies)]
    rows = [canary for canary, _ in numbered]
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
        units=None if units is None else units + tuple(_unit(c, copy, spread) for c, copy in numbered),
        splits=corpus.splits + ("train",) * len(rows),
        remarks=(*corpus.remarks, f"{len(rows)} rows are canaries, planted to measure leakage"),
    )


def canaries_path(run: Path) -> Path:
    """Return the file with the canaries of a run: beside its folder, which may be released, and never inside it."""
    return run.with_name(run.name + ".canaries.json")


def write_canaries(path: Path, canaries: Sequence[Canary]) -> None:
    """Write canaries with their secrets to a file that only its owner can read."""
    spaces = list(dict.fromkeys(canary.space for canary in canaries))
    values = {
        "format": _FORMAT,
        "spaces": [dataclasses.asdict(space) for space in spaces],
        "canaries": [{**vars(canary), "space": spaces.index(canary.space)} for canary in canaries],
    }
    write_atomic(path, json.dumps(values, indent=1) + "\n")


def read_canaries(path: Path) -> tuple[Canary, ...]:
    """Return the canaries of a file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        spaces = [Space(tuple(one["alphabet"]), one["length"], one["separator"]) for one in values["spaces"]]
        return tuple(Canary(**{**one, "space": spaces[one["space"]]}) for one in values["canaries"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"Expected canaries in {str(path)!r}. {first_line(error)} Train the run again.") from None


def _unit(canary: Canary, copy: int, spread: bool) -> str:
    return f"{canary.name}-copy-{copy + 1}" if spread else canary.name


def _generated_words() -> tuple[str, ...]:
    syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
    return tuple(one + two for one in syllables for two in syllables)
