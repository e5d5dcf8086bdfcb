"""A typed sentence among the texts of a scene: what an attack is given in place of rows drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.experiment.scene import Scene
from discreet.models.classifier import Classifier
from discreet.releases.gradient import open_release
from discreet.training.encode import encode

UNIT = "sentence"
_AT_ONCE = 8


@dataclass(frozen=True)
class TypedScene(Scene):
    """A scene whose first row is always the typed sentence; the others are those of the scene behind it.

    What is worked out about the sentence is kept in this object alone and goes with it; what is worked out about the
    other texts is kept in the scene behind, for the next sentence.
    """

    base: Scene = field(kw_only=True, repr=False)
    typed: Corpus = field(kw_only=True, repr=False)

    @classmethod
    def beside(cls, base: Scene, sentence: str, label: int) -> TypedScene:
        """Return the scene of a sentence with a label, or with a score of 0, beside the texts of another scene.

        Guarantee: none, this holds the sentence itself; nothing is released yet.
        """
        if base.rows.second is not None:
            raise UnsupportedError("Expected a corpus of single texts to explore, found pairs. Choose another run.")
        rows = replace(base.rows, units=None, unit_name=UNIT, remarks=())
        one = rows.take([0])
        typed = replace(
            one,
            texts=(sentence,),
            labels=None if one.labels is None else (label,),
            scores=None if one.scores is None else (0.0,),
        )
        return cls(base.model, rows, base.public, base.origin, base.run, base=base, typed=typed)

    def draw(self, count: int, rng: Rng, *, max_words: int | None = None, what: str = "examples") -> Corpus:
        """Return the typed sentence, then others of the scene, always the same ones for the same source."""
        if count == 1:
            return self.typed
        drawn = super().draw(count, rng, max_words=max_words, what=what)
        self.cache["drawn"] = drawn
        others = [row for row, text in enumerate(drawn.texts) if text not in self.typed.texts][: count - 1]
        return _after(self.typed, drawn.take(others))

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return the public encoder's vectors of texts; those of the scene are computed once for all sentences."""
        known = set(self.base.rows.texts)
        kept: dict[str, Tensor] = self.cache.setdefault("vectors", {})
        for text in texts:
            if text not in known and text not in kept:
                kept[text] = encode(self.model, Corpus("typed", (text,)), None, "float32").vectors[0].cpu()
        shared = [text for text in texts if text not in kept]
        found = dict(zip(shared, self.base.vectors(shared), strict=True)) if shared else {}
        return torch.stack([kept[text] if text in kept else found[text] for text in texts])

    def prior(self, texts: tuple[str, ...]) -> Any:
        """Return a language model of public text; that of the whole scene is fitted once for all sentences."""
        return self.base.prior(texts) if texts == self.base.public else super().prior(texts)

    def gram(self, candidates: Corpus) -> npt.NDArray[np.float64]:
        """Return the inner products of candidates' gradients; a new sentence costs a row of them, not all."""
        key = ("gram", candidates.texts, candidates.labels, candidates.scores)
        if key not in self.cache:
            drawn: Corpus = self.cache["drawn"]
            places = [drawn.texts.index(text) for text in candidates.texts[1:]]
            every = self.base.gram(drawn)
            own, row = products(self.model, self.typed, candidates.take(range(1, len(candidates))))
            square = np.empty((len(candidates), len(candidates)))
            square[0, 0], square[0, 1:], square[1:, 0] = own, row, row
            square[1:, 1:] = every[np.ix_(places, places)]
            self.cache[key] = square
        found: npt.NDArray[np.float64] = self.cache[key]
        return found


def products(model: Classifier, one: Corpus, others: Corpus) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the squared length of one text's gradient, and its inner products with those of others.

    Guarantee: none, they are for whoever knows all these texts.
    """
    mine = open_release(model, one).gradients
    tokens = tokenise(others, model.tokenizer, model.max_length, model.device)
    order = np.argsort(tokens.lengths, kind="stable")  # texts of like length need little padding
    along = np.empty(len(others))
    for start in range(0, len(others), _AT_ONCE):
        rows = order[start : start + _AT_ONCE].astype(np.int64)
        batch = tokens.batch(rows)
        tape = Tape(model)
        with tape:
            losses = model.losses(batch.inputs, batch.targets)
        along[rows] = tape.backward(losses).inner(mine).double().cpu().numpy()
    own = sum(float(part.double().square().sum()) for part in mine.values())
    return own, along


def _after(first: Corpus, others: Corpus) -> Corpus:
    """Return one row, and others after it."""
    return replace(
        others,
        texts=(*first.texts, *others.texts),
        labels=None if others.labels is None or first.labels is None else (*first.labels, *others.labels),
        scores=None if others.scores is None or first.scores is None else (*first.scores, *others.scores),
        splits=(*first.splits, *others.splits),
    )
