"""The law of audits: whatever claims a guarantee is audited, no honest one is refuted, and every broken variant is.

Caught means that a many-run white-box test of one release, with crafted neighbours and 100,000 draws of each, has a
lower bound above the epsilon that is claimed. Each variant has one mistake.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import discreet.mechanisms
from discreet.audit import protections as audits
from discreet.audit.aspects import NEVER, RELEASE, Aspect
from discreet.audit.many_runs import audit_many_runs
from discreet.audit.mechanisms import AUDITED, MECHANISMS, mechanism_subject, subject_of
from discreet.audit.steps import resolved, steps_subject
from discreet.audit.subject import Subject
from discreet.catalog import PROTECTIONS, protection
from discreet.clipping.record import Record
from discreet.core.errors import DiscreetError
from discreet.core.randomness import Rng
from discreet.data.samplers import CyclicPoisson, Poisson, Sampler
from discreet.mechanisms.gaussian import Gaussian
from discreet.protections.base import Conditions, RepresentationProtection
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import Encodings, InstanceEncoding
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.release import LocalLayer
from discreet.protections.words.swap import WordSwap

DELTA = 1e-5
DRAWS = 100_000
_FEWER = 30_000  # of audits that take several steps for each draw
EPSILON = 2.0

# How each protection that claims a guarantee is asked for, with the variants that have code of their own.
HONEST: dict[str, tuple[str, dict[str, Any]]] = {
    "dp-sgd": ("dp-sgd", {"epsilon": EPSILON}),
    "dp-sgd, per layer": ("dp-sgd", {"epsilon": EPSILON, "clipping": "per-layer"}),
    "dp-sgd, automatic": ("dp-sgd", {"epsilon": EPSILON, "clipping": "automatic"}),
    "dp-sgd, truncated batches": ("dp-sgd", {"epsilon": EPSILON, "sampler": "truncated-poisson"}),
    "dp-sgd, random allocation": ("dp-sgd", {"epsilon": EPSILON, "sampler": "random-allocation"}),
    "dp-sgd, lambda-cgd": ("dp-sgd", {"epsilon": EPSILON, "correlation": "lambda-cgd"}),
    "dp-sgd, banded": ("dp-sgd", {"epsilon": EPSILON, "correlation": "banded"}),
    "dir-dp-sgd": ("dir-dp-sgd", {"epsilon": EPSILON}),
    "dir-dp-sgd, layers": ("dir-dp-sgd", {"epsilon": EPSILON, "partition": "layers"}),
    "dp-ie": ("dp-ie", {"epsilon": EPSILON}),
    "dp-ie, laplace": ("dp-ie", {"epsilon": EPSILON, "mechanism": "laplace"}),
    "dp-ie, laplace-l2": ("dp-ie", {"epsilon": EPSILON, "mechanism": "laplace-l2"}),
    "dp-ie, labels": ("dp-ie", {"epsilon": EPSILON, "labels": "noisy"}),
    "ldp": ("ldp", {"epsilon": EPSILON, "dimension": 8}),
    "ldp, vmf": ("ldp", {"epsilon": EPSILON, "mechanism": "vmf", "dimension": 8}),
    "ldp, gaussian": ("ldp", {"epsilon": EPSILON, "mechanism": "gaussian", "label_epsilon": 1.0, "dimension": 8}),
    "santext": ("santext", {"epsilon_per_word": EPSILON}),
    "santext+": ("santext+", {"epsilon_per_word": EPSILON, "sensitive": "words.txt"}),
    "word-noise": ("word-noise", {"epsilon_per_word": EPSILON}),
}


def bound(subject: Subject, draws: int = DRAWS) -> float:
    return audit_many_runs(subject.draw, delta=DELTA, rng=Rng(3), draws=draws).epsilon


def mechanism_classes() -> set[type[Any]]:
    """Return every public class of discreet.mechanisms that has an event and can be called."""
    found: set[type[Any]] = set()
    for module in pkgutil.iter_modules(discreet.mechanisms.__path__):
        members = vars(importlib.import_module(f"discreet.mechanisms.{module.name}")).values()
        found |= {
            one
            for one in members
            if inspect.isclass(one) and dataclasses.is_dataclass(one) and hasattr(one, "event")
            and not one.__name__.startswith("_") and one.__module__.startswith("discreet.mechanisms")
        }  # fmt: skip
    return found


def test_every_mechanism_has_an_audit() -> None:
    assert mechanism_classes() == set(AUDITED)
    made = {type(make(1.0, DELTA, 8)) for make in MECHANISMS.values()}
    assert made == set(AUDITED)


def test_every_protection_that_claims_a_guarantee_has_an_audit() -> None:
    """TextHide is the only one that claims nothing, and says so."""
    for name in PROTECTIONS:
        if name in audits.PROTECTIONS:
            assert any(name == asked for asked, _ in HONEST.values()), f"{name} is not audited by these laws"
            continue
        silent = protection(name, {})
        assert isinstance(silent, RepresentationProtection) and not silent.priced, f"{name} claims, and has no audit"
        with pytest.raises(DiscreetError, match="protect to be one of"):
            audits.protection_subject(name, {}, delta=DELTA)
    assert set(audits.PROTECTIONS) <= set(PROTECTIONS)


@pytest.mark.parametrize("name", MECHANISMS)
def test_no_mechanism_is_refuted_and_half_of_its_noise_is(name: str) -> None:
    honest = mechanism_subject(name, EPSILON, DELTA, 3)
    claim = honest.upper_bound(DELTA)
    assert claim == pytest.approx(EPSILON, rel=0.02)
    assert 0.2 * claim < bound(honest) <= claim
    made = MECHANISMS[name](EPSILON, DELTA, 3)
    assert bound(subject_of(twin(made), claimed=made)) > claim


def twin(mechanism: Any) -> Any:
    """Return the same mechanism with half the noise."""
    names = {field.name for field in dataclasses.fields(mechanism)}
    for name, factor in (("std", 0.5), ("scale", 0.5), ("kappa", 2.0), ("epsilon", 2.0)):
        if name in names:
            return dataclasses.replace(mechanism, **{name: getattr(mechanism, name) * factor})
    raise AssertionError(f"{mechanism} has no noise")


@pytest.mark.parametrize("case", HONEST)
def test_no_protection_is_refuted(case: str) -> None:
    name, values = HONEST[case]
    subject = audits.protection_subject(name, values, delta=DELTA)
    claim = subject.upper_bound(DELTA)
    assert claim <= EPSILON * (1 + 1e-6)
    assert 0.2 * claim < bound(subject, _FEWER if "steps" in subject.name else DRAWS) <= claim


# ---------------------------------------------------------------------------------------------------------------------
# Broken variants, each with one mistake.


class NoClip(DPSGD):
    """Gradients are summed as they are."""

    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        record.weighted_sum(torch.ones(len(record)), into=sums)


class HalfTheNoise(DPSGD):
    """The noise has half the standard deviation that is claimed."""

    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        return dataclasses.replace(self, noise_multiplier=self.noise / 2).as_honest().release(sums, rng)

    def as_honest(self) -> DPSGD:
        return DPSGD(self.noise_multiplier, self.clip_norm, self.clipping)


class ClipsTheSum(DPSGD):
    """The gradient of the summed loss is clipped, not that of each unit."""

    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        if not len(record):
            return super().gather(record, sums, rng)
        record.weighted_sum(torch.ones(len(record)), into=sums)
        length = torch.sqrt(sum((value.square().sum() for value in sums.values()), torch.zeros(())))
        for name in sums:
            sums[name] = sums[name] * min(1.0, self.clip_norm / float(length))
        return None


class WholeNormForEachLayer(DPSGD):
    """Each layer is clipped to the norm that all of them together may have."""

    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        bound = self.clip_norm * math.sqrt(audits.STEP_LAYERS)
        DPSGD(self.noise_multiplier, bound, "per-layer").gather(record, sums, rng)


class NoiseOnTheFirstTensor(DPSGD):
    """Only one tensor of the model gets noise."""

    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        first = next(iter(sums))
        return {**sums, **super().release({first: sums[first]}, rng)}


class KeepsNorms(DirDPSGD):
    """The length of a gradient is released with its direction."""

    def directions(self, gradients: Tensor, number: int, rng: Rng) -> Tensor:
        return super().directions(gradients, number, rng) * torch.linalg.vector_norm(gradients, dim=1, keepdim=True)


class SameNoise(DirDPSGD):
    """The direction is mixed with one that is the same in every release, so that it is no noise."""

    def directions(self, gradients: Tensor, number: int, rng: Rng) -> Tensor:
        shared = super().directions(gradients[:1], number, Rng(7)).expand(len(gradients), -1)
        unit = torch.nn.functional.normalize(gradients, dim=1)
        return torch.nn.functional.normalize(0.1 * unit + shared, dim=1)


class VectorsNotClipped(InstanceEncoding):
    """Vectors are mixed and noised without being clipped."""

    def seen(self, vectors: Tensor) -> Tensor:
        return vectors.double()


class HalfTheScale(InstanceEncoding):
    """The scale of the noise is half of what is needed."""

    def noise(self, scale: float, width: int) -> Any:
        return super().noise(scale / 2, width)


class OneNoiseForAll(InstanceEncoding):
    """Noise is drawn once and added to every output, as the paper's Algorithm 1 does."""

    def once(self, owners: Any, width: int, classes: int, secret: Rng) -> Any:
        return OnceForAll.sample(self, owners, width, classes, secret)


