"""Write a Flower app: a folder that `flwr run` deploys, with the settings of a federation."""

from __future__ import annotations

from pathlib import Path

from discreet.core.errors import OutputError
from discreet.core.files import write_atomic
from discreet.federated.settings import Federation

PACKAGE = "discreet_federation"
_PROJECT = f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "discreet-federation"
version = "1.0.0"
description = "Federated training with discreet"
license = "Apache-2.0"
dependencies = ["discreet[federated]"]

[tool.hatch.build.targets.wheel]
packages = ["{PACKAGE}"]

[tool.flwr.app]
publisher = "discreet"

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server_app:app"
clientapp = "{PACKAGE}.client_app:app"

[tool.flwr.app.config]
# Folder of the server, for checkpoints, the log and the result. A second run with the same folder resumes.
folder = "server"
"""
_CLIENT = '''"""The client: its text, masks, noise and ledger stay in the folder that its node names."""

from pathlib import Path

from discreet.federated.flower import app_of_file

app = app_of_file(Path(__file__).with_name("federation.toml"))
'''
_SERVER = '''"""The server: it sends weights and sums updates."""

from pathlib import Path

from discreet.federated.flower import server_app

app = server_app(Path(__file__).with_name("federation.toml"))
'''


def write_app(folder: Path, settings: Federation) -> None:
    """Write a Flower app with these settings into a new folder."""
    if folder.exists() and any(folder.iterdir()):
        raise OutputError(f"Expected no files at {str(folder)!r}. Choose another folder, or delete it.")
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    files = {
        folder / "pyproject.toml": _PROJECT,
        package / "__init__.py": '"""A Flower app for federated training with discreet."""\n',
        package / "client_app.py": _CLIENT,
        package / "server_app.py": _SERVER,
        package / "federation.toml": settings.text(),
    }
    for path, text in files.items():
        write_atomic(path, text, private=False)
