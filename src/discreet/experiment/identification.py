"""1-of-n beside its bound: how often the right candidate is named, and how often any attack could name it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.accounting.events import DpEvent, NoGuaranteeDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import guarantee
from discreet.accounting.risk import most_identified
from discreet.attacks.identification import Identified, direction_sweep, gaussian_sweep, training_sweep
from discreet.core.errors import UnsupportedError, invalid, setting
from discreet.core.guarantee import Adjacency, Caveat
from discreet.core.randomness import Rng
from discreet.core.types import TRAINING, UPDATE, Leakage
from discreet.data.corpus import Corpus
from discreet.experiment.attack import AttackRequest, AttackResult, Updates
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.metrics.intervals import clopper_pearson
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.description import gradient_facts, misfit
from discreet.releases.protected import by_adjacency

if TYPE_CHECKING:
    from discreet.experiment.scene import Scene
    from discreet.training.run_folder import Run

METRIC = "identified"
NOISY = f"gradients under the noise of {DPSGD.name} or {DirDPSGD.name}"  # what it reads
USUAL = 64  # candidates, where nothing else is said
_DRAW_STEPS = 640_000  # draws times steps that are simulated of a training


def identify(request: AttackRequest, scene: Scene) -> AttackResult:
    """Return how often the best attack names the right one of n, beside the most that any attack can reach.

    The releases are simulated exactly from the candidates' inner products, which the scene keeps: a second strength of
    noise costs a fraction of a second. Over several steps the same model and record are released again and again. With
    the updates of a training, the attacker sees all of them and does not know in which ones the record was.

    Guarantee: that of the steps together, for a record that is in all of them, or that of the training; the noise of a
        real release must be secret.
    """
    began = time.monotonic()
    _reject(request)
    rng = Rng(request.seed)
    count = USUAL if request.candidates is None else request.candidates
    rows = scene.draw(count, rng.fork("rows"), max_words=request.max_words, what="candidates")
    simulated = _simulated if request.updates is None else _simulated_training
    found = simulated(request, scene, rows, rng.fork("draws"))
    low, high = clopper_pearson(found.hits, found.draws)
    event, updates = _event(request), request.updates
    promise = None
    if request.protect is not None:
        known = ("the record is known to be in every step",) if updates is None else ()
        promise = guarantee(
            event,
            delta=request.delta,
            adjacency=request.protect.adjacency,
            # All updates of a run cost what its training costs a unit; in one release a candidate is a single record.
            unit=rows.unit_name if rows.units is None or updates is not None else "record",
            assumptions=(*known, "the noise is secret; here it was simulated"),
        ).with_caveats(frozenset() if updates is None else updates.caveats)
    proven = updates is None or updates.certified
    return AttackResult(
        attack=request.label,
        leakages=(Leakage(METRIC, found.success, low, high, found.draws, found.chance),),
        examples=(),
        release=_facts(request, scene, count),
        guarantee=promise,
        epsilon_by_adjacency=by_adjacency(
            request.protect, request.delta, request.steps, event=None if updates is None else event
        ),
        seconds=time.monotonic() - began,
        bound=most_identified(event, count, null_of(request.protect)) if proven else None,
    )


def delta_of_run(run: Run, otherwise: float) -> float:
    """Return the delta that a run's own guarantee is stated at, so that its attacks are compared with that."""
    promise = run.metrics.get("guarantee")
    return otherwise if not isinstance(promise, dict) else float(promise["delta"])


def null_of(protect: Any) -> Adjacency:
    """Return the adjacency of the bound: the record against a null one, as the protection is accounted for.

    The null record is absent from a sum, or empty in it; in place of a direction it is a uniform draw.
    """
    stated = Adjacency.ZERO_OUT if protect is None else protect.adjacency
    return Adjacency.ZERO_OUT if stated is Adjacency.REPLACE_ONE else stated


def _simulated(request: AttackRequest, scene: Scene, rows: Corpus, rng: Rng) -> Identified:
    gram, protect = scene.gram(rows), request.protect
    often: dict[str, int] = {"draws": request.draws, "steps": request.steps}
    if isinstance(protect, DirDPSGD):
        return direction_sweep(gram, [protect.concentration], protect.dimension, rng, **often)[0]
    if protect is None:  # neither noise nor a clip: no gradient is longer than the longest
        return gaussian_sweep(gram, [0.0], rng, clip_norm=float(np.sqrt(gram.diagonal().max())), **often)[0]
    return gaussian_sweep(gram, [protect.noise_multiplier], rng, clip_norm=protect.clip_norm, **often)[0]


