"""A hash of everything that decides a draw of noise and what is released under it.

Two releases with the same noise must never count as one unless they are the same release. So the name of a spend is a
hash of settings, data, weights and secret, taken from the values themselves: a `repr` leaves out what it does not show,
such as the tensors of a projection.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from discreet.core.randomness import Rng

NOISE_FORMAT = 2  # how noise is drawn from a secret; a change of it is a change of every release


def digest(*values: Any) -> str:
    """Return a SHA-256 of values as hexadecimal digits: settings, texts, arrays, tensors, models and sources.

    >>> digest(("a", "b")) == digest(("a", "b")), digest(("a", "b")) == digest(("ab", "")), digest(1) == digest(1.0)
    (True, False, False)
    """
    found = hashlib.sha256()
    _add(found, values)
    return found.hexdigest()


def weights(model: nn.Module, *, leave_out: str | None = None) -> str:
    """Return a SHA-256 of all parameters and buffers of a model, trained or not; `leave_out` is a part by its name."""
    named = chain(model.named_parameters(), model.named_buffers())
    tensors = {name: value for name, value in named if leave_out is None or not name.startswith(f"{leave_out}.")}
    return digest({name: (value.requires_grad, value.detach()) for name, value in tensors.items()})


def _add(found: Any, value: Any) -> None:
    """Add a value with its type and its size, so that no two different values give the same bytes."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        _put(found, f"tensor {plain.dtype} {tuple(plain.shape)}", plain.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray):
        _put(found, f"array {value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Rng):
        _add(found, ("rng", value.is_secret, value.fork("identity").words(2).tolist()))
    elif isinstance(value, nn.Module):
        _add(found, (type(value).__qualname__, weights(value)))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        _add(found, (type(value).__qualname__, {each.name: getattr(value, each.name) for each in fields}))
    elif isinstance(value, Mapping):
        _put(found, f"mapping {len(value)}")
        for key in sorted(value, key=repr):
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, list | tuple):
        _put(found, f"sequence {len(value)}")
        for each in value:
            _add(found, each)
    elif isinstance(value, set | frozenset):
        _put(found, f"set {len(value)}")
        for text in sorted(digest(each) for each in value):
            _put(found, text)
    elif isinstance(value, str | bytes):
        _put(found, type(value).__name__, value.encode() if isinstance(value, str) else value)
    else:
        _put(found, f"{type(value).__qualname__} {value!r}")


def _put(found: Any, kind: str, data: Any = b"") -> None:
    head = f"{kind} {len(data)}".encode()
    found.update(len(head).to_bytes(8, "little") + head)
    found.update(data)
