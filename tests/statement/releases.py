"""Tiny finished runs of every kind, made once per test session and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discreet.catalog import protection
from discreet.data.sources import TextSource
from discreet.experiment import RunOptions, RunRequest, train_once
from discreet.models.settings import TrainSettings
from discreet.training.plan import model_settings

SETTINGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "dp-sgd": {"epsilon": 6.0},
    "dir-dp-sgd": {"kappa": 20.0},
    "texthide": {},
    "dp-ie": {"epsilon": 8.0},
    "ldp": {"epsilon": 8.0, "projection": "whole"},
    "santext": {"epsilon_per_word": 8.0},
}
MADE: dict[str, Path] = {}


def rows_with_people(path: Path, rows: list[tuple[str, str]]) -> Path:
    """Write the toy rows with a patient, who has four of them, and a sex."""
    lines = [f"{text},{label},p{i // 4},{'fm'[i // 4 % 2]}\n" for i, (text, label) in enumerate(rows)]
    path.write_text("text,label,patient_id,sex\n" + "".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def run_of(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_encoder: Callable[[str], Path],
    toy_rows: list[tuple[str, str]],
) -> Callable[..., Path]:
    """Return a function from the name of a protection to a copy of a finished run.

    Besides settings of the text it takes `protect` (more settings of the protection), `part` (what is trained),
    `ledger` (a shared one), `noise_seed`, `audit` and `population`.
    """

    def make(name: str, **more: Any) -> Path:
        key = f"{name} {sorted(more.items())}"
        if key not in MADE:
            folder = tmp_path_factory.mktemp("runs")
            data = rows_with_people(folder / "rows.csv", toy_rows)
            request_settings = {k: more[k] for k in ("noise_seed", "audit", "population") if k in more}
            others = {"protect", "part", "ledger", *request_settings}
            settings = SETTINGS[name]
            protect = None if settings is None else protection(name, {**settings, **more.get("protect", {})})
            model = {"encoder": str(tiny_encoder("bert")), "train": more.get("part", "head")}
            request = RunRequest(
                TextSource(
                    str(data),
                    **{
                        "unit": "patient_id",
                        "classes": ("clinic", "ward"),
                        **{k: v for k, v in more.items() if k not in others},
                    },
                ),
                model_settings(model, protect, 30),
                TrainSettings(epochs=1, batch_size=8),
                protect,
                **request_settings,
            )
            options = RunOptions(device="cpu", cache=False, ledger=more.get("ledger"))
            train_once(request, folder / "run", options=options)
            MADE[key] = folder / "run"
        copy = tmp_path / f"{name} {len(list(tmp_path.iterdir()))}"
        shutil.copytree(MADE[key], copy)
        return copy

    return make
