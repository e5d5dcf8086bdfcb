import math

import pytest
import torch

from discreet.accounting.interpret import epsilon
from discreet.accounting.local_layer import Sending
from discreet.core.errors import DataError, SettingError
from discreet.core.randomness import Rng
from discreet.protections.local.layer import MECHANISMS, LDPLayer


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("sending", [Sending(500), Sending(500, 10, 40, sampling="fixed")])
def test_all_that_is_sent_keeps_the_budget(mechanism: str, sending: Sending) -> None:
    layer = LDPLayer.for_budget(mechanism, dimension=8, epsilon=4.0, delta=1e-4, sending=sending)
    assert 3.9 < epsilon(sending.event(layer.event), 1e-4, "replace-one") <= 4.0 + 1e-9


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_release_is_an_unbiased_estimate_with_the_stated_error(mechanism: str) -> None:
    layer = LDPLayer.for_budget(mechanism, dimension=8, epsilon=6.0, delta=1e-4)
    truth = torch.nn.functional.normalize(torch.arange(1.0, 9.0)[None], dim=1)
    sent = layer(truth.repeat(40_000, 1), Rng(3))
    error = (sent - truth).square().mean()
    assert float(error) == pytest.approx(layer.variance, rel=0.03)
    assert float((sent.mean(0) - truth).norm()) < 5 * math.sqrt(8 * layer.variance / 40_000)


def test_what_is_long_is_clipped_and_what_is_short_is_left() -> None:
    layer = LDPLayer("gaussian", 2, 1.0, clip_norm=0.5)
    found = layer.bounded(torch.tensor([[3.0, 4.0], [0.1, 0.0], [0.0, 0.0]]))
    assert torch.linalg.vector_norm(found, dim=1).max() <= 0.5
    assert torch.allclose(found, torch.tensor([[0.3, 0.4], [0.1, 0.0], [0.0, 0.0]]), atol=1e-5)


def test_a_vector_of_zeros_is_randomised_like_any_other() -> None:
    for mechanism in MECHANISMS:
        layer = LDPLayer.for_budget(mechanism, dimension=8, epsilon=4.0)
        assert torch.isfinite(layer(torch.zeros(5, 8), Rng(0))).all()


def test_bad_input_is_refused() -> None:
    layer = LDPLayer.for_budget("privunit", dimension=8, epsilon=4.0)
    with pytest.raises(DataError, match="width 8"):
        layer(torch.zeros(2, 7), Rng(0))
    with pytest.raises(DataError, match="finite"):
        layer(torch.full((1, 8), math.nan), Rng(0))
    with pytest.raises(SettingError, match="epsilon to be .*, got 0"):
        LDPLayer.for_budget("privunit", dimension=8, epsilon=0)
    with pytest.raises(SettingError, match="Did you mean 'gaussian'"):
        LDPLayer.for_budget("gausian", dimension=8, epsilon=1)
    with pytest.raises(SettingError, match="Gaussian noise only"):
        LDPLayer.for_budget("vmf", dimension=8, epsilon=1, calibration="paper")
