"""Rewrite text word by word under metric privacy; the release is readable text.

Papers: Feyisetan, Balle, Drake and Diethe 2020, Privacy- and utility-preserving textual analysis via calibrated
    multivariate perturbations (`noise`); Yue, Du, Wang, Li, Sun and Chow 2021, Differential privacy for text analytics
    via natural text sanitization (`santext`, `santext+`).
Differs: distances are divided by the largest one, so that epsilon_per_word also bounds the worst case; nearest
    neighbours are exact; every word is covered, also those outside the vocabulary; rarity is counted in public text.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from discreet.core.errors import DataError, SettingError, invalid, one_of, open_probability, positive, setting
from discreet.core.guarantee import FLOATING_POINT, Adjacency, Caveat, Guarantee, in_digits
from discreet.core.randomness import NOISE_FORMAT, Rng, digest
from discreet.core.rules import OneOf, OpenProbability, Positive, check_fields
from discreet.core.settings import option_field
from discreet.core.types import TextRelease
from discreet.data.tables import STDIN, read_lines
from discreet.mechanisms.word_metric import Rows, choose, nearest_to_noisy
from discreet.protections.base import DELTA, Conditions, Place, Protection, TextProtection
from discreet.protections.words.table import WordTable, listed_words

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


SANTEXT, SANTEXT_PLUS, NOISE = "santext", "santext+", "noise"
WORD_MECHANISMS = (SANTEXT, SANTEXT_PLUS, NOISE)
UNKNOWN_WORDS = ("pieces", "refuse")
C = TypeVar("C")
METRIC = "euclidean, as a share of the table's diameter"
WORDS_VISIBLE = "the number of words in a text is visible"
SAME_LENGTH = "a text is exchanged for another with as many words"
_UNCHANGED = -1
_WEIGHTS = "every word can be drawn; the float64 arithmetic of the words' weights is taken as exact"


@dataclass(frozen=True)
class Changes:
    """Numbers of words that rewriting changed; never the words themselves."""

    texts: int = 0
    words: int = 0
    changed: int = 0
    unknown: int = 0
    kept_marks: int = 0
    not_sensitive: int = 0
    longest: int = 0

    def sentence(self) -> str:
        """Return the counts as a sentence."""
        share = self.changed / self.words if self.words else 0.0
        parts = [f"{self.changed:,} of {self.words:,} words ({share:.1%}) changed in {self.texts:,} texts"]
        parts.append(f"{self.unknown:,} were outside the vocabulary and replaced by words in it")
        if self.kept_marks:
            parts.append(f"{self.kept_marks:,} punctuation marks were kept as they are")
        if self.not_sensitive:
            parts.append(f"{self.not_sensitive:,} were not sensitive")
        return "; ".join(parts) + f"; the longest text has {self.longest} words."


@dataclass(frozen=True, eq=False)
class WordSwap(TextProtection):
    """Replace every word of a text by a random word of a public table; near words are more likely.

    `santext` samples a word with weight exp(-epsilon_per_word distance / 2), `noise` adds noise to the word's vector
    and takes the nearest word, `santext+` samples only for sensitive words, among sensitive words, and replaces any
    other word with probability `sample_others`. Distances are fractions of the largest one, so at most 1.

    Guarantee: metric privacy: replacing a word by another at distance r changes the probability of any release by at
        most a factor of e^(epsilon_per_word r), so by e^epsilon_per_word at worst; a text of n words costs n times
        that. The number of words is visible, as are labels and other columns, and with `keep_marks` the marks
        . , ; : ! ?. Upper case and white space are not released. With `santext+` only sensitive words are covered,
        among each other: any other released word is the original one.
    """

    table: WordTable
    epsilon_per_word: float
    mechanism: str = SANTEXT
    sensitive: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    sample_others: float = 0.2
    keep_marks: bool = False
    unknown: str = "pieces"
    rewrites_queries: bool = True
    list_fingerprint: str = field(default="", init=False)  # part of the identity that names a release
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE  # a word, or a text, is replaced by another

    def __post_init__(self) -> None:
        """Reject settings outside their range, unknown names, and `santext+` without sensitive words."""
        positive("epsilon_per_word", self.epsilon_per_word, "It is the cost of one word; smaller is more noise.")
        one_of("mechanism", self.mechanism, WORD_MECHANISMS)
        one_of("unknown", self.unknown, UNKNOWN_WORDS)
        open_probability("sample_others", self.sample_others, "It is how often a non-sensitive word is replaced.")
        if (self.sensitive is not None) != (self.mechanism == SANTEXT_PLUS):
            raise invalid(
                "mechanism",
                self.mechanism,
                f"{SANTEXT_PLUS} with sensitive words, any other without",
                "Provide a list of sensitive words, or public text in which they are rare.",
            )
        if self.sensitive is not None:
            if self.sensitive.shape != (len(self.table.words),) or int(self.sensitive.sum()) < 2:
                raise DataError("Expected at least 2 sensitive words, marked in an array with one entry for each word.")
            fingerprint = hashlib.sha256(np.packbits(self.sensitive).tobytes()).hexdigest()[:16]
            object.__setattr__(self, "list_fingerprint", fingerprint)

    @property
    def name(self) -> str:
        """Name of the mechanism."""
        return self.mechanism

    def public_settings(self) -> dict[str, Any]:
        """Return the settings; a list of words is represented by its fingerprint."""
        names = ["mechanism", "epsilon_per_word", "keep_marks", "unknown", "rewrites_queries"]
        if self.sensitive is not None:
            names += ["sample_others", "list_fingerprint"]
        return {name: getattr(self, name) for name in names}

    @property
    def event(self) -> DpEvent:
        """Privacy event of one word, under replace-one."""
        from discreet.accounting.events import MetricDpEvent

        return MetricDpEvent(self.epsilon_per_word, METRIC, 1.0)

    def text_event(self, words: int) -> DpEvent:
        """Return the privacy event of a text of `words` words, all of which are replaced."""
        from discreet.accounting.events import NoGuaranteeDpEvent, SelfComposedDpEvent

        if self.mechanism == SANTEXT_PLUS:
            return NoGuaranteeDpEvent("words that do not count as sensitive are released as they are")
        return SelfComposedDpEvent(self.event, words)

    @property
    def price(self) -> float:
        """Epsilon per Euclidean distance between vectors, which is the epsilon of the papers."""
        return self.epsilon_per_word / self.table.diameter

    def word_guarantee(self, secret: bool = True) -> Guarantee:
        """Return the guarantee for one word; `secret` says whether the randomness is secret."""
        return release_guarantee(self.event, 0.0, self._word, (*self.assumptions, self.arithmetic), secret)

    def text_guarantee(self, words: int, delta: float = 0.0, secret: bool = True) -> Guarantee:
        """Return the guarantee for a text of at most `words` words, by composition over its words."""
        unit = f"text of at most {words} words"
        return release_guarantee(self.text_event(words), delta, unit, self._text_assumptions, secret)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions about what is visible, and so not protected."""
        visible = [WORDS_VISIBLE, "labels and other columns are not protected"]
        if self.keep_marks:
            visible.append("the marks . , ; : ! ? and their places are visible")
        if self.mechanism == SANTEXT_PLUS:
            visible.append("words that do not count as sensitive are released as they are, most of the time")
        return tuple(visible)

    @property
    def _word(self) -> str:
        return "sensitive word" if self.mechanism == SANTEXT_PLUS else "word"

    @property
    def _text_assumptions(self) -> tuple[str, ...]:
        return (*self.assumptions, SAME_LENGTH, self.arithmetic)

    @property
    def arithmetic(self) -> str:
        """Assumption about floating-point arithmetic."""
        return FLOATING_POINT if self.mechanism == NOISE else _WEIGHTS

    def release(self, texts: Sequence[str], rng: Rng) -> TextRelease:
        """Return rewritten texts with the guarantee of the longest."""
        if rng.is_secret and not rng.is_secure:  # a reused secret must not repeat its noise on other texts
            rng = rng.fork("release", int(rng.words(1)[0]), digest(NOISE_FORMAT, self, tuple(texts)))
        rewritten, changes = self.swap(texts, rng)
        return TextRelease(rewritten, guarantee=self.text_guarantee(max(1, changes.longest), secret=rng.is_secret))

    def cost(self, corpus: Any) -> DpEvent:
        """Return the privacy event of rewriting a corpus, for the unit with the most words."""
        counts = [len(self.table.split(text)) for text in corpus.texts]
        if corpus.second is not None:
            counts = [n + len(self.table.split(text)) for n, text in zip(counts, corpus.second, strict=True)]
        per_unit = np.bincount(corpus.unit_index, weights=counts) if counts else np.zeros(1)
        return self.text_event(max(1, int(per_unit.max())))

    def stated(self, guarantee: Guarantee) -> Guarantee:
        """Return the guarantee of a rewritten corpus with its assumptions and the epsilon of one word."""
        word = f"each {self._word} alone has epsilon = {in_digits(self.epsilon_per_word, 6)} and delta = 0"
        if not guarantee.exists:
            reason = str(guarantee.reason)
            return guarantee if word in reason else dataclasses.replace(guarantee, reason=f"{reason}; {word}")
        assumptions = dict.fromkeys((*guarantee.assumptions, *self._text_assumptions, word))
        return dataclasses.replace(guarantee, assumptions=tuple(assumptions))

    def rewrite(self, corpus: C, rng: Rng) -> C:
        """Return a corpus with every text rewritten; labels, units and splits stay."""
        private: Any = corpus
        texts, _ = self.swap(private.texts, rng)
        second = None if private.second is None else self.swap(private.second, rng)[0]
        rewritten: C = dataclasses.replace(private, texts=texts, second=second)
        return rewritten

    def swap(
        self, texts: Sequence[str], rng: Rng, watch: Callable[[int, int], None] = lambda done, total: None
    ) -> tuple[tuple[str, ...], Changes]:
        """Return rewritten texts and the numbers of changes; `watch` is called with the words done so far and in all.

        Guarantee: that of the class, for each word; a text of n words costs n times that.
        """
        split = [self.table.split(text) for text in texts]
        flat = [word for words in split for word in words]
        names, which = _distinct(flat)
        known = np.array([self.table.rows.get(name, -1) for name in names], dtype=np.int64)
        marks = np.array([self.keep_marks and self.table.is_mark(name) for name in names], dtype=bool)
        if self.unknown == "refuse" and (known < 0).any():
            self._reject_unknown(split)
        released = np.full(len(flat), _UNCHANGED, dtype=np.int64)
        replaced = ~marks[which] if len(flat) else np.zeros(0, dtype=bool)
        if self.sensitive is not None:
            others = np.array([row >= 0 and not self.sensitive[row] for row in known], dtype=bool)[which]
            replaced &= ~others | (rng.uniform(len(flat)) < self.sample_others)
        released[replaced] = self._sample(names, which[replaced], rng, lambda done: watch(done, int(replaced.sum())))
        words = self.table.words
        out = iter([words[row] if row != _UNCHANGED else flat[at] for at, row in enumerate(released.tolist())])
        changes = Changes(
            texts=len(texts),
            words=len(flat),
            changed=int((known[which] != released)[replaced].sum()),
            unknown=int((known[which] < 0).sum()),
            kept_marks=int(marks[which].sum()),
            not_sensitive=0 if self.sensitive is None else int(others.sum()),
            longest=max(map(len, split), default=0),
        )
        return tuple(" ".join(islice(out, len(words))) for words in split), changes

    def _sample(self, names: Sequence[str], which: Rows, rng: Rng, watch: Callable[[int], None]) -> Rows:
        used, local = np.unique(which, return_inverse=True)
        places = self.table.vectors_of([names[row] for row in used])
        local = local.astype(np.int64).reshape(-1)
        if self.mechanism == NOISE:
            return nearest_to_noisy(places, self.table.vectors, self.price, local, rng, watch)
        if self.sensitive is None:
            return choose(places, self.table.vectors, self.price, local, rng, watch)
        rows = np.flatnonzero(self.sensitive)
        chosen = choose(places, self.table.vectors[torch.from_numpy(rows)], self.price, local, rng, watch)
        return np.asarray(rows[chosen], dtype=np.int64)

    def _reject_unknown(self, split: Sequence[Sequence[str]]) -> None:
        for number, words in enumerate(split, start=1):
            for place, word in enumerate(words, start=1):
                if word not in self.table.rows:
                    raise DataError(
                        f"Expected every word in the vocabulary of {self.table.name!r}, but word {place} of text "
                        f"{number} is not. Replace it by its pieces ({setting('unknown', 'pieces')}), or fix the text."
                    )


