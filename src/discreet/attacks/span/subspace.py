"""Reads sentences out of noisy gradients: the distance to the spans of the first layers is followed, not tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from discreet.attacks.base import Attack, TimeLimit
from discreet.attacks.encoder_layers import Anatomy, dissect, model_of
from discreet.attacks.span.sentence_search import Budget, Check, Choices, Sentence, narrowed, search
from discreet.attacks.span.spans import Span, nearest_tokens, span_of
from discreet.core.errors import UnsupportedError, non_negative, positive, whole
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge, Release
from discreet.models.classifier import Classifier

_NAME = "the subspace attack"
_AS_CLOSE = 2.0  # times the distance of a beginning that another sentence may have and be preferred


@dataclass(frozen=True)
class Subspace(Attack):
    """The sentence whose states lie closest to the spans that noise leaves, found by descent on their distance.

    DAGER asks whether a state lies in a span, which noise soon makes false. This attack asks which sentence lies
    closest: at each position the `choices` tokens closest to the first block's span are kept, mixtures of them follow
    the gradient of the distances behind the first attention and at the second block, and the result is improved a token
    at a time. A span holds the directions whose singular value is above the largest that noise alone has. `rounding` is
    what the client's arithmetic loses, and `tolerance` how far, as the sine of an angle, it may turn a state.

    Lengths are needed. Sentences of one batch are found one for each length; of equal lengths one alone is found. In a
    causal model the beginning of a longer sentence lies as close as a sentence of its own: where the search ends at
    one, it is made again without it, and what it finds then is taken if it lies about as close.

    Paper: after the abstract of TIGER (2026), the successor of DAGER, which makes the span's distance differentiable.
    Differs: mixtures of likely tokens are optimised instead of free vectors; the rest of the paper was not at hand.
    """

    choices: int = 48
    starts: int = 4
    steps: int = 120
    rate: float = 0.1
    sweeps: int = 4
    sharpness: float = 20.0
    rounding: float = 4e-7
    tolerance: float = 1e-3
    seconds: float | None = None

    name: ClassVar[str] = "subspace"
    sees: ClassVar[type[Release]] = GradientRelease
    has_time_limit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("choices", "starts", "steps", "sweeps"):
            whole(name, getattr(self, name))
        positive("rate", self.rate)
        non_negative("sharpness", self.sharpness)
        non_negative("rounding", self.rounding)
        non_negative("tolerance", self.tolerance)
        if self.seconds is not None:
            positive("seconds", self.seconds)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return one sentence for each length, closest first; `details` has token ids, distances and ranks."""
        limit = TimeLimit(self.seconds)
        model = model_of(knows, _NAME)
        anatomy = dissect(model)
        if seen.lengths is None:
            raise UnsupportedError(f"Expected lengths in the release for {_NAME}. Without them use DAGER.")
        first = span_of(seen, anatomy.first, self.rounding, _NAME)
        details: dict[str, Any] = {"ranks": (first.rank,), "tokens": (), "distances": ()}
        if first.rank == 0 or first.fills_the_width:
            return Guess(details=details)
        guide = self._guide(seen, model, anatomy)
        details["ranks"] = (first.rank, *(check.span.rank for check in guide.parts))
        found: list[tuple[float, Sentence]] = []
        budget = Budget(self.starts, self.steps, self.rate, self.sweeps, 1, limit)
        for length in sorted(set(seen.lengths), reverse=True):  # beginnings of longer sentences are known then
            choices = self._choices(model, anatomy, first, length)
            source = rng.fork("length", length).torch(model.device, _NAME)
            if not guide.parts:
                found.append((1.0, tuple(tokens[0] for tokens in choices.tokens)))
                continue
            sentence = search(guide, choices, anatomy.embeddings.words, budget, source)
            distance = guide.distance(sentence, model.device)
            begun = {longer[:length] for _, longer in found} if anatomy.causal else set()
            if sentence in begun:
                used = {(place, token) for longer in begun for place, token in enumerate(longer)}
                other = search(guide, narrowed(choices, used), anatomy.embeddings.words, budget, source, begun)
                away = guide.distance(other, model.device)
                if away <= _AS_CLOSE * distance + self.tolerance:
                    sentence, distance = other, away
            found.append((distance, sentence))
        found.sort()
        details["tokens"] = tuple(sentence for _, sentence in found)
        details["stopped_by_time_limit"] = limit.reached
        details["distances"] = tuple(distance for distance, _ in found)
        texts = tuple(model.tokenizer.decode(list(s), skip_special_tokens=True) for _, s in found)
        return Guess(texts=texts, scores=tuple(-d for d, _ in found), details=details)

    def _guide(self, seen: GradientRelease, model: Classifier, anatomy: Anatomy) -> _Together:
        """Return the places behind the first attention whose spans noise has left something of."""
        parts: list[Check] = []
        for projections in (anatomy.middle, anatomy.second):
            if not any(p.name in seen.gradients for p in projections):
                continue
            span = span_of(seen, projections, self.rounding, _NAME)
            if span.rank and not span.fills_the_width:
                parts.append(Check(model, projections[0].module, span))
        return _Together(tuple(parts))

    def _choices(self, model: Classifier, anatomy: Anatomy, first: Span, length: int) -> Choices:
        tokens, distances = nearest_tokens(anatomy.embeddings, first, length, self.choices)
        bare = model.tokenizer("")["input_ids"]
        rows: list[list[int]] = tokens.tolist()
        priors: list[list[float]] = (-self.sharpness * distances).tolist()
        if len(bare) == 2:  # every text begins and ends alike
            for place, token in ((0, bare[0]), (length - 1, bare[1])):
                rows[place], priors[place] = [int(token)], [0.0]
        return Choices(rows, priors)


@dataclass(frozen=True)
class _Together:
    """Several places in a model at once; a state's distance is the root of the mean square over them."""

    parts: tuple[Check, ...]

    def distances(self, sentences: Tensor) -> Tensor:
        """Return the distance of every state, (sentences, tokens)."""
        return torch.stack([check.distances(sentences).square() for check in self.parts]).mean(dim=0).sqrt()

    def distance(self, sentence: Sentence, device: torch.device) -> float:
        """Return the mean distance of the states of one sentence."""
        return float(self.distances(torch.tensor([sentence], device=device)).mean())

    def squares(self, vectors: Tensor, outside: Tensor) -> Tensor:
        """Return squared distances that can be differentiated; what lies outside is found once, in `outside`."""
        width = vectors.shape[-1]
        bases = torch.split(outside, [width - check.span.rank for check in self.parts])
        found = [check.squares(vectors, base) for check, base in zip(self.parts, bases, strict=True)]
        return torch.stack(found).mean(dim=0)

    def outside(self) -> Tensor:
        """Return orthonormal bases of what lies outside each span, one below the other."""
        return torch.cat([check.outside() for check in self.parts])
