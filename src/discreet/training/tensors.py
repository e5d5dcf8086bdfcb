"""Tensors on disk as safetensors, whole or not at all; a full disk or a damaged file is said in a sentence."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from discreet.core.errors import ModelError, OutputError, setting
from discreet.core.files import atomic_path


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a file, synced and under its name only when it is whole."""
    try:
        with atomic_path(path) as temporary:
            held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(held, temporary, metadata=metadata)
            with temporary.open("r+b") as file:
                _sort_metadata(file)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from None


def _sort_metadata(file: IO[bytes]) -> None:
    """Put what is said about tensors into alphabetical order; the library writes it in another order each time.

    A file begins with the length of its header, then the header: JSON, which may end in spaces.
    """
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    if "__metadata__" not in header:
        return
    said = dict(sorted(header.pop("__metadata__").items()))
    text = json.dumps({"__metadata__": said, **header}, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) <= length:
        file.seek(8)
        file.write(text.ljust(length))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file, on the CPU, and what is said about them."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"Expected whole tensors in {str(path)!r}. {error}. Delete the file and make it anew."
        ) from None


def cannot_write(path: Path, error: Exception) -> OutputError:
    """Return the error for a place that cannot be written to."""
    full = (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space" in str(error)
    said = error.strerror if isinstance(error, OSError) else str(error)
    remedy = (
        f"Free some space, then resume ({setting('resume', True)})" if full else "Check the path and your rights to it"
    )
    return OutputError(f"Expected to be able to write {str(path)!r}. {said}. {remedy}.")
