"""Recovers sentences from noisy gradients by minimizing the distance to the spans of the first layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from discreet.attacks.base import GradientAttack, TimeLimit, check_search
from discreet.attacks.encoder_layers import Anatomy, dissect, model_of
from discreet.attacks.span.sentence_search import Budget, Check, Checks, Choices, Sentence, penalize_used, search
from discreet.attacks.span.spans import Span, nearest_tokens, span_of
from discreet.core.errors import UnsupportedError, non_negative, positive
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.base import TextModel

_NAME = "the subspace attack"
_AS_CLOSE = 2.0  # a sentence is preferred to a prefix of another up to this factor of the prefix's distance


@dataclass(frozen=True)
class Subspace(GradientAttack):
    """Find the sentence whose states lie closest to the noisy spans, by gradient descent on their distance.

    DAGER tests whether a state lies in a span, which small noise makes false. This attack searches for the closest
    sentence: it keeps the `choices` tokens closest to the first block's span at each position, optimizes mixtures of
    them by the distances after the first attention and at the second block, and improves the result one token at a
    time. A span has the directions whose singular value is above the largest one of the noise. `rounding` is the
    rounding error of the client, and `tolerance` its largest effect on a state, as the sine of an angle.

    Lengths are required. The attack returns one sentence per distinct length. In a causal model the prefix of a longer
    sentence lies as close as a separate sentence: if the search ends at a prefix, it runs again without it, and that
    result is used if it lies about as close.

    Paper: after the abstract of TIGER (2026), the successor of DAGER, which makes the span's distance differentiable.
    Differs: mixtures of likely tokens are optimized instead of free vectors; the full paper was not available.
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
    has_time_limit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_search(self, "choices", "starts", "steps", "sweeps")
        positive("rate", self.rate)
        non_negative("sharpness", self.sharpness)
        non_negative("rounding", self.rounding)
        non_negative("tolerance", self.tolerance)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return one sentence per length, closest first; `details` has token ids, distances and ranks."""
        limit = TimeLimit(self.seconds)
        model = model_of(knows, _NAME)
        anatomy = dissect(model)
        if seen.lengths is None:
            raise UnsupportedError(f"Expected lengths in the release for {_NAME}, got none. Use DAGER instead.")
        first = span_of(seen, anatomy.first, self.rounding, _NAME)
        details: dict[str, Any] = {"ranks": (first.rank,), "tokens": (), "distances": ()}
        if first.rank == 0 or first.fills_the_width:
            return Guess(details=details)
        guide = self._guide(seen, model, anatomy)
        details["ranks"] = (first.rank, *(check.span.rank for check in guide.parts))
        results: list[tuple[float, Sentence]] = []
        budget = Budget(self.starts, self.steps, self.rate, self.sweeps, 1, limit)
        for length in sorted(set(seen.lengths), reverse=True):  # prefixes of longer sentences are then known
            choices = self._choices(model, anatomy, first, length)
            source = rng.fork("length", length).torch(model.device, _NAME)
            if not guide.parts:
                results.append((1.0, tuple(tokens[0] for tokens in choices.tokens)))
                continue
            sentence = search(guide, choices, anatomy.embeddings.words, budget, source)
            distance = guide.distance(sentence, model.device)
            prefixes = {longer[:length] for _, longer in results} if anatomy.causal else set()
            if sentence in prefixes:
                used = {(place, token) for prefix in prefixes for place, token in enumerate(prefix)}
                reduced = penalize_used(choices, used)
                other = search(guide, reduced, anatomy.embeddings.words, budget, source, prefixes)
                other_distance = guide.distance(other, model.device)
                if other_distance <= _AS_CLOSE * distance + self.tolerance:
                    sentence, distance = other, other_distance
            results.append((distance, sentence))
        results.sort()
        details["tokens"] = tuple(sentence for _, sentence in results)
        details["stopped_by_time_limit"] = limit.reached
        details["distances"] = tuple(distance for distance, _ in results)
        texts = tuple(model.tokenizer.decode(list(s), skip_special_tokens=True) for _, s in results)
        return Guess(texts=texts, scores=tuple(-d for d, _ in results), details=details)

    def _guide(self, seen: GradientRelease, model: TextModel, anatomy: Anatomy) -> Checks:
        """Return the checks after the first attention whose spans are still informative under the noise."""
        parts: list[Check] = []
        for projections in (anatomy.middle, anatomy.second):
            if not any(p.name in seen.gradients for p in projections):
                continue
            span = span_of(seen, projections, self.rounding, _NAME)
            if span.rank and not span.fills_the_width:
                parts.append(Check(model, projections[0].module, span))
        return Checks(tuple(parts))

    def _choices(self, model: TextModel, anatomy: Anatomy, first: Span, length: int) -> Choices:
        tokens, distances = nearest_tokens(anatomy.embeddings, first, length, self.choices)
        bare = model.tokenizer("")["input_ids"]
        rows: list[list[int]] = tokens.tolist()
        priors: list[list[float]] = (-self.sharpness * distances).tolist()
        if len(bare) == 2:  # every text has the same first and last token
            for place, token in ((0, bare[0]), (length - 1, bare[1])):
                rows[place], priors[place] = [int(token)], [0.0]
        return Choices(rows, priors)
