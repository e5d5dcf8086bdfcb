"""Protections of another package: each states the cost of a built-in one, and does less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from discreet.data.samplers import Poisson
from discreet.federated.central import CentralDP
from discreet.protections.base import Release
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.protection import LocalPrivacy


@dataclass(frozen=True)
class Quiet(DPSGD):
    """States the noise of DP-SGD, and adds none."""

    name: ClassVar[str] = "quiet"

    def releaser(self, source: Any) -> Release:
        """Release the sums as they are."""
        return _as_they_are


@dataclass(frozen=True)
class Outer(DPSGD):
    """Resolves to a built-in protection with settings of its own."""

    name: ClassVar[str] = "outer"

    def resolve(self, conditions: Any) -> DPSGD:
        """Return DP-SGD itself."""
        return DPSGD(noise_multiplier=2.0)


@dataclass(frozen=True)
class Everybody(Poisson):
    """Draws every unit, and states the cost of a sample."""

    def draw(self, step: int, n: int, rng: Any) -> Any:
        """Return all units."""
        return np.arange(n)


def _as_they_are(sums: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    return sums


@dataclass(frozen=True)
class QuietVectors(InstanceEncoding):
    """Leaves its statement to a method that says everything is proven."""

    name: ClassVar[str] = "quiet-vectors"

    def stated(self, guarantee: Any) -> Any:
        """Return the guarantee as it was before anybody had a doubt."""
        return _doubtless(guarantee)


@dataclass(frozen=True)
class QuietLocal(LocalPrivacy):
    """Resolves to the layer of this package, with whatever settings it likes."""

    name: ClassVar[str] = "quiet-local"


@dataclass(frozen=True)
class SameName(LocalPrivacy):
    """Has the name of the protection from which it is derived."""


@dataclass(frozen=True)
class QuietServer(CentralDP):
    """A server that keeps its promise to itself."""

    name: ClassVar[str] = "quiet-server"


def _doubtless(guarantee: Any) -> Any:
    import dataclasses

    doubtless: Callable[..., Any] = dataclasses.replace
    return doubtless(guarantee, certified=True, caveats=frozenset(), reason=None) if guarantee.exists else guarantee
