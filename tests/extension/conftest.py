"""The example package, installed with pip into a folder of its own, and added to this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.extension.installing import EXAMPLE, installed

from discreet import catalog, plugins


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the example package is installed."""
    return installed(EXAMPLE, tmp_path_factory.mktemp("example"))


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """A function that adds an installed package to this process until the test ends."""
    before = set(sys.modules)
    tables = (catalog.ATTACKS, catalog.PROTECTIONS, catalog.CORPORA, catalog.metrics())
    for table in tables:
        monkeypatch.setattr(table, "_made", {})

    def adding(folder: Path) -> None:
        monkeypatch.syspath_prepend(str(folder))
        plugins.plug_ins.cache_clear()

    plugins.plug_ins.cache_clear()
    yield adding
    plugins.plug_ins.cache_clear()
    for name in set(sys.modules) - before:
        if not name.startswith(("discreet.", "torch")) and Path(getattr(sys.modules[name], "__file__", "") or "").parts:
            file = Path(str(sys.modules[name].__file__))
            if "site" in file.parts:
                del sys.modules[name]


@pytest.fixture
def example(site: Path, add: Callable[[Path], None]) -> None:
    """The example package in this process."""
    add(site)
