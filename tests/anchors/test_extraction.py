"""Figures of exposure and extraction that are computed by hand from the papers' formulas."""

import math

import pytest

from discreet.accounting.events import GaussianDpEvent
from discreet.accounting.gdp import gaussian_trade_off
from discreet.accounting.risk import most_exposure
from discreet.attacks.extraction.discoverable import extractable_shares, extracted_within, log_trials
from discreet.attacks.extraction.exposure import chance_exposure, exposure


def test_exposure_by_hand() -> None:
    """Carlini et al. 2019, definition 4: log2 |R| - log2 rank. Of 8 secrets, 1 has a smaller loss: 3 - 1 = 2 bits."""
    losses = [0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    assert exposure(1.0, losses, space=8).bits == 2.0
    # a mean over all ranks of 4 secrets: (2 + 1 + (2 - log2 3) + 0) / 4
    assert chance_exposure(4) == pytest.approx((2 + 1 + 2 - math.log2(3)) / 4)


def test_the_bound_on_exposure_by_hand() -> None:
    """Of 4 secrets: P[rank <= 1] + P[rank <= 2] (log2 3 - 1) + P[rank <= 3] (2 - log2 3), each at most T(k / 4)."""
    test = [gaussian_trade_off(1.0, k / 4) for k in (1, 2, 3)]
    by_hand = test[0] + test[1] * (math.log2(3) - 1) + test[2] * (2 - math.log2(3))
    assert most_exposure(GaussianDpEvent(1.0), 4) == pytest.approx(by_hand)
    # two units hold a copy: the test on the test, which for a Gaussian is one of twice the mean
    pair = [gaussian_trade_off(2.0, k / 4) for k in (1, 2, 3)]
    group = pair[0] + pair[1] * (math.log2(3) - 1) + pair[2] * (2 - math.log2(3))
    assert group <= most_exposure(GaussianDpEvent(1.0), 4, copies=2) <= 2


@pytest.mark.parametrize("copies", [1, 4])
def test_the_bound_for_a_group_is_close_to_the_exact_one_of_a_gaussian(copies: int) -> None:
    size = 4096
    exact = sum(gaussian_trade_off(0.2 * copies, k / size) * math.log2((k + 1) / k) for k in range(1, size))
    bound = most_exposure(GaussianDpEvent(5.0), size, copies=copies)
    assert exact <= bound <= 1.05 * exact


def test_no_noise_is_no_bound_and_much_noise_is_chance() -> None:
    assert most_exposure(GaussianDpEvent(1e-3), 1024) == pytest.approx(10.0)
    assert most_exposure(GaussianDpEvent(1e6), 1024) == pytest.approx(chance_exposure(1024), rel=0.02)


def test_the_bound_exists_for_spaces_that_cannot_be_enumerated() -> None:
    assert 3.2 < most_exposure(GaussianDpEvent(1.0), 4900**8) < 3.4


def test_extraction_by_hand() -> None:
    """Hayes et al. 2024: n >= log(1 - p) / log(1 - q). At q = 0.01: 10.5, 69.0 and 229.1 samples for 0.1, 0.5, 0.9."""
    needed = [math.exp(log_trials(math.log(0.01), p)) for p in (0.1, 0.5, 0.9)]
    assert needed == pytest.approx([10.483, 68.968, 229.105], abs=1e-3)
    assert extracted_within(math.log(0.01), 69) == pytest.approx(1 - 0.99**69)
    assert extractable_shares([math.log(0.01)], (10, 11, 68, 69), (0.1, 0.5)) == {
        0.1: [0.0, 1.0, 1.0, 1.0],
        0.5: [0.0, 0.0, 0.0, 1.0],
    }
