"""Run one trial of a study: train under a protection, release, attack, measure, and state the proven bound."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from discreet.accounting.events import NoGuaranteeDpEvent
from discreet.accounting.interpret import Meter
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.core.device import find_device
from discreet.core.errors import DataError, OutputError, SettingError, UnsupportedError, spelled
from discreet.core.files import load_tensors, save_tensors
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.core.settings import parse
from discreet.core.types import MODEL, TRAINING, UPDATE, Leakage, Trial
from discreet.data.canaries import Canary, Planting
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource
from discreet.experiment.attack.identification import DEFAULT_CANDIDATES
from discreet.experiment.attack.membership import Certificate, roc
from discreet.experiment.attack.request import AttackResult, Updates, sampling_rate
from discreet.experiment.attack.runner import attack_once
from discreet.experiment.attack.scene import Scene, Target, attacked_split, check_distinct
from discreet.experiment.run import RunOptions, RunRequest, TrainedRun, choose_model, model_for, train_once
from discreet.metrics.membership import RATES, Scored, true_positives_at
from discreet.metrics.utility import LOWER_IS_BETTER
from discreet.models.base import TextModel
from discreet.models.build import build_model, cache_folder, matched, ready
from discreet.models.classifier import classifier_of
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.protections.base import Protection, of_one_origin
from discreet.releases.protected import misfit
from discreet.study.file import (
    NONE,
    OF_UPDATE,
    ReleaseTable,
    Study,
    attack_for,
    in_study_file,
    protection_for,
    request_for,
)
from discreet.study.grid import Planned
from discreet.training.evaluation import Assessment, predict
from discreet.training.plan import PrivatePlan, TrainingPlan

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


_POINTS = 24  # of the curve of epsilon over training
_SETTING = (
    "this is the guarantee of the setting: a run for release draws its noise in secret; the trials of a study draw it "
    "from a fixed seed, so that they can be repeated, and are not for release"
)


def run_trial(planned: Planned) -> Trial:
    """Return one trial; it depends on its settings and seed alone. Worker processes import it by its name.

    Guarantee: that of the setting, in the trial; none for the trial itself, which holds texts that attacks read and
        drew its noise from a fixed seed.
    """
    with spelled(in_study_file):
        return _run(planned)


def _run(planned: Planned) -> Trial:
    started = time.monotonic()
    settings, seed = planned.settings, planned.seed
    trained = _trained(settings, seed)
    leakages: list[Leakage] = []
    texts: list[dict[str, Any]] = []
    attacks: dict[str, Any] = {}
    bounds: dict[str, float] = {}
    skipped: dict[str, str] = {}
    scopes: dict[str, str] = {}
    for table in settings.get("attack", ()):
        attack = attack_for(table)
        name, kind = str(table["name"]), attack.sees.kind
        found = misfit(kind, trained.protect)
        if found is not None:
            skipped[name] = f"It reads {found.reads}; under this protection only {found.leaves} leave."
            continue
        try:
            of_update, of_training = _attacked(table, attack, trained, settings, seed)
        except (UnsupportedError, SettingError) as error:
            if trained.protect is None:
                raise  # it does not fit the study's release at all
            skipped[name] = error.worded(in_study_file)
            continue
        scope = MODEL if kind == MODEL else UPDATE
        measured = [(of_update, OF_UPDATE if attack.identifies else "", scope)]
        if of_training is not None:
            measured.insert(0, (of_training, "", TRAINING))
        for result, ending, scope in measured:
            for leakage in result.leakages:
                metric = f"{name}/{leakage.metric}{ending}"
                leakages.append(replace(leakage, metric=metric))
                scopes[metric] = scope
                bound = result.bounds.get(leakage.metric, result.bound)
                if bound is not None:
                    bounds[metric] = bound
        attacks[name] = _attack_details(of_update if of_training is None else of_training)
        texts += [{"attack": name, **example.as_dict()} for example in of_update.examples]
    return Trial(
        settings=settings,
        seed=seed,
        utility=trained.utility,
        leakages=tuple(leakages),
        guarantee=trained.guarantee,
        seconds=time.monotonic() - started,
        bytes=_memory(),
        details={
            **trained.details,
            "bounds": bounds,
            "scopes": scopes,
            "attacks": attacks,
            "texts": texts,
            "not_attacked": skipped,
        },
    )


@dataclass(frozen=True)
class _Trained:
    """A training run: its utility and guarantee, what a report shows besides, the protection, and all its updates.

    `scene` has the trained model and how it was trained, for attacks on it.
    """

    utility: dict[str, float]
    guarantee: Guarantee | None
    details: dict[str, Any]
    protect: Protection | None
    updates: Updates | None
    scene: Scene


def _attacked(
    table: Mapping[str, Any], attack: Any, trained: _Trained, settings: Mapping[str, Any], seed: int
) -> tuple[AttackResult, AttackResult | None]:
    """Return an attack on one release and, where it identifies candidates, on all updates of the training."""
    if attack.sees.kind == MODEL:
        return attack_once(request_for(table, attack, None, ReleaseTable.delta, seed), trained.scene), None
    scene, protect = scene_of(settings, seed, attack.sees.kind), trained.protect
    asked = protection_for(settings["protect"])
    released = None if protect is None else protect.for_release(scene.model)
    if asked is not None and released is not None:
        released = of_one_origin(asked, released)
    delta = parse(ReleaseTable, settings.get("release", {}), "release").delta
    request = request_for(table, attack, released, delta, seed)
    result = attack_once(request, scene)
    if not attack.identifies or trained.updates is None:
        return result, None
    # What the training releases are the gradients of the layers that it trains.
    all_updates = replace(request, protect=protect, steps=1, updates=trained.updates)
    shared = with_trained_layers(settings, trained.details["trained"])
    return result, attack_once(all_updates, scene_of(shared, seed, attack.sees.kind))


def with_trained_layers(settings: Mapping[str, Any], train: str) -> dict[str, Any]:
    """Return a trial's settings with the layers that are trained as those that are released."""
    return {**settings, "release": {**settings.get("release", {}), "train": train}}


