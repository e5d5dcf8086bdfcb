"""Released tensors of one shape put together: each alone costs more to launch than to compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from discreet.attacks.gradient.figures import Target


def stacked_matrices(targets: dict[str, Target], names: Sequence[str]) -> list[tuple[list[str], Target]]:
    """Return the matrices grouped by shape: names, and their targets as (matrices, problems, outputs, inputs).

    What is kept whole becomes a view of its group in `targets`, so that nothing is kept twice.
    """
    groups: dict[tuple[bool, torch.Size], list[str]] = defaultdict(list)
    for name in names:
        target = targets[name]
        shape = target.dense().shape
        if len(shape) == 3:
            groups[target.value is None, shape].append(name)
    found = []
    for (factored, _), members in groups.items():
        parts = [targets[name] for name in members]
        if factored:
            left, right = ([getattr(part, side) for part in parts] for side in ("left", "right"))
            stacked = Target(None, torch.stack(left), torch.stack(right))
        else:
            stacked = Target(torch.stack([part.dense() for part in parts]))
            for place, name in enumerate(members):
                targets[name] = Target(stacked.dense()[place])
        found.append((members, stacked))
    return found


def stacked_vectors(
    targets: Mapping[str, Target], names: Sequence[str], alive: Mapping[str, Tensor]
) -> list[tuple[list[str], Tensor, Tensor]]:
    """Return the one-dimensional tensors grouped by size: names, targets and which numbers are alive."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name in names:
        value = targets[name].dense()
        if value.dim() == 2:
            groups[value.shape[1]].append(name)
    found = []
    for size, members in groups.items():
        values = torch.stack([targets[name].dense() for name in members], 1)
        ones = torch.ones(size, device=values.device)
        found.append((members, values, torch.stack([alive.get(name, ones).float() for name in members])))
    return found
