"""Ops: how an event changes state.

Seven operations, each small enough that adding one message stores one message, each with an exact
inverse. A path starts with a name in state (its prefix is the scope) and continues through dicts by
name and through lists by index. The last name may be new; everything before it must exist.

Set, Add and Merge may take their value from the event's own data (SetRef, AddRef, MergeRef):
a message that is both event data and part of state is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from limpet.errors import InvalidOp, OpPathUnknown, OpTypeMismatch, ScopeUnknown
from limpet.model.keys import is_lone, unfit
from limpet.model.limits import INT_MAX, INT_MIN, NAME_CHARS_MAX, VALUE_DEPTH_MAX
from limpet.model.values import ABSENT, OPEN, FrozenDict, FrozenList, freeze

Path: TypeAlias = tuple[str | int, ...]
Scope: TypeAlias = Literal["session", "app", "user", "temp"]


# Every operation accepts a single name as text: `check` turns it into a path before anything else
# reads it. The __init__ of each tells type checkers so; msgspec generates the real one.


class _Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    path: Path


class Set(_Op, frozen=True, array_like=True, gc=False, tag="set"):
    """Put `value` at the path, replacing any old value."""

    value: Any

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, value: Any) -> None: ...


class Delete(_Op, frozen=True, array_like=True, gc=False, tag="del"):
    """Remove the name at the path from its dict. It must exist."""

    if TYPE_CHECKING:

        def __init__(self, path: str | Path) -> None: ...


class Add(_Op, frozen=True, array_like=True, gc=False, tag="add"):
    """Append `items` to the list at the path (created if missing)."""

    items: list[Any]

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, items: list[Any] | tuple[Any, ...]) -> None: ...


class Insert(_Op, frozen=True, array_like=True, gc=False, tag="ins"):
    """Insert `items` into the list at the path, before index `at`."""

    at: int
    items: list[Any]

    if TYPE_CHECKING:

        def __init__(
            self, path: str | Path, at: int, items: list[Any] | tuple[Any, ...]
        ) -> None: ...


class Merge(_Op, frozen=True, array_like=True, gc=False, tag="merge"):
    """Update the dict at the path (created if missing) with the names of `value`, one level."""

    value: dict[str, Any]

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, value: dict[str, Any]) -> None: ...


class Inc(_Op, frozen=True, array_like=True, gc=False, tag="inc"):
    """Add `by` to the number at the path (0 if missing)."""

    by: int | float

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, by: int | float) -> None: ...


class Cut(_Op, frozen=True, array_like=True, gc=False, tag="cut"):
    """Remove the items from `start` up to `stop` from the list at the path."""

    start: int
    stop: int

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, start: int, stop: int) -> None: ...


class SetRef(_Op, frozen=True, array_like=True, gc=False, tag="set@"):
    """Set, with the value found at `ref` in the event's data."""

    ref: Path

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, ref: Path) -> None: ...


class AddRef(_Op, frozen=True, array_like=True, gc=False, tag="add@"):
    """Add one item: the value found at `ref` in the event's data."""

    ref: Path

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, ref: Path) -> None: ...


class MergeRef(_Op, frozen=True, array_like=True, gc=False, tag="merge@"):
    """Merge, with the dict found at `ref` in the event's data."""

    ref: Path

    if TYPE_CHECKING:

        def __init__(self, path: str | Path, ref: Path) -> None: ...


PlainOp: TypeAlias = Set | Delete | Add | Insert | Merge | Inc | Cut
Op: TypeAlias = PlainOp | SetRef | AddRef | MergeRef

_VERB: Final = {Add: "add", Insert: "insert", Merge: "merge", Cut: "cut"}
REFS: Final = frozenset((SetRef, AddRef, MergeRef))
_OPS: Final = get_args(Op)
_MARKS: Final = frozenset(".'\"[]")  # of a path as it is shown


def scope_of(name: str) -> Scope:
    """The scope that a name in state belongs to."""
    if ":" not in name:
        return "session"
    if name.startswith("app:"):
        return "app"
    if name.startswith("user:"):
        return "user"
    return "temp" if name.startswith("temp:") else "session"


def check_name(name: object, *, deleted: bool = False) -> str:
    """Check a name in state. Raises InvalidOp, or ScopeUnknown for an unknown prefix.

    A name to be deleted may have any prefix, because earlier releases allowed such names.
    """
    if reason := unfit(name, NAME_CHARS_MAX):
        raise InvalidOp(f"the name {name!r} {reason}")
    assert isinstance(name, str)  # unfit says so of anything else
    if ":" in name and not deleted and scope_of(name) == "session":
        raise ScopeUnknown(name)
    return name


