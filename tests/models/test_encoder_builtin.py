from pathlib import Path

import pytest

from discreet.core.errors import ModelError
from discreet.models.encoder import MINILM_SHA256, check_sha256, minilm_folder


def test_the_builtin_weights_are_the_known_ones() -> None:
    assert (minilm_folder() / "config.json").exists()


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"other weights")
    with pytest.raises(ModelError, match=f"Expected SHA-256 {MINILM_SHA256}.*reinstall"):
        check_sha256(weights, MINILM_SHA256)
