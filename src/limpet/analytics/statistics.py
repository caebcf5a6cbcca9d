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
Counts = NDArray[np.int64]
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
    while high - low > 1e-12 * max(high, 1.0):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > chance else (low, middle)
    return high


# --- bounds ---------------------------------------------------------------------------------------


class Baselines(NamedTuple):
    """The middle and the spread that each of several values is compared with, and of how many
    values before it they are."""

    middles: Vector
    spreads: Vector
    counts: Counts


def rolling(before: Vector, block: Vector, *, window: int, robust: bool, floor: float) -> Baselines:
    """Return the baselines of a block: of each value, that of the `window` values before it.

    Mean and standard deviation; if `robust`, the median and 1.4826 times the median of absolute
    deviations, which outliers do not move. A spread is never below the floor.
    """
    values, ends = np.concatenate([before, block[:-1]]), len(before) + np.arange(len(block))
    starts = np.maximum(0, ends - window)
    counts = ends - starts
    if robust:
        parts = [values[start:end] for start, end in zip(starts, ends, strict=True)]
        middles, spreads = _medians(parts)
    else:
        center = values.mean()  # near all of them, so that little is lost below
        sums, squares = (_sums((values - center) ** power) for power in (1, 2))
        mean = (sums[ends] - sums[starts]) / counts
        spread = np.maximum(0.0, squares[ends] - squares[starts] - counts * mean**2)
        middles, spreads = center + mean, np.sqrt(spread / (counts - 1))
    return Baselines(middles, np.maximum(spreads, floor), counts)


def _sums(values: Vector) -> Vector:
    """Return the sum of the first n values, for each n from 0."""
    return np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])


def _medians(parts: list[Vector]) -> tuple[Vector, Vector]:
    middles, spreads = np.empty(len(parts)), np.empty(len(parts))
    lengths = np.array([len(part) for part in parts])
    for length in np.unique(lengths):
        alike = np.flatnonzero(lengths == length)
        rows = np.stack([parts[index] for index in alike])
        middles[alike] = np.median(rows, axis=1)
        off = np.abs(rows - middles[alike][:, None])
        spreads[alike] = 1.4826 * np.median(off, axis=1)
    return middles, spreads


def beyond_chance(k: float, n: int, *, robust: bool = False) -> float:
    """Return the chance that a normal value lies beyond k spreads of n values before it. A median
    of deviations knows the spread about as well as a standard deviation of 0.37 n values."""
    if robust:
        return t_tail(k / math.sqrt(1 + math.pi / (2 * n)), 0.3675 * (n - 1))
    return t_tail(k / math.sqrt(1 + 1 / n), n - 1)


@lru_cache(maxsize=4_096)
def bound_for(chance: float, n: int, *, robust: bool = False) -> float:
    """Return k so that a normal value lies beyond k spreads with this chance."""
    return solve(lambda k: beyond_chance(k, n, robust=robust), chance)


def bounds_up_to(window: int, warm_up: int, bound: Callable[[int], float]) -> Vector:
    """Return the bound after each number of values up to `window`. Bounds fall slowly: one is
    found for every tenth more values, and holds until the next, a little too wide."""
    bounds = np.full(window + 1, math.inf)
    count = warm_up
    while count < window:
        bounds[count:] = bound(count)
        count = max(count + 1, count * 11 // 10)
    bounds[window] = bound(window)
    return bounds


class JointBaselines(NamedTuple):
    """A baseline of vectors: mean and covariance."""

    middles: Vector
    spreads: Vector
    counts: Counts


def rolling_jointly(
    before: Vector, block: Vector, *, window: int, floors: Vector
) -> JointBaselines:
    """Return means and covariances of the `window` vectors before each of a block, the covariances
    shrunk towards their diagonal by m / (m + n), so that they can be inverted also with few
    vectors."""
    values, ends = np.concatenate([before, block[:-1]]), len(before) + np.arange(len(block))
    starts = np.maximum(0, ends - window)
    counts, m = ends - starts, values.shape[1]
    center = values.mean(axis=0)
    off = values - center
    sums, products = _sums(off), _sums(off[:, :, None] * off[:, None, :])
    n = counts[:, None]
    means = (sums[ends] - sums[starts]) / n
    whole = products[ends] - products[starts] - n[:, :, None] * means[:, :, None] * means[:, None]
    covariances = whole / (n[:, :, None] - 1)
    own = np.maximum(0.0, np.diagonal(covariances, axis1=1, axis2=2))
    weight = m / (m + n)
    covariances *= 1 - weight[:, :, None]
    diagonal = np.arange(m)
    covariances[:, diagonal, diagonal] = own + np.maximum(floors**2 - own, 0.0)
    return JointBaselines(center + means, covariances, counts)


def distances(values: Vector, means: Vector, covariances: Vector) -> Vector:
    """Return the Mahalanobis distance of each vector from its mean, in deviations."""
    off = values - means
    solved = np.linalg.solve(covariances, off[..., None])[..., 0]
    far: Vector = np.sqrt(np.maximum(0.0, np.sum(off * solved, axis=-1)))
    return far


@lru_cache(maxsize=4_096)
def distance_for(chance: float, m: int, n: int) -> float:
    """Return the distance beyond which a normal vector of m lies with this chance (Hotelling)."""
    scale = m * (n + 1) * (n - 1) / (n * (n - m))
    return math.sqrt(scale * solve(lambda f: f_tail(f, m, n - m), chance))


def family_rate(*families: tuple[float, int]) -> float:
    """Return the chance of one false alarm or more in families of (chance, number) tests."""
    calm = [tests * math.log1p(-min(chance, 1 - 1e-12)) for chance, tests in families]
    return 0.0 - math.expm1(sum(calm))


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
