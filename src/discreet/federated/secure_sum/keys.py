"""Keys of a secure sum: key agreement, derived keys with their context, sealed shares, tags and signatures.

Every derived key depends on a hash of the whole round: session, round number, threshold, length, ring, and the public
keys of all participants. Two clients that were told different facts derive different keys, so that shares do not open
and masks do not cancel.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.federated.secure_sum.messages import SumSettings
from discreet.federated.secure_sum.ring import needs_cryptography

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise needs_cryptography() from None

PUBLIC_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 32


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key pair; the private key is not printed."""

    private: bytes
    public: bytes

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        """Return the pair of a private key of 32 bytes."""
        return cls(private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())

    @classmethod
    def generate(cls, rng: Rng) -> KeyPair:
        """Return a new pair."""
        return cls.of(rng.bytes(32))

    def agree(self, public: bytes) -> bytes:
        """Return the secret that this pair shares with the owner of a public key."""
        try:
            return X25519PrivateKey.from_private_bytes(self.private).exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise DataError("Expected a valid public key, got one of low order. Its owner is not honest.") from None

    def __repr__(self) -> str:
        """Return the public key only."""
        return f"KeyPair(public={self.public.hex()[:16]}…)"


def derived(secret: bytes, context: bytes, purpose: bytes, *clients: int) -> bytes:
    """Return a 32-byte key for one purpose between these clients, in any order (HKDF with SHA-256)."""
    info = purpose + b"".join(struct.pack("<Q", client) for client in sorted(clients))
    return HKDF(SHA256(), 32, salt=context, info=info).derive(secret)


def context_of(settings: SumSettings, roster: Mapping[int, bytes]) -> bytes:
    """Return a hash of the settings and of the public keys of all participants."""
    return hashlib.sha256(settings.digest() + listed(roster)).digest()


def listed(entries: Mapping[int, bytes]) -> bytes:
    """Return entries as bytes, different for different entries."""
    return b"".join(struct.pack("<QI", client, len(entries[client])) + entries[client] for client in sorted(entries))


def named(clients: Iterable[int]) -> bytes:
    """Return a set of clients as bytes."""
    return b"".join(struct.pack("<Q", client) for client in sorted(clients))


def seal(key: bytes, text: bytes, context: bytes, sender: int, receiver: int) -> bytes:
    """Return encrypted and authenticated bytes; one key seals at most one message in each direction."""
    nonce, about = _addressed(context, sender, receiver)
    return ChaCha20Poly1305(key).encrypt(nonce, text, about)


def unseal(key: bytes, sealed: bytes, context: bytes, sender: int, receiver: int) -> bytes | None:
    """Return the bytes of `seal`, or None if they were made by anyone else or for another round."""
    nonce, about = _addressed(context, sender, receiver)
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, sealed, about)
    except InvalidTag:
        return None


def _addressed(context: bytes, sender: int, receiver: int) -> tuple[bytes, bytes]:
    return struct.pack("<QI", sender, 0), context + struct.pack("<QQ", sender, receiver)


def tag(key: bytes, text: bytes, sender: int, receiver: int) -> bytes:
    """Return a tag that only the two owners of a key can compute (HMAC with SHA-256)."""
    return hmac.new(key, struct.pack("<QQ", sender, receiver) + text, "sha256").digest()


def same(left: bytes, right: bytes) -> bool:
    """Return whether two tags are equal, in time that does not depend on where they differ."""
    return hmac.compare_digest(left, right)


def commitment(seed: bytes, context: bytes, client: int) -> bytes:
    """Return a hash that commits a client to its random seed and says nothing else about it."""
    return hashlib.sha256(b"seed" + context + struct.pack("<Q", client) + seed).digest()


def sign(identity: bytes, text: bytes) -> bytes:
    """Return the Ed25519 signature of a long-term private key of 32 bytes."""
    return Ed25519PrivateKey.from_private_bytes(identity).sign(text)


def identity_of(identity: bytes) -> bytes:
    """Return the public key of a long-term private key, which its owner gives to all others."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether a signature is valid."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
