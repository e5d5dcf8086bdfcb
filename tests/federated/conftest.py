"""A tiny federation: two classes, a random encoder of a few thousand weights, clients in one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discreet.data.sources import TextSource
from discreet.federated.settings import Federation
from discreet.models.settings import ModelSettings, TrainSettings


@pytest.fixture
def tiny(tiny_encoder: Callable[[str], Path], toy_csv: Path) -> Callable[..., Federation]:
    """Return a function from changed settings to those of a tiny federation of three clients."""

    def settings(train: str = "head", epochs: float = 2, batch_size: int = 30, **changes: Any) -> Federation:
        values: dict[str, Any] = {
            "data": TextSource(str(toy_csv), classes=("clinic", "ward")),
            "model": ModelSettings(encoder=str(tiny_encoder("bert")), train=train, dropout=0.0),
            "training": TrainSettings(epochs=epochs, batch_size=batch_size, learning_rate=0.01),
            "clients": 3,
            "task": "classification",
            "classes": ("clinic", "ward"),
        }
        return Federation(**(values | changes))

    return settings
