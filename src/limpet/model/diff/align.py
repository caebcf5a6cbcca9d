"""Align: which runs of one list correspond to which runs of another.

The common prefix and suffix are skipped. In the rest, items that occur once on each side are
anchors; anchors in the same order split the middle into small gaps. So a list that lost its first
items and gained some at its end is recognized as that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from operator import is_not
from typing import Any, Final, NamedTuple

import msgspec

from limpet.model.canonical import packed, same

RUN: Final = 512  # items compared at once
_PARTS: Final = 8  # into which a run that differs is divided
_pack: Final = msgspec.msgpack.Encoder().encode  # in the order that names have: faster

UNFIT: Final = (TypeError, ValueError, OverflowError, RecursionError)  # what an encoder raises


class Gap(NamedTuple):
    """Items `start:stop` of the old list became items `new_start:new_stop` of the new one."""

    start: int
    stop: int
    new_start: int
    new_stop: int


def alike(xs: Sequence[Any], ys: Sequence[Any], *, look: bool = False) -> bool:
    """Whether two runs of the same length are the same, at the speed of an encoder.

    With `look`, compare for equality before encoding: useful where they probably differ. A value
    that cannot be stored is never the same as another.
    """
    if xs[0] is ys[0] or xs[-1] is ys[-1]:  # perhaps they share most: leave out what they do
        apart = list(map(is_not, xs, ys))
        xs, ys = list(compress(xs, apart)), list(compress(ys, apart))
    try:
        if look and xs != ys:
            return False
        if _pack(xs) == _pack(ys):
            return True
        # Equal and yet other bytes: names in another order, or a number of another kind.
        return (look or bool(xs == ys)) and packed(xs) == packed(ys)
    except UNFIT:
        return False


def places_apart(xs: Sequence[Any], ys: Sequence[Any], *, look: bool = False) -> list[int]:
    """Where two lists of the same length differ, or hold a value that cannot be stored."""
    size = RUN
    while size >= len(xs) and size > 1:  # a single run would be searched at once
        size //= _PARTS
    found: list[int] = []
    for at in range(0, len(xs), size):
        _search(xs, ys, at, min(at + size, len(xs)), found, look=look or size < RUN)
    return found


def _search(
    xs: Sequence[Any], ys: Sequence[Any], start: int, stop: int, found: list[int], *, look: bool
) -> None:
    if alike(xs[start:stop], ys[start:stop], look=look):
        return
    if stop - start == 1:
        found.append(start)
        return
    size = max((stop - start) // _PARTS, 1)
    for at in range(start, stop, size):
        _search(xs, ys, at, min(at + size, stop), found, look=True)


def gaps(old: Sequence[Any], new: Sequence[Any]) -> list[Gap]:
    """Where two lists differ, from front to back."""
    head = _shared(old, new)
    tail = _shared_tail(old[head:], new[head:])
    whole = Gap(head, len(old) - tail, head, len(new) - tail)
    if whole.start == whole.stop or whole.new_start == whole.new_stop:
        return [whole] if whole.start < whole.stop or whole.new_start < whole.new_stop else []
    keys = [packed(item) for item in old[whole.start : whole.stop]]
    new_keys = [packed(item) for item in new[whole.new_start : whole.new_stop]]
    return [
        Gap(start + head, stop + head, new_start + head, new_stop + head)
        for start, stop, new_start, new_stop in _between(keys, new_keys)
    ]


def _shared(xs: Sequence[Any], ys: Sequence[Any]) -> int:
    """The length of the common prefix."""
    most = min(len(xs), len(ys))
    for start in range(0, most, RUN):
        x, y = xs[start : min(start + RUN, most)], ys[start : min(start + RUN, most)]
        if not alike(x, y):
            if not same(x[0], y[0]):  # nothing more in common: no need to search the whole run
                return start
            for place in places_apart(x, y):
                if not same(x[place], y[place]):
                    return start + place
    return most


def _shared_tail(xs: Sequence[Any], ys: Sequence[Any]) -> int:
    """The length of the common suffix."""
    most = min(len(xs), len(ys))
    xs, ys = xs[len(xs) - most :], ys[len(ys) - most :]
    for stop in range(most, 0, -RUN):
        x, y = xs[max(stop - RUN, 0) : stop], ys[max(stop - RUN, 0) : stop]
        if not alike(x, y):
            for place in reversed(places_apart(x, y)):
                if not same(x[place], y[place]):
                    return most - stop + len(x) - 1 - place
    return most


def _between(keys: list[bytes], new_keys: list[bytes]) -> list[Gap]:
    found: list[Gap] = []
    start = new_start = 0
    for anchor, new_anchor in [*_anchors(keys, new_keys), (len(keys), len(new_keys))]:
        stop, new_stop = anchor, new_anchor
        while start < stop and new_start < new_stop and keys[start] == new_keys[new_start]:
            start, new_start = start + 1, new_start + 1
        while start < stop and new_start < new_stop and keys[stop - 1] == new_keys[new_stop - 1]:
            stop, new_stop = stop - 1, new_stop - 1
        if start < stop or new_start < new_stop:
            found.append(Gap(start, stop, new_start, new_stop))
        start, new_start = anchor + 1, new_anchor + 1
    return found


def _anchors(keys: list[bytes], new_keys: list[bytes]) -> list[tuple[int, int]]:
    """Pairs of indexes of items that occur once on each side: the longest run in one order."""
    times, new_times = Counter(keys), Counter(new_keys)
    once = {key: index for index, key in enumerate(keys) if times[key] == 1}
    pairs = [
        (once[key], index)
        for index, key in enumerate(new_keys)
        if new_times[key] == 1 and key in once
    ]
    lows: list[int] = []  # the smallest old index with which a run of this length can end
    ends: list[int] = []  # and the pair it belongs to
    before: list[int] = []  # for each pair the one before it in its run
    for number, (index, _) in enumerate(pairs):
        length = bisect_left(lows, index)
        before.append(ends[length - 1] if length else -1)
        lows[length : length + 1] = [index]
        ends[length : length + 1] = [number]
    run: list[tuple[int, int]] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        run.append(pairs[number])
        number = before[number]
    return run[::-1]
