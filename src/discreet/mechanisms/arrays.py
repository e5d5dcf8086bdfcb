"""Conversion between numpy arrays and torch tensors: mechanisms return the type of their input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, invalid, positive

if TYPE_CHECKING:
    import torch


Array = TypeVar("Array", "npt.NDArray[Any]", "torch.Tensor")


def tensor_of(x: Any) -> torch.Tensor:
    """Return a tensor that shares the memory of `x` if possible.

    >>> tensor_of(np.arange(3)).tolist()
    [0, 1, 2]
    """
    import torch

    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, np.ndarray | np.generic):
        array = np.asarray(x)
        if array.dtype.kind in "fiub":
            shared = array.flags.writeable and array.flags.c_contiguous
            return torch.from_numpy(array if shared else array.copy(order="C"))
        raise DataError(f"Expected numbers, got an array of dtype {array.dtype}. Convert it to floats or integers.")
    raise DataError(f"Expected a torch tensor or a numpy array, got {type(x).__name__}. Convert it first.")


def in_kind(result: torch.Tensor, like: Array) -> Array:
    """Return a tensor as the type of array of the input."""
    return result.numpy() if isinstance(like, np.ndarray | np.generic) else result


def floats_of(x: Any) -> torch.Tensor:
    """Return finite floating-point numbers; integers become float64.

    Raises DataError for NaN and infinity, which noise cannot hide.
    """
    import torch

    tensor = tensor_of(x)
    if not tensor.is_floating_point():
        if tensor.is_complex():
            raise DataError("Expected real numbers, got complex ones. Release the real and imaginary parts.")
        return tensor.to(torch.float64)
    if not bool(torch.isfinite(tensor).all()):
        raise DataError("Expected finite values, got NaN or infinity. Clean them first: noise does not hide them.")
    return tensor


def vectors_of(x: Any, dimension: int) -> torch.Tensor:
    """Return floating-point numbers whose last axis is one vector of the stated dimension."""
    tensor = tensor_of(x)
    if tensor.ndim == 0 or tensor.shape[-1] != dimension:
        shape = tuple(tensor.shape)
        raise DataError(f"Expected vectors of dimension {dimension} on the last axis, got shape {shape}.")
    if not tensor.is_floating_point():
        raise DataError(f"Expected floating-point vectors, got {tensor.dtype}. Convert them to float32 or float64.")
    return tensor


def checked_sensitivity(sensitivity: float | None) -> float:
    """Return a sensitivity > 0, or raise SettingError."""
    remedy = "It is the largest change of x by one record; .event is the cost at that distance."
    if sensitivity is None:
        raise invalid("sensitivity", None, "set", remedy)
    return positive("sensitivity", sensitivity, remedy)
