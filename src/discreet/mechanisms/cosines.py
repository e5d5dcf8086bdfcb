"""The cosine between a direction and its von Mises–Fisher noise: exact sampling, density and mean.

The cosine t has density proportional to exp(kappa t) (1 - t^2)^((d - 3) / 2) on [-1, 1]. It determines the privacy and
the error of the mechanism: the rest of the direction is uniform.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from discreet.core.errors import non_negative, whole

if TYPE_CHECKING:
    from discreet.core.randomness import FloatGenerator

Floats = npt.NDArray[np.float64]

# Coefficients of p^k, p^(k+2), ... in the Debye polynomials u_1 ... u_6 (DLMF 10.41.10).
_DEBYE = (
    (3 / 24, -5 / 24),
    (81 / 1152, -462 / 1152, 385 / 1152),
    (30375 / 414720, -369603 / 414720, 765765 / 414720, -425425 / 414720),
    (
        4465125 / 39813120,
        -94121676 / 39813120,
        349922430 / 39813120,
        -446185740 / 39813120,
        185910725 / 39813120,
    ),
    (
        1519035525 / 6688604160,
        -49286948607 / 6688604160,
        284499769554 / 6688604160,
        -614135872350 / 6688604160,
        566098157625 / 6688604160,
        -188699385875 / 6688604160,
    ),
    (
        2757049477875 / 4815794995200,
        -127577298354750 / 4815794995200,
        1050760774457901 / 4815794995200,
        -3369032068261860 / 4815794995200,
        5104696716244125 / 4815794995200,
        -3685299006138750 / 4815794995200,
        1023694168371875 / 4815794995200,
    ),
)
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
    cosine, sine = np.empty(count), np.empty(count)
    filled = 0
    while filled < count:
        trial = count - filled if kappa == 0 else int((count - filled) * 1.55) + 8
        g = generator.standard_gamma(degrees / 2, trial)
        h = generator.standard_gamma(degrees / 2, trial)
        total = h + b * g
        s = half_gap * (g - h) / total
        keep = np.log(generator.random(trial)) <= degrees * (np.log1p(s) - s) if kappa > 0 else np.ones(trial, bool)
        g, h, total = g[keep], h[keep], total[keep]
        size = min(len(g), count - filled)
        part = slice(filled, filled + size)
        cosine[part] = ((h - b * g) / total)[:size]
        sine[part] = (2 * np.sqrt(b * g * h) / total)[:size]
        filled += size
    return cosine, sine


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
    tail = sum(p**k * _poly(terms, p * p) / order**k for k, terms in enumerate(_DEBYE, start=1))
    inverse = 1 / (order * order)
    stirling = (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse / 1680))) / order
    return order * (q - math.log1p(q / 2)) - 0.5 * math.log(root) + math.log1p(tail) + stirling


def _poly(coefficients: tuple[float, ...], x: float) -> float:
    value = 0.0
    for c in reversed(coefficients):
        value = value * x + c
    return value


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
