"""Checkpoints: everything a stopped training run needs to end with the weights of an uninterrupted one.

Batches, dropout and noise are functions of the step, so the trained weights, the optimizer state and the number of the
next step are sufficient. A checkpoint is one safetensors file, replaced atomically.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discreet.accounting.ledger import Ledger
from discreet.core.device import autocast
from discreet.core.errors import ModelError, setting
from discreet.core.files import load_tensors, save_tensors
from discreet.core.randomness import NOISE_FORMAT, Rng, digest
from discreet.data.batches import Tokens, Vectors
from discreet.models.base import TextModel
from discreet.models.settings import TrainSettings

NAME = "checkpoint.safetensors"
LEDGER = "ledger.jsonl"
PUBLIC_START = "public_start.safetensors"  # the weights after training on public text
PUBLIC = "public_start.unfinished"  # the folder of training on public text, while it is unfinished
FORMAT = 4  # 3: fewer settings; 1 and 2: noise was assigned to parameters in another order; 1: other splits
_NAME_DIGITS = 16  # hexadecimal digits of the name of a training run in its ledger


@dataclass(frozen=True)
class Progress:
    """Progress of a training run, without its weights."""

    step: int = 0
    epoch: int = 0
    best: float | None = None
    stale: int = 0
    seconds: float = 0.0
    history: tuple[dict[str, Any], ...] = ()
    best_weights: dict[str, Tensor] = field(default_factory=dict, repr=False)
    averaged: dict[str, Tensor] = field(default_factory=dict, repr=False)
    audit: dict[str, Tensor] = field(default_factory=dict, repr=False)  # what an audit has read so far
    layout: dict[str, Any] | None = None  # how batches are divided into parts, if that depends on the machine


def save(folder: Path, identity: str, model: nn.Module, optimizer: torch.optim.Optimizer, at: Progress) -> None:
    """Write a checkpoint atomically."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for name, parameter in trained(model).items():
        tensors[f"weight.{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"state.{key}.{name}"] = value
            else:
                numbers[f"{key}.{name}"] = value
    tensors |= {f"best.{name}": value for name, value in at.best_weights.items()}
    tensors |= {f"averaged.{name}": value for name, value in at.averaged.items()}
    tensors |= {f"audit.{name}": value for name, value in at.audit.items()}
    about = {
        "format": FORMAT,
        "identity": identity,
        "step": at.step,
        "epoch": at.epoch,
        "best": at.best,
        "stale": at.stale,
        "seconds": at.seconds,
        "history": list(at.history),
        "numbers": numbers,
        "threads": torch.get_num_threads(),
        "layout": at.layout,
    }
    save_tensors(tensors, folder / NAME, {"progress": json.dumps(about)})


def load(folder: Path, identity: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Load a checkpoint into a model and its optimizer, and return its progress."""
    path = folder / NAME
    if not path.exists():
        return Progress()
    tensors, metadata = load_tensors(path)
    about = _check_format(folder, json.loads(metadata["progress"]))
    if about["identity"] != identity:
        raise changed(folder)
    if _device(model).type == "cpu":
        torch.set_num_threads(about["threads"])  # the rounding of sums depends on the number of threads
    for name, parameter in trained(model).items():
        parameter.data.copy_(tensors[f"weight.{name}"])
        state: dict[str, Any] = {}
        for key in [k for k in tensors if k.startswith("state.") and k.split(".", 2)[2] == name]:
            value = tensors[key]
            # Fused optimizers keep their step counters on the device.
            state[key.split(".", 2)[1]] = value.to(parameter.device)
        for key in [k for k in about["numbers"] if k.split(".", 1)[1] == name]:
            state[key.split(".", 1)[0]] = about["numbers"][key]
        if state:
            optimizer.state[parameter] = state
    best, averaged, audit = (
        {name.removeprefix(kind): t.to(_device(model)) for name, t in tensors.items() if name.startswith(kind)}
        for kind in ("best.", "averaged.", "audit.")
    )
    return Progress(
        **{name: about[name] for name in ("step", "epoch", "best", "stale", "seconds")},
        history=tuple(about["history"]),
        best_weights=best,
        averaged=averaged,
        audit=audit,
        layout=about.get("layout"),
    )


def changed(folder: Path) -> ModelError:
    """Return the error for an unfinished run that is resumed with other settings or data."""
    return ModelError(
        f"Expected the settings and data with which {str(folder)!r} was started, but something has changed. "
        "Resume with the same command, or delete the folder and begin again."
    )


def identity(
    model: TextModel, rows: Tokens | Vectors, settings: TrainSettings, step: object, rng: Rng, start: str
) -> str:
    """Return a hash of everything that determines the result of a training run; resumes and ledgers name the run by it.

    `start` is the hash of the initial weights (`weights_digest`), taken before anything changes them: the same secret
    on other weights is another training run, with its own noise and its own cost.
    """
    with autocast(model.device, settings.precision) as cast:
        format_used = (model.device.type, cast.fast_dtype if torch.is_autocast_enabled(model.device.type) else None)
    about = (settings, step, model.settings, model.label_names, model.fingerprint, format_used, rng, start)
    return digest(NOISE_FORMAT, about, columns_of(rows), rows.targets)


def columns_of(rows: Tokens | Vectors) -> dict[str, Tensor]:
    """Return the tensors that rows consist of, without their targets."""
    return dict(rows.columns) if isinstance(rows, Tokens) else {"vectors": rows.vectors}


def spend_name(identity: str, secret: Rng, ledger: Ledger) -> str:
    """Return the name under which the spends of a training run are recorded, which reveals nothing about its data.

    The identity contains the secret source, which nobody can guess. With a fixed seed, anyone who guesses the corpus
    could compute the identity and confirm the guess, so it is hashed with a key that only the open ledger or the
    unfinished run holds.
    """
    if secret.is_secret:
        return identity[:_NAME_DIGITS]
    return hashlib.blake2b(identity.encode(), key=ledger.key, digest_size=_NAME_DIGITS // 2).hexdigest()


def check_format(folder: Path) -> None:
    """Reject an unfinished run of another version, before anything in it is opened or changed."""
    path = folder / NAME
    try:
        about = json.loads(load_tensors(path)[1]["progress"]) if path.exists() else {"format": FORMAT}
    except (ModelError, KeyError, ValueError):
        return  # a damaged one is rejected when it is loaded
    _check_format(folder, about)


def _check_format(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    version = about.get("format", 1)
    if version != FORMAT:
        raise ModelError(
            f"Expected an unfinished run of format {FORMAT} in {str(folder)!r}, got format {version}. It was started "
            f"by {'an earlier' if version < FORMAT else 'a later'} version with other settings, splits or noise, so it "
            "cannot be resumed with the same result. Resume it with the version that started it, or train again with "
            f"another {setting('out')}. The spends in its ledger stay recorded."
        )
    return about


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable weights by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the trainable weights."""
    return {name: p.detach().clone() for name, p in trained(model).items()}


def restore_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Restore the trainable weights from copies."""
    for name, parameter in trained(model).items():
        parameter.data.copy_(weights[name])


def blend(averaged: dict[str, Tensor], model: nn.Module, step: int, share: float) -> None:
    """Update the moving average of the weights; its decay grows from 0 to `share`."""
    weights = trained(model)
    weight = 1 - min(share, step / (step + 10))
    with torch.no_grad():
        torch._foreach_lerp_(list(averaged.values()), [weights[name].detach() for name in averaged], weight)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
