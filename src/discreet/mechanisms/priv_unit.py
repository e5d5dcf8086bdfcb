"""PrivUnit: an unbiased private estimate of a unit vector at a pure epsilon."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from discreet.core.errors import positive, whole
from discreet.mechanisms.arrays import Array, in_kind, vectors_of
from discreet.mechanisms.cosines import accepted
from discreet.mechanisms.sphere import directions_around

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.core.randomness import FloatGenerator, Rng

Floats = npt.NDArray[np.float64]
Rule = Callable[[Floats], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class Cap:
    """The vectors whose cosine with the true direction is at least `height`, and the parameters of the mechanism.

    `log_mass` is the log of the uniform measure P of the cap, `truth` the probability p of sampling inside it, `mean`
    the mean cosine m of the sample with the true direction, and `lie` is 1 - p without cancellation.
    """

    height: float
    log_mass: float
    truth: float
    mean: float
    lie: float


@dataclass(frozen=True)
class PrivUnit:
    """Release an unbiased estimate of the direction of each row: uniform in a cap around it, or outside, then rescaled.

    The last axis is the vector; its length is discarded and every row is a separate release. With probability p the
    sample V is uniform in the cap {v: <v, u> >= height}, else uniform outside; the release is V / m. A row of zeros has
    no direction and gives a uniform one, whose mean is zero too.

    Guarantee: pure epsilon for each row replaced by any other, exactly. Proof: against the uniform measure the sample
        has density p / P inside the cap of mass P and (1 - p) / (1 - P) outside, and p is chosen so that the first is
        e^epsilon times the second. Two rows have the same two values of the density, so their ratio is at most
        e^epsilon, and it is e^epsilon on the difference of the caps. A row of zeros has density 1, between the two.
        Dividing by the constant m changes nothing. In floating point: see docs/secure_randomness.md.
    Paper: Bhowmick, Duchi, Freudiger, Kapoor and Rogers 2018, Protection against reconstruction and its applications in
        private federated learning.
    Differs: the published split of epsilon into a part for p and a part for the cap is a bound with a grid of choices.
        Here P is the incomplete beta function, p follows from epsilon and P with equality, and the height minimizes the
        error: see `best_cap`.

    >>> import numpy as np
    >>> from discreet import Rng
    >>> PrivUnit(epsilon=8.0, dimension=3)(np.array([[0.0, 0.0, 5.0]]), Rng(2)).shape
    (1, 3)
    """

    epsilon: float
    dimension: int

    def __post_init__(self) -> None:
        """Check the fields."""
        positive("epsilon", self.epsilon, "At epsilon 0 there is no unbiased estimate.")
        whole("dimension", self.dimension, 2, "A direction needs at least two coordinates.")

    @property
    def event(self) -> DpEvent:
        """The cost of one row replaced by any other or by zeros; a missing row is visible and not covered."""
        from discreet.accounting.events import LocalDpEvent

        return LocalDpEvent(self.epsilon)

    @property
    def cap(self) -> Cap:
        """The cap with the least error at this epsilon."""
        return best_cap(self.epsilon, self.dimension)

    @property
    def squared_error(self) -> float:
        """The mean of |estimate - truth|^2 for a unit vector, 1 / m^2 - 1."""
        return 1 / self.cap.mean**2 - 1

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return an unbiased estimate of the direction of each row, in the type and precision of the input."""
        vectors = vectors_of(x, self.dimension)
        flat = vectors.reshape(-1, self.dimension)
        cosine, sine = draw_cosines(self.cap, self.dimension, len(flat), rng.floats())
        answer = directions_around(flat, cosine, sine, rng, 1 / self.cap.mean)
        return in_kind(answer.view(vectors.shape), x)


@functools.lru_cache(maxsize=256)
def best_cap(epsilon: float, dimension: int) -> Cap:
    """Return the cap whose estimate has the least error among all caps with exactly this epsilon.

    With P the mass of the cap of height h and A the integral of the cosine over it, the mean cosine of the answer is
    m(h) = A (e^epsilon - 1) / (e^epsilon P + 1 - P), and the squared error is 1 / m^2 - 1. As A' = -h f and P' = -f
    with f the density of the cosine, (log m)' = f (m - h) / A: m grows where h < m and falls where h > m. So it has one
    maximum, where h = m(h), and this function finds that root.
    """
    from scipy.optimize import brentq

    height = 1.0 - 1e-12  # the smallest cap that floating point can represent: any cap is private
    if height > _mean(height, epsilon, dimension):
        height = float(brentq(lambda h: h - _mean(h, epsilon, dimension), 0.0, height, xtol=1e-15, rtol=1e-13))
    log_mass = log_cap_mass(height, dimension)
    odds = epsilon + log_mass - math.log1p(-math.exp(log_mass))
    likely, unlikely = 1 / (1 + math.exp(-abs(odds))), math.exp(-abs(odds)) / (1 + math.exp(-abs(odds)))
    truth, lie = (likely, unlikely) if odds > 0 else (unlikely, likely)
    return Cap(height, log_mass, truth, _mean(height, epsilon, dimension), lie)


