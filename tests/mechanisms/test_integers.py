import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet import Rng
from discreet.core.errors import SettingError
from discreet.mechanisms import integers


class Prepared(Rng):
    """A source whose words are given, to force the rare cases."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(0)
        self.given = words

    def words(self, count: int) -> np.ndarray:
        taken, self.given = self.given[:count], self.given[count:]
        return np.array(taken, dtype=np.uint64)


def goodness(draws: np.ndarray, mass: dict[int, float]) -> float:
    kept = {k: p for k, p in mass.items() if p * len(draws) > 10}
    observed = [int((draws == k).sum()) for k in kept]
    expected = [p * len(draws) for p in kept.values()]
    rest = len(draws) - sum(expected)
    observed.append(len(draws) - sum(observed))
    if rest < 5:
        observed[-2] += observed[-1]
        expected[-1] += rest
        observed.pop()
    else:
        expected.append(rest)
    return float(stats.chisquare(observed, np.array(expected) * sum(observed) / sum(expected)).pvalue)


@pytest.mark.parametrize("rng", [Rng(1), Rng.secure()], ids=["seeded", "secure"])
@pytest.mark.parametrize("scale", [0.3, 1.0, 2.7, 15.0])
def test_discrete_laplace_has_the_exact_mass(scale: float, rng: Rng) -> None:
    draws = integers.discrete_laplace(scale, 200_000, rng)
    mass = {k: math.tanh(1 / (2 * scale)) * math.exp(-abs(k) / scale) for k in range(-300, 301)}
    assert goodness(draws, mass) > 1e-5


@pytest.mark.parametrize("rng", [Rng(2), Rng.secure()], ids=["seeded", "secure"])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.7, 15.0])
def test_discrete_gaussian_has_the_exact_mass(sigma: float, rng: Rng) -> None:
    draws = integers.discrete_gaussian(sigma, 200_000, rng)
    weight = {k: math.exp(-(k**2) / (2 * sigma**2)) for k in range(-300, 301)}
    total = sum(weight.values())
    assert goodness(draws, {k: w / total for k, w in weight.items()}) > 1e-5


@pytest.mark.parametrize("scale", [1e6, 2.0**39])
def test_wide_noise_has_the_right_shape(scale: float) -> None:
    count = 20_000
    assert stats.kstest(integers.discrete_laplace(scale, count, Rng(3)) / scale, "laplace").pvalue > 1e-3
    assert stats.kstest(integers.discrete_gaussian(scale, count, Rng(4)) / scale, "norm").pvalue > 1e-3


def test_a_million_secure_draws_have_the_right_spread() -> None:
    drawn = integers.discrete_gaussian(1000.5, 1_000_000, Rng.secure())
    assert abs(drawn.mean()) < 8 and abs(drawn.std() - 1000.5) < 6  # eight standard errors of each


def test_slow_and_fast_decisions_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = integers.discrete_gaussian(3.3, 400, Rng(5))
    laplace = integers.discrete_laplace(2.2, 400, Rng(6))
    monkeypatch.setattr(integers, "_RELATIVE", 1.0)
    monkeypatch.setattr(integers, "_ABSOLUTE", 2.0)
    calls = []
    slowly = integers._heads_slowly
    monkeypatch.setattr(integers, "_heads_slowly", lambda *a: calls.append(1) or slowly(*a))
    np.testing.assert_array_equal(integers.discrete_gaussian(3.3, 400, Rng(5)), fast)
    np.testing.assert_array_equal(integers.discrete_laplace(2.2, 400, Rng(6)), laplace)
    assert len(calls) >= 400


def test_a_word_on_the_boundary_takes_more_bits() -> None:
    # P[at least 1] at scale 1 / ln 2 is about one half: the word that straddles it cannot decide alone.
    scale = 1 / math.log(2)
    exact = math.exp(-1 / scale)
    edge = int(exact * 2**64)
    seen = set()
    for extra in (0, 2**64 - 1):
        rng = Prepared([edge, *[extra] * 6])
        seen.add(int(integers.geometric(scale, 1, rng)[0]))
    assert seen <= {0, 1}
    assert int(integers.geometric(scale, 1, Prepared([2**64 - 1, 5, 5]))[0]) == 0
    # A word of zeros alone does not bound the draw; with more bits it does, and the draw is large.
    assert int(integers.geometric(1.0, 1, Prepared([0, 2**63, 7, 7]))[0]) == math.floor(65 * math.log(2))


def test_a_coin_on_the_boundary_takes_more_bits() -> None:
    # exp(-cost) with cost = ln 2 rounded to a fraction: the first 64 bits agree with one half, the next decide.
    cost = Fraction(math.log(2))
    word = 2**63
    low = integers._heads_slowly(word - 1, cost, Prepared([2**64 - 1] * 4))
    high = integers._heads_slowly(word + 2**12, cost, Prepared([0] * 4))
    assert (low, high) == (True, False)
    assert integers._heads_slowly(2**64 - 1, Fraction(0), Prepared([])) is True


def test_the_fast_coin_is_within_its_room() -> None:
    # What floating point says of exp(-cost) differs from the exact value by far less than the room it leaves.
    import decimal

    sigma = 12345.678
    width = math.floor(sigma) + 1
    worst = 0.0
    for y in (0, 1, 999, 12345, 54321, 200_000, 2_000_000):
        gap = y - sigma * sigma / width
        fast = math.exp(-gap * gap / (2 * sigma * sigma))
        exact = (y - Fraction(sigma) ** 2 / width) ** 2 / (2 * Fraction(sigma) ** 2)
        with decimal.localcontext() as context:
            context.prec = 40
            slow = (-decimal.Decimal(exact.numerator) / decimal.Decimal(exact.denominator)).exp()
        worst = max(worst, abs(fast - float(slow)))
    assert worst < integers._ABSOLUTE / 1000


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 2**31, 2**40 + 1])
def test_uniform_whole_numbers_stay_below_the_bound(bound: int) -> None:
    draws = integers.uniform_below(bound, 20_000, Rng(7))
    assert draws.min() >= 0
    assert draws.max() < bound
    if bound <= 10:
        assert stats.chisquare(np.bincount(draws, minlength=bound)).pvalue > 1e-3 if bound > 1 else not draws.any()


def test_surplus_words_are_drawn_again() -> None:
    assert integers.uniform_below(3, 2, Prepared([2**64 - 1, 4, 2**64 - 1, 5])).tolist() == [2, 1]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, 2.0**41])
def test_noise_that_cannot_be_drawn_is_refused(bad: float) -> None:
    for draw in (integers.discrete_gaussian, integers.discrete_laplace):
        with pytest.raises(SettingError, match="grid"):
            draw(bad, 1, Rng(1))
