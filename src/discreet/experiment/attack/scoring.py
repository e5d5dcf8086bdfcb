"""Score the guesses of an attack against the truth, and measure its leakage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from discreet.attacks.base import Attack, Need
from discreet.core.errors import invalid
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Leakage, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import DEFAULT_METRICS, Example
from discreet.metrics.table import METRICS, Compares, Sample, metric_named
from discreet.metrics.text import installed_extras, match
from discreet.models import encoder
from discreet.models.base import TextModel
from discreet.models.build import build_classifier
from discreet.models.settings import ModelSettings

BAG_METRICS = ("bag_recall", "jaccard")


CATEGORY_METRICS = ("names_read", "numbers_read", "dates_read", "function_words_read")


VECTOR_METRICS = ("exact_match", "jaccard", "rouge_l", "bag_recall")  # the guess is one of the candidate texts


def metrics_for(attack: Attack, names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that apply to an attack; the default set is replaced by the one for what it returns.

    An attack without word order is never scored by a metric that compares order.
    """
    names = tuple(names)
    for name in names:
        metric = metric_named(name, lambda one: one.pair is not None or one.sample is not None)
        if metric.compares is Compares.CANDIDATES and not (attack.aligned and Need.CANDIDATES in attack.needs):
            remedy = f"It is for attacks that choose a candidate for each vector; {attack.label} does not."
            raise invalid("metric", name, "left out", remedy)
    default = names == DEFAULT_METRICS
    if attack.is_ordered:
        return VECTOR_METRICS if default and attack.sees is RepresentationRelease else names
    unordered = tuple(name for name in names if METRICS[name].compares is Compares.WORDS)
    return BAG_METRICS if default or not unordered else unordered


def further_metrics(attack: Attack, names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that are measured besides the default ones: other overlaps, and each category of words.

    METEOR and the cosine of the Universal Sentence Encoder are measured where their libraries are installed.
    """
    if tuple(names) != DEFAULT_METRICS or not (attack.is_ordered or attack.aligned):
        return ()
    default = metrics_for(attack, names)
    further = ("jaccard", *installed_extras(), *CATEGORY_METRICS) if attack.is_ordered else CATEGORY_METRICS
    return tuple(name for name in further if name not in default)


def check_countable(names: Sequence[str], texts: Sequence[str]) -> None:
    """Reject a metric that was asked for by name and has nothing to count in any of the texts."""
    for name in names:
        if METRICS[name].cased and all(math.isnan(METRICS[name].score(text, text)) for text in texts):
            remedy = "The rules find no such words in the attacked texts; attack others."
            raise invalid("metric", name, "one that counts something", remedy)


def score_guess(
    attack: Attack, guess: Guess, batch: Corpus, model: TextModel, metrics: Sequence[str], number: int
) -> list[Example]:
    """Return the texts of a batch with their guesses, matched to favor the attacker, and the scores.

    A guess with every token right is right, if every character of the text has a token: case, accents and spaces that
    the tokenizer drops do not count, characters that it does not know do.
    """
    texts = [" ".join(row) for row in batch.row_texts]
    if not attack.is_ordered and attack.aligned:  # the words of each text
        shown = truths = [" ".join(dict.fromkeys(tokenizer_spelling(model, text).split())) for text in texts]
        guesses: Sequence[str] = (*guess.texts, *[""] * len(batch))[: len(batch)]
    elif not attack.is_ordered:
        pieces = [piece for text in texts for piece in encoder.pieces(model.tokenizer, text)]
        tokens = model.tokenizer.convert_ids_to_tokens(list(guess.indices))
        special = set(model.tokenizer.all_special_tokens)
        shown = truths = [" ".join(dict.fromkeys(pieces))]
        guesses = [" ".join(token for token in tokens if token not in special)]
    else:
        truths = [tokenizer_spelling(model, text) for text in texts]
        shown = [encoder.written(model.tokenizer, text, model.max_length) for text in texts]
        guesses = [tokenizer_spelling(model, text) for text in guess.texts[: len(batch)]]
        guesses = (*guesses, *[""] * (len(batch) - len(guesses))) if attack.aligned else match(guesses, truths)
    written = texts if len(texts) == len(truths) else truths
    return [
        Example(text, answer, _scores(answer, truth, original, metrics), number, truth, original)
        for text, truth, answer, original in zip(shown, truths, guesses, written, strict=True)
    ]


def _scores(guess: str, truth: str, written: str, metrics: Sequence[str]) -> dict[str, float]:
    """Return the scores of one guess by metric, without those that have nothing to count in this text."""
    single = [METRICS[name] for name in metrics if METRICS[name].pair]
    scores = {metric.name: metric.score(guess, written if metric.cased else truth) for metric in single}
    return {name: score for name, score in scores.items() if not math.isnan(score)}


def measure_leakage(
    examples: Sequence[Example], metrics: Sequence[str], rng: Rng, candidates: Sequence[str] = ()
) -> tuple[Leakage, ...]:
    """Return every metric over the examples with confidence interval, sample size and chance level.

    `candidates` are the texts that the attacker chose among, as the model's tokenizer spells them.
    """
    guesses, truths = [e.guess for e in examples], [e.scored for e in examples]
    written = [e.scored if e.written is None else e.written for e in examples]
    sample = Sample(guesses, truths, candidates, sentence_vectors, written)
    measured = [METRICS[metric].leakage(sample, rng.fork(metric)) for metric in metrics]
    return tuple(leakage for leakage in measured if leakage.n)


def tokenizer_spelling(model: TextModel, text: str) -> str:
    """Return a text as the model's tokenizer spells it, truncated to the model's length; unknown words are kept."""
    return encoder.spelled(model.tokenizer, text, model.max_length)


def sentence_vectors(texts: Sequence[str]) -> Any:
    """Return a vector for each text from the built-in sentence encoder; zeros for an empty text."""
    import numpy as np
    import torch

    from discreet.data.batches import tokenise

    two = Corpus("meaning", ("a",), labels=(0,), label_names=("a", "b"))
    model = build_classifier(two, ModelSettings(), rng=Rng(0)).eval()
    rows = tokenise(Corpus("texts", tuple(text or "." for text in texts)), model.tokenizer, model.max_length)
    with torch.no_grad():
        vectors = [model.represent(rows.batch(np.array([i])).inputs)[0] for i in range(len(rows))]
    nonempty = torch.tensor([[float(bool(text.strip()))] for text in texts])
    return (torch.stack(vectors) * nonempty).numpy()
