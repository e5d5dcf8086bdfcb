"""What an attacker read beside what was written: guesses matched to truths, and each pair scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from discreet.core.checks import one_of
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Leakage
from discreet.data.corpus import Corpus
from discreet.experiment.releases import REPRESENTATION, kind_of
from discreet.metrics.text import PAIRS, match, semantic_cosine, text_leakage
from discreet.models.classifier import Classifier

METRICS = ("rouge_l", "rouge_1", "rouge_2", "lcs_over_longer", "token_accuracy", "bag_recall", "exact_match")
BAG_METRICS = ("bag_recall", "jaccard")
VECTOR_METRICS = ("exact_match", "jaccard", "rouge_l", "bag_recall")  # whole texts are named: the right one, or alike
SEMANTIC = "semantic_cosine"


@dataclass(frozen=True)
class Example:
    """One text under attack: the truth as the tokenizer spells it, what was read, and how close that is.

    For an attack that reads a set of tokens from a gradient, both are the tokens of the whole batch and have no order.
    """

    truth: str
    guess: str
    scores: Mapping[str, float] = field(default_factory=dict)
    batch: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"truth": self.truth, "guess": self.guess, "batch": self.batch, **self.scores}


def reads_a_bag(attack: object) -> bool:
    """Whether an attack says of itself that it reads tokens without their order."""
    return not getattr(attack, "ordered", True)


def aligned(attack: object) -> bool:
    """Whether an attack on vectors has a guess for each of them, in their order, and not one for all together."""
    return kind_of(attack) == REPRESENTATION and bool(getattr(attack, "aligned", True))


def metrics_for(attack: object, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that fit an attack: where none were chosen, those of what it reads; never an order of none."""
    for name in asked:
        one_of("metric", name, [*PAIRS, SEMANTIC])
    if not reads_a_bag(attack):
        return VECTOR_METRICS if kind_of(attack) == REPRESENTATION and tuple(asked) == METRICS else tuple(asked)
    fitting = tuple(name for name in asked if name in BAG_METRICS)
    return fitting if fitting and tuple(asked) != METRICS else BAG_METRICS


def compared(
    attack: object, guess: Guess, batch: Corpus, model: Classifier, metrics: Sequence[str], number: int
) -> list[Example]:
    """Return the texts of a batch beside what was read of them, a guess for each by the matching best for the attacker.

    Truths are spelled as the tokenizer gives them back: an attack that has every token right is right.
    """
    if reads_a_bag(attack) and kind_of(attack) == REPRESENTATION:  # words of each text
        truths = [" ".join(dict.fromkeys(spelled(model, text).split())) for text in _texts(batch)]
        pairs = list(zip(truths, (*guess.texts, *[""] * len(batch)), strict=False))
    elif reads_a_bag(attack):
        pieces = [piece for text in _texts(batch) for piece in model.tokenizer.tokenize(text)]
        read = model.tokenizer.convert_ids_to_tokens(list(guess.indices))
        special = set(model.tokenizer.all_special_tokens)
        pairs = [(" ".join(dict.fromkeys(pieces)), " ".join(piece for piece in read if piece not in special))]
    else:
        truths = [spelled(model, text) for text in _texts(batch)]
        read = [spelled(model, text) for text in guess.texts[: len(batch)]]
        in_order = (*read, *[""] * (len(batch) - len(read)))
        guesses = in_order if aligned(attack) else match(read, truths)
        pairs = list(zip(truths, guesses, strict=True))
    return [
        Example(truth, read, {m: float(PAIRS[m](read, truth)) for m in metrics if m in PAIRS}, number)
        for truth, read in pairs
    ]


def leakages(examples: Sequence[Example], metrics: Sequence[str], rng: Rng) -> tuple[Leakage, ...]:
    """Return every metric over the examples with interval, sample size and chance level."""
    guesses, truths = [e.guess for e in examples], [e.truth for e in examples]
    found = []
    for metric in metrics:
        source = rng.fork(metric)
        if metric == SEMANTIC:
            found.append(semantic_cosine(guesses, truths, embed=sentence_vectors, rng=source))
        else:
            found.append(text_leakage(metric, guesses, truths, rng=source))
    return tuple(found)


def spelled(model: Classifier, text: str) -> str:
    """Return a text as the tokenizer spells what it keeps of it: perhaps without case, cut where the model cuts."""
    ids = model.tokenizer(text, truncation=True, max_length=model.max_length)["input_ids"]
    found: str = model.tokenizer.decode(ids, skip_special_tokens=True)
    return found


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
