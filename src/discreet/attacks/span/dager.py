"""DAGER: recovers sentences exactly from a gradient, by testing which states lie in the span of a layer's inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from discreet.attacks.base import GradientAttack, TimeLimit, check_search
from discreet.attacks.encoder_layers import Anatomy, dissect, model_of, reject_pairs
from discreet.attacks.span.sentence_search import Budget, Check, Choices, Sentence, grow, penalize_used, search
from discreet.attacks.span.spans import Span, is_informative, shares, span_of, token_sets
from discreet.core.errors import non_negative, positive
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.base import TextModel

_NAME = "DAGER"


@dataclass(frozen=True)
class Dager(GradientAttack):
    """Span checks on the first block for tokens and positions, and on the second for whole sentences.

    `token_distance` and `sentence_distance` are the largest distances of a true state from a span, as the sine of an
    angle, without noise; noise increases them by the angle by which it may rotate the span, up to 0.05. `rounding` is
    the rounding error of the client, relative to the largest singular value. For an encoder, sentences are searched for
    with `starts` mixtures and `steps` steps of gradient descent, at most `rounds` times for each length; up to
    `all_at_most` sentences are enumerated. For a decoder, at most `beginnings` prefixes are kept. `seconds` is an upper
    limit that ends the search with the best result so far, and `details` says so; the first block's tokens are always
    computed.

    Labels, a prior over text and the word-embedding gradient are not used. Lengths are used if the release has them.

    Paper: Petrov et al. 2024, "DAGER: Exact Gradient Inversion for Large Language Models".
    Differs: the gradients of queries, keys and values are combined, so that the span is also complete if only one state
    is pooled, provided that there is a third block; encoders are searched by relaxation and descent instead of
    enumeration, guided by the states after the first attention and verified at the second block; aliased tokens get
    lower weights before the search.
    """

    token_distance: float = 1e-3
    sentence_distance: float = 1e-3
    rounding: float = 4e-7
    starts: int = 4
    steps: int = 120
    rate: float = 0.1
    sweeps: int = 4
    rounds: int = 3
    all_at_most: int = 256
    beginnings: int = 512
    seconds: float | None = None

    name: ClassVar[str] = "dager"
    has_time_limit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        positive("token_distance", self.token_distance)
        positive("sentence_distance", self.sentence_distance)
        positive("rate", self.rate)
        non_negative("rounding", self.rounding)
        check_search(self, "starts", "steps", "sweeps", "rounds", "all_at_most", "beginnings")

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the sentences of a batch; those confirmed by both checks come first.

        `details` has the token ids, which sentences are confirmed, the (position, token) pairs that pass the check of
        the first block (including aliases), and the ranks of the spans.
        """
        limit = TimeLimit(self.seconds)
        model = model_of(knows, _NAME)
        if seen.lengths is not None and model.unread:
            seen = replace(seen, lengths=tuple(length - model.unread for length in seen.lengths))
        anatomy = dissect(model)
        reject_pairs(seen, anatomy, _NAME)
        first = span_of(seen, anatomy.first, self.rounding, _NAME)
        second = span_of(seen, anatomy.second, self.rounding, _NAME)
        details: dict[str, Any] = {"ranks": (first.rank, second.rank), "tokens": (), "confirmed": (), "pairs": ()}
        if not (is_informative(seen, first, _NAME) and is_informative(seen, second, _NAME)):
            return Guess(details=details)
        sets = token_sets(anatomy.embeddings, first, max(self.token_distance, first.slack), model.max_length)
        details["pairs"] = tuple((place, token) for place, tokens in enumerate(sets) for token in tokens)
        if not sets or second.rank == 0:
            return Guess(details=details)
        final = Check(model, anatomy.second[0].module, second)
        within = max(self.sentence_distance, second.slack)
        if anatomy.causal:
            sentences = self._decoder(final, sets, seen, within, limit)
        else:
            sentences = self._encoder(seen, model, anatomy, first, final, sets, within, limit, rng)
        sentences = sentences[: seen.batch_size]
        distances = [_farthest(final, sentence, model.device) for sentence in sentences]
        details |= {"tokens": tuple(sentences), "stopped_by_time_limit": limit.reached}
        details["confirmed"] = tuple(distance <= within for distance in distances)
        texts = tuple(model.tokenizer.decode(list(sentence), skip_special_tokens=True) for sentence in sentences)
        return Guess(texts=texts, scores=tuple(-distance for distance in distances), details=details)

    def _decoder(
        self, final: Check, sets: Sequence[Sequence[int]], seen: GradientRelease, within: float, limit: TimeLimit
    ) -> list[Sentence]:
        """Return the sentences of a causal model; with lengths, also those that are prefixes of another sentence."""
        start = final.model.frame[0]
        opening = () if start is None else (start,)
        # The opening token again would look the same to a model without positions.
        sets = [[token for token in tokens if token not in opening] for tokens in sets]
        sentences = sorted(grow(final, sets, within, self.beginnings, limit, opening), key=len, reverse=True)
        if seen.lengths is None or limit.over():
            return sentences
        selected: list[Sentence] = []
        for length in sorted(seen.lengths, reverse=True):
            exact = [sentence for sentence in sentences if len(sentence) == length and sentence not in selected]
            prefixes = [sentence[:length] for sentence in sentences if len(sentence) > length]
            selected += (exact or [sentence for sentence in prefixes if sentence not in selected] or prefixes)[:1]
        return selected

    def _encoder(
        self,
        seen: GradientRelease,
        model: TextModel,
        anatomy: Anatomy,
        first: Span,
        final: Check,
        sets: Sequence[Sequence[int]],
        within: float,
        limit: TimeLimit,
        rng: Rng,
    ) -> list[Sentence]:
        """Return the sentences of a bidirectional model: confirmed ones, then the closest of the others."""
        weights = _log_shares(anatomy, first, sets)
        guide = final
        if any(p.name in seen.gradients for p in anatomy.middle):
            middle = span_of(seen, anatomy.middle, self.rounding, _NAME)
            if middle.rank > 0 and not middle.fills_the_width:
                guide = Check(model, anatomy.middle[0].module, middle)
        start, end = _ends(model)
        budget = Budget(self.starts, self.steps, self.rate, self.sweeps, self.all_at_most, limit)
        open_lengths = list(seen.lengths) if seen.lengths is not None else _possible_lengths(sets, end)
        has_lengths = seen.lengths is not None
        confirmed: list[Sentence] = []
        closest: dict[int, Sentence] = {}
        for turn in range(self.rounds):
            for length in sorted(set(open_lengths)):
                if length > len(sets) or len(confirmed) == seen.batch_size or (turn and limit.over()):
                    continue
                choices = _choices(sets, weights, length, start, end)
                if choices is None or (turn and choices.count <= self.all_at_most):
                    continue
                used = {(place, token) for sentence in confirmed for place, token in enumerate(sentence)}
                source = rng.fork(turn, length).torch(model.device, _NAME)
                sentence = search(guide, penalize_used(choices, used), anatomy.embeddings.words, budget, source)
                if _farthest(final, sentence, model.device) > within:
                    closest[length] = sentence
                elif sentence not in confirmed:
                    confirmed.append(sentence)
                    if has_lengths:
                        open_lengths.remove(length)
        return confirmed + [closest[length] for length in dict.fromkeys(open_lengths) if length in closest]


