"""What an audit can test, as an enumeration: every audit says which of it was tested and which was not."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Aspect(enum.StrEnum):
    """Something that a certificate depends on; code compares these, never their sentences."""

    LOWER_BOUND = "lower-bound"
    NOISE_SCALE = "noise-scale"
    NOISE_STEPS = "noise-of-steps"
    NOISE_PARAMETERS = "noise-of-parameters"
    CLIP_UNIT = "clip-of-a-unit"
    CLIP_PART = "clip-in-a-part"
    CANARY_BATCHES = "batches-of-canaries"
    MODEL_BATCHES = "batches-of-the-model"
    COST = "cost"
    TRAINING = "training"
    OTHER_NEIGHBOURS = "other-neighbours"
    PATH_FROM_TEXT = "path-from-text"
    UNITS = "units"
    SECRECY = "secrecy"
    OTHER_OUTPUTS = "other-outputs"


LABELS = {
    Aspect.LOWER_BOUND: "lower bound",
    Aspect.NOISE_SCALE: "noise scale",
    Aspect.NOISE_STEPS: "noise of steps",
    Aspect.NOISE_PARAMETERS: "noise of parameters",
    Aspect.CLIP_UNIT: "clip of a unit",
    Aspect.CLIP_PART: "clip in a part",
    Aspect.CANARY_BATCHES: "canary batches",
    Aspect.MODEL_BATCHES: "model batches",
    Aspect.COST: "cost",
    Aspect.TRAINING: "training",
    Aspect.OTHER_NEIGHBOURS: "other neighbours",
    Aspect.PATH_FROM_TEXT: "path from text",
    Aspect.UNITS: "units",
    Aspect.SECRECY: "secrecy",
    Aspect.OTHER_OUTPUTS: "other outputs",
}
SENTENCES = {
    Aspect.LOWER_BOUND: "how well the two neighbours, or canaries that are in and out, can be told apart",
    Aspect.NOISE_SCALE: "the scale of the noise",
    Aspect.NOISE_STEPS: "the noise of different steps is independent, or correlated as declared",
    Aspect.NOISE_PARAMETERS: "the noise of different parameters of a step is independent",
    Aspect.CLIP_UNIT: "one unit adds at most the clip norm to a sum",
    Aspect.CLIP_PART: "each unit of a part is clipped, and not the part as one unit",
    Aspect.CANARY_BATCHES: "canaries are sampled as declared",
    Aspect.MODEL_BATCHES: "the units in the batches of the model are sampled as declared",
    Aspect.COST: "the stated epsilon covers the noise, the batches and the steps of the record",
    Aspect.TRAINING: "a training run: its model, parts, batches and steps",
    Aspect.OTHER_NEIGHBOURS: "other neighbours than those that were drawn",
    Aspect.PATH_FROM_TEXT: "the path from a text to its tokens, vector or gradient",
    Aspect.UNITS: "all rows of a person are in one unit",
    Aspect.SECRECY: "the seed, the batches and the noise stay secret, and random numbers are random",
    Aspect.OTHER_OUTPUTS: "logs, metrics and other outputs that are not part of the release",
}
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
        return SENTENCES[self.aspect] + (f" ({self.why})" if self.why else "")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"aspect": self.aspect.value, "what": SENTENCES[self.aspect], "why": self.why}


def untested(tested: Iterable[Aspect], *, of: Iterable[Aspect] = ()) -> tuple[Untested, ...]:
    """Return what was not tested: all of `of` and of what no audit tests, except for what was tested."""
    known = set(tested)
    return tuple(Untested(one) for one in dict.fromkeys((*of, *NEVER)) if one not in known)
