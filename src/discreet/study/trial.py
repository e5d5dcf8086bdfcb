"""One trial of a study: train under a protection, release, attack, measure, and set the proven bound beside it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from discreet.accounting.events import NoGuaranteeDpEvent
from discreet.accounting.meter import Meter
from discreet.accounting.risk import most_true_positives_at
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.core.settings import parse
from discreet.core.types import TRAINING, UPDATE, Leakage, Trial
from discreet.experiment.attack import AttackResult, run_attack
from discreet.experiment.attack_updates import Updates, rate_of
from discreet.experiment.plan import Plan, RunRequest, asked_as, plan_for
from discreet.experiment.releases import LEAVES, READS, fits
from discreet.metrics.trade_off import true_positive_rates
from discreet.metrics.utility import constant_utility, quality, utility_intervals
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.facts import public_facts
from discreet.protections.representation import place_of
from discreet.study.file import OF_UPDATE
from discreet.study.grid import Planned
from discreet.study.keys import in_keys, said_in_keys
from discreet.study.shared import corpus_of, one_at_a_time, scene_of
from discreet.study.tables import (
    AttackOf,
    DataTable,
    ReleaseTable,
    TrainingTable,
    attack_for,
    request_for,
    settings_for,
)
from discreet.training.defaults import defaults_for
from discreet.training.encode import cache_folder, ready
from discreet.training.evaluate import matched, predict
from discreet.training.loop import train
from discreet.training.private import step_cost
from discreet.training.settings import TrainSettings

if TYPE_CHECKING:
    from discreet.data.batches import Tokens, Vectors
    from discreet.data.corpus import Corpus
    from discreet.protections.gradient import GradientProtection

FALSE_ALARMS = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_POINTS = 24
_SETTING = (
    "this is the guarantee of the setting: a run for release draws its noise in secret; the trials of a study draw it "
    "from a given seed, so that they can be repeated, and are not for release"
)


def run_trial(planned: Planned, attack_of: AttackOf) -> Trial:
    """Return one trial; it depends on its settings and seed alone.

    Guarantee: that of the setting, in the trial; none for the trial itself, which holds texts that attacks read and
        drew its noise from a given seed.
    """
    with said_in_keys():
        return _run(planned, attack_of)


def _run(planned: Planned, attack_of: AttackOf) -> Trial:
    began = time.monotonic()
    settings = planned.settings
    utility, guarantee, details, protect, updates = _trained(settings, planned.seed)
    leakages: list[Leakage] = []
    texts: list[dict[str, Any]] = []
    attacks: dict[str, Any] = {}
    bounds: dict[str, float] = {}
    skipped: dict[str, str] = {}
    scopes: dict[str, str] = {}
    for table in settings.get("attacks", ()):
        attack = attack_for(table, attack_of)
        kind = attack.sees.kind
        if not fits(kind, protect):
            leaves = LEAVES[place_of(protect)]
            skipped[str(table["name"])] = f"It reads {READS[kind]}; under this protection only {leaves} leave."
            continue
        scene = scene_of(_whole(settings), planned.seed, kind)
        identifies = attack.identifies
        asked = parse(ReleaseTable, settings.get("release", {}), "release")
        mine = DirDPSGD.for_model(scene.model, protect.kappa) if isinstance(protect, DirDPSGD) else protect
        request = request_for(table, attack, mine, asked.delta, planned.seed)
        try:
            found = run_attack(request, scene)
            of_all = None
            if identifies and updates is not None:
                # what the training releases is of the layers that it trains
                trained = scene_of(of_the_trained(settings), planned.seed, kind)
                of_all = run_attack(replace(request, protect=protect, steps=1, updates=updates), trained)
        except (UnsupportedError, SettingError) as error:
            if protect is None:
                raise  # it does not fit the study's release at all
            skipped[str(table["name"])] = in_keys(str(error))
            continue
        measured = [(found, OF_UPDATE if identifies else "", UPDATE)]
        if of_all is not None:
            measured.insert(0, (of_all, "", TRAINING))
        for result, ending, scope in measured:
            for leakage in result.leakages:
                name = f"{table['name']}/{leakage.metric}{ending}"
                leakages.append(replace(leakage, metric=name))
                scopes[name] = scope
                if result.bound is not None:
                    bounds[name] = result.bound
        attacks[str(table["name"])] = _facts(found if of_all is None else of_all)
        texts += [{"attack": str(table["name"]), **example.as_dict()} for example in found.examples]
    return Trial(
        settings=settings,
        seed=planned.seed,
        utility=utility,
        leakages=tuple(leakages),
        guarantee=guarantee,
        seconds=time.monotonic() - began,
        bytes=_memory(),
        details={
            **details,
            "bounds": bounds,
            "scopes": scopes,
            "attacks": attacks,
            "texts": texts,
            "not_attacked": skipped,
        },
    )


def _whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": {}, "release": {}, **settings}


def of_the_trained(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's settings with the layers that are trained as those that are released."""
    whole = _whole(settings)
    return {**whole, "release": {**whole["release"], "train": whole["model"].get("train", "all")}}


