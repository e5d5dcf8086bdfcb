import math

import numpy as np
import pytest

from discreet.accounting.instance_encoding import InstanceEncodingCost, Load
from discreet.accounting.interpret import epsilon
from discreet.core.errors import SettingError
from discreet.core.guarantee import Adjacency


def cost(**changes: object) -> InstanceEncodingCost:
    settings: dict[str, object] = {"clip_norm": 1.0, "load": Load(1.0, 1.0), "dimension": 768, **changes}
    return InstanceEncodingCost(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", ["gaussian", "laplace", "l2-laplace"])
def test_sound_noise_keeps_the_budget_over_all_outputs(noise: str) -> None:
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(4), size=50)
    table = np.zeros((50, 20))
    for row, w in zip(table, weights, strict=True):
        row[rng.choice(20, 4, replace=False)] = w
    made = cost(load=Load(float((table**2).sum(axis=0).max()), float(table.sum(axis=0).max())), noise=noise)
    scale = made.scale(2.0, 1e-5)
    assert epsilon(made.event(scale), 1e-5, Adjacency.REPLACE_ONE) <= 2.0 + 1e-9


def test_two_outputs_cost_what_a_double_release_does() -> None:
    once, twice = cost(), cost(load=Load(2.0, 2.0))
    assert twice.sensitivity == pytest.approx(math.sqrt(2) * once.sensitivity)
    assert cost(noise="laplace", load=Load(2.0, 2.0)).sensitivity == pytest.approx(4 * math.sqrt(768))


def test_bad_settings_are_refused() -> None:
    for changes in (
        {"clip_norm": 0.0},
        {"noise": "uniform"},
        {"calibration": "mine"},
        {"noise": "l2-laplace", "calibration": "paper"},
        {"dimension": 0},
    ):
        with pytest.raises(SettingError, match="Expected"):
            cost(**changes)
    with pytest.raises(SettingError, match="delta"):
        cost().scale(1.0, 0.0)
    with pytest.raises(SettingError, match="squares"):
        Load(0.0, 1.0)


def test_two_clipped_vectors_are_twice_the_norm_apart() -> None:
    """The worst pair of records, in the norm of each noise: opposite ends of the ball, along a diagonal for laplace."""
    for norm, width in ((1.0, 768), (0.3, 4)):
        axis, diagonal = np.eye(width)[0] * norm, np.full(width, norm / math.sqrt(width))
        for noise, apart in (
            ("gaussian", np.linalg.norm(axis - (-axis))),
            ("l2-laplace", np.linalg.norm(axis - (-axis))),
            ("laplace", np.abs(diagonal - (-diagonal)).sum()),
        ):
            assert cost(clip_norm=norm, dimension=width, noise=noise).sensitivity == pytest.approx(apart)
