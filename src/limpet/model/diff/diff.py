"""Diff: the changes between two values, as a value that can be applied, undone, stored and shown.

Its bytes are canonical JSON that ends with its own SHA-256, which is checked before decoding.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import msgspec

from limpet.errors import IntegrityViolation, InvalidDiff, InvalidOp
from limpet.model import ops as op
from limpet.model.diff import changes as change_
from limpet.model.diff.changes import Change, Kind, brief, brief_pair
from limpet.model.diff.compare import changes_between
from limpet.model.ops import Path, PlainOp, show
from limpet.model.values import FrozenDict, canonical, freeze, is_exact

FORMAT: Final = 1
_START: Final = b'{"changes":'
_END: Final = re.compile(rb',"sha256":"([0-9a-f]{64})"\}').fullmatch
_END_BYTES: Final = len(',"sha256":""}') + 64


class Diff(msgspec.Struct, frozen=True, gc=False):
    """The changes that turn one value into another, in the order in which they apply."""

    changes: tuple[Change, ...] = ()

    @classmethod
    def of(cls, before: Any, ops: Iterable[op.PlainOp]) -> Diff:
        """Return the changes that operations make to a state. Raises as applying them does."""
        if not isinstance(before, dict):
            raise InvalidOp(f"operations change a state, which is a dict, not {op.kind(before)}")
        state = freeze(before)
        return diff(state, op.apply(state, [_settle(each) for each in ops]))

    def __bool__(self) -> bool:
        return bool(self.changes)

    def apply(self, value: Any) -> Any:
        """Return the value after the changes, read-only; unchanged parts are shared with `value`.

        Raises DiffMismatch if the value does not have the diff's old values. `value` itself is
        never modified.
        """
        return change_.apply(value, self.changes)

    def inverse(self) -> Diff:
        """Return the diff that undoes this one."""
        return Diff(tuple([change.inverse() for change in reversed(self.changes)]))

    def ops(self) -> tuple[op.PlainOp, ...]:
        """Return the operations of an append that change a state as this diff does."""
        return to_ops(self.changes)

    def cost(self, weights: Callable[[Change], float] | None = None) -> float:
        """Return the sum over all changes of `weights(change)`."""
        return sum([(weights or _moved_bytes)(change) for change in self.changes])

    def to_bytes(self) -> bytes:
        """Return it as canonical JSON with the format's number and, at the end, the SHA-256 of
        the rest."""
        body = canonical({"changes": self.changes, "format": FORMAT})
        return b'%s,"sha256":"%s"}' % (body[:-1], hashlib.sha256(body).hexdigest().encode())

    @classmethod
    def from_bytes(cls, raw: bytes) -> Diff:
        """The diff that `to_bytes` wrote.

        Raises IntegrityViolation if the bytes were changed, InvalidDiff if they are not a diff.
        """
        return Diff(_decoded(_verify(raw)))

    def __str__(self) -> str:
        return "\n".join(lines(self.changes)) or "no changes"


def diff(a: Any, b: Any) -> Diff:
    """The changes that turn `a` into `b`. Both are JSON values, read-only or not.

    Raises InvalidValue for any other value.
    """
    return Diff(changes_between(a, b))


class _Wire(msgspec.Struct, frozen=True, gc=False):
    changes: tuple[Change, ...]


class _Format(msgspec.Struct, frozen=True, gc=False):
    format: int


def _verify(raw: bytes) -> bytes:
    """The bytes without their checksum, after checking it."""
    if not isinstance(raw, bytes):
        raise InvalidDiff(f"{type(raw).__name__} instead of bytes")
    end = _END(raw[-_END_BYTES:])
    if not raw.startswith(_START) or end is None:
        raise InvalidDiff("it does not start and end like one")
    body = raw[:-_END_BYTES] + b"}"
    expected, computed = end[1].decode(), hashlib.sha256(body).hexdigest()
    if expected != computed:
        raise IntegrityViolation("a diff", expected, computed)
    return body


def _decoded(body: bytes) -> tuple[Change, ...]:
    """The diff in these bytes. A checksum does not prove that they are a diff we can read."""
    try:
        decoded = msgspec.json.decode(body, type=_Format).format
        if decoded != FORMAT:
            raise InvalidDiff(f"it has format {decoded}; this release reads {FORMAT}")
        changes = tuple([_frozen(each) for each in msgspec.json.decode(body, type=_Wire).changes])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidDiff(str(error).rstrip(".")) from error
    for change in changes:
        change_.check(change)
    return changes


def _frozen(change: Change) -> Change:
    if not (_is_storable(change.old) and _is_storable(change.new)):
        raise InvalidDiff(f"a number at {op.show(change.path)} that no state can hold")
    return Change(change.path, change.kind, freeze(change.old), freeze(change.new), change.length)


def _is_storable(value: Any) -> bool:
    if isinstance(value, dict):
        return all([_is_storable(each) for each in value.values()])
    if isinstance(value, list):
        return all([_is_storable(each) for each in value])
    return is_exact(value)


def _settle(each: op.PlainOp) -> op.PlainOp:
    """The operation with a read-only value; the caller's own is not modified."""
    checked = op.check(each)
    if type(checked) in op.REFS:
        raise InvalidOp(f"{type(checked).__name__} refers to an event's data; resolve it first")
    copy = msgspec.structs.replace(checked)
    op.frozen(copy)
    return copy  # type: ignore[return-value]  # no reference, as just seen


