"""Releases under any protection: the release that an attack reads, and the protection resolved for one release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.catalog import protection
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, ModelRelease, Release, RepresentationRelease, TextRelease
from discreet.data.corpus import Corpus
from discreet.models.base import TextModel
from discreet.models.build import encode
from discreet.models.classifier import classifier_of
from discreet.protections.base import (
    Conditions,
    Protection,
    check_protection,
    of_one_origin,
)
from discreet.releases.description import NOISY, READS, Misfit
from discreet.releases.gradient import hidden_release, open_release, protected_release, rewritten_release
from discreet.releases.representation import representation_release

if TYPE_CHECKING:
    from torch import Tensor

    from discreet.accounting.events import DpEvent


@dataclass(frozen=True)
class Released:
    """What a server sees of a batch and, for scoring, the row of each released vector.

    If vectors are mixed, it is the private row with the largest weight. A gradient has no rows.
    """

    seen: Release
    rows: tuple[int, ...] | None = None


def release_of(
    sees: type[Release],
    protect: Any,
    model: TextModel,
    batch: Corpus,
    noise: Rng,
    *,
    delta: float,
    steps: int = 1,
    public: Corpus | None = None,
) -> Released:
    """Return what a server would see of a batch: a gradient or vectors, with or without a protection.

    `public` is text that some protections mix rows with.

    Args:
        sees: The kind of release.
        protect: The resolved protection, or None.
        model: The model.
        batch: The rows of the batch.
        noise: The source of the noise.
        delta: Delta of the guarantee of this release.
        steps: The number of releases of the same rows.
        public: Text that some protections mix rows with.

    Guarantee: that of the protection for this one release, in the release; none without a protection.
    """
    if sees is RepresentationRelease:
        if protect is not None:
            check_protection(protect, RepresentationRelease.kind)
            protect.check(len(batch), len(batch))
        seen, truth = representation_release(
            classifier_of(model, "sentence vectors"),
            batch,
            protect,
            noise,
            public=public,
            batch_size=len(batch),
            epochs=steps,
            delta=delta,
        )
        return Released(seen, tuple(next(row for row in line if row >= 0) for line in truth.rows.tolist()))
    if protect is None:
        return Released(open_release(model, batch))
    if protect.place == GradientRelease.kind:
        return Released(protected_release(model, batch, protect, noise, delta=delta))
    if protect.place == RepresentationRelease.kind:
        return Released(hidden_release(model, batch, protect, noise, public=public, delta=delta))
    return Released(rewritten_release(model, batch, protect, noise, delta=delta))


def misfit(kind: str, protect: Any, *, identifies: bool = False) -> Misfit | None:
    """Return why an attack on a kind of release does not fit a protection, or None if it fits.

    Every protection that is applied at each step releases gradients; one that releases stored vectors releases nothing
    else. A model can be trained under every protection. An attack that `identifies` a candidate compares noisy
    gradients, which only a protection of gradients releases. `protect` may be a class: then it is not known yet whether
    gradients leave beside vectors, and an attack on them fits.
    """
    if protect is None:
        return None
    resolved = not isinstance(protect, type)
    name, place = protect.name, protect.place
    if identifies:
        return None if place == GradientRelease.kind else Misfit(NOISY, name, place)
    beside = kind == GradientRelease.kind and (not resolved or place == TextRelease.kind or not protect.stored)
    return None if kind in (place, ModelRelease.kind) or beside else Misfit(READS[kind], name, place)


def before_noise(protect: Protection | None, vectors: Tensor) -> Tensor:
    """Return vectors as they are before mixing and noise: in the coordinates of the release, and clipped."""
    return vectors if protect is None else protect.seen(vectors).float()


def attacker_pairs(
    protect: Any, model: TextModel, public: Corpus, rng: Rng, *, delta: float, steps: int = 1
) -> tuple[Tensor, Tensor]:
    """Return released vectors of public text and their unprotected vectors, as an attacker can compute them.

    The attacker runs the same protection with its own secrets. If vectors are mixed, the unprotected vector is that of
    the row with the largest weight.
    """
    vectors = encode(model, public, None, "float32").vectors.cpu()
    release = release_of(RepresentationRelease, protect, model, public, rng, delta=delta, steps=steps, public=public)
    assert release.rows is not None and isinstance(release.seen, RepresentationRelease)
    return release.seen.vectors.cpu(), before_noise(protect, vectors[list(release.rows)])


def epsilon_by_adjacency(
    protect: Any, delta: float, *, stated: Guarantee | None = None, event: DpEvent | None = None
) -> dict[str, float | None]:
    """Return the epsilon of a release under each adjacency, or None where it is not defined.

    `event` is the cost of the release (default: one use of a protection of gradients). For other protections the cost
    depends on the rows, as the event of a protection of text is that of one word, so only the guarantee `stated` for
    the release is known. The batch is known, so absence is visible: there is no epsilon under add/remove.
    """
    if protect is None or not protect.samples_units:
        return stated_epsilon(stated)
    from discreet.accounting.interpret import guarantee_of

    columns: dict[str, float | None] = dict.fromkeys(adjacency.value for adjacency in Adjacency)
    for adjacency in set(Adjacency) - {Adjacency.ADD_REMOVE}:
        with suppress(UnsupportedError):
            result = guarantee_of(
                protect.event if event is None else event, delta=delta, adjacency=adjacency, unit="record"
            )
            columns[adjacency.value] = result.epsilon if result.exists else None
    return columns


def stated_epsilon(stated: Guarantee | None) -> dict[str, float | None]:
    """Return the epsilon of a guarantee by its adjacency, None if it is infinite; empty without a guarantee."""
    return {} if stated is None else {stated.adjacency.value: stated.epsilon if stated.exists else None}


def protection_of(
    name: str,
    model: TextModel,
    values: Mapping[str, Any],
    *,
    delta: float,
    batch_size: int = 1,
    public: Callable[[], tuple[Tensor, Tensor | None]] | None = None,
) -> Protection:
    """Return a protection resolved for a single release of a batch, without amplification by sampling.

    A budget applies to this one release; the noise, or the concentration, is calibrated to it. `public` returns vectors
    of public text to learn a projection from, and their labels.
    """
    once = Conditions(model, batch_size, batch_size, batch_size, steps=1, epochs=1.0, delta=delta, public=public)
    asked = protection(name, values)
    return of_one_origin(asked, asked.resolve(once))
