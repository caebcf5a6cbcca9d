"""Compare: the walk over two values that finds what changed.

Parts that are the same object are skipped, since folds share what did not change. In the rest, runs
that are not equal are searched, and runs that are equal are encoded to check whether they are the
same: both at C speed. Parts found to be the same are not compared again. Lists of other lengths, or
with moved items, are aligned by the items that occur once on each side.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import compress, repeat
from operator import is_not
from typing import Any, Final, NamedTuple

import msgspec

from limpet.model.diff.changes import Change, Kind
from limpet.model.limits import VALUE_DEPTH_MAX
from limpet.model.ops import Path, show
from limpet.model.values import ABSENT, SCALARS, FrozenList, admit, packed, same, settle

# So many levels down runs are encoded, and below everything is looked at one by one. Without a
# bound a value made for it, with all its weight at the bottom, would be encoded at every level.
SWEEPS: Final = 16


RUN: Final = 512  # items compared at once
_PARTS: Final = 8  # into which a run that differs is divided
_pack: Final = msgspec.msgpack.Encoder().encode  # in the order that names have: faster
UNFIT: Final = (TypeError, ValueError, OverflowError, RecursionError)  # what an encoder raises


def changes_between(a: Any, b: Any) -> tuple[Change, ...]:
    """The changes that take `a` to `b`: names in order, lists from front to back."""
    changes: list[Change] = []
    _compare((), _plain_value(a), _plain_value(b), SWEEPS, changes)
    return tuple(changes)


def names_apart(a: dict[str, Any], b: dict[str, Any], sweeps: int) -> list[str]:
    """Names that cover every difference of two dicts, unordered; without sweeps, also others."""
    if sweeps:
        names = list(a)
        if len(b) == len(names) and names == list(b):
            news = list(b.values())
        else:
            news = list(map(b.get, names, repeat(ABSENT)))
        apart = [names[place] for place in places_apart(list(a.values()), news, look=True)]
    else:
        apart = [name for name, old in a.items() if old is not b.get(name, ABSENT)]
    gone = len([name for name in apart if name not in b])
    if len(b) > len(a) - gone:
        apart += [name for name in b if name not in a]
    return apart


def items_apart(a: list[Any], b: list[Any], sweeps: int) -> list[int]:
    """Indexes that cover every difference of two lists of one length; without sweeps, more."""
    if sweeps:
        return places_apart(a, b)
    return [index for index, old in enumerate(a) if old is not b[index]]


def moved(base: list[Any], *sides: tuple[list[Any], Collection[int]]) -> bool:
    """True if a side has, at an index that may differ, an item that the base has elsewhere."""
    if len(base) < 2:
        return False
    keys = [packed(item) for item in base]
    known = set(keys)
    for side, apart in sides:
        for index in apart:
            key = packed(side[index])
            if key != keys[index] and key in known:
                return True
    return False


def _compare(path: Path, a: Any, b: Any, sweeps: int, changes: list[Change]) -> None:
    if a is b:
        return
    if len(path) < VALUE_DEPTH_MAX:  # a longer path would fit no operation
        if isinstance(a, dict) and isinstance(b, dict):
            _compare_dicts(path, a, b, sweeps, changes)
            return
        if isinstance(a, list) and isinstance(b, list):
            _compare_lists(path, a, b, sweeps, changes)
            return
    if type(a) in SCALARS and same(a, b):
        return
    old, new = _admit(path, a), _admit(path, b)
    if not same(old, new):
        changes.append(Change(path, Kind.MODIFY, old, new))


def _compare_dicts(
    path: Path, a: dict[str, Any], b: dict[str, Any], sweeps: int, changes: list[Change]
) -> None:
    names = names_apart(a, b, sweeps)
    for name in names:
        if type(name) is not str:
            settle({name: None}, _where(path))
    below = max(sweeps - 1, 0)
    for name in sorted(names):
        old, new, at = a.get(name, ABSENT), b.get(name, ABSENT), (*path, name)
        if old is ABSENT:
            changes.append(Change(_encodable(at), Kind.ADD, None, _admit(at, new)))
        elif new is ABSENT:
            changes.append(Change(_encodable(at), Kind.DELETE, _admit(at, old)))
        else:
            _compare(at, old, new, below, changes)


def _compare_lists(
    path: Path, a: list[Any], b: list[Any], sweeps: int, changes: list[Change]
) -> None:
    below = max(sweeps - 1, 0)
    # Decided before anything inside is compared: lists in lists would be compared twice each.
    apart = items_apart(a, b, sweeps) if len(a) == len(b) else []
    if len(a) != len(b) or (sweeps and _prefers_moves(a, b, apart)):
        _compare_runs(path, a, b, below, changes)
        return
    for index in apart:
        _compare((*path, index), a[index], b[index], below, changes)


def _prefers_moves(a: list[Any], b: list[Any], apart: list[int]) -> bool:
    """True if treating items as moved keeps more of a list than treating each index as changed."""
    if len(apart) < 2:
        return False
    try:
        old = {packed(a[index]) for index in apart}
        if not any([packed(b[index]) in old for index in apart]):
            return False
        return sum([gap.stop - gap.start for gap in gaps(a, b)]) < len(apart)
    except UNFIT:  # comparing the items will say which
        return False


def _compare_runs(
    path: Path, a: list[Any], b: list[Any], sweeps: int, changes: list[Change]
) -> None:
    """Compare lists with added or removed items: pairs are compared, the rest is a run."""
    length = len(a)
    for gap in _gaps(path, a, b):
        pairs = min(gap.stop - gap.start, gap.new_stop - gap.new_start)
        at = gap.new_start + pairs  # what stands before is as in b already
        for more in range(pairs):
            index = gap.new_start + more
            _compare((*path, index), a[gap.start + more], b[index], sweeps, changes)
        where = (*path, at)
        if old := _run(path, a, gap.start + pairs, gap.stop):
            changes.append(Change(where, Kind.DELETE, old, None, length))
            length -= len(old)
        if new := _run(path, b, at, gap.new_stop):
            changes.append(Change(where, Kind.ADD, None, new, length))
            length += len(new)


def _gaps(path: Path, a: list[Any], b: list[Any]) -> list[Gap]:
    try:
        return gaps(a, b)
    except UNFIT:  # what cannot be encoded is named by its place, or settled
        return gaps(_admit(path, a), _admit(path, b))


def _run(path: Path, items: list[Any], start: int, stop: int) -> FrozenList:
    return FrozenList([_admit((*path, at), items[at]) for at in range(start, stop)])


def _plain_value(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else _admit((), value)


def _admit(path: Path, value: Any) -> Any:
    return admit(value, _where(path))


def _encodable(path: Path) -> Path:
    """The path, if its last name can be encoded."""
    settle(path[-1], "a name")
    return path


def _where(path: Path) -> str:
    return f"the value at {show(path)}" if path else "the value"


# --- aligning lists -------------------------------------------------------------------------------


class Gap(NamedTuple):
    """Items `start:stop` of the old list became items `new_start:new_stop` of the new one."""

    start: int
    stop: int
    new_start: int
    new_stop: int


def alike(xs: Sequence[Any], ys: Sequence[Any], *, look: bool = False) -> bool:
    """True if two runs of the same length are the same, at the speed of an encoder.

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
    """Return the places where two lists of the same length differ, or hold a value that cannot
    be stored."""
    size = RUN
    while size >= len(xs) and size > 1:  # a single run would be searched at once
        size //= _PARTS
    places: list[int] = []
    for at in range(0, len(xs), size):
        _search(xs, ys, at, min(at + size, len(xs)), places, look=look or size < RUN)
    return places


def _search(
    xs: Sequence[Any], ys: Sequence[Any], start: int, stop: int, places: list[int], *, look: bool
) -> None:
    if alike(xs[start:stop], ys[start:stop], look=look):
        return
    if stop - start == 1:
        places.append(start)
        return
    size = max((stop - start) // _PARTS, 1)
    for at in range(start, stop, size):
        _search(xs, ys, at, min(at + size, stop), places, look=True)


def gaps(old: Sequence[Any], new: Sequence[Any]) -> list[Gap]:
    """Yield the places where two lists differ, from front to back."""
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
    aligned: list[Gap] = []
    start = new_start = 0
    for anchor, new_anchor in [*_anchors(keys, new_keys), (len(keys), len(new_keys))]:
        stop, new_stop = anchor, new_anchor
        while start < stop and new_start < new_stop and keys[start] == new_keys[new_start]:
            start, new_start = start + 1, new_start + 1
        while start < stop and new_start < new_stop and keys[stop - 1] == new_keys[new_stop - 1]:
            stop, new_stop = stop - 1, new_stop - 1
        if start < stop or new_start < new_stop:
            aligned.append(Gap(start, stop, new_start, new_stop))
        start, new_start = anchor + 1, new_anchor + 1
    return aligned


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
