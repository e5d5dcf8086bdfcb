"""Noise that the clients of a secure sum add together, so that the sum is private even against the server.

A client clips its vector, rotates it if asked, rounds it at random to a grid, and adds its share of integer noise. The
server sees the sum modulo 2^bits. The noise is discrete Gaussian, or Skellam, whose sum is again Skellam. The guarantee
counts the noise of `survivors` clients only: as many as must survive for the sum to be released, less those that may
collude with the server and tell it their noise. It rests on integers alone: the norm of the rounded vector is checked
in integer arithmetic, and the noise is sampled exactly.

Wrapping around modulo 2^bits is post-processing and costs no privacy. It would spoil the sum, so the grid is the finest
with which the probability of that is at most `wrap_probability`, by a union bound over coordinates.

Paper: Kairouz, Liu and Steinke 2021, The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation; Agarwal, Kairouz and Liu 2021, The Skellam Mechanism for Differentially Private Federated Learning.
Differs: the grid follows from a tail bound, not from a number of standard deviations; a vector that cannot be rounded
    within the norm in 20 trials is rounded towards zero, so that the bound always holds; sampling is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from discreet.accounting.events import DiscreteGaussianSumDpEvent, DpEvent, SelfComposedDpEvent, SkellamDpEvent
from discreet.accounting.gdp import bisect_up
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.accounting.interpret import guarantee_of
from discreet.core.errors import DataError, invalid, one_of, open_probability, positive, whole
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.federated.secure_sum.ring import Integers, Ring, Words
from discreet.mechanisms.integers import discrete_gaussian
from discreet.mechanisms.poisson import skellam

Floats = npt.NDArray[np.float64]

MECHANISMS = ("discrete-gaussian", "skellam")
_BETA = math.exp(-0.5)  # one of two or so rounded vectors is within the norm
_TRIALS = 20
_FINEST = 2.0**15  # steps in a standard deviation of one client's noise, beyond which a finer grid gains nothing
_COARSEST = 1.0


@dataclass(frozen=True)
class DistributedNoise:
    """Integer noise of all clients together for a sum of clipped vectors.

    `noise_multiplier` times `clip_norm` is the standard deviation of the noise of `survivors` clients together; that of
    all `clients` is larger.

    Guarantee: `guarantee`, for each client, under zero-out (its vector is replaced by zeros; who takes part is public),
        against the server and `clients` - `survivors` of the others. Certified, for secret randomness of each honest
        client and a secure sum that is released only if `survivors` honest clients are in it.

    >>> noise = DistributedNoise(noise_multiplier=4.0, clip_norm=1.0, dimension=1000, clients=8, survivors=6)
    >>> round(noise.guarantee(delta=1e-5).epsilon, 2)
    0.93
    """

    adjacency: ClassVar[Adjacency] = Adjacency.ZERO_OUT

    noise_multiplier: float
    clip_norm: float
    dimension: int
    clients: int
    survivors: int
    mechanism: str = "discrete-gaussian"
    ring: Ring = field(default_factory=Ring)
    rotate: bool = False
    wrap_probability: float = 1e-9

    def __post_init__(self) -> None:
        """Check the fields, and that the ring has room for a grid."""
        positive("noise_multiplier", self.noise_multiplier)
        positive("clip_norm", self.clip_norm)
        whole("dimension", self.dimension)
        whole("clients", self.clients, 1)
        whole("survivors", self.survivors)
        if self.survivors > self.clients:
            raise invalid("survivors", self.survivors, f"at most clients, {self.clients}")
        one_of("mechanism", self.mechanism, MECHANISMS)
        open_probability("wrap_probability", self.wrap_probability)
        if self.sigma < _COARSEST:
            remedy = "Use a larger ring, rotate the vectors, or add more noise."
            raise invalid("bits", self.ring.bits, "large enough for noise of one grid step or more", remedy)

    @classmethod
    def for_budget(cls, epsilon: float, delta: float, *, rounds: int = 1, **settings: Any) -> DistributedNoise:
        """Return the least noise with which `rounds` sums cost each client at most (epsilon, delta)."""
        positive("epsilon", epsilon)

        def with_noise(multiplier: float) -> DistributedNoise:
            return cls(noise_multiplier=multiplier, **settings)

        def holds(multiplier: float) -> bool:
            return with_noise(multiplier).epsilon(delta, rounds) <= epsilon

        high = 1.0
        while not holds(high):
            high *= 2
        low = high / 2
        while low > 1e-3 and holds(low):
            high, low = low, low / 2
        return with_noise(bisect_up(holds, low, high, 1e-4))

    @property
    def padded(self) -> int:
        """Number of coordinates that are sent: a power of two if vectors are rotated."""
        return 1 << (self.dimension - 1).bit_length() if self.rotate else self.dimension

    @cached_property
    def step(self) -> float:
        """The distance of two grid points: a power of two, the smallest that the ring has room for."""
        std = self.noise_multiplier * self.clip_norm / math.sqrt(self.survivors)
        exponent = math.floor(math.log2(std)) - round(math.log2(_FINEST))
        while self._largest_sum(2.0**exponent) > self.ring.limit and 2.0**exponent < 2 * std:
            exponent += 1
        return 2.0**exponent

    @property
    def sigma(self) -> float:
        """The standard deviation of one client's noise, in grid steps."""
        return self.noise_multiplier * self.clip_norm / math.sqrt(self.survivors) / self.step

    @property
    def squared_norm(self) -> int:
        """The largest squared norm of a rounded vector, in grid steps; it is the squared sensitivity."""
        c, d = self.clip_norm / self.step, self.padded
        always = (c + math.sqrt(d)) ** 2
        often = c * c + d / 4 + math.sqrt(2 * math.log(1 / _BETA)) * (c + math.sqrt(d) / 2)
        return max(1, math.floor(min(always, often)))

    @property
    def event(self) -> DpEvent:
        """The cost of one sum for one client, under zero-out."""
        return self.event_of(self.survivors)

    def event_of(self, survivors: int) -> DpEvent:
        """Return the cost of a sum in which this many honest clients took part."""
        l2 = math.sqrt(self.squared_norm) * (1 + 2.0**-50)
        l1 = l2 * min(math.sqrt(self.padded), l2)  # an integer is at most its square
        if self.mechanism == "skellam":
            return SkellamDpEvent(survivors * self.sigma**2 * (1 - 2.0**-50), l2, l1)
        return DiscreteGaussianSumDpEvent(self.sigma, survivors, l2, l1, self.padded)

    def epsilon(self, delta: float, rounds: int = 1) -> float:
        """Return the epsilon of a client that takes part in `rounds` sums."""
        return epsilon_of(SelfComposedDpEvent(self.event, rounds), delta, self.adjacency, self._accountant)

    def guarantee(self, delta: float, rounds: int = 1) -> Guarantee:
        """Return the guarantee of a client that takes part in `rounds` sums."""
        counted = f"at least {self.survivors} clients of each sum added their noise and keep it secret"
        return guarantee_of(
            SelfComposedDpEvent(self.event, rounds),
            delta=delta,
            adjacency=self.adjacency,
            accountant=self._accountant,
            unit="client",
            assumptions=(counted,),
        )

    @property
    def _accountant(self) -> str:
        return "rdp" if self.mechanism == "skellam" else "pld"  # Skellam's curve is known by its divergences only

    def encode(self, vector: Any, rng: Rng, rotation: bytes = b"") -> Words:
        """Return a client's vector, clipped, rounded and with its share of noise, in numbers of the ring.

        `rotation` is a public seed, the same for all clients of a sum.
        """
        steps = self.rounded(vector, rng, rotation)
        if self.mechanism == "skellam":
            noise = skellam(self.sigma**2, len(steps), rng)
        else:
            noise = discrete_gaussian(self.sigma, len(steps), rng)
        return self.ring.words(steps + noise)

    def rounded(self, vector: Any, rng: Rng, rotation: bytes = b"") -> Integers:
        """Return a vector without noise, in grid steps, with a squared norm of at most `squared_norm`."""
        x = np.asarray(vector, dtype=np.float64).reshape(-1)
        if len(x) != self.dimension or not np.isfinite(x).all():
            raise DataError(f"Expected {self.dimension} finite numbers, got {len(x)} or NaN. Check the update.")
        x = clipped(x, self.clip_norm)
        if self.rotate:
            x = rotated(x, self.padded, rotation)
        x = x / self.step
        for _ in range(_TRIALS):
            steps = np.floor(x + rng.uniform(len(x))).astype(np.int64)
            if self._within(steps):
                return steps
        steps = np.trunc(x).astype(np.int64)
        while not self._within(steps):  # only if rounding errors of a rotation lengthened the vector
            steps = np.trunc(steps * (1 - 2.0**-20)).astype(np.int64)
        return steps

    def decode(self, words: Words, rotation: bytes = b"") -> Floats:
        """Return the noisy sum of vectors from the sum of their numbers in the ring."""
        total = self.ring.signed(words).astype(np.float64) * self.step
        return rotated_back(total, self.dimension, rotation) if self.rotate else total

    def _within(self, steps: Integers) -> bool:
        if float(np.abs(steps).max(initial=0)) * math.sqrt(len(steps)) < 2.0**31:
            return int(np.dot(steps, steps)) <= self.squared_norm  # the sum fits 64 bits
        return sum(int(step) ** 2 for step in steps) <= self.squared_norm

    def _largest_sum(self, step: float) -> float:
        """Return a size, in steps, that no coordinate of the sum exceeds, except with `wrap_probability`.

        Chernoff's bound for the noise of all clients; the vectors are bounded by their norms, and if they are rotated
        by Hoeffding's bound for random signs too.
        """
        log_few = math.log(4 * self.padded / self.wrap_probability)
        signal = self.clients * self.clip_norm / step
        if self.rotate:
            signal = min(signal, signal * math.sqrt(2 * log_few / self.padded))
        variance = self.clients * (self.noise_multiplier * self.clip_norm / step) ** 2 / self.survivors
        return signal + self.clients + _tail(variance, log_few, self.mechanism)


