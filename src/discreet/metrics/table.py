"""The table of metrics: name, label, what is compared, and function. Add a metric as one entry.

The function is either `pair`, which scores one guess against one truth, or `sample`, which measures a whole sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from discreet.core.errors import invalid, one_of
from discreet.core.randomness import Rng
from discreet.core.types import Leakage
from discreet.metrics import text
from discreet.metrics.categories import NUMBERS, Category, share_read
from discreet.metrics.membership import RATES, tpr_metric
from discreet.metrics.retrieval import retrieval
from discreet.metrics.text import Embedder, Pair, meteor, universal_sentence_encoder
from discreet.plugins import Names, Unfit, check_name


class Compares(Enum):
    """What a metric compares."""

    TEXTS = "texts"  # a reconstructed text with the true one
    WORDS = "words"  # the words of both, in any order
    CANDIDATES = "candidates"  # a text chosen among candidates with the true one
    INDICES = "indices"  # the index of a candidate with the true one
    MEMBERS = "members"  # the scores of members with those of non-members
    SECRETS = "secrets"  # what a model memorized with what was planted in its training text, or with the text itself
    PEOPLE = "people"  # a person, or a person's attribute, with the true one


@dataclass(frozen=True)
class Sample:
    """Guesses and truths in the same order, the candidates of the attacker, and an encoder of texts.

    `written` are the truths with upper and lower case, as their owner wrote them, where `truths` are spelled otherwise.
    """

    guesses: Sequence[str]
    truths: Sequence[str]
    candidates: Sequence[str] = ()
    embed: Embedder | None = None
    written: Sequence[str] = ()


@dataclass(frozen=True)
class Metric:
    """A measure of how much private text a guess reveals.

    `label` is used in sentences and reports, `short` in table headers. `is_rate` is true if every single value is 0 or
    1. A `cased` metric needs the truth as it was written; its score is NaN for a truth that has nothing to count.
    """

    name: str
    label: str
    short: str
    compares: Compares
    pair: Pair | None = None
    sample: Callable[[Sample, Rng], Leakage] | None = None
    is_rate: bool = False
    cased: bool = False

    def score(self, guess: str, truth: str) -> float:
        """Return the score of one guess.

        >>> METRICS["jaccard"].score("the cat sat", "the cat ran")
        0.5
        """
        if self.pair is None:
            raise invalid("metric", self.name, "a metric of single texts", "This one measures a whole sample.")
        return float(self.pair(guess, truth))

    def leakage(self, sample: Sample, rng: Rng) -> Leakage:
        """Return the mean over a sample with its interval and chance level."""
        if self.sample is not None:
            return replace(self.sample(sample, rng), metric=self.name)
        return text_leakage(self.name, sample.guesses, sample.truths, rng=rng)


def _share_read(name: str, sample: Sample, rng: Rng) -> Leakage:
    """Return the mean share of the items of some categories that were read, over the texts that have any."""
    truths = sample.written or sample.truths
    pair = partial(share_read, categories=_CATEGORIES[name])
    kept = [row for row, truth in enumerate(truths) if not math.isnan(pair(truth, truth))]
    if not kept:
        return Leakage(name, math.nan, math.nan, math.nan, 0)
    return text_leakage(name, [sample.guesses[row] for row in kept], [truths[row] for row in kept], rng=rng, pair=pair)


def _semantic_cosine(sample: Sample, rng: Rng) -> Leakage:
    if sample.embed is None:
        raise invalid("embed", None, "an encoder of texts", "The metric compares its vectors.")
    return text.semantic_cosine(sample.guesses, sample.truths, embed=sample.embed, rng=rng)


def _use_cosine(sample: Sample, rng: Rng) -> Leakage:
    embed = universal_sentence_encoder()
    return text.semantic_cosine(sample.guesses, sample.truths, embed=embed, rng=rng, metric="use_cosine")


def _retrieved(name: str, sample: Sample, rng: Rng) -> Leakage:
    """Return one of the retrieval metrics."""
    embed = sample.embed if name == "embedding_cosine" else None
    measured = retrieval(sample.guesses, sample.truths, sample.candidates, rng=rng, embed=embed)
    return next(leakage for leakage in measured if leakage.metric == name)


def _measured_elsewhere(*rows: tuple[str, str, str, Compares, bool]) -> Iterator[Metric]:
    """Yield metrics without a function: their name, labels, what they compare, and whether they are rates."""
    for name, label, short, compares, is_rate in rows:
        yield Metric(name, label, short, compares, is_rate=is_rate)


_CATEGORIES = {
    "names_read": frozenset({Category.NAME}),
    "numbers_read": NUMBERS,
    "dates_read": frozenset({Category.DATE}),
    "function_words_read": frozenset({Category.FUNCTION}),
}
_TEXTS, _WORDS, _CANDIDATES, _INDICES, _MEMBERS, _SECRETS, _PEOPLE = Compares
_ALL = (
    Metric("rouge_l", "words read in the right order (ROUGE-L)", "ROUGE-L", _TEXTS, partial(text.rouge, kind="rougeL")),
    Metric("rouge_1", "words read (ROUGE-1)", "ROUGE-1", _TEXTS, partial(text.rouge, kind="rouge1")),
    Metric("rouge_2", "pairs of words read (ROUGE-2)", "ROUGE-2", _TEXTS, partial(text.rouge, kind="rouge2")),
    Metric("lcs_over_longer", "words read in order (LCS / longer)", "LCS / longer", _TEXTS, text.lcs_over_longer),
    Metric("token_accuracy", "words read in their place", "words in place", _TEXTS, text.token_accuracy),
    Metric("bag_recall", "words read, in any order", "words read", _WORDS, text.bag_recall),
    Metric("jaccard", "shared words (Jaccard)", "Jaccard", _WORDS, text.jaccard),
    Metric("exact_match", "whole texts read without an error", "exact", _TEXTS, text.exact_match, is_rate=True),
    Metric("meteor", "words read, with stems and synonyms (METEOR)", "METEOR", _TEXTS, meteor),
    Metric("semantic_cosine", "closeness in meaning", "meaning", _TEXTS, sample=_semantic_cosine),
    Metric("use_cosine", "closeness in meaning (Universal Sentence Encoder)", "USE cosine", _TEXTS, sample=_use_cosine),
    *(
        Metric(name, label, short, _CANDIDATES, sample=partial(_retrieved, name), is_rate=is_rate)
        for name, label, short, is_rate in (
            ("identity", "right text chosen among the candidates", "identity", True),
            ("tfidf_cosine", "TF-IDF cosine of the text chosen", "TF-IDF", False),
            ("embedding_cosine", "closeness in meaning of the text chosen", "embedding", False),
        )
    ),
    *_measured_elsewhere(
        ("identified", "identified among the candidates, from all updates of the training", "identified",
         _INDICES, True),
        ("identified_update", "identified among the candidates, from one update", "identified", _INDICES, True),
        ("auc", "members ranked above non-members (AUC)", "AUC", _MEMBERS, False),
        *((tpr_metric(r), f"members found at {100 * r:g}% false positives", f"TPR at {100 * r:g}%", _MEMBERS, True)
          for r in RATES),
        ("advantage", "true-positive rate minus false-positive rate", "advantage", _MEMBERS, False),
        ("loss_tail", "non-members whose loss exceeds nearly every member's", "loss tail", _MEMBERS, True),
    ),
    *(
        Metric(name, f"{name.removesuffix('_read').replace('_', ' ')} read", name.replace("_", " "), _WORDS,
               partial(share_read, categories=categories), partial(_share_read, name), cased=True)
        for name, categories in _CATEGORIES.items()
    ),
    *_measured_elsewhere(
        ("exposure", "bits of a planted secret that the model gives away", "exposure (bits)", _SECRETS, False),
        ("secrets_named", "planted secrets that the model likes best", "secrets named", _SECRETS, True),
        ("extractable_at_1", "training texts that 1 sample continues", "extracted by 1", _SECRETS, True),
        ("extractable_at_1000", "training texts that 1,000 samples continue", "extracted by 1e3", _SECRETS, True),
        ("extractable_at_1000000", "training texts that 1e6 samples continue", "extracted by 1e6", _SECRETS, True),
        ("extractable_greedy", "training texts that the likeliest tokens continue", "greedily", _SECRETS, True),
        ("canaries_extracted", "planted secrets that 100 samples contain", "canaries read", _SECRETS, False),
        ("class_words_read", "words typical of the class in its inverted text", "class words", _SECRETS, False),
        ("re_identified", "people named for texts without names", "people named", _PEOPLE, True),
        ("names_reversed", "pseudonyms reversed to names", "names reversed", _PEOPLE, True),
        ("attribute_accuracy", "attributes predicted from vectors", "attributes", _PEOPLE, True),
    ),
)  # fmt: skip


def _of_plug_in(name: str, path: str, found: object) -> Metric:
    """Return a metric of a plug-in, under the name that it was asked for by."""
    if not isinstance(found, Metric):
        raise Unfit("a discreet.metrics.table.Metric", f"a {type(found).__name__}")
    check_name(name, found.name)
    if found.pair is None and found.sample is None:
        raise Unfit("complete", "a metric without a function, `pair` or `sample`")
    return replace(found, name=name)


METRICS = Names("metric", {metric.name: metric for metric in _ALL}, _of_plug_in)


def label_of(metric: str) -> str:
    """Return the label of a metric, or its name in words if it is not in the table.

    >>> label_of("rouge_1"), label_of("own_metric")
    ('words read (ROUGE-1)', 'own metric')
    """
    known = METRICS.known(metric)
    return metric.replace("_", " ") if known is None else known.label


def short_label_of(metric: str) -> str:
    """Return the label of a metric for a table header."""
    known = METRICS.known(metric)
    return metric if known is None else known.short


def is_rate(metric: str) -> bool:
    """Return whether every single value of a metric is 0 or 1, as far as the metric is known."""
    known = METRICS.known(metric)
    return known is not None and known.is_rate


def metric_named(name: str, suits: Callable[[Metric], bool]) -> Metric:
    """Return the metric of a name, one of those that suit a use, or raise SettingError with their names.

    >>> metric_named("rogue_l", lambda metric: metric.pair is not None)
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected metric to be one of ... Did you mean 'rouge_l'?
    """
    if METRICS.owns(name) or not (isinstance(name, str) and name in METRICS):
        plug_ins = [one.name for one in METRICS.plug_ins] if not METRICS.owns(name) else []
        one_of("metric", name, [*(own for own, one in METRICS.items() if suits(one)), *plug_ins])
    elif not suits(METRICS[name]):
        raise invalid("metric", name, "a metric that measures this", "Name another.")
    return METRICS[name]


def text_leakage(
    metric: str, guesses: Sequence[str], truths: Sequence[str], *, rng: Rng, pair: Pair | None = None
) -> Leakage:
    """Return the mean of a metric over guesses and truths in the same order, with its interval and chance level.

    The interval is a 95% bootstrap over the texts (Hoeffding's for few or equal scores), for `exact_match` the exact
    interval of a rate. The chance level is the score of the same guesses against the truths of other guesses; a single
    text has none. `pair` scores one pair for a metric that is not in the table.

    >>> print(text_leakage("jaccard", ["a b", "c d"], ["a b", "c e"], rng=Rng(0)))
    jaccard 0.667 [0.025, 1.000] (n = 2, chance 0.000)
    """
    if pair is None:
        pair = metric_named(metric, lambda one: one.pair is not None).pair
    assert pair is not None
    text.check_lengths(guesses, truths)
    values = [pair(guess, truth) for guess, truth in zip(guesses, truths, strict=True)]
    shifts = text.shifts_of(len(truths), rng.fork("chance"))
    by_chance = [pair(guesses[i], truths[j]) for shift in shifts for i, j in enumerate(shift)]
    return text.leakage_of(metric, values, by_chance, rng, rate=is_rate(metric))
