"""Install a package without a network or a build tool: its wheel is written by hand, and pip installs it.

site = installed(Path("examples/extension"), tmp_path)   # a folder for PYTHONPATH
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "extension"


def wheel_of(folder: Path, into: Path) -> Path:
    """Return the wheel of a package of Python files whose `pyproject.toml` says the rest."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = str(project["name"]).replace("-", "_"), project["version"]
    about = f"{name}-{version}.dist-info"
    files = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in sorted(folder.glob("*/**/*.py"))
    }
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    files |= {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": points,
    }
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"])
    wheel = into / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel


def installed(folder: Path, into: Path) -> Path:
    """Install a package with pip and return the folder that it is in."""
    into.mkdir(parents=True, exist_ok=True)
    site = into / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(site), str(wheel_of(folder, into))], check=True)
    return site


def written(folder: Path, name: str, module: str, points: dict[str, dict[str, str]], version: str = "1.0") -> Path:
    """Write a package of one module, and return its folder; `points` are its entry points by group."""
    package = name.replace("-", "_")
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(module, encoding="utf-8")
    groups = "".join(
        f'\n[project.entry-points."{group}"]\n' + "".join(f'{key} = "{value}"\n' for key, value in entries.items())
        for group, entries in points.items()
    )
    about = f'[project]\nname = "{name}"\nversion = "{version}"\n'
    (folder / "pyproject.toml").write_text(about + groups, encoding="utf-8")
    return folder
