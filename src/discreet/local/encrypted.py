"""Encrypted inference: the client encrypts its vectors, and the server applies its linear head without seeing them.

A ciphertext holds several texts, each vector once for each class. The server multiplies it by the weights and adds, for
every class, random numbers that sum to the bias. The client decrypts the products and adds them up: sums over the slots
of a ciphertext would need keys of 18 MB from every client, and twenty times as long. The random numbers hide the single
products. They do not hide the weights: whoever may ask as many questions as a vector has numbers learns a linear head
in any case.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.ckks import DEGREE, LARGEST, LARGEST_BYTES, MODULI, SCALE_BITS, SLOTS, Evaluator, SecretKey
from discreet.core.errors import DataError, ModelError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.local.head import Head

Floats = npt.NDArray[np.float64]

# What both sides must agree on, as the server states it.
SCHEME: dict[str, Any] = {"scheme": "ckks", "degree": DEGREE, "modulus_bits": list(MODULI), "scale_bits": SCALE_BITS}
_COUNT, _LENGTH = struct.Struct("<I"), struct.Struct("<I")
_MASK = 2.0**10  # size of the random numbers; a sum of 4,096 of them is far below the largest number
_MOST = 4096  # ciphertexts in a list
_MOST_AT_ONCE = 16  # ciphertexts in a request


@dataclass(frozen=True)
class Packing:
    """How vectors of a width are placed in ciphertexts for a head of several outputs.

    >>> packing = Packing(width=384, outputs=2)
    >>> packing.rows, packing.copies, packing.answers
    (5, 2, 1)
    """

    width: int
    outputs: int

    def __post_init__(self) -> None:
        """Reject vectors that are wider than a ciphertext."""
        if not 1 <= self.width <= SLOTS or self.outputs < 1:
            raise UnsupportedError(f"Expected vectors of at most {SLOTS} numbers for encryption, got {self.width}.")

    @property
    def copies(self) -> int:
        """Number of times that a vector is in a ciphertext."""
        return min(self.outputs, SLOTS // self.width)

    @property
    def rows(self) -> int:
        """Number of texts in a ciphertext."""
        return SLOTS // (self.width * self.copies)

    @property
    def answers(self) -> int:
        """Number of ciphertexts in the answer to one."""
        return -(-self.outputs // self.copies)

    def placed(self, vectors: Floats) -> list[Floats]:
        """Return the slots of each ciphertext for vectors, (rows, width)."""
        parts = [vectors[start : start + self.rows] for start in range(0, len(vectors), self.rows)]
        return [np.repeat(part[:, None], self.copies, axis=1).reshape(-1) for part in parts]

    def spread(self, values: Floats) -> Floats:
        """Return numbers of one text, (copies, width), repeated for every text of a ciphertext, in all slots."""
        slots = np.zeros(SLOTS)
        filled = np.tile(values.reshape(-1), self.rows)
        slots[: len(filled)] = filled
        return slots

    def sums(self, slots: Sequence[Floats], count: int) -> Floats:
        """Return scores, (count, outputs), from the decrypted answers to the ciphertexts of `placed`."""
        size = self.rows * self.copies * self.width
        blocks = [
            np.concatenate(
                [one[:size].reshape(self.rows, self.copies, self.width).sum(2) for one in slots[i : i + self.answers]],
                axis=1,
            )
            for i in range(0, len(slots), self.answers)
        ]
        return np.asarray(np.concatenate(blocks)[:count, : self.outputs])


@dataclass(frozen=True, eq=False)
class EncryptedHead:
    """A linear head for encrypted vectors.

    Guarantee: the server computes on ciphertexts only; what they hold is hidden by `SecretKey`. It sees how many there
        are, when, and from which address.
    """

    head: Head
    evaluator: Evaluator = field(default_factory=Evaluator, repr=False)
    rng: Rng = field(default_factory=Rng.secure, repr=False)

    def __post_init__(self) -> None:
        """Reject heads that are not linear: a product of two encrypted numbers would be needed."""
        if len(self.head.layers) != 1:
            raise ModelError(
                f"Expected a linear head for encrypted vectors, got one of {len(self.head.layers)} layers. Train with "
                "a linear head."
            )
        if not self.largest_score(1.0) < LARGEST / 4:
            raise ModelError("Expected a head with weights below 65,000, got larger ones. Train it again.")
        self.evaluator.prepare()

    @cached_property
    def packing(self) -> Packing:
        """How vectors are placed in ciphertexts."""
        return Packing(self.head.width, len(self.head.layers[0][1]))

    @property
    def weight_norm(self) -> float:
        """The largest norm of the weights of a class."""
        return float(np.linalg.norm(self.head.layers[0][0].astype(np.float64), axis=1).max())

    def largest_score(self, norm: float) -> float:
        """Return a bound on the scores of vectors of this norm."""
        return self.weight_norm * norm + float(np.abs(self.head.layers[0][1]).max())

    def most_ciphertexts(self, rows: int) -> int:
        """Return the largest number of ciphertexts in a request for a limit of rows; one takes a few milliseconds."""
        return max(1, min(_MOST_AT_ONCE, rows // self.packing.rows))

    def answer(self, ciphertexts: Sequence[bytes]) -> list[bytes]:
        """Return the encrypted products for each ciphertext, `packing.answers` for each."""
        return [one for ciphertext in ciphertexts for one in self.evaluator.affine(ciphertext, self._factors())]

    def _factors(self) -> list[tuple[Floats, Floats]]:
        packing, (weights, bias) = self.packing, self.head.layers[0]
        factors = []
        for start in range(0, packing.outputs, packing.copies):
            own = np.zeros((packing.copies, packing.width))
            part = weights[start : start + packing.copies]
            own[: len(part)] = part
            factors.append((packing.spread(own), self._offsets(bias[start : start + packing.copies])))
        return factors

    def _offsets(self, bias: npt.NDArray[np.float32]) -> Floats:
        """Return random numbers that sum to the bias in the slots of each text and class."""
        packing = self.packing
        shape = (packing.rows, packing.copies, packing.width)
        numbers = (2 * self.rng.uniform(packing.rows * packing.copies * packing.width) - 1).reshape(shape) * _MASK
        wanted = np.zeros(packing.copies)
        wanted[: len(bias)] = bias
        numbers += ((wanted - numbers.sum(2)) / packing.width)[:, :, None]
        slots = np.zeros(SLOTS)
        slots[: numbers.size] = numbers.reshape(-1)
        return slots


@dataclass(frozen=True, eq=False)
class EncryptedClient:
    """The client's side of encrypted inference, with a key of its own that never leaves it.

    Guarantee: that of `SecretKey`. Do not send decrypted scores back to the server that computed them.
    """

    packing: Packing
    key: SecretKey = field(default_factory=SecretKey, repr=False)

    def encrypt(self, vectors: Any) -> list[bytes]:
        """Return ciphertexts of vectors, (rows, width), `packing.rows` of them in each."""
        rows = np.asarray(vectors, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.packing.width or not len(rows) or not np.isfinite(rows).all():
            raise DataError(f"Expected finite vectors of width {self.packing.width}, got shape {rows.shape} or NaN.")
        return [self.key.encrypt(slots) for slots in self.packing.placed(rows)]

    def scores(self, answers: Sequence[bytes], count: int) -> Floats:
        """Return the scores of `count` vectors, (count, outputs), from the server's answers."""
        if len(answers) != self.packing.answers * -(-count // self.packing.rows):
            raise DataError(f"Expected the answers to {count} vectors, got {len(answers)} ciphertexts.")
        return self.packing.sums([self.key.decrypt(one) for one in answers], count)


def packed(ciphertexts: Sequence[bytes]) -> bytes:
    """Return ciphertexts as one body: their number, and each with its length, in little-endian 32-bit integers."""
    return _COUNT.pack(len(ciphertexts)) + b"".join(_LENGTH.pack(len(one)) + one for one in ciphertexts)


def unpacked(body: bytes, most: int = _MOST) -> list[bytes]:
    """Return the ciphertexts of `packed`; anything else, and more than `most`, raises DataError.

    >>> unpacked(packed([b"one", b"two"]))
    [b'one', b'two']
    """
    try:
        (count,) = _COUNT.unpack_from(body)
        position, ciphertexts = _COUNT.size, []
        if not 1 <= count <= most:
            raise DataError(f"Expected 1 to {most} ciphertexts, got {count}. Send fewer at a time.")
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(body, position)
            position += _LENGTH.size
            if length > LARGEST_BYTES or position + length > len(body):
                raise struct.error
            ciphertexts.append(body[position : position + length])
            position += length
        if position != len(body):
            raise struct.error
    except struct.error:
        raise DataError("Expected a list of ciphertexts, got bytes of another form. Send the body unchanged.") from None
    return ciphertexts
