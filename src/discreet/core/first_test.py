"""What must prove itself before it is used: on any doubt the caller does without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable


def passes(test: Callable[[], bool], what: str, instead: str) -> bool:
    """Return whether a first test passes; where it does not, or cannot be run at all, warn and say why.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     passes(lambda: False, "The fast way is not used", "It is slower.")
    ...     print(said[0].message)
    False
    The fast way is not used, as it failed its first test (other figures). It is slower.
    """
    try:
        right, said = test(), "other figures"
    except Exception as error:  # whatever a compiler or a driver may raise
        right, said = False, f"{type(error).__name__}: {error}"
    if not right:
        warnings.warn(f"{what}, as it failed its first test ({said}). {instead}", RuntimeWarning, stacklevel=3)
    return right
