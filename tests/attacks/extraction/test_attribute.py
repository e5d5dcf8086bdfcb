import numpy as np
import pytest
import torch

from discreet.attacks.base import Need
from discreet.attacks.extraction.attribute import AttributeInference
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, RepresentationRelease


def vectors(classes: np.ndarray, signal: float, seed: int) -> torch.Tensor:
    noise = Rng(seed).numpy().standard_normal((len(classes), 6))
    noise[:, 1] += signal * classes
    return torch.from_numpy(noise).float()


def accuracy(signal: float) -> float:
    classes = np.arange(300) % 3
    knows = Knowledge(extra={Need.ATTRIBUTES.value: (vectors(classes, signal, 0), classes)})
    guess = AttributeInference().run(RepresentationRelease(vectors(classes, signal, 1)), knows, Rng(0))
    return float(np.mean(np.array(guess.indices) == classes))


def test_a_linear_signal_is_found_and_noise_gives_chance() -> None:
    assert accuracy(8.0) > 0.95
    assert accuracy(0.0) < 0.5


def test_probabilities_are_those_of_the_predicted_class() -> None:
    classes = np.array([0, 1] * 20)
    knows = Knowledge(extra={Need.ATTRIBUTES.value: (vectors(classes, 5.0, 0), classes)})
    guess = AttributeInference().run(RepresentationRelease(vectors(classes, 5.0, 1)), knows, Rng(0))
    assert all(0.5 <= score <= 1 for score in guess.scores)


def test_what_is_missing_is_named() -> None:
    seen = RepresentationRelease(torch.zeros(2, 6))
    with pytest.raises(UnsupportedError, match="classes"):
        AttributeInference().run(seen, Knowledge(), Rng(0))
    one = Knowledge(extra={Need.ATTRIBUTES.value: (torch.zeros(3, 6), [0, 0, 0])})
    with pytest.raises(SettingError, match="at least two different"):
        AttributeInference().run(seen, one, Rng(0))
    with pytest.raises(SettingError, match="bands"):
        AttributeInference(bands=1)
