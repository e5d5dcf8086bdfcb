"""What leaves under a protection: the release that an attack sees, and the protection as one release uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.catalog import protection, settings_of_protection
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Release, RepresentationRelease, TextRelease
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.base import (
    Conditions,
    GradientProtection,
    Protection,
    RepresentationProtection,
    check_protection,
)
from discreet.releases.gradient import hidden_release, open_release, protected_release, rewritten_release
from discreet.releases.representation import representation_release
from discreet.training.encode import encode

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.accounting.events import DpEvent
    from discreet.training.run_folder import Run


@dataclass(frozen=True)
class Released:
    """What a server sees of a batch, and beside it, for whoever measures, the row behind each vector, if it has such.

    Where vectors were mixed, it is the private row that weighs most.
    """

    seen: Release
    rows: tuple[int, ...] | None = None


def release_of(
    sees: type[Release],
    protect: Any,
    model: Classifier,
    batch: Corpus,
    noise: Rng,
    *,
    delta: float,
    steps: int = 1,
    public: Corpus | None = None,
) -> Released:
    """Return exactly what a server would see of a batch: a gradient or vectors, under a protection or none.

    `public` is text that some protections mix with.

    Guarantee: that of the protection for this one release, in the release; none without one.
    """
    place = None if protect is None else protect.place
    if sees is RepresentationRelease:
        if protect is not None:
            check_protection(protect, RepresentationRelease.kind)
            protect.check(len(batch), len(batch))
        size = len(batch)
        seen, truth = representation_release(
            model, batch, protect, noise, public=public, batch_size=size, epochs=steps, delta=delta
        )
        rows = [next(row for row in line if row >= 0) for line in truth.rows.tolist()]
        return Released(seen, tuple(rows))
    if place == GradientRelease.kind:
        return Released(protected_release(model, batch, protect, noise, delta=delta))
    if place == RepresentationRelease.kind:
        return Released(hidden_release(model, batch, protect, noise, public=public, delta=delta))
    if place == TextRelease.kind:
        return Released(rewritten_release(model, batch, protect, noise, delta=delta))
    return Released(open_release(model, batch))


def fits(kind: str, protect: Any) -> bool:
    """Whether a protection lets go of what an attack is for.

    Gradients are released under every protection that is passed through at every step; vectors that are released once
    are all that leaves.
    """
    if protect is None or protect.place == kind:
        return True
    return kind == GradientRelease.kind and (protect.place == TextRelease.kind or not protect.stored)


def as_they_leave(protect: Protection | None, vectors: Tensor) -> Tensor:
    """Return vectors as they are before mixing and noise: in the coordinates of a release, and clipped as it is."""
    return protect.seen(vectors).float() if isinstance(protect, RepresentationProtection) else vectors


def own_pairs(
    protect: Any, model: Classifier, public: Corpus, rng: Rng, *, delta: float, steps: int = 1
) -> tuple[Tensor, Tensor]:
    """Return released vectors of public text and the plain ones behind them, as an attacker makes them for itself.

    It runs the same defence with secrets of its own; where vectors were mixed, the plain one is that of the row that
    weighs most.
    """
    plain = encode(model, public, None, "float32").vectors.cpu()
    made = release_of(RepresentationRelease, protect, model, public, rng, delta=delta, steps=steps, public=public)
    assert made.rows is not None and isinstance(made.seen, RepresentationRelease)
    return made.seen.vectors.cpu(), as_they_leave(protect, plain[list(made.rows)])


def by_adjacency(
    protect: Any, delta: float, steps: int = 1, promise: Guarantee | None = None, event: DpEvent | None = None
) -> dict[str, float | None]:
    """Return the epsilon of one release, or of several of the same record, under each adjacency; None where none.

    With an `event`, that of a whole training, it is what that costs.

    Where the cost depends on the rows, only what was found for the release, its `promise`, is known: the event of a
    protection of text is that of one word. The batch is known, so who is absent is seen to be: under add/remove nothing
    is stated.
    """
    if not isinstance(protect, GradientProtection):
        return {} if promise is None else {promise.adjacency.value: promise.epsilon if promise.exists else None}
    from discreet.accounting.events import SelfComposedDpEvent
    from discreet.accounting.interpret import guarantee

    if event is None:
        event = protect.event if steps == 1 else SelfComposedDpEvent(protect.event, steps)
    columns: dict[str, float | None] = {}
    for adjacency in Adjacency:
        if adjacency is Adjacency.ADD_REMOVE:
            columns[adjacency.value] = None
            continue
        try:
            found = guarantee(event, delta=delta, adjacency=adjacency, unit="record")
            columns[adjacency.value] = found.epsilon if found.exists else None
        except UnsupportedError:
            columns[adjacency.value] = None
    return columns


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