class OnceForAll(Encodings):
    def send(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        shared = torch.from_numpy(self.secret.fork("shared").numpy().standard_normal((1, self.width))) * self.scale
        return (self.protect.seen(vectors) + shared).float(), targets


class NotBounded(LDPLayer):
    """Vectors are sent with noise for clipped ones, and are not clipped."""

    def bounded(self, vectors: Tensor) -> Tensor:
        return vectors


class OneDraw(LDPLayer):
    """All users add the same noise."""

    def __call__(self, vectors: Tensor, rng: Rng) -> Tensor:
        noise = super().__call__(torch.zeros(1, self.dimension), rng)
        return self.bounded(vectors) + noise


class NotDivided(WordSwap):
    """Distances are not divided by the largest one."""

    @property
    def price(self) -> float:
        return self.epsilon_per_word


class TwiceThePrice(WordSwap):
    """Half the noise: the epsilon per distance is twice what is claimed."""

    @property
    def price(self) -> float:
        return 2 * super().price


def sgd(kind: type[DPSGD] = DPSGD, **values: Any) -> tuple[DPSGD, DPSGD]:
    """Return a broken DP-SGD and the one it claims to be."""
    claimed = DPSGD(Gaussian.for_budget(EPSILON, DELTA, 1.0).std, **values)
    return kind(claimed.noise_multiplier, **values), claimed


def directional(kind: type[DirDPSGD] = DirDPSGD, factor: float = 1.0, copies: int = 1) -> Subject:
    claimed = DirDPSGD(epsilon=EPSILON).resolve(Conditions(audits.Layers(), 1, 1, 1, 1, 1.0, DELTA))
    broken = kind(claimed.concentration * factor, claimed.blocks)
    return audits.dir_dp_sgd_subject(broken, claimed=claimed, copies=copies)


def encoding(kind: type[InstanceEncoding], **values: Any) -> Subject:
    return audits.vectors_subject(
        kind(epsilon=EPSILON, delta=DELTA, **values), claimed=InstanceEncoding(epsilon=EPSILON, delta=DELTA, **values)
    )


def local(kind: type[LDPLayer], mechanism: str = "gaussian", factor: float = 1.0, copies: int = 1) -> Subject:
    claimed = audits.local_layer(protection("ldp", {"epsilon": EPSILON, "mechanism": mechanism, "dimension": 8}), DELTA)  # type: ignore[arg-type]
    layer = claimed.training
    broken = kind(layer.mechanism, layer.dimension, layer.strength * factor, layer.clip_norm)
    return audits.vectors_subject(
        LocalLayer(broken, broken, claimed.projection, claimed.sending, DELTA),
        claimed=claimed,
        width=layer.dimension,
        copies=copies,
    )


def words(kind: type[WordSwap] = WordSwap, name: str = "santext", scale: float = 1.0, copies: int = 1) -> Subject:
    from discreet.audit.mechanisms import word_table

    table = audits.word_table(word_table() * scale)
    claimed = audits.sanitizer(protection(name, {"epsilon_per_word": EPSILON}), table)  # type: ignore[arg-type]
    return audits.words_subject(
        kind(table, EPSILON, claimed.mechanism, claimed.sensitive), claimed=claimed, copies=copies
    )


def several(claim: str | None = None, *, factor: float = 1.0, batches: Sampler | None = None, **method: Any) -> Subject:
    """Return the audit of several steps of a broken DP-SGD; `claim` is the sampler that is accounted for instead."""
    asked = DPSGD(epsilon=EPSILON, **(method if claim is None else {"sampler": claim}))
    claimed = resolved(asked, DELTA)
    return steps_subject(DPSGD(factor * claimed.noise, **method), claimed=claimed, batches=batches)


BROKEN: dict[str, Callable[[], Subject]] = {
    "dp-sgd: no clip": lambda: audits.dp_sgd_subject(sgd(NoClip)[0], claimed=sgd()[1]),
    "dp-sgd: half the noise": lambda: audits.dp_sgd_subject(sgd(HalfTheNoise)[0], claimed=sgd()[1]),
    "dp-sgd: scalar-loss clipping": lambda: audits.dp_sgd_subject(sgd(ClipsTheSum)[0], claimed=sgd()[1]),
    "dp-sgd: noise reused": lambda: audits.dp_sgd_subject(sgd()[1], noise=lambda rng, step: rng.fork("noise")),
    "dp-sgd: realised batch as divisor": lambda: audits.dp_sgd_subject(sgd()[1], divisor=float),
    "dp-sgd: duplicated units": lambda: audits.dp_sgd_subject(sgd()[1], copies=2),
    "dp-sgd: whole norm for each layer": lambda: audits.dp_sgd_subject(
        sgd(WholeNormForEachLayer)[0], claimed=sgd(clipping="per-layer")[1]
    ),
    "dp-sgd: noise on one tensor": lambda: audits.dp_sgd_subject(sgd(NoiseOnTheFirstTensor)[0], claimed=sgd()[1]),
    "dp-sgd: lambda-cgd accounted as independent noise": lambda: several("poisson", correlation="lambda-cgd"),
    "dp-sgd: banded noise on Poisson batches": lambda: several(correlation="banded", batches=Poisson(0.5)),
    "dp-sgd: a public allocation": lambda: several(sampler="random-allocation", batches=CyclicPoisson(8, 1.0)),
    "dp-sgd: half the noise of a truncated batch": lambda: several(sampler="truncated-poisson", factor=0.5),
    "dir-dp-sgd: half the noise": lambda: directional(factor=2.0),
    "dir-dp-sgd: norms released": lambda: directional(KeepsNorms),
    "dir-dp-sgd: noise reused": lambda: directional(SameNoise),
    "dir-dp-sgd: duplicated units": lambda: directional(copies=4),
    "dp-ie: no clip": lambda: encoding(VectorsNotClipped),
    "dp-ie: half the noise": lambda: encoding(HalfTheScale),
    "dp-ie: half the noise, laplace": lambda: encoding(HalfTheScale, mechanism="laplace-l2"),
    "dp-ie: noise reused": lambda: encoding(OneNoiseForAll),
    "dp-ie: duplicated units": lambda: audits.vectors_subject(InstanceEncoding(epsilon=EPSILON, delta=DELTA), copies=4),
    "ldp: no clip": lambda: local(NotBounded),
    "ldp: half the noise": lambda: local(LDPLayer, factor=0.5),
    "ldp: half the noise, vmf": lambda: local(LDPLayer, "vmf", 2.0),
    "ldp: half the noise, privunit": lambda: local(LDPLayer, "privunit", 2.0),
    "ldp: noise reused": lambda: local(OneDraw),
    "ldp: duplicated units": lambda: local(LDPLayer, copies=4),
    "santext: half the noise": lambda: words(TwiceThePrice),
    "santext: no clip": lambda: words(NotDivided, scale=4.0),
    "santext: duplicated units": lambda: words(copies=3),
    "word-noise: half the noise": lambda: words(TwiceThePrice, "word-noise"),
}


# They take the longest, and the same mistake is caught in the others of their kind.
SLOW = {
    "dir-dp-sgd: duplicated units", "dp-ie: duplicated units", "dp-ie: half the noise, laplace",
    "ldp: duplicated units", "ldp: half the noise, privunit", "santext: duplicated units",
}  # fmt: skip


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in BROKEN]
)
def test_every_broken_variant_is_caught(variant: str) -> None:
    subject = BROKEN[variant]()
    draws = _FEWER if "steps" in subject.name else DRAWS
    assert bound(subject, draws) > EPSILON * 1.0001 >= subject.upper_bound(DELTA)


