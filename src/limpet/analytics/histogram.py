"""Log histograms: counts by magnitude, which merge exactly and answer quantiles within 1 %.

A value falls into the bin i with GAMMA**(i-1) < value <= GAMMA**i. Merging two histograms adds
their counts, so it is the histogram of the union, and taking values out again leaves what was there
before. A quantile is given by the middle of its bin: at most ERROR away from the value of that
rank, relative to it. Values are integers (microseconds, millionths, bytes); zero has a bin of its
own.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, TypeAlias

import numpy as np

# By bin. A plain dict: most groups have values in a handful of bins.
Histogram: TypeAlias = dict[int, int]

ERROR: Final = 0.01  # of a quantile, relative to the exact one
GAMMA: Final = (1 + ERROR) / (1 - ERROR)
ZERO: Final = -1  # the bin of values below 1
_LOG_GAMMA: Final = math.log(GAMMA)
_log = math.log
_ceil = math.ceil


def bin_of(value: int) -> int:
    """Return the bin of a value. The value is an integer; below 1 it is in the bin of zero."""
    return ZERO if value < 1 else _ceil(_log(value) / _LOG_GAMMA - 1e-9)


def value_of(bin: int) -> float:
    """Return the value that stands for a bin: within ERROR of every value in it."""
    return 0.0 if bin == ZERO else 2 * GAMMA**bin / (GAMMA + 1)


def histogram_of(values: Iterable[int]) -> Histogram:
    """Return the histogram of these values."""
    made: Histogram = {}
    for value in values:
        add(made, value)
    return made


def add(to: Histogram, value: int, times: int = 1) -> None:
    """Count a value."""
    bin = ZERO if value < 1 else _ceil(_log(value) / _LOG_GAMMA - 1e-9)
    to[bin] = to.get(bin, 0) + times


def merge(to: Histogram, other: Mapping[int, int], times: int = 1) -> None:
    """Add the counts of another histogram, or with times=-1 take them out again."""
    for bin, count in other.items():
        if total := to.get(bin, 0) + times * count:
            to[bin] = total
        else:
            to.pop(bin, None)


def union(histograms: Iterable[Mapping[int, int]]) -> Histogram:
    """Return the histogram of all values of these, added as arrays."""
    some = [each for each in histograms if each]
    if len(some) < 2:
        return dict(some[0]) if some else {}
    bins = np.concatenate([np.fromiter(each.keys(), np.int64, len(each)) for each in some])
    counts = np.concatenate([np.fromiter(each.values(), np.int64, len(each)) for each in some])
    low = int(bins.min())
    sums = np.zeros(int(bins.max()) - low + 1, np.int64)
    np.add.at(sums, bins - low, counts)
    filled = np.flatnonzero(sums)
    return dict(zip((filled + low).tolist(), sums[filled].tolist(), strict=True))


def rank_of(q: float, count: int) -> int:
    """Return the nearest rank of a quantile among so many values, from 1."""
    return max(1, _ceil(q * count - 1e-9))


def quantile(histogram: Mapping[int, int], q: float) -> float | None:
    """Return the value of nearest rank, within ERROR of it. None if there are no values."""
    return quantiles(histogram, (q,))[0]


def quantiles(histogram: Mapping[int, int], qs: Iterable[float]) -> tuple[float | None, ...]:
    """Return several quantiles in one pass."""
    bins = sorted(histogram)
    counts = list(accumulate(map(histogram.__getitem__, bins)))
    if not counts or not counts[-1]:
        return tuple([None for _ in qs])
    return tuple([value_of(bins[bisect_left(counts, rank_of(q, counts[-1]))]) for q in qs])
