"""Forms: how the types of the store protocols travel, derived from their annotations.

A form is what msgspec encodes and decodes (`wire`), and how a value becomes that and comes back.
Structs and named tuples travel as arrays of their fields. What msgspec carries as it is has neither
`pack` nor `unpack`. Types that need more have a form of their own, by name, at the end: values are
read-only when they arrive, names that sessions share are decoded when they are read, and an error
is its code and its fields.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from inspect import signature
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import astuple

from limpet import errors
from limpet.errors import LimpetError, StoreFailed
from limpet.model import Event, FrozenDict, Key, ScopeValue, freeze, ops as op
from limpet.model.keys import known_key
from limpet.store.scopes import Kept, Scopes, UnreadScope

Convert = Callable[[Any], Any]
encode: Final = msgspec.msgpack.Encoder().encode
_NATIVE: Final = frozenset((bool, int, float, str, bytes, datetime, timedelta, type(None)))
_ROWS: Final = frozenset((tuple, list, Sequence, Collection, Iterable))
_DICTS: Final = frozenset((dict, Mapping))


class WireForm(NamedTuple):
    """The form in which values of one type travel. None: msgspec carries them as they are."""

    wire: Any  # the type that is decoded
    pack: Convert | None = None
    unpack: Convert | None = None


def form_of(hint: Any) -> WireForm:
    """Return the form of an annotation. Raises TypeError if values of it cannot travel."""
    own = _OWN.get(hint) if _is_hashable(hint) else None
    if own is not None:
        return own
    if hint in _NATIVE or get_origin(hint) is Literal:
        return WireForm(hint)
    if hint is Any or hint is object:
        return WireForm(Any, None, freeze)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(hint, args)
    if origin in _ROWS:
        return _row(origin, args)
    if origin in _DICTS:
        return _mapping(args)
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _fields_form(kind, kind._fields, _hints(kind), tuple)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = _hints(kind)
        if args:
            named = dict(zip(kind.__parameters__, args, strict=True))  # type: ignore[attr-defined]  # generic
            hints = {name: _with_arguments(each, named) for name, each in hints.items()}
        return _fields_form(kind, kind.__struct_fields__, hints, astuple)
    if isinstance(kind, type) and issubclass(kind, LimpetError):
        return WireForm(tuple[str, str, dict[str, Any]], pack_error, unpack_error)
    raise TypeError(f"{hint!r} has no form to travel in")


def _is_hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True


def _hints(kind: type) -> dict[str, Any]:
    from typing import get_type_hints

    return get_type_hints(kind)


def _with_arguments(hint: Any, named: Mapping[Any, Any]) -> Any:
    """An annotation with the arguments of a generic class in the place of its parameters."""
    if isinstance(hint, TypeVar):
        return named[hint]
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple([named[each] for each in parameters])] if parameters else hint


# --- composed forms ------------------------------------------------------------------------------


def _union(hint: Any, args: Sequence[Any]) -> WireForm:
    some = [each for each in args if each is not type(None)]
    forms = [form_of(each) for each in some]
    if all([form.pack is None and form.unpack is None for form in forms]):
        return WireForm(hint)
    if Any in some:
        return form_of(Any)
    if len(some) == 1:
        wire, pack, unpack = forms[0]
        return WireForm(wire | None if wire is not Any else Any, _or_none(pack), _or_none(unpack))
    return _tagged(some, forms)


def _or_none(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _tagged(kinds: Sequence[Any], forms: Sequence[WireForm]) -> WireForm:
    """One of several types, with its number; -1 is None."""
    classes = [get_origin(kind) or kind for kind in kinds]

    def pack(value: Any) -> tuple[int, Any]:
        if value is None:
            return -1, None
        for number, kind in enumerate(classes):
            if isinstance(value, kind):
                inner = forms[number].pack
                return number, value if inner is None else inner(value)
        raise TypeError(f"{type(value).__name__} is not one of {classes}")

    def unpack(value: tuple[int, Any]) -> Any:
        number, inner = value
        if number == -1:
            return None
        if not 0 <= number < len(forms):
            raise msgspec.ValidationError(f"there is no type {number}")
        form = forms[number]
        value = msgspec.convert(inner, form.wire)
        return value if form.unpack is None else form.unpack(value)

    return WireForm(tuple[int, Any], pack, unpack)


def _row(origin: Any, args: Sequence[Any]) -> WireForm:
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        forms = [form_of(each) for each in args]
        wire: Any = tuple[tuple([form.wire for form in forms])]  # type: ignore[misc]
        return WireForm(wire, *_placed(forms, tuple))
    item = form_of(args[0])
    pack, unpack = item.pack, item.unpack
    return WireForm(
        tuple[item.wire, ...],  # type: ignore[name-defined]  # made while it runs
        tuple if pack is None else lambda value: [pack(each) for each in value],
        None if unpack is None else lambda value: tuple([unpack(each) for each in value]),
    )


def _mapping(args: Sequence[Any]) -> WireForm:
    name, value = form_of(args[0]), form_of(args[1])
    inside, outside = value.pack, value.unpack
    if name.pack is None and name.unpack is None:
        return WireForm(
            dict[name.wire, value.wire],  # type: ignore[name-defined]  # made while it runs
            dict if inside is None else lambda of: {n: inside(v) for n, v in of.items()},
            None if outside is None else lambda of: {n: outside(v) for n, v in of.items()},
        )
    pair = [name, value]
    pack, unpack = _placed(pair, tuple)
    wire: Any = tuple[tuple[name.wire, value.wire], ...]  # type: ignore[name-defined]  # likewise
    return WireForm(
        wire,
        lambda of: [each if pack is None else pack(each) for each in of.items()],
        lambda of: dict([each if unpack is None else unpack(each) for each in of]),
    )


def _placed(
    forms: Sequence[WireForm], taken: Callable[[Any], tuple[Any, ...]]
) -> tuple[Convert | None, Convert | None]:
    """The functions that pack and unpack an array; None: its places stay as they are."""
    packs = [(place, form.pack) for place, form in enumerate(forms) if form.pack is not None]
    unpacks = [(place, form.unpack) for place, form in enumerate(forms) if form.unpack is not None]

    def pack(value: Any) -> list[Any]:
        row = list(taken(value))
        for place, convert in packs:
            row[place] = convert(row[place])
        return row

    def unpack(value: Any) -> tuple[Any, ...]:
        row = list(value)
        for place, convert in unpacks:
            row[place] = convert(row[place])
        return tuple(row)

    return (pack if packs else None), (unpack if unpacks else None)


def _fields_form(
    kind: type, names: Sequence[str], hints: Mapping[str, Any], taken: Callable[[Any], Any]
) -> WireForm:
    """The form of a class whose constructor takes its fields in their order."""
    forms = [form_of(hints[name]) for name in names]
    pack, unpack = _placed(forms, taken)
    wire: Any = tuple[tuple([form.wire for form in forms])]  # type: ignore[misc]
    by_name = any([each.kind == each.KEYWORD_ONLY for each in signature(kind).parameters.values()])

    def made(value: Any) -> Any:
        row = value if unpack is None else unpack(value)
        return kind(**dict(zip(names, row, strict=True))) if by_name else kind(*row)

    return WireForm(wire, taken if pack is None else pack, made)


# --- forms of their own --------------------------------------------------------------------------

_Text = str | None
# The fields of an event, in their order.
_EVENT: Final[Any] = tuple[
    int,
    str,
    str,
    str,
    int,
    Any,
    tuple[op.Op, ...],
    _Text,
    _Text,
    _Text,
    _Text,
    int | None,
    int | None,
    bytes,
    bool,
    _Text,
    bool,
    bool,
    int,
]


def unpack_event(value: tuple[Any, ...]) -> Event:
    """An event, read-only."""
    event = Event(*value)
    data, ops = event.data, event.ops
    if data is not None:
        msgspec.structs.force_setattr(event, "data", freeze(data))
    for each in ops:
        op.frozen(each)
    return event


def _frozen_op(each: op.Op) -> op.Op:
    op.frozen(each)
    return each


def pack_scopes(scopes: Mapping[str, ScopeValue]) -> dict[str, tuple[int, bytes]]:
    """Names that sessions share: the version of each, and the rest in bytes of its own."""
    return {name: (value.version, encode(astuple(value)[1:])) for name, value in scopes.items()}


_decode_scope: Final = msgspec.msgpack.Decoder(tuple[Any, bool, str | None]).decode


def unpack_scopes(packed: Mapping[str, tuple[int, bytes]]) -> Scopes:
    """Each value is decoded when it is read."""
    kept: dict[str, Kept] = {}
    for name, (version, raw) in packed.items():
        kept[name] = UnreadScope(version, _reading(version, raw))
    return Scopes(kept)


def _reading(version: int, raw: bytes) -> Callable[[], ScopeValue]:
    def read() -> ScopeValue:
        value, deleted, damage = _decode_scope(raw)
        return ScopeValue(version, freeze(value), deleted, damage)

    return read


# --- errors --------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def error_classes() -> Mapping[str, type[LimpetError]]:
    """Every error by its code."""
    by_code: dict[str, type[LimpetError]] = {}
    waiting: list[type[LimpetError]] = [LimpetError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__ == errors.__name__:
            by_code.setdefault(kind.code, kind)
        waiting += kind.__subclasses__()
    return by_code


def pack_error(error: LimpetError) -> tuple[str, str, dict[str, Any]]:
    """An error as its code, its message and its fields: those of the nearest class of ours."""
    kind: Any = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
    fields = {name: _travels(value) for name, value in error.fields.items() if name != "message"}
    known = {name: fields[name] for name in kind.field_names if name in fields}
    return kind.code, str(error), known


def _travels(value: Any) -> Any:
    """A field in a form that any reader decodes: keys are marked, the unknown is its text."""
    if isinstance(value, Key):
        return {"$key": [value.app, value.user, value.id]}
    if isinstance(value, (list, tuple)):
        return [_travels(each) for each in value]
    if isinstance(value, datetime):
        return {"$time": value.isoformat()}
    if isinstance(value, LimpetError):
        return {"$error": list(pack_error(value))}
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    return str(value)


def _arrived(value: Any) -> Any:
    if isinstance(value, list):
        return tuple([_arrived(each) for each in value])
    if isinstance(value, dict):
        mark, inner = next(iter(value.items()), ("", ""))
        if mark == "$key":
            return Key(*inner)
        if mark == "$time":
            return datetime.fromisoformat(inner)
        if mark == "$error":
            return unpack_error(tuple(inner))
    return value


def unpack_error(value: tuple[str, str, dict[str, Any]]) -> LimpetError:
    """Return the error; one whose code is not known here is a StoreFailed that names it."""
    code, message, fields = value
    kind = error_classes().get(code)
    if kind is None:
        return StoreFailed("the server", f"{message} ({code})", "change")
    error = kind.__new__(kind)
    for name in kind.field_names:
        if name in fields:
            setattr(error, name, _arrived(fields[name]))
    error.args = (message,)
    return error


_OWN: Final[dict[Any, WireForm]] = {
    Key: WireForm(tuple[str, str, str], astuple, lambda parts: known_key(*parts)),
    Event: WireForm(_EVENT, astuple, unpack_event),
    FrozenDict: WireForm(dict[str, Any], None, freeze),
    Mapping[str, ScopeValue]: WireForm(dict[str, tuple[int, bytes]], pack_scopes, unpack_scopes),
    op.Op: WireForm(op.Op, None, _frozen_op),
}