def _trained(settings: Mapping[str, Any], seed: int) -> _Trained:
    private = corpus_of(settings["data"])
    check_held_out_rows(private)
    request = training_request(settings, private, seed)
    canaries: tuple[Canary, ...] = ()
    corpus = private
    if request.canaries is not None:
        corpus, canaries = request.canaries.plant(private)
    # Not released: the record of people lists the study.
    options = RunOptions(device="cpu", cache=True, released=False)
    model = model_for(request, corpus, find_device("cpu"), options)
    if request.model.frozen:
        with one_at_a_time("encode"):  # the first trial fills the cache, the others read it
            for name in ("train", "validation"):
                ready(model, matched(corpus.split(name), model), cache_folder(), request.training.precision)
    run = train_once(replace(request, canaries=None), corpus=corpus, model=model, options=options)
    assert run.evaluation is not None
    guarantee, event = None if run.guarantee is None else of_the_setting(run.guarantee), run.trained.event
    steps = run.trained.counted
    details: dict[str, Any] = {
        "evaluated_rows": run.evaluation.assessment.quality.rows,
        "steps": steps,
        "trained": request.model.train,
        **_beside_utility(run.evaluation.assessment, seed),
        **_privacy(run.plan, steps),
    }
    updates = _updates(run.plan, steps, guarantee, event)
    target = Target(private, request, event, run.plan.adjacency, guarantee, cache_folder(), canaries)
    details["roc"] = _roc(run, target)
    scene = Scene.of(private, model.eval(), origin=f"the trained {request.model.encoder}", target=target)
    # The first metric is the one that a goal without a name means: the larger, the better.
    utility = dict(sorted(run.utility.items(), key=lambda one: one[0] in LOWER_IS_BETTER))
    return _Trained(utility, guarantee, details, run.plan.protect, updates, scene)


def check_held_out_rows(corpus: Corpus) -> None:
    """Reject a corpus without held-out rows: the utility of a trial is never measured on its training rows."""
    if "validation" not in corpus.split_names:
        raise DataError("Expected held-out rows in the data of a study, got none. Set data.validation.")


def check_rows(study: Study, corpus: Corpus) -> None:
    """Reject data without held-out rows, and attacks on more texts than there are, which no trial could run."""
    check_held_out_rows(corpus)
    release = parse(ReleaseTable, study.release, "release")
    rows = attacked_split(corpus, release.split)
    for table in study.attack:
        attack = attack_for(table)
        if attack.sees.kind == MODEL:
            continue
        request, name = request_for(table, attack, None, release.delta, 0), "examples"
        count = request.examples
        if attack.identifies:
            count, name = request.candidates or DEFAULT_CANDIDATES, "candidates"
        check_distinct(rows, count, request.max_words, name)