def _log_shares(anatomy: Anatomy, first: Span, sets: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the logarithm of each pair's share of the first span."""
    device = anatomy.embeddings.words.device
    tokens = torch.tensor([token for options in sets for token in options], device=device)
    places = torch.tensor([place for place, options in enumerate(sets) for _ in options], device=device)
    values = iter(shares(first, anatomy.embeddings.inputs(tokens, places)).log().tolist())
    return [[next(values) for _ in options] for options in sets]


def _ends(model: TextModel) -> tuple[int | None, int | None]:
    """Return the special tokens at the start and end of every text, or None for each."""
    opening, closing = model.frame
    return (None, None) if opening is None or closing is None else (opening, closing)


def _possible_lengths(sets: Sequence[Sequence[int]], end: int | None) -> list[int]:
    return [place + 1 for place, tokens in enumerate(sets) if end is None or end in tokens]


def _choices(
    sets: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], length: int, start: int | None, end: int | None
) -> Choices | None:
    """Return the possible tokens at each position of a sentence of a length; None if no sentence can end there."""
    tokens: list[list[int]] = []
    prior: list[list[float]] = []
    for place in range(length):
        fixed = start if place == 0 else end if place == length - 1 else None
        if fixed is not None and fixed in sets[place]:
            tokens.append([fixed])
            prior.append([0.0])
            continue
        if fixed is not None and place:
            return None
        rows = [(t, w) for t, w in zip(sets[place], weights[place], strict=True) if t not in (start, end)]
        rows = rows or list(zip(sets[place], weights[place], strict=True))
        tokens.append([t for t, _ in rows])
        prior.append([w for _, w in rows])
    return Choices(tokens, prior)


def _farthest(check: Check, sentence: Sentence, device: torch.device) -> float:
    distances: Tensor = check.distances(torch.tensor([sentence], device=device))
    value = float(distances.max())
    return value if math.isfinite(value) else 1.0
