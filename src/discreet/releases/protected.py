"""Protections as one release uses them: built for one batch at one step, or as a finished run was trained with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from discreet.catalog import protection, settings_of_protection
from discreet.protections.base import Conditions, Protection

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
) -> Protection:
    """Return a protection as one release of a batch uses it: nothing is gained by sampling, nothing is done twice.

    An epsilon is that of the one release; the noise, or the concentration, is solved for it. `public` gives vectors of
    public text to learn a projection from, and their labels.
    """
    once = Conditions(model, batch_size, batch_size, batch_size, steps=1, epochs=1.0, delta=delta, public=public)
    return protection(name, values).resolve(once)


def protection_of_run(run: Run | None) -> tuple[str, dict[str, Any]] | None:
    """Return the protection that a run was trained with, as its folder has it, with the noise that was solved for."""
    if run is None or run.settings.protect is None:
        return None
    asked_for = run.settings.protect
    # What is done to vectors is asked for whole; of what is done to a gradient, training has solved a part.
    own = set(settings_of_protection(asked_for.name)) if asked_for.place == "gradient" else set()
    solved = {k: v for k, v in (run.metrics.get("protection") or {}).items() if k in own and v is not None}
    asked = {k: v for k, v in asked_for.as_table().items() if k not in {"name", "delta", "true_positive_rate"}}
    if "noise_multiplier" in solved or "kappa" in solved:
        asked.pop("epsilon", None)  # that was the budget of the whole training
    return asked_for.name, {**asked, **solved}
