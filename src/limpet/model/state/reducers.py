"""Reducers: how an update combines with the value that a field holds.

A reducer is declared on a field of a State: `Annotated[list[Message], append]`. It works on plain
values and has two forms: `fold` computes the new value, `ops` the smallest operations that produce
it. Applying the ops to a state whose field holds the old value must give the folded value.

Reducers that never read the old value are not guarded, so writers that only add rebase without
conflicts. The others compute from the value they read: their ops are valid for that value only, so
the field's version is guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from limpet.errors import ReducerConfigurationInvalid, SchemaViolation
from limpet.model.ops import Add, Cut, Merge, PlainOp, Set
from limpet.model.values import ABSENT, canonical, described

# Beyond this many changed items the whole list is Set: the operations of an event are limited, and
# each one copies the list.
CHANGED_ITEMS_MAX: Final = 256

Holder: TypeAlias = Literal["any", "list", "dict"]
KeyOf: TypeAlias = str | Callable[[Any], Any]  # a name or a dotted path, or a function of the item


class Compiled(msgspec.Struct, frozen=True):
    """An update as operations; `guarded` if they are valid only for the value that was read."""

    ops: tuple[PlainOp, ...]
    guarded: bool = False


class Replace(msgspec.Struct, frozen=True):
    """A value in an update that bypasses the field's reducer, for example `Replace([])`.

    It is checked against the field's type and rules, and ignores what the field held.
    """

    value: Any


class Reducer(msgspec.Struct, frozen=True):
    """The rule by which an update changes a field."""

    holds: ClassVar[Holder] = "any"  # what the field must be
    nests: ClassVar[bool] = False  # the update is a list of what the field holds

    @property
    def name(self) -> str:
        """Its name in code, with its parameters."""
        return type(self).__name__

    def fold(self, old: Any, update: Any, field: str = "field") -> Any:
        """The value of the field after `update`. `old` is ABSENT if the field does not exist."""
        raise NotImplementedError

    def ops(self, field: str, old: Any, update: Any) -> Compiled:
        """The operations that have the same effect as `fold`."""
        raise NotImplementedError


class LastWriteWins(Reducer, frozen=True):
    """The update is the new value."""

    @property
    def name(self) -> str:
        return "last_write_wins"

    def fold(self, old: Any, update: Any, field: str = "field") -> Any:
        return update

    def ops(self, field: str, old: Any, update: Any) -> Compiled:
        return Compiled((Set((field,), update),))


class Append(Reducer, frozen=True):
    """Appends the update's items to the list."""

    holds: ClassVar[Holder] = "list"

    @property
    def name(self) -> str:
        return "append"

    def fold(self, old: Any, update: Any, field: str = "field") -> Any:
        return [*_list(old, field), *self._items(update, field)]

    def ops(self, field: str, old: Any, update: Any) -> Compiled:
        _list(old, field)
        items = self._items(update, field)
        return Compiled((Add((field,), items),) if items or old is ABSENT else ())

    def _items(self, update: Any, field: str) -> list[Any]:
        return _list(update, field)


class ConcatFlatten(Append, frozen=True):
    """The update is a list of lists; appends all their items to the list."""

    nests: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "concat_flatten"

    def _items(self, update: Any, field: str) -> list[Any]:
        parts = [_list(part, f"{field}[{at}]") for at, part in enumerate(_list(update, field))]
        return [item for part in parts for item in part]


class MergeDict(Reducer, frozen=True):
    """Puts the update's names into the dict, one level deep."""

    holds: ClassVar[Holder] = "dict"

    @property
    def name(self) -> str:
        return "merge"

    def fold(self, old: Any, update: Any, field: str = "field") -> Any:
        return {**_dict(old, field), **self._names(update, field)}

    def ops(self, field: str, old: Any, update: Any) -> Compiled:
        _dict(old, field)
        names = self._names(update, field)
        return Compiled((Merge((field,), names),) if names or old is ABSENT else ())

    def _names(self, update: Any, field: str) -> dict[str, Any]:
        return _dict(update, field)


