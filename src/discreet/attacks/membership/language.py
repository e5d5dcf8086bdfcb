"""Membership attacks on language models, from the log-probabilities of single tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from discreet.attacks.base import Need
from discreet.attacks.membership.signals import Floats, MembershipAttack, Signals
from discreet.core.errors import UnsupportedError, open_probability
from discreet.core.randomness import Rng


@dataclass(frozen=True)
class ErrorZone(MembershipAttack):
    """Compare a fine-tuned language model with the model it started from, where it still predicts the wrong token.

    At these positions, fine-tuning on a text has raised the probability of its tokens; on other text it moves them up
    and down alike. With P the sum of all rises of the log-probability and N that of all falls, the score is
    P / (P + N). Two forward passes per text, and no training.

    Paper: arXiv 2601.12104 (2026), EZ-MIA.
    Differs: the paper ranks by P / N, which has the same order, and calls it 0 where nothing falls or fewer than two
        positions are wrong, which ranks the surest members last; here N = 0 gives 1 and P = N = 0 gives one half.
    """

    name: ClassVar[str] = "ez-mia"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.TOKENS})

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the share of rises in all changes of the log-probability at wrongly predicted tokens."""
        tokens = signals.tokens
        assert tokens is not None
        if tokens.pretrained is None:
            raise UnsupportedError(
                "Expected the log-probabilities of the model that the target was fine-tuned from, got none. Compute "
                "them with the same tokenizer."
            )
        wrong = tokens.real & ~tokens.hits
        changes = np.where(wrong, tokens.target - tokens.pretrained, 0.0)
        rises, falls = np.maximum(changes, 0).sum(axis=1), np.maximum(-changes, 0).sum(axis=1)
        total = rises + falls
        return np.asarray(np.where(total > 0, rises / np.where(total > 0, total, 1.0), 0.5))


@dataclass(frozen=True)
class MinK(MembershipAttack):
    """Average the log-probabilities of the least likely tokens of a text; members have few very unlikely ones.

    `share` is the share of tokens that count.

    Paper: Shi et al. 2024, Detecting pretraining data from large language models.
    """

    name: ClassVar[str] = "min-k"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.TOKENS})

    share: float = 0.2

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.share != 1:
            open_probability("share", self.share, "It is the share of tokens that count, such as 0.2.")

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the mean log-probability of the least likely tokens."""
        tokens = signals.tokens
        assert tokens is not None
        counts = np.maximum(1, np.floor(self.share * tokens.real.sum(axis=1))).astype(np.int64)
        ordered = np.sort(np.where(tokens.real, tokens.target, np.inf), axis=1)
        chosen = np.arange(ordered.shape[1]) < counts[:, None]
        return np.asarray(np.where(chosen, ordered, 0.0).sum(axis=1) / counts)
