"""Checks of the implementation: every planted fault of a training refutes its claim, and no correct training is.

Noise and batches are drawn anew each time. A correct run fails with probability 1e-6 at most (`LEVEL`), by the exact
law of each statistic. The faults are so large for these statistics that none is missed with a larger probability.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.audit.test_canaries import toy
from tests.training.graphs import Graphs, captured_on_the_cpu
from torch import Tensor

import discreet.audit.checks as checks_module
from discreet.audit.aspects import NEVER, Aspect
from discreet.audit.canaries import FILE, GradientCanaries, plant_texts, read, record_path
from discreet.audit.checks import CHECKED, LEVEL, Check, checks_of, spread
from discreet.audit.run import RunAudit, audit_run
from discreet.audit.watch import Watch
from discreet.clipping import tape
from discreet.clipping.record import Record
from discreet.core.errors import DataError
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data import samplers
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource
from discreet.experiment.run import RunRequest, train_once
from discreet.mechanisms.correlated import CorrelatedNormals
from discreet.mechanisms.normals import NormalSource
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections import base, dp_sgd
from discreet.protections.base import Protection
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.capture import Lane, PartGraphs
from discreet.training.engine import Engine, PrivateStep
from discreet.training.loop import Job, train
from discreet.training.plan import TrainingPlan

SETTINGS = TrainSettings(epochs=4, batch_size=8, learning_rate=1e-2)  # 20 steps
UNITS = 40
NOISE = DPSGD(noise_multiplier=2.0, delta=1e-3)
Patch = Callable[[pytest.MonkeyPatch], None]


def half_noise(patch: pytest.MonkeyPatch) -> None:
    add = dp_sgd.add_normals
    patch.setattr(dp_sgd, "add_normals", lambda sums, std, rng: add(sums, std / 2, rng))


def no_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tape, "_factors", lambda norms, bound: torch.ones_like(norms))


def parts_clipped_as_one(patch: pytest.MonkeyPatch) -> None:
    """Clip the mean gradient of a part, and multiply it by the number of units."""
    whole = dp_sgd.clipped_sum

    def clipped(record: Record, rule: Any, *, keep: bool = False, into: dict[str, Tensor] | None = None) -> object:
        total = whole(record, tape.Flat(1e9), keep=keep)
        norm = math.sqrt(sum(float(value.double().square().sum()) for value in total.gradients.values()))
        factor = min(1.0, rule.norm * len(total) / norm) if norm else 1.0
        for name, value in total.gradients.items():
            into[name] = into[name] + value * factor if name in into else value * factor  # type: ignore[index,operator]
        return total

    patch.setattr(dp_sgd, "clipped_sum", clipped)


def everybody_in_the_batches_of_the_model(patch: pytest.MonkeyPatch) -> None:
    """Canaries are drawn as promised."""
    draw = samplers.Poisson.draw
    patch.setattr(
        samplers.Poisson,
        "draw",
        lambda self, step, n, rng: np.arange(n, dtype=np.int64) if n == UNITS else draw(self, step, n, rng),
    )


def everybody_in_every_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(samplers.Poisson, "draw", lambda self, step, n, rng: np.arange(n, dtype=np.int64))


def the_same_noise_in_every_step(patch: pytest.MonkeyPatch) -> None:
    releaser = base.GradientProtection.releaser

    def same(self: base.GradientProtection, source: Rng) -> base.Release:
        release = releaser(self, source)
        return lambda sums, step: release(sums, 0)

    patch.setattr(base.GradientProtection, "releaser", same)


FAULTS: dict[str, tuple[Patch, set[Aspect]]] = {
    "half noise": (half_noise, {Aspect.NOISE_SCALE}),
    "no clipping": (no_clipping, {Aspect.CLIP_UNIT, Aspect.CLIP_PART}),
    "parts clipped as one unit": (parts_clipped_as_one, {Aspect.CLIP_PART}),
    "fixed batches": (everybody_in_the_batches_of_the_model, {Aspect.MODEL_BATCHES}),
    "everybody is drawn": (everybody_in_every_batch, {Aspect.MODEL_BATCHES, Aspect.CANARY_BATCHES}),
    "the same noise in every step": (the_same_noise_in_every_step, {Aspect.NOISE_STEPS}),
}


def audited(encoder: Path, out: Path) -> RunAudit:
    """Train a tiny run with canaries as the command does, with secret noise, and audit it."""
    model = ModelSettings(encoder=str(encoder), train="head", dropout=0.0)
    train_once(RunRequest(TextSource("toy.csv"), model, SETTINGS, NOISE, audit=100), out, corpus=toy(UNITS + 8))
    return audit_run(out)


@pytest.mark.parametrize("name", FAULTS)
def test_an_audit_of_a_run_refutes_every_planted_fault(
    name: str, tiny_encoder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, expected = FAULTS[name]
    with monkeypatch.context() as patch:
        plant(patch)
        result = audited(tiny_encoder("bert"), tmp_path / "run")
    assert result.refuted and expected <= {check.aspect for check in result.failed}
    assert result.as_dict()["refuted"]


@pytest.fixture(scope="module")
def honest(tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[RunAudit, Path]:
    folder = tmp_path_factory.mktemp("honest") / "run"
    return audited(tiny_encoder("bert"), folder), folder


def test_a_correct_run_passes_every_check_and_says_what_was_not_tested(honest: tuple[RunAudit, Path]) -> None:
    result, _ = honest
    assert not result.refuted and not result.failed
    assert {check.aspect for check in result.checks} == set(CHECKED)
    assert {one.aspect for one in result.not_tested} == {Aspect.PATH_FROM_TEXT, *NEVER}
    values = result.as_dict()
    assert values["checks_level"] == LEVEL == 1e-6
    assert set(values["tested"]) == {Aspect.LOWER_BOUND.value, *(one.value for one in CHECKED)}
    assert not set(values["tested"]) & {one["aspect"] for one in values["not_tested"]}
    # figures about batches and noise are for the owner; the JSON may be stored with the run
    assert all(set(one) == {"aspect", "what", "passed"} for one in values["checks"])


def test_nothing_in_a_run_folder_says_who_was_drawn(honest: tuple[RunAudit, Path]) -> None:
    _, folder = honest
    path = record_path(folder)
    assert path.parent == folder.parent and path.stat().st_mode & 0o077 == 0
    assert set(json.loads((folder / FILE).read_text())) == {"format", "kind", "included", "scores", "sums"}
    sizes = json.loads(path.read_text())["batches"]["sizes"]
    assert len(sizes) == 20 and not any(json.dumps(sizes)[1:-1] in file.read_text() for file in folder.rglob("*.json"))


def test_without_its_record_nothing_about_the_steps_is_tested(honest: tuple[RunAudit, Path]) -> None:
    _, folder = honest
    path = record_path(folder)
    aside = path.rename(path.with_name("aside"))
    try:
        result = audit_run(folder)
    finally:
        aside.rename(path)
    assert not result.checks and {one.aspect for one in result.not_tested} >= set(CHECKED)
    assert all(path.name in one.why for one in result.not_tested if one.aspect in CHECKED)


# Other faults, samplers and noise, on the steps alone, without a run folder.


@dataclasses.dataclass
class Tiny:
    """A model and rows that are trained again and again."""

    corpus: Corpus
    settings: ModelSettings

    def watched(self, protect: Protection, *, examples: bool = False, train_part: str = "head") -> tuple[Check, ...]:
        corpus, canaries = self.corpus, None
        if examples:
            corpus, canaries = plant_texts(corpus, 8, protect.adjacency, Rng(3))
        settings = dataclasses.replace(self.settings, train=train_part)
        model = Classifier.build(corpus, settings, rng=Rng(0))
        plan = TrainingPlan.make(model, corpus, protect=protect, training=SETTINGS)
        if canaries is None:
            canaries = GradientCanaries.of(100, plan, Rng(1))
        else:
            canaries.watching = Watch(plan)
        trained = train(model, corpus, plan, job=Job(canaries=canaries))
        assert canaries.watching is not None
        self.record = canaries.watching.record()
        tested, self.untested = checks_of(self.record, "", plan.protect, trained.guarantee)
        return tested


@pytest.fixture(scope="module")
def tiny(tiny_encoder: Callable[[str], Path]) -> Iterator[Tiny]:
    yield Tiny(toy(UNITS + 8), ModelSettings(encoder=str(tiny_encoder("bert")), train="head", dropout=0.1))


def failed(checks: tuple[Check, ...]) -> set[Aspect]:
    return {check.aspect for check in checks if check.failed}


def a_parameter_without_noise(patch: pytest.MonkeyPatch) -> None:
    add = dp_sgd.add_normals
    patch.setattr(dp_sgd, "add_normals", lambda sums, std, rng: {**add(sums, std, rng), "head.bias": sums["head.bias"]})


def one_stream_for_all_parameters(patch: pytest.MonkeyPatch) -> None:
    add = NormalSource.add
    patch.setattr(NormalSource, "add", lambda self, values, std, number: add(self, values, std, 0))


def the_noise_of_one_step_again(patch: pytest.MonkeyPatch) -> None:
    releaser = base.GradientProtection.releaser

    def again(self: base.GradientProtection, source: Rng) -> base.Release:
        release = releaser(self, source)
        return lambda sums, step: release(sums, 3 if step == 17 else step)

    patch.setattr(base.GradientProtection, "releaser", again)


def batches_of_one_size(patch: pytest.MonkeyPatch) -> None:
    fixed = samplers.FixedSize
    patch.setattr(samplers.Poisson, "draw", lambda self, step, n, rng: fixed(round(self.rate * n)).draw(step, n, rng))


def the_same_batch_in_every_step(patch: pytest.MonkeyPatch) -> None:
    draw = samplers.Poisson.draw
    patch.setattr(samplers.Poisson, "draw", lambda self, step, n, rng: draw(self, 0, n, rng))


def rows_of_others_in_the_sum(patch: pytest.MonkeyPatch) -> None:
    gather = PrivateStep.gather
    everybody = lambda self, parts, step, *_: gather(self, self.parts_of(np.arange(len(self.units))), step)  # noqa: E731
    patch.setattr(PrivateStep, "gather", everybody)


OTHER_FAULTS: dict[str, tuple[Patch, dict[str, Any], Aspect]] = {
    "a parameter without noise": (a_parameter_without_noise, {}, Aspect.NOISE_SCALE),
    "one stream for all parameters": (one_stream_for_all_parameters, {}, Aspect.NOISE_PARAMETERS),
    "the noise of one step again": (the_noise_of_one_step_again, {}, Aspect.NOISE_STEPS),
    "batches of one size": (batches_of_one_size, {}, Aspect.MODEL_BATCHES),
    "the same batch in every step": (the_same_batch_in_every_step, {}, Aspect.MODEL_BATCHES),
    "rows of others in the sum": (rows_of_others_in_the_sum, {}, Aspect.MODEL_BATCHES),
    "truncated batches of one size": (batches_of_one_size, {"sampler": "truncated-poisson"}, Aspect.MODEL_BATCHES),
    "per layer, without a clip": (no_clipping, {"clipping": "per-layer"}, Aspect.CLIP_PART),
}


@pytest.mark.parametrize("name", OTHER_FAULTS)
def test_other_faults_are_refuted_too(name: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, method, aspect = OTHER_FAULTS[name]
    plant(monkeypatch)
    assert aspect in failed(tiny.watched(dataclasses.replace(NOISE, **method)))


# Parts that are replayed as CUDA graphs, with a stand-in: what is measured is the graph that trained.


def sums_that_bypass_the_protection(patch: pytest.MonkeyPatch) -> None:
    def add(self: PartGraphs, batch: Any, weights: Tensor, lane: Lane) -> None:
        with self.tape:
            losses = self.losses_of(batch)
        record = self.tape.backward(losses, seeds=weights.to(losses.dtype))
        for name, value in tape.clipped_sum(record, tape.Flat(1e9)).gradients.items():
            lane.sum.sums[name].add_(value)

    patch.setattr(PartGraphs, "_add", add)


def every_captured_unit_twice(patch: pytest.MonkeyPatch) -> None:
    add = PartGraphs._add

    def twice(self: PartGraphs, batch: Any, weights: Tensor, lane: Lane) -> None:
        add(self, batch, weights, lane)
        add(self, batch, weights, lane)

    patch.setattr(PartGraphs, "_add", twice)


@pytest.mark.parametrize("train_part", ["head", "all"])
@pytest.mark.parametrize("plant", [None, sums_that_bypass_the_protection, every_captured_unit_twice])
def test_what_a_captured_part_adds_is_measured_by_its_graph(
    plant: Patch | None, train_part: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = Graphs()
    captured_on_the_cpu(monkeypatch, graphs)
    if plant is not None:
        plant(monkeypatch)
    tested = tiny.watched(NOISE, train_part=train_part)
    assert graphs.replayed > 20 and {check.aspect for check in tested} == set(CHECKED)
    assert failed(tested) == (set() if plant is None else {Aspect.CLIP_UNIT, Aspect.CLIP_PART})


def test_a_graph_that_is_not_finite_is_measured_as_it_is_trained(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    captured_on_the_cpu(monkeypatch, Graphs())
    expected = tiny.watched(NOISE)
    monkeypatch.setattr(Engine, "is_finite", property(lambda self: self.graphs is None or not self.graphs.parts))
    tested = tiny.watched(NOISE)
    assert not failed(tested) and {check.aspect for check in tested} == {check.aspect for check in expected}


def test_the_same_allocation_in_every_epoch_is_refuted(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = samplers.RandomAllocation.draw
    monkeypatch.setattr(
        samplers.RandomAllocation, "draw", lambda self, step, n, rng: draw(self, step % self.bins, n, rng)
    )
    assert failed(tiny.watched(dataclasses.replace(NOISE, sampler="random-allocation"))) >= {Aspect.MODEL_BATCHES}


@pytest.mark.parametrize("method", [{"correlation": "banded", "bands": 3}, {"correlation": "lambda-cgd"}], ids=str)
def test_correlated_noise_is_whitened(method: dict[str, Any], tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    protect = dataclasses.replace(NOISE, **method)
    assert not failed(tiny.watched(protect))
    draw = samplers.CyclicPoisson.draw
    with monkeypatch.context() as patch:
        patch.setattr(samplers.CyclicPoisson, "draw", lambda self, step, n, rng: draw(self, step // 2, n, rng))
        assert Aspect.MODEL_BATCHES in failed(tiny.watched(protect))
    normals = CorrelatedNormals._normals
    monkeypatch.setattr(CorrelatedNormals, "_normals", lambda self, values, step: normals(self, values, 0))
    assert failed(tiny.watched(protect)) & {Aspect.NOISE_SCALE, Aspect.NOISE_STEPS}


@pytest.mark.parametrize(
    "method",
    [
        {"sampler": "truncated-poisson"},
        {"sampler": "random-allocation"},
        {"clipping": "per-layer"},
        {"clipping": "automatic"},
    ],
    ids=str,
)
def test_other_methods_pass_every_check(method: dict[str, Any], tiny: Tiny) -> None:
    tested = tiny.watched(dataclasses.replace(NOISE, **method))
    assert not failed(tested) and {check.aspect for check in tested} == set(CHECKED)


def test_training_of_the_head_first_and_then_of_all_layers_passes_every_check(tiny: Tiny) -> None:
    tested = tiny.watched(NOISE, train_part="all")
    assert not failed(tested) and {check.aspect for check in tested} == set(CHECKED)
    names = {one["name"]: one["numbers"] // one["width"] for one in tiny.record["noise"]["parameters"]}
    assert names["head.bias"] == 20 and 0 < min(names.values()) < 20  # other layers begin later


def test_canaries_of_text_are_checked_by_the_steps_of_their_training(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = tiny.watched(NOISE, examples=True)
    assert not failed(tested)
    assert [one.aspect for one in tiny.untested] == [Aspect.CANARY_BATCHES]
    the_same_noise_in_every_step(monkeypatch)
    assert Aspect.NOISE_STEPS in failed(tiny.watched(NOISE, examples=True))


def test_directions_are_checked_by_their_batches_alone_and_say_so(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    protect = DirDPSGD(kappa=1.0, delta=1e-3)
    tested = tiny.watched(protect, examples=True)
    assert not failed(tested) and {check.aspect for check in tested} == {Aspect.MODEL_BATCHES}
    assert {one.aspect for one in tiny.untested} == set(CHECKED) - {Aspect.MODEL_BATCHES}
    assert all(one.why for one in tiny.untested)
    draw = samplers.FixedSize.draw
    monkeypatch.setattr(samplers.FixedSize, "draw", lambda self, step, n, rng: draw(self, 0, n, rng))
    assert failed(tiny.watched(protect, examples=True)) == {Aspect.MODEL_BATCHES}


def test_a_figure_of_fewer_steps_than_were_taken_is_refuted(tiny: Tiny) -> None:
    tiny.watched(NOISE)
    assert tiny.record is not None
    model = Classifier.build(tiny.corpus, tiny.settings, rng=Rng(0))
    plan = TrainingPlan.make(model, tiny.corpus, protect=NOISE, training=dataclasses.replace(SETTINGS, epochs=2))
    stated = train(model, tiny.corpus, plan).guarantee
    tested, _ = checks_of(tiny.record, "", plan.protect, stated)
    assert failed(tested) == {Aspect.COST}


def test_p_values_of_spreads_are_exact() -> None:
    """Under the law itself, a p-value below a is at most as likely as a; the statistic is that of a few coins."""
    pmf = np.array([0.25, 0.5, 0.25])
    values, weights = [], []
    for outcome in np.ndindex(3, 3, 3):
        values.append(spread([(pmf, np.array(outcome))]))
        weights.append(float(np.prod(pmf[list(outcome)])))
    for level in (0.05, 0.3, 0.8):
        assert sum(weight for value, weight in zip(values, weights, strict=True) if value <= level) <= level + 1e-12
    assert min(values) < 0.3
    assert spread([(np.array([0.0, 0.0, 1.0]), np.array([2, 2]))]) == 1.0
    assert spread([(np.array([0.0, 0.0, 1.0]), np.array([2, 1]))]) < 1e-9


def test_a_damaged_record_is_rejected() -> None:
    batches = {"sampler": {"kind": "Daily", "rate": 0.5}, "units": 4, "steps": 1, "sizes": [2], "counts": [[0, 4]]}
    batches |= {"outside": 0, "overlaps": []}
    unknown = {"protect": {"name": "dir-dp-sgd"}, "batches": batches, "misread": 0}
    for record in ({"noise": {}}, unknown):
        with pytest.raises(DataError, match="complete record"):
            checks_of(record, "", NOISE, None)


def test_metrics_without_a_digest_of_the_canaries_are_rejected(honest: tuple[RunAudit, Path]) -> None:
    with pytest.raises(DataError, match="digest"):
        read(honest[1], {"canaries": 100})


def test_levels_and_adjacency() -> None:
    assert Adjacency.ZERO_OUT is NOISE.adjacency
    assert checks_module.LEVEL / len(CHECKED) > 1e-8
