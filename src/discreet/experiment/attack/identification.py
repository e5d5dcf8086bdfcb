"""1-of-n identification with its bound: how often the attack identifies the candidate, and how often any attack can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.accounting.events import DpEvent, NoGuaranteeDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import guarantee_of
from discreet.accounting.risk import most_identified
from discreet.attacks.identification import Floats, Identified, direction_sweep, gaussian_sweep, training_sweep
from discreet.core.errors import UnsupportedError, invalid, setting
from discreet.core.guarantee import Adjacency, Caveat
from discreet.core.randomness import Rng
from discreet.core.types import TRAINING, UPDATE
from discreet.data.corpus import Corpus
from discreet.data.samplers import FixedSize, Poisson
from discreet.experiment.attack.request import AttackRequest, Callbacks, Findings, Updates, sampling_rate
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.metrics.intervals import rate_of
from discreet.protections.base import trust_in
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.description import NOISY, Misfit, gradient_facts
from discreet.releases.protected import epsilon_by_adjacency

if TYPE_CHECKING:
    from discreet.experiment.attack.scene import Scene
    from discreet.runs.folder import Run

METRIC = "identified"
METRICS = (METRIC,)
DEFAULT_CANDIDATES = 64
_DRAW_STEPS = 640_000  # draws times steps of a training run that are simulated
_UNPROTECTED = NoGuaranteeDpEvent("the release was not protected")


def identify(request: AttackRequest, scene: Scene, callbacks: Callbacks) -> Findings:
    """Return how often the best attack identifies the right one of n candidates, and the bound for any attack.

    The releases are simulated exactly from the candidates' inner products, which the scene caches: another noise
    strength takes a fraction of a second. Over several steps, the same model and record are released repeatedly. With
    the updates of a training run, the attacker sees all of them and does not know which ones contain the record.

    Guarantee: that of the composed steps, for a record that is in all of them, or that of the training run; the noise
        of a real release must be secret.
    """
    _check_request(request)
    rng = Rng(request.seed)
    count = DEFAULT_CANDIDATES if request.candidates is None else request.candidates
    rows = scene.draw(count, rng.fork("rows"), max_words=request.max_words, what="candidates")
    result = _simulate(request, scene, rows, rng.fork("draws"))
    event, updates = _event(request), request.updates
    stated = None
    if request.protect is not None:
        assumed = ("the record is known to be in every step",) if updates is None else ()
        stated = guarantee_of(
            event,
            delta=request.delta,
            adjacency=request.protect.adjacency,
            # All updates cost a unit what the training costs it; in one release a candidate is a single record.
            unit=rows.unit_name if rows.units is None or updates is not None else "record",
            assumptions=(*assumed, "the noise is secret; here it was simulated"),
        ).with_caveats(frozenset() if updates is None else updates.caveats)
    proven = updates is None or updates.certified
    return Findings(
        leakages=(rate_of(METRIC, result.hits, result.draws, result.chance),),
        release=_facts(request, scene, count),
        guarantee=stated,
        epsilon_by_adjacency=epsilon_by_adjacency(request.protect, request.delta, event=event),
        bound=most_identified(event, count, null_adjacency(request.protect)) if proven else None,
    )


def delta_of_run(run: Run, default: float) -> float:
    """Return the delta of a run's own guarantee, so that its attacks are compared at the same delta."""
    stated = run.metrics.get("guarantee")
    return float(stated["delta"]) if isinstance(stated, dict) else default


def null_adjacency(protect: Any) -> Adjacency:
    """Return the adjacency of the bound, which compares the record with a null record, as the protection accounts.

    The null record is absent from a sum, or zero in it; for a direction it is a uniform draw.
    """
    stated = Adjacency.ZERO_OUT if protect is None else protect.adjacency
    return Adjacency.ZERO_OUT if stated is Adjacency.REPLACE_ONE else stated


