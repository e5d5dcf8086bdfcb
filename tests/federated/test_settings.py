"""Settings of federated training."""

import pytest

from discreet.core.errors import SettingError
from discreet.protections.dp_sgd import DPSGD


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ({"sampler": "random-allocation"}, "sampler"),
        ({"correlation": "lambda-cgd"}, "correlation"),
        ({"correlation": "banded"}, "correlation"),
    ],
)
def test_rounds_share_neither_batches_nor_noise(method: dict[str, str], name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} to be left out at a client"):
        DPSGD(epsilon=3.0, **method).check_at_client()


def test_rounds_may_sample_each_step_on_its_own() -> None:
    for method in ({}, {"sampler": "poisson"}, {"sampler": "truncated-poisson"}, {"correlation": "independent"}):
        DPSGD(epsilon=3.0, **method).check_at_client()
