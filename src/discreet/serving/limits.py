"""How much a server takes: bytes, rows, requests a second from one address, requests at once, connections, patience."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from discreet.core.checks import positive, whole

_ADDRESSES = 10_000
_BYTES_A_NUMBER = 32  # a float64 in full, with sign, exponent, comma and space


@dataclass(frozen=True)
class Limits:
    """What is refused rather than served: 413 for size, 429 for rate, 503 for too much at once, 408 for slowness."""

    rows: int = 256
    rate: float = 1000.0
    active: int = 64
    connections: int = 512
    connections_per_address: int = 256
    patience: float = 10.0

    def __post_init__(self) -> None:
        """Refuse limits under which nothing could be served."""
        whole("rows", self.rows, remedy="It is the most vectors in one request.")
        positive("rate", self.rate, "It is the most requests a second from one address.")
        whole("active", self.active, remedy="It is the most requests worked on at once.")
        whole("connections", self.connections, remedy="It is the most open connections.")
        whole("connections_per_address", self.connections_per_address, remedy="It is the most from one address.")
        positive("patience", self.patience, "It is how many seconds a request may take to arrive and be answered.")

    def body_bytes(self, width: int) -> int:
        """Return the largest body that can hold so many rows of so many numbers.

        >>> Limits(rows=2).body_bytes(10)
        1664
        """
        return 1024 + self.rows * width * _BYTES_A_NUMBER


class Buckets:
    """One bucket of tokens for each address: a request takes one, and they come back at the rate, up to a second's.

    The oldest addresses are forgotten beyond ten thousand, so that many of them cannot fill the memory.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with full buckets."""
        self._rate, self._full, self._clock = rate, max(1.0, rate), clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> float:
        """Take a token and return 0, or return how many seconds to wait for one.

        >>> now = [0.0]
        >>> buckets = Buckets(2.0, lambda: now[0])
        >>> [buckets.take("a") for _ in range(3)], buckets.take("b")
        ([0.0, 0.0, 0.5], 0.0)
        """
        now = self._clock()
        tokens, then = self._held.get(address, (self._full, now))
        tokens = min(self._full, tokens + (now - then) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._held[address] = (tokens - 1 if wait == 0 else tokens, now)
        self._held.move_to_end(address)
        if len(self._held) > _ADDRESSES:
            self._held.popitem(last=False)
        return wait
