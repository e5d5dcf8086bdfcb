"""The privacy guarantee of a release: epsilon, delta, unit, adjacency, assumptions and caveats."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from discreet.core.errors import DataError, invalid, whole


class Adjacency(enum.StrEnum):
    """The relation between two neighbouring data sets.

    >>> Adjacency("zero-out") is Adjacency.ZERO_OUT
    True
    """

    ADD_REMOVE = "add/remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


# The assumption of every guarantee of floating-point noise about the arithmetic: see docs/secure_randomness.md.
FLOATING_POINT = (
    "noise is drawn and added in float64 and the sum is rounded once; float64 arithmetic is otherwise taken as exact"
)

# The assumption of every training whose figures of utility come from rows that were held out.
HELD_OUT = "held-out rows are not protected: utility figures are computed on them"

# The assumption of every training about what its user decides: choosing the best of two models by their scores on the
# training rows is a release without noise.
CHOICE = (
    "what is released, which settings it has and when training ends were decided without looking at the training rows, "
    "except through what the guarantee covers"
)

DEFAULT_DELTA = "0.1 / number of units, at most 1e-5"  # `delta_for` in words
LARGEST_DELTA = 1e-5  # of a default; NIST SP 800-226, as commonly summarised, calls larger values suspicious

_MEANING = {
    Adjacency.ADD_REMOVE: "one {unit} is present or absent",
    Adjacency.ZERO_OUT: "one {unit} is replaced by an empty record; the number of {unit}s is public",
    Adjacency.REPLACE_ONE: "one {unit} is exchanged for any other",
}


def neighbours(adjacency: Adjacency, unit: str) -> str:
    """Return how two neighbouring data sets differ, in words.

    >>> neighbours(Adjacency.ADD_REMOVE, "note")
    'one note is present or absent'
    """
    return _MEANING[adjacency].format(unit=unit)


class Strength(enum.StrEnum):
    """How strong the guarantee of an epsilon is, in one word.

    Paper: Ponomareva et al. 2023, How to DP-fy ML: tier 1 up to 1, tier 2 up to 10, tier 3 above.
    Differs: tier 3 is divided at 100, above which the bound excludes no realistic attack.
    """

    STRONG = "strong"
    MODERATE = "moderate"
    WEAK = "weak"
    NONE = "no practical protection"


def strength(epsilon: float) -> Strength:
    """Return the strength of an epsilon.

    >>> [strength(value).value for value in (1, 8, 10.01, 23610, math.inf)]
    ['strong', 'moderate', 'weak', 'no practical protection', 'no practical protection']
    """
    if epsilon <= 1:
        return Strength.STRONG
    if epsilon <= 10:
        return Strength.MODERATE
    return Strength.WEAK if epsilon <= 100 else Strength.NONE


def words_for_size(epsilon: float) -> str:
    """Return a warning sentence for an epsilon above 10, with a leading space, or an empty string.

    >>> words_for_size(8), words_for_size(980)
    ('', ' An epsilon above 100 is no practical protection.')
    """
    size = strength(epsilon)
    if size is Strength.WEAK:
        return " An epsilon above 10 is a weak guarantee."
    return " An epsilon above 100 is no practical protection." if size is Strength.NONE else ""


class Caveat(enum.StrEnum):
    """A reason why a figure is an estimate and not a proven bound; code compares these, never their sentences.

    >>> found = Guarantee(3.0, 1e-5, "note", Adjacency.ZERO_OUT, "pld", caveats=frozenset({Caveat.FIXED_SEED}))
    >>> found.certified, Caveat.FIXED_SEED in found.caveats
    (False, True)
    """

    FIXED_SEED = "fixed-seed"
    TRAINED_ENCODER = "trained-encoder"
    PRIVATE_PROJECTION = "private-projection"
    VISIBLE_LABELS = "visible-labels"
    CENTRAL_LIMIT = "central-limit"
    PAPER_CALIBRATION = "paper-calibration"
    PRIVATE_CLIENT = "private-client"
    UNSTEADY_KERNELS = "unsteady-kernels"
    UNCHECKED_LOSSES = "unchecked-losses"
    OWN_BATCHES = "own-batches"
    UNPROTECTED_STATE = "unprotected-state"
    PRIVATE_CLASSES = "private-classes"
    UNPLANNED_STEPS = "unplanned-steps"
    THIRD_PARTY_PROTECTION = "third-party-protection"

    @property
    def sentence(self) -> str:
        """The reason as the end of a sentence that begins with "because"."""
        return _CAVEATS[self]


_CAVEATS = {
    Caveat.FIXED_SEED: "the noise was drawn from a fixed seed, and whoever knows it can remove the noise",
    Caveat.TRAINED_ENCODER: "the encoder was trained on private text, and noise on its output does not pay for that",
    Caveat.PRIVATE_PROJECTION: "the projection was learned from private text",
    Caveat.VISIBLE_LABELS: (
        "every vector is sent with its label as it is, which shows among how few sentences it was drawn; labels "
        "reported by randomized response (label_epsilon) hide that"
    ),
    Caveat.CENTRAL_LIMIT: "the central limit theorem approximates the cost of sampled noise from below",
    Caveat.PAPER_CALIBRATION: "the noise was calibrated by a published rule that is not a proven bound",
    Caveat.PRIVATE_CLIENT: "the client's encoder or projection depends on private text",
    Caveat.UNSTEADY_KERNELS: (
        "on this device and in this precision, the rounding of a unit's gradient depends on the other units of the "
        "batch; training in float32, on another device or with more free memory may not have this"
    ),
    Caveat.UNCHECKED_LOSSES: (
        "it was not checked that the gradient of a unit depends on that unit alone; PrivateTraining.check does so on "
        "made-up rows, for the loss function and the collate function that are then used: pass the loss function "
        "itself to PrivateTraining.step, not losses that the loop computed"
    ),
    Caveat.OWN_BATCHES: (
        "the caller drew the batches, and the figure holds only if every unit was drawn as the plan says, at random "
        "and in secret"
    ),
    Caveat.UNPROTECTED_STATE: (
        "weights, buffers or attributes of the model, or its protected gradients, were changed by something else than "
        "the private step, and may have learned from private rows without noise"
    ),
    Caveat.PRIVATE_CLASSES: (
        "the names of the classes were read from private labels, and that a name exists may depend on one unit; names "
        "that are set beforehand do not"
    ),
    Caveat.UNPLANNED_STEPS: (
        "more steps were asked for than planned, perhaps because of what earlier ones had released, and no budget "
        "limits their number"
    ),
    Caveat.THIRD_PARTY_PROTECTION: (
        "the protection or the sampler comes from outside discreet, which has not checked that it bounds what a unit "
        "adds and draws the batches and the noise whose cost it states"
    ),
}


@dataclass(frozen=True)
class Guarantee:
    """Epsilon and delta for a unit under an adjacency: a proven upper bound, or an estimate with a reason.

    Args:
        epsilon: The privacy loss of a unit; infinity means no guarantee.
        delta: The probability that epsilon does not cover.
        unit: The word for what is protected, such as patient.
        adjacency: How two neighbouring data sets differ.
        accountant: What computed epsilon: pld, rdp, pure or gdp, for example.
        certified: Whether it is a proven upper bound; otherwise it is an estimate.
        assumptions: What the proof assumes, in sentences.
        reason: Why there is no proven bound, as the end of a sentence.
        caveats: The same as values that code can test; with a caveat the figure is an estimate.

    >>> print(Guarantee(3.0, 1e-5, "note", Adjacency.ADD_REMOVE, "pld"))
    Certified: differential privacy with epsilon = 3 and delta = 1e-05 for each note (neighbours: one note is present or
    absent), by the pld accountant.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: Adjacency
    accountant: str
    certified: bool = True
    assumptions: tuple[str, ...] = ()
    reason: str | None = None
    caveats: frozenset[Caveat] = frozenset()

    def __post_init__(self) -> None:
        """Check the fields; with a caveat the figure is an estimate."""
        object.__setattr__(self, "caveats", frozenset(map(Caveat, self.caveats)))
        if self.caveats:
            object.__setattr__(self, "certified", False)
            if self.reason is None:
                object.__setattr__(self, "reason", "; ".join(c.sentence for c in Caveat if c in self.caveats))
        if math.isnan(self.epsilon) or self.epsilon < 0:
            raise invalid("epsilon", self.epsilon, ">= 0", "Infinity means no guarantee.")
        if not 0 <= self.delta <= 1:
            raise invalid("delta", self.delta, "in [0, 1]", "It is a probability.")
        if not self.certified and not self.reason:
            raise invalid("reason", self.reason, "set when certified is False", "Say why the figure is not a bound.")
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    def with_caveats(self, caveats: Iterable[Caveat]) -> Guarantee:
        """Return the same figure as an estimate, with the sentences of the new caveats added to its reason.

        Without a guarantee the reason is unchanged, because there is no figure to qualify.

        Args:
            caveats: The caveats to add.
        """
        added = frozenset(caveats) - self.caveats
        if not added:
            return self
        reasons = [self.reason] if self.reason else []
        if self.exists or not reasons:
            reasons += [caveat.sentence for caveat in Caveat if caveat in added]
        return replace(self, certified=False, reason="; ".join(reasons), caveats=self.caveats | added)

    def without_caveat(self, caveat: Caveat) -> Guarantee:
        """Return the guarantee without a caveat: certified if it was the only one, else an estimate for the others.

        Args:
            caveat: The caveat to remove.
        """
        if caveat not in self.caveats or not self.exists:
            return self
        others, sentence = self.caveats - {caveat}, caveat.sentence
        rest = str(self.reason).replace(f"; {sentence}", "").replace(f"{sentence}; ", "")
        return replace(self, certified=not others, reason=rest if others else None, caveats=others)

    @property
    def exists(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    def __str__(self) -> str:
        """Return the guarantee as sentences."""
        import textwrap

        return "\n".join(textwrap.wrap(self.sentence(), width=120))

    def sentence(self, *, assumptions: bool = True) -> str:
        """Return the guarantee as one line of text, with or without its assumptions.

        Args:
            assumptions: Whether they are stated.
        """
        if not self.exists:
            because = f": {self.reason}" if self.reason else ""
            return f"No guarantee for any {self.unit}{because}."
        kind = "Certified" if self.certified else "Estimate, not a bound"
        text = (
            f"{kind}: differential privacy with epsilon = {in_digits(self.epsilon)} and "
            f"delta = {in_digits(self.delta)} for each {self.unit} (neighbours: "
            f"{neighbours(self.adjacency, self.unit)}), by the {self.accountant} accountant."
        )
        text += words_for_size(self.epsilon)
        if not self.certified:
            text += f" Not certified because {self.reason}."
        if self.assumptions and assumptions:
            text += " It assumes: " + "; ".join(self.assumptions) + "."
        return text

    def from_seed(self, is_secret: bool) -> Guarantee:
        """Return the guarantee if its noise comes from a secret seed, and an estimate if the seed is fixed.

        Args:
            is_secret: Whether nobody else knows the seed.
        """
        return self if is_secret or not self.exists else self.with_caveats({Caveat.FIXED_SEED})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Guarantee:
        """Return a guarantee from the plain values of `as_dict`; values that lack one of them are rejected.

        Args:
            values: What `as_dict` returned.
        """
        missing = [field.name for field in fields(cls) if field.name not in values]
        if missing:
            raise DataError(f"Expected {', '.join(missing)} in a stored guarantee, got none. Restore its file.")
        return cls(
            epsilon=math.inf if values["epsilon"] is None else float(values["epsilon"]),
            delta=float(values["delta"]),
            unit=str(values["unit"]),
            adjacency=Adjacency(values["adjacency"]),
            accountant=str(values["accountant"]),
            certified=bool(values["certified"]),
            assumptions=tuple(values["assumptions"]),
            reason=values["reason"],
            caveats=frozenset(Caveat(value) for value in values["caveats"]),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the guarantee as plain values for JSON; an infinite epsilon is None."""
        return {
            "epsilon": self.epsilon if self.exists else None,
            "strength": strength(self.epsilon).value,
            "delta": self.delta,
            "unit": self.unit,
            "adjacency": self.adjacency.value,
            "accountant": self.accountant,
            "certified": self.certified,
            "assumptions": list(self.assumptions),
            "reason": self.reason,
            "caveats": sorted(self.caveats),
        }


def in_digits(bound: float, digits: int = 4) -> str:
    """Return a bound in few digits, rounded up, so that the printed value is a bound too.

    >>> [in_digits(value) for value in (2.34521, 2.3458, 3.0, 9.9991, 0.1 + 0.2, math.inf)]
    ['2.346', '2.346', '3', '10', '0.3', 'inf']
    """
    text = f"{bound:.{digits}g}"
    if float(text) >= bound * (1 - 1e-9):  # ignore the rounding error of a sum
        return text
    return f"{float(text) + 10.0 ** (math.floor(math.log10(bound)) - digits + 1):.{digits}g}"


def delta_for(units: int) -> float:
    """Return the default delta, which `DEFAULT_DELTA` describes.

    >>> delta_for(2000), delta_for(50_000)
    (1e-05, 2e-06)
    """
    return min(LARGEST_DELTA, 1 / (10 * whole("units", units)))
