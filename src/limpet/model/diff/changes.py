"""Changes: single differences between two values, and how to apply or undo a list of them.

A change has a path, an old value and a new value. Changes are applied in order, so an index is the
one that the item has when its change is applied. In a list, an added or deleted run of items is one
change: its path ends with the index of the first item, its old or new value is the list of items,
and `length` is the length of the list just before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import DiffMismatch, InvalidDiff
from limpet.model.limits import VALUE_DEPTH_MAX
from limpet.model.ops import Path, look, put_at, show
from limpet.model.values import ABSENT, FrozenDict, FrozenList, admit, canonical, freeze, same

Type: TypeAlias = Literal["null", "bool", "int", "float", "text", "list", "dict"]
_TYPES: Final[dict[type, Type]] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    list: "list",
    dict: "dict",
    FrozenList: "list",
    FrozenDict: "dict",
}
_SHOWN_CHARS_MAX: Final = 60
_CUT_WORD: Final = re.compile(r'(?<=[\s",:\[{])[^\s",:\[{…]{1,40}…$')  # an id has at most 40
_ALIKE_CHARS: Final = 12  # shown of what two long values have in common


class Kind(StrEnum):
    """The kind of a change at its path."""

    ADD = "add"
    MODIFY = "modify"
    DELETE = "delete"


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False, eq=False):
    """One difference. Two changes are equal only if all their values are exactly equal."""

    path: Path
    kind: Kind
    old: Any = None  # None also for an ADD, which has none
    new: Any = None  # None also for a DELETE
    length: int | None = None  # of the list before a run of items is added to it or taken from it

    @property
    def type(self) -> Type:
        """The type of the new value, or of the deleted one."""
        return _TYPES[type(self.old if self.kind is Kind.DELETE else self.new)]

    def inverse(self) -> Change:
        """Return the change that undoes this one."""
        match self.kind:
            case Kind.MODIFY:
                return Change(self.path, Kind.MODIFY, self.new, self.old)
            case Kind.ADD:
                length = None if self.length is None else self.length + len(self.new)
                return Change(self.path, Kind.DELETE, self.new, None, length)
            case Kind.DELETE:
                length = None if self.length is None else self.length - len(self.old)
                return Change(self.path, Kind.ADD, None, self.old, length)

    def __eq__(self, other: object) -> bool:
        return type(other) is Change and same(self, other)

    def __hash__(self) -> int:
        return hash(canonical(self))


def check(change: Change) -> None:
    """Check that the parts of a change read from bytes are consistent. Raises InvalidDiff."""
    where = show(change.path)
    if len(change.path) > VALUE_DEPTH_MAX:
        raise InvalidDiff(f"a path of {len(change.path)} steps, more than {VALUE_DEPTH_MAX}")
    if any([type(step) is int and step < 0 for step in change.path]):
        raise InvalidDiff(f"the path {where} has an index below 0")
    if change.kind is Kind.MODIFY:
        if change.length is not None:
            raise InvalidDiff(f"a length with one value at {where}")
        return
    spare = change.old if change.kind is Kind.ADD else change.new
    if spare is not None or not change.path:
        raise InvalidDiff(f"{change.kind} at {where or 'the root'} has a value too many")
    last, items = change.path[-1], change.new if change.kind is Kind.ADD else change.old
    if isinstance(last, str):
        if change.length is not None:
            raise InvalidDiff(f"a length with one value at {where}")
    elif change.length is None or type(items) is not FrozenList or not items:
        raise InvalidDiff(f"{change.kind} at {where} has no run of items")
    elif last + (len(items) if change.kind is Kind.DELETE else 0) > change.length:
        raise InvalidDiff(f"{change.kind} at {where} reaches past the end")


def apply(value: Any, changes: Iterable[Change]) -> Any:
    """The value after the changes. `value` is not modified; unchanged parts are shared.

    Raises DiffMismatch at the first change whose old value does not match.
    """
    whole = freeze(value) if isinstance(value, (dict, list)) else admit(value, "the value")
    top = FrozenDict({"": whole})
    ours: dict[int, Any] = {id(top): top}  # kept, so that no id is used again meanwhile
    for change in changes:
        _apply_one(top, change, ours)
    return top[""]


def _apply_one(top: FrozenDict, change: Change, ours: dict[int, Any]) -> None:
    holder: Any = top
    *way, last = "", *change.path
    for depth, step in enumerate(way):
        inner = look(holder, step)
        if not isinstance(inner, (dict, list)):
            kind = "a dict" if isinstance((*way, last)[depth + 1], str) else "a list"
            raise DiffMismatch(_place(change.path[:depth]), kind, brief(inner))
        if id(inner) not in ours:
            inner = FrozenDict(inner) if isinstance(inner, dict) else FrozenList(inner)
            ours[id(inner)] = inner
            put_at(holder, step, inner)
        holder = inner
    if change.length is not None:
        _splice(holder, change)
        return
    before = look(holder, last)
    if not same(before, ABSENT if change.kind is Kind.ADD else change.old):
        expected = "nothing" if change.kind is Kind.ADD else brief(change.old)
        raise DiffMismatch(_place(change.path), expected, brief(before))
    if change.kind is Kind.DELETE:
        dict.__delitem__(holder, last)
    elif change.kind is Kind.ADD and not isinstance(holder, dict):
        raise DiffMismatch(_place(change.path[:-1]), "a dict", "a list")
    else:
        put_at(holder, last, change.new)


def _splice(holder: Any, change: Change) -> None:
    where, at, old = change.path[:-1], change.path[-1], change.old or ()
    assert isinstance(at, int)  # a run of items has its index
    if not isinstance(holder, list):
        raise DiffMismatch(_place(where), "a list", "a dict")
    if len(holder) != change.length:
        raise DiffMismatch(_place(where), f"a list of {change.length:,}", f"one of {len(holder):,}")
    replaced = holder[at : at + len(old)]
    if not same(replaced, list(old)):
        raise DiffMismatch(_place(change.path), brief(old), brief(replaced))
    list.__setitem__(holder, slice(at, at + len(old)), change.new or ())


def brief(value: Any, chars_max: int = _SHOWN_CHARS_MAX) -> str:
    """A value on one line of a terminal: its JSON, cut short, without control characters.

    It is cut between words: half of an id is worse than none.
    """
    return _CUT_WORD.sub("…", _cut(_text(value), 0, chars_max))


def brief_pair(old: Any, new: Any, chars_max: int = _SHOWN_CHARS_MAX) -> tuple[str, str]:
    """Two values side by side, starting shortly before the first difference."""
    texts = _text(old), _text(new)
    start = 0
    if max(map(len, texts)) > chars_max:
        alike = _alike(*texts)
        start = alike - _ALIKE_CHARS if alike > chars_max // 2 else 0
    return _cut(texts[0], start, chars_max), _cut(texts[1], start, chars_max)


def _alike(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    most = min(len(one), len(other))
    return next((at for at in range(most) if one[at] != other[at]), most)


def _text(value: Any) -> str:
    return "nothing" if value is ABSENT else canonical(value).decode()


def _cut(text: str, start: int, chars_max: int) -> str:
    if start:
        text = "…" + text[start:]
    if len(text) > chars_max:
        text = text[: chars_max - 1] + "…"
    return printable(text)


def printable(text: str) -> str:
    """The text without characters that could move the cursor of a terminal or color its lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _place(path: Path) -> str:
    return show(path) or "the root"
