import math

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Rng
from discreet.mechanisms.integers import draw_by_cost, exponentials


class Words(Rng):
    """A source whose words are given, one call after the other."""

    def __init__(self, *calls: list[int]) -> None:
        super().__init__(0)
        self.calls = list(calls)

    def words(self, count: int) -> np.ndarray:
        found = np.array(self.calls.pop(0), dtype=np.uint64)
        assert len(found) == count
        return found


@pytest.mark.parametrize("rng", [Rng(3), Rng.secure()], ids=["seeded", "secure"])
def test_options_are_drawn_by_their_weights_row_by_row(rng: Rng) -> None:
    costs = torch.tensor([[0.0, 1.0, 2.5, 30.0], [3.0, 0.0, 0.2, 40.0]], dtype=torch.float64)
    which = np.tile([0, 1, 1], 40_000)
    drawn = draw_by_cost(costs, which, rng)
    for row in (0, 1):
        weight = np.exp(-costs[row].numpy())[:3]
        counts = np.bincount(drawn[which == row], minlength=4)
        assert counts[3] == 0
        assert stats.chisquare(counts[:3], weight / weight.sum() * counts.sum()).pvalue > 1e-6


@pytest.mark.parametrize("cost", [30.0, 60.0, 500.0, 2000.0])
def test_an_option_of_the_smallest_weight_can_be_drawn(cost: float) -> None:
    """With 53 bits a weight below 2^-53 of the whole was never drawn."""
    costs = torch.tensor([[0.0, cost]], dtype=torch.float64)
    proposal = 2**40 + 1 + math.floor(math.exp(-cost) * 2**40)  # the last of the numbers that propose the second option
    zeros = int((cost - 40 * math.log(2) + 1) / (64 * math.log(2)) + 1)
    accepted = Words([proposal], *[[0]] * zeros, [1], [0])
    assert draw_by_cost(costs, np.array([0]), accepted).tolist() == [1]
    # proposed, not accepted, and drawn again: the first option
    rejected = Words([proposal], [2**64 - 1], [0], [5], [2**63], [0])
    assert draw_by_cost(costs, np.array([0]), rejected).tolist() == [0]


def test_exponential_numbers_go_on_where_64_bits_end() -> None:
    assert stats.kstest(exponentials(50_000, Rng(2)), "expon").pvalue > 1e-3
    assert exponentials(1, Words([0], [0], [1], [0]))[0] == pytest.approx(192 * math.log(2))
