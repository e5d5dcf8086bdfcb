"""Train many linear heads on the vectors of one frozen encoder at once, each on its own rows.

A membership attack compares a model with dozens of reference models. Each is a small matrix, so that one step of all of
them is one batched product. Every head takes the same steps as if `train` trained it alone: the same batches, the same
clipping, and the same noise, from the same seeds. With directional noise, a batch that `train` reads in another order
has other directions, of the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.core.task import Task
from discreet.data.batches import Vectors
from discreet.data.corpus import Corpus, Grouped, unit_numbers
from discreet.data.samplers import Shuffled
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.protections.base import GradientProtection, Protection, noise_of, step_optimizer, trust_in
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.plan import TrainingPlan

Ints = npt.NDArray[np.int64]
WEIGHT, BIAS = "head.weight", "head.bias"
_NUMBERS_AT_ONCE = 2**24  # of gathered vectors, to limit memory


@dataclass(frozen=True)
class HeadJob:
    """The training of one head: its rows of the shared vectors, its plan, its source of noise, its first weights."""

    rows: Ints
    corpus: Corpus
    plan: TrainingPlan
    secret: Rng | None
    weight: Tensor
    bias: Tensor


def can_train_together(model: ModelSettings, training: TrainSettings, protect: Protection | None, task: str) -> bool:
    """Return whether heads with these settings can be trained at once: linear ones, plain or with noisy gradients."""
    if protect is not None and trust_in(protect):
        return False  # it may add up gradients otherwise than the batched steps do
    plain = protect is None or (isinstance(protect, DPSGD) and protect.clipping == "flat")
    plain = plain or (isinstance(protect, DirDPSGD) and protect.partition == "whole")
    simple = not training.averaging and training.patience is None and training.accumulate == 1
    linear = model.frozen and model.head == "linear" and not model.has_pooler
    return Task(task).has_classes and linear and plain and simple


def train_heads(
    vectors: Vectors, jobs: Sequence[HeadJob], progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Tensor, Tensor]:
    """Return the trained weights, (heads, classes, width), and biases, (heads, classes).

    Guarantee: none by itself; the accounts of the plans are not written, so that the heads are for simulation only,
        such as an attacker's reference models. Their noise is that of their plans.
    """
    if not jobs:
        raise DataError("Expected at least one head to train, got none.")
    weights, biases = torch.stack([job.weight for job in jobs]), torch.stack([job.bias for job in jobs])
    total, done = sum(job.plan.steps for job in jobs), 0
    groups: dict[tuple[int, int], list[int]] = {}
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, max(map(_batch_rows, jobs)) * vectors.vectors.shape[1]))
    counts: dict[int, int] = {}
    for number, job in enumerate(jobs):
        steps = job.plan.steps
        groups.setdefault((steps, counts.get(steps, 0) // at_once), []).append(number)
        counts[steps] = counts.get(steps, 0) + 1
    for (steps, _), numbers in groups.items():
        together = _Together(vectors, [jobs[number] for number in numbers])
        for step in range(steps):
            together.step(step)
            done += len(numbers)
            if step % 16 == 0:
                progress(done, total)
        weights[numbers], biases[numbers] = together.weight.detach(), together.bias.detach()
    progress(total, total)
    return weights, biases


def _batch_rows(job: HeadJob) -> int:
    """Return the number of rows in a padded batch of a head, about."""
    units = job.plan.units if job.plan.protect is not None else job.plan.rows
    most = 1 if job.plan.protect is None else int(np.bincount(job.corpus.unit_index).max(initial=1))
    return int(np.ceil(job.plan.sampler.expected_size(units))) * most


class _Together:
    """Heads with the same number of steps, and their optimizer."""

    def __init__(self, vectors: Vectors, jobs: Sequence[HeadJob]) -> None:
        self.vectors, self.targets, self.jobs = vectors.vectors.float(), vectors.targets, jobs
        self.weight = torch.stack([job.weight for job in jobs]).clone().requires_grad_(True)
        self.bias = torch.stack([job.bias for job in jobs]).clone().requires_grad_(True)
        self.squares = self.vectors.square().sum(dim=1)
        self.plan = jobs[0].plan
        self.settings = self.plan.settings
        self.optimizer = self._optimizer()
        self.units = [Grouped.of(unit_numbers(job.corpus)) for job in jobs]
        self.releasers = [
            noise_of(protect, job.secret)
            for job in jobs
            if isinstance(protect := job.plan.protect, GradientProtection) and job.secret is not None
        ]
        self.orders: tuple[int, list[Ints]] = (-1, [])  # an epoch, and the order of each head's rows in it

    def _optimizer(self) -> torch.optim.Optimizer:
        settings = self.settings
        groups = [
            {"params": [self.weight], "weight_decay": settings.weight_decay or 0.0, "lr": 1.0},
            {"params": [self.bias], "weight_decay": 0.0, "lr": 1.0},
        ]
        if settings.optimizer == "sgd":
            return torch.optim.SGD(groups, momentum=settings.momentum, fused=True)
        return torch.optim.AdamW(groups, betas=(settings.momentum, 0.999), fused=True)

    def step(self, step: int) -> None:
        """Take one step of every head."""
        settings = self.settings
        assert settings.learning_rate is not None
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate_at(step, self.plan.steps, settings.learning_rate) * (settings.head_rate or 1.0)
        protect = self.plan.protect
        if isinstance(protect, DPSGD):
            self.weight.grad, self.bias.grad = self._private(step, protect)
        elif isinstance(protect, DirDPSGD):
            self.weight.grad, self.bias.grad = self._directional(step, protect)
        else:
            self.weight.grad, self.bias.grad = self._plain(step)
        step_optimizer(self.optimizer)

    def _plain(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the mean gradients of one batch of each head, each clipped to the settings' norm."""
        batches = [self._batch(step, number)[:, None] for number in range(len(self.jobs))]
        errors, inputs, _ = self._errors(batches)
        sizes = torch.tensor([max(1, len(batch)) for batch in batches], device=errors.device)
        errors = errors.flatten(1, 2) / sizes[:, None, None]
        weight, bias = errors.mT @ inputs.flatten(1, 2), errors.sum(dim=1)
        norms = torch.sqrt(weight.square().sum(dim=(1, 2)) + bias.square().sum(dim=1))
        factors = (self.settings.gradient_norm / (norms + 1e-6)).clamp_max(1.0)
        return weight * factors[:, None, None], bias * factors[:, None]

    def _batch(self, step: int, number: int) -> Ints:
        """Return the rows of one head's batch; a shuffled epoch is drawn once, and not at each of its steps."""
        job = self.jobs[number]
        sampler, count = job.plan.sampler, len(job.rows)
        if not isinstance(sampler, Shuffled):
            return sampler.draw(step, count, job.plan.rng.fork("sampler"))
        epoch, batch = divmod(step, sampler.steps_per_epoch(count))
        if self.orders[0] != epoch:
            sources = (one.plan.rng.fork("sampler") for one in self.jobs)
            sizes = (len(one.rows) for one in self.jobs)
            self.orders = epoch, [Shuffled(n).draw(epoch, n, rng) for n, rng in zip(sizes, sources, strict=True)]
        return self.orders[1][number][batch * sampler.size : (batch + 1) * sampler.size]

    def _private(self, step: int, protect: DPSGD) -> tuple[Tensor, Tensor]:
        """Return the noisy sums of clipped gradients of one batch of each head, over the expected size."""
        errors, inputs, at = self._errors(self._units(step))
        if at.shape[2] == 1:  # one row per unit: the norm of a product is the product of the norms
            squares = errors.square().sum(dim=(2, 3)) * (self.squares[at[:, :, 0]] + 1.0)
        else:
            squares = ((errors @ errors.mT) * (inputs @ inputs.mT + 1.0)).sum(dim=(2, 3))
        norms = squares.clamp_min(0).sqrt()
        factors = (protect.clip_norm / norms.clamp_min(1e-30)).clamp_max(1.0)
        scaled = (errors * factors[:, :, None, None]).flatten(1, 2)
        weight, bias = scaled.mT @ inputs.flatten(1, 2), scaled.sum(dim=1)
        noisy_weights, noisy_biases = [], []
        for number, job in enumerate(self.jobs):
            assert job.secret is not None
            divisor = job.plan.sampler.expected_size(job.plan.units)
            sums = {WEIGHT: weight[number], BIAS: bias[number]}
            released = self.releasers[number](sums, step)
            noisy_weights.append(released[WEIGHT] / divisor)
            noisy_biases.append(released[BIAS] / divisor)
        return torch.stack(noisy_weights), torch.stack(noisy_biases)

    def _directional(self, step: int, protect: DirDPSGD) -> tuple[Tensor, Tensor]:
        """Return the sums of noisy directions of one batch of each head, over the expected size."""
        batches = self._units(step)
        errors, inputs, _ = self._errors(batches)
        mechanism = VonMisesFisher(protect.concentration, protect.dimension)
        sums = []
        for number, (job, batch) in enumerate(zip(self.jobs, batches, strict=True)):
            assert job.secret is not None
            own, its = errors[number, : len(batch)], inputs[number, : len(batch)]
            gradients = torch.cat([(own.mT @ its).flatten(1), own.sum(dim=1)], dim=1)
            source = job.secret.fork("directions", step, 0).fork("block", 0)
            noisy = mechanism(gradients, source).sum(dim=0) if len(batch) else gradients.sum(dim=0)
            sums.append(noisy / job.plan.sampler.expected_size(job.plan.units))
        every = torch.stack(sums).to(self.weight.dtype)
        split = self.weight[0].numel()
        # a fused optimizer reads memory in order, whatever the strides of a gradient are
        return every[:, :split].reshape(self.weight.shape).contiguous(), every[:, split:].contiguous()

    def _units(self, step: int) -> list[Ints]:
        """Return the rows of the units in one batch of each head, a line for each unit."""
        batches = []
        for job, units in zip(self.jobs, self.units, strict=True):
            assert job.secret is not None
            chosen = job.plan.sampler.draw(step, len(units), job.secret.fork("sampler"))
            batches.append(_padded(*units.of_units(chosen)))
        return batches

    @torch.no_grad()
    def _errors(self, batches: Sequence[Ints]) -> tuple[Tensor, Tensor, Tensor]:
        """Return probabilities minus truth, 0 where a unit has no further row, the vectors, and their row numbers.

        All are of shape (heads, units, rows of a unit, …).
        """
        units, most = max(len(batch) for batch in batches), max(batch.shape[1] for batch in batches)
        where = np.full((len(batches), max(1, units), max(1, most)), -1, dtype=np.int64)
        for number, (job, batch) in enumerate(zip(self.jobs, batches, strict=True)):
            where[number, : len(batch), : batch.shape[1]] = np.where(batch >= 0, job.rows[batch], -1)
        at = torch.from_numpy(where).to(self.vectors.device)
        missing = at < 0
        at = at.clamp_min(0)
        inputs = F.embedding(at, self.vectors)  # much faster than indexing
        scores = inputs.flatten(1, 2) @ self.weight.mT + self.bias[:, None, :]
        errors = scores.softmax(dim=-1).view(*at.shape, -1)
        errors.scatter_add_(-1, self.targets[at][..., None], -torch.ones_like(errors[..., :1]))
        return errors.masked_fill(missing[..., None], 0.0), inputs, at


def _padded(rows: Ints, starts: Ints) -> Ints:
    """Return the rows of each unit as one line of a table, with -1 where a unit has fewer rows than the longest."""
    sizes = np.diff(starts)
    table = np.full((len(sizes), int(sizes.max(initial=1))), -1, dtype=np.int64)
    table[np.arange(table.shape[1]) < sizes[:, None]] = rows
    return table
