"""Encrypted sums of small updates, such as those of a head: the server adds ciphertexts and sees no number.

All clients share one secret key, which the server must not have. Each encrypts its update, the server adds the
ciphertexts and returns the sum to all clients, and each of them decrypts it. Unlike in a secure sum, the server learns
not even the sum, and clients may drop out without another message. But one client that gives the key to the server
reveals the updates of all, and a ciphertext is three times as large as the numbers. For large models use a secure sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.ckks import SLOTS, Evaluator, SecretKey
from discreet.core.errors import DataError, whole

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EncryptedSum:
    """The clients' side of an encrypted sum: encrypt an update, decrypt a sum.

    Guarantee: that of `SecretKey`, against a server without the key. Do not send a decrypted sum back to the server.
    Differs: CKKS is approximate; a sum of n updates is right to about n times 1e-7.
    """

    length: int
    key: SecretKey = field(default_factory=SecretKey, repr=False)

    def __post_init__(self) -> None:
        """Check the length."""
        whole("length", self.length)

    def encrypt(self, update: Any) -> list[bytes]:
        """Return an update as ciphertexts of 4,096 numbers each."""
        vector = np.asarray(update, dtype=np.float64).reshape(-1)
        if len(vector) != self.length:
            raise DataError(f"Expected an update of {self.length} numbers, got {len(vector)}.")
        return [self.key.encrypt(vector[start : start + SLOTS]) for start in range(0, self.length, SLOTS)]

    def decrypt(self, total: Sequence[bytes]) -> Floats:
        """Return the sum of updates from its ciphertexts."""
        if len(total) != -(-self.length // SLOTS):
            raise DataError(f"Expected a sum of {-(-self.length // SLOTS)} ciphertexts, got {len(total)}.")
        return np.concatenate([self.key.decrypt(one) for one in total])[: self.length]


def encrypted_total(updates: Sequence[Sequence[bytes]], evaluator: Evaluator | None = None) -> list[bytes]:
    """Return the encrypted sum of encrypted updates, at the server, which has no key.

    >>> clients = EncryptedSum(length=3)
    >>> total = encrypted_total([clients.encrypt([1.0, 2.0, 3.0]), clients.encrypt([0.5, 0.5, -3.0])])
    >>> (clients.decrypt(total).round(4) + 0.0).tolist()
    [1.5, 2.5, 0.0]
    """
    sizes = {len(update) for update in updates}
    if len(sizes) != 1:
        raise DataError(f"Expected updates of equal length, got {sorted(sizes)} ciphertexts.")
    evaluator = evaluator or Evaluator()
    return [evaluator.total(parts) for parts in zip(*updates, strict=True)]
