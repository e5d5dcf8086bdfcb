"""The cosine between a direction and its von Mises–Fisher noise: exact sampling, density and mean.

The cosine t has density proportional to exp(kappa t) (1 - t^2)^((d - 3) / 2) on [-1, 1]. It determines the privacy and
the error of the mechanism: the rest of the direction is uniform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from numpy.polynomial.polynomial import polyval

from discreet.core.errors import non_negative, whole

if TYPE_CHECKING:
    from discreet.core.randomness import FloatGenerator

Floats = npt.NDArray[np.float64]

# Denominator and numerators of the coefficients of p^k, p^(k+2), ... in the Debye polynomials u_k (DLMF 10.41.10).
_DEBYE_FRACTIONS = (
    (24, 3, -5),
    (1152, 81, -462, 385),
    (414720, 30375, -369603, 765765, -425425),
    (39813120, 4465125, -94121676, 349922430, -446185740, 185910725),
    (6688604160, 1519035525, -49286948607, 284499769554, -614135872350, 566098157625, -188699385875),
    (
        *(4815794995200, 2757049477875, -127577298354750, 1050760774457901, -3369032068261860),
        *(5104696716244125, -3685299006138750, 1023694168371875),
    ),
)
_DEBYE = [[numerator / row[0] for numerator in row[1:]] for row in _DEBYE_FRACTIONS]
_LARGE_ORDER = 60.0


def draw_cosines(kappa: float, dimension: int, count: int, generator: FloatGenerator) -> tuple[Floats, Floats]:
    """Return `count` exact samples of the cosine and of the sine, sqrt(1 - cosine^2).

    Rejection sampling from a transformed beta. With two gamma samples g, h of shape (d - 1) / 2 the proposal is
    t = (h - b g) / (h + b g), and the log of the acceptance probability is (d - 1) (log(1 + s) - s) with
    s = (1 - b) / 2 * (g - h) / (h + b g): no large terms cancel, at any kappa and d. At least two samples in three are
    accepted.

    Paper: Ulrich 1984 and Wood 1994, Simulation of the von Mises Fisher distribution.
    Differs: the acceptance test is rewritten as above; the sine is computed from g and h, not from 1 - cosine^2.
    """
    degrees = dimension - 1
    root = math.hypot(2 * kappa, degrees)
    b = degrees / (2 * kappa + root)
    half_gap = (kappa + 2 * kappa * kappa / (root + degrees)) / (2 * kappa + root)  # (1 - b) / 2

    def propose(missing: int) -> tuple[Floats, Floats]:
        trials = missing if kappa == 0 else int(missing * 1.55) + 8
        g = generator.standard_gamma(degrees / 2, trials)
        h = generator.standard_gamma(degrees / 2, trials)
        total = h + b * g
        s = half_gap * (g - h) / total
        keep = np.log(generator.random(trials)) <= degrees * (np.log1p(s) - s) if kappa > 0 else np.ones(trials, bool)
        g, h, total = g[keep], h[keep], total[keep]
        return (h - b * g) / total, 2 * np.sqrt(b * g * h) / total

    return accepted(count, propose)


def accepted(count: int, propose: Callable[[int], tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return `count` cosines and sines of a rejection sampler; `propose(n)` returns the accepted ones of n trials."""
    pairs = np.empty((2, count))
    filled = 0
    while filled < count:
        cosine, sine = propose(count - filled)
        end = min(filled + len(cosine), count)
        pairs[:, filled:end] = cosine[: end - filled], sine[: end - filled]
        filled = end
    return pairs[0], pairs[1]


