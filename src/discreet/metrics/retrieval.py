"""Retrieval metrics: similarity of the retrieved sentences to the true ones, and recovered private vectors.

Paper: Huang et al. 2020, TextHide, section 4.4: identity, Jaccard, TF-IDF cosine, same label, cosine of embeddings.
Differs: the Jaccard distance of the paper is a similarity. Every metric is reported with the score of a random sentence
from the attacker's index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.errors import invalid
from discreet.core.randomness import Rng
from discreet.core.types import Leakage
from discreet.metrics.intervals import rate_of, score_interval
from discreet.metrics.text import Embedder, check_lengths, jaccard, unit_rows

Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_DRAWS = 8  # random sentences per query; the chance level is their mean score


def retrieval(
    guesses: Sequence[str],
    truths: Sequence[str],
    index: Sequence[str],
    *,
    rng: Rng,
    embed: Embedder | None = None,
    guessed_labels: Sequence[int] | None = None,
    true_labels: Sequence[int] | None = None,
    index_labels: Sequence[int] | None = None,
) -> tuple[Leakage, ...]:
    """Return the metrics of the retrieved sentences against the true ones, each with its random baseline.

    `index` holds the sentences that the attacker chose from. `same_label` needs all three labels, `embedding_cosine`
    an embedder.

    >>> for leak in retrieval(["a b", "c d"], ["a b", "c e"], ["a b", "c d", "c e", "f"], rng=Rng(0)): print(leak)
    identity 0.500 [0.013, 0.987] (n = 2, chance 0.250)
    jaccard 0.667 [0.025, 1.000] (n = 2, chance 0.375)
    tfidf_cosine 0.692 [0.029, 1.000] (n = 2, chance 0.384)
    """
    check_lengths(guesses, truths)
    if not index:
        raise invalid("index", 0, "at least 1 sentence", "The random baseline is sampled from it.")
    random_rows = (rng.fork("chance").uniform(_DRAWS * len(truths)) * len(index)).astype(np.int64).reshape(_DRAWS, -1)
    same = [float(guess == truth) for guess, truth in zip(guesses, truths, strict=True)]
    counts = Counter(index)
    leaks = [
        rate_of("identity", round(sum(same)), len(same), float(np.mean([counts[text] for text in truths])) / len(index))
    ]
    overlap = [jaccard(guess, truth) for guess, truth in zip(guesses, truths, strict=True)]
    by_chance = [jaccard(index[row], truths[i]) for rows in random_rows for i, row in enumerate(rows.tolist())]
    leaks.append(_mean("jaccard", overlap, float(np.mean(by_chance)), rng))
    leaks.append(_cosine("tfidf_cosine", _tfidf(index), guesses, truths, index, random_rows, rng))
    if guessed_labels is not None and true_labels is not None and index_labels is not None:
        agree = [float(a == b) for a, b in zip(guessed_labels, true_labels, strict=True)]
        random_labels = np.asarray(index_labels)[random_rows]
        leaks.append(
            rate_of(
                "same_label", round(sum(agree)), len(agree), float((random_labels == np.asarray(true_labels)).mean())
            )
        )
    if embed is not None:
        leaks.append(_cosine("embedding_cosine", _unit_vectors(embed), guesses, truths, index, random_rows, rng))
    return tuple(leaks)


def _cosine(
    metric: str,
    vectors_of: Callable[[Sequence[str]], Any],
    guesses: Sequence[str],
    truths: Sequence[str],
    index: Sequence[str],
    random_rows: Rows,
    rng: Rng,
) -> Leakage:
    """Return the mean cosine of unit vectors, sparse or dense."""
    true = vectors_of(list(truths))
    values = _products(vectors_of(list(guesses)), true)
    random = [_products(vectors_of([index[row] for row in rows.tolist()]), true).mean() for rows in random_rows]
    return _mean(metric, values.tolist(), float(np.mean(random)), rng)


def _products(first: Any, second: Any) -> Doubles:
    product = first.multiply(second) if hasattr(first, "multiply") else first * second
    return np.asarray(product.sum(axis=1), dtype=np.float64).ravel()


def _tfidf(index: Sequence[str]) -> Callable[[Sequence[str]], Any]:
    """Return a function from texts to unit TF-IDF vectors with the document frequencies of the index."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    fitted = TfidfVectorizer(lowercase=True, token_pattern=r"\S+").fit(index)
    return lambda texts: fitted.transform(texts)


def _unit_vectors(embed: Embedder) -> Callable[[Sequence[str]], Doubles]:
    return lambda texts: unit_rows(embed(texts))


def _mean(metric: str, values: Sequence[float], chance: float, rng: Rng) -> Leakage:
    low, high = score_interval(values, rng=rng.fork(metric), least=-1.0 if metric == "embedding_cosine" else 0.0)
    return Leakage(metric, float(np.mean(values)), low, high, len(values), chance)
