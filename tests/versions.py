"""Runs the tests with the oldest and with the newest versions of the dependencies, and prints one line for each set.

`make test-versions`; or `python tests/versions.py oldest -- tests/core` for one set and a part of the tests. The oldest
set is every lower bound in pyproject.toml itself, with the newest of everything else: a bound that cannot be installed
ends here. Environments, their versions (SET.txt) and what each run printed (SET.log) are kept in .test-versions/.

TORCH=torch==2.13.0+cpu takes that torch in every set, where only one build without CUDA can be had: then one version of
torch is tested, and not both ends of its range. The Python is the one that runs this file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".test-versions"
# One version of Flower is pinned, and holds back typer, rich, starlette and uvicorn: the newest versions are tested
# without it, and these tests with it.
FLOWER = "flwr"
NEEDS_FLOWER = (
    "src/discreet/federated",
    "tests/cli/test_federate.py",
    "tests/doors/test_federated.py",
    "tests/experiment/test_recorded.py",
    "tests/federated",
)
# Old versions call what newer versions of their own dependencies deprecate; nobody but they can change that.
TOLERANT = tuple(f"-Wignore::{kind}" for kind in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning"))


@dataclass(frozen=True)
class VersionSet:
    """A set of versions: which end of the ranges, without which package, and how pytest runs in it."""

    name: str
    oldest: bool = False
    without: str = ""
    pytest: tuple[str, ...] = ()


SETS = (
    VersionSet("oldest", oldest=True, pytest=TOLERANT),
    VersionSet("newest", without=FLOWER, pytest=tuple(f"--ignore={place}" for place in NEEDS_FLOWER)),
    VersionSet("newest-federated", pytest=(*TOLERANT, *NEEDS_FLOWER)),
)


def requirements(project: dict[str, Any], one: VersionSet, torch: str = "") -> list[str]:
    """Return what a set installs: in the oldest the lower bounds of pyproject.toml, and the newest tools to test it."""
    extras: dict[str, list[str]] = project["optional-dependencies"]
    used = [listed for name, listed in extras.items() if name != "dev"]
    listed = [each for part in (project["dependencies"], *used) for each in part]
    chosen = [torch if torch and re.match(r"torch\b(?!-)", each) else each for each in listed]
    bounds = [each.replace(">=", "==") if one.oldest else each for each in chosen]
    tools = [each for each in extras["dev"] if not each.startswith("discreet[")]
    return sorted(each for each in (*bounds, *tools) if re.split("[=>]", each)[0] != one.without)


def install(one: VersionSet) -> Path:
    """Make the environment of a set and return its Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted, resolved, folder = (PLACE / f"{one.name}{end}" for end in (".in", ".txt", ""))
    wanted.write_text("\n".join(requirements(project, one, os.environ.get("TORCH", ""))) + "\n", encoding="utf-8")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    choose = ("pip", "compile", "--upgrade", "--prerelease", "disallow", "--no-header", "--python", python)
    _uv(*choose, wanted, "--output-file", resolved)
    _uv("venv", "--allow-existing", "--python", python, folder)
    _uv("pip", "sync", "--python", folder, resolved)
    _uv("pip", "install", "--python", folder, "--no-deps", "--editable", ROOT)
    return folder / "bin" / "python"


def _uv(*words: str | Path) -> None:
    command = [Path(sys.executable).with_name("uv"), "--quiet", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def run(python: Path, one: VersionSet, arguments: list[str]) -> bool:
    """Run the tests of a set, print its line, and return whether they passed."""
    log, began = PLACE / f"{one.name}.log", time.monotonic()
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *one.pytest, *arguments]
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
    said = log.read_text(encoding="utf-8").strip().splitlines()
    status = "passed" if done.returncode == 0 else "FAILED"
    print(f"{one.name:17} {status}  {time.monotonic() - began:5.0f} s  {said[-1] if said else ''}", flush=True)
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    """Test the named sets, or all; what follows -- is for pytest. Return how many failed."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, given = arguments[:split], arguments[split + 1 :]
    unknown = set(names) - {one.name for one in SETS}
    if unknown:
        print(f"Expected {', '.join(one.name for one in SETS)}, got {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    PLACE.mkdir(exist_ok=True)
    return sum(not run(install(one), one, given) for one in SETS if not names or one.name in names)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 2))
