"""Directional DP-SGD: replace every unit's gradient by a random direction near it, and average the directions.

Paper: Faustini, Fernandes, McIver and Dras, Empirical calibration and metric differential privacy in language models,
Algorithm 1.
Differs: exact von Mises–Fisher samples in any dimension; a zero gradient gets a uniform direction; the cost is counted
for every use, and for every block of a partition (the paper's Corollary 1, a factor of sqrt(blocks), is not a bound).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from discreet.clipping.record import Record
from discreet.core.errors import SettingError, UnsupportedError, invalid, setting, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.rules import NonNegative, OneOf, check_fields
from discreet.core.settings import option_field
from discreet.mechanisms.normals import NormalSource, release
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.models.settings import TrainDefaults
from discreet.protections.base import (
    BUDGET,
    DELTA,
    FROZEN,
    RESOLVED,
    Conditions,
    GradientProtection,
    Visible,
)

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

# Up to this many numbers, the gradients of all units are formed together; beyond it, noise is streamed.
_AT_ONCE = 1 << 25
PARTITIONS = ("whole", "layers")


@dataclass(frozen=True)
class Block:
    """Parameters that share one direction, and their total size."""

    names: tuple[str, ...]
    dimension: int


@dataclass(frozen=True)
class DirDPSGD(GradientProtection):
    """Replace each unit's gradient by a von Mises–Fisher sample around its direction, in one block or in several.

    The sample is exact. For few parameters the gradients are formed; for many, one noise vector at a time is streamed:
    with xi normal and s = <xi, u>, y = w u + sqrt(1 - w^2) (xi - s u) / sqrt(|xi|^2 - s^2), and s comes from the layer
    inputs and output gradients. Either way a step samples units x parameters normal numbers.

    Set the concentration `kappa`, or a budget: then `kappa` is the largest that keeps the whole training within
    `epsilon`. With both, training stops at `epsilon`. `partition` is `whole` (one direction for all trainable
    parameters) or `layers`; `resolve` sets `blocks` from the parameters of the model.

    Args:
        kappa: Concentration of the directions; 0 is pure noise. If epsilon is also set, training stops at that budget.
        blocks: The blocks of parameters with a direction each, set when the protection is resolved for a model.
        partition: whole (one direction for all parameters) or layers (one for each layer).
        epsilon: Privacy budget of one unit for the whole run.
        delta: Delta of the guarantee; well below 1 / number of units. By default 0.1 / number of units, at most 1e-5.

    Guarantee: for each unit and use, kappa times the distance of two directions (metric privacy), pure epsilon = 2 *
        kappa, and the smaller certified epsilon at a delta of its event, under replace-one and zero-out. Each block is
        sampled separately, so the costs of blocks add up. Gradient norms are not released.

    >>> DirDPSGD(kappa=500.0, blocks=(Block(("head.weight", "head.bias"), 770),)).event
    VonMisesFisherDpEvent(kappa=500.0, dimension=770)
    """

    kappa: float | None = option_field(
        None,
        "Concentration of the directions; 0 is pure noise. If epsilon is also set, training stops at that budget.",
        "Budget",
        rule=NonNegative("An infinite kappa releases the direction itself."),
    )
    blocks: tuple[Block, ...] = field(default=(), metadata=RESOLVED)
    partition: str = option_field(
        "whole",
        "whole (one direction for all parameters) or layers (one for each layer).",
        "Method",
        rule=OneOf(tuple(PARTITIONS)),
    )
    epsilon: float | None = option_field(None, "Privacy budget of one unit for the whole run.", "Budget", rule=BUDGET)
    delta: float | None = field(default=None, metadata=DELTA)
    name: ClassVar[str] = "dir-dp-sgd"
    visible: ClassVar[Visible] = "each"  # each direction is noisy by itself; their sum is post-processing
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    draws_to_gather: ClassVar[bool] = True
    learns_little: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject settings outside their range, and settings that do not determine the noise."""
        check_fields(self)
        if self.kappa is None and self.epsilon is None:
            raise SettingError(
                f"Expected {setting('kappa')} or {setting('epsilon')} for dir-dp-sgd. Kappa 0 is pure noise."
            )

    def resolve(self, conditions: Conditions) -> DirDPSGD:
        """Return the protection of the model's trainable parameters, with kappa calibrated to the budget."""
        if self.kappa is not None and self.blocks:
            return self._with(self.kappa, self.blocks)
        partition = None
        if self.partition == "layers":
            layers: dict[str, list[str]] = {}
            for name, parameter in conditions.model.named_parameters():
                if parameter.requires_grad:
                    layers.setdefault(name.rpartition(".")[0], []).append(name)
            partition = list(layers.values())
        if self.kappa is not None:
            return self._with(self.kappa, DirDPSGD.for_model(conditions.model, self.kappa, partition).blocks)
        assert self.epsilon is not None
        blocks = DirDPSGD.for_model(conditions.model, 1.0, partition).blocks
        return self._with(_largest_kappa(blocks, self.epsilon, conditions), blocks)

    def _with(self, kappa: float, blocks: tuple[Block, ...]) -> DirDPSGD:
        """Return the same method with this concentration and without a budget."""
        return replace(self, kappa=kappa, blocks=blocks, partition=DirDPSGD.partition, epsilon=None, delta=None)

    def defaults(self, part: str, units: int, width: int) -> TrainDefaults:
        """Return settings for noisy directions, whose length does not depend on the batch."""
        return TrainDefaults(5.0, min(128, units), 1e-2 if part in FROZEN else 1e-3, 0.0, 0.0, False)

    def identity(self) -> object:
        """Return the settings that determine its random values."""
        return "DirDPSGD", {"kappa": self.kappa, "blocks": self.blocks}

    @property
    def concentration(self) -> float:
        """Kappa of a resolved protection."""
        if self.kappa is None or not self.blocks:
            raise UnsupportedError(
                "Expected a resolved dir-dp-sgd. Its blocks and its kappa depend on the model and the number of steps; "
                "make a training plan, or call resolve(conditions)."
            )
        return self.kappa

    @classmethod
    def for_model(cls, model: nn.Module, kappa: float, partition: Sequence[Sequence[str]] | None = None) -> DirDPSGD:
        """Return the protection of a model's trainable parameters, as one block or partitioned by name.

        Args:
            model: The model.
            kappa: The concentration of the directions.
            partition: The names of the parameters of each block; by default one block.
        """
        sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
        groups = [list(sizes)] if partition is None else [list(names) for names in partition]
        named = [name for names in groups for name in names]
        if sorted(named) != sorted(sizes):
            odd = sorted(set(named) ^ set(sizes)) or sorted({n for n in named if named.count(n) > 1})
            raise invalid(
                "partition", odd[0], "in exactly one block", "Every trainable parameter belongs to one block."
            )
        return cls(kappa, tuple(Block(tuple(names), sum(sizes[n] for n in names)) for names in groups))

    def for_release(self, model: nn.Module) -> DirDPSGD:
        """Return the same for all trainable parameters of a model, as one block."""
        return DirDPSGD.for_model(model, self.concentration)

    def figures(self, steps: int) -> dict[str, float]:
        """Return the metric epsilon of a use, the pure epsilon of all, and the dimension."""
        return {
            "metric_epsilon_per_use": self.concentration,
            "pure_epsilon": self.pure_epsilon(steps),
            "dimension": self.dimension,
        }

    @property
    def dimension(self) -> int:
        """The number of trainable parameters."""
        return sum(block.dimension for block in self.blocks)

    @property
    def event(self) -> DpEvent:
        """Privacy event of one use: one sample for every block."""
        from discreet.accounting.events import ComposedDpEvent

        events = [VonMisesFisher(self.concentration, block.dimension).event for block in self.blocks]
        return events[0] if len(events) == 1 else ComposedDpEvent(events)

    @property
    def signal_norm(self) -> float:
        """Length of the mean direction, by a bound on a ratio of Bessel functions that is tight in high dimensions."""
        ratio = self.concentration / (self.dimension / 2)
        return ratio / (1 + math.sqrt(1 + ratio**2))

    def pure_epsilon(self, uses: int) -> float:
        """Return the epsilon at delta 0 over all uses: 2 * kappa for each use of each block."""
        return 2 * self.concentration * len(self.blocks) * whole("uses", uses, 0)

    def check_parameters(self, sizes: Mapping[str, int]) -> None:
        """Reject a model whose trainable parameters are not those of the blocks: the cost depends on their number."""
        dimensions = [sum(sizes.get(name, 0) for name in block.names) for block in self.blocks]
        named = sorted(name for block in self.blocks for name in block.names)
        if named != sorted(sizes) or dimensions != [block.dimension for block in self.blocks]:
            trained = f"{sum(sizes.values()):,} in {len(sizes)} tensors"
            rule = f"the {self.dimension:,} in {len(named)} tensors that dir-dp-sgd was resolved for"
            raise invalid("trainable parameters", trained, rule, "Make a plan for this model.")

    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add the noisy directions of the recorded units to the sums, and free the record."""
        if len(record) == 0:
            _add(sums, record.weighted_sum(torch.zeros(0, device=record.norms().device)))
        elif len(record) * self.dimension <= _AT_ONCE:
            self.gather_formed(record, sums, rng)
        else:
            self.gather_streamed(record, sums, rng)

    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        """Return the sums unchanged: every direction in them is already noisy."""
        return sums

    def gather_formed(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add noisy directions; the gradient of every unit is formed."""
        gradients = record.gradients()
        for number, block in enumerate(self.blocks):
            # Padding units get no direction: it would be noise that is not accounted for.
            flat = torch.cat([gradients[name].flatten(1) for name in block.names], dim=1)[: _real(record)]
            noisy = self.directions(flat, number, rng).sum(dim=0)
            shapes = {name: gradients[name].shape[1:] for name in block.names}
            pieces = torch.split(noisy, [shape.numel() for shape in shapes.values()])
            _add(sums, {name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)})

    def directions(self, gradients: Tensor, number: int, rng: Rng) -> Tensor:
        """Return the noisy direction of each row in a block; a gradient that is zero or not finite has a uniform one.

        Guarantee: that of one use of the block, for each row.
        """
        finite = torch.isfinite(gradients).all(dim=1, keepdim=True)
        mechanism = VonMisesFisher(self.concentration, self.blocks[number].dimension)
        noisy: Tensor = mechanism(torch.where(finite, gradients, 0.0), rng.fork("block", number))
        return noisy

    def gather_streamed(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add noisy directions, one noise vector at a time; no unit's gradient is formed."""
        weights: dict[str, Tensor] = {}
        noisy: dict[str, tuple[Tensor, float]] = {}  # in float64 until the gradients are added and the sum is rounded
        for number, block in enumerate(self.blocks):
            source = rng.fork("block", number)
            mechanism = VonMisesFisher(self.concentration, block.dimension)
            norms = record.norms(block.names).double()
            usable = (norms > 0) & torch.isfinite(norms)
            cosines = mechanism.cosines(len(record), source, norms.device)
            weight = torch.zeros_like(norms)
            shapes = {slot.name: slot.shape for slot in record.slots if slot.name in block.names}
            total = {
                name: torch.zeros(shape, dtype=torch.float64, device=norms.device) for name, shape in shapes.items()
            }
            for unit in range(_real(record)):
                normal = NormalSource(source)
                noise = {n: normal.draw(shape, norms.device, i) for i, (n, shape) in enumerate(shapes.items())}
                square = torch.stack([value.square().sum() for value in noise.values()]).sum()
                along = _along(record, noise, unit, norms[unit], usable[unit])
                across = (square - along * along).sqrt()
                sine = torch.where(usable[unit], (1 - cosines[unit] ** 2).clamp_min(0).sqrt(), 1.0)
                scale = sine / across
                for name, value in noise.items():
                    total[name].add_(value.mul_(scale))
                weight[unit] = torch.where(usable[unit], (cosines[unit] - scale * along) / norms[unit], 0.0)
            noisy |= {name: (value, 1 / math.sqrt(block.dimension)) for name, value in total.items()}
            weights |= dict.fromkeys(block.names, weight.float())
        not_finite = ~torch.isfinite(record.norms())
        if bool(not_finite.any()):
            record.zero(not_finite)
        weighted = _weighted(record, weights)
        _add(sums, {name: release(weighted[name], total, deviation) for name, (total, deviation) in noisy.items()})


def _largest_kappa(blocks: tuple[Block, ...], epsilon: float, conditions: Conditions) -> float:
    """Return the largest kappa with which all steps of a training run together cost at most epsilon."""
    from discreet.accounting.calibrate import largest_rate

    def training(kappa: float) -> DpEvent:
        protect = DirDPSGD(kappa, blocks)
        sampler = protect.sampler_for(conditions.batch_size, conditions.units)
        return protect.training_cost(sampler, conditions.steps, conditions.units)

    return largest_rate(
        training,
        epsilon=epsilon,
        delta=conditions.delta,
        adjacency=Adjacency.REPLACE_ONE,
        low=1e-6,
        high=1e12,
        guess=math.sqrt(sum(block.dimension for block in blocks)),
    )


def _real(record: Record) -> int:
    return len(record) - record.padding


def _along(record: Record, noise: Mapping[str, Tensor], unit: int, norm: Tensor, usable: Tensor) -> Tensor:
    """Return <xi, u> for one unit, or zero if its gradient has no direction."""
    inner = record.inner({name: value.float() for name, value in noise.items()}, unit=unit).double()
    return torch.where(usable, inner / torch.where(usable, norm, 1.0), 0.0)


def _weighted(record: Record, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weighted sum of the units' gradients; each parameter has its own weights."""
    distinct = {id(value): value for value in weights.values()}
    if len(distinct) == 1:
        return record.weighted_sum(next(iter(distinct.values())))
    sums: dict[str, Tensor] = {}
    for key, value in distinct.items():
        block = record.weighted_sum(value, keep=True)
        sums |= {name: block[name] for name in weights if id(weights[name]) == key}
    return sums


def _add(sums: dict[str, Tensor], parts: Mapping[str, Tensor]) -> None:
    for name, part in parts.items():
        sums[name] = sums[name] + part if name in sums else part