def check(op: object) -> Op:
    """Check the form of an operation, independent of the state. Raises InvalidOp."""
    if not isinstance(op, _OPS):
        raise InvalidOp(f"{type(op).__name__} is not an operation")
    path: object = op.path
    if not isinstance(path, tuple):
        path = tuple(path) if isinstance(path, list) else (path,)
        op = cast(Op, msgspec.structs.replace(op, path=path))
    if not path:
        raise InvalidOp("the path is empty: it begins with a name")
    check_name(path[0], deleted=type(op) is Delete and len(path) == 1)
    if len(path) > 1:
        if len(path) > VALUE_DEPTH_MAX:
            raise InvalidOp(f"a path of {len(path)} steps, more than {VALUE_DEPTH_MAX}")
        _check_steps(path, path[1:])
    return cast(Op, op) if type(op) is Set else _check_arguments(cast(Op, op))


def _check_steps(path: object, steps: Iterable[object]) -> None:
    for step in steps:
        if type(step) is str:
            if step.isprintable() or not any(map(is_lone, step)):
                continue
        elif type(step) is int and step >= 0:
            continue
        raise InvalidOp(f"the path {path!r} has the step {step!r}: a name or an index from 0")


def _check_arguments(op: Op) -> Op:
    kind = type(op)
    if isinstance(op, (Add, Insert)):
        if not isinstance(op.items, (list, tuple)):
            raise InvalidOp(f"{_VERB[kind]} at {show(op.path)} takes a list of items")
        if isinstance(op, Insert) and (type(op.at) is not int or op.at < 0):
            raise InvalidOp(f"insert at {show(op.path)} has the index {op.at!r}")
    elif isinstance(op, Merge):
        if not isinstance(op.value, dict):
            raise InvalidOp(f"merge at {show(op.path)} takes a dict")
    elif isinstance(op, Inc):
        if isinstance(op.by, bool) or not isinstance(op.by, (int, float)):
            raise InvalidOp(f"inc at {show(op.path)} takes a number")
    elif isinstance(op, Cut):
        if type(op.start) is not int or type(op.stop) is not int or not 0 <= op.start <= op.stop:
            raise InvalidOp(f"cut at {show(op.path)} takes 0 <= start <= stop")
    elif isinstance(op, (SetRef, AddRef, MergeRef)):
        ref: object = op.ref
        if not isinstance(ref, tuple):
            ref = tuple(ref) if isinstance(ref, list) else (ref,)
            op = msgspec.structs.replace(op, ref=ref)
        _check_steps(ref, ref)
        return op
    return op


def resolve(op: Op, data: Any) -> PlainOp:
    """The operation with its value in place of a reference into `data`."""
    if not isinstance(op, (SetRef, AddRef, MergeRef)):
        return op
    value = _part(data, op.ref)
    if isinstance(op, SetRef):
        return Set(op.path, value)
    if isinstance(op, AddRef):
        return Add(op.path, FrozenList((value,)))
    if not isinstance(value, dict):
        raise InvalidOp(f"merge at {show(op.path)} refers to {kind(value)}, not a dict")
    return Merge(op.path, value)


def apply(fields: FrozenDict, ops: Iterable[PlainOp]) -> FrozenDict:
    """The state after `ops`. `fields` is not modified; unchanged parts are shared."""
    root = FrozenDict(fields)
    ours: dict[int, Any] = {}  # containers that were made here, by identity; kept while it is used
    put: Any = dict.__setitem__  # into a dict that nobody else has seen yet
    for op in ops:
        if len(op.path) == 1 and type(op) is Set:
            put(root, op.path[0], op.value)
        else:
            _apply_at(root, op, ours)
    return root


def inverse(fields: FrozenDict, op: PlainOp) -> tuple[PlainOp, ...]:
    """The operations that take `apply(fields, [op])` back to `fields`, exactly."""
    before = _find(fields, op.path)
    if before is ABSENT:
        return (Delete(op.path),)
    match op:
        case Add(items=items):
            return (Cut(op.path, len(before), len(before) + len(items)),)
        case Insert(at=at, items=items):
            return (Cut(op.path, at, at + len(items)),)
        case Cut(start=start, stop=stop):
            return (Insert(op.path, start, FrozenList(before[start:stop])),)
        case Merge(value=value):
            kept = FrozenDict({name: before[name] for name in value if name in before})
            new = tuple(Delete((*op.path, name)) for name in value if name not in before)
            return (*((Merge(op.path, kept),) if kept else ()), *new)
        case _:
            return (Set(op.path, before),)


