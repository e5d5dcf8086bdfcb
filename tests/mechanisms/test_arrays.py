import numpy as np
import pytest
import torch

from discreet.core.errors import DataError
from discreet.mechanisms.arrays import floats_of, in_kind, tensor_of, vectors_of


def test_read_only_and_strided_arrays_are_copied_not_refused() -> None:
    fixed = np.arange(4.0)
    fixed.flags.writeable = False
    assert tensor_of(fixed).tolist() == [0, 1, 2, 3]
    assert tensor_of(np.arange(6.0)[::-2]).tolist() == [5, 3, 1]
    assert tensor_of(np.float64(2.0)).shape == ()


def test_whole_numbers_become_float64() -> None:
    assert floats_of(np.array([1, 2])).dtype == torch.float64
    assert floats_of(torch.tensor([1.0])).dtype == torch.float32


def test_the_kind_comes_back() -> None:
    assert isinstance(in_kind(torch.ones(2), np.ones(2)), np.ndarray)
    assert isinstance(in_kind(torch.ones(2), torch.ones(2)), torch.Tensor)


@pytest.mark.parametrize("bad", [np.array([1.0, np.nan]), torch.tensor([np.inf]), np.array(["a"]), [1.0], "text", None])
def test_what_is_not_finite_numbers_is_refused(bad: object) -> None:
    with pytest.raises(DataError, match="Expected"):
        floats_of(bad)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="real numbers"):
        floats_of(torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize("bad", [np.ones(4), np.ones((3, 2)), np.array(1.0), np.ones(3, dtype=int)])
def test_vectors_of_another_dimension_or_type_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(DataError, match="Expected"):
        vectors_of(bad, 3)