class MergeAll(MergeDict, frozen=True):
    """The update is a list of dicts, put into the dict in their order."""

    nests: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "merge_all"

    def _names(self, update: Any, field: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for at, part in enumerate(_list(update, field)):
            names.update(_dict(part, f"{field}[{at}]"))
        return names


class BoundedAppend(Reducer, frozen=True):
    """Append, then keep the newest `n` items. An empty update changes nothing."""

    holds: ClassVar[Holder] = "list"
    n: int

    @property
    def name(self) -> str:
        return f"bounded_append({self.n})"

    def fold(self, old: Any, update: Any, field: str = "field") -> Any:
        held, items = _list(old, field), _list(update, field)
        return [*held, *items][-self.n :] if items else list(held)

    def ops(self, field: str, old: Any, update: Any) -> Compiled:
        held, items = _list(old, field), _list(update, field)[-self.n :]
        if not items:
            return Compiled((Add((field,), items),) if old is ABSENT else ())
        if len(items) == self.n:  # no old item remains
            return Compiled((Set((field,), items),))
        made: list[PlainOp] = [Add((field,), items)]
        if (over := len(held) + len(items) - self.n) > 0:
            made.append(Cut((field,), 0, over))
        return Compiled(tuple(made), guarded=True)


class Item(dict[str, Any]):
    """An item of an update with only some names given; the others are defaults."""

    __slots__ = ("explicit",)

    def __init__(self, names: dict[str, Any], explicit: Iterable[str]) -> None:
        super().__init__(names)
        self.explicit = tuple([name for name in names if name in explicit])


class Keyed(Reducer, frozen=True):
    """A reducer that identifies items by a key: a name in each item, or a dotted path of names.

    On the state of a graph the key may also be a function of the item. A typed session refuses
    one: what it stores must mean the same to every program that reads it.
    """

    holds: ClassVar[Holder] = "list"
    key: KeyOf | None

    @property
    def key_name(self) -> str:
        """The key as errors show it."""
        return getattr(self.key, "__name__", "a function") if callable(self.key) else repr(self.key)

    def marks(self, items: Iterable[Any]) -> list[Any]:
        """A comparable form of each item's key; None if it has no key.

        Text is compared directly, anything else by its canonical bytes, which never equal a text:
        1, 1.0 and True are three different keys.
        """
        if self.key is None:
            return list(map(canonical, items))
        assert isinstance(self.key, str)  # as the declaration of a typed session checks
        values: list[Any] = list(items)
        for step in self.key.split("."):
            values = [v.get(step) if isinstance(v, dict) else None for v in values]
        return [v if v is None or type(v) is str else canonical(v) for v in values]

    def marks_of_update(self, update: Any, field: str) -> list[Any]:
        marks = self.marks(_list(update, field))
        if None in marks:
            at = marks.index(None)
            where = f"{field}[{at}].{self.key}"
            raise SchemaViolation(where, "a key that is not None", described(update[at]))
        return marks


class DedupeAppend(Keyed, frozen=True):
    """Append only items whose key is new; of several with the same key the first wins."""

    @property
    def name(self) -> str:
        return f"dedupe_append({self.key_name})"

    def fold(self, old: Any, update: Any, field: str = "field") -> Any:
        return [*_list(old, field), *self._new(old, update, field)]

    def ops(self, field: str, old: Any, update: Any) -> Compiled:
        items = self._new(old, update, field)
        made = (Add((field,), items),) if items or old is ABSENT else ()
        return Compiled(made, guarded=bool(update))

    def _new(self, old: Any, update: Any, field: str) -> list[Any]:
        marks, held = self.marks_of_update(update, field), _list(old, field)
        if not marks:
            return []
        seen = set(self.marks(held))
        new = []
        for mark, item in zip(marks, update, strict=True):
            if mark not in seen:
                seen.add(mark)
                new.append(item)
        return new


class MergeByKey(Keyed, frozen=True):
    """Merges an item into the existing item with the same key, in place; appends the others.

    Items merge as dicts do: the update's names win, and names that only the old item has stay.
    Defaults that were not given explicitly count only for new items. If several old items have the
    key, the first is used. The state of a graph has rules of its own: see `graph.engine.fold`.
    """

    key: KeyOf

    @property
    def name(self) -> str:
        return f"merge_by_key({self.key_name})"

    def fold(self, old: Any, update: Any, field: str = "field") -> Any:
        held = _list(old, field)
        changed, new = self._parted(held, update, field)
        whole = list(held)
        for at, names in changed.items():
            whole[at] = {**whole[at], **names}
        return [*whole, *new]

    def ops(self, field: str, old: Any, update: Any) -> Compiled:
        changed, new = self._parted(_list(old, field), update, field)
        if len(changed) > CHANGED_ITEMS_MAX:
            return Compiled((Set((field,), self.fold(old, update, field)),), guarded=True)
        made: list[PlainOp] = [Merge((field, at), names) for at, names in changed.items()]
        if new or old is ABSENT:
            made.append(Add((field,), new))
        return Compiled(tuple(made), guarded=bool(update))

    def _parted(
        self, held: list[Any], update: Any, field: str
    ) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
        """The changed names of old items, by index, and the new items."""
        marks = self.marks_of_update(update, field)
        if not marks:
            return {}, []
        places: dict[Any, int] = {}
        for at, mark in enumerate(self.marks(held)):
            places.setdefault(mark, at)
        merged: dict[int, dict[str, Any]] = {}
        new: list[dict[str, Any]] = []
        for mark, item in zip(marks, update, strict=True):
            at = places.setdefault(mark, len(held) + len(new))
            if at < len(held):
                merged.setdefault(at, {}).update(_explicit(item))
            elif at - len(held) < len(new):
                new[at - len(held)] = {**new[at - len(held)], **_explicit(item)}
            else:
                new.append(dict(item))
        return {at: some for at, names in merged.items() if (some := _news(held[at], names))}, new


last_write_wins: Final = LastWriteWins()
append: Final = Append()
merge: Final = MergeDict()
concat_flatten: Final = ConcatFlatten()
merge_all: Final = MergeAll()


def bounded_append(max_len: int) -> BoundedAppend:
    """Append, then keep the newest `max_len` items. An empty update changes nothing."""
    if type(max_len) is not int or max_len < 1:
        raise ReducerConfigurationInvalid(
            f"bounded_append takes a number of at least 1, not {max_len!r}"
        )
    return BoundedAppend(max_len)


def dedupe_append(key: KeyOf | None = None) -> DedupeAppend:
    """Append only items whose `key` is new; without a key, only items that are new."""
    if key is not None:
        _check_key("dedupe_append", key)
    return DedupeAppend(key)


def merge_by_key(key: KeyOf) -> MergeByKey:
    """Merge items into those of the same `key`, and append the others."""
    _check_key("merge_by_key", key)
    return MergeByKey(key)


FACTORIES: Final = (bounded_append, dedupe_append, merge_by_key)


def _check_key(reducer: str, key: object) -> None:
    if not callable(key) and (not isinstance(key, str) or not all(key.split("."))):
        reason = f"{reducer} takes the name of a field, a dotted path or a function, not {key!r}"
        raise ReducerConfigurationInvalid(reason)


def _explicit(item: dict[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in item.explicit} if isinstance(item, Item) else item


def _news(old: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Return those of `names` that are missing from `old` or have another value there."""
    return {n: v for n, v in names.items() if n not in old or canonical(old[n]) != canonical(v)}


def _list(value: Any, field: str) -> list[Any]:
    if value is ABSENT:
        return []
    if not isinstance(value, list):
        raise SchemaViolation(field, "list", described(value))
    return value


def _dict(value: Any, field: str) -> dict[str, Any]:
    if value is ABSENT:
        return {}
    if not isinstance(value, dict):
        raise SchemaViolation(field, "dict", described(value))
    return value


def reducer_of(metadata: Iterable[Any]) -> Reducer:
    """The reducer among a field's annotations."""
    reducers = [item for item in metadata if isinstance(item, Reducer)]
    return reducers[0] if reducers else last_write_wins
