"""What an audit can test, as an enumeration: every audit says which of it was tested and which was not."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self


class Aspect(enum.StrEnum):
    """Something that a certificate depends on: its value, its label in a table, and what it is in words.

    Code compares aspects, never their words.
    """

    label: str
    sentence: str

    def __new__(cls, value: str, label: str, sentence: str) -> Self:
        """Return an aspect, which is equal to its value."""
        aspect = str.__new__(cls, value)
        aspect._value_, aspect.label, aspect.sentence = value, label, sentence
        return aspect

    LOWER_BOUND = (
        "lower-bound",
        "lower bound",
        "how well the two neighbours, or canaries that are in and out, can be told apart",
    )
    NOISE_SCALE = "noise-scale", "noise scale", "the scale of the noise"
    NOISE_STEPS = (
        "noise-of-steps",
        "noise of steps",
        "the noise of different steps is independent, or correlated as declared",
    )
    NOISE_PARAMETERS = (
        "noise-of-parameters",
        "noise of parameters",
        "the noise of different parameters of a step is independent",
    )
    CLIP_UNIT = "clip-of-a-unit", "clip of a unit", "one unit adds at most the clip norm to a sum"
    CLIP_PART = "clip-in-a-part", "clip in a part", "each unit of a part is clipped, and not the part as one unit"
    CANARY_BATCHES = "batches-of-canaries", "canary batches", "canaries are sampled as declared"
    MODEL_BATCHES = (
        "batches-of-the-model",
        "model batches",
        "the units in the batches of the model are sampled as declared",
    )
    COST = "cost", "cost", "the stated epsilon covers the noise, the batches and the steps of the record"
    TRAINING = "training", "training", "a training run: its model, parts, batches and steps"
    OTHER_NEIGHBOURS = "other-neighbours", "other neighbours", "other neighbours than those that were drawn"
    PATH_FROM_TEXT = "path-from-text", "path from text", "the path from a text to its tokens, vector or gradient"
    UNITS = "units", "units", "all rows of a person are in one unit"
    SECRECY = "secrecy", "secrecy", "the seed, the batches and the noise stay secret, and random numbers are random"
    OTHER_OUTPUTS = "other-outputs", "other outputs", "logs, metrics and other outputs that are not part of the release"


NEVER = (Aspect.UNITS, Aspect.SECRECY, Aspect.OTHER_OUTPUTS)  # no audit tests these
RELEASE = (Aspect.TRAINING, Aspect.OTHER_NEIGHBOURS, Aspect.PATH_FROM_TEXT)  # an audit of one release tests none


@dataclass(frozen=True)
class Untested:
    """Something that an audit did not test, and why."""

    aspect: Aspect
    why: str = ""

    def sentence(self) -> str:
        """Return what was not tested, and why.

        >>> Untested(Aspect.NOISE_SCALE, "the record is missing").sentence()
        'the scale of the noise (the record is missing)'
        """
        return self.aspect.sentence + (f" ({self.why})" if self.why else "")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"aspect": self.aspect.value, "what": self.aspect.sentence, "why": self.why}


def untested(tested: Iterable[Aspect], *, of: Iterable[Aspect] = ()) -> tuple[Untested, ...]:
    """Return what was not tested: all of `of` and of what no audit tests, except for what was tested."""
    known = set(tested)
    return tuple(Untested(one) for one in dict.fromkeys((*of, *NEVER)) if one not in known)
