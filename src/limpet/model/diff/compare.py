"""Compare: the walk over two values that finds what changed.

Parts that are the same object are skipped, since folds share what did not change. In the rest, runs
that are not equal are searched, and runs that are equal are encoded to check whether they are the
same: both at C speed. Parts found to be the same are not compared again.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import repeat
from typing import Any, Final

from limpet.model.canonical import SCALARS, packed, same
from limpet.model.diff.align import UNFIT, Gap, gaps, places_apart
from limpet.model.diff.changes import Change, Kind
from limpet.model.limits import VALUE_DEPTH_MAX
from limpet.model.ops import Path, show
from limpet.model.values import ABSENT, FrozenList, admit, settle

# So many levels down runs are encoded, and below everything is looked at one by one. Without a
# bound a value made for it, with all its weight at the bottom, would be encoded at every level.
SWEEPS: Final = 16


def changes_between(a: Any, b: Any) -> tuple[Change, ...]:
    """The changes that take `a` to `b`: names in order, lists from front to back."""
    found: list[Change] = []
    _compare((), _opened(a), _opened(b), SWEEPS, found)
    return tuple(found)


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
    """Whether a side has, at an index that may differ, an item that the base has elsewhere."""
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


def _compare(path: Path, a: Any, b: Any, sweeps: int, found: list[Change]) -> None:
    if a is b:
        return
    if len(path) < VALUE_DEPTH_MAX:  # a longer path would fit no operation
        if isinstance(a, dict) and isinstance(b, dict):
            _compare_dicts(path, a, b, sweeps, found)
            return
        if isinstance(a, list) and isinstance(b, list):
            _compare_lists(path, a, b, sweeps, found)
            return
    if type(a) in SCALARS and same(a, b):
        return
    old, new = _admitted(path, a), _admitted(path, b)
    if not same(old, new):
        found.append(Change(path, Kind.MODIFY, old, new))


def _compare_dicts(
    path: Path, a: dict[str, Any], b: dict[str, Any], sweeps: int, found: list[Change]
) -> None:
    names = names_apart(a, b, sweeps)
    for name in names:
        if type(name) is not str:
            settle({name: None}, _where(path))
    below = max(sweeps - 1, 0)
    for name in sorted(names):
        old, new, at = a.get(name, ABSENT), b.get(name, ABSENT), (*path, name)
        if old is ABSENT:
            found.append(Change(_encodable(at), Kind.ADD, None, _admitted(at, new)))
        elif new is ABSENT:
            found.append(Change(_encodable(at), Kind.DELETE, _admitted(at, old)))
        else:
            _compare(at, old, new, below, found)


def _compare_lists(
    path: Path, a: list[Any], b: list[Any], sweeps: int, found: list[Change]
) -> None:
    below = max(sweeps - 1, 0)
    # Decided before anything inside is compared: lists in lists would be compared twice each.
    apart = items_apart(a, b, sweeps) if len(a) == len(b) else []
    if len(a) != len(b) or (sweeps and _moved(a, b, apart)):
        _compare_runs(path, a, b, below, found)
        return
    for index in apart:
        _compare((*path, index), a[index], b[index], below, found)


def _moved(a: list[Any], b: list[Any], apart: list[int]) -> bool:
    """Whether treating items as moved keeps more of a list than treating each index as changed."""
    if len(apart) < 2:
        return False
    try:
        old = {packed(a[index]) for index in apart}
        if not any([packed(b[index]) in old for index in apart]):
            return False
        return sum([gap.stop - gap.start for gap in gaps(a, b)]) < len(apart)
    except UNFIT:  # comparing the items will say which
        return False


def _compare_runs(path: Path, a: list[Any], b: list[Any], sweeps: int, found: list[Change]) -> None:
    """Compare lists with added or removed items: pairs are compared, the rest is a run."""
    length = len(a)
    for gap in _gaps(path, a, b):
        pairs = min(gap.stop - gap.start, gap.new_stop - gap.new_start)
        at = gap.new_start + pairs  # what stands before is as in b already
        for more in range(pairs):
            index = gap.new_start + more
            _compare((*path, index), a[gap.start + more], b[index], sweeps, found)
        where = (*path, at)
        if old := _run(path, a, gap.start + pairs, gap.stop):
            found.append(Change(where, Kind.DELETE, old, None, length))
            length -= len(old)
        if new := _run(path, b, at, gap.new_stop):
            found.append(Change(where, Kind.ADD, None, new, length))
            length += len(new)


def _gaps(path: Path, a: list[Any], b: list[Any]) -> list[Gap]:
    try:
        return gaps(a, b)
    except UNFIT:  # what cannot be encoded is named by its place, or settled
        return gaps(_admitted(path, a), _admitted(path, b))


def _run(path: Path, items: list[Any], start: int, stop: int) -> FrozenList:
    return FrozenList([_admitted((*path, at), items[at]) for at in range(start, stop)])


def _opened(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else _admitted((), value)


def _admitted(path: Path, value: Any) -> Any:
    return admit(value, _where(path))


def _encodable(path: Path) -> Path:
    """The path, if its last name can be encoded."""
    settle(path[-1], "a name")
    return path


def _where(path: Path) -> str:
    return f"the value at {show(path)}" if path else "the value"
