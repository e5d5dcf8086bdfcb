"""Homomorphic encryption of vectors with CKKS (TenSEAL): one product with known numbers, and sums, of encrypted ones.

`SecretKey` encrypts and decrypts; `Evaluator` computes without any key. All use one set of parameters, fixed here, so
that nothing but ciphertexts is exchanged. A ciphertext holds up to 4,096 numbers. Its parameters have at least 128 bits
of security by the tables of the Homomorphic Encryption Standard (160 bits of modulus, where 218 are allowed for this
degree). Results are approximate: their error is about 1e-6.

Paper: Cheon, Kim, Kim and Song 2017, Homomorphic Encryption for Arithmetic of Approximate Numbers; Li and Micciancio
2021, On the Security of Homomorphic Encryption on Approximate Numbers: never give a decrypted result to whoever
computed it, because its error says something about the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, ExtraError

Floats = npt.NDArray[np.float64]

DEGREE = 8192
SLOTS = DEGREE // 2  # numbers in a ciphertext
MODULI = (60, 40, 60)  # bits: of the result, of the product, and a prime that SEAL keeps apart
SCALE_BITS = 40
LARGEST = 2.0**18  # size of a number that a result can hold, with a factor of two to spare
_TINY = 2.0**-20
LARGEST_BYTES = 300_000  # of a ciphertext: two polynomials with two moduli, 262,144 bytes, and a head


def _library() -> Any:
    try:
        import tenseal
    except ImportError:
        raise ExtraError(
            "Expected tenseal, which encryption needs. Install it with: pip install 'discreet[encrypted]'"
        ) from None
    return tenseal


def _context() -> Any:
    library = _library()
    context = library.context(
        library.SCHEME_TYPE.CKKS,
        DEGREE,
        coeff_mod_bit_sizes=list(MODULI),
        encryption_type=library.ENCRYPTION_TYPE.SYMMETRIC,
        n_threads=1,
    )
    context.global_scale = 2.0**SCALE_BITS
    return context


@dataclass(frozen=True, eq=False)
class SecretKey:
    """A secret key: whoever has it can encrypt and decrypt. A new one is made by default.

    Guarantee: a ciphertext says nothing about its numbers to anyone without the key who cannot break the ring learning
        with errors problem; only how many ciphertexts there are is visible.
    """

    _keys: Any = field(default_factory=_context, repr=False)

    def encrypt(self, numbers: npt.ArrayLike) -> bytes:
        """Return up to 4,096 numbers as a ciphertext; it is filled up with zeros, so that its size says nothing."""
        values = np.asarray(numbers, dtype=np.float64).reshape(-1)
        if not 0 < len(values) <= SLOTS or not np.isfinite(values).all() or np.abs(values).max() > LARGEST:
            raise DataError(
                f"Expected 1 to {SLOTS} finite numbers of size at most {LARGEST:g}, got {len(values)} numbers, or "
                "larger ones or NaN. Split or scale the vector."
            )
        padded = np.zeros(SLOTS)
        padded[: len(values)] = values
        return bytes(_library().ckks_vector(self._keys, padded.tolist()).serialize())

    def decrypt(self, ciphertext: bytes) -> Floats:
        """Return the 4,096 numbers of a ciphertext or of a result; DataError if it is damaged."""
        return np.asarray(_load(self._keys, ciphertext).decrypt(), dtype=np.float64)

    def to_bytes(self) -> bytes:
        """Return the key as bytes, to be kept as secret as the data."""
        return bytes(
            self._keys.serialize(
                save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> SecretKey:
        """Return the key of `to_bytes`."""
        try:
            context = _library().context_from(data, n_threads=1)
            private = context.is_private()
        except (ValueError, RuntimeError):
            private = False
        if not private:
            raise DataError("Expected the bytes of a secret key, got others. The file is damaged or another one.")
        context.global_scale = 2.0**SCALE_BITS
        return cls(context)


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Computes on ciphertexts of any key and sees no number of them."""

    @cached_property
    def _parameters(self) -> Any:
        return _context()  # its own key is never used: only the parameters matter

    def prepare(self) -> None:
        """Compute the tables of the parameters now instead of at the first use."""
        assert self._parameters is not None

    def affine(self, ciphertext: bytes, factors: Sequence[tuple[Floats, Floats]]) -> list[bytes]:
        """Return for each pair (factor, offset) of 4,096 numbers the encrypted factor * x + offset."""
        vector = _load(self._parameters, ciphertext)
        try:
            return [
                bytes((vector * _not_zero(factor).tolist() + offset.tolist()).serialize()) for factor, offset in factors
            ]
        except (ValueError, RuntimeError):
            raise _damaged() from None

    def total(self, ciphertexts: Sequence[bytes]) -> bytes:
        """Return the encrypted sum of ciphertexts of one key."""
        if not ciphertexts:
            raise DataError("Expected one or more ciphertexts, got none.")
        try:
            total = _load(self._parameters, ciphertexts[0])
            for ciphertext in ciphertexts[1:]:
                total = total + _load(self._parameters, ciphertext)
            return bytes(total.serialize())
        except (ValueError, RuntimeError):
            raise _damaged() from None


def _not_zero(factor: Floats) -> Floats:
    """Return a factor that is not zero everywhere, within 1e-6 in one slot.

    TenSEAL replaces a product with zeros by zeros that are encrypted with the evaluator's own key.
    """
    if np.abs(factor).max() >= _TINY:
        return factor
    changed = factor.copy()
    changed[0] = _TINY
    return changed


def _load(context: Any, ciphertext: bytes) -> Any:
    """Return a ciphertext of these parameters with all slots; anything else raises DataError."""
    if not isinstance(ciphertext, bytes) or not 0 < len(ciphertext) <= LARGEST_BYTES:
        raise _damaged()
    try:
        vector = _library().ckks_vector_from(context, ciphertext)
        if len(vector.ciphertext()) != 1 or vector.size() != SLOTS:
            raise _damaged()
    except (ValueError, RuntimeError):
        raise _damaged() from None
    return vector


def _damaged() -> DataError:
    return DataError(f"Expected a ciphertext of {SLOTS} numbers with the parameters of this version, got other bytes.")
