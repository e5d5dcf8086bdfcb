"""Random numbers replaced by constants, so that a model in train mode can be compared with itself.

Dropout draws one mask for each place of a batch, so a row's loss changes with its place although no row changes
another. With every draw replaced by the same number, it changes only if rows do change each other. All other code of
the train mode runs as it does in training.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LOW, HIGH = 0.05, 0.95  # uniform numbers in place of draws: code that runs for few draws must run for one of them
_NUMBERS = frozenset({"rand", "uniform", "randn", "normal", "exponential", "randint", "random"})
_NORMAL = 1.6  # the size of a normal number in place of draws, about that of the same quantiles


class ConstantDraws(TorchDispatchMode):
    """Replace what torch's generators draw by the number that belongs to a uniform `level`.

    With a low level dropout keeps everything, with a high one it drops everything. Draws of an order or of places
    (`randperm`, `multinomial`) stay random. `drew` is whether anything was replaced.
    """

    def __init__(self, level: float = LOW) -> None:
        """Replace draws by the number of a level between 0 and 1."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.level, self.drew = level, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, or return the constant in place of its draws."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
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
        return float(given.get("low", given.get("from")) or 0)
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return float(low + level * (high - low))
