"""Fixed-point numbers in the integers modulo 2^bits, and uniform masks for them from a cryptographic stream.

A number becomes a multiple of the step 2^-fraction_bits, a negative one its complement. Addition modulo 2^bits is
exact in any order, so a sum of encoded vectors is the sum of the rounded numbers, as long as it stays within the range
of the ring. Adding a uniform vector gives a uniform vector: a masked vector says nothing about the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, ExtraError, invalid, whole

Words = npt.NDArray[Any]  # unsigned integers of 16, 32 or 64 bits
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

KEY_BYTES = 32
_BLOCK = 1 << 18  # numbers that are masked at a time: they fit the cache
_STEPS = 2**53  # larger numbers of steps are not exact in float64


@dataclass(frozen=True)
class Ring:
    """The integers modulo 2^bits, stored in 16, 32 or 64 bits.

    >>> ring = Ring(bits=20)
    >>> ring.signed(ring.words(np.array([-3, 524287])) + ring.words(np.array([1, 1]))).tolist()
    [-2, -524288]
    """

    bits: int = 32

    def __post_init__(self) -> None:
        """Check the size."""
        if whole("bits", self.bits, 2) > 64:
            raise invalid("bits", self.bits, "an integer in [2, 64]", "A number is stored in at most 64 bits.")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type in which a number is stored, with the least significant byte first."""
        return np.dtype("<u2" if self.bits <= 16 else "<u4" if self.bits <= 32 else "<u8")

    @property
    def limit(self) -> int:
        """The largest number of the ring when it is read with a sign; the smallest is -limit - 1."""
        return (1 << (self.bits - 1)) - 1

    def words(self, integers: Integers) -> Words:
        """Return integers as numbers of the ring; those outside its range wrap around."""
        return self.reduced(integers.astype(np.int64).view(np.uint64).astype(self.dtype))

    def signed(self, words: Words) -> Integers:
        """Return numbers of the ring as integers from -2^(bits-1) to 2^(bits-1) - 1."""
        shift = np.uint64(64 - self.bits)
        shifted = words.astype(np.uint64) << shift
        return np.asarray(shifted.view(np.int64) >> shift.astype(np.int64))

    def reduced(self, words: Words) -> Words:
        """Return words modulo 2^bits."""
        return words if self.bits in (16, 32, 64) else words & self.dtype.type((1 << self.bits) - 1)

    def add_mask(self, words: Words, key: bytes, subtract: bool = False) -> None:
        """Add the uniform vector of a key to stored words in place, or subtract it.

        Guarantee: for a uniform secret key that is used once, the result cannot be told from a uniform vector
            (AES-256 in counter mode).
        """
        for begin, mask in _stream(key, len(words), self.dtype):
            part = words[begin : begin + len(mask)]
            if subtract:
                np.subtract(part, mask, out=part)
            else:
                np.add(part, mask, out=part)
        if self.bits not in (16, 32, 64):
            np.bitwise_and(words, self.dtype.type((1 << self.bits) - 1), out=words)


def _stream(key: bytes, count: int, dtype: np.dtype[Any]) -> Iterator[tuple[int, Words]]:
    """Yield consecutive parts of the stream of a key with their positions, in one reused buffer."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise needs_cryptography() from None
    if len(key) != KEY_BYTES:
        raise invalid("key", f"{len(key)} bytes", f"{KEY_BYTES} bytes")
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()  # a key is used for one stream only
    size = min(count, _BLOCK) * dtype.itemsize
    zeros, buffer = bytes(size), bytearray(size + 16)
    for begin in range(0, count, _BLOCK):
        length = min(_BLOCK, count - begin) * dtype.itemsize
        written = encryptor.update_into(memoryview(zeros)[:length], buffer)
        assert written == length
        yield begin, np.frombuffer(buffer, dtype=dtype, count=length // dtype.itemsize)


def needs_cryptography() -> ExtraError:
    """Return the error for a missing library."""
    return ExtraError("A secure sum needs the library cryptography. Install it with: pip install 'discreet[federated]'")


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as multiples of 2^-fraction_bits in a ring, for a sum of at most `terms` vectors.

    Each number is at most `largest` in size, so that a sum never wraps around.

    >>> fixed = FixedPoint(Ring(32), fraction_bits=16, terms=8)
    >>> fixed.decode(fixed.encode(np.array([0.1, -0.5])))
    array([ 0.1000061, -0.5      ])
    """

    ring: Ring = Ring(32)
    fraction_bits: int = 16
    terms: int = 1

    def __post_init__(self) -> None:
        """Check that a number of size 1 fits."""
        whole("terms", self.terms)
        whole("fraction_bits", self.fraction_bits, 0)
        if self.terms << self.fraction_bits > self.ring.limit:
            rule = f"small enough for {self.terms} numbers of size 1 in {self.ring.bits} bits"
            raise invalid("fraction_bits", self.fraction_bits, rule, "Use a larger ring.")

    @property
    def step(self) -> float:
        """The distance of two neighbouring numbers."""
        return 2.0**-self.fraction_bits

    @property
    def largest(self) -> float:
        """The largest size of a number that can be encoded."""
        return min(self.ring.limit // self.terms, _STEPS) * self.step

    def encode(self, values: Any, factor: float = 1.0) -> Words:
        """Return numbers times a factor, rounded to the nearest step; NaN and results above `largest` are rejected."""
        numbers = np.asarray(values).reshape(-1)
        words = np.empty(len(numbers), dtype=self.ring.dtype)
        for begin in range(0, len(numbers), _BLOCK):
            part = numbers[begin : begin + _BLOCK].astype(np.float64)
            part *= factor
            largest = float(np.abs(part).max())
            if not largest <= self.largest:
                raise DataError(
                    f"Expected finite numbers of size at most {self.largest:g}, got {largest:g}. Clip the vector, or "
                    "use fewer fraction bits or a larger ring."
                )
            part *= 2.0**self.fraction_bits
            words[begin : begin + len(part)] = self.ring.words(np.rint(part, out=part).astype(np.int64))
        return words

    def decode(self, words: Words) -> Floats:
        """Return numbers of the ring as floats."""
        return np.asarray(self.ring.signed(words) * self.step, dtype=np.float64)
