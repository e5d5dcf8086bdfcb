"""What callers may ask of an attack, a protection or a sampler is declared: nobody probes for attributes."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from discreet.attacks.base import Attack, Need, Returns
from discreet.catalog import ATTACKS, CORPORA, PROTECTIONS, attack_class
from discreet.core.types import Release

SOURCE = Path(__file__).parents[2] / "src" / "discreet"
FILES = sorted(SOURCE.rglob("*.py"))
_DECLARED = re.compile(r"attack|ruler|chosen|protect|defence|sampler", re.IGNORECASE)


def probes(tree: ast.AST) -> list[str]:
    """Return every `getattr` with a default, and every `hasattr`, on what is named an attack, protection or sampler."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    named = [(call.func.id, call.args) for call in calls if isinstance(call.func, ast.Name)]
    found = [args for name, args in named if (name == "getattr" and len(args) == 3) or name == "hasattr"]
    return [ast.unparse(args[0]) for args in found if _DECLARED.search(ast.unparse(args[0]))]


def test_the_law_sees_a_probe() -> None:
    assert probes(ast.parse("getattr(request.attack, 'needs', ())")) == ["request.attack"]
    assert probes(ast.parse("hasattr(attack, 'craft')")) == ["attack"]
    assert probes(ast.parse("getattr(attack, 'needs'); getattr(model, 'pooler', None)")) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_attack_protection_or_sampler_is_probed(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert probes(tree) == []
    reads = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "__annotations__"]
    assert all(isinstance(node.ctx, ast.Store) for node in reads), "annotations are not read to find out what it is"


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_declares_its_contract(name: str) -> None:
    kind = attack_class(name)
    assert issubclass(kind, Attack) and kind.name == name
    attack = attack_class(name)()
    assert attack.label == ATTACKS[name].label and attack.summary == ATTACKS[name].help
    assert issubclass(kind.sees, Release) and kind.sees.kind in {"gradient", "representation", "text", "model"}
    assert isinstance(kind.returns, Returns) and all(isinstance(need, Need) for need in kind.needs)
    fields = {field.name for field in dataclasses.fields(attack)}  # type: ignore[arg-type]
    assert kind.has_time_limit == ("seconds" in fields)
    assert (attack.within(3.0) is attack) == (not kind.has_time_limit)
    assert attack.within(None) is attack
    assert attack.crafts == (kind.craft is not Attack.craft)
    declared = {member for member in dir(Attack) if not member.startswith("_")}
    assert not fields & declared, "a setting hides a declared member"


@pytest.mark.parametrize("name", [*ATTACKS, *PROTECTIONS, *CORPORA])
def test_every_entry_of_the_catalog_has_a_label_and_one_line_of_help(name: str) -> None:
    entry = {**ATTACKS, **PROTECTIONS, **CORPORA}[name]
    assert entry.label and entry.help.endswith(".") and "\n" not in entry.help
    module, _, thing = entry.path.partition(":")
    assert (SOURCE.parent / (module.replace(".", "/") + ".py")).exists() and thing
