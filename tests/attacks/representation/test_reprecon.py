import numpy as np
import pytest
import torch
from tests.attacks.representation.conftest import WIDTH

from discreet.attacks.representation.reprecon import RepRecon
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, RepresentationRelease

pytestmark = pytest.mark.search

SMALL = {"hidden": 96, "epochs": 30, "batch_size": 32, "rate": 3e-3}


def vectors(rows: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(rows)
    few = torch.randn(rows, 4, generator=source) @ torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    return few * 3  # few directions matter, as in a trained encoder


def masked(rows: torch.Tensor, seed: int) -> torch.Tensor:
    return rows * (torch.randint(2, rows.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1)


def success(attack: RepRecon, hide) -> float:
    plain, index = vectors(600), vectors(60)
    knows = Knowledge(extra={"vectors": index, "pairs": (hide(plain, 1), plain)})
    guess = attack.run(RepresentationRelease(hide(index, 2)), knows, Rng(0))
    assert guess.details["vectors"].shape == index.shape
    return float((np.array(guess.indices) == np.arange(60)).mean())


def test_the_network_rebuilds_what_a_fixed_change_hid() -> None:
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(5)))[0]
    assert success(RepRecon(**SMALL), lambda rows, seed: rows @ turn) > 0.8


def test_masks_defeat_signs_and_not_absolute_values() -> None:
    assert success(RepRecon(**SMALL), masked) < 0.15
    assert success(RepRecon(absolute=True, **SMALL), masked) > 0.7


def test_the_same_seed_gives_the_same_guess() -> None:
    rows = vectors(40)
    knows = Knowledge(extra={"vectors": rows, "pairs": (rows, rows)})
    attack = RepRecon(hidden=16, epochs=2)
    first, second = (attack.run(RepresentationRelease(rows), knows, Rng(3)) for _ in range(2))
    assert first.scores == second.scores


def test_what_cannot_be_used_is_refused() -> None:
    rows = vectors(5)
    with pytest.raises(UnsupportedError, match=r"extra\['pairs'\].*Run the protection on your own text"):
        RepRecon().run(RepresentationRelease(rows), Knowledge(extra={"vectors": rows}), Rng(0))
    with pytest.raises(SettingError, match="of equal length"):
        knows = Knowledge(extra={"vectors": rows, "pairs": (rows, rows[:3])})
        RepRecon().run(RepresentationRelease(rows), knows, Rng(0))
    with pytest.raises(SettingError, match="epochs to be .*, got 0"):
        RepRecon(epochs=0)
