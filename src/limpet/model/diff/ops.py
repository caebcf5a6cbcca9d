"""Diff to operations: the fewest and smallest that change state as the changes do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from limpet.model import ops as op
from limpet.model.diff.changes import Change, Kind
from limpet.model.ops import Path, PlainOp
from limpet.model.values import FrozenDict


class _MergedNames:
    """Values for several names of one dict, which become one Merge.

    A later change may join even if others come between, as long as those are below the same dict
    and touch other names: their order does not matter then.
    """

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.values: dict[str, Any] = {}
        self.touched: set[str | int] = set()

    def op(self) -> PlainOp:
        if len(self.values) > 1:
            return op.Merge(self.parent, FrozenDict(self.values))
        ((name, value),) = self.values.items()
        return op.Set((*self.parent, name), value)


def to_ops(changes: Iterable[Change]) -> tuple[PlainOp, ...]:
    """The operations, each checked. Raises InvalidOp for a place that no operation can reach."""
    made: list[PlainOp | _MergedNames] = []
    open_: list[_MergedNames] = []  # those a change may still join, each above the next
    for change in changes:
        open_ = [names for names in open_ if _is_below(change.path, names.parent)]
        if _joins(change):
            _join(change, made, open_)
        else:
            made.append(_single(change))
            _touch(change.path, open_)
    plain = [each.op() if isinstance(each, _MergedNames) else each for each in made]
    return tuple([cast(PlainOp, op.check(each)) for each in plain])


def _joins(change: Change) -> bool:
    """Whether this puts a value at a name of a dict that an operation can name."""
    return len(change.path) > 1 and isinstance(change.path[-1], str) and change.kind != Kind.DELETE


def _join(change: Change, made: list[PlainOp | _MergedNames], open_: list[_MergedNames]) -> None:
    parent, name = change.path[:-1], change.path[-1]
    mine = [names for names in open_ if names.parent == parent and name not in names.touched]
    if mine:
        names = mine[0]
    else:
        names = _MergedNames(parent)
        made.append(names)
        open_[:] = [*(each for each in open_ if each.parent != parent), names]
    names.values[str(name)] = change.new
    _touch(change.path, [each for each in open_ if each is not names])


def _single(change: Change) -> PlainOp:
    parent, last = change.path[:-1], change.path[-1] if change.path else ""
    if change.length is None:
        return op.Delete(change.path) if change.kind is Kind.DELETE else _set(change)
    assert isinstance(last, int)  # a run of items has its index
    if change.kind is Kind.DELETE:
        return op.Cut(parent, last, last + len(change.old))
    return (
        op.Add(parent, change.new) if last == change.length else op.Insert(parent, last, change.new)
    )


def _set(change: Change) -> PlainOp:
    return op.Set(change.path, change.new)


def _touch(path: Path, open_: Iterable[_MergedNames]) -> None:
    for names in open_:
        names.touched.add(path[len(names.parent)])


def _is_below(path: Path, parent: Path) -> bool:
    return len(path) > len(parent) and path[: len(parent)] == parent
