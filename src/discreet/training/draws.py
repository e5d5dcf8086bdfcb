"""How made-up rows are computed: random numbers replaced by constants, and bad values found before a GPU aborts.

Dropout draws one mask for each place of a batch, so a row's loss changes with its place although no row changes
another. With every draw replaced by the same number, it changes only if rows do change each other. All other code of
the train mode runs as it does in training.

Draws of torch are replaced, and those of the functions of the modules `random` and `numpy.random`. Functions that were
imported by their name (`from random import random`), generators of numpy (`default_rng`) and draws of an order or of
places stay random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from discreet.core.nested import mapped

# Uniform numbers in place of draws: code that runs for few draws must run for one of them. The first is always tried.
LOW, HIGH = 0.05, 0.95
LEVELS = (LOW, 1e-6, 1 - 1e-6, HIGH)
_NUMBERS = frozenset({"rand", "uniform", "randn", "normal", "exponential", "randint", "random"})
_NORMAL = 1.6  # the size of a normal number in place of draws, about that of the same quantiles
_MOST_DRAWS = 10_000  # in one pass: a loop that draws until a number fits must end
# Operations that a GPU aborts for bad values.
_ABORTING = frozenset(
    {
        "binary_cross_entropy",
        "multinomial",
        "embedding",
        "index",
        "index_select",
        "gather",
        "scatter",
        "nll_loss_forward",
    }
)


class ConstantDraws(TorchDispatchMode):
    """Replace what torch, Python and numpy draw by the number that belongs to a uniform `level`.

    With a low level dropout keeps everything, with a high one it drops everything. Draws of an order or of places
    (`randperm`, `multinomial`) stay random. `drew` is whether anything was replaced.
    """

    def __init__(self, level: float = LOW) -> None:
        """Replace draws by the number of a level between 0 and 1."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.level, self.drew = level, False
        self._draws, self._before = 0, []  # type: tuple[int, list[tuple[Any, str, Any]]]

    def __enter__(self) -> Self:
        """Replace draws from now on."""
        for module, replaced in ((random, _python(self.level)), (np.random, _numpy(self.level))):
            for name, constant in replaced.items():
                self._before.append((module, name, getattr(module, name)))
                setattr(module, name, self._or_drawn(constant, getattr(module, name)))
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Draw again."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        while self._before:
            setattr(*self._before.pop())

    def _or_drawn(self, constant: Callable[..., Any], draw: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that returns the constant, and draws after very many calls."""

        def replaced(*args: Any, **kwargs: Any) -> Any:
            self.drew = True
            self._draws += 1
            return (constant if self._draws <= _MOST_DRAWS else draw)(*args, **kwargs)

        return replaced

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, or return the constant in place of its draws."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self._draws += 1
        if self._draws > _MOST_DRAWS:
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        name = func._schema.name.partition("::")[2].rstrip("_").removesuffix("_like")
        if name == "bernoulli":
            self.drew = True
            p = given.get("p", given["self"])
            result = given["self"] if func._schema.name.endswith("_") else torch.empty_like(given["self"])
            return result.copy_(self.level < p) if isinstance(p, Tensor) else result.fill_(float(self.level < p))
        if name in _NUMBERS:
            self.drew = True
            return func(*args, **kwargs).fill_(_constant(name, self.level, given))
        for switch, off in (("dropout_p", 0.0), ("train", False), ("training", False)):
            if given.get(switch):
                self.drew = True
                given[switch] = off
                return func(**given)
        return func(*args, **kwargs)


def _constant(name: str, level: float, given: dict[str, Any]) -> float:
    """Return the number in place of the draws of an operation."""
    if name in {"randn", "normal"}:
        mean, std = given.get("mean", 0.0), given.get("std", 1.0)
        size = math.copysign(_NORMAL, level - 0.5)
        return size if isinstance(mean, Tensor) or isinstance(std, Tensor) else float(mean + size * std)
    if name == "exponential":
        return float(-math.log1p(-level) / given.get("lambd", 1.0))
    if name in {"randint", "random"}:
        least, above = given.get("low", given.get("from")) or 0, given.get("high")
        return float(least if above is None else _whole(least, above, level))
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return float(low + level * (high - low))


def _whole(least: int, above: int, level: float) -> int:
    """Return the whole number of a level, from `least` to below `above`."""
    return least + int(level * (above - least))


def _python(level: float) -> dict[str, Callable[..., Any]]:
    """Return functions in place of those of `random`."""
    normal = math.copysign(_NORMAL, level - 0.5)
    return {
        "random": lambda: level,
        "uniform": lambda a, b: a + level * (b - a),
        "gauss": lambda mu=0.0, sigma=1.0: mu + normal * sigma,
        "normalvariate": lambda mu=0.0, sigma=1.0: mu + normal * sigma,
        "randint": lambda a, b: _whole(a, b + 1, level),
        "choice": lambda seq: seq[_whole(0, len(seq), level)],
    }


def _numpy(level: float) -> dict[str, Callable[..., Any]]:
    """Return functions in place of those of `numpy.random`."""
    normal = math.copysign(_NORMAL, level - 0.5)

    def filled(value: Any, size: Any = None) -> Any:
        return value if size is None else np.full(size, value)

    def shaped(value: Any, size: Any) -> Any:
        if size is None:
            return value if np.ndim(value) else float(value)
        return np.broadcast_to(value, size).copy()

    def uniform(low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        value = low + level * (np.asarray(high) - low)
        return shaped(value, size)

    def normally(loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        value = loc + normal * np.asarray(scale)
        return shaped(value, size)

    return {
        "rand": lambda *shape: filled(level, shape or None),
        "random": lambda size=None: filled(level, size),
        "random_sample": lambda size=None: filled(level, size),
        "uniform": uniform,
        "randn": lambda *shape: filled(normal, shape or None),
        "standard_normal": lambda size=None: filled(normal, size),
        "normal": normally,
    }


class FirstOnCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute operations that a GPU aborts for bad values on the CPU first, where they raise an error instead.

    After such an abort no other operation of the process runs on the GPU.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, after a trial on the CPU."""
        if func._schema.name.partition("::")[2].rstrip("_") in _ABORTING:
            func(*mapped(args, _on_cpu), **mapped(kwargs or {}, _on_cpu))
        return func(*args, **(kwargs or {}))


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value
