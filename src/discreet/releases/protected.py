"""Protections as one release uses them: built for one batch at one step, or as a finished run was trained with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from discreet.core.settings import as_dict

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.models.classifier import Classifier
    from discreet.training.run_folder import Run


def protection_of(
    name: str,
    model: Classifier,
    values: Mapping[str, Any],
    *,
    delta: float,
    batch_size: int = 1,
    public: Callable[[], tuple[Tensor, Tensor | None]] | None = None,
) -> Any:
    """Return a protection as one release of a batch uses it: nothing is gained by sampling, nothing is done twice.

    An epsilon is that of the one release; the noise, or the concentration, is solved for it. `public` gives vectors of
    public text to learn a projection from, and their labels.
    """
    from discreet.protections.dir_dp_sgd import DirDPSGD
    from discreet.protections.settings import Conditions, protect_settings

    asked = dict(values)
    if name == DirDPSGD.name and "kappa" not in asked and "epsilon" in asked:
        asked["kappa"] = kappa_for(model, asked.pop("epsilon"), delta)
    settings = protect_settings(name, asked)
    once = Conditions(model, batch_size, batch_size, batch_size, steps=1, epochs=1.0, delta=delta, public=public)
    return settings.build(once)


def kappa_for(model: Classifier, epsilon: float, delta: float) -> float:
    """Return the largest concentration with which one direction of the whole gradient costs at most epsilon."""
    from discreet.accounting.calibrate import largest_rate
    from discreet.protections.dir_dp_sgd import DirDPSGD

    whole = DirDPSGD.for_model(model, 1.0)
    return largest_rate(
        lambda kappa: DirDPSGD(kappa, whole.blocks).event,
        epsilon=epsilon,
        delta=delta,
        adjacency=whole.adjacency,
        low=1e-6,
        high=1e12,
        guess=math.sqrt(whole.dimension),
    )


def protection_of_run(run: Run | None) -> tuple[str, dict[str, Any]] | None:
    """Return the protection that a run was trained with, as its folder has it, with the noise that was solved for."""
    if run is None or run.settings.protect is None:
        return None
    settings = run.settings.protect
    # What is done to vectors is asked for whole; of what is done to a gradient, training has solved a part.
    own = {field.name for field in dataclasses.fields(settings)} if settings.place == "gradient" else set()
    solved = {k: v for k, v in (run.metrics.get("protection") or {}).items() if k in own and v is not None}
    asked = {k: v for k, v in as_dict(settings).items() if k not in {"name", "delta", "true_positive_rate"}}
    if "noise_multiplier" in solved or "kappa" in solved:
        asked.pop("epsilon", None)  # that was the budget of the whole training
    return settings.name, {**asked, **solved}