def _moved_bytes(change: Change) -> int:
    moved = len(canonical(change.path))
    return moved if change.kind is Kind.DELETE else moved + len(canonical(change.new))


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
    """True if this puts a value at a name of a dict that an operation can name."""
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
        if change.kind is Kind.DELETE:
            return op.Delete(change.path)
        return op.Set(change.path, change.new)
    assert isinstance(last, int)  # a run of items has its index
    if change.kind is Kind.DELETE:
        return op.Cut(parent, last, last + len(change.old))
    return (
        op.Add(parent, change.new) if last == change.length else op.Insert(parent, last, change.new)
    )


def _touch(path: Path, open_: Iterable[_MergedNames]) -> None:
    for names in open_:
        names.touched.add(path[len(names.parent)])


def _is_below(path: Path, parent: Path) -> bool:
    return len(path) > len(parent) and path[: len(parent)] == parent


SIGNS: Final = {Kind.ADD: "+", Kind.MODIFY: "~", Kind.DELETE: "-"}
_LINE_CHARS_MAX: Final = 60


def lines(changes: Iterable[Change]) -> Iterator[str]:
    """One line for each change: its sign, its path, the old and the new value."""
    for change in changes:
        values = " → ".join(filter(None, old_and_new(change, _LINE_CHARS_MAX)))
        yield f"{SIGNS[change.kind]} {place(change)}: {values}"


def place(change: Change) -> str:
    """Return the place of a change; for a run of several items, as a slice."""
    items = change.old if change.kind is Kind.DELETE else change.new
    if change.length is None or len(items) == 1:
        return show(change.path) or "the root"
    start = change.path[-1]
    assert isinstance(start, int)  # a run of items has its index
    above: Path = change.path[:-1]
    return f"{show(above)}[{start}:{start + len(items)}]"


def old_and_new(change: Change, chars_max: int) -> tuple[str, str]:
    """Old and new value for display; a missing one is empty."""
    match change.kind:
        case Kind.ADD:
            return "", brief(_one(change, change.new), chars_max)
        case Kind.DELETE:
            return brief(_one(change, change.old), chars_max), ""
        case Kind.MODIFY:
            return brief_pair(change.old, change.new, chars_max)


def _one(change: Change, value: object) -> object:
    """A run of one item is shown as that item."""
    if change.length is not None and isinstance(value, list) and len(value) == 1:
        return value[0]
    return value
