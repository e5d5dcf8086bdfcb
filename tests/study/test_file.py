from __future__ import annotations

from pathlib import Path

import pytest

from discreet.catalog import PROTECTIONS, protection
from discreet.core.errors import DataError, SettingError, setting, spelled
from discreet.protections.texthide import TextHide
from discreet.study.file import Goal, Study, changes, in_study_file, read_study
from discreet.study.grid import plan

TEXT = """
name = "small"
seeds = [0, 1]
[data]
source = "notes"
[[protect]]
name = "none"
[[protect]]
name = "dp-sgd"
epsilon = [1.0, 8.0]
clip_norm = [0.1, 1.0]
[[attack]]
name = "dager"
[goal]
leakage = "dager/rouge_l"
ceiling = 0.1
"""


def written(folder: Path, text: str = TEXT) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def test_a_grid_is_the_product_of_its_lists_for_every_seed(tmp_path: Path) -> None:
    trials = plan(read_study(written(tmp_path)))
    assert len(trials) == 2 * (1 + 2 * 2)
    assert len({trial.key for trial in trials}) == len(trials)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "small"', 'nmae = "small"', "Did you mean 'name'"),
        ("ceiling = 0.1", "cieling = 0.1", "Did you mean 'ceiling'"),
        ("ceiling = 0.1", "", "either a ceiling or a floor"),
        ("seeds = [0, 1]", "seeds = []", "seeds to be one or more different numbers"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "seeds to be one or more different numbers"),
        ("seeds = [0, 1]", "seeds = 3", "of type tuple"),
        ('"dager/rouge_l"', '"lamp/rouge_l"', "of an attack in dager"),
        ('"dager/rouge_l"', '"rouge_l"', "ATTACK/METRIC"),
        ("[data]", "[data", "Expected TOML"),
        ('name = "dager"', 'nom = "dager"', "Expected key 'name' in attack"),
    ],
)
def test_a_study_that_cannot_be_meant_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        read_study(written(tmp_path, TEXT.replace(old, new, 1)))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="There is none"):
        read_study(tmp_path / "no.toml")


def test_changes_are_named() -> None:
    assert changes({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "d": 4}) == [
        "a.b was 1 and is 3",
        "c was 2 and is gone",
        "d is new: 4",
    ]
    assert changes({"a": [1]}, {"a": [1]}) == []


def test_a_goal_needs_a_rule() -> None:
    with pytest.raises(SettingError):
        Goal("a/b")
    with pytest.raises(SettingError):
        Goal("a/b", ceiling=0.1, floor=0.5)


def test_a_study_needs_a_protection() -> None:
    with pytest.raises(SettingError, match="at least one"):
        Study(name="x", data={}, protect=())


@pytest.mark.parametrize(
    ("name", "value", "spelling"),
    [
        ("batch_size", None, "batch_size"),
        ("noise_multiplier", None, "noise_multiplier"),
        ("split", None, "split"),
        ("sampling", "fixed", 'sampling = "fixed"'),
        ("train", "all", 'train = "all"'),
        ("epsilon", 3, "epsilon = 3"),
        ("epsilon", 0.5, "epsilon = 0.5"),
        ("pooler", False, "pooler = false"),
        ("device", "cpu", "device='cpu'"),
        ("out", None, "out"),
    ],
)
def test_settings_that_are_keys_are_spelled_as_keys(name: str, value: object, spelling: str) -> None:
    error = SettingError(f"Use {setting(name, value)}.")
    assert error.worded(in_study_file) == f"Use {spelling}."


@pytest.mark.parametrize("name", PROTECTIONS)
def test_what_a_protection_lacks_is_named_as_a_key(name: str) -> None:
    try:
        protection(name, {})
    except SettingError as error:
        assert error.settings and "--" not in error.worded(in_study_file)
        assert all(in_study_file(key, value) is not None for key, value in error.settings)
    else:
        assert name == "texthide", "the one that needs nothing said"


def test_an_error_stays_of_its_kind() -> None:
    with pytest.raises(SettingError, match=r"\(batch_size\), or mix fewer sentences \(mix\)"), spelled(in_study_file):
        TextHide(masks=4, mix=4).check(1, 1)
    with pytest.raises(DataError, match="public corpus, found 3 rows"), spelled(in_study_file):
        raise DataError("public corpus, found 3 rows")


def test_a_misspelled_attack_is_named_and_not_the_goal() -> None:
    with pytest.raises(SettingError, match=r"Expected attack\.name .*Did you mean 'one-of-n'") as error:
        Study("a", {"source": "notes"}, ({"name": "none"},), ({"name": "one-off-n"},), Goal("one-of-n/identified", 0.1))
    assert error.value.setting == "attack.name"
