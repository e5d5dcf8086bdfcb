"""Noise of several clients: sensitivity in integers, no wrap-around, and an audit of the real protocol."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Rng
from discreet.accounting.events import GaussianDpEvent
from discreet.accounting.interpret import epsilon
from discreet.core.errors import DataError, SettingError
from discreet.core.guarantee import Adjacency
from discreet.federated.secure_sum.messages import Stage, SumSettings
from discreet.federated.secure_sum.noise import (
    MECHANISMS,
    DistributedNoise,
    clipped,
    hadamard,
    rotated,
    rotated_back,
)
from discreet.federated.secure_sum.protocol import run_sum
from discreet.federated.secure_sum.ring import Ring
from discreet.metrics.intervals import clopper_pearson


def noise_of(**changes: object) -> DistributedNoise:
    values = {"noise_multiplier": 2.0, "clip_norm": 1.0, "dimension": 20, "clients": 8, "survivors": 6}
    return DistributedNoise(**(values | changes))  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_rounded_vector_never_exceeds_the_sensitivity(data: st.DataObject) -> None:
    dimension = data.draw(st.sampled_from([1, 2, 7, 64, 300]))
    bits = data.draw(st.sampled_from([14, 16, 32]))
    noise = noise_of(dimension=dimension, ring=Ring(bits), rotate=data.draw(st.booleans()), noise_multiplier=4.0)
    size = data.draw(st.sampled_from([0.0, 0.5, 1.0, 1e6]))
    seed = data.draw(st.integers(0, 10**6))
    vector = np.random.default_rng(seed).normal(size=dimension) * size
    steps = noise.rounded(vector, Rng(seed), b"r")
    assert steps.shape == (noise.padded,)
    assert sum(int(step) ** 2 for step in steps) <= noise.squared_norm


def test_a_vector_that_cannot_be_rounded_within_the_norm_is_rounded_towards_zero() -> None:
    class Ones:
        """A source whose uniform numbers are all close to one, so that everything is rounded up."""

        def uniform(self, count: int) -> np.ndarray:
            return np.full(count, 1 - 2.0**-53)

    noise = noise_of(dimension=1000, ring=Ring(14), rotate=False, noise_multiplier=8.0)
    vector = np.full(1000, 1 / math.sqrt(1000))
    steps = noise.rounded(vector, Ones())  # type: ignore[arg-type]
    assert (np.abs(steps) <= vector / noise.step).all()
    assert int((steps**2).sum()) <= noise.squared_norm


def test_rounding_is_unbiased_and_fine() -> None:
    noise = noise_of(dimension=50)
    vector = np.random.default_rng(0).normal(size=50) / 20
    steps = np.mean([noise.rounded(vector, Rng(seed)) for seed in range(30)], axis=0) * noise.step
    np.testing.assert_allclose(steps, vector, atol=noise.step)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("bits", [16, 32])
def test_the_sum_is_that_of_the_vectors_with_the_stated_noise(mechanism: str, rotate: bool, bits: int) -> None:
    noise = noise_of(dimension=3000, mechanism=mechanism, rotate=rotate, ring=Ring(bits))
    vectors = [np.random.default_rng(client).normal(size=3000) for client in range(8)]
    total = np.zeros(noise.padded, dtype=noise.ring.dtype)
    for client, vector in enumerate(vectors):
        total = noise.ring.reduced(total + noise.encode(vector, Rng(client), b"seed"))
    exact = sum(clipped(vector, 1.0) for vector in vectors)
    error = noise.decode(total, b"seed") - exact
    std = 2.0 * math.sqrt(8 / 6)
    assert abs(error.mean()) < 6 * std / math.sqrt(3000)
    assert abs(error.std() / std - 1) < 0.08  # six standard deviations of the estimate


def test_wrapping_around_is_rare_even_for_equal_vectors() -> None:
    for rotate in (False, True):
        noise = noise_of(dimension=64, ring=Ring(16), rotate=rotate, noise_multiplier=0.5)
        same = np.zeros(64)
        same[0] = 1.0
        total = sum(noise.encode(same, Rng(c), b"x").astype(np.int64) for c in range(8))
        decoded = noise.decode(noise.ring.words(np.asarray(total)), b"x")
        assert abs(decoded[0] - 8) < 6 * 0.5 * math.sqrt(8 / 6)


def test_the_cost_is_close_to_that_of_central_noise() -> None:
    central = epsilon(GaussianDpEvent(2.0), 1e-5, Adjacency.ZERO_OUT)
    for changes, factor in (({}, 1.001), ({"dimension": 10**6}, 1.01), ({"mechanism": "skellam"}, 1.10)):
        cost = noise_of(**changes).epsilon(1e-5)
        assert central <= cost <= factor * central
    stated = noise_of().guarantee(1e-5)
    assert stated.certified and stated.unit == "client" and stated.adjacency is Adjacency.ZERO_OUT
    assert any("6 clients" in one for one in stated.assumptions)


def test_fewer_survivors_cost_more_and_more_cost_less() -> None:
    noise = noise_of()
    costs = [epsilon(noise.event_of(survivors), 1e-5, Adjacency.ZERO_OUT) for survivors in (3, 6, 8)]
    assert costs[0] > costs[1] > costs[2]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_budget_gives_the_least_noise(mechanism: str) -> None:
    settings = {"clip_norm": 0.5, "dimension": 100, "clients": 8, "survivors": 6, "mechanism": mechanism}
    noise = DistributedNoise.for_budget(3.0, 1e-5, rounds=10, **settings)
    assert noise.epsilon(1e-5, 10) <= 3.0
    less = DistributedNoise(noise_multiplier=noise.noise_multiplier * 0.999, **settings)
    assert less.epsilon(1e-5, 10) > 3.0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(0, 1000))
def test_a_rotation_keeps_the_norm_and_can_be_undone(size: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=size)
    padded = 1 << (size - 1).bit_length()
    turned = rotated(x, padded, b"seed")
    np.testing.assert_allclose(np.linalg.norm(turned), np.linalg.norm(x), rtol=1e-12)
    np.testing.assert_allclose(rotated_back(turned, size, b"seed"), x, atol=1e-12)


def test_the_fast_transform_is_that_of_the_hadamard_matrix() -> None:
    from scipy.linalg import hadamard as matrix

    x = np.random.default_rng(0).normal(size=32)
    np.testing.assert_allclose(hadamard(x), matrix(32) @ x, atol=1e-12)


@pytest.mark.parametrize("vector", [[1.0, math.nan], [1.0, math.inf], [1.0], [1.0, 2.0, 3.0]])
def test_wrong_vectors_are_rejected(vector: list[float]) -> None:
    with pytest.raises(DataError):
        noise_of(dimension=2).encode(vector, Rng(1))


@pytest.mark.parametrize(
    "changes",
    [
        {"survivors": 9},
        {"survivors": 0},
        {"mechanism": "laplace"},
        {"noise_multiplier": 0.0},
        {"clip_norm": -1.0},
        {"ring": Ring(4)},
        {"wrap_probability": 0.0},
    ],
)
def test_settings_without_a_guarantee_are_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        noise_of(**changes)


def protocol_sums(noise: DistributedNoise, present: bool, runs: int, seed: int) -> np.ndarray:
    """The first coordinate of the released sum of many runs: 8 clients, of which 2 drop out before they send."""
    sums = []
    for run in range(runs):
        rng = Rng(seed).fork(run)
        vectors = {
            client: noise.encode([float(present and client == 0), 0.0], rng.fork("noise", client))
            for client in range(8)
        }
        settings = SumSettings(bytes(16), run, 6, 2, noise.ring)
        server = run_sum(settings, vectors, dropped={Stage.MASKED: [3, 6]}, rng=rng)
        sums.append(noise.decode(server.result())[0])
    return np.array(sums)


def lower_bound(absent: np.ndarray, present: np.ndarray, delta: float) -> float:
    """The largest epsilon that the runs refute with 95% confidence, at a threshold set in advance."""
    threshold = 0.5
    least, _ = clopper_pearson(int((present > threshold).sum()), len(present), 0.95)
    _, most = clopper_pearson(int((absent > threshold).sum()), len(absent), 0.95)
    return math.log(max(least - delta, 1e-9) / most)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_audit_of_the_protocol_stays_below_the_certified_epsilon(mechanism: str) -> None:
    runs = 40  # benchmarks/secure_sum.py runs a thousand
    noise = noise_of(dimension=2, noise_multiplier=0.7, mechanism=mechanism)
    sums = [protocol_sums(noise, present, runs, seed) for seed, present in enumerate((False, True))]
    assert lower_bound(*sums, 1e-5) <= noise.epsilon(1e-5)


def test_the_audit_finds_missing_noise() -> None:
    weak = noise_of(dimension=2, noise_multiplier=0.07)
    sums = [protocol_sums(weak, present, 40, seed) for seed, present in enumerate((False, True))]
    assert lower_bound(*sums, 1e-5) > noise_of(noise_multiplier=4.0).epsilon(1e-5)
