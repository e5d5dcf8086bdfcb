"""The nearest word is the nearest, whatever numbers it was first looked for in."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from discreet.mechanisms import word_metric as word_nearest
from discreet.mechanisms.word_metric import KINDS, NearestWord


def table_of(words: int, width: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(words, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made + 3.0  # away from the origin


def places_of(table: torch.Tensor, count: int, noise: float) -> torch.Tensor:
    make = torch.Generator().manual_seed(1)
    rows = torch.randint(len(table), (count,), generator=make)
    return table[rows] + noise * torch.randn(count, table.shape[1], generator=make, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0, 100.0])
def test_it_is_what_double_precision_finds(kind: torch.dtype, noise: float) -> None:
    table = table_of(3000, 48)
    places = places_of(table, 500, noise)
    near = NearestWord.of(table, kind)
    slow = torch.cdist(places, table, compute_mode="donot_use_mm_for_euclid_dist").argmin(1).numpy()
    assert (near(places) == slow).all()
    assert (near.slowly(places) == slow).all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_words_that_differ_by_less_than_coarse_numbers_show_are_told_apart(kind: torch.dtype) -> None:
    table = table_of(400, 16)
    twins = torch.cat([table, table + 1e-9])  # the same in bfloat16 and in single precision
    places = torch.cat([table + 4e-10, table + 6e-10])
    expected = np.arange(800)
    assert (NearestWord.of(twins, kind)(places) == expected).all()
    assert (twins.to(kind)[:400] == twins.to(kind)[400:]).float().mean() > 0.9


def test_many_possible_words_are_measured_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_nearest, "_EXACT_BLOCK", 7)
    table = table_of(400, 16)
    table[0] *= 1000  # one long word, and what coarse numbers say of the others is worth little
    places = places_of(table[1:], 60, 0.5)
    near = NearestWord.of(table, torch.bfloat16)
    assert (near(places) == near.slowly(places)).all()


def test_of_equally_near_words_the_first_is_taken() -> None:
    table = torch.cat([table_of(50, 8), table_of(50, 8)])
    assert (NearestWord.of(table)(table) == np.tile(np.arange(50), 2)).all()


def test_a_product_worse_than_counted_on_is_noticed_and_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(300, 16)
    near = NearestWord.of(table, torch.float32)
    places = places_of(table, 100, 1.0)
    truth, calls = near.slowly(places), []
    broken = replace(near, coarse=near.coarse + 0.05 * torch.randn_like(near.coarse))
    slowly = NearestWord.slowly
    monkeypatch.setattr(NearestWord, "slowly", lambda self, x: calls.append(1) or slowly(self, x))
    assert (broken(places) == truth).all()
    assert calls == [1]
    assert (near(places) == truth).all()
    assert calls == [1]
