"""What attacks are given, perturbed by 1e-6 relative: about what the rounding of another processor does to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from discreet.attacks import identification, rows
from discreet.attacks.crafted import decepticons
from discreet.attacks.matching import candidate_gradients, engine, masked_dlg, word_draws
from discreet.attacks.representation import blind, instance, inversion, reprecon, similarity
from discreet.attacks.span import dager, subspace
from discreet.core.types import GradientRelease, RepresentationRelease

SIZE = 1e-6
SEEN = (  # what is given something that was seen, by class and method
    (dager.Dager, "run"),
    (subspace.Subspace, "run"),
    (decepticons.Decepticons, "run"),
    (rows.EmbeddingRows, "run"),
    (rows.PositionRows, "run"),
    (identification.OneOfN, "run"),
    (masked_dlg.MaskedDLG, "run"),
    (masked_dlg.MaskedDLG, "recover"),
    (engine.SearchingAttack, "run"),
    (engine.MatchingAttack, "run_many"),
    (word_draws.WordDraws, "run_many"),
    (candidate_gradients.Imitation, "__init__"),
    (blind.BlindReconstruction, "run"),
    (instance.InstanceReconstruction, "run"),
    (inversion.EmbeddingInversion, "run"),
    (reprecon.RepRecon, "run"),
    (similarity.Similarity, "run"),
)


def perturb_what_attacks_see(seed: int, patch: pytest.MonkeyPatch) -> None:
    """Perturb every release on its way into an attack, the same release in the same way each time.

    Odd seeds perturb each number by a share of itself, even ones each number that is not zero by a share of the
    tensor's root mean square, as a sum does whose terms cancel.
    """
    inside: list[bool] = []

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            if inside:  # what one attack hands on to another part of itself is perturbed already
                return method(self, *given, **named)
            inside.append(True)
            try:
                return method(self, *(_perturbed(value, seed) for value in given), **named)
            finally:
                inside.pop()

        return call

    for owner, name in SEEN:
        patch.setattr(owner, name, wrapped(getattr(owner, name)))


def _perturbed(value: Any, seed: int) -> Any:
    if isinstance(value, GradientRelease):
        return replace(value, gradients=_all(value.gradients, seed))
    if isinstance(value, RepresentationRelease):
        return replace(value, vectors=next(_each([value.vectors], seed)))
    if isinstance(value, list | tuple) and any(isinstance(part, GradientRelease) for part in value):
        return [_perturbed(part, seed) for part in value]
    if isinstance(value, Mapping) and value and all(isinstance(part, Tensor) for part in value.values()):
        return _all(value, seed)
    return value


def _all(tensors: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    return dict(zip(tensors, _each(list(tensors.values()), seed), strict=True))


def _each(tensors: list[Tensor], seed: int) -> Iterator[Tensor]:
    source = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        drawn = SIZE * torch.randn(tensor.shape, generator=source).to(tensor)
        whole = tensor.detach().square().mean().sqrt() * (tensor != 0)
        yield tensor + drawn * (tensor if seed % 2 else whole)
