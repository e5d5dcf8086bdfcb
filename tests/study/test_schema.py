"""The JSON schema of study files: it accepts what the reader accepts, and both reject the same mistakes by name."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from discreet.catalog import ATTACKS, PROTECTIONS, attack_class, settings_of_protection
from discreet.cli.main import main
from discreet.core.errors import SettingError
from discreet.study.file import REQUEST_KEYS, TABLES, Study, check, in_study_file, read_study
from discreet.study.schema import schema_text, shipped, study_schema

ROOT = Path(__file__).parents[2]
STUDIES = sorted([*(ROOT / "studies").glob("*.toml"), *(ROOT / "tools" / "fuzz_seeds").glob("study_*.toml")])

PROTECT = """
[[protect]]
name = "none"

[[protect]]
name = "dp-sgd"
epsilon = [1.0, 8.0]
clipping = ["flat", "per-layer"]
"""
TEXT = f"""
name = "small"
seeds = [0, 1]

[data]
source = "notes"

[model]
train = "head"

[training]
batch_size = 32
{PROTECT}
[[attack]]
name = "dager"
examples = 3
metrics = ["rouge_l"]

[goal]
leakage = "dager/rouge_l"
ceiling = 0.1
"""

# A mistake in the study above: what replaces what; the key and the rule that the schema names, and that the reader
# names.
MISTAKES: dict[str, tuple[str, str, tuple[str, str], tuple[str, str]]] = {
    "an unknown key": ("seeds =", "sedes =", ("sedes", "not allowed"), ("sedes", "only known keys")),
    "an older word": (
        "[[protect]]", "[[protections]]", ("protections", "not allowed"), ("protections", "Did you mean 'protect'"),
    ),
    "a misspelled protection": (
        '"dp-sgd"', '"dp-sdg"', ("protect.1.name", "is not one of"), ("protect[1].name", "one of"),
    ),
    "a wrong type": (
        "[1.0, 8.0]", '"three"', ("protect.1.epsilon", "is not of type 'number'"), ("epsilon", "of type float"),
    ),
    "a setting of another protection": (
        "epsilon = [1.0, 8.0]",
        "epsilon = 1.0\nkappa = 20.0",
        ("protect.1: Additional properties", "'kappa' was unexpected"),
        ("kappa", "left out for dp-sgd"),
    ),
    "a ceiling and a floor": (
        "ceiling = 0.1", "ceiling = 0.1\nfloor = 0.8", ("goal", "floor"), ("goal", "either a ceiling or a floor"),
    ),
    "neither a ceiling nor a floor": (
        "ceiling = 0.1", "", ("goal", "'floor' is a required"), ("goal", "either a ceiling or a floor"),
    ),
    "seeds that repeat": ("[0, 1]", "[0, 0]", ("seeds", "non-unique"), ("seeds", "different")),
    "no protection": (PROTECT, "", ("", "'protect' is a required"), ("protect", "Expected key")),
    "an empty list of protections": (
        PROTECT, "", ("protect", "non-empty"), ("protect", "at least one"),
    ),
    "a ceiling of 2": (
        "ceiling = 0.1", "ceiling = 2", ("goal.ceiling", "greater than or equal to the maximum of 1"),
        ("goal.ceiling", "in (0, 1)"),
    ),
    "an unknown attack": ('name = "dager"', 'name = "daggr"', ("attack.0.name", "is not one of"), ("attack", "one of")),
    "a grid with a number outside its range": (
        "[1.0, 8.0]", "[1.0, -8.0]", ("protect.1.epsilon.1", "minimum of 0"), ("epsilon", "> 0"),
    ),
    "an empty grid": ("[1.0, 8.0]", "[]", ("protect.1.epsilon", "non-empty"), ("protect[1].epsilon", "at least one")),
    "an unknown choice": (
        '["flat", "per-layer"]', '"flta"', ("protect.1.clipping", "is not one of"), ("clipping", "one of flat"),
    ),
    "no source": ('source = "notes"', "", ("data", "'source' is a required"), ("source", "Expected key")),
    "layers that no model has": (
        '"head"', '"heads"', ("model.train", "does not match"), ("train", "one of head, pooler+head"),
    ),
    "an empty batch": (
        "batch_size = 32", "batch_size = 0", ("training.batch_size", "minimum of 1"), ("batch_size", "integer >= 1"),
    ),
    "an unknown metric": ('"rouge_l"]', '"rouge_k"]', ("attack.0.metrics.0", "is not one of"), ("metric", "one of")),
}  # fmt: skip


def errors_of(values: dict[str, Any]) -> list[str]:
    """Return what jsonschema says about a study: where, and which rule."""
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft7Validator(json.loads(shipped()))
    return [f"{'.'.join(map(str, one.path))}: {one.message}" for one in validator.iter_errors(values)]


def broken(name: str) -> str:
    old, new, _, _ = MISTAKES[name]
    assert old in TEXT
    first = "protect = []\n" if name == "an empty list of protections" else ""
    return first + TEXT.replace(old, new)


def test_the_copy_in_the_package_is_the_generated_one() -> None:
    assert shipped() == schema_text(), "write it again: python -m discreet.study.schema"


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == study_schema()


def test_it_is_a_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(json.loads(shipped()))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_shipped_study_is_valid(path: Path) -> None:
    assert errors_of(tomllib.loads(path.read_text(encoding="utf-8"))) == []


def test_the_study_of_the_docs_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    example = text.partition("```toml\n")[2].partition("```")[0]
    assert errors_of(tomllib.loads(example)) == []
    (tmp_path / "study.toml").write_text(example, encoding="utf-8")
    check(read_study(tmp_path / "study.toml"))


def test_the_study_without_a_mistake_is_valid(tmp_path: Path) -> None:
    assert errors_of(tomllib.loads(TEXT)) == []
    (tmp_path / "study.toml").write_text(TEXT)
    check(read_study(tmp_path / "study.toml"))


@pytest.mark.parametrize("name", MISTAKES)
def test_the_schema_rejects_a_mistake_by_its_key_and_its_rule(name: str) -> None:
    key, rule = MISTAKES[name][2]
    said = errors_of(tomllib.loads(broken(name)))
    assert any(key in one and rule in one for one in said), said


@pytest.mark.parametrize("name", MISTAKES)
def test_the_reader_rejects_the_same_mistake_by_its_key_and_its_rule(name: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(broken(name))
    key, rule = MISTAKES[name][3]
    with pytest.raises(SettingError) as error:
        check(read_study(path))
    said = error.value.worded(in_study_file)
    assert key in said and rule in said, said


def test_it_has_every_key_that_the_reader_knows() -> None:
    schema = study_schema()
    named = schema["definitions"]
    assert set(schema["properties"]) == set(Study.__dataclass_fields__)
    for key, kind in TABLES.items():
        assert set(schema["properties"][key]["properties"]) == set(kind.__dataclass_fields__)
    for name in PROTECTIONS:
        assert set(named[f"protect-{name}"]["properties"]) == {"name", *settings_of_protection(name)}
    for name in ATTACKS:
        own = {one.name for one in dataclasses.fields(attack_class(name)) if one.init}  # type: ignore[arg-type]
        assert set(named[f"attack-{name}"]["properties"]) == {"name", *own, *REQUEST_KEYS}


@pytest.mark.parametrize("name", [*PROTECTIONS, *ATTACKS])
def test_the_defaults_of_protections_and_attacks_are_valid(name: str) -> None:
    where = "protect" if name in PROTECTIONS else "attack"
    keys = json.loads(shipped())["definitions"][f"{where}-{name}"]["properties"]
    table = {"name": name} | {key: value["default"] for key, value in keys.items() if "default" in value}
    study = {"name": "a", "data": {"source": "notes"}, "protect": [{"name": "none"}]}
    assert errors_of(study | {where: [table]}) == []


def test_every_key_of_a_table_has_a_sentence_of_help() -> None:
    for key in ("data", "protect", "goal", "release"):
        found = json.loads(shipped())["properties"][key]
        keys = found["items"]["properties"] if "items" in found else found["properties"]
        assert [name for name, value in keys.items() if not value.get("description")] == []
