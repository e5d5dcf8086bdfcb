"""The direction of flow, kept: who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "discreet"

# The inner ring: values, formulas and algorithms. Nobody here trains or attacks a whole thing.
_INNER = {"core", "accounting", "mechanisms", "clipping", "models", "protections", "data", "metrics", "catalog"}
_TRAINED = _INNER | {"releases", "runs", "training"}
_EXPERIMENT = _TRAINED | {"federated", "local", "attacks", "audit"}
_EVERYTHING = _EXPERIMENT | {"experiment", "estimator", "study", "report", "statement"}
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    # it imports what it names when that is loaded
    "catalog": {"core", "plugins", "attacks", "protections", "data", "metrics", "federated"},
    "plugins": {"core"},  # what it finds belongs to other packages
    "accounting": {"core"},
    "mechanisms": {"core", "accounting"},
    "data": {"core", "accounting", "catalog"},
    "clipping": {"core"},
    "metrics": {"core", "plugins"},
    "models": {"core", "data", "clipping"},
    "protections": {"core", "plugins", "accounting", "mechanisms", "data", "clipping", "models", "metrics"},
    "releases": _INNER,
    "attacks": {"core", "data", "models", "clipping", "mechanisms", "catalog", "plugins"},
    "runs": _INNER,  # what a run is on disk; training writes it
    "training": _INNER | {"releases", "runs"},
    "federated": _TRAINED,
    "local": _TRAINED,
    "integrations": _TRAINED,
    "audit": _TRAINED | {"attacks"},
    "experiment": _EXPERIMENT,
    "estimator": _EXPERIMENT | {"experiment"},
    "study": _EXPERIMENT | {"experiment"},
    "report": {"core", "metrics", "study", "releases", "catalog"},
    "statement": {"core", "data", "metrics", "accounting", "runs", "catalog"},
    "explorer": _EVERYTHING,  # never cli
    "cli": _EVERYTHING | {"explorer"},
    "__init__": _EVERYTHING | {"integrations"},  # the front door names what every package offers
    "__main__": {"cli"},
}
NO_TORCH = {"accounting"}
ONLY_ROOM: dict[str, set[str]] = {
    "cryptography": {"federated"},
    "flwr": {"federated"},
    "orjson": {"explorer", "local"},
    "starlette": {"explorer", "local"},
    "uvicorn": {"explorer", "local"},
    "faiss": {"attacks"},
    "opacus": set(),
    "peft": {"models"},
    "ray": {"study"},
    "tenseal": {"core"},
}


def imports_of(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert room in ALLOWED, f"{room} is a new room: say in this test what it may import"
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "discreet" and len(parts) > 1:
            target = parts[1]
            if (SOURCE / target).is_dir() or (SOURCE / f"{target}.py").exists():
                assert target == room or target in ALLOWED[room], f"{room} may not import {name}"
        if room in NO_TORCH:
            assert parts[0] not in {"torch", "transformers"}, f"{room} may not import {name}"
        if parts[0] in ONLY_ROOM:
            assert room in ONLY_ROOM[parts[0]], f"{room} may not import {name}"


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE.parent)}
    ).stdout


def test_importing_the_package_leaves_the_heavy_libraries_alone() -> None:
    heavy = run(
        "import sys, discreet, discreet.core.types, discreet.cli.main\n"
        "print(*{'torch','transformers','dp_accounting','sklearn','scipy','pandas','pyarrow'} & set(sys.modules))"
    )
    assert heavy.split() == []


def test_the_front_doors_load_nothing_before_a_name_is_used() -> None:
    alone = run("import sys, discreet\nprint(*sorted(name for name in sys.modules if name.startswith('discreet')))")
    assert alone.split() == ["discreet", "discreet.core", "discreet.core.lazy"]
    every = run(
        "import sys, discreet\nfor name in discreet._PACKAGES: dir(getattr(discreet, name))\n"
        "print(*{'torch','transformers','dp_accounting','sklearn','scipy','pandas','pyarrow'} & set(sys.modules))"
    )
    assert every.split() == []


def test_a_report_never_loads_torch() -> None:
    folder = SOURCE.parents[1] / "tools" / "golden" / "kept" / "studies" / "golden"
    code = (
        "import sys, tempfile, shutil, pathlib\nimport discreet\n"
        f"folder = pathlib.Path(tempfile.mkdtemp()) / 'sweep'\nshutil.copytree({str(folder)!r}, folder)\n"
        "discreet.report.write_report(folder)\nshutil.rmtree(folder.parent)\nprint('torch' in sys.modules)"
    )
    assert run(code).strip() == "False"


def test_accounting_never_loads_torch() -> None:
    rooms = sorted(p.stem for p in (SOURCE / "accounting").glob("*.py") if p.stem != "__init__")
    code = (
        "import sys\n" + "".join(f"import discreet.accounting.{r}\n" for r in rooms) + "print('torch' in sys.modules)"
    )
    assert run(code).strip() == "False"