def _simulated_training(request: AttackRequest, scene: Scene, rows: Corpus, rng: Rng) -> Identified:
    """Return the attack's success from all updates of a training, simulated from inner products at one set of weights.

    Of directional noise every vector is seen, shuffled. The attacker here adds up those of each update, subtracts what
    is expected of the others, and takes the rest for normal: one way to read them, and within the bound of all ways.
    """
    gram, protect, updates = scene.gram(rows), request.protect, request.updates
    assert updates is not None
    draws = max(500, min(request.draws, 4000, _DRAW_STEPS // updates.steps))
    often: dict[str, Any] = {"sampling_rate": updates.rate, "steps": updates.steps, "draws": draws}
    if protect is None:
        longest = float(np.sqrt(gram.diagonal().max()))
        return gaussian_sweep(gram, [0.0], rng, clip_norm=longest, steps=updates.steps, draws=draws)[0]
    if isinstance(protect, DirDPSGD):
        norms = np.sqrt(np.maximum(np.diag(gram), 1e-300))
        along = VonMisesFisher(protect.concentration, protect.dimension).mean_cosine
        spread = np.sqrt(updates.per_step * (1 - along**2) / protect.dimension)
        if along == 0:
            return Identified(protect.concentration, round(draws / len(rows)), draws, len(rows))
        return training_sweep(gram / norms[:, None] / norms[None, :], [float(spread / along)], rng, **often)[0]
    return training_sweep(gram, [protect.noise_multiplier], rng, clip_norm=protect.clip_norm, **often)[0]


def updates_of_run(run: Run, protect: Any) -> Updates | None:
    """Return the updates of a finished run under a protection, or nothing if it recorded no sampler."""
    from discreet.data.samplers import FixedSize, Poisson
    from discreet.training.plan import step_cost

    kept, metrics = run.metrics.get("sampler"), run.metrics
    counted = metrics.get("units") or metrics.get("population")
    if not isinstance(kept, dict) or not metrics.get("steps") or not counted:
        return None
    units, steps = int(counted), int(metrics["steps"])
    sampler: Poisson | FixedSize
    if "rate" in kept:
        sampler, rate = Poisson(float(kept["rate"])), float(kept["rate"])
    elif "size" in kept:
        sampler, rate = FixedSize(int(kept["size"])), int(kept["size"]) / units
    else:
        return None
    step = NoGuaranteeDpEvent("the release was not protected")
    if protect is not None:
        step = step_cost(protect, sampler, 0, units)[0]
    promise = metrics.get("guarantee") or {}
    # A fixed seed says nothing against the bound: the noise that is attacked here is simulated.
    caveats = frozenset(map(Caveat, promise.get("caveats", ()))) - {Caveat.FIXED_SEED}
    return Updates(steps, rate, SelfComposedDpEvent(step, steps), rate * units, not caveats, caveats)


def _event(request: AttackRequest) -> DpEvent:
    if request.protect is None:
        return NoGuaranteeDpEvent("the release was not protected")
    if request.updates is not None:
        return request.updates.event
    event = request.protect.event
    return event if request.steps == 1 else SelfComposedDpEvent(event, request.steps)


def _reject(request: AttackRequest) -> None:
    protect = request.protect
    if protect is not None and not isinstance(protect, DPSGD | DirDPSGD):
        raise misfit(request.label, NOISY, protect.name, protect.place)
    if request.batch_size != 1:
        remedy = "The other members of the batch are known to this attacker and subtracted; they change nothing."
        raise invalid("batch_size", request.batch_size, "1 for 1-of-n", remedy)
    if isinstance(protect, DPSGD) and protect.clipping != "flat":
        raise invalid("clipping", protect.clipping, "flat for 1-of-n", "Inner products of whole gradients are used.")
    if isinstance(protect, DirDPSGD) and len(protect.blocks) != 1:
        raise UnsupportedError(
            f"Expected one block of directions for 1-of-n, found {len(protect.blocks)}. Inner products of whole "
            f"gradients are used; use {setting('partition', 'whole')}."
        )


def _facts(request: AttackRequest, scene: Scene, count: int) -> dict[str, Any]:
    model = scene.model
    return {
        **gradient_facts({n: p.numel() for n, p in model.named_parameters() if p.requires_grad}, model),
        "model": scene.origin,
        "batch_size": 1,
        "steps": request.steps if request.updates is None else request.updates.steps,
        "scope": UPDATE if request.updates is None else TRAINING,
        **({} if request.updates is None else {"sampling_rate": request.updates.rate}),
        "known": ["candidates", "the other members of the batch"],
        "given": [
            "the model and its weights",
            f"{count:,} candidate texts with their labels, the private one among them",
            "all other members of the batch, and the length to which gradients are clipped",
            *(["the strength of the noise"] if request.protect is not None else []),
        ],
        "candidates": count,
        "simulated": True,
        "protection": None if request.protect is None else request.protect.facts(),
    }