def _mean(height: float, epsilon: float, dimension: int) -> float:
    log_mass = log_cap_mass(height, dimension)
    inside, outside = epsilon + log_mass, math.log1p(-math.exp(log_mass))
    high, low = max(inside, outside), min(inside, outside)
    log_total = high + math.log1p(math.exp(low - high))
    return math.exp(_log_moment(height, dimension) + epsilon + math.log(-math.expm1(-epsilon)) - log_total)


def _log_moment(height: float, dimension: int) -> float:
    """Return the log of the integral of the cosine over the cap: (1 - h^2)^((d - 1) / 2) / ((d - 1) B(1/2, ...))."""
    from scipy.special import betaln

    half = (dimension - 1) / 2
    return half * math.log1p(-height * height) - math.log(dimension - 1) - float(betaln(0.5, half))


def log_cap_mass(height: float, dimension: int) -> float:
    """Return the log of the uniform measure of {v: <v, u> >= height} for 0 <= height < 1.

    It is half the regularised incomplete beta function at 1 - height^2 with (d - 1) / 2 and 1 / 2. In the far tail,
    where that underflows, the continued fraction gives its logarithm.

    >>> round(math.exp(log_cap_mass(0.5, 3)), 12)
    0.25
    >>> log_cap_mass(0.9, 100_000) < -80_000
    True
    """
    from scipy.special import betainc, betaln

    half = (dimension - 1) / 2
    square = height * height
    x = 1 - square
    if -half * math.log1p(-square) < 40:
        return math.log(float(betainc(half, 0.5, x)) / 2)
    front = half * math.log1p(-square) + math.log(height) - math.log(2 * half) - float(betaln(half, 0.5))
    return front + math.log(_beta_fraction(half, 0.5, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + step * d)
            c = 1 + step / c
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def draw_cosines(cap: Cap, dimension: int, count: int, generator: FloatGenerator) -> tuple[Floats, Floats]:
    """Return exact samples of the cosine between sample and true direction, and of its sine."""
    # A uniform number of any precision is below the probability of a lie at least that often.
    inside = ~(generator.random(count) < cap.lie)
    chosen = int(inside.sum())
    cosine, sine = np.empty(count), np.empty(count)
    cosine[inside], sine[inside] = _inside(cap, dimension, chosen, generator)
    cosine[~inside], sine[~inside] = _uniform_where(dimension, count - chosen, generator, lambda t: t < cap.height)
    return cosine, sine


def _inside(cap: Cap, dimension: int, count: int, generator: FloatGenerator) -> tuple[Floats, Floats]:
    """Sample from the cap by the rejection method that accepts more: from a half-sphere, or a power of a uniform."""
    from_half = math.log(2) + cap.log_mass
    from_tail = math.log(max(cap.height, 1e-300)) + cap.log_mass - _log_moment(cap.height, dimension)
    if from_half >= from_tail:
        # By symmetry |t| >= height is the cap and its mirror image.
        t, s = _uniform_where(dimension, count, generator, lambda t: np.abs(t) >= cap.height)
        return np.abs(t), s
    # x = 1 - t^2 has density proportional to x^((d - 3) / 2) / t on (0, 1 - height^2): sample without 1 / t, accept
    # with probability height / t.
    log_top = math.log1p(-cap.height * cap.height)

    def propose(missing: int) -> tuple[Floats, Floats]:
        trials = int(missing * 1.2 / math.exp(from_tail)) + 8
        log_x = log_top + np.log1p(-generator.random(trials)) * (2 / (dimension - 1))
        t = np.sqrt(-np.expm1(log_x))
        keep = generator.random(trials) * t <= cap.height
        return t[keep], np.exp(log_x[keep] / 2)

    return accepted(count, propose)


def _uniform_where(dimension: int, count: int, generator: FloatGenerator, rule: Rule) -> tuple[Floats, Floats]:
    """Sample cosines of uniform directions until `count` of them satisfy the rule."""

    def propose(missing: int) -> tuple[Floats, Floats]:
        g = generator.standard_gamma((dimension - 1) / 2, 2 * missing + 8)
        h = generator.standard_gamma((dimension - 1) / 2, 2 * missing + 8)
        t, s = (g - h) / (g + h), 2 * np.sqrt(g * h) / (g + h)
        keep = rule(t)
        return t[keep], s[keep]

    return accepted(count, propose)
