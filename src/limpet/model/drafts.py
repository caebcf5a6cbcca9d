"""Drafts: what a caller proposes to record, and the operations that it asks for.

The short forms (`set`, `merge`, `add`, `inc`, `delete`) become operations here. A value that is
also in the event's data becomes a reference to it, so it is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from limpet.errors import InvalidEvent, InvalidOp
from limpet.model import ops as op
from limpet.model.keys import unfit
from limpet.model.limits import INT_MAX, INT_MIN, NAME_CHARS_MAX, OPS_PER_EVENT_MAX

_Set: Final = op.Set
_SUGAR: Final = ("set", "merge", "add", "inc")
# A reference is worth its bytes only for text longer than this; containers always are.
_REFER_CHARS_MIN: Final = 48
_REFERABLE: Final = frozenset((str, dict, list))

# Operations that only set names of the session, and the values of these; None: no name is set.
Sets: TypeAlias = tuple[tuple[op.Set, ...], dict[str, Any] | None]
NOTHING_SET: Final[Sets] = ((), None)


class Trace(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The ids that tie an event to what led to it: `trace=limpet.Trace(cause=question.id)`."""

    cause: str | None = None  # id of the event that this one answers
    invocation_id: str | None = None  # of the call that the event belongs to
    correlation_id: str | None = None  # of one of several conversations in a session
    wake_id: str | None = None  # of the wake that recorded it


class Draft(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A proposed event. set, merge, add, inc and delete are short forms of ops on top-level
    names, applied in that order, followed by `ops`."""

    type: str
    data: Mapping[str, Any] = {}
    actor: str | None = None
    set: Mapping[str, Any] = {}
    merge: Mapping[str, Mapping[str, Any]] = {}
    add: Mapping[str, Sequence[Any]] = {}
    inc: Mapping[str, int | float] = {}
    delete: Iterable[str] = ()
    ops: Iterable[op.Op] = ()
    id: str | None = None
    cause: str | None = None
    invocation_id: str | None = None
    correlation_id: str | None = None
    wake_id: str | None = None
    input: bool = False  # pending until processed, whatever its type


class Fact(Draft, frozen=True, gc=False, kw_only=True):
    """A checked draft of a reserved event, made by a constructor in `facts`."""


AnyDraft = TypeVar("AnyDraft", bound=Draft)


def traced(draft: AnyDraft, trace: Trace | None) -> AnyDraft:
    """Return the draft with the ids of the trace. Raises InvalidEvent if it is not a Trace."""
    if trace is None:
        return draft
    if not isinstance(trace, Trace):
        raise InvalidEvent("trace takes a limpet.Trace, as in trace=limpet.Trace(cause=event.id)")
    return msgspec.structs.replace(
        draft,
        cause=trace.cause,
        invocation_id=trace.invocation_id,
        correlation_id=trace.correlation_id,
        wake_id=trace.wake_id,
    )


def sets_only(draft: Draft) -> bool:
    """Whether the draft changes state by nothing but `set`."""
    merge, add, inc = draft.merge, draft.add, draft.inc
    if (
        type(draft.set) is dict and type(merge) is dict and type(add) is dict and type(inc) is dict
    ):  # looked at first: an array, say, is neither true nor false
        return not (merge or add or inc) and draft.delete == () and draft.ops == ()
    return False


def set_all(given: Mapping[str, Any], data: Mapping[str, Any]) -> Sets | None:
    """The operations of a `set` of plain values, and what they do; None if a name or a value needs
    a closer look."""
    sets = dict(given)  # looked at below, and nobody else's
    ops = []
    for name, value in sets.items():
        path = _own_path(name)
        kind = type(value)
        if kind is str:
            if len(value) >= _REFER_CHARS_MIN and _reference(value, data) is not None:
                return None
        elif kind is int:
            if not INT_MIN <= value <= INT_MAX:
                return None
        elif kind is float:
            if value - value != 0.0:  # not finite
                return None
        elif value is not None and kind is not bool:
            return None
        if path is None:
            return None
        ops.append(_Set(path, value))
    return (tuple(ops), sets) if len(ops) <= OPS_PER_EVENT_MAX else None


@lru_cache(maxsize=4_096)
def _own_path(name: object) -> op.Path | None:
    """The path of a name of the session's own; None if it is another's, or is no such name."""
    if type(name) is not str or ":" in name or unfit(name, NAME_CHARS_MAX):
        return None
    return (name,)


def collect_ops(draft: Draft) -> list[op.Op]:
    """All operations of a draft in the order they apply, each checked for its form."""
    data = draft.data
    for name, given in zip(_SUGAR, (draft.set, draft.merge, draft.add, draft.inc), strict=True):
        if type(given) is not dict and not isinstance(given, Mapping):
            raise InvalidOp(f"{name} takes a dict of names in state, not {type(given).__name__}")
    ops: list[op.Op] = []
    if draft.set:
        ops += [_set(name, value, data) for name, value in draft.set.items()]
    if draft.merge:
        ops += [op.check(op.Merge(_path(n), value)) for n, value in draft.merge.items()]  # type: ignore[arg-type]
    for name, items in draft.add.items():
        ops += _add(name, items, data)
    if draft.inc:
        ops += [op.check(op.Inc(_path(name), by)) for name, by in draft.inc.items()]
    if draft.delete:
        if isinstance(draft.delete, str) or not isinstance(draft.delete, Iterable):
            raise InvalidOp(f"delete takes names, as in delete=[{str(draft.delete)!r}]")
        ops += [op.Delete((op.check_name(name, deleted=True),)) for name in draft.delete]
    if draft.ops != ():
        if not isinstance(draft.ops, Iterable):
            raise InvalidOp("ops takes a list of operations")
        ops += [op.check(o) for o in draft.ops]
    if len(ops) > OPS_PER_EVENT_MAX:
        raise InvalidOp(f"{len(ops):,} operations in one event, more than {OPS_PER_EVENT_MAX:,}")
    return ops


def _path(name: str) -> op.Path:
    return (op.check_name(name),)


def _set(name: str, value: Any, data: Any) -> op.Op:
    if type(value) in _REFERABLE and (ref := _reference(value, data)) is not None:
        return op.SetRef(_path(name), ref)
    return op.Set(_path(name), value)


def _add(name: str, items: Sequence[Any], data: Any) -> list[op.Op]:
    path = _path(name)
    if not isinstance(items, (list, tuple)):
        raise InvalidOp(f"add={{{name!r}: …}} takes a list of items")
    refs = [_reference(item, data) for item in items]
    if not any(ref is not None for ref in refs):
        return [op.Add(path, items)]  # a tuple is settled to a list
    return [
        op.Add(path, [item]) if ref is None else op.AddRef(path, ref)
        for item, ref in zip(items, refs, strict=True)
    ]


def _reference(value: Any, data: Any) -> op.Path | None:
    """The path of the object `value` itself in `data`, if a reference saves space."""
    if isinstance(value, str):
        if len(value) < _REFER_CHARS_MIN:
            return None
    elif not isinstance(value, (dict, list)) or not value:
        return None
    if value is data:
        return ()
    if isinstance(data, dict):
        for name, part in data.items():
            if part is value:
                return (name,)
    return None