def training_request(settings: Mapping[str, Any], corpus: Corpus, seed: int) -> RunRequest:
    """Return the training of a trial: with the same defaults as `discreet train` for what its settings leave out."""
    protect = protection_for(settings["protect"])
    return RunRequest(
        data=parse(TextSource, settings["data"], "data"),
        model=model_of(settings, corpus),
        training=parse(TrainSettings, settings.get("training", {}), "training"),
        protect=protect,
        seed=seed,
        canaries=_canaries(settings, seed),
        noise_seed=None if protect is None else seed,
    )


def model_of(settings: Mapping[str, Any], corpus: Corpus) -> ModelSettings:
    """Return the model that a trial trains, with the defaults of its task and protection, if it has one."""
    protect = protection_for(settings.get("protect", {"name": NONE}))
    return choose_model(settings.get("model") or {}, protect, parse(TextSource, settings["data"], "data"), corpus)


def _canaries(settings: Mapping[str, Any], seed: int) -> Planting | None:
    """Return the canaries of a trial; their secrets come from its seed, so that it can be repeated."""
    table = settings.get("canaries")
    return None if table is None else parse(Planting, {"seed": seed, **table}, "canaries")


def of_the_setting(guarantee: Guarantee) -> Guarantee:
    """Return what a setting guarantees, for which the fixed seed of a trial's noise is no caveat."""
    proven = guarantee.without_caveat(Caveat.FIXED_SEED)
    return guarantee if proven is guarantee else replace(proven, assumptions=(*guarantee.assumptions, _SETTING))


def _beside_utility(assessment: Assessment, seed: int) -> dict[str, Any]:
    """Return what a report shows beside the metrics of a model: their intervals, and those of a constant answer."""
    return {
        "baselines": assessment.baselines(),
        "intervals": {name: list(interval) for name, interval in assessment.intervals(Rng(seed)).items()},
        "constant": assessment.quality.constant,
        **({"by_class": assessment.by_class} if assessment.by_class else {}),
    }


def _updates(plan: TrainingPlan, steps: int, guarantee: Guarantee | None, event: DpEvent | None) -> Updates | None:
    """Return what an attacker sees of all updates of a training run, where they are gradients."""
    if plan.protect is None or event is None:
        return Updates(steps, 1.0, NoGuaranteeDpEvent("the release was not protected"))
    rate = sampling_rate(plan.sampler, plan.units)
    if rate is None or not plan.protect.samples_units:
        return None
    if guarantee is None:
        return Updates(steps, rate, event, rate * plan.units, certified=False)
    # The seed of a trial does not invalidate the bound: the attacked noise is simulated.
    caveats = guarantee.caveats - {Caveat.FIXED_SEED}
    return Updates(steps, rate, event, rate * plan.units, guarantee.certified, caveats)


def _privacy(plan: TrainingPlan, steps: int) -> dict[str, Any]:
    """Return the solved noise, and epsilon over the steps of training where every step costs the same."""
    if not isinstance(plan, PrivatePlan):
        return {}
    facts: dict[str, Any] = {"protection": plan.protect.facts(), "units": plan.units}
    if not plan.protect.samples_units:
        return facts
    protect = plan.protect
    delta = plan.delta
    meter = Meter(plan.step_cost(0)[0], delta, protect.adjacency)
    equal = plan.step_cost(0)[0] == plan.step_cost(steps - 1)[0] if steps else True

    def after(count: int) -> float:
        if equal:
            return meter.epsilon(plan.sampler.spends(count, plan.units))
        return epsilon_of(plan.training_cost(count), delta, protect.adjacency)

    at = sorted({max(1, round(steps * (i + 1) / _POINTS)) for i in range(_POINTS)})
    return {
        **facts,
        "sampling_rate": sampling_rate(plan.sampler, plan.units),
        "adjacency": str(protect.adjacency),
        "epsilon_over_training": [[count, after(count)] for count in at],
    }


def _roc(run: TrainedRun, target: Target) -> dict[str, Any]:
    """Return how well a threshold on the loss separates training rows from held-out ones, and what is proven of that.

    An estimate bounds no attack: noise behind an encoder that was trained on private text does not pay for it.
    """
    if not run.model.task.has_classes:
        return {}
    inside, outside = (run.corpus.split(name) for name in ("train", "validation"))
    scores = np.concatenate([_log_likelihoods(run, name) for name in ("train", "validation")])
    units = np.concatenate([inside.unit_index, inside.unit_count + outside.unit_index])
    scored = Scored.of(scores, np.arange(len(scores)) < len(inside), units)
    found = {rate: true_positives_at(scored, rate) for rate in RATES}
    shown = {f"{rate:g}": [at.value, at.low, at.high] for rate, at in found.items() if at is not None}
    return roc(scored, Certificate.of(target)) | {"measured": shown}


