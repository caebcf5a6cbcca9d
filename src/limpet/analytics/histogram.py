"""Log histograms: counts by magnitude, which merge exactly and answer quantiles within 1 %.

A value falls into the bin i with GAMMA**(i-1) < value <= GAMMA**i. Merging two histograms adds
their counts, so it is the histogram of the union, and taking values out again leaves what was there
before. A quantile is given by the middle of its bin: at most ERROR away from the value of that
rank, relative to it. Values are integers (microseconds, millionths, bytes); zero has a bin of its
own.

One histogram that changes is a dict. `Histograms` are many that are only read, as arrays.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# By bin. A plain dict: most groups have values in a handful of bins.
Histogram: TypeAlias = dict[int, int]
Counts: TypeAlias = NDArray[np.int64]

ERROR: Final = 0.01  # of a quantile, relative to the exact one
GAMMA: Final = (1 + ERROR) / (1 - ERROR)
ZERO: Final = -1  # the bin of values below 1
PEAK: Final = -2  # of a histogram of seconds that were rolled up: the bin that holds their peak
_LOG_GAMMA: Final = math.log(GAMMA)
_log = math.log
_ceil = math.ceil


def bin_of(value: int) -> int:
    """Return the bin of a value. The value is an integer; below 1 it is in the bin of zero."""
    return ZERO if value < 1 else _ceil(_log(value) / _LOG_GAMMA - 1e-9)


def value_of(bin: int) -> float:
    """Return the value that stands for a bin: within ERROR of every value in it."""
    return 0.0 if bin == ZERO else 2 * GAMMA**bin / (GAMMA + 1)


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


# --- many of them ---------------------------------------------------------------------------------

_BIN_BYTES: Final = 2
_BIN_BITS: Final = 8 * _BIN_BYTES
_LEAST: Final = -(2 ** (_BIN_BITS - 1))  # the lowest bin
_WIDTHS: Final = ((1, 2**7), (2, 2**15), (4, 2**31), (8, 2**63))  # bytes of a count


def pack(histogram: Mapping[int, int]) -> bytes:
    """Return its stored form: the bytes of a count, all bins in order, then all counts."""
    if not histogram:
        return b""
    bins = sorted(histogram)
    counts = [histogram[bin] for bin in bins]
    most = max(max(counts), -1 - min(counts))
    width = next(width for width, bound in _WIDTHS if most < bound)
    of_bins, of_counts = np.array(bins, "<i2"), np.array(counts, f"<i{width}")
    return bytes((width,)) + of_bins.tobytes() + of_counts.tobytes()


def unpack(raw: bytes) -> Histogram:
    """Return the histogram of a stored form."""
    if not raw:
        return {}
    width = raw[0]
    n = (len(raw) - 1) // (_BIN_BYTES + width)
    bins = np.frombuffer(raw, "<i2", n, 1)
    counts = np.frombuffer(raw, f"<i{width}", n, 1 + _BIN_BYTES * n)
    return dict(zip(bins.tolist(), counts.tolist(), strict=True))


class Histograms(NamedTuple):
    """Several histograms: for each count whose it is, of which bin, and how many; in this order."""

    size: int  # the number of histograms
    owners: Counts
    bins: Counts
    counts: Counts

    @classmethod
    def unpacked(cls, raws: Sequence[bytes]) -> Histograms:
        """Return the histograms of stored forms, without a loop over them."""
        whole = np.frombuffer(b"".join(raws), np.uint8)
        lengths = np.fromiter(map(len, raws), np.int64, len(raws))
        filled = np.flatnonzero(lengths)
        starts = (np.cumsum(lengths) - lengths)[filled]
        widths = whole[starts].astype(np.int64)
        numbers = (lengths[filled] - 1) // (_BIN_BYTES + widths)
        first = np.repeat(np.cumsum(numbers) - numbers, numbers)
        within = np.arange(len(first)) - first
        of_bins = np.repeat(starts + 1, numbers) + _BIN_BYTES * within
        of_counts = np.repeat(starts + 1 + _BIN_BYTES * numbers, numbers)
        width = np.repeat(widths, numbers)
        counts = np.empty(len(first), np.int64)
        for each, _ in _WIDTHS:
            some = np.flatnonzero(width == each)
            counts[some] = _integers(whole, of_counts[some] + each * within[some], each)
        owners = np.repeat(filled, numbers)
        return cls(len(raws), owners, _integers(whole, of_bins, _BIN_BYTES), counts)

    def merged(self, rows: Counts, size: int) -> Histograms:
        """Return one histogram for each row, of those that belong to it."""
        places = (rows[self.owners] << _BIN_BITS) + self.bins - _LEAST
        order = np.argsort(places, kind="stable")
        places = places[order]
        first = np.flatnonzero(np.diff(places, prepend=-1))
        counts = np.add.reduceat(self.counts[order], first) if len(first) else self.counts
        places = places[first]
        bins = (places & ((1 << _BIN_BITS) - 1)) + _LEAST
        return Histograms(size, places >> _BIN_BITS, bins, counts)

    @property
    def totals(self) -> Counts:
        """The number of values in each."""
        whole = np.zeros(self.size, np.int64)
        np.add.at(whole, self.owners, self.counts)
        return whole

    def quantiles(self, qs: Iterable[float]) -> list[NDArray[np.float64]]:
        """Return several quantiles of each, as `quantiles` does; not a number where it is empty."""
        totals = self.totals
        known = np.flatnonzero(totals > 0)
        running = np.cumsum(self.counts)
        before = np.cumsum(totals) - totals
        columns = []
        for q in qs:
            ranks = np.maximum(1, np.ceil(q * totals[known] - 1e-9)).astype(np.int64)
            bins = self.bins[np.searchsorted(running, before[known] + ranks)]
            values = np.full(self.size, np.nan)
            values[known] = np.where(bins == ZERO, 0.0, 2 * np.power(GAMMA, bins) / (GAMMA + 1))
            columns.append(values)
        return columns

    @property
    def peaks(self) -> Counts:
        """Of changes by second: the highest sum up to a second; or the peak they were rolled to."""
        peaks = np.zeros(self.size, np.int64)
        is_peak = self.bins == PEAK
        np.maximum.at(peaks, self.owners[is_peak], self.counts[is_peak])
        owners, changes = self.owners[~is_peak], self.counts[~is_peak]
        running = np.cumsum(changes)
        first = np.flatnonzero(np.diff(owners, prepend=-1))
        before = np.repeat(running[first] - changes[first], np.diff(first, append=len(owners)))
        np.maximum.at(peaks, owners, running - before)
        return peaks


def _integers(whole: NDArray[np.uint8], at: Counts, width: int) -> Counts:
    """Return the signed integers of so many bytes at these places, the lowest byte first."""
    values = np.zeros(len(at), np.uint64)
    for byte in range(width):
        values |= whole[at + byte].astype(np.uint64) << np.uint64(8 * byte)
    above = 64 - 8 * width
    signed: Counts = (values << np.uint64(above)).view(np.int64) >> above
    return signed
