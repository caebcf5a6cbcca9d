"""Folding: what each reducer does to a field that holds Python values.

The reducers of `model` work on plain JSON values. Here the items of a list may be pydantic models,
so items are identified by attributes as well as by names. `changed` gives the operations by which a
stored field follows; each costs what the step changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pydantic_core import to_jsonable_python

from limpet.model import Path, PlainOp, canonical
from limpet.model.ops import Add, Merge, Set
from limpet.model.state.reducers import (
    Append,
    BoundedAppend,
    ConcatFlatten,
    DedupeAppend,
    Keyed,
    LastWriteWins,
    MergeAll,
    MergeByKey,
    MergeDict,
    Reducer,
)

Fold: TypeAlias = Callable[[Any, Any, Any], Any]  # the reducer, the old value, the update
# What a field must be, by what its reducer holds. Updates may be any of these, too.
CONTAINERS: Final[dict[str, tuple[type, ...]]] = {"list": (list, tuple), "dict": (dict,)}


def _replace(reducer: Reducer, old: Any, update: Any) -> Any:
    return update


def _append(reducer: Reducer, old: Any, update: Any) -> Any:
    return [*old, *update] if type(old) is list else (*old, *update)


def _flatten(reducer: Reducer, old: Any, update: Any) -> Any:
    return _append(reducer, old, [item for part in update for item in part])


def _bounded(reducer: BoundedAppend, old: Any, update: Any) -> Any:
    return _append(reducer, old, update)[-reducer.n :]


def _merge(reducer: Reducer, old: Any, update: Any) -> Any:
    return {**old, **update}


def _merge_all(reducer: Reducer, old: Any, update: Any) -> Any:
    made = dict(old)
    for part in update:
        made.update(part)
    return made


def _dedupe(reducer: DedupeAppend, old: Any, update: Any) -> Any:
    seen = {_mark(reducer, item) for item in old}
    new = []
    for item in update:
        mark = _known(reducer, item)
        if mark not in seen:
            seen.add(mark)
            new.append(item)
    return _append(reducer, old, new)


def _merge_by_key(reducer: MergeByKey, old: Any, update: Any) -> Any:
    """An item takes the place of the last one with its key, whole; one with a new key is added."""
    places = {_mark(reducer, item): at for at, item in enumerate(old)}
    made = list(old)
    for item in update:
        at = places.setdefault(_known(reducer, item), len(made))
        if at == len(made):
            made.append(item)
        else:
            made[at] = item
    return made if type(old) is list else tuple(made)


def _mark(reducer: Keyed, item: Any) -> Any:
    """A comparable form of an item's key; None if it has none. 1, 1.0 and True differ."""
    value, key = item, reducer.key
    if callable(key):
        value = key(item)
    elif key is not None:
        for step in key.split("."):
            value = value.get(step) if isinstance(value, dict) else getattr(value, step, None)
            if value is None:
                break
    if value is None and key is not None:
        return None
    return value if type(value) is str else canonical(to_jsonable_python(value))


def _known(reducer: Keyed, item: Any) -> Any:
    if (mark := _mark(reducer, item)) is None:
        raise ValueError(f"an item has no key {reducer.key_name}")
    return mark


# By exact class: a subclass is a reducer of the user's own, whose `fold` is called.
FOLDS: Final[dict[type[Reducer], Fold]] = {
    LastWriteWins: _replace,
    Append: _append,
    ConcatFlatten: _flatten,
    MergeDict: _merge,
    MergeAll: _merge_all,
    BoundedAppend: _bounded,
    DedupeAppend: _dedupe,
    MergeByKey: _merge_by_key,
}
_ADDING: Final = (Append, ConcatFlatten, DedupeAppend, MergeByKey)
_MERGING: Final = (MergeDict, MergeAll)


def changed(
    reducer: Reducer, path: Path, was: Any, now: Any, dump: Callable[[Any], Any]
) -> list[PlainOp]:
    """The operations that turn the stored form of `was` at `path` into that of `now`.

    `now` is what the reducer's fold made of `was`. Old items are compared by identity: the folds
    keep every item that they do not change.
    """
    kind = type(reducer)
    if kind in _ADDING:
        ops: list[PlainOp] = []
        if kind is MergeByKey:
            ops = [
                Set((*path, at), dump(type(now)([new]))[0])
                for at, (old, new) in enumerate(zip(was, now, strict=False))
                if old is not new
            ]
        tail = dump(now[len(was) :])
        return [*ops, Add(path, tail)] if tail else ops
    if kind in _MERGING:
        names = {n: v for n, v in now.items() if n not in was or was[n] is not v}
        return [Merge(path, dump(names))] if names else []
    return [Set(path, dump(now))]
