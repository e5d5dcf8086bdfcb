"""What an attacker read beside what was written: guesses matched to truths, and each pair scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from discreet.attacks.base import Attack, Need
from discreet.core.errors import invalid, one_of
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Leakage, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.metrics.table import METRICS, Compares, Sample
from discreet.metrics.text import match
from discreet.models import encoder as spelling
from discreet.models.classifier import Classifier
from discreet.models.encoder import pieces, written

DEFAULT_METRICS = ("rouge_l", "rouge_1", "rouge_2", "lcs_over_longer", "token_accuracy", "bag_recall", "exact_match")
BAG_METRICS = ("bag_recall", "jaccard")
VECTOR_METRICS = ("exact_match", "jaccard", "rouge_l", "bag_recall")  # whole texts are named: the right one, or alike


@dataclass(frozen=True)
class Example:
    """One text under attack: the truth as it was written, what was read, and how close that is.

    Scores compare what was read with `spelling`: the truth in the tokenizer's spelling, perhaps without case, accents
    and spaces around marks, but with the characters that the tokenizer does not know, which nobody can have read.

    For an attack that reads a set of tokens from a gradient, both are the tokens of the whole batch and have no order.
    """

    truth: str
    guess: str
    scores: Mapping[str, float] = field(default_factory=dict)
    batch: int = 0
    spelling: str | None = None

    @property
    def scored(self) -> str:
        """The truth that scores compare with."""
        return self.truth if self.spelling is None else self.spelling

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"truth": self.truth, "guess": self.guess, "batch": self.batch, **self.scores}


def metrics_for(attack: Attack, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that fit an attack: where none were chosen, those of what it reads; never an order of none."""
    for name in asked:
        metric = METRICS[one_of("metric", name, [n for n, m in METRICS.items() if m.compares is not Compares.INDICES])]
        if metric.compares is Compares.CANDIDATES and not (attack.aligned and Need.CANDIDATES in attack.needs):
            remedy = f"It is for attacks that choose among candidates for each vector; {attack.label} does not."
            raise invalid("metric", name, "left out", remedy)
    if attack.is_ordered:
        vectors = attack.sees is RepresentationRelease
        return VECTOR_METRICS if vectors and tuple(asked) == DEFAULT_METRICS else tuple(asked)
    fitting = tuple(name for name in asked if METRICS[name].compares is Compares.WORDS)
    return fitting if fitting and tuple(asked) != DEFAULT_METRICS else BAG_METRICS


def compared(
    attack: Attack, guess: Guess, batch: Corpus, model: Classifier, metrics: Sequence[str], number: int
) -> list[Example]:
    """Return the texts of a batch beside what was read of them, a guess for each by the matching best for the attacker.

    An attack that has every token right is right, where every character of the text has a token: case, accents and
    spaces that the tokenizer drops do not count, characters that it does not know do.
    """
    texts = _texts(batch)
    if not attack.is_ordered and attack.aligned:  # words of each text
        truths = [" ".join(dict.fromkeys(spelled(model, text).split())) for text in texts]
        shown = truths
        guesses: Sequence[str] = (*guess.texts, *[""] * len(batch))[: len(batch)]
    elif not attack.is_ordered:
        every = [piece for text in texts for piece in pieces(model.tokenizer, text)]
        read = model.tokenizer.convert_ids_to_tokens(list(guess.indices))
        special = set(model.tokenizer.all_special_tokens)
        shown = truths = [" ".join(dict.fromkeys(every))]
        guesses = [" ".join(piece for piece in read if piece not in special)]
    else:
        truths = [spelled(model, text) for text in texts]
        shown = [written(model.tokenizer, text, model.max_length) for text in texts]
        read = [spelled(model, text) for text in guess.texts[: len(batch)]]
        in_order = (*read, *[""] * (len(batch) - len(read)))
        guesses = in_order if attack.aligned else match(read, truths)
    return [
        Example(text, read, {m: METRICS[m].score(read, truth) for m in metrics if METRICS[m].pair}, number, truth)
        for text, truth, read in zip(shown, truths, guesses, strict=True)
    ]


def leakages(
    examples: Sequence[Example], metrics: Sequence[str], rng: Rng, candidates: Sequence[str] = ()
) -> tuple[Leakage, ...]:
    """Return every metric over the examples with interval, sample size and chance level.

    `candidates` are the texts that the attacker chose among, as the model's tokenizer spells them.
    """
    guesses, truths = [e.guess for e in examples], [e.scored for e in examples]
    sample = Sample(guesses, truths, candidates, sentence_vectors)
    return tuple(METRICS[metric].leakage(sample, rng.fork(metric)) for metric in metrics)


def spelled(model: Classifier, text: str) -> str:
    """Return a text as the model's tokenizer spells it, cut where the model cuts; what it does not know is kept."""
    return spelling.spelled(model.tokenizer, text, model.max_length)


def sentence_vectors(texts: Sequence[str]) -> Any:
    """Return a vector of meaning for each text, by the built-in sentence encoder."""
    import numpy as np
    import torch

    from discreet.data.batches import tokenise

    model = Classifier.build(Corpus("meaning", ("a",), labels=(0,), label_names=("a", "b")), rng=Rng(0)).eval()
    rows = tokenise(Corpus("texts", tuple(text or "." for text in texts)), model.tokenizer, model.max_length)
    with torch.no_grad():
        vectors = [model.represent(rows.batch(np.array([i])).inputs)[0] for i in range(len(rows))]
    kept = torch.tensor([[float(bool(text.strip()))] for text in texts])
    return (torch.stack(vectors) * kept).numpy()


def _texts(batch: Corpus) -> list[str]:
    if batch.second is None:
        return list(batch.texts)
    return [f"{first} {second}" for first, second in zip(batch.texts, batch.second, strict=True)]
