from __future__ import annotations

from pathlib import Path

import pytest

from discreet.core.errors import SettingError
from discreet.study.file import read_study
from discreet.study.grid import key_of, names_of, plan, points


def test_a_key_depends_on_every_setting_and_on_nothing_else() -> None:
    settings = {"data": {"source": "notes", "rows": 5}, "protect": {"name": "none"}}
    turned = {"protect": {"name": "none"}, "data": {"rows": 5, "source": "notes"}}
    assert key_of(settings, 0) == key_of(turned, 0)
    assert key_of(settings, 0) != key_of(settings, 1)
    assert key_of(settings, 0) != key_of({**settings, "data": {"source": "notes", "rows": 6}}, 0)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_no_two_settings_of_a_ready_study_have_one_name(path: Path) -> None:
    trials = plan(read_study(path))
    assert len({(trial.label, trial.seed) for trial in trials}) == len(trials)


def test_settings_are_told_apart_by_what_differs() -> None:
    assert [name.label for name in names_of([{"name": "santext", "epsilon_per_word": e} for e in (8.0, 20.0)])] == [
        "santext, epsilon per word 8",
        "santext, epsilon per word 20",
    ]
    asked = {"name": "dp-sgd", "epsilon": [1.0, 8.0], "clip_norm": [0.1, 1.0], "clipping": "flat"}
    clipped = names_of(points(asked))
    assert clipped[1].label == "dp-sgd, epsilon 1, clip norm 1.0"
    assert [name.variant for name in clipped] == ["dp-sgd, clip norm 0.1", "dp-sgd, clip norm 1.0"] * 2
    alone = names_of(points({**asked, "clip_norm": 0.1}))
    assert [name.label for name in alone] == ["dp-sgd, epsilon 1", "dp-sgd, epsilon 8"]
    limited = names_of(points({"name": "dp-sgd", "epsilon": 8.0, "noise_multiplier": [1.0, 2.0]}))
    assert {name.variant for name in alone + limited} == {"dp-sgd"}, "however much noise there is"
    mixed = names_of(points({"name": "texthide", "masks": [1, 16], "mix": [2, 4]}))
    assert [name.variant for name in mixed] == ["texthide, mix 2", "texthide, mix 4"] * 2


def test_an_empty_grid_is_refused_by_its_key() -> None:
    with pytest.raises(SettingError, match="protect.epsilon"):
        points({"name": "dp-sgd", "epsilon": []})