def _trained(
    settings: Mapping[str, Any], seed: int
) -> tuple[dict[str, float], Guarantee | None, dict[str, Any], Any, Updates | None]:
    """Train once and return utility, guarantee, what a report shows besides, the protection, and all its updates."""
    corpus = corpus_of(settings["data"])
    request = training_request(settings, corpus, seed)
    rng = Rng(seed)
    model = Classifier.build(corpus, request.model, rng=rng.fork("model"))
    held_out = matched(corpus.split("validation"), model)
    if request.model.frozen:
        with one_at_a_time("encode"):  # the first trial fills the cache, the others read it
            for split in (corpus.split("train"), held_out):
                ready(model, split, cache_folder(), request.train.precision)
    with tempfile.TemporaryDirectory(prefix="discreet-") as folder:
        if request.protect is None:
            trained = train(model, corpus, request.train, rng=rng.fork("train"), cache=cache_folder())
            plan = None
        else:
            plan = plan_for(request, model, corpus, Path(folder), lambda text: None)
            with plan.ledger:
                trained = train(
                    model,
                    corpus,
                    request.train,
                    rng=rng.fork("train"),
                    protect=plan.protect,
                    ledger=plan.ledger,
                    delta=plan.delta,
                    secret=plan.secret,
                    sampler=plan.sampler,
                    public=plan.public,
                    cache=cache_folder(),
                )
        asked = asked_as(plan, held_out)
        utility, around = _quality(model, ready(model, asked, cache_folder(), request.train.precision), seed)
        details: dict[str, Any] = {
            "evaluated_rows": len(held_out),
            "steps": trained.steps,
            "trained": request.model.train,
            **around,
        }
        details |= _privacy(plan, trained.steps)
        promise = None if trained.guarantee is None else of_the_setting(trained.guarantee)
        details["roc"] = _roc(model, corpus, plan, request.train.precision, promise)
        updates = _updates(plan, trained.steps, promise)
    return utility, promise, details, None if plan is None else plan.protect, updates