def _distinct(flat: Sequence[str]) -> tuple[list[str], Rows]:
    numbers: dict[str, int] = {}
    which = np.fromiter((numbers.setdefault(word, len(numbers)) for word in flat), dtype=np.int64, count=len(flat))
    return list(numbers), which


def release_guarantee(event: DpEvent, delta: float, unit: str, assumptions: tuple[str, ...], secret: bool) -> Guarantee:
    """Return the guarantee of one release under replace-one; it is an estimate if the randomness is not secret."""
    from discreet.accounting.interpret import guarantee_of

    stated = guarantee_of(event, delta=delta, adjacency=Adjacency.REPLACE_ONE, unit=unit, assumptions=assumptions)
    return stated if secret or not stated.exists else stated.with_caveats({Caveat.FIXED_SEED})


@dataclass(frozen=True)
class SanText(Protection):
    """Replace every word by the exponential mechanism, once; training reads the rewritten text.

    Args:
        epsilon_per_word: Privacy budget of one word: at 8 nearly every word changes, at 40 about one in five.
        delta: Delta of the guarantee; well below 1 / number of units. By default 0.1 / number of units, at most 1e-5.
        keep_marks: Keep punctuation (. , ; : ! ?) as it is.
        unknown: Words outside the vocabulary: pieces (replace their pieces), or refuse (reject the text).
        rewrite_queries: Rewrite held-out text too.

    >>> SanText(epsilon_per_word=20.0).name
    'santext'
    """

    epsilon_per_word: float | None = option_field(
        None,
        "Privacy budget of one word: at 8 nearly every word changes, at 40 about one in five.",
        "Budget",
        rule=Positive("It is the cost of one word; smaller is more noise."),
    )
    delta: float | None = field(default=None, metadata=DELTA)
    keep_marks: bool = option_field(False, "Keep punctuation (. , ; : ! ?) as it is.", "Method")
    unknown: str = option_field(
        "pieces",
        "Words outside the vocabulary: pieces (replace their pieces), or refuse (reject the text).",
        "Method",
        rule=OneOf(tuple(UNKNOWN_WORDS)),
    )
    rewrite_queries: bool = option_field(True, "Rewrite held-out text too.", "Method")
    name: ClassVar[str] = SANTEXT
    place: ClassVar[Place] = "text"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    mechanism: ClassVar[str] = SANTEXT

    def __post_init__(self) -> None:
        """Reject settings outside their range, and a missing budget."""
        if self.epsilon_per_word is None:
            raise SettingError(
                f"Expected {setting('epsilon_per_word')} for {self.name}. It is the cost of one word: at 8 nearly "
                "every word changes, at 40 about one in five."
            )
        check_fields(self)

    def resolve(self, conditions: Conditions) -> WordSwap:
        """Return the protection with the vocabulary of the encoder that is trained."""
        return self._swap(WordTable.of_encoder(conditions.model.settings.encoder))

    def _swap(self, table: WordTable, **options: Any) -> WordSwap:
        assert self.epsilon_per_word is not None
        return WordSwap(
            table,
            self.epsilon_per_word,
            self.mechanism,
            keep_marks=self.keep_marks,
            unknown=self.unknown,
            rewrites_queries=self.rewrite_queries,
            **options,
        )


