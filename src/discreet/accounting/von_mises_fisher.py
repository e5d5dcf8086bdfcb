"""Exact privacy of a direction sampled from the von Mises–Fisher distribution, in any dimension.

Only t = <x, y> matters, so every figure is a one-dimensional integral. With t = sin(phi) the density of phi is
proportional to exp(kappa sin(phi)) cos(phi)^(d-2), which is smooth on the whole interval for every d >= 2. It is
computed in logarithms, so that millions of dimensions and kappa above ten thousand do not overflow.

- Replace-one: the worst pair of directions is antipodal, with loss 2 kappa t (docs/von_mises_fisher.md, proof).
- Zero-out: against the uniform direction, with loss kappa t - ln Z(kappa), Z the mean of exp(kappa t) on the sphere.
- Above kappa 1e10, doubles do not represent kappa t precisely enough for a proof; the loss is then taken as 2 kappa.

Differs: Weggenmann and Kerschbaum 2021 and the papers after it bound the loss by its largest value, 2 kappa; in high
dimension the loss is nearly always hundreds of times smaller.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from discreet.accounting.curve import Array, Curve, Deltas, pure
from discreet.accounting.gdp import bisect_up
from discreet.core.errors import invalid, non_negative, open_probability, probability, whole

MOST_EXACT = 1e10  # above it the rounding of kappa t exceeds 1e-6, and only the largest loss, 2 kappa, is proven
_DROP = 75.0  # densities below e^-75 of the peak are negligible
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_FINE_NODES, _FINE_WEIGHTS = np.polynomial.legendre.leggauss(6)


def _log_shape(kappa: float, dimension: int, phi: Array) -> Array:
    """Return the log-density of phi up to a constant."""
    t = np.sin(phi)
    with np.errstate(divide="ignore"):
        # half ln(1 - t²) is ln cos(phi) in full precision near phi = 0, where it is multiplied by millions
        log_cos = np.where(np.abs(t) < 0.5, 0.5 * np.log1p(-np.minimum(t * t, 0.5)), np.log(np.cos(phi)))
    volume = (dimension - 2) * log_cos if dimension > 2 else np.zeros_like(phi)
    return np.asarray(kappa * t + volume, dtype=np.float64)


def _peak(kappa: float, dimension: int) -> float:
    if dimension == 2:
        return math.copysign(math.pi / 2, kappa) if kappa else 0.0
    root = math.sqrt((dimension - 2) ** 2 + 4 * kappa * kappa)
    return math.asin(max(-1.0, min(1.0, 2 * kappa / ((dimension - 2) + root))))


@lru_cache(maxsize=1024)
def _support(kappa: float, dimension: int) -> tuple[float, float]:
    """Return the interval that holds phi except with probability about e^-75."""

    def log_shape(phi: float) -> float:
        t = math.sin(phi)
        return kappa * t + (dimension - 2) * (0.5 * math.log1p(-t * t) if abs(t) < 0.9 else math.log(math.cos(phi)))

    top = _peak(kappa, dimension)
    best = log_shape(top)

    def inside(phi: float) -> bool:
        return log_shape(phi) > best - _DROP

    edges = []
    for end in (-math.pi / 2, math.pi / 2):
        if inside(end):
            edges.append(end)
            continue
        near, far = top, end
        for _ in range(60):
            middle = (near + far) / 2
            near, far = (middle, far) if inside(middle) else (near, middle)
        edges.append(far)
    return edges[0], edges[1]


def _nodes(low: float, high: float, pieces: int = 256) -> tuple[Array, Array]:
    edges = np.linspace(low, high, pieces + 1)
    half = np.diff(edges)[:, None] / 2
    middle = (edges[:-1] + edges[1:])[:, None] / 2
    return (middle + half * _NODES).ravel(), (half * _WEIGHTS).ravel()


@lru_cache(maxsize=1024)
def _log_total(kappa: float, dimension: int) -> float:
    """Return the log of the integral of the shape over all phi."""
    phi, weight = _nodes(*_support(kappa, dimension))
    log = _log_shape(kappa, dimension, phi)
    top = float(log.max())
    return top + math.log(float(np.dot(np.exp(log - top), weight)))


def log_mean(kappa: float, dimension: int) -> float:
    """Return ln Z: the log of the mean of exp(kappa t) over uniform directions.

    >>> round(log_mean(2.0, 3), 6), round(float(np.log(np.sinh(2.0) / 2.0)), 6)
    (0.59522, 0.59522)
    """
    kappa = non_negative("kappa", abs(kappa))
    if kappa > MOST_EXACT:
        raise invalid("kappa", kappa, f"<= {MOST_EXACT:g}", "A larger kappa releases the direction almost unchanged.")
    return _log_total(kappa, dimension) - _log_total(0.0, dimension) if kappa else 0.0


def largest_zeroed_loss(kappa: float, dimension: int) -> float:
    """Return the largest loss under zero-out, kappa + ln Z(kappa), or 2 kappa, which it never exceeds."""
    return 2 * kappa if kappa > MOST_EXACT else kappa + log_mean(kappa, dimension)


def _tail_delta(kappa: float, dimension: int, slope: float, shift: float, epsilon: float, pieces: int = 256) -> float:
    """Return the mean of (1 - exp(epsilon - loss))+ for t of concentration kappa and loss = slope t - shift."""
    if slope == 0:
        return max(0.0, -math.expm1(epsilon))
    low, high = _support(kappa, dimension)
    cut = (epsilon + shift) / slope
    if cut >= 1:
        return 0.0
    low = max(low, math.asin(max(cut, -1.0)))
    # if the cut lies beyond the bulk, integrate the whole remaining tail
    if low >= high:
        low, high = math.asin(max(cut, -1.0)), math.pi / 2
    phi, weight = _nodes(low, high, pieces)
    density = np.exp(_log_shape(kappa, dimension, phi) - _log_total(kappa, dimension))
    over = slope * np.sin(phi) - shift - epsilon
    return float(np.dot(density * np.where(over > 0, -np.expm1(-np.maximum(over, 0.0)), 0.0), weight))


def replaced_delta(kappa: float, dimension: int, epsilon: float) -> float:
    """Return the delta at epsilon when a direction is replaced by its opposite, the worst case under replace-one.

    >>> round(replaced_delta(300.0, 592_130, 3.289), 7)
    1e-05
    """
    kappa, epsilon = non_negative("kappa", kappa), non_negative("epsilon", epsilon)
    if kappa > MOST_EXACT:
        return float(epsilon < 2 * kappa)
    return min(1.0, _tail_delta(kappa, whole("dimension", dimension, 2), 2 * kappa, 0.0, epsilon))


def zeroed_delta(kappa: float, dimension: int, epsilon: float) -> float:
    """Return the delta at epsilon when a direction is replaced by a uniform one, the larger of both directions."""
    kappa, epsilon = non_negative("kappa", kappa), non_negative("epsilon", epsilon)
    if kappa > MOST_EXACT:
        return float(epsilon < 2 * kappa)
    dimension, shift = whole("dimension", dimension, 2), log_mean(kappa, dimension)
    forward = _tail_delta(kappa, dimension, kappa, shift, epsilon)
    backward = _tail_delta(0.0, dimension, kappa, -shift, epsilon)  # by symmetry, -t is distributed as t
    return min(1.0, max(forward, backward))


def replaced_epsilon(kappa: float, dimension: int, delta: float) -> float:
    """Return the exact epsilon of one direction under replace-one, rounded up.

    >>> round(replaced_epsilon(100.0, 592_130, 1e-5), 3)
    0.967
    """
    delta = open_probability("delta", delta, "For delta 0 the cost is 2 kappa.")
    if kappa > MOST_EXACT:
        return 2 * kappa
    return bisect_up(lambda e: replaced_delta(kappa, dimension, e) <= delta, 0.0, 2 * kappa, 1e-10)


def zeroed_epsilon(kappa: float, dimension: int, delta: float) -> float:
    """Return the exact epsilon of one direction under zero-out, rounded up.

    >>> round(zeroed_epsilon(300.0, 592_130, 1e-5), 2)
    1.51
    """
    delta = open_probability("delta", delta, "For delta 0 the cost is kappa + ln Z(kappa).")
    if kappa > MOST_EXACT:
        return 2 * kappa
    top = largest_zeroed_loss(kappa, dimension)
    return bisect_up(lambda e: zeroed_delta(kappa, dimension, e) <= delta, 0.0, top, 1e-10)


def cap_success(kappa: float, dimension: int, share: float) -> float:
    """Return the probability that a sample falls into the spherical cap of this uniform measure around its direction.

    It is the largest true-positive rate of any test at that false-positive rate and, for share 1/n, the largest success
    rate of a guess among n candidates, with the uniform direction as the null record.

    >>> round(cap_success(0.0, 10, 0.25), 6)
    0.25
    """
    share = probability("share", share)
    if share in (0.0, 1.0):
        return share
    if kappa > MOST_EXACT:
        return 1.0
    edge = _cap_edge(whole("dimension", dimension, 2), share)
    return min(1.0, _mass_above(non_negative("kappa", kappa), dimension, edge))


def _cap_edge(dimension: int, share: float) -> float:
    """Return phi such that uniform directions lie above it with this probability, rounded down."""
    low, high = -math.pi / 2, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _mass_above(0.0, dimension, middle) > share else (low, middle)
    return low


def _mass_above(kappa: float, dimension: int, edge: float) -> float:
    low, high = _support(kappa, dimension)
    if edge >= high:
        low, high = edge, math.pi / 2
    phi, weight = _nodes(max(low, edge), high)
    return float(np.dot(np.exp(_log_shape(kappa, dimension, phi) - _log_total(kappa, dimension)), weight))


def replaced(kappa: float, dimension: int) -> Curve:
    """Return the curve of one direction under replace-one."""
    if kappa > MOST_EXACT:
        return pure(2 * kappa)
    high = math.sin(_support(kappa, dimension)[1]) * 2 * kappa
    return Curve(_deltas(kappa, dimension, 2 * kappa, 0.0), high)


def zeroed(kappa: float, dimension: int) -> Curve:
    """Return the curve of one direction against the uniform one."""
    if kappa > MOST_EXACT:
        return pure(2 * kappa)
    shift = log_mean(kappa, dimension)
    high = max(0.0, kappa * math.sin(_support(kappa, dimension)[1]) - shift)
    high_absent = max(0.0, shift + kappa * math.sin(_support(0.0, dimension)[1]))
    return Curve(_deltas(kappa, dimension, kappa, shift), high, _deltas(0.0, dimension, kappa, -shift), high_absent)


def _deltas(kappa: float, dimension: int, slope: float, shift: float) -> Deltas:
    """Return a function for delta at many epsilons at once, as sums over the pieces between them; no term exceeds 1.

    With A(e) the mass of losses above e and B(e) the mean of exp(e - loss) over it, delta = A - B. From one epsilon to
    a smaller one B is multiplied by exp(-gap) and gains the piece in between.
    """

    def deltas(eps: Array) -> Array:
        points, where = np.unique(eps, return_inverse=True)
        if slope == 0:
            return np.maximum(0.0, -np.expm1(eps))
        ends = np.append(points, max(slope - shift, points[-1] + 1.0))
        phi = np.arcsin(np.clip((ends + shift) / slope, -1.0, 1.0))
        mass, near = _pieces(kappa, dimension, slope, shift, phi, points)
        above = np.cumsum(mass[::-1])[::-1]
        return np.asarray(np.clip(above - _decayed(near, np.diff(points)), 0.0, 1.0)[where], dtype=np.float64)

    return deltas


def _pieces(kappa: float, dimension: int, slope: float, shift: float, phi: Array, start: Array) -> tuple[Array, Array]:
    """Return each piece's mass and its mean of exp(start - loss), by Gauss–Legendre on every piece."""
    total = _log_total(kappa, dimension)
    low, high = _support(kappa, dimension)
    left, right = np.clip(phi[:-1], low, high), np.clip(phi[1:], low, high)
    mass, near = np.zeros(len(start)), np.zeros(len(start))
    live = np.flatnonzero(right > left)
    for block in np.array_split(live, max(1, len(live) // 50_000)):
        if len(block) == 0:
            continue
        # the last piece ends at the end of the support and the first may start far below: subdivide wide pieces
        wide = (right[block] - left[block]) > (high - low) / 64
        for which, pieces in ((block[~wide], 1), (block[wide], 256)):
            if len(which) == 0:
                continue
            edges = np.linspace(left[which], right[which], pieces + 1)
            half = (edges[1:] - edges[:-1])[..., None] / 2
            at = (edges[1:] + edges[:-1])[..., None] / 2 + half * _FINE_NODES
            density = np.exp(_log_shape(kappa, dimension, at) - total) * half * _FINE_WEIGHTS
            over = np.maximum(slope * np.sin(at) - shift - start[which][None, :, None], 0.0)
            mass[which] = density.sum(axis=(0, 2))
            near[which] = (density * np.exp(-over)).sum(axis=(0, 2))
    return mass, near


def _decayed(near: Array, gaps: Array) -> Array:
    """Return B_j = near_j + exp(-gap_j) B_{j+1} for all j."""
    carry, backwards = 0.0, []
    for gain, shrink in zip(near[::-1].tolist(), [0.0, *np.exp(-gaps)[::-1].tolist()], strict=True):
        carry = gain + shrink * carry
        backwards.append(carry)
    return np.array(backwards[::-1])
