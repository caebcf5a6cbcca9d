"""Statistics: tails of distributions, rolling bounds, distances, intervals. Pure functions.

What scipy would be imported for, in a few lines each: the regularized incomplete beta function
gives the tails of Student's t and of F. numpy arrives with the callers; nothing here does I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_TINY: Final = 1e-300
_STEPS_MAX: Final = 300


def beta_tail(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Lentz's method."""
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _STEPS_MAX):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_tail(t: float, degrees: float) -> float:
    """Return the chance that |T| is beyond t, for Student's t."""
    return beta_tail(degrees / 2, 0.5, degrees / (degrees + t * t))


def f_tail(f: float, above: float, below: float) -> float:
    """Return the chance that F is beyond f."""
    return beta_tail(below / 2, above / 2, below / (below + above * f)) if f > 0 else 1.0


def solve(tail: Callable[[float], float], chance: float) -> float:
    """Return where a falling tail has this chance, by bisection."""
    low, high = 0.0, 1.0
    while tail(high) > chance and high < 1e12:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > chance else (low, middle)
    return high


# --- bounds ---------------------------------------------------------------------------------------


class Baseline(NamedTuple):
    """The middle and the spread of what came before."""

    middle: float
    spread: float


def baseline(values: Vector, *, robust: bool, floor: float) -> Baseline:
    """Return mean and standard deviation; if `robust`, the median and 1.4826 times the median of
    absolute deviations, which outliers do not move. A spread is never below the floor."""
    if robust:
        middle = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - middle)))
    else:
        middle, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    return Baseline(middle, max(spread, floor))


def beyond_chance(k: float, n: int) -> float:
    """Return the chance that a normal value lies beyond k deviations of n values before it."""
    return t_tail(k / math.sqrt(1 + 1 / n), n - 1)


@lru_cache(maxsize=4_096)
def bound_for(chance: float, n: int) -> float:
    """Return k so that a normal value lies beyond k deviations with this chance."""
    return solve(lambda k: beyond_chance(k, n), chance)


def shrunk(values: Vector, floors: Vector) -> tuple[Vector, Vector]:
    """Return mean and covariance, shrunk towards its diagonal by m / (m + n), so that it can be
    inverted also with few values."""
    n, m = values.shape
    covariance = np.atleast_2d(np.cov(values, rowvar=False))
    own = np.diag(covariance)
    weight = m / (m + n)
    least = np.maximum(floors**2 - own, 0.0)
    return values.mean(axis=0), (1 - weight) * covariance + np.diag(weight * own + least)


def mahalanobis(value: Vector, mean: Vector, covariance: Vector) -> float:
    """Return the distance of a vector from the mean, in deviations."""
    off = value - mean
    return math.sqrt(max(0.0, float(off @ np.linalg.solve(covariance, off))))


@lru_cache(maxsize=4_096)
def distance_for(chance: float, m: int, n: int) -> float:
    """Return the distance beyond which a normal vector of m lies with this chance (Hotelling)."""
    scale = m * (n + 1) * (n - 1) / (n * (n - m))
    return math.sqrt(scale * solve(lambda f: f_tail(f, m, n - m), chance))


def family_rate(chance: float, tests: int) -> float:
    """Return the chance of one false alarm or more in so many tests."""
    return -math.expm1(tests * math.log1p(-min(chance, 1 - 1e-12)))


# --- intervals ------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A difference, and the bounds that hold it with the confidence that was asked for."""

    difference: float
    low: float
    high: float


class Moments(NamedTuple):
    """Number, mean and variance."""

    n: int
    mean: float
    variance: float


def moments(histogram: Mapping[int, int], value_of: Callable[[int], float]) -> Moments:
    """Return the moments of the values in a histogram, each at the middle of its bin."""
    count = sum(histogram.values())
    if not count:
        return Moments(0, math.nan, math.nan)
    values = np.array([value_of(bin) for bin in histogram])
    weights = np.array(list(histogram.values()), dtype=float)
    mean = float(values @ weights) / count
    spread = float(((values - mean) ** 2) @ weights) / max(count - 1, 1)
    return Moments(count, mean, spread)


def welch(a: Moments, b: Moments, confidence: float) -> Interval | None:
    """Return the interval of the difference of two means, b - a. None with fewer than two each."""
    if min(a.n, b.n) < 2:
        return None
    parts = (a.variance / a.n, b.variance / b.n)
    error = math.sqrt(sum(parts))
    difference = b.mean - a.mean
    if error == 0:
        return Interval(difference, difference, difference)
    degrees = sum(parts) ** 2 / sum(
        [part**2 / (of.n - 1) for part, of in zip(parts, (a, b), strict=True)]
    )
    reach = error * solve(lambda t: t_tail(t, degrees), 1 - confidence)
    return Interval(difference, difference - reach, difference + reach)


def newcombe(a: tuple[int, int], b: tuple[int, int], confidence: float) -> Interval | None:
    """Return the interval of the difference of two rates (part, of), b - a, by Wilson's bounds of
    each. None if one has no cases."""
    if not a[1] or not b[1]:
        return None
    z = solve(lambda t: math.erfc(t / math.sqrt(2)), 1 - confidence)
    (low_a, high_a), (low_b, high_b) = wilson(*a, z), wilson(*b, z)
    rate_a, rate_b = a[0] / a[1], b[0] / b[1]
    difference = rate_b - rate_a
    return Interval(
        difference,
        difference - math.hypot(rate_b - low_b, high_a - rate_a),
        difference + math.hypot(high_b - rate_b, rate_a - low_a),
    )


def wilson(part: int, of: int, z: float) -> tuple[float, float]:
    """Return Wilson's bounds of a rate."""
    rate, scale = part / of, 1 + z * z / of
    middle = (rate + z * z / (2 * of)) / scale
    reach = z / scale * math.sqrt(rate * (1 - rate) / of + z * z / (4 * of * of))
    return middle - reach, middle + reach


# --- a sequential test ----------------------------------------------------------------------------


def drop_evidence(before: Vector, after: Vector, *, effect: float = 0.5) -> Vector:
    """Return the evidence that the mean has fallen, after each new value, as a likelihood ratio.

    A mixture over drops of about `effect` deviations against no change. Values may be looked at one
    by one: stopping where the ratio passes 1 / rate raises a false alarm at most at that rate.
    """
    n0, spread = len(before), max(float(np.std(before, ddof=1)), 1e-6)
    n = np.arange(1, len(after) + 1)
    drop = (float(np.mean(before)) - np.cumsum(after) / n) / spread
    variance = 1 / n0 + 1 / n
    prior = effect**2
    ratio = np.sqrt(variance / (variance + prior)) * np.exp(
        np.minimum(prior * drop**2 / (2 * variance * (variance + prior)), 700)
    )
    return np.where(drop > 0, ratio, 0.0)