def log_mean_exp(kappa: float, dimension: int) -> float:
    """Return the log of the mean of exp(kappa t) over the uniform sphere, without overflow.

    It is log(Gamma(v + 1) (2 / kappa)^v I_v(kappa)) with v = d / 2 - 1. For large orders the uniform (Debye) expansion
    of the Bessel function and Stirling's series are combined analytically, so that their large terms cancel.

    >>> log_mean_exp(0.0, 10)
    0.0
    >>> round(log_mean_exp(1.0, 3), 6) == round(math.log(math.sinh(1.0)), 6)
    True
    """
    non_negative("kappa", kappa, "An infinite kappa releases the direction itself.")
    order = whole("dimension", dimension, 2, "A direction needs at least two coordinates.") / 2 - 1
    if kappa * kappa <= 4 * (order + 1):
        return _log_series(kappa * kappa / 4, order + 1)
    if order >= _LARGE_ORDER:
        return _log_debye(kappa, order)
    return kappa + _log_scaled_bessel(order, kappa) + math.lgamma(order + 1) + order * math.log(2 / kappa)


def _log_scaled_bessel(order: float, kappa: float) -> float:
    """Return log(I_v(kappa) exp(-kappa)) for a small order v; beyond scipy's range by three terms of its expansion."""
    if kappa < 1e8:
        from scipy.special import ive

        return math.log(float(ive(order, kappa)))
    m, x = 4 * order * order, 8 * kappa
    return math.log1p(-(m - 1) / x + (m - 1) * (m - 9) / (2 * x * x)) - 0.5 * math.log(2 * math.pi * kappa)


def _log_series(x: float, a: float) -> float:
    """Return the log of the hypergeometric series 0F1(a; x), all of whose terms are positive."""
    term, total, k = 1.0, 0.0, 0
    while term > 1e-18 * (1 + total) or k == 0:
        term *= x / ((a + k) * (k + 1))
        total += term
        k += 1
    return math.log1p(total)


def _log_debye(kappa: float, order: float) -> float:
    z = kappa / order
    root = math.hypot(1.0, z)
    q = z * z / (1 + root)  # root - 1
    p = 1 / root
    tail = sum(p**k * float(polyval(p * p, terms)) / order**k for k, terms in enumerate(_DEBYE, start=1))
    inverse = 1 / (order * order)
    stirling = (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse / 1680))) / order
    return order * (q - math.log1p(q / 2)) - 0.5 * math.log(root) + math.log1p(tail) + stirling


def log_sphere_area(dimension: int) -> float:
    """Return the log of the surface area of the unit sphere in d dimensions.

    >>> round(math.exp(log_sphere_area(3)) / math.pi, 6)
    4.0
    """
    return math.log(2) + dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2)


def log_cosine_density(t: npt.ArrayLike, kappa: float, dimension: int) -> Floats:
    """Return the log-density of the cosine at t in [-1, 1]; at the ends it may be infinite."""
    from scipy.special import betaln, xlog1py

    cosine = np.asarray(t, dtype=np.float64)
    uniform = xlog1py((dimension - 3) / 2, -cosine * cosine) - float(betaln(0.5, (dimension - 1) / 2))
    return np.asarray(uniform + kappa * cosine - log_mean_exp(kappa, dimension))


def mean_cosine(kappa: float, dimension: int) -> float:
    """Return the mean of the cosine, the Bessel ratio I_(d/2) / I_(d/2 - 1), by its continued fraction.

    >>> round(mean_cosine(1.0, 3), 6) == round(1 / math.tanh(1.0) - 1, 6)
    True
    """
    non_negative("kappa", kappa, "An infinite kappa releases the direction itself.")
    whole("dimension", dimension, 2, "A direction needs at least two coordinates.")
    if kappa == 0:
        return 0.0
    # Backward recurrence r_v = kappa / (2 (v + 1) + kappa r_(v + 1)). Start far enough above for the error of the
    # first guess to vanish; the guess is a bound that is tight for large orders (Amos 1974).
    order = dimension / 2 - 1
    steps = 40 + int(8 * math.sqrt(kappa) + max(0.0, 2 * kappa - order) ** 0.5 * 8)
    top = order + steps
    ratio = kappa / (top + 0.5 + math.hypot(top + 1.5, kappa))
    for k in range(steps, 0, -1):
        ratio = kappa / (2 * (order + k) + kappa * ratio)
    return ratio
