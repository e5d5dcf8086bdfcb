"""A scene whose attacked text is a typed sentence instead of sampled rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.attacks.identification import losses_of
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.experiment.attack.scene import Scene
from discreet.models.base import TextModel
from discreet.models.build import encode
from discreet.releases.gradient import open_release

UNIT = "sentence"
_AT_ONCE = 8


@dataclass(frozen=True)
class TypedScene(Scene):
    """A scene whose first row is the typed sentence; the other rows are those of the base scene.

    Values computed from the sentence are cached only in this object and are dropped with it. Values computed from the
    other texts are cached in the base scene, for the next sentence.
    """

    base: Scene = field(kw_only=True, repr=False)
    typed: Corpus = field(kw_only=True, repr=False)

    @classmethod
    def beside(cls, base: Scene, sentence: str, label: int) -> TypedScene:
        """Return the scene of a sentence with a label, or with a score of 0, and the texts of a base scene.

        Guarantee: none, this holds the sentence itself; nothing is released yet.
        """
        if base.rows.second is not None:
            raise UnsupportedError("Expected a corpus of single texts, got pairs. Choose another run.")
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
        """Return the typed sentence, then other texts of the scene; the same generator selects the same texts."""
        if count == 1:
            return self.typed
        sampled = super().draw(count, rng, max_words=max_words, what=what)
        self.cache["sampled"] = sampled
        others = [row for row, text in enumerate(sampled.texts) if text not in self.typed.texts][: count - 1]
        return _after(self.typed, sampled.take(others))

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return the public encoder's vectors of texts; those of the base scene are computed once for all sentences."""
        base_texts = set(self.base.rows.texts)
        own: dict[str, Tensor] = self.cache.setdefault("vectors", {})
        for text in texts:
            if text not in base_texts and text not in own:
                own[text] = encode(self.model, Corpus("typed", (text,)), None, "float32").vectors[0].cpu()
        shared = [text for text in texts if text not in own]
        vectors = dict(zip(shared, self.base.vectors(shared), strict=True)) if shared else {}
        return torch.stack([own[text] if text in own else vectors[text] for text in texts])

    def prior(self, texts: tuple[str, ...]) -> Any:
        """Return a language model of public text; that of the base scene is fitted once for all sentences."""
        return self.base.prior(texts) if texts == self.base.public else super().prior(texts)

    def gram(self, candidates: Corpus) -> npt.NDArray[np.float64]:
        """Return the inner products of the candidates' gradients; a new sentence adds only one row."""
        key = ("gram", candidates.texts, candidates.labels, candidates.scores)
        if key not in self.cache:
            sampled: Corpus = self.cache["sampled"]
            places = [sampled.texts.index(text) for text in candidates.texts[1:]]
            base_gram = self.base.gram(sampled)
            own, row = products(self.model, self.typed, candidates.take(range(1, len(candidates))))
            square = np.empty((len(candidates), len(candidates)))
            square[0, 0], square[0, 1:], square[1:, 0] = own, row, row
            square[1:, 1:] = base_gram[np.ix_(places, places)]
            self.cache[key] = square
        gram: npt.NDArray[np.float64] = self.cache[key]
        return gram


def products(model: TextModel, one: Corpus, others: Corpus) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the squared norm of one text's gradient, and its inner products with those of other texts.

    Guarantee: none, this is not for release.
    """
    gradients = open_release(model, one).gradients
    tokens = tokens_for(model, others)
    order = np.argsort(tokens.lengths, kind="stable")  # texts of similar length need little padding
    inner = np.empty(len(others))
    for start in range(0, len(others), _AT_ONCE):
        rows = order[start : start + _AT_ONCE].astype(np.int64)
        tape, losses = losses_of(model, tokens, rows)
        inner[rows] = tape.backward(losses).inner(gradients).double().cpu().numpy()
    own = sum(float(part.double().square().sum()) for part in gradients.values())
    return own, inner


def _after(first: Corpus, others: Corpus) -> Corpus:
    """Return the rows of `first` followed by those of `others`."""
    return replace(
        others,
        texts=(*first.texts, *others.texts),
        labels=None if others.labels is None or first.labels is None else (*first.labels, *others.labels),
        scores=None if others.scores is None or first.scores is None else (*first.scores, *others.scores),
        splits=(*first.splits, *others.splits),
    )
