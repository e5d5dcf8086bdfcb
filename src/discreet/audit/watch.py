"""What an audited training run records about its private steps: the noise, the batches, and what one unit adds.

The canaries of an audit see how far two neighbours can be told apart. A fault may leave their coordinates as they
should be: gradients that are not clipped, batches that are not drawn, noise that is used twice. So the steps themselves
are recorded, as sums over what the training really used, and `discreet.audit.checks` compares them with what the
certificate assumes. Nothing but the contribution of a unit is computed again, by the code of the training: a part that
was trained by a CUDA graph is measured by that graph. An audited run ends its steps eagerly, because its noise is
recorded; the captured end of a step, which other runs on a GPU may take, is not part of it and is not tested.

Guarantee: none. The record says how large batches were and how often units were drawn, which amplification by sampling
    keeps secret: it is written next to the run folder, for its owner alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.audit.evidence import canary_sampler
from discreet.data.samplers import CyclicPoisson, FixedSize, RandomAllocation, Sampler
from discreet.mechanisms.correlated import Correlation
from discreet.protections.dp_sgd import DPSGD
from discreet.training.plan import TrainingPlan
from discreet.training.steps import Taken

CANARIES = "<canaries>"  # of their coordinates in the sums of a step; no parameter of a module has such a name
_NUMBERS = 4096  # of the noise of a step that are recorded, over all parameters
_FIRST = 32  # first numbers of each parameter: those that a shared stream of noise would repeat
_WIDTH = 64  # numbers of a step that are compared with those of every other step
_STEPS = 2048  # whose noise is compared pair by pair
_SCALE = 1e4  # how much larger the loss of a measured unit is made: its gradient is clipped
_ALWAYS = 8  # steps at the beginning that are measured; later ones at powers of two

Indices = npt.NDArray[np.int64]


@dataclass
class Noise:
    """Sums over the noise of each step, divided by its declared standard deviation; correlated noise is whitened."""

    deviation: float
    correlation: Correlation | None
    squares: dict[str, float] = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    past: dict[str, Tensor] = field(default_factory=dict)
    canary_rows: dict[str, Tensor] = field(default_factory=dict)  # noise that is compared pair by pair, by step
    model_rows: dict[str, Tensor] = field(default_factory=dict)
    shared: float = 0.0  # squares of sums over two parameters
    shared_numbers: int = 0

    def add(self, released: Mapping[str, Tensor], sums: Mapping[str, Tensor], step: int) -> None:
        """Add the noise of a step: what was released, less what was there before."""
        names = list(sums)
        each = max(1, _NUMBERS // max(1, len(names)))
        taken = [
            _some(released[name], each if name != CANARIES else released[name].numel())
            - _some(sums[name], each if name != CANARIES else sums[name].numel())
            for name in names
        ]
        joined = torch.cat(taken).cpu() / self.deviation
        noise = dict(zip(names, torch.split(joined, [len(one) for one in taken]), strict=True))
        noise = {name: self._white(name, values) for name, values in noise.items()}
        for name, values in noise.items():
            self.squares[name] = self.squares.get(name, 0.0) + float(values.square().sum())
            self.totals[name] = self.totals.get(name, torch.zeros_like(values)) + values
            self.steps[name] = self.steps.get(name, 0) + 1
        # disjoint pairs of parameters, other ones in every step
        order = [names[(step + place) % len(names)] for place in range(len(names))]
        for one, other in zip(order[::2], order[1::2], strict=False):
            width = min(len(noise[one]), len(noise[other]), _FIRST)
            both = (noise[one][:width] + noise[other][:width]) / math.sqrt(2)
            self.shared += float(both.square().sum())
            self.shared_numbers += width
        for rows, own in ((self.canary_rows, True), (self.model_rows, False)):
            block = [values[:_WIDTH] for name, values in noise.items() if (name == CANARIES) is own]
            if block and len(rows) < _STEPS:
                rows[str(step)] = torch.cat(block)[:_WIDTH].float()

    def _white(self, name: str, values: Tensor) -> Tensor:
        """Return the independent normal numbers from which correlated noise is made."""
        if self.correlation is None:
            return values
        recursive, moving = self.correlation.earlier_normals, self.correlation.earlier_noise
        past = self.past.get(name, torch.zeros(max(len(recursive), len(moving)), len(values), dtype=torch.float64))
        white = values - torch.tensor(recursive or moving, dtype=torch.float64) @ past
        self.past[name] = torch.cat([(white if recursive else values)[None], past])[: len(past)]
        return white

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "parameters": [
                {
                    "name": name,
                    "squares": self.squares[name],
                    "numbers": self.steps[name] * len(total),
                    "totals": float(total.square().sum()) / self.steps[name],
                    "width": len(total),
                }
                for name, total in sorted(self.totals.items())
            ],
            "pairs": [
                _pairs(block, [*rows.values()])
                for block, rows in (("canaries", self.canary_rows), ("model", self.model_rows))
                if len(rows) > 1
            ],
            "shared": {"squares": self.shared, "numbers": self.shared_numbers},
        }


def _some(values: Tensor, count: int) -> Tensor:
    """Return at most `count` numbers of a tensor: its first ones, and others at equal distances."""
    flat = values.detach().flatten()
    if len(flat) <= count:
        return flat.double()
    first = min(_FIRST, count)
    places = torch.linspace(first, len(flat) - 1, count - first, device=flat.device).long()
    return torch.cat([flat[:first], flat[places]]).double()


def _pairs(block: str, rows: list[Tensor]) -> dict[str, Any]:
    """Return the largest cosine between the noise of two steps of equal width."""
    widths: dict[int, list[Tensor]] = {}
    for row in rows:
        widths.setdefault(len(row), []).append(row)
    tests = []
    for width, same in widths.items():
        stacked = torch.nn.functional.normalize(torch.stack(same).double(), dim=1)
        cosines = (stacked @ stacked.mT).abs().triu(1)
        tests.append({"width": width, "pairs": len(same) * (len(same) - 1) // 2, "largest": float(cosines.max())})
    return {"block": block, "tests": tests}


@dataclass
class Batches:
    """How often units were drawn, for a sampler and a number of units."""

    sampler: Sampler
    units: int
    steps: int = 0
    outside: int = 0  # draws that the sampler can never make
    sizes: list[int] = field(default_factory=list)
    overlaps: list[int] = field(default_factory=list)  # units that are drawn, or allocated, as they were before
    counts: Indices = field(init=False)
    last: Indices = field(init=False)  # of each unit: step, bin or group, -1 before it has one
    now: Indices = field(init=False)  # bins of the current epoch

    def __post_init__(self) -> None:
        """Start with nothing drawn."""
        self.counts = np.zeros(self.units, dtype=np.int64)
        self.last, self.now = np.full(self.units, -1, dtype=np.int64), np.full(self.units, -1, dtype=np.int64)

    def add(self, drawn: Indices, step: int) -> None:
        """Add the units of a step."""
        sampler = self.sampler
        self.outside += len(drawn) - len(np.unique(drawn))
        self.steps += 1
        self.sizes.append(len(drawn))
        if isinstance(sampler, RandomAllocation):
            self.outside += int((self.now[drawn] >= 0).sum())
            self.now[drawn] = step % sampler.bins
            if (step + 1) % sampler.bins == 0:
                self.outside += int((self.now < 0).sum())
                if step >= sampler.bins:
                    self.overlaps.append(int((self.now == self.last).sum()))
                self.last, self.now = self.now, np.full(self.units, -1, dtype=np.int64)
        elif isinstance(sampler, CyclicPoisson):
            group, known = step % sampler.groups, self.last[drawn]
            self.outside += int(((known >= 0) & (known != group)).sum())
            self.last[drawn] = group
        elif isinstance(sampler, FixedSize):
            if step > 0:
                self.overlaps.append(int((self.last[drawn] == step - 1).sum()))
            self.last[drawn] = step
        self.counts[drawn] += 1

    def record(self) -> dict[str, Any]:
        """Return plain values; units are counted, and not named."""
        times, units = np.unique(self.counts, return_counts=True)
        return {
            "sampler": {"kind": type(self.sampler).__name__, **vars(self.sampler)},
            "units": self.units,
            "steps": self.steps,
            "outside": self.outside,
            "sizes": self.sizes,
            "overlaps": self.overlaps,
            "counts": [[int(time), int(count)] for time, count in zip(times, units, strict=True)],
        }


@dataclass
class Clips:
    """What one unit of a real part added to its sum, over the clip norm, if its loss was made very large.

    The part is computed three times by the code of the training, or by the graph that trained it: without the unit,
    with its loss times a large number, and with its loss times minus that number. The other units are the same.
    """

    norm: float
    measured: int = 0
    reached: int = 0  # whose contribution was at least half of the clip norm
    largest: float = 0.0
    together: int = 0  # measured in a part with other units
    largest_together: float = 0.0

    def add(self, taken: Taken) -> None:
        """Measure a step, if its turn has come."""
        step = taken.step
        if step >= _ALWAYS and step & (step - 1):
            return
        sums, units = taken.measure((0.0, _SCALE, -_SCALE))
        if not units:
            return
        without, *others = sums
        share = max(_distance(one, without) for one in others) / self.norm
        self.measured += 1
        self.reached += not share < 0.5  # NaN counts: it is never at most the norm
        self.largest = _most(self.largest, share)
        if units > 1:
            self.together += 1
            self.largest_together = _most(self.largest_together, share)

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        names = ("measured", "reached", "largest", "together", "largest_together")
        return {name: getattr(self, name) for name in names}


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((one[name].double() - value.double()).square().sum()) for name, value in other.items()))


def _most(one: float, other: float) -> float:
    return math.inf if math.isnan(other) else max(one, other)


def state_of(part: Noise | Batches | Clips) -> dict[str, Tensor]:
    """Return the numbers, lists, arrays and tables of a record as tensors, for a checkpoint."""
    state: dict[str, Tensor] = {}
    for name, value in vars(part).items():
        if isinstance(value, dict):
            state |= {f"{name}.{key}": _tensor(one) for key, one in value.items()}
        elif isinstance(value, int | float | list | np.ndarray):
            state[name] = _tensor(value)
    return state


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def restore(part: Noise | Batches | Clips, state: Mapping[str, Tensor]) -> None:
    """Continue a record from a checkpoint."""
    for name, old in vars(part).items():
        if isinstance(old, dict):
            own = {key.removeprefix(f"{name}."): one.cpu() for key, one in state.items() if key.startswith(f"{name}.")}
            setattr(part, name, {key: one if one.ndim else one.item() for key, one in own.items()})
        elif name in state:
            value = state[name].cpu().numpy().copy()
            setattr(part, name, value if isinstance(old, np.ndarray) else value.tolist())


class Watch:
    """The record of the private steps of one training run."""

    def __init__(self, plan: TrainingPlan, canaries: int = 0) -> None:
        """Start with nothing recorded; `canaries` is the number of gradient canaries."""
        self.plan = plan
        protect = plan.protect
        self.noise: Noise | None = None
        self.clips: Clips | None = None
        if isinstance(protect, DPSGD):
            norm = protect.clip.sensitivity
            self.clips = Clips(norm)
            if protect.noise > 0:
                self.noise = Noise(protect.noise * norm, protect.correlated)
        self.canaries = Batches(canary_sampler(plan.sampler), canaries) if canaries else None
        self.batches: Batches | None = None
        self.misread = 0  # rows that are in a batch and not in its sum, or the reverse

    def released(self, released: Mapping[str, Tensor], sums: Mapping[str, Tensor], step: int) -> None:
        """Record the noise of a step."""
        if self.noise is not None:
            self.noise.add(released, sums, step)

    def sampled(self, canaries: npt.NDArray[np.bool_], step: int) -> None:
        """Record the canaries that a step sampled."""
        if self.canaries is not None:
            self.canaries.add(np.flatnonzero(canaries).astype(np.int64), step)

    def took(self, taken: Taken) -> None:
        """Record the units that a step drew, and measure what one of them adds."""
        if self.batches is None:
            self.batches = Batches(self.plan.sampler, taken.count)
        self.batches.add(taken.units, taken.step)
        self.misread += abs(taken.rows[0] - taken.rows[1])
        if self.clips is not None:
            self.clips.add(taken)

    def state(self) -> dict[str, Tensor]:
        """Return everything as tensors, for a checkpoint."""
        state = {"watch.misread": torch.tensor(self.misread)}
        for name, part in self._parts().items():
            state |= {f"watch.{name}.{key}": value for key, value in state_of(part).items()}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint."""
        if "watch.misread" not in state:
            return
        self.misread = int(state["watch.misread"])
        if "watch.batches.counts" in state:
            self.batches = Batches(self.plan.sampler, len(state["watch.batches.counts"]))
        for name, part in self._parts().items():
            prefix = f"watch.{name}."
            restore(part, {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)})

    def _parts(self) -> dict[str, Noise | Batches | Clips]:
        every = {"noise": self.noise, "clips": self.clips, "canaries": self.canaries, "batches": self.batches}
        return {name: part for name, part in every.items() if part is not None}

    def record(self) -> dict[str, Any] | None:
        """Return plain values for the owner of the run, or None if no private step was taken."""
        if self.batches is None:
            return None
        record: dict[str, Any] = {name: part.record() for name, part in self._parts().items()}
        protect = self.plan.protect
        assert protect is not None
        return {
            **record,
            "misread": self.misread,
            "steps": self.batches.steps,
            "public_units": self.plan.units,
            "protect": {"name": protect.name, **({"noise": protect.noise} if isinstance(protect, DPSGD) else {})},
        }
