"""Embedding inversion: a network trained on the attacker's own text predicts the words of a sentence from its vector.

Paper: Song and Raghunathan 2020, Information leakage in embedding models, section 3.3 (black box, multi-label).
Differs: the probability threshold is chosen on held-out auxiliary sentences, for the best F1. Against noise the network
is trained on auxiliary vectors under the same protection, so that success decreases smoothly with the noise: a
reference attack for calibration that needs no candidates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.attacks.base import Need, Returns, VectorAttack
from discreet.attacks.representation.candidates import known_vectors, matrix, released
from discreet.core.errors import UnsupportedError, invalid, positive, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, RepresentationRelease

_NAME = "Embedding inversion"
_HELD_OUT = 10  # one sentence in ten is used to choose the threshold
_CUTS = np.linspace(0.05, 0.9, 35)


@dataclass(frozen=True)
class EmbeddingInversion(VectorAttack):
    """Return the words of the sentence of each released vector, most likely first.

    `Knowledge` holds `auxiliary`, the attacker's own sentences, and `extra["auxiliary"]`, their vectors as the
    protection would release them; without these the public model's unprotected vectors are used. The network learns the
    `words` most frequent words that occur in at least `least` sentences.

    In the guess, `texts` are the words of each vector, joined by spaces, and `scores` their mean probability;
    `details["cut"]` is the probability threshold.
    """

    words: int = 3000
    least: int = 3
    hidden: int = 1024
    epochs: int = 20
    batch_size: int = 128
    rate: float = 1e-3

    name: ClassVar[str] = "inversion"
    returns: ClassVar[Returns] = Returns.BAG_OF_WORDS
    needs: ClassVar[frozenset[Need]] = frozenset({Need.AUXILIARY_VECTORS})
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("words", "least", "hidden", "epochs", "batch_size"):
            whole(name, getattr(self, name))
        positive("rate", self.rate)

    def run(self, seen: RepresentationRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the predicted words of each released vector."""
        vectors = released(seen, _NAME)
        texts, auxiliary = _auxiliary(knows, vectors.shape[1])
        counts = Counter(word for text in texts for word in set(_words(text)))
        vocabulary = [word for word, count in counts.most_common(self.words) if count >= self.least]
        if not vocabulary or len(texts) < 2 * _HELD_OUT:
            rule = f"at least {2 * _HELD_OUT} sentences with words that occur in {self.least} of them"
            raise invalid("auxiliary", len(texts), rule, "Pass more auxiliary text of the same kind.")
        mean, spread = auxiliary.mean(axis=0), max(float(auxiliary.std()), 1e-30)
        inputs = torch.from_numpy((auxiliary - mean) / spread).float()
        bags = _bags(texts, vocabulary)
        held_out = np.arange(len(texts)) % _HELD_OUT == 0
        network = self._train(inputs[~held_out], bags[~held_out], rng)
        with torch.inference_mode():
            cut = best_cut(torch.sigmoid(network(inputs[held_out])).numpy(), bags[held_out].numpy())
            chances = torch.sigmoid(network(torch.from_numpy((vectors - mean) / spread).float())).numpy()
        predicted = [[int(word) for word in np.argsort(-row, kind="stable") if row[word] >= cut] for row in chances]
        return Guess(
            texts=tuple(" ".join(vocabulary[word] for word in row) for row in predicted),
            scores=tuple(
                float(chances[i, row].mean()) if row else float(chances[i].max()) for i, row in enumerate(predicted)
            ),
            details={"cut": cut, "vocabulary": len(vocabulary)},
        )

    def _train(self, inputs: Tensor, bags: Tensor, rng: Rng) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng.fork("network").seed(_NAME))
            first, last = nn.Linear(inputs.shape[1], self.hidden), nn.Linear(self.hidden, bags.shape[1])
        # Every word starts at its frequency; learning it from zero would take most of the epochs.
        frequency = bags.mean(dim=0).clamp(1e-4, 1 - 1e-4)
        with torch.no_grad():
            last.bias.copy_(torch.logit(frequency))
        network = nn.Sequential(first, nn.ReLU(), last)
        optimizer = torch.optim.Adam(network.parameters(), lr=self.rate)
        loss_of = nn.BCEWithLogitsLoss()
        for epoch in range(self.epochs):
            order = torch.from_numpy(rng.fork("order", epoch).permutation(len(inputs)))
            for rows in torch.split(order, self.batch_size):
                loss = loss_of(network(inputs[rows]), bags[rows]) * bags.shape[1]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return network


def best_cut(chances: npt.NDArray[np.float32], bags: npt.NDArray[np.float32]) -> float:
    """Return the probability threshold with the best F1 over all words.

    >>> best_cut(np.array([[0.9, 0.4], [0.6, 0.1]], np.float32), np.array([[1, 0], [1, 0]], np.float32)) > 0.4
    True
    """
    scores = []
    for cut in _CUTS:
        predicted = chances >= cut
        hits = float((predicted * bags).sum())
        scores.append(2 * hits / max(float(predicted.sum() + bags.sum()), 1.0))
    return float(_CUTS[int(np.argmax(scores))])


def _auxiliary(knows: Knowledge, width: int) -> tuple[Sequence[str], npt.NDArray[np.float32]]:
    values = known_vectors(knows, "auxiliary", knows.auxiliary)
    if values is None or not knows.auxiliary:
        raise UnsupportedError(
            f"Expected auxiliary text for {_NAME}, got none. Pass Knowledge(auxiliary=texts, model=the public "
            "encoder), or also their vectors as extra={'auxiliary': tensor}."
        )
    vectors = matrix("extra['auxiliary']", values, width)
    if len(vectors) != len(knows.auxiliary):
        rule = f"as many as their vectors, {len(vectors)}"
        raise invalid("auxiliary", len(knows.auxiliary), rule, "Pass one vector per text.")
    return knows.auxiliary, vectors


def _words(text: str) -> list[str]:
    return text.lower().split()


def _bags(texts: Sequence[str], vocabulary: Sequence[str]) -> Tensor:
    place = {word: i for i, word in enumerate(vocabulary)}
    bags = torch.zeros(len(texts), len(vocabulary))
    for row, text in enumerate(texts):
        for word in _words(text):
            if word in place:
                bags[row, place[word]] = 1.0
    return bags
