"""A time that may end a search early. Searches count steps; a limit is for someone who waits, and is off by default."""

from __future__ import annotations

import time

_BEHIND = 0.1  # a loop whose steps are behind its time by this share of them is shortened


class TimeLimit:
    """A limit of `seconds`, or none, and whether it was `reached`, so that a result can say so.

    A search counts its steps. A limit changes nothing in it before it is clear that the steps do not fit, so the same
    settings and seed give the same result on every machine where the limit is not reached.
    """

    def __init__(self, seconds: float | None = None, whole: TimeLimit | None = None) -> None:
        """Begin to count now, or when the `whole` limit that this is a part of began."""
        self.seconds, self.whole = seconds, whole
        self.began: float = time.monotonic() if whole is None else whole.began
        self.reached = False

    @property
    def passed(self) -> float:
        """The seconds that have passed."""
        return time.monotonic() - self.began

    @property
    def share(self) -> float:
        """The share of the time that has passed; 0 without a limit."""
        return 0.0 if self.seconds is None else self.passed / self.seconds

    def until(self, share: float) -> TimeLimit:
        """Return the limit that ends when a share of this one has passed."""
        return TimeLimit(None if self.seconds is None else self.seconds * share, self)

    def over(self, share: float = 1.0) -> bool:
        """Return whether a share of the time has passed; called where work is left, so that the limit is reached.

        >>> limit = TimeLimit(1e-9)
        >>> limit.until(0.5).over(), limit.reached, TimeLimit().over()
        (True, True, False)
        """
        if self.share < share or self.seconds is None:
            return False
        self._reach()
        return True

    def done(self, step: int, steps: int, began: float = 0.0, until: float = 1.0) -> float:
        """Return how much of a loop is over, from 0 to 1; it began at a share of the time and may last until another.

        It is the share of the steps. Where they do not all fit, it is the share of the time, if that is more.

        >>> TimeLimit().done(30, 120), TimeLimit(3600.0).done(30, 120)
        (0.25, 0.25)
        """
        counted = step / steps
        if self.seconds is None:
            return counted
        now = self.share
        if now >= until:
            self._reach()
            return 1.0
        used = (now - began) / (until - began)
        if used > counted + _BEHIND:
            self._reach()
        return max(counted, used) if self.reached else counted

    def _reach(self) -> None:
        self.reached = True
        if self.whole is not None:
            self.whole._reach()