def _tail(variance: float, log_few: float, mechanism: str) -> float:
    """Return a size that noise exceeds, in one direction, with probability at most exp(-log_few)."""
    subgaussian = math.sqrt(2 * variance * log_few)
    if mechanism != "skellam":
        return subgaussian  # the moment generating function is at most e^(variance t^2 / 2)

    def rare(size: float) -> bool:  # the moment generating function is e^(variance (cosh t - 1))
        ratio = size / variance
        return size * math.asinh(ratio) - variance * (math.hypot(1, ratio) - 1) >= log_few

    return bisect_up(rare, subgaussian, 8 * subgaussian + 8 * log_few, 1e-6)


def clipped(x: Floats, norm: float) -> Floats:
    """Return a vector scaled down to a norm, if it is longer.

    >>> clipped(np.array([3.0, 4.0]), 1.0).tolist()
    [0.6000000000000001, 0.8]
    """
    largest = float(np.abs(x).max(initial=0.0))
    if largest == 0.0:
        return x
    length = largest * float(np.linalg.norm(x / largest))
    return x if length <= norm else (x / largest) * (norm / (length / largest))


def rotated(x: Floats, size: int, seed: bytes) -> Floats:
    """Return a vector, padded to a power of two, with random signs and then Hadamard-transformed, of the same norm.

    A rotation spreads the vector evenly over all coordinates, so that a small ring has room for the sum.
    """
    padded = np.zeros(size)
    padded[: len(x)] = x
    return hadamard(padded * _signs(size, seed)) / math.sqrt(size)


def rotated_back(x: Floats, size: int, seed: bytes) -> Floats:
    """Return the vector whose rotation this is, without its padding."""
    return (hadamard(x) / math.sqrt(len(x)) * _signs(len(x), seed))[:size]


def hadamard(x: Floats) -> Floats:
    """Return the Walsh-Hadamard transform of a vector whose length is a power of two.

    >>> hadamard(np.array([1.0, 2.0, 3.0, 4.0])).tolist()
    [10.0, -2.0, -4.0, 0.0]
    """
    values, width = x.copy(), 1
    while width < len(values):
        pairs = values.reshape(-1, 2, width)
        left, right = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
        pairs[:, 0], pairs[:, 1] = left, right
        width *= 2
    return values


def _signs(size: int, seed: bytes) -> Floats:
    bits = np.frombuffer(Rng.secret(b"rotation" + seed).bytes(-(-size // 8)), dtype=np.uint8)
    return np.unpackbits(bits)[:size].astype(np.float64) * 2 - 1
