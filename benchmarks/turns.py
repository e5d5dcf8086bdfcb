"""Training steps timed in turns, so that whatever else the machine does falls on all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.build import ready
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.base import RepresentationProtection
from discreet.training.hidden import HiddenStep, StoredStep
from discreet.training.loop import optimizer_for, set_rate
from discreet.training.plan import TrainingPlan
from discreet.training.steps import OpenStep, Parts

Step = Callable[[int], object]
_BLOCK, _WARM = 20, 6  # on a GPU no step waits for the device, as in training


def step_of(few: Corpus, chosen: ModelSettings, protect: RepresentationProtection | None, device: torch.device) -> Step:
    """Return a training step of 32 texts of a corpus, with or without a protection."""
    model = Classifier.build(few, chosen, rng=Rng(0)).to(device)
    plan = TrainingPlan.make(model, few, protect=protect, training=TrainSettings(batch_size=32))
    if isinstance(plan.protect, RepresentationProtection):
        plan.protect.fit(model, Rng(0))
    parts = Parts(model.train(), optimizer_for(model, plan.settings), plan, ready(model, few), few)
    set_rate(parts.optimizer, 1e-6)
    if plan.protect is None:
        return OpenStep.of(parts)
    kind = StoredStep if plan.protect.stored else HiddenStep
    return kind.of(parts, plan.open_ledger(), Rng(0))


def in_turns(steps: Mapping[str, Step], turns: int, device: torch.device) -> dict[str, list[float]]:
    """Return the sorted seconds of each step: of the process on a CPU, on a GPU of the clock, 20 steps at once."""
    on_gpu = device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    block, warm = (_BLOCK, _WARM) if on_gpu else (2, 2)  # every shape of a batch is met before the clock counts
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(warm + turns):
        for name, take in steps.items():
            _wait(device)
            began = clock()
            for step in range(block):
                take((turn * block + step) % 60)
            _wait(device)
            spent[name].append((clock() - began) / block)
    return {name: sorted(values[warm:]) for name, values in spent.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
