"""The two folders of a locally private run: the client's, for the users, and the server's.

    runs/a/client   settings.toml  path.safetensors  ledger.jsonl  [tokenizer/  encoder.json  encoder.safetensors]
    runs/a/server   settings.toml  head.safetensors

A client with the built-in encoder stores only its name; any other encoder is stored in the folder. The client's folder
has no head, and the server's has neither encoder nor tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discreet.core.errors import ModelError, first_line, setting
from discreet.core.settings import read
from discreet.core.task import HasClasses, Task

CLIENT, SERVER = "client", "server"
SETTINGS, PATH, HEAD, LEDGER = "settings.toml", "path.safetensors", "head.safetensors", "ledger.jsonl"
_FORMAT = 2


@dataclass(frozen=True)
class ClientSettings(HasClasses):
    """Settings of the user's side, `settings.toml` in its folder; all of them are public."""

    encoder: str
    pooling: str
    max_length: int
    position: str
    pairs: bool
    mechanism: str
    dimension: int
    width: int
    strength: float
    clip_norm: float
    bound_norm: float
    epsilon: float
    delta: float
    queries: int
    learned_from: str
    public: bool
    reason: str | None = None
    task: Task = Task.CLASSIFICATION
    classes: tuple[str, ...] = ()
    format: int = _FORMAT


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server's side, `settings.toml` in its folder."""

    width: int
    task: Task
    classes: tuple[str, ...]
    head: str = "linear"
    hidden: tuple[int, ...] = ()
    about: str = ""
    format: int = _FORMAT


def read_side(kind: type[Any], folder: Path, side: str) -> Any:
    """Return the settings of one side from its folder, or say where it is."""
    own = HEAD if side == "server" else PATH
    if not all((folder / name).is_file() for name in (SETTINGS, own)):
        remedy = f"Train with {setting('protect', 'ldp')} and {setting('out', 'runs/a')}: that writes runs/a/{side}."
        for near in (folder / side, folder.parent / side):
            if (near / own).is_file():
                remedy = f"Did you mean {str(near)!r}?"
        raise ModelError(f"Expected the {side}'s folder of a locally private run at {str(folder)!r}. {remedy}")
    return read(kind, folder / SETTINGS)


def damaged(folder: Path, error: Exception) -> ModelError:
    """Return the error of a folder that is not complete."""
    return ModelError(f"Expected a complete folder at {str(folder)!r}. {first_line(error)} Train it again.")
