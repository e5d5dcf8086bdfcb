import pickle
from pathlib import Path

import pytest

from discreet.core.errors import BudgetError, DataError, DiscreetError, Message, SettingError, invalid, setting, spelled


def as_option(name: str, value: object) -> str | None:
    if name not in {"epsilon", "pooler", "mechanism", "out"}:
        return None
    if value is False:
        return f"--no-{name}"
    return f"--{name}" if value is None else f"--{name} {value}"


@pytest.mark.parametrize(
    ("name", "value", "in_python", "on_the_command_line"),
    [
        ("epsilon", None, "epsilon", "--epsilon"),
        ("epsilon", 3, "epsilon=3", "--epsilon 3"),
        ("epsilon", 0.5, "epsilon=0.5", "--epsilon 0.5"),
        ("pooler", False, "pooler=False", "--no-pooler"),
        ("mechanism", "gaussian", "mechanism='gaussian'", "--mechanism gaussian"),
        ("out", Path("runs/a"), "out='runs/a'", "--out runs/a"),
        ("batch_size", 8, "batch_size=8", "batch_size=8"),
        ("extra['pairs']", None, "extra['pairs']", "extra['pairs']"),
        ('naïve "name"', "ü", "naïve \"name\"='ü'", "naïve \"name\"='ü'"),
    ],
)
def test_a_setting_is_spelled_for_its_reader(
    name: str, value: object, in_python: str, on_the_command_line: str
) -> None:
    error = SettingError(f"Set {setting(name, value)}, or wait.")
    assert str(error) == f"Set {in_python}, or wait."
    assert error.worded(as_option) == f"Set {on_the_command_line}, or wait."
    assert error.settings == [(name, str(value) if isinstance(value, Path) else value)]


def test_an_invalid_value_carries_its_parts() -> None:
    error = invalid("batch_size", 0, "an integer >= 1", f"Use {setting('epochs', 2)}.")
    assert str(error) == "Expected batch_size to be an integer >= 1, got 0. Use epochs=2."
    assert (error.setting, error.value, error.rule, error.remedy) == (
        "batch_size",
        0,
        "an integer >= 1",
        "Use epochs=2.",
    )
    assert error.settings == [("batch_size", None), ("epochs", 2)]
    assert invalid("a", 1, "2").args == ("Expected a to be 2, got 1.",)
    assert SettingError("plain").setting is None


@pytest.mark.parametrize("error", [BudgetError(f"Raise {setting('epsilon')}."), invalid("epsilon", 0, "> 0")])
def test_an_error_survives_a_process_boundary(error: DiscreetError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
    assert "--epsilon" in again.worded(as_option) and again.settings == error.settings


def test_a_message_keeps_its_settings_inside_another() -> None:
    inner = DataError(f"Give {setting('epsilon')}.")
    outer = BudgetError("It failed: " + inner.message + " Nothing was sent.")
    assert str(outer) == "It failed: Give epsilon. Nothing was sent."
    assert outer.worded(as_option) == "It failed: Give --epsilon. Nothing was sent."
    assert isinstance("a" + Message("b") + "c", Message)
    assert BudgetError(inner.message).settings == inner.settings


def test_an_inner_edge_leaves_settings_that_it_does_not_know_to_an_outer_one() -> None:
    raised = invalid("mix", 3, "<= 2", f"Raise {setting('epsilon')}.")
    with pytest.raises(SettingError) as caught, spelled(lambda name, value: "[mix]" if name == "mix" else None):
        raise raised
    assert caught.value is raised and raised.setting == "mix" and raised.value == 3
    assert str(raised) == "Expected [mix] to be <= 2, got 3. Raise epsilon."
    assert raised.worded(as_option) == "Expected [mix] to be <= 2, got 3. Raise --epsilon."


@pytest.mark.parametrize(
    "text", ["\ufdd0", "\ufdd0x\ufdd1", "\ufdd0[1]\ufdd1", "\ufdd0[1, 2]\ufdd1", "\ufdd0" * 3 + "\ufdd1", "--epsilon 3"]
)
def test_text_from_outside_that_looks_like_a_mark_is_kept(text: str) -> None:
    error = DataError(f"Expected {text}.")
    assert str(error) == f"Expected {text}." == error.worded(as_option) and error.settings == []


def test_a_long_message_keeps_its_beginning_and_its_remedy() -> None:
    error = DataError("Expected a. " + "x" * 10_000 + f" Give {setting('epsilon')}.")
    for text in (str(error), error.worded(as_option)):
        assert len(text) < 2_600 and text.startswith("Expected a. xxx") and text.endswith("epsilon.")