def _simulate(request: AttackRequest, scene: Scene, rows: Corpus, rng: Rng) -> Identified:
    gram, protect, updates = scene.gram(rows), request.protect, request.updates
    steps, draws = request.steps, request.draws
    if updates is not None:
        steps, draws = updates.steps, max(500, min(request.draws, 4000, _DRAW_STEPS // updates.steps))
    if protect is None:  # no noise, and no clipping: the largest norm clips nothing
        largest = float(np.sqrt(gram.diagonal().max()))
        return gaussian_sweep(gram, [0.0], rng, clip_norm=largest, steps=steps, draws=draws)[0]
    if updates is not None:
        return _simulate_training(gram, protect, updates, rng, draws)
    if isinstance(protect, DirDPSGD):
        return direction_sweep(gram, [protect.concentration], protect.dimension, rng, steps=steps, draws=draws)[0]
    noise = [protect.noise_multiplier]
    return gaussian_sweep(gram, noise, rng, clip_norm=protect.clip_norm, steps=steps, draws=draws)[0]


def _simulate_training(gram: Floats, protect: Any, updates: Updates, rng: Rng, draws: int) -> Identified:
    """Return the attack's success from all updates of a training run, simulated from inner products at fixed weights.

    With directional noise the server sees every vector, shuffled. This attacker sums the vectors of each update,
    subtracts the expectation of the others and treats the remainder as normal. That is one possible attack, so its
    success is within the bound for all of them.
    """
    sampling: dict[str, Any] = {"sampling_rate": updates.rate, "steps": updates.steps, "draws": draws}
    if not isinstance(protect, DirDPSGD):
        return training_sweep(gram, [protect.noise_multiplier], rng, clip_norm=protect.clip_norm, **sampling)[0]
    norms = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    mean = VonMisesFisher(protect.concentration, protect.dimension).mean_cosine
    spread = np.sqrt(updates.per_step * (1 - mean**2) / protect.dimension)
    if mean == 0:
        return Identified(protect.concentration, round(draws / len(gram)), draws, len(gram))
    return training_sweep(gram / norms[:, None] / norms[None, :], [float(spread / mean)], rng, **sampling)[0]


def updates_of_run(run: Run, protect: Any) -> Updates | None:
    """Return the updates of a finished run under a protection, or None if the run recorded no sampler."""
    stored, metrics = run.metrics.get("sampler"), run.metrics
    units = int(metrics.get("units") or metrics.get("population") or 0)
    if not isinstance(stored, dict) or not metrics.get("steps") or not units:
        return None
    steps = int(metrics.get("counted_steps") or metrics["steps"])  # a run that stopped early costs as much as its plan
    if "name" in stored or not stored.keys() & {"rate", "size"}:
        return None  # the updates of other samplers are not independent
    sampler = Poisson(float(stored["rate"])) if "rate" in stored else FixedSize(int(stored["size"]))
    rate = sampling_rate(sampler, units)
    assert rate is not None
    step = _UNPROTECTED if protect is None else protect.step_cost(sampler, 0, units)[0]
    stated = metrics.get("guarantee") or {}
    # A fixed seed does not invalidate the bound: the attacked noise is simulated here.
    caveats = frozenset(map(Caveat, stated.get("caveats", ()))) - {Caveat.FIXED_SEED}
    return Updates(steps, rate, SelfComposedDpEvent(step, steps), rate * units, not caveats, caveats)


def _event(request: AttackRequest) -> DpEvent:
    if request.protect is None:
        return _UNPROTECTED
    if request.updates is not None:
        return request.updates.event
    event = request.protect.event
    return event if request.steps == 1 else SelfComposedDpEvent(event, request.steps)


def _check_request(request: AttackRequest) -> None:
    protect = request.protect
    if request.first_words is not None:
        raise invalid("first_words", request.first_words, "left out for 1-of-n", "It compares complete texts.")
    if protect is not None and not isinstance(protect, DPSGD | DirDPSGD):
        raise Misfit(NOISY, protect.name, protect.place).error(request.label)
    if protect is not None and trust_in(protect):
        raise UnsupportedError(
            f"Expected dp-sgd or dir-dp-sgd itself for 1-of-n, got {protect.found_by}. The releases are simulated with "
            "the noise of those, which a class of another package may not add; use another attack."
        )
    if request.batch_size != 1:
        remedy = "This attacker knows the other members of the batch and subtracts them; they change nothing."
        raise invalid("batch_size", request.batch_size, "1 for 1-of-n", remedy)
    if isinstance(protect, DPSGD) and protect.clipping != "flat":
        raise invalid("clipping", protect.clipping, "flat for 1-of-n", "It uses inner products of whole gradients.")
    if isinstance(protect, DirDPSGD) and len(protect.blocks) != 1:
        raise UnsupportedError(
            f"Expected one block of directions for 1-of-n, got {len(protect.blocks)}. It uses inner products of whole "
            f"gradients; use {setting('partition', 'whole')}."
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
            "all other members of the batch, and the clipping norm",
            *(["the strength of the noise"] if request.protect is not None else []),
        ],
        "candidates": count,
        "simulated": True,
        "protection": None if request.protect is None else request.protect.facts(),
    }
