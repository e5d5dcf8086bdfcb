"""1-of-n beside its bound: how often the right candidate is named, and how often any attack could name it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.accounting.events import DpEvent, NoGuaranteeDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import guarantee
from discreet.accounting.risk import most_identified
from discreet.attacks.gradient.one_of_n import Identified, direction_sweep, gaussian_sweep
from discreet.core.checks import refuse
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.types import Leakage
from discreet.data.corpus import Corpus
from discreet.experiment.releases import by_adjacency, gradient_facts, misfit, name_of
from discreet.metrics.intervals import clopper_pearson
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.facts import public_facts
from discreet.protections.representation import place_of

if TYPE_CHECKING:
    from discreet.experiment.attack import AttackRequest, AttackResult
    from discreet.experiment.scene import Scene

METRIC = "identified"
NOISY = f"gradients under the noise of {DPSGD.name} or {DirDPSGD.name}"  # what it reads
USUAL = 64  # candidates, where nothing else is said
# The null record of the bound: absent from a sum, a uniform direction in place of a draw.
_NULL = {DPSGD.name: Adjacency.ADD_REMOVE, DirDPSGD.name: Adjacency.ZERO_OUT}


def identify(request: AttackRequest, scene: Scene) -> AttackResult:
    """Return how often the best attack names the right one of n, beside the most that any attack can reach.

    The releases are simulated exactly from the candidates' inner products, which the scene keeps: a second strength of
    noise costs a fraction of a second. Over several steps the same model and record are released again and again.

    Guarantee: that of the steps together, for a record that is in all of them; the noise of a real release must be
        secret.
    """
    from discreet.experiment.attack import AttackResult

    began = time.monotonic()
    _refuse(request)
    rng = Rng(request.seed)
    count = USUAL if request.candidates is None else request.candidates
    rows = scene.draw(count, rng.fork("rows"), max_words=request.max_words, what="candidates")
    found = _simulated(request, scene, rows, rng.fork("draws"))
    low, high = clopper_pearson(found.hits, found.draws)
    event = _event(request)
    adjacency = _NULL.get(getattr(request.protect, "name", ""), Adjacency.ADD_REMOVE)
    promise = None
    if request.protect is not None:
        promise = guarantee(
            event,
            delta=request.delta,
            adjacency=request.protect.adjacency,
            unit=rows.unit_name if rows.units is None else "record",
            assumptions=("the record is known to be in every step", "the noise is secret; here it was simulated"),
        )
    return AttackResult(
        attack=request.label,
        leakages=(Leakage(METRIC, found.success, low, high, found.draws, found.chance),),
        examples=(),
        release=_facts(request, scene, count),
        guarantee=promise,
        epsilon_by_adjacency=by_adjacency(request.protect, request.delta, request.steps),
        seconds=time.monotonic() - began,
        bound=most_identified(event, count, adjacency),
    )


def _simulated(request: AttackRequest, scene: Scene, rows: Corpus, rng: Rng) -> Identified:
    gram, protect = scene.gram(rows), request.protect
    often: dict[str, int] = {"draws": request.draws, "steps": request.steps}
    if isinstance(protect, DirDPSGD):
        return direction_sweep(gram, [protect.kappa], protect.dimension, rng, **often)[0]
    if protect is None:  # neither noise nor a clip: no gradient is longer than the longest
        return gaussian_sweep(gram, [0.0], rng, clip_norm=float(np.sqrt(gram.diagonal().max())), **often)[0]
    return gaussian_sweep(gram, [protect.noise_multiplier], rng, clip_norm=protect.clip_norm, **often)[0]


def _event(request: AttackRequest) -> DpEvent:
    if request.protect is None:
        return NoGuaranteeDpEvent("the release was not protected")
    event = request.protect.event
    return event if request.steps == 1 else SelfComposedDpEvent(event, request.steps)


def _refuse(request: AttackRequest) -> None:
    protect = request.protect
    if protect is not None and not isinstance(protect, DPSGD | DirDPSGD):
        raise misfit(request.label, NOISY, name_of(protect), place_of(protect))
    if request.batch_size != 1:
        remedy = "The other members of the batch are known to this attacker and subtracted; they change nothing."
        raise refuse("batch_size", request.batch_size, "1 for 1-of-n", remedy)
    if isinstance(protect, DPSGD) and protect.clipping != "flat":
        raise refuse("clipping", protect.clipping, "flat for 1-of-n", "Inner products of whole gradients are used.")
    if isinstance(protect, DirDPSGD) and len(protect.blocks) != 1:
        raise UnsupportedError(
            f"Expected one block of directions for 1-of-n, found {len(protect.blocks)}. Inner products of whole "
            "gradients are used; use partition='whole'."
        )


def _facts(request: AttackRequest, scene: Scene, count: int) -> dict[str, Any]:
    model = scene.model
    return {
        **gradient_facts({n: p.numel() for n, p in model.named_parameters() if p.requires_grad}, model),
        "model": scene.origin,
        "batch_size": 1,
        "steps": request.steps,
        "known": ["candidates", "the other members of the batch"],
        "candidates": count,
        "simulated": True,
        "protection": None if request.protect is None else public_facts(request.protect),
    }
