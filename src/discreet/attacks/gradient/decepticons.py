"""Decepticons: a malicious server sends crafted weights, and reads whole sentences out of the gradient they give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from discreet.attacks.gradient.crafted import Layout, craft
from discreet.attacks.gradient.grouping import chains, groups, sentences
from discreet.attacks.gradient.imprints import Imprints, decode, decoder_rows, feed_forward_rows, joined
from discreet.attacks.gradient.layers import Block, blocks_of, dissect, model_of
from discreet.core.checks import positive, probability, whole
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.models.classifier import Classifier
from discreet.models.language_head import LanguageModel

_NAME = "Decepticons"
_ROWS = 4  # neighbouring bins that a state may show in, as the steps are not quite sharp


@dataclass(frozen=True)
class Decepticons:
    """An active attack in two acts: `craft` makes the weights that the server sends, `run` reads what comes back.

    `sharpness` makes the activation a step: a state is either above a threshold or below it. A state counts if it
    correlates with its token and its position at least by `least_match`; those above `clear_match` form the sentences.
    At most `states` states are read from each layer. Lengths are used if the release has them, and no label is.

    Paper: Fowl et al. 2023, "Decepticons: Corrupted Transformers Breach Privacy in Federated Learning for Language
    Models".
    Differs: every block measures along a direction of its own, so that states which share a bin in one are alone in
    another; words and positions have coordinates of their own, so that both are read exactly through any LayerNorm;
    a sentence's tag is the mean over its tokens, as the first token of a BERT is always the same; the second
    feed-forward layers alternate in sign; masked tokens are read from the language head's gradient.
    """

    sharpness: float = 1e3
    least_match: float = 0.6
    clear_match: float = 0.99
    states: int = 2048

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        positive("sharpness", self.sharpness)
        probability("least_match", self.least_match, "It is a correlation.")
        probability("clear_match", self.clear_match, "It is a correlation.")
        whole("states", self.states)

    def craft(self, model: Classifier, rng: Rng) -> Classifier:
        """Return a copy of a model with the weights that the server sends to its clients."""
        return craft(model, self.sharpness, rng)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the sentences of a batch from the gradient of the crafted model; nothing here is random.

        `details` has the token ids, the number of states that were read, and how well each sentence's matched.
        """
        model = model_of(knows, _NAME)
        anatomy, blocks, layout = dissect(model), blocks_of(model), Layout.of(model.width)
        _require_crafted(blocks)
        longest = max(seen.lengths) if seen.lengths else model.max_length
        most = min(self.states, _ROWS * sum(seen.lengths)) if seen.lengths else self.states
        parts: list[Imprints] = []
        for block in blocks:
            states = feed_forward_rows(seen, block, layout, most, _NAME)
            if len(states):
                parts.append(decode(states, model, anatomy, blocks[0], layout, longest))
        if isinstance(model, LanguageModel) and model.objective == "masked":
            parts = [_less_sure(part, int(model.tokenizer.mask_token_id)) for part in parts]
            tokens, states = decoder_rows(seen, model.head, layout, most)
            if len(states):
                asked = decode(states, model, anatomy, blocks[0], layout, longest)
                parts.append(replace(asked, tokens=tokens.to(asked.tokens)))
        if not parts:
            return Guess(details={"tokens": (), "states": 0})
        found = joined(parts)
        found = found.take((found.matches >= self.least_match).nonzero().flatten())
        words = chains(found, seen.batch_size) if anatomy.causal else groups(found, seen.batch_size, self.clear_match)
        rows = sentences(words)
        details: dict[str, Any] = {"tokens": rows, "states": len(found)}
        texts = tuple(model.tokenizer.decode(list(row), skip_special_tokens=True) for row in rows)
        return Guess(texts=texts, details=details)


def _less_sure(part: Imprints, mask: int) -> Imprints:
    """Let a hidden token's own state give way to what the language head says stood there."""
    return replace(part, matches=torch.where(part.tokens == mask, 0.97 * part.matches, part.matches))


def _require_crafted(blocks: tuple[Block, ...]) -> None:
    for block in blocks:
        weight = block.inner.rows(block.inner.module.weight)  # type: ignore[arg-type]
        if not torch.equal(weight, weight[:1].expand_as(weight)):
            raise UnsupportedError(
                f"Expected the crafted model in Knowledge(model=…) for {_NAME}, found ordinary weights in "
                f"{block.inner.name!r}. Send out Decepticons().craft(model, rng) first; it is an active attack."
            )
