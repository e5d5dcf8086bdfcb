"""Rewriting of words as it is asked for in a training: by mechanism, with the price of one word."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from discreet.core.checks import one_of, open_probability, positive
from discreet.core.errors import DataError, SettingError
from discreet.protections.representation import Place
from discreet.protections.settings import Conditions, check_budget
from discreet.protections.word_swap import NOISE, SANTEXT, SANTEXT_PLUS, UNKNOWN_WORDS, WordSwap
from discreet.protections.word_table import WordTable, listed_words


@dataclass(frozen=True)
class SanTextSettings:
    """Every word is drawn by the exponential mechanism; what is trained on is the rewritten text, released once."""

    epsilon_per_word: float | None = None
    delta: float | None = None
    keep_marks: bool = False
    unknown: str = "pieces"
    rewrite_queries: bool = True
    name: ClassVar[str] = SANTEXT
    place: ClassVar[Place] = "text"
    usual_train: ClassVar[str] = "all"
    usual_head: ClassVar[str] = "linear"
    epsilon: ClassVar[float | None] = None
    mechanism: ClassVar[str] = SANTEXT

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and no price."""
        if self.epsilon_per_word is None:
            raise SettingError(
                f"Expected --epsilon-per-word for {self.name}. It is the cost of one word: at 8 nearly every word "
                "changes, at 40 about one in five."
            )
        positive("epsilon_per_word", self.epsilon_per_word, "It is the cost of one word; smaller is more noise.")
        check_budget(None, self.delta)
        one_of("unknown", self.unknown, UNKNOWN_WORDS)

    def build(self, given: Conditions) -> WordSwap:
        """Return the protection with the words of the encoder that is trained."""
        assert self.epsilon_per_word is not None
        return WordSwap(
            WordTable.of_encoder(given.model.settings.encoder),
            self.epsilon_per_word,
            self.mechanism,
            keep_marks=self.keep_marks,
            unknown=self.unknown,
            rewrites_queries=self.rewrite_queries,
        )


@dataclass(frozen=True)
class WordNoiseSettings(SanTextSettings):
    """Every word's vector gets noise, and the nearest word is taken."""

    name: ClassVar[str] = "word-noise"
    mechanism: ClassVar[str] = NOISE


@dataclass(frozen=True)
class SanTextPlusSettings(SanTextSettings):
    """Only the words of a list, and those outside the vocabulary, are drawn, among the words of the list."""

    sensitive: str | None = None
    sample_others: float = 0.2
    name: ClassVar[str] = SANTEXT_PLUS
    mechanism: ClassVar[str] = SANTEXT_PLUS

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and no list."""
        super().__post_init__()
        open_probability("sample_others", self.sample_others)
        if self.sensitive is None:
            raise SettingError("Expected --sensitive FILE for santext+, a list of words, one a line. Give it.")

    def build(self, given: Conditions) -> WordSwap:
        """Return the protection of the listed words."""
        assert self.epsilon_per_word is not None
        assert self.sensitive is not None
        table = WordTable.of_encoder(given.model.settings.encoder)
        return WordSwap(
            table,
            self.epsilon_per_word,
            self.mechanism,
            listed_words(table, read_words(Path(self.sensitive))),
            self.sample_others,
            self.keep_marks,
            self.unknown,
            self.rewrite_queries,
        )


def read_words(path: Path) -> list[str]:
    """Return the lines of a file that are not blank."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        raise DataError(f"Expected a list of words, one a line, in UTF-8 at {str(path)!r}. Check the path.") from None
    return [line.strip() for line in lines if line.strip()]