@dataclass(frozen=True)
class NoisyWords(SanText):
    """Add noise to the vector of every word, and replace the word by the nearest one.

    Args:
        epsilon_per_word: Privacy budget of one word: at 8 nearly every word changes, at 40 about one in five.
        delta: Delta of the guarantee; well below 1 / number of units. By default 0.1 / number of units, at most 1e-5.
        keep_marks: Keep punctuation (. , ; : ! ?) as it is.
        unknown: Words outside the vocabulary: pieces (replace their pieces), or refuse (reject the text).
        rewrite_queries: Rewrite held-out text too.

    >>> NoisyWords(epsilon_per_word=20.0).name
    'word-noise'
    """

    name: ClassVar[str] = "word-noise"
    mechanism: ClassVar[str] = NOISE


@dataclass(frozen=True)
class SanTextPlus(SanText):
    """Replace only the words of a list and words outside the vocabulary, by words of the list.

    Args:
        epsilon_per_word: Privacy budget of one word: at 8 nearly every word changes, at 40 about one in five.
        delta: Delta of the guarantee; well below 1 / number of units. By default 0.1 / number of units, at most 1e-5.
        keep_marks: Keep punctuation (. , ; : ! ?) as it is.
        unknown: Words outside the vocabulary: pieces (replace their pieces), or refuse (reject the text).
        rewrite_queries: Rewrite held-out text too.
        sensitive: File with the sensitive words, one on each line.
        sample_others: Probability that a word that is not sensitive is replaced too.

    >>> SanTextPlus(epsilon_per_word=20.0, sensitive="names.txt").name
    'santext+'
    """

    sensitive: str | None = option_field(None, "File with the sensitive words, one on each line.", "Method")
    sample_others: float = option_field(
        0.2, "Probability that a word that is not sensitive is replaced too.", "Method", rule=OpenProbability()
    )
    name: ClassVar[str] = SANTEXT_PLUS
    mechanism: ClassVar[str] = SANTEXT_PLUS

    def __post_init__(self) -> None:
        """Reject settings outside their range, and a missing list."""
        super().__post_init__()
        if self.sensitive is None:
            raise SettingError(
                f"Expected {setting('sensitive')} for santext+. Set it to a file with one word per line."
            )

    def resolve(self, conditions: Conditions) -> WordSwap:
        """Return the protection of the listed words."""
        assert self.sensitive is not None
        table = WordTable.of_encoder(conditions.model.settings.encoder)
        sensitive = listed_words(table, read_words(Path(self.sensitive)))
        return self._swap(table, sensitive=sensitive, sample_others=self.sample_others)


def read_words(path: Path) -> list[str]:
    """Return the lines of a file that are not blank; a word contains no line separator."""
    source = f"./{path}" if str(path) == STDIN else str(path)  # a file named "-": stdin may hold the text itself
    return [word.strip() for line in read_lines(source) for word in line.splitlines() if word.strip()]
