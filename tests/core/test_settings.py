import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from discreet.core.errors import SettingError
from discreet.core.settings import as_toml, dump, parse, read


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = Inner()
    limit: int | None = None


def test_a_round_trip_through_a_file(tmp_path: Path) -> None:
    settings = Outer("x", Inner(0.5, (3,)), limit=4)
    path = tmp_path / "s.toml"
    path.write_text(dump(settings), encoding="utf-8")
    assert read(Outer, path) == settings
    path.write_text(dump(Outer("x")), encoding="utf-8")
    assert read(Outer, path) == Outer("x")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "x", "inner": {"raet": 1}}, "settings.inner, got 'raet'. Did you mean 'rate'"),
        ({"inner": {}}, "Expected key 'name'"),
        ({"name": 3}, "Expected settings.name to be of type str.*, got 3"),
        ({"name": "x", "limit": "many"}, "Expected settings.limit to be of type int.*, got 'many'"),
        ({"name": "x", "limit": True}, "Expected settings.limit to be of type int.*, got True"),
        ({"name": "x", "inner": {"sizes": [1, "2"]}}, r"sizes\[1\] to be of type int, got '2'"),
    ],
)
def test_strict_keys_and_types(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse(Outer, values)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="There is none"):
        read(Outer, tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(SettingError, match="Expected TOML"):
        read(Outer, tmp_path / "bad.toml")


def test_plain_values_come_back_from_toml() -> None:
    values = {
        "name": 'a "quoted" \\ name\n\x7f é',
        "seeds": [0, 1],
        "data": {"source": "a.csv", "share": 1e-9},
        "protect": [{"name": "none"}, {"name": "dp-sgd", "epsilon": [1.0, 8.0], "odd key": True}],
        "attack": [{"name": "mine", "more": {"steps": 3}}, {"name": "flat"}],
        "empty": {},
    }
    text = as_toml(values | {"title": None, "goal": {"floor": None}})
    assert tomllib.loads(text) == values | {"goal": {}}
    assert text.count("[[protect]]") == 2, "each table under a header of its own, as in a study that people wrote"
