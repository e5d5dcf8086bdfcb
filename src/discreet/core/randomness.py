"""Randomness that comes in by the door: seeded and reproducible, or secure, from the operating system."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from discreet.core.checks import invalid
from discreet.core.errors import SettingError

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor

    from discreet.core.system_generator import FloatGenerator

_WORD = 8
_STATE_BYTES = 5056  # of torch's CPU generator


class Rng:
    """A source of random numbers that is passed explicitly and forked by name.

    A seeded source repeats itself: the same seed and the same path of forks give the same numbers. Drawing twice from
    one source gives different numbers, so noise is never reused by accident. A secure source draws from the operating
    system and never repeats; what needs a generator that repeats itself rejects it.

    >>> Rng(7).fork("noise").uniform(2) == Rng(7).fork("noise").uniform(2)
    array([ True,  True])
    >>> rng = Rng(7)
    >>> bool(rng.uniform(1) == rng.uniform(1))
    False
    """

    __slots__ = ("_key", "_numpy", "_torch", "is_secret", "path")

    def __init__(self, seed: int, path: tuple[str, ...] = ()) -> None:
        """Make a reproducible source from an integer."""
        if isinstance(seed, bool) or int(seed) != seed:
            raise invalid("seed", seed, "an integer", "Any will do; the same one repeats the run.")
        self._key: bytes | None = hashlib.sha256(f"discreet:{int(seed)}".encode()).digest()
        self.path = path
        self.is_secret = False
        self._numpy: np.random.Generator | None = None
        self._torch: dict[str, torch.Generator] = {}

    @classmethod
    def secure(cls) -> Rng:
        """Return a source that draws from the operating system and cannot be repeated."""
        rng = cls(0)
        rng._key = None
        rng.is_secret = True
        return rng

    @classmethod
    def secret(cls, key: bytes | None = None) -> Rng:
        """Return a source that repeats itself only for whoever holds its 32-byte key, from the operating system."""
        rng = cls(0)
        rng._key = hashlib.sha256(b"discreet:secret:" + (os.urandom(32) if key is None else key)).digest()
        rng.is_secret = True
        return rng

    @property
    def is_secure(self) -> bool:
        """Whether the numbers come from the operating system."""
        return self._key is None

    def fork(self, *names: str | int) -> Rng:
        """Return an independent source for a named purpose; the same names give the same source."""
        child = Rng.secure() if self._key is None else Rng(0)
        child.path = (*self.path, *map(str, names))
        if self._key is not None:
            key = self._key
            for name in names:
                key = hashlib.sha256(key + str(name).encode()).digest()
            child._key = key
            child.is_secret = self.is_secret
        return child

    def numpy(self, user: str = "This") -> np.random.Generator:
        """Return the numpy generator of a seeded source, on behalf of `user`, who is named if the source is secure."""
        if self._key is None:
            raise _no_secure(user)
        if self._numpy is None:
            self._numpy = np.random.Generator(np.random.Philox(key=self._philox_key(b"numpy")))
        return self._numpy

    def floats(self) -> FloatGenerator:
        """Return a generator of floating-point numbers, from either kind of source."""
        if self._key is not None:
            return self.numpy()
        from discreet.core.system_generator import SystemGenerator

        return SystemGenerator()

    def seed_torch(self, device: torch.device) -> None:
        """Seed the generator that torch itself keeps for a device, from which dropout draws, and that of the CPU.

        Some encoders draw on the CPU, wherever their weights are, which layers they drop. `torch.manual_seed` seeds
        those of all devices, and for a kind of device that is not in use it notes the call and where it came from: half
        of the time of a small step, and a list that grows with every step.
        """
        import torch

        if device.type not in {"cpu", "cuda"}:
            torch.manual_seed(self.seed())
            return
        torch.default_generator.manual_seed(self.seed())
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(self.seed())

    def torch(self, device: torch.device | str = "cpu", user: str = "This") -> torch.Generator:
        """Return the torch generator of a seeded source for a device, on behalf of `user`."""
        if self._key is None:
            raise _no_secure(user)
        import torch

        name = str(torch.device(device))
        if name not in self._torch:
            generator = torch.Generator(device=device).manual_seed(self.seed(user))
            if generator.device.type == "cpu":
                generator.set_state(self._mersenne_state(generator))
            self._torch[name] = generator
        return self._torch[name]

    def _mersenne_state(self, generator: Generator) -> Tensor:
        """Return the state of a CPU generator with all 624 words drawn from the key.

        torch seeds its CPU generator with 32 bits, so that among a hundred thousand streams two would be the same. Its
        state is the seed and three counters, 24 bytes, then the words, eight bytes each. Only a state of zeros would be
        a bad one, and 19,937 random bits are never that.
        """
        import torch

        state = generator.get_state()
        if state.numel() != _STATE_BYTES:
            raise SettingError(f"Expected a torch generator of {_STATE_BYTES} bytes, found {state.numel()}.")
        source = np.random.Generator(np.random.Philox(key=self._philox_key(b"mersenne")))
        words = source.integers(0, 1 << 32, size=624, dtype=np.uint64)
        state[24 : 24 + 8 * 624] = torch.from_numpy(words.view(np.uint8).copy())
        return state

    def _philox_key(self, purpose: bytes) -> npt.NDArray[np.uint64]:
        assert self._key is not None
        return np.frombuffer(hashlib.sha256(self._key + purpose).digest()[:16], dtype=np.uint64)

    def seed(self, user: str = "This") -> int:
        """Return a 63-bit seed for a library that keeps its own generator, such as torch's dropout."""
        if self._key is None:
            raise _no_secure(user)
        return int.from_bytes(hashlib.sha256(self._key + b"torch").digest()[:_WORD], "little") >> 1

    def bytes(self, count: int) -> bytes:
        """Return random bytes, from the operating system if the source is secure."""
        return os.urandom(count) if self._key is None else self.numpy().bytes(count)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return uniform 64-bit words."""
        return np.frombuffer(self.bytes(_WORD * count), dtype=np.uint64).copy()

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Return uniform numbers in [0, 1), multiples of 2^-53, from either kind of source."""
        return np.asarray((self.words(count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Return a uniformly random order of `count` items, from either kind of source."""
        # Sorting 64-bit words: two equal words among a million items have probability below 3e-8, and a tie only
        # makes one pair's order fixed.
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def __repr__(self) -> str:
        """Return the kind of source and its path; never the seed's key."""
        kind = "secure" if self._key is None else "seeded"
        return f"Rng({kind}, path={'/'.join(self.path) or '.'})"


def _no_secure(user: str) -> SettingError:
    return SettingError(
        f"Expected {user} with a seeded source, got a secure one, which cannot be repeated. "
        "Use Rng.secret() or Rng(seed)."
    )