def show(path: Sequence[str | int]) -> str:
    """A path as people write it: plan.steps[0], and plan['a.b'] for a name that needs it."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif not step.isprintable() or _is_unclear(step):
            text += f"[{step!r}]"
        else:
            text += f".{step}" if text else step
    return text


def _is_unclear(step: str) -> bool:
    """True if a name could be mistaken for the marks of a path."""
    return not step or not _MARKS.isdisjoint(step) or any(map(str.isspace, step))


def kind(value: object) -> str:
    """The kind of a value, as error messages name it."""
    match value:
        case None:
            return "None"
        case bool():
            return "a bool"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a dict"


def _apply_at(root: FrozenDict, op: PlainOp, ours: dict[int, Any]) -> None:
    """Apply `op` inside `root`, a dict made for this call, copying each container on its path that
    is not ours yet."""
    holder: Any = root
    path = op.path
    for depth in range(len(path) - 1):
        inner = look(holder, path[depth])
        if id(inner) not in ours:
            inner = _copy(op, inner, depth)
            ours[id(inner)] = inner
            put_at(holder, path[depth], inner)
        holder = inner
    last = path[-1]
    before = look(holder, last)
    if before is ABSENT and (isinstance(last, int) or isinstance(holder, list)):
        raise OpPathUnknown(show(path), f"item {last!r}")
    if type(op) is Delete:
        _delete(holder, op)
    else:
        put_at(holder, last, _changed(op, before))


def _copy(op: PlainOp, inner: Any, depth: int) -> Any:
    if isinstance(inner, dict):
        return FrozenDict(inner)
    if isinstance(inner, list):
        return FrozenList(inner)
    if inner is ABSENT:
        raise OpPathUnknown(show(op.path), show(op.path[: depth + 1]))
    raise OpPathUnknown(show(op.path), f"dict or list at {show(op.path[: depth + 1])}")


def _changed(op: PlainOp, before: Any) -> Any:
    if type(op) is Set:
        return op.value
    if type(op) is Add:
        longer = FrozenList(_expect(op, before, list, "a list", ()))
        list.extend(longer, op.items)  # ours until it is returned: one copy, not two
        return longer
    match op:
        case Insert(at=at, items=items):
            old = _expect(op, before, list, "a list", ABSENT)
            if at > len(old):
                raise OpPathUnknown(show(op.path), f"index {at} in a list of {len(old)}")
            return FrozenList((*old[:at], *items, *old[at:]))
        case Merge(value=value):
            old = _expect(op, before, dict, "a dict", FrozenDict())
            return FrozenDict({**old, **value})
        case Inc():
            return _increased(op, before)
        case Cut(start=start, stop=stop):
            old = _expect(op, before, list, "a list", ABSENT)
            if stop > len(old):
                raise OpPathUnknown(show(op.path), f"slice {start}:{stop} in {len(old)} items")
            return FrozenList((*old[:start], *old[stop:]))
        case _:
            raise AssertionError(op)


def _increased(op: Inc, before: Any) -> int | float:
    if before is ABSENT:
        return op.by
    if isinstance(before, bool) or not isinstance(before, (int, float)):
        raise OpTypeMismatch("inc", show(op.path), "a number", kind(before))
    total = before + op.by
    if isinstance(total, int) and not INT_MIN <= total <= INT_MAX:
        raise OpTypeMismatch("inc", show(op.path), "a sum within 64 bits", f"{before} + {op.by}")
    if total - total != 0.0:  # infinite, or not a number
        raise OpTypeMismatch("inc", show(op.path), "a finite sum", f"{before} + {op.by}")
    return total


def _expect(op: PlainOp, before: Any, type_: type, words: str, empty: Any) -> Any:
    if before is ABSENT:
        if empty is ABSENT:
            raise OpPathUnknown(show(op.path), f"name {op.path[-1]!r}")
        return empty
    if not isinstance(before, type_):
        raise OpTypeMismatch(_VERB[type(op)], show(op.path), words, kind(before))
    return before


def _delete(holder: Any, op: PlainOp) -> None:
    last = op.path[-1]
    if isinstance(holder, list):
        raise OpTypeMismatch("del", show(op.path), "a name in a dict (cut a list)", "a list")
    if last not in holder:
        raise OpPathUnknown(show(op.path), f"name {last!r}")
    dict.__delitem__(holder, last)


def look(holder: Any, step: str | int) -> Any:
    """Return the value of a dict or list at one step of a path, or ABSENT."""
    if isinstance(holder, dict):
        return holder.get(step, ABSENT) if isinstance(step, str) else ABSENT
    if isinstance(holder, list) and isinstance(step, int) and step < len(holder):
        return holder[step]
    return ABSENT


def put_at(holder: Any, step: Any, value: Any) -> None:
    """Put a value into a read-only container that nobody else has seen yet."""
    if isinstance(holder, dict):
        dict.__setitem__(holder, step, value)
    else:
        list.__setitem__(holder, step, value)


def _find(fields: FrozenDict, path: Path) -> Any:
    value: Any = fields
    for step in path:
        value = look(value, step)
        if value is ABSENT:
            return ABSENT
    return value


def _part(data: Any, ref: Path) -> Any:
    value = data
    for step in ref:
        value = look(value, step)
        if value is ABSENT:
            raise InvalidOp(f"the event's data has nothing at {show(ref)}")
    return value


def frozen(op: Op) -> None:
    """Make the operation's decoded value read-only, in place: nobody else has seen it."""
    if isinstance(op, (Set, Merge)):
        if type(op.value) in OPEN:
            msgspec.structs.force_setattr(op, "value", freeze(op.value))
    elif isinstance(op, (Add, Insert)):
        msgspec.structs.force_setattr(op, "items", freeze(op.items))
