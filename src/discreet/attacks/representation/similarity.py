"""Similarity search: which of the attacker's candidate sentences matches a released vector.

Paper: Huang et al. 2020, TextHide: Tackling Data Privacy in Language Understanding Tasks, section 4.4 (RSS).
Differs: the paper prints the smallest cosine where the largest is meant. Its signed cosine fails under a mask, from
which it concludes that masks protect. This module adds the cosine of absolute values, which masks do not change, and
least squares, which undoes mixing and masks and identifies every sentence of the mixture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from discreet.attacks.base import Mixing, Need, VectorAttack
from discreet.attacks.representation.candidates import candidates, released
from discreet.attacks.representation.index import RANKED, nearest
from discreet.attacks.representation.unmask import Unmasker
from discreet.core.errors import whole
from discreet.core.randomness import Rng
from discreet.core.rules import OneOf, check_fields, ruled
from discreet.core.types import Guess, Knowledge, RepresentationRelease

SCORES = ("signed", "absolute", "least-squares")
_NAME = "Similarity search"


@dataclass(frozen=True)
class Similarity(VectorAttack):
    """Return the candidate nearest to each released vector.

    `score` is `signed` (cosine, as in the paper), `absolute` (cosine of absolute values, which masks do not change) or
    `least-squares` (the candidate with the largest weight in the mixture, from `rounds` rounds of predicting signs and
    solving for weights, over a growing shortlist that starts with `shortlist` candidates; one round uses only the signs
    that public vectors reveal). `masked` tells least squares that signs are hidden.

    It needs the candidates: texts with the public model, or their vectors (see `candidates`).

    In the guess, `indices`, `texts` and `scores` have one entry per released vector: the best candidate and its cosine
    or weight. `details` has `ranked`, the five best candidates of each vector, and for least squares `weights`, their
    weights, and `misfit`, the share of each vector that the mixture does not explain.
    """

    score: str = ruled("signed", OneOf(SCORES))
    masked: bool = True
    rounds: int = 12
    shortlist: int = 64

    name: ClassVar[str] = "rss"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES})
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fields(self)
        whole("rounds", self.rounds)
        whole("shortlist", self.shortlist)

    def run(self, seen: RepresentationRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the best candidate for each released vector; the attack is deterministic."""
        queries = released(seen, _NAME)
        pool = candidates(knows, queries.shape[1], _NAME)
        if self.score == "least-squares":
            unmasker = Unmasker(pool, rounds=self.rounds, shortlist=self.shortlist)
            mixtures = unmasker.mixtures(queries, masked=self.masked)
            best = tuple(mixture.rows[0] for mixture in mixtures)
            return Guess(
                texts=pool.named(best),
                scores=tuple(mixture.weights[0] for mixture in mixtures),
                indices=best,
                details={
                    "ranked": tuple(mixture.rows[:RANKED] for mixture in mixtures),
                    "weights": tuple(mixture.weights[:RANKED] for mixture in mixtures),
                    "misfit": tuple(mixture.misfit for mixture in mixtures),
                },
            )
        transform = np.abs if self.score == "absolute" else np.asarray
        return nearest(pool, transform(pool.vectors), transform(queries))

    @property
    def misled_by_masks(self) -> bool:
        """Whether it compares signs, which a mask on released vectors flips."""
        return self.score == "signed"

    def informed(self, mixing: Mixing) -> Self:
        """Return the attack with `masked` set from the protection."""
        return replace(self, masked=mixing.masked)
