"""Attribute inference: a sensitive attribute of each text is predicted from its released vector.

The attacker fits a linear classifier to vectors of public texts whose attribute is known.

Paper: Song and Raghunathan 2020, Information leakage in embedding models, section 5 (sensitive attribute inference).
Differs: multinomial logistic regression on standardized vectors; under a protection the attacker's own vectors are
protected the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.attacks.base import Need, PeopleAttack, Returns
from discreet.attacks.representation.candidates import matrix, released
from discreet.core.errors import UnsupportedError, invalid, positive, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, Release, RepresentationRelease

_NAME = "Attribute inference"


@dataclass(frozen=True)
class AttributeInference(PeopleAttack):
    """Return the most likely class of each released vector.

    `extra["attributes"]` holds public vectors and the number of the class of each. `attribute` names what the
    experiment asks for: `label`, a column of the register (for the built-in notes `sex`, `age`, `job`), in `bands`
    equally large groups where the values are numbers. `register` is a CSV file as for linkage. `penalty` is that on the
    squared weights, per vector.

    In the guess, `indices` are classes and `scores` their probabilities.
    """

    attribute: str = "label"
    bands: int = 4
    register: str = ""
    penalty: float = 1e-3
    steps: int = 50

    name: ClassVar[str] = "attribute"
    sees: ClassVar[type[Release]] = RepresentationRelease
    returns: ClassVar[Returns] = Returns.SCORES
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ATTRIBUTES})

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("bands", self.bands, 2, "Numbers are grouped into at least two bands.")
        whole("steps", self.steps)
        positive("penalty", self.penalty)

    def run(self, seen: RepresentationRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the most likely class of each released vector."""
        vectors = released(seen, _NAME)
        known = knows.extra.get(Need.ATTRIBUTES.value)
        if known is None:
            raise UnsupportedError(
                f"Expected public vectors with their classes for {_NAME}, got none. Pass "
                "Knowledge(extra={'attributes': (vectors, classes)})."
            )
        public = matrix("extra['attributes'][0]", known[0], vectors.shape[1])
        classes = np.asarray(known[1], dtype=np.int64)
        if classes.shape != (len(public),) or len(np.unique(classes)) < 2:
            rule = f"one class for each of {len(public)} vectors, at least two different ones"
            raise invalid("attributes", classes.shape, rule, "Pass more public rows, or another attribute.")
        mean, spread = public.mean(axis=0), np.maximum(public.std(axis=0), 1e-12)
        inputs, targets = torch.from_numpy((public - mean) / spread).double(), torch.from_numpy(classes)
        head = self._fit(inputs, targets)
        with torch.inference_mode():
            chances = head(torch.from_numpy((vectors - mean) / spread).double()).softmax(dim=-1)
        return Guess(
            indices=tuple(chances.argmax(dim=-1).tolist()),
            scores=tuple(chances.amax(dim=-1).tolist()),
        )

    def _fit(self, inputs: Tensor, targets: Tensor) -> nn.Module:
        """Return the logistic regression; its start is zero, so it needs no randomness."""
        head = nn.Linear(inputs.shape[1], int(targets.max()) + 1, dtype=torch.float64)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        optimizer = torch.optim.LBFGS(head.parameters(), max_iter=self.steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(head(inputs), targets) + self.penalty * head.weight.square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]
        return head
