"""Audits of several steps of DP-SGD, for samplers and noise whose cost is not that of one step after the other.

The record is a unit whose gradient has the clip norm, or is zero. As everywhere in audits of sums, coordinates stand
for independent repetitions: in each, a record of its own is sampled by the sampler of the training, and noise is added
by the code that training uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from discreet.audit.aspects import RELEASE, Aspect
from discreet.audit.evidence import evidence_for, sampled_canaries
from discreet.audit.subject import Subject
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.samplers import Sampler
from discreet.protections.base import Conditions, noise_of
from discreet.protections.dp_sgd import DPSGD

_EPOCH = 8  # batches in an epoch
_UNITS = 80_000  # of the claim: as many as a test draws, about
STEPS = 2 * _EPOCH
_REACHED = (
    (Aspect.NOISE_SCALE, Aspect.CANARY_BATCHES),
    (
        Aspect.NOISE_STEPS,
        Aspect.NOISE_PARAMETERS,
        Aspect.CLIP_UNIT,
        Aspect.CLIP_PART,
        Aspect.MODEL_BATCHES,
        *RELEASE,
    ),
)


def resolved(asked: DPSGD, delta: float, steps: int = STEPS) -> DPSGD:
    """Return DP-SGD whose noise is calibrated to the audited steps."""
    sampler = asked.sampler_for(_UNITS // _EPOCH, _UNITS)
    conditions = Conditions(None, _UNITS, _UNITS, _UNITS // _EPOCH, steps, steps / _EPOCH, delta, sampler=sampler)
    return asked.resolve(conditions)


def steps_subject(
    protect: DPSGD, *, claimed: DPSGD | None = None, steps: int = STEPS, batches: Sampler | None = None
) -> Subject:
    """Return the audit of some steps of DP-SGD under zero-out: the unit takes part in them, or its gradient is zero.

    The other arguments are for tests of the audit, which break one thing at a time: the protection that is claimed, and
    the batches that are drawn instead of those that are accounted for.
    """
    claimed = protect if claimed is None else claimed
    norm = protect.clip.sensitivity

    def draw(present: bool, count: int, rng: Rng) -> npt.NDArray[np.float64]:
        padded = -(-count // _EPOCH) * _EPOCH
        sampler = protect.sampler_for(padded // _EPOCH, padded)
        release, source = noise_of(protect, rng.fork("noise")), rng.fork("sampler")
        evidence = evidence_for(padded, protect.noise, sampler, protect.correlated)
        total, known = torch.zeros(padded, dtype=torch.float64), torch.zeros(padded, dtype=torch.float64)
        for step in range(steps):
            sampled, possible = sampled_canaries(batches or sampler, step, padded, source)
            sums = {"sum": torch.from_numpy((sampled & present).astype(np.float32)) * norm}
            scores = release(sums, step)["sum"].double() / norm
            evidence.add(scores, step, possible)
            total += scores
            known += torch.where(torch.from_numpy(possible), scores, 0.0)
        columns = torch.stack([evidence.total, total, known], dim=1)[:count]
        return np.asarray(columns.numpy(), dtype=np.float64)

    event = claimed.training_cost(claimed.sampler_for(_UNITS // _EPOCH, _UNITS), steps, _UNITS)
    return Subject(f"{steps} steps of {claimed.name}", draw, event, Adjacency.ZERO_OUT, None, *_REACHED)


def has_steps(asked: Any) -> bool:
    """Return whether a protection is audited over several steps, because one of them is not a release of its own."""
    return isinstance(asked, DPSGD) and (asked.correlated is not None or asked.sampler is not None)
