"""Whether a fast implementation can be used: it is installed, and passes a self-test before its first use."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def passes(test: Callable[[], bool], what: str, instead: str) -> bool:
    """Return whether a self-test passes; warn if it fails or raises an exception.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     passes(lambda: False, "The fast implementation is not used", "It is slower.")
    ...     print(caught[0].message)
    False
    The fast implementation is not used, because its self-test failed (different results). It is slower.
    """
    try:
        passed, reason = test(), "different results"
    except Exception as error:  # a compiler or a driver may raise anything
        passed, reason = False, f"{type(error).__name__}: {error}"
    if not passed:
        warnings.warn(f"{what}, because its self-test failed ({reason}). {instead}", RuntimeWarning, stacklevel=3)
    return passed