def _quality(model: Classifier, rows: Tokens | Vectors, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return a model's metrics; beside them their intervals, and what a constant answer would reach."""
    answers, truth = predict(model, rows).best, rows.targets.cpu().numpy()
    found = quality(model.task, answers, truth)
    return found.metrics, {
        "baselines": constant_utility(model.task, truth),
        "intervals": {k: list(v) for k, v in utility_intervals(model.task, answers, truth, Rng(seed)).items()},
        "constant": found.constant,
    }


def _updates(plan: Plan | None, steps: int, promise: Guarantee | None) -> Updates | None:
    """Return what all updates of a training are to an attacker, where they are gradients."""
    if plan is None:
        return Updates(steps, 1.0, NoGuaranteeDpEvent("the release was not protected"))
    rate = rate_of(plan.sampler, plan.units)
    if rate is None or place_of(plan.protect) != "gradient":
        return None
    proven = promise is not None and promise.certified
    return Updates(steps, rate, plan.ledger.event, rate * plan.units, proven)


def training_request(settings: Mapping[str, Any], corpus: Corpus, seed: int) -> RunRequest:
    """Return the training that a trial asks for, with what is usual where nothing was said."""
    data = parse(DataTable, settings["data"], "data")
    asked = parse(TrainingTable, settings.get("training", {}), "training")
    model = parse(ModelSettings, settings.get("model", {}), "model")
    protect = settings_for(settings["protection"])
    name = None if protect is None else protect.name
    request = RunRequest(
        source=data.source,
        columns=data.columns,
        model=model,
        train=TrainSettings(warmup=asked.warmup, optimizer=asked.optimizer, precision=asked.precision),
        protect=protect,
        seed=seed,
        noise_seed=seed,
    )
    usual = defaults_for(model.train, name, corpus.split("train").unit_count)
    return request.tuned(
        usual,
        epochs=asked.epochs,
        batch_size=asked.batch_size,
        learning_rate=asked.learning_rate,
        weight_decay=asked.weight_decay,
    )


def of_the_setting(found: Guarantee) -> Guarantee:
    """Return what a setting guarantees where only the seed of a trial's noise stands in the way of a proof."""
    proven = found.without_caveat(Caveat.FIXED_SEED)
    return found if proven is found else replace(proven, assumptions=(*found.assumptions, _SETTING))


def _privacy(plan: Plan | None, steps: int) -> dict[str, Any]:
    """Return the noise that was solved for, and epsilon over the steps of training where every step costs the same."""
    if plan is None:
        return {}
    found: dict[str, Any] = {"protection": public_facts(plan.protect), "units": plan.units}
    if plan.sampler is None or place_of(plan.protect) != "gradient":
        return found
    protect = cast("GradientProtection", plan.protect)
    step, _ = step_cost(protect, plan.sampler, 0, plan.units)
    meter = Meter(step, plan.delta, protect.adjacency)
    at = sorted({max(1, round(steps * (i + 1) / _POINTS)) for i in range(_POINTS)})
    return {
        **found,
        "sampling_rate": rate_of(plan.sampler, plan.units),
        "adjacency": str(protect.adjacency),
        "epsilon_over_training": [[count, meter.epsilon(count)] for count in at],
    }


def _roc(
    model: Classifier, corpus: Corpus, plan: Plan | None, precision: str, promise: Guarantee | None
) -> dict[str, Any]:
    """Return how well a threshold on the loss tells training rows from held-out ones, beside what is proven, if it is.

    An estimate bounds no attack: an encoder that was trained on private text is not paid for by noise behind it.
    """
    if model.task != "classification":
        return {}
    members, others = (_log_likelihoods(model, corpus.split(name), plan, precision) for name in ("train", "validation"))
    measured = true_positive_rates(members, others, FALSE_ALARMS)
    bound: list[float] | None = None
    if plan is not None and promise is not None and (promise.certified or not promise.exists):
        with suppress(UnsupportedError):
            bound = most_true_positives_at(plan.ledger.event, FALSE_ALARMS, plan.protect.adjacency).tolist()
    return {
        "false_alarms": list(FALSE_ALARMS),
        "measured": [None if row is None else list(row) for row in measured],
        "bound": bound,
        "members": len(members),
        "others": len(others),
    }


def _log_likelihoods(model: Classifier, split: Corpus, plan: Plan | None, precision: str) -> npt.NDArray[np.float64]:
    rows = asked_as(plan, matched(split, model))
    seen = predict(model, ready(model, rows, cache_folder(), precision)).values
    labels = np.asarray(rows.labels)
    chosen = seen[np.arange(len(labels)), labels].astype(np.float64)
    return np.asarray(np.log(np.maximum(chosen, 1e-30)))


def _facts(found: AttackResult) -> dict[str, Any]:
    promise = None if found.guarantee is None else of_the_setting(found.guarantee)
    return {
        "release": dict(found.release),
        "guarantee": None if promise is None else {**promise.as_dict(), "sentence": promise.sentence()},
        "epsilon_by_adjacency": dict(found.epsilon_by_adjacency),
        "seconds": found.seconds,
        "stopped_by_time_limit": found.stopped,
    }


def _memory() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
