import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.attacks.base import Need
from discreet.attacks.extraction.exposure import (
    ENUMERATED,
    FITTED,
    SAMPLED,
    CanaryExposure,
    candidates_of,
    chance_exposure,
    exposure,
)
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, ModelRelease
from discreet.data.canaries import Canary, Planting, Space
from discreet.data.corpus import Corpus

losses = st.lists(st.floats(-50, 50), min_size=1, max_size=40)


@given(losses, st.floats(-50, 50))
def test_exposure_is_between_zero_and_the_size_of_the_space(others: list[float], loss: float) -> None:
    space = len(others) + 1
    found = exposure(loss, others, space=space)
    assert found.method == ENUMERATED and found.candidates == space
    assert -1e-12 <= found.bits <= math.log2(space) == found.largest
    assert exposure(loss + 1, others, space=space).bits <= found.bits


def test_a_constant_model_has_the_exposure_of_the_middle_rank() -> None:
    found = exposure(1.0, [1.0] * 99, space=100)
    assert found.rank == 50.5 and found.bits == pytest.approx(math.log2(100 / 50.5))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_the_chance_level_is_the_mean_over_all_ranks(size: int) -> None:
    values = [exposure(rank, np.delete(np.arange(size), rank), space=size).bits for rank in range(size)]
    assert chance_exposure(size) == pytest.approx(np.mean(values))


def test_the_chance_level_of_a_large_space_is_one_over_ln_two() -> None:
    assert chance_exposure(10**9) == pytest.approx(1 / math.log(2), abs=1e-6)


def test_a_sample_gives_at_most_its_own_size_and_a_fit_extrapolates_beyond() -> None:
    others = Rng(0).numpy().standard_normal(4000)
    sampled = exposure(-6.0, others, space=10**12, fit=False)
    assert sampled.method == SAMPLED and sampled.bits == pytest.approx(math.log2(4001))
    fitted = exposure(-6.0, others, space=10**12)
    assert fitted.method == FITTED and fitted.distance is not None and fitted.distance < 0.05
    # the probability of a standard normal number below -6 is 2^-29.9
    assert 26 < fitted.bits < 34
    assert exposure(-60.0, others, space=10**12).bits == pytest.approx(math.log2(10**12))
    # within the sample, its rank decides
    assert exposure(0.0, others, space=10**12).method == SAMPLED


def test_bad_losses_are_rejected() -> None:
    with pytest.raises(SettingError, match="finite"):
        exposure(math.nan, [1.0], space=2)
    with pytest.raises(SettingError, match="finite"):
        exposure(1.0, [math.inf], space=2)
    with pytest.raises(SettingError, match="fewer than the 2 secrets"):
        exposure(1.0, [1.0, 2.0], space=2)


def canaries(count: int, digits: int) -> tuple[Canary, ...]:
    corpus = Corpus("toy", ("one text", "another"), labels=(0, 1))
    return Planting(count, digits=digits, seed=3).plant(corpus)[1]


def test_all_secrets_of_a_small_space_are_candidates_except_those_of_other_canaries() -> None:
    planted = canaries(5, 2)
    for canary in planted:
        found = candidates_of(canary, planted, 1000, Rng(0))
        assert len(found.secrets) == found.space == 100 - 4
        assert found.secrets[found.truth] == canary.secret
        assert not {other.secret for other in planted if other is not canary} & set(found.secrets)


def test_a_sample_of_a_large_space_has_the_secret_at_a_random_place() -> None:
    planted = canaries(2, 6)
    places = []
    for seed in range(40):
        found = candidates_of(planted[0], planted, 20, Rng(seed))
        assert len(set(found.secrets)) == 20 and found.space == 10**6 - 1
        assert found.secrets[found.truth] == planted[0].secret
        places.append(found.truth)
    assert len(set(places)) > 10
    one, other = (candidates_of(canary, planted, 20, Rng(0)) for canary in planted)
    assert len(set(one.secrets) & set(other.secrets)) == 19  # the sample is shared, the secrets are not


def test_the_attack_names_the_candidate_with_the_smallest_loss() -> None:
    attack = CanaryExposure()
    knows = Knowledge(extra={Need.CANARIES.value: [np.array([3.0, 1.0, 2.0]), np.array([0.5, 4.0])]})
    guess = attack.run(ModelRelease(model=None), knows, Rng(0))  # type: ignore[arg-type]
    assert guess.indices == (1, 0) and guess.scores == (1.0, 0.5)
    with pytest.raises(UnsupportedError, match="canaries"):
        attack.run(ModelRelease(model=None), Knowledge(), Rng(0))  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="candidates"):
        CanaryExposure(candidates=1)


def test_spaces_are_compared_by_value() -> None:
    assert Space.digits(3) == Space.digits(3)
    assert len(set(itertools.chain(canaries(3, 3), canaries(3, 3)))) == 3
