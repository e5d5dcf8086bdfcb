"""Whether a value is a protection: it has every member that protections at its place declare."""

from __future__ import annotations

from discreet.core.errors import UnsupportedError
from discreet.protections.gradient import GradientProtection
from discreet.protections.representation import RepresentationProtection, TextProtection, place_of

# Place -> the members that its protections declare, what they act on, and the classes there.
_PLACES: dict[str, tuple[type, str, str]] = {
    "text": (TextProtection, "text", "WordSwap"),
    "representation": (RepresentationProtection, "sentence vectors", "TextHide, InstanceEncoding, LocalLayer"),
    "gradient": (GradientProtection, "gradients", "DPSGD, DirDPSGD"),
}


def check_protection(protect: object, *places: str) -> None:
    """Reject what is not a protection at one of the places (at any, if none is given) by the name of its class.

    >>> check_protection("dp-sgd", "gradient")
    Traceback (most recent call last):
    ...
    discreet.core.errors.UnsupportedError: Expected protect to be a protection of gradients ... got str. ...
    """
    allowed = [_PLACES[place] for place in places or _PLACES]
    if not isinstance(protect, type):
        declared = _PLACES.get(place_of(protect))
        if declared in allowed and isinstance(protect, declared[0]):
            return
    expected = " or ".join(f"{what} ({classes})" for _, what, classes in allowed)
    got = f"the class {protect.__name__}" if isinstance(protect, type) else type(protect).__name__
    raise UnsupportedError(
        f"Expected protect to be a protection of {expected}, got {got}. "
        "Pass an instance of a protection; a mechanism or a layer alone cannot be used for training."
    )
