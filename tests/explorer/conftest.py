"""A stage with a tiny model and toy texts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.serve import menu_of_catalog
from discreet.data.sources import load
from discreet.experiment.attack.scene import Scene, SceneRequest, load_scene
from discreet.explorer.menu import Menu
from discreet.explorer.page_data import PageData, load_page_data
from discreet.models.classifier import ModelSettings

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def scenes(toy_csv: Path, tiny_encoder: Callable[[str], Path]) -> dict[str, Scene]:
    folder = str(tiny_encoder("bert"))

    def made(train: str) -> Scene:
        asked = ModelSettings(encoder=folder, train=train, dropout=0.0)
        return load_scene(SceneRequest(source=str(toy_csv), model=asked, device="cpu", split="train"))

    assert len(load(str(toy_csv))) == 120
    return {"gradient": made("all"), "representation": made("head")}


@pytest.fixture
def stage(scenes: dict[str, Scene]) -> PageData:
    return PageData("toy texts", scenes.__getitem__)


@pytest.fixture(scope="session")
def menu() -> Menu:
    found = menu_of_catalog(1.0)
    assert isinstance(found, Menu)
    return found


@pytest.fixture
def nothing_trained() -> Callable[[Path | None], PageData]:
    return lambda folder: load_page_data(folder)