def _log_likelihoods(run: TrainedRun, name: str) -> npt.NDArray[np.float64]:
    model = classifier_of(run.model, "probabilities")
    rows = run.plan.queries(matched(run.corpus.split(name), model), run.secret)
    probabilities = predict(model, ready(model, rows, cache_folder(), run.plan.settings.precision)).values
    labels = np.asarray(rows.labels)
    of_label = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return np.asarray(np.log(np.maximum(of_label, 1e-30)))


def _attack_details(result: AttackResult) -> dict[str, Any]:
    guarantee = None if result.guarantee is None else of_the_setting(result.guarantee)
    return {
        "release": dict(result.release),
        "guarantee": None if guarantee is None else {**guarantee.as_dict(), "sentence": guarantee.sentence()},
        "epsilon_by_adjacency": dict(result.epsilon_by_adjacency),
        "seconds": result.seconds,
        "stopped_by_time_limit": result.stopped,
        **({"details": dict(result.details)} if result.details else {}),
        **({"verdict": result.verdict} if result.verdict else {}),
    }


def _memory() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Let one process at a time do a named piece of work, so that the next one reads it from the cache.

    Where the cache cannot be written it cannot be read either, and every process does the work itself.
    """
    folder = cache_folder()
    handle = None
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def corpus_of(data: Mapping[str, Any]) -> Corpus:
    """Return the corpus of a study's data table, read once per process."""
    return _corpus(json.dumps(data, sort_keys=True))


@lru_cache(maxsize=2)
def _corpus(data: str) -> Corpus:
    return parse(TextSource, json.loads(data), "data").load()


class SharedScene(Scene):
    """A scene whose inner products are cached on disk, where other processes read them."""

    def gram(self, candidates: Corpus) -> npt.NDArray[np.float64]:
        """Return the inner products of candidates' gradients, computed once for all processes of this machine.

        Guarantee: none; inner products of private rows are kept in the cache, readable by its owner only.
        """
        key = ("gram", candidates.texts, candidates.second, candidates.labels, candidates.scores)
        if key not in self.cache:
            path = cache_folder() / f"gram-{_digest(self.model, repr(key))}.safetensors"
            with one_at_a_time("gram"):
                if path.exists():
                    self.cache[key] = load_tensors(path)[0]["gram"].numpy()
                else:
                    import torch

                    computed = super().gram(candidates)
                    with suppress(OutputError):  # a cache that cannot be written costs time, not correctness
                        save_tensors({"gram": torch.from_numpy(computed)}, path)
        gram: npt.NDArray[np.float64] = self.cache[key]
        return gram


def _digest(model: TextModel, text: str) -> str:
    digest = hashlib.sha256(f"{model.fingerprint} {model.settings!r} {text}".encode())
    for parameter in model.head.parameters():  # a fresh head differs by its seed, and gradients with it
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:40]


def scene_of(settings: Mapping[str, Any], seed: int, kind: str) -> SharedScene:
    """Return what is attacked in a trial: for gradients the model that a client shares, for vectors the trained one.

    Both are built from the settings that are trained, such as how pairs are read; only the layers differ.
    """
    shared = parse(ReleaseTable, settings.get("release", {}), "release")
    trained = model_of(settings, corpus_of(settings["data"]))
    model = replace(trained, embeddings=shared.embeddings, dropout=0.0)
    if kind == "gradient":
        model = replace(model, train=shared.train, pooler=None if shared.train == "pooler+head" else False)
    return _scene(json.dumps(settings["data"], sort_keys=True), model, shared.split, seed)


@lru_cache(maxsize=2)
def _scene(data: str, settings: ModelSettings, split: str | None, seed: int) -> SharedScene:
    corpus, source = _corpus(data), parse(TextSource, json.loads(data), "data")
    built = build_model(corpus, settings, rng=Rng(seed).fork("model"), task=source.task_of(corpus)).eval()
    scene = SharedScene.of(corpus, built, split=split, origin=f"a fresh {settings.encoder}")
    assert isinstance(scene, SharedScene)
    return scene
