"""Explicit sources of randomness, seeded or secure, and `digest`, a hash of the inputs of a release.

`Rng` is passed explicitly and forked by name. `SystemGenerator` samples floating-point numbers from the operating
system, for releases that need not be reproducible; its methods have the names and meaning of `numpy.random.Generator`.

Two releases with the same noise must never count as one unless they are the same release. So the name of a spend is a
hash of settings, data, weights and secret, computed from the values themselves: a `repr` omits parts, such as the
tensors of a projection.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from discreet.core.errors import SettingError, invalid

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor, nn


_WORD = 8
_STATE_BYTES = 5056  # of torch's CPU generator


class Rng:
    """A source of random numbers that is passed explicitly and forked by name.

    A seeded source is reproducible: the same seed and the same path of forks give the same numbers. Sampling twice from
    one source gives different numbers, so noise is never reused by accident. A secure source reads from the operating
    system and is not reproducible; code that needs a reproducible generator rejects it.

    Args:
        seed: An integer; the same one gives the same numbers. `Rng.secret` has none.
        path: The names of its forks.

    >>> Rng(7).fork("noise").uniform(2) == Rng(7).fork("noise").uniform(2)
    array([ True,  True])
    >>> rng = Rng(7)
    >>> bool(rng.uniform(1) == rng.uniform(1))
    False
    """

    __slots__ = ("_key", "_numpy", "_torch", "is_secret", "path")

    def __init__(self, seed: int, path: tuple[str, ...] = ()) -> None:
        """Create a reproducible source from an integer seed."""
        if isinstance(seed, bool) or int(seed) != seed:
            raise invalid("seed", seed, "an integer", "Any integer works; the same one reproduces the run.")
        self._key: bytes | None = hashlib.sha256(f"discreet:{int(seed)}".encode()).digest()
        self.path = path
        self.is_secret = False
        self._numpy: np.random.Generator | None = None
        self._torch: dict[str, torch.Generator] = {}

    @classmethod
    def _of(cls, key: bytes | None, path: tuple[str, ...], is_secret: bool) -> Rng:
        """Return a source with a key; a step forks a dozen of them, so no seed is hashed first."""
        rng = cls.__new__(cls)
        rng._key, rng.path, rng.is_secret, rng._numpy, rng._torch = key, path, is_secret, None, {}
        return rng

    @classmethod
    def secure(cls) -> Rng:
        """Return a source that reads from the operating system and is not reproducible."""
        return cls._of(None, (), is_secret=True)

    @classmethod
    def secret(cls, key: bytes | None = None) -> Rng:
        """Return a source that is reproducible only with its 32-byte key, by default from the operating system.

        Args:
            key: 32 bytes that nobody else knows.
        """
        drawn = os.urandom(32) if key is None else key
        return cls._of(hashlib.sha256(b"discreet:secret:" + drawn).digest(), (), is_secret=True)

    @property
    def is_secure(self) -> bool:
        """Whether the numbers come from the operating system."""
        return self._key is None

    def fork(self, *names: str | int) -> Rng:
        """Return an independent source for a named purpose; the same names give the same source.

        Args:
            names: The names of the fork, which tell it from others.
        """
        key = self._key
        if key is not None:
            for name in names:
                key = hashlib.sha256(key + str(name).encode()).digest()
        return self._of(key, (*self.path, *map(str, names)), self.is_secret)

    def numpy(self, user: str = "This") -> np.random.Generator:
        """Return the numpy generator of a seeded source; `user` is named in the error if the source is secure.

        Args:
            user: Who asks, for the error.
        """
        if self._key is None:
            raise _no_secure(user)
        if self._numpy is None:
            self._numpy = np.random.Generator(np.random.Philox(key=self._philox_key(b"numpy")))
        return self._numpy

    def floats(self) -> FloatGenerator:
        """Return a generator of floating-point numbers, seeded or secure."""
        return SystemGenerator() if self._key is None else self.numpy()

    def seed_torch(self, device: torch.device) -> None:
        """Seed torch's default generators of a device, which dropout uses, and of the CPU.

        Some encoders choose dropped layers on the CPU, wherever their weights are. `torch.manual_seed` seeds the
        generators of all devices, and for a device type that is not initialized it records the call with its stack:
        half of the time of a small step, and a list that grows with every step.

        Args:
            device: The device whose generators are seeded.
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
        """Return the torch generator of a seeded source for a device; `user` is named in the error.

        Args:
            device: The device of the generator.
            user: Who asks, for the error.
        """
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
        """Return the state of a CPU generator with all 624 words derived from the key.

        torch seeds its CPU generator with 32 bits, so that among a hundred thousand streams two would be equal. The
        state is the seed and three counters, 24 bytes, then the words, eight bytes each. Only an all-zero state is
        invalid, and 19,937 random bits are never all zero.
        """
        import torch

        state = generator.get_state()
        if state.numel() != _STATE_BYTES:
            raise SettingError(f"Expected a torch generator state of {_STATE_BYTES} bytes, got {state.numel()}.")
        source = np.random.Generator(np.random.Philox(key=self._philox_key(b"mersenne")))
        words = source.integers(0, 1 << 32, size=624, dtype=np.uint64)
        state[24 : 24 + 8 * 624] = torch.from_numpy(words.view(np.uint8).copy())
        return state

    def _philox_key(self, purpose: bytes) -> npt.NDArray[np.uint64]:
        assert self._key is not None
        return np.frombuffer(hashlib.sha256(self._key + purpose).digest()[:16], dtype=np.uint64)

    def seed(self, user: str = "This") -> int:
        """Return a 63-bit seed for a library that keeps its own generator, such as torch's dropout.

        Args:
            user: Who asks, for the error.
        """
        if self._key is None:
            raise _no_secure(user)
        return int.from_bytes(hashlib.sha256(self._key + b"torch").digest()[:_WORD], "little") >> 1

    def seed_bytes(self, purpose: str) -> bytes:
        """Return a 32-byte seed for another library's generator, one for each purpose; faster than a fork.

        Args:
            purpose: What the seed is for.

        >>> Rng(7).seed_bytes("numpy") == Rng(7).seed_bytes("numpy"), Rng(7).seed_bytes("a") == Rng(7).seed_bytes("b")
        (True, False)
        """
        return os.urandom(32) if self._key is None else hashlib.sha256(self._key + f"seed:{purpose}".encode()).digest()

    def bytes(self, count: int) -> bytes:
        """Return random bytes, from the operating system if the source is secure.

        Args:
            count: How many.
        """
        return os.urandom(count) if self._key is None else self.numpy().bytes(count)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return uniform 64-bit words.

        Args:
            count: How many.
        """
        return np.frombuffer(self.bytes(_WORD * count), dtype=np.uint64).copy()

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Return uniform numbers in [0, 1), multiples of 2^-53.

        Args:
            count: How many.
        """
        return np.asarray((self.words(count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Return a uniformly random permutation of `count` items.

        Args:
            count: How many.
        """
        # Sorts 64-bit words: two equal words among a million items have probability below 3e-8, and a tie only fixes
        # the order of one pair.
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def __repr__(self) -> str:
        """Return the kind of source and its path, never its key."""
        kind = "secure" if self._key is None else "seeded"
        return f"Rng({kind}, path={'/'.join(self.path) or '.'})"


def _no_secure(user: str) -> SettingError:
    return SettingError(
        f"Expected a seeded source for {user}, got a secure one, which is not reproducible. "
        "Use Rng.secret() or Rng(seed)."
    )


Floats = npt.NDArray[np.float64]

_HALF, _TAIL = 2.0**-64, 2.0**-128


class FloatGenerator(Protocol):
    """The generator of the mechanisms: a numpy generator, or the operating system."""

    def random(self, size: int) -> Floats:
        """Return uniform numbers between 0 and 1."""
        ...

    def standard_normal(self, size: int) -> Floats:
        """Return normal numbers of variance 1."""
        ...

    def standard_exponential(self, size: int) -> Floats:
        """Return exponential numbers of mean 1."""
        ...

    def standard_gamma(self, shape: float, size: int) -> Floats:
        """Return gamma numbers of scale 1."""
        ...


class SystemGenerator:
    """Sample uniform, normal, exponential and gamma numbers in float64 from `os.urandom`.

    A uniform number has 128 bits before it is rounded to float64, so that its logarithm is not limited to the values
    that 53 bits give in the tail.
    """

    def random(self, size: int) -> Floats:
        """Return uniform numbers in (0, 1], with 53 significant bits at any size down to 2^-129."""
        words = np.frombuffer(os.urandom(16 * size), dtype=np.uint64).astype(np.float64)
        return np.asarray(words[:size] * _HALF + (words[size:] + 0.5) * _TAIL)

    def standard_exponential(self, size: int) -> Floats:
        """Return -log of uniform numbers."""
        return np.asarray(-np.log(self.random(size)))

    def standard_normal(self, size: int) -> Floats:
        """Return normal numbers by the Box-Muller transform, both of each pair."""
        pairs = -(-size // 2)
        radius = np.sqrt(2 * self.standard_exponential(pairs))
        angle = 2 * np.pi * self.random(pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]

    def standard_gamma(self, shape: float, size: int) -> Floats:
        """Return gamma numbers.

        Paper: Marsaglia and Tsang 2000, A simple method for generating gamma variables.
        """
        if shape < 1:
            power = self.standard_exponential(size) / -shape
            return np.asarray(self.standard_gamma(shape + 1, size) * np.exp(power))
        d = shape - 1 / 3
        samples = np.empty(size)
        filled = 0
        while filled < size:
            count = int((size - filled) * 1.1) + 8
            x = self.standard_normal(count)
            v = (1 + x / np.sqrt(9 * d)) ** 3
            positive = v > 0
            log_v = np.log(np.where(positive, v, 1.0))
            keep = positive & (-self.standard_exponential(count) < x * x / 2 + d - d * v + d * log_v)
            accepted = (d * v)[keep][: size - filled]
            samples[filled : filled + len(accepted)] = accepted
            filled += len(accepted)
        return samples


NOISE_FORMAT = 2  # version of how noise is derived from a secret; a change of it changes every release


def digest(*values: Any) -> str:
    """Return a SHA-256 of values as hexadecimal digits: settings, texts, arrays, tensors, models and sources.

    >>> digest(("a", "b")) == digest(("a", "b")), digest(("a", "b")) == digest(("ab", "")), digest(1) == digest(1.0)
    (True, False, False)
    """
    hasher = hashlib.sha256()
    _add(hasher, values)
    return hasher.hexdigest()


def weights_digest(model: nn.Module, *, leave_out: str | None = None) -> str:
    """Return a SHA-256 of all parameters and buffers of a model except the submodule named `leave_out`."""
    named = chain(model.named_parameters(), model.named_buffers())
    tensors = {name: value for name, value in named if leave_out is None or not name.startswith(f"{leave_out}.")}
    return digest({name: (value.requires_grad, value.detach()) for name, value in tensors.items()})


def _add(hasher: Any, value: Any) -> None:
    """Add a value with its type and size, so that no two different values give the same bytes."""
    import torch

    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        _put(hasher, f"tensor {tensor.dtype} {tuple(tensor.shape)}", tensor.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray):
        _put(hasher, f"array {value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Rng):
        _add(hasher, ("rng", value.is_secret, value.fork("identity").words(2).tolist()))
    elif isinstance(value, torch.nn.Module):
        _add(hasher, (type(value).__qualname__, weights_digest(value)))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        _add(hasher, (type(value).__qualname__, {field.name: getattr(value, field.name) for field in fields}))
    elif isinstance(value, Mapping):
        _put(hasher, f"mapping {len(value)}")
        for key in sorted(value, key=repr):
            _add(hasher, key)
            _add(hasher, value[key])
    elif isinstance(value, list | tuple):
        _put(hasher, f"sequence {len(value)}")
        for item in value:
            _add(hasher, item)
    elif isinstance(value, set | frozenset):
        _put(hasher, f"set {len(value)}")
        for text in sorted(digest(item) for item in value):
            _put(hasher, text)
    elif isinstance(value, str | bytes):
        _put(hasher, type(value).__name__, value.encode() if isinstance(value, str) else value)
    else:
        _put(hasher, f"{type(value).__qualname__} {value!r}")


def _put(hasher: Any, kind: str, data: Any = b"") -> None:
    head = f"{kind} {len(data)}".encode()
    hasher.update(len(head).to_bytes(8, "little") + head)
    hasher.update(data)
