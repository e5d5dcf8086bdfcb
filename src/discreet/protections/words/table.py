"""The public table of words: how a text is split, the vector of each word, and the largest distance of two words."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.core.errors import DataError, ModelError, open_probability
from discreet.mechanisms.word_metric import farthest
from discreet.models.encoder import MINILM, MINILM_SHA256, minilm_folder

BILSTM = "bilstm"  # it uses the word vectors of the built-in encoder
_MARKS = frozenset(".,;:!?")
_MEASURED = {MINILM_SHA256: 2.3403802695875564}  # computed by `farthest`, which takes five seconds; keyed by the hash


@dataclass(frozen=True, eq=False)
class WordTable:
    """Words that can be released, their vectors, and the word pieces of which other words consist.

    A text is split as by the encoder's tokenizer: at white space and around every punctuation mark, in lower case if
    the encoder is uncased. A word of the vocabulary has its own vector; any other word has the mean of the vectors of
    its pieces, or the vector of the unknown token if it has none. All vectors are in the convex hull of the pieces, so
    no two words are further apart than `diameter`.
    """

    name: str
    words: tuple[str, ...] = field(repr=False)
    vectors: torch.Tensor = field(repr=False)
    pieces: torch.Tensor = field(repr=False)
    tokenizer: Any = field(repr=False)
    unknown: int = field(default=0, repr=False)
    piece_ids: frozenset[int] = field(default=frozenset(), repr=False)
    fingerprint: str = ""

    @classmethod
    def of_encoder(cls, name: str = MINILM) -> WordTable:
        """Return the table of an encoder: minilm, bilstm (same table), or a local folder of a BERT-like encoder."""
        folder = minilm_folder() if name in (MINILM, BILSTM) else Path(name)
        tokenizer = _tokenizer(folder, name)
        vectors = _word_embeddings(folder, name)
        vocabulary = {word: row for word, row in tokenizer.get_vocab().items() if row < len(vectors)}
        special = {
            row for word, row in vocabulary.items() if word.startswith("[") and word.endswith("]") and word[1:-1]
        }
        complete = sorted(
            (row, word) for word, row in vocabulary.items() if not word.startswith("##") and row not in special
        )
        if len(complete) < 2:
            raise ModelError(
                f"Expected at least two complete words in the vocabulary of {name!r}, got {len(complete)}."
            )
        unknown = vocabulary.get("[UNK]", complete[0][0])
        rows = torch.tensor([row for row, _ in complete])
        pieces = frozenset(set(vocabulary.values()) - special | {unknown})
        words = tuple(word for _, word in complete)
        fingerprint = MINILM_SHA256 if name in (MINILM, BILSTM) else ""
        return cls(name, words, vectors[rows].double(), vectors.double(), tokenizer, unknown, pieces, fingerprint)

    @functools.cached_property
    def diameter(self) -> float:
        """Largest distance between two pieces, and so between two words, rounded up."""
        return (_MEASURED.get(self.fingerprint) or self.measured_diameter()) * (1 + 2.0**-40)

    def measured_diameter(self) -> float:
        """Compute the largest distance between two pieces."""
        return farthest(self.pieces[torch.tensor(sorted(self.piece_ids))] if self.piece_ids else self.pieces)

    @functools.cached_property
    def rows(self) -> dict[str, int]:
        """Row of each word that can be released."""
        return {word: row for row, word in enumerate(self.words)}

    def split(self, text: str) -> list[str]:
        """Return the normalized words and marks of a text; a text without any is one unknown word."""
        if self.tokenizer.normalizer is not None:
            text = self.tokenizer.normalizer.normalize_str(text)
        return [word for word, _ in self.tokenizer.pre_tokenizer.pre_tokenize_str(text)] or ["[UNK]"]

    def vectors_of(self, words: Sequence[str]) -> torch.Tensor:
        """Return the vector of each word, in the vocabulary or not, one row each."""
        vectors = torch.empty(len(words), self.vectors.shape[1], dtype=torch.float64)
        for place, word in enumerate(words):
            row = self.rows.get(word)
            vectors[place] = self.vectors[row] if row is not None else self._mean_of_pieces(word)
        return vectors

    def _mean_of_pieces(self, word: str) -> torch.Tensor:
        ids = [i for i in self.tokenizer.encode(word, add_special_tokens=False).ids if i in self.piece_ids]
        mean: torch.Tensor = self.pieces[torch.tensor(ids or [self.unknown])].mean(0)
        return mean

    @staticmethod
    def is_mark(word: str) -> bool:
        """Return whether a word is one of the punctuation marks . , ; : ! ?"""
        return word in _MARKS


def rare_words(table: WordTable, public: Sequence[str], share: float = 0.9) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the sensitive words of the table: the `share` of them that is rarest in public text.

    Paper: Yue et al. 2021 count in the text to be sanitized.
    Differs: counted in public text, because it is private which words are rare in private text.
    """
    open_probability("share", share, "It is the fraction of the vocabulary that is sensitive.")
    rows = [table.rows[word] for text in public for word in table.split(text) if word in table.rows]
    counts = np.bincount(np.array(rows, dtype=np.int64), minlength=len(table.words))
    if not counts.any():
        raise DataError("Expected public text with words of the vocabulary, got none. Use text of the same kind.")
    frequent = np.argsort(-counts, kind="stable")[: round((1 - share) * len(counts))]
    sensitive = np.ones(len(counts), dtype=bool)
    sensitive[frequent] = False
    sensitive |= counts == 0
    return sensitive


def listed_words(table: WordTable, words: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the table's words that are in a list; words outside the vocabulary are always sensitive."""
    rows = [table.rows[part] for word in words for part in table.split(word) if part in table.rows]
    sensitive = np.zeros(len(table.words), dtype=bool)
    sensitive[rows] = True
    if sensitive.sum() < 2:
        raise DataError(
            f"Expected at least 2 words of the vocabulary in the sensitive list, got {int(sensitive.sum())}. "
            "A sensitive word is replaced by another of the list; add words of the same kind."
        )
    return sensitive


def _tokenizer(folder: Path, name: str) -> Any:
    from tokenizers import Tokenizer, models

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"Expected 'minilm', 'bilstm' or a folder with tokenizer.json for the words of {name!r}. "
            "Save its fast tokenizer there: tokenizer.save_pretrained(folder)."
        )
    tokenizer = Tokenizer.from_file(str(path))
    if not isinstance(tokenizer.model, models.WordPiece) or tokenizer.pre_tokenizer is None:
        raise ModelError(
            f"Expected a WordPiece vocabulary in {name!r}, got {type(tokenizer.model).__name__}. Its entries are not "
            "complete words; use minilm."
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _word_embeddings(folder: Path, name: str) -> torch.Tensor:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  (not a dict)
                if key.endswith(("word_embeddings.weight", "embed_tokens.weight")):
                    table: torch.Tensor = file.get_tensor(key).float()
                    return table
    raise ModelError(f"Expected word embeddings as *.safetensors in {name!r}. Save the encoder there.")
