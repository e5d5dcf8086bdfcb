"""Builds the wheel, checks what is in it, and runs the README's first commands from it in a clean environment.

`make test-wheel`. The environment has no extra and the versions of constraints.txt; the commands run in another folder
than the checkout, so that whatever the wheel lacks is missed. They may print nothing that is not ours.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".test-wheel"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
FOREIGN = re.compile(r"\.py:\d+|nanobind|leaked|Traceback|[A-Za-z]*Warning\b|WARNING|deprecated")


def build() -> Path:
    """Build the wheel and return its path."""
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", PLACE, ROOT], check=True)
    (wheel,) = PLACE.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Fail unless the wheel holds every file of the package, the example plug-ins, its license, and nothing else."""
    about = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    meta = {f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in (source / "discreet").rglob("*") if path.is_file()}
    examples = ROOT / "examples" / "extension"
    files |= {
        f"discreet/examples/extension/{path.relative_to(examples)}" for path in examples.rglob("*") if path.is_file()
    }
    wanted = meta | {name for name in files if "__pycache__" not in name}
    held = set(zipfile.ZipFile(wheel).namelist())
    if held != wanted:
        sys.exit(f"{wheel.name} lacks {sorted(wanted - held)} and should not hold {sorted(held - wanted)}.")
    if "discreet/py.typed" not in held:
        sys.exit(f"{wheel.name} lacks py.typed.")


def install(wheel: Path) -> Path:
    """Install the wheel without extras into a clean environment and return the folder of its commands."""
    folder = PLACE / "environment"
    venv.create(folder)
    pip = (*PIP, "--python", folder)
    subprocess.run([*pip, "install", "--no-compile", "--constraint", ROOT / "constraints.txt", wheel], check=True)
    subprocess.run([*pip, "check"], check=True)
    return folder / "bin"


def first_commands() -> list[str]:
    """Return the README's first commands, without those that take minutes or need files of the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("## On the command line", 1)[1].split("```")[1].split("\n\n")[0]
    commands = ["discreet --help", *(line.split("#")[0].strip() for line in block.splitlines() if line)]
    return [one for one in commands if "examples/" not in one and ("--out" not in one or "runs/private" in one)]


def run(commands: list[str], programs: Path) -> None:
    """Run commands in an empty folder; fail at the first that fails or prints what is not ours."""
    with tempfile.TemporaryDirectory() as folder:
        homes = {"HOME": folder, "DISCREET_HOME": f"{folder}/home", "DISCREET_CACHE": f"{folder}/cache"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment = kept | homes | {"PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "2"}
        for command in commands:
            began = time.monotonic()
            words = ["bash", "-c", f"set -o pipefail; {command}"]
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode or not done.stdout or FOREIGN.search(done.stdout + done.stderr):
                sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
            print(f"{time.monotonic() - began:5.0f} s  {command}", flush=True)


def main() -> None:
    """Test the wheel."""
    shutil.rmtree(PLACE, ignore_errors=True)
    began = time.monotonic()
    wheel = build()
    check_contents(wheel)
    commands = first_commands()
    if len(commands) < 6:
        sys.exit(f"Expected the README's first commands, found only {commands}.")
    programs = install(wheel)
    print(f"{time.monotonic() - began:5.0f} s  build and install {wheel.name}", flush=True)
    run(commands, programs)
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
