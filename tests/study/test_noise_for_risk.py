from __future__ import annotations

import numpy as np
import pytest

from discreet.accounting.events import ClippedSumDpEvent, GaussianDpEvent
from discreet.accounting.risk import most_identified
from discreet.attacks.identification import gaussian_sweep, training_sweep
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.study.noise_for_risk import (
    NoiseForRisk,
    certified_noise,
    measured_noise,
    upper_limit,
)


def test_the_certified_noise_is_within_a_percent_of_the_least() -> None:
    found = certified_noise(ClippedSumDpEvent, ceiling=0.05, candidates=64, event="one release")
    assert most_identified(ClippedSumDpEvent(found.noise), 64) <= 0.05
    assert most_identified(ClippedSumDpEvent(found.noise / 1.01), 64) > 0.05


def test_a_ceiling_below_chance_is_refused() -> None:
    with pytest.raises(SettingError, match="Random guessing"):
        certified_noise(GaussianDpEvent, ceiling=0.01, candidates=64, event="one release")


def test_the_measured_noise_is_close_to_the_least_on_held_out_text() -> None:
    grams = [alike(seed) for seed in (0, 1)]

    def attempt(gram: np.ndarray, noise: float) -> tuple[int, int]:  # type: ignore[type-arg]
        found = gaussian_sweep(gram, [noise], Rng(1), draws=4000)[0]
        return found.hits, found.draws

    found = measured_noise(
        lambda x: attempt(grams[0], x), lambda x: attempt(grams[1], x), ceiling=0.05, event="one release", texts=64
    )
    assert not found.certified
    assert found.limit <= 0.05
    assert upper_limit(*attempt(grams[1], found.noise / 1.3)) > 0.05
    proven = certified_noise(ClippedSumDpEvent, ceiling=0.05, candidates=64, event="one release")
    both = NoiseForRisk(0.05, 64, proven, found)
    assert both.ratio > 1
    told = both.as_dict()
    assert told["certified"]["sentence"].startswith("Certified")
    assert told["measured"]["sentence"].startswith("Estimate, not a bound")


def test_a_measurement_never_asks_for_more_than_the_proof() -> None:
    apart = 4 * np.eye(64)  # nothing alike: the attack reaches the bound

    def attempt(noise: float) -> tuple[int, int]:
        found = gaussian_sweep(apart, [noise], Rng(1), draws=2000)[0]
        return found.hits, found.draws

    proven = certified_noise(ClippedSumDpEvent, ceiling=0.05, candidates=64, event="one release")
    found = measured_noise(attempt, attempt, ceiling=0.05, event="one release", texts=64, proven=proven)
    assert found.noise <= proven.noise
    assert found.limit <= 0.05


def test_a_whole_training_tells_more_than_one_step_and_no_more_than_the_bound() -> None:
    gram = alike(0)
    one = training_sweep(gram, [2.0], Rng(0), sampling_rate=0.5, steps=1)[0]
    many = training_sweep(gram, [2.0], Rng(0), sampling_rate=0.5, steps=64)[0]
    assert many.hits > one.hits
    certain = training_sweep(gram, [1.0], Rng(0), sampling_rate=1.0, steps=1, draws=20_000)[0]
    single = gaussian_sweep(gram, [1.0], Rng(0))[0]
    assert certain.success == pytest.approx(single.success, abs=0.012)
    low = training_sweep(gram, [1.0], Rng(0), sampling_rate=0.0 + 1e-9, steps=4, draws=8000)[0]
    assert low.success == pytest.approx(1 / 64, abs=0.006)


def alike(seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """Return inner products of 64 gradients of norm 2 with cosines near 0.7, as sentences have."""
    draw = np.random.default_rng(seed).standard_normal((64, 500)) / np.sqrt(500)
    rows = np.sqrt(0.7) * draw[:1] + np.sqrt(0.3) * draw
    return 4 * rows @ rows.T / np.mean(np.sum(rows**2, axis=1))
