"""No code compares prose, and no library code names an option of the command line.

An error, a caveat or a reason is told apart by its type or its value, never by its words. A message names a setting by
`setting(name, value)` of `core/errors.py`; the edge that shows it spells the option.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "discreet"
# A file, and why it has no other way. Each entry must still be needed.
ALLOWED = {
    "core/files.py": "safetensors reports a full disk as text alone, without an error number",
}
SENTENCE = re.compile(r"[A-Za-z]{2,}[,;:.]? [A-Za-z]{2,}")
ERROR = re.compile(r"(?i)\b(e|exc|err|\w*error\w*|\w*exception\w*|\w*warning\w*)\b")  # how errors are called
PROSE_FIELDS = {"reason", "sentence", "message"}
CUTS = {"startswith", "endswith", "partition", "rpartition", "split", "removeprefix", "removesuffix", "find", "index"}


def is_sentence(node: ast.expr) -> bool:
    """Whether an expression is a text of at least two words, or a collection of which one member is."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(is_sentence, node.elts))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and SENTENCE.search(node.value) is not None


def is_text_of_an_object(node: ast.expr) -> bool:
    """Whether an expression is `str(error)`, `error.args[0]`, `x.reason` or `x.sentence()`."""
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in {"str", "repr"} and bool(node.args)
        return (named and ERROR.search(ast.unparse(node.args[0])) is not None) or is_text_of_an_object(node.func)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "args"
    return isinstance(node, ast.Attribute) and node.attr in PROSE_FIELDS


def is_text(node: ast.expr) -> bool:
    """Whether an expression is a text with letters, and not only a line break or a comma."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and re.search("[A-Za-z]", node.value) is not None
    return isinstance(node, ast.JoinedStr)


def is_prose_test(operator: ast.cmpop, left: ast.expr, right: ast.expr) -> bool:
    if isinstance(operator, ast.In | ast.NotIn):  # "words" in str(error); text in ("A sentence.", ...)
        return is_sentence(left) or (is_text(left) and is_text_of_an_object(right)) or is_sentence(right)
    if not isinstance(operator, ast.Eq | ast.NotEq):
        return False
    if is_sentence(left) or is_sentence(right):
        return True
    fields = [one for one in (left, right) if isinstance(one, ast.Attribute) and one.attr in PROSE_FIELDS]
    return bool(fields)


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def comparisons_of_prose(code: str) -> Iterator[str]:
    """Yield every comparison of a text that is written for people."""
    tree = ast.parse(code)
    named = {
        target.id: one.value
        for one in tree.body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name) and is_sentence(one.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [named.get(one.id, one) if isinstance(one, ast.Name) else one for one in _sides(node)]
            if any(is_prose_test(op, a, b) for op, a, b in zip(node.ops, sides, sides[1:], strict=False)):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
            text = is_text_of_an_object(node.func.value) and bool(node.args) and is_text(node.args[0])
            if text or any(map(is_sentence, node.args)):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.MatchValue) and is_sentence(node.value):
            yield f"line {node.lineno}: case {ast.unparse(node)}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_code_compares_prose(path: Path) -> None:
    seen = list(comparisons_of_prose(path.read_text(encoding="utf-8")))
    if path.relative_to(SOURCE).as_posix() in ALLOWED:
        assert seen, "this file is no longer an exception: remove it from ALLOWED"
    else:
        assert not seen, "use an error class, an enumeration such as Caveat, or a field that holds the value"


@pytest.mark.parametrize(
    "code",
    [
        'if "found" in str(error): pass',
        'if "Did you mean" not in str(error): pass',
        'if event.failure == "its worker ended without a result": pass',
        '_LOST = "its process ended without an answer"\nif event.failure == _LOST: pass',
        "if guarantee.reason == GIVEN_SEED: pass",
        'if error.args[0].startswith("Expected"): pass',
        'text = promise.sentence().partition(" It assumes: ")[0]',
        'ok = reason in ("the noise is known", "x")',
        'match text:\n    case "no such thing": pass',
    ],
)
def test_comparisons_that_were_there_are_caught(code: str) -> None:
    assert list(comparisons_of_prose(code))


@pytest.mark.parametrize(
    "code",
    [
        'if name == "dp-sgd": pass',
        "if Caveat.FIXED_SEED in guarantee.caveats: pass",
        "if self.reason is None: pass",
        'attack, _, metric = name.partition("/")',
        'rows = text.split(", ")',
        'first = str(error).partition("\\n")[0]',
        'if str(source).startswith("hub:"): pass',
        'if path.name in ("study.json", "trials.jsonl"): pass',
    ],
)
def test_comparisons_of_values_are_allowed(code: str) -> None:
    assert not list(comparisons_of_prose(code))


OPTION = re.compile(r"(?<![\w-])--([a-z]|$)")  # or its name is put in behind the dashes
LIBRARY = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] != "cli"]


def options_in_text(code: str) -> Iterator[str]:
    """Yield every text, other than a docstring, that names an option of the command line."""
    tree = ast.parse(code)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings stand alone
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in statements else None
        if isinstance(text, str) and OPTION.search(text):
            yield f"line {node.lineno}: {text!r}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_library_text_names_an_option(path: Path) -> None:
    seen = list(options_in_text(path.read_text(encoding="utf-8")))
    assert not seen, "name the setting by setting(name, value), and let the edge spell it"


@pytest.mark.parametrize(
    "code",
    [
        'raise OutputError("It exists; choose another --out.")',
        'remedy = f"take larger batches (--batch-size), or {other}"',
        'missing = "--public DATA"',
        "say(f'{n} rows; --rows {n} keeps them all')",
        'remedy = f"Name it with --{role}."',
    ],
)
def test_options_that_were_there_are_caught(code: str) -> None:
    assert list(options_in_text(code))


@pytest.mark.parametrize(
    "code",
    ['"""Read the file that `--ledger` names."""', 'a = "x -- y"', 'rule = "----"', 'css = "var(a--b)"', 'flag = "-o"'],
)
def test_other_dashes_are_allowed(code: str) -> None:
    assert not list(options_in_text(code))
