"""The law of every mechanism: no set of outcomes tells two neighbours apart better than the event says.

For the worst neighbours and the best set S, found from the exact likelihood ratio, a million draws on each side give an
interval for P[S] - e^epsilon P'[S]. Its lower end must not exceed the delta of the mechanism's own event, and for a
twin with half the noise, which claims the same, it must.
"""

import dataclasses
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import betaincinv, gammaln, hyp0f1

import discreet.mechanisms
from discreet import Adjacency, Rng
from discreet.accounting.losses import curve_of
from discreet.mechanisms import word_metric
from discreet.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.laplace import L2Laplace, Laplace
from discreet.mechanisms.normals import NormalSource
from discreet.mechanisms.priv_unit import PrivUnit
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.mechanisms.word_metric import WordChoice, WordNoise

DRAWS = 1_000_000
BATCH = 125_000
# Just below the largest loss of a pure mechanism, so that rounding does not empty the best set.
EDGE = 1 - 1e-9

Loss = Callable[[Any, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A mechanism, its twin with half the noise, two neighbours, and the log of the ratio of their densities."""

    mechanism: Any
    twin: Any
    here: np.ndarray
    there: np.ndarray
    loss: Loss
    epsilon: float = 1.0
    adjacency: Adjacency = Adjacency.REPLACE_ONE


def laplace_loss(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (np.abs(z - b) - np.abs(z - a)).sum(-1) / m.scale


def l2_laplace_loss(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (np.linalg.norm(z - b, axis=-1) - np.linalg.norm(z - a, axis=-1)) / m.scale


def gaussian_loss(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (((z - b) ** 2).sum(-1) - ((z - a) ** 2).sum(-1)) / (2 * m.std**2)


def on_grid(loss: Loss) -> Loss:
    def rounded(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return loss(m, z, np.rint(a / m.grid) * m.grid, np.rint(b / m.grid) * m.grid)

    return rounded


def vmf_loss(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    constant = math.log(hyp0f1(m.dimension / 2, m.kappa**2 / 4))

    def above_uniform(x: np.ndarray) -> np.ndarray:
        length = np.linalg.norm(x)
        return m.kappa * (z @ (x / length)) - constant if length else np.zeros(len(z))

    return above_uniform(a) - above_uniform(b)


def priv_unit_loss(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    cap = m.cap
    mass = math.exp(cap.log_mass)

    def log_density(x: np.ndarray) -> np.ndarray:
        inside = cap.mean * (z @ x) >= cap.height
        return np.where(inside, math.log(cap.truth / mass), math.log((1 - cap.truth) / (1 - mass)))

    return log_density(a) - log_density(b)


def response_loss(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    unlikely = (1 - m.truth) / (m.categories - 1)
    return np.log(np.where(z == a, m.truth, unlikely)) - np.log(np.where(z == b, m.truth, unlikely))


def word_noise_loss(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    place = m.embeddings[:, 0]
    assert m.embeddings.shape[1] == 1
    assert (np.diff(place) > 0).all()
    edges = np.concatenate([[-np.inf], (place[1:] + place[:-1]) / 2, [np.inf]])

    def log_share(word: int) -> np.ndarray:
        gap = m.epsilon * (edges - place[word])
        below = np.where(gap < 0, np.exp(np.minimum(gap, 0)) / 2, 1 - np.exp(-np.maximum(gap, 0)) / 2)
        return np.log(np.diff(below))

    return (log_share(int(a)) - log_share(int(b)))[z]


def word_choice_loss(m: Any, z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    def log_share(word: int) -> np.ndarray:
        score = -m.epsilon / 2 * np.linalg.norm(m.embeddings - m.embeddings[word], axis=1)
        return score - np.log(np.exp(score).sum())

    return (log_share(int(a)) - log_share(int(b)))[z]


def twin_response(m: RandomizedResponse) -> RandomizedResponse:
    lie = (1 - m.truth) / 2
    return RandomizedResponse(math.log((1 - lie) * (m.categories - 1) / lie), m.categories)


def unit(dimension: int, sign: float = 1.0) -> np.ndarray:
    x = np.zeros(dimension)
    x[-1] = sign
    return x


def halved(mechanism: Any, **changes: float) -> Any:
    return dataclasses.replace(mechanism, **changes)


def cases() -> dict[str, Case]:
    book: dict[str, Case] = {}
    for k in (2, 7):
        response = RandomizedResponse(1.0, k)
        book[f"randomized response, {k} categories"] = Case(
            response, twin_response(response), np.array(0), np.array(k - 1), response_loss
        )
    laplace = Laplace.for_epsilon(1.0, sensitivity=3.0)
    twin = halved(laplace, scale=laplace.scale / 2)
    book["Laplace"] = Case(laplace, twin, np.zeros(1), np.full(1, 3.0), laplace_loss)
    book["Laplace, 4 coordinates"] = Case(laplace, twin, np.zeros(4), np.full(4, 0.75), laplace_loss)
    for d in (2, 12):
        l2 = L2Laplace.for_epsilon(1.0, sensitivity=2.0, dimension=d)
        book[f"L2 Laplace, {d} coordinates"] = Case(
            l2, halved(l2, scale=l2.scale / 2), unit(d), unit(d, -1.0), l2_laplace_loss
        )
    for d in (1, 8):
        gaussian = Gaussian.for_budget(1.0, 1e-3, sensitivity=2.0)
        shift = np.full(d, 2.0 / math.sqrt(d))
        book[f"Gaussian, {d} coordinates"] = Case(
            gaussian, halved(gaussian, std=gaussian.std / 2), np.zeros(d), shift, gaussian_loss
        )
    for d, kappa in ((2, 0.5), (3, 0.5), (3, 0.75), (24, 1.5)):
        vmf = VonMisesFisher(kappa, d)
        book[f"von Mises-Fisher, d = {d}, kappa = {kappa}"] = Case(
            vmf, VonMisesFisher(2 * kappa, d), unit(d), unit(d, -1.0), vmf_loss
        )
    vmf = VonMisesFisher(2.0, 8)
    book["von Mises-Fisher against a row of zeros"] = Case(
        vmf, VonMisesFisher(4.0, 8), unit(8), np.zeros(8), vmf_loss, adjacency=Adjacency.ZERO_OUT
    )
    book["a row of zeros against von Mises-Fisher"] = Case(
        vmf, VonMisesFisher(4.0, 8), np.zeros(8), unit(8), vmf_loss, adjacency=Adjacency.ZERO_OUT
    )
    for d in (2, 16):
        book[f"PrivUnit, d = {d}"] = Case(PrivUnit(1.0, d), PrivUnit(2.0, d), unit(d), unit(d, -1.0), priv_unit_loss)
    line = np.array([[0.0], [0.3], [0.7], [1.0]])
    book["word noise"] = Case(WordNoise(1.0, line), WordNoise(2.0, line), np.array(0), np.array(3), word_noise_loss)
    plane = np.array([[0.0, 0.0], [0.6, 0.8], [0.5, 0.4]])
    book["word choice"] = Case(
        WordChoice(1.0, plane), WordChoice(2.0, plane), np.array(0), np.array(1), word_choice_loss
    )
    count = DiscreteLaplace.for_epsilon(1.0, sensitivity=2, on_grid=True)
    book["discrete Laplace on counts"] = Case(
        count, halved(count, scale=count.scale / 2), np.zeros(1), np.full(1, 2.0), on_grid(laplace_loss)
    )
    # A hair on either side of the middle between two grid points: rounding moves these neighbours a whole step apart.
    fine = DiscreteLaplace.for_epsilon(1.0, sensitivity=0.501, grid=0.25, dimension=2)
    book["discrete Laplace, rounding"] = Case(
        fine,
        halved(fine, scale=fine.scale / 2),
        np.full(2, -0.1251),
        np.full(2, 0.1251),
        on_grid(laplace_loss),
    )
    number = DiscreteGaussian.for_budget(1.0, 1e-3, sensitivity=1.0, on_grid=True)
    book["discrete Gaussian on counts"] = Case(
        number, halved(number, std=number.std / 2), np.zeros(1), np.ones(1), on_grid(gaussian_loss)
    )
    vector = DiscreteGaussian.for_budget(1.0, 1e-3, sensitivity=0.501, grid=0.25, dimension=4)
    book["discrete Gaussian, rounding"] = Case(
        vector,
        halved(vector, std=vector.std / 2),
        np.full(4, -0.1251),
        np.full(4, 0.1251),
        on_grid(gaussian_loss),
    )
    return book


BOOK = cases()


@pytest.fixture(autouse=True)
def large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let word noise draw for many words at a time: a vocabulary of four needs no small blocks."""
    monkeypatch.setattr(word_metric, "_NOISE_BLOCK", BATCH)


def hits(case: Case, mechanism: Any, truth: np.ndarray, epsilons: list[float], rng: Rng) -> list[int]:
    """Count how often the release from `truth` lies in the best set for telling `here` from `there`."""
    found = np.zeros(len(epsilons), dtype=int)
    rows = np.broadcast_to(truth, (BATCH, *truth.shape)).copy()
    for i in range(DRAWS // BATCH):
        loss = case.loss(mechanism, mechanism(rows, rng.fork(i)), case.here, case.there)
        found += [int((loss >= epsilon * EDGE).sum()) for epsilon in epsilons]
    return found.tolist()


def least_deltas(case: Case, mechanism: Any, epsilons: list[float], rng: Rng) -> list[float]:
    """Return the lower end of the 99.9% interval of P[S] - e^epsilon P'[S] at each epsilon."""
    here = hits(case, mechanism, case.here, epsilons, rng.fork("here"))
    there = hits(case, mechanism, case.there, epsilons, rng.fork("there"))
    found = []
    for epsilon, k, other in zip(epsilons, here, there, strict=True):
        low = betaincinv(k, DRAWS - k + 1, 0.0005) if k else 0.0
        high = betaincinv(other + 1, DRAWS - other, 0.9995) if other < DRAWS else 1.0
        found.append(float(low - math.exp(epsilon) * high))
    return found


@pytest.mark.parametrize("name", BOOK)
def test_no_set_of_outcomes_tells_neighbours_apart_better_than_the_event_says(name: str) -> None:
    case = BOOK[name]
    curve = curve_of(case.mechanism.event, case.adjacency)
    epsilons = [case.epsilon, case.epsilon / 2]
    for epsilon, low in zip(epsilons, least_deltas(case, case.mechanism, epsilons, Rng(20)), strict=True):
        assert low <= curve.delta(epsilon)


@pytest.mark.parametrize("name", [name for name, case in BOOK.items() if case.here.size <= 3])
def test_the_law_holds_with_noise_from_the_operating_system(name: str) -> None:
    case = BOOK[name]
    (low,) = least_deltas(case, case.mechanism, [case.epsilon], Rng.secure())
    # Not repeatable, so the interval is widened to fail by chance less than once in a million runs.
    assert low <= curve_of(case.mechanism.event, case.adjacency).delta(case.epsilon) + 2e-3


@pytest.mark.parametrize("name", BOOK)
def test_half_the_noise_is_caught(name: str) -> None:
    case = BOOK[name]
    claimed = curve_of(case.mechanism.event, case.adjacency).delta(case.epsilon)
    assert claimed < 0.1
    (low,) = least_deltas(case, case.twin, [case.epsilon], Rng(21))
    assert low > claimed


def mechanism_classes() -> set[type]:
    found = set()
    for info in pkgutil.iter_modules(discreet.mechanisms.__path__):
        module = importlib.import_module(f"discreet.mechanisms.{info.name}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if name.startswith("_"):
                continue  # what two mechanisms share is not one itself
            if dataclasses.is_dataclass(kind) and hasattr(kind, "event") and kind.__module__ == module.__name__:
                found.add(kind)
    return found


def test_the_book_holds_every_mechanism() -> None:
    assert mechanism_classes() == {type(case.mechanism) for case in BOOK.values()}


@pytest.mark.parametrize("name", BOOK)
def test_the_same_source_gives_the_same_release_in_kind_and_leaves_its_input_alone(name: str) -> None:
    case = BOOK[name]
    rows = np.broadcast_to(case.here, (5, *case.here.shape)).copy()
    first, again = case.mechanism(rows, Rng(3)), case.mechanism(rows, Rng(3))
    as_torch = case.mechanism(torch.from_numpy(rows), Rng(3))
    assert isinstance(first, np.ndarray)
    assert isinstance(as_torch, torch.Tensor)
    assert first.dtype == rows.dtype
    assert first.shape == rows.shape
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, as_torch.numpy())
    np.testing.assert_array_equal(rows, np.broadcast_to(case.here, rows.shape))
    source = Rng(3)
    many = np.broadcast_to(case.here, (200, *case.here.shape)).copy()
    assert not np.array_equal(case.mechanism(many, source), case.mechanism(many, source))


@pytest.mark.parametrize("name", BOOK)
def test_a_secure_source_never_repeats_a_release(name: str) -> None:
    case = BOOK[name]
    rows = np.broadcast_to(case.here, (500, *case.here.shape)).copy()
    assert not np.array_equal(case.mechanism(rows, Rng.secure()), case.mechanism(rows, Rng.secure()))


@pytest.mark.parametrize("kind", sorted(mechanism_classes(), key=lambda k: k.__name__), ids=lambda k: k.__name__)
def test_every_mechanism_is_frozen_and_states_its_guarantee(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "Guarantee:" in (kind.__doc__ or "")
    assert "Paper:" in (kind.__doc__ or "")


def test_the_l2_laplace_length_is_a_gamma_variable() -> None:
    # The law above cannot see the radius of high-dimensional noise: the density is exp(-r / scale) r^(d - 1).
    d, scale = 12, 2.0
    z = L2Laplace(scale, d)(np.zeros((200_000, d)), Rng(5))
    r = np.linalg.norm(z, axis=1)
    assert abs(r.mean() - d * scale) < 5 * scale * math.sqrt(d / len(r))
    grid = np.linspace(0, 80, 4001)
    density = np.exp((d - 1) * np.log(np.maximum(grid, 1e-12)) - grid / scale - gammaln(d) - d * math.log(scale))
    cdf = np.cumsum(density) * (grid[1] - grid[0])
    assert np.abs(np.searchsorted(np.sort(r), grid) / len(r) - cdf).max() < 0.006


@pytest.mark.parametrize("dimension", [768, 5_000, 100_000])
def test_a_direction_draws_about_as_many_random_numbers_as_it_has_coordinates(
    dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cost is that of its normal numbers; benchmarks/von_mises_fisher.py measures the times."""
    x = torch.randn(4, dimension, generator=torch.Generator().manual_seed(1))
    drawn: list[int] = []
    fill = NormalSource._fill

    def counted(source: NormalSource, out: Any, number: int, block: int) -> None:
        drawn.append(len(out))
        fill(source, out, number, block)

    monkeypatch.setattr(NormalSource, "_fill", counted)
    VonMisesFisher(1000.0, dimension)(x, Rng(1))
    assert x.numel() <= sum(drawn) <= 2.5 * x.numel()
