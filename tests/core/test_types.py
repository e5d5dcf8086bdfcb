import math

import pytest
import torch

from discreet.core.errors import SettingError
from discreet.core.types import GradientRelease, Leakage


def test_a_leakage_holds_its_value_in_its_interval() -> None:
    with pytest.raises(SettingError, match="The interval must contain the value"):
        Leakage("rouge_l", 0.9, 0.1, 0.5, n=10)
    assert math.isnan(Leakage("rouge_l", math.nan, 0, 1, n=0).value)


def test_a_release_shows_its_shape_and_not_its_numbers() -> None:
    release = GradientRelease({"w": torch.full((2, 3), 0.125)}, batch_size=4)
    assert repr(release) == "GradientRelease(1 tensors, 6 numbers, batch_size=4)"
