"""Encrypted sums of the updates of a head."""

import numpy as np
import pytest

from discreet.core.errors import DataError
from discreet.federated.secure_sum.encrypted import EncryptedSum, encrypted_total


def test_the_sum_of_eight_encrypted_heads() -> None:
    length = 2 * 384 * 6 + 2  # two ciphertexts
    clients = EncryptedSum(length)
    updates = np.random.default_rng(0).normal(size=(8, length))
    total = encrypted_total([clients.encrypt(update) for update in updates])
    np.testing.assert_allclose(clients.decrypt(total), updates.sum(0), atol=1e-5)
    assert len(total) == 2


def test_parts_that_do_not_belong_together_are_rejected() -> None:
    clients = EncryptedSum(3)
    one = clients.encrypt([1.0, 2.0, 3.0])
    for wrong in ([one, one + one], [], [one, [b"damaged"]]):
        with pytest.raises(DataError):
            encrypted_total(wrong)
    with pytest.raises(DataError):
        clients.decrypt(one + one)
    with pytest.raises(DataError):
        clients.encrypt([1.0])