def test_every_audited_protection_has_broken_variants() -> None:
    assert {variant.split(":")[0] for variant in BROKEN} | {"santext+"} == set(audits.PROTECTIONS)


def test_sampling_is_audited_too() -> None:
    """One step that samples the unit with probability 0.2 claims less, and the audit sees a claim that is too small."""
    honest = audits.dp_sgd_subject(sgd()[1], rate=0.2)
    claim = honest.upper_bound(DELTA)
    assert claim < EPSILON
    assert bound(honest) <= claim
    always = dataclasses.replace(audits.dp_sgd_subject(sgd()[1]), event=honest.event)
    assert bound(always) > claim
    assert math.isfinite(claim) and np.isfinite(bound(honest))


def test_a_list_of_sensitive_words_is_not_read_for_an_audit(tmp_path: Path) -> None:
    values = {"epsilon_per_word": 1.0, "sensitive": str(tmp_path / "missing.txt")}
    assert audits.protection_subject("santext+", values, delta=DELTA).upper_bound(DELTA) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("case", HONEST)
def test_every_audit_of_a_protection_says_what_it_tests_and_what_it_does_not(case: str) -> None:
    name, values = HONEST[case]
    subject = audits.protection_subject(name, values, delta=DELTA)
    open_aspects = {one.aspect for one in subject.not_tested}
    assert subject.tested and not open_aspects & set(subject.tested)
    assert open_aspects >= {*NEVER, *RELEASE}
    if name == "dp-sgd":  # one release shows neither the batches nor the noise of a training run
        assert open_aspects >= {Aspect.NOISE_STEPS, Aspect.MODEL_BATCHES}


def test_every_audit_of_a_mechanism_says_what_it_does_not_test() -> None:
    for name in MECHANISMS:
        subject = mechanism_subject(name, 1.0, DELTA)
        assert subject.tested and {one.aspect for one in subject.not_tested} == {*NEVER, *RELEASE}
