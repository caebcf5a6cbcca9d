"""Values: what may be stored, and the read-only form in which stored values are returned.

A value is accepted only if its encoding decodes to an equal value. The decoded form, never the
caller's object, goes into events and state. So live and stored state cannot differ, nothing is
aliased, and values that an encoder would silently change (NaN, bytes, sets, integer keys) are
refused.
"""

from __future__ import annotations

import hashlib
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from limpet.errors import InvalidInput, InvalidValue
from limpet.model.limits import INT_MAX, INT_MIN, VALUE_DEPTH_MAX

T = TypeVar("T")

encode: Final = msgspec.json.Encoder().encode
# Below 19 digits an integer fits 64 bits. Digits are folded to one and searched as text: a regular
# expression over the same bytes takes eight times as long.
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_NUMBER: Final = b"0" * 19
_COPIED_DEPTH: Final = 8
_COPIED_TOTAL: Final = 96  # values up to which a walk is faster than a round trip
_put: Final[Any] = dict.__setitem__
_decode_any: Final[Callable[[bytes], Any]] = msgspec.json.Decoder().decode


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError(
        "state and events are read-only; copy with copy.deepcopy, or change state with append or "
        "apply"
    )


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed. Equal to, and encoded as, the plain dict of the same items."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse
    __ior__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # immutable, so hashable by content
        return hash(frozenset(self.items()))

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return {name: thaw(value) for name, value in self.items()}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[dict[str, Any]]]:
        return (FrozenDict, (dict(self),))


class FrozenList(list[Any]):
    """A list that cannot be changed. Equal to, and encoded as, the plain list of the same items."""

    __slots__ = ()
    __setitem__ = __delitem__ = append = clear = extend = insert = pop = remove = _refuse
    reverse = sort = _refuse
    __iadd__ = __imul__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # immutable, so hashable by content
        return hash(tuple(self))

    def __deepcopy__(self, memo: object) -> list[Any]:
        return [thaw(value) for value in self]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[list[Any]]]:
        return (FrozenList, (list(self),))


class Absent:
    """The type of ABSENT, which stands for a missing value. None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = Absent()
EMPTY: Final = FrozenDict()
_SCALARS: Final = frozenset((type(None), bool, int, float, str))
_CONTAINERS: Final = frozenset((dict, list, FrozenDict, FrozenList))
_NAMES: Final = frozenset((str,))
OPEN: Final = frozenset((dict, list))  # the kinds that freeze turns into something else


def freeze(value: Any) -> Any:
    """The read-only form of a decoded value. Parts that are already frozen are shared."""
    kind = type(value)
    if kind is dict:
        frozen = FrozenDict(value)
        for inner in value.values():
            if type(inner) in OPEN:
                _freeze_inside(frozen, value)
                break
        return frozen
    if kind is list:
        return FrozenList([freeze(v) if type(v) in OPEN else v for v in value])
    return value


def _freeze_inside(frozen: FrozenDict, value: dict[str, Any]) -> None:
    """Put the read-only forms of a dict's containers in their places, in a copy that is ours."""
    for name, inner in value.items():
        if type(inner) in OPEN:
            dict.__setitem__(frozen, name, freeze(inner))


def thaw(value: Any) -> Any:
    """A plain copy that the caller may change."""
    if isinstance(value, dict):
        return {name: thaw(v) for name, v in value.items()}
    if isinstance(value, list):
        return [thaw(v) for v in value]
    return value


def round_trip(value: T, decode: Callable[[bytes], T]) -> tuple[bytes, T] | None:
    """The encoding of `value` and its decoded form, or None when the two would differ.

    One pass out, one back and one comparison, all in C: cheaper than a walk in Python, and it
    checks the bytes that will be stored. None means that the slow path must find the problem.
    """
    try:
        raw = encode(value)
        back = decode(raw)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None
    return (raw, back) if back == value and are_plain_bytes(raw) else None


def are_plain_bytes(raw: bytes) -> bool:
    """True if no value in these encoded bytes needs a closer look: no integer is past 64 bits, and
    nesting cannot be deeper than there are opening brackets."""
    if _LONG_NUMBER in raw.translate(_DIGITS_TO_ZERO):
        return False
    return raw.count(b"[") + raw.count(b"{") <= VALUE_DEPTH_MAX


def is_exact(value: Any) -> bool:
    """True if this is a plain immutable value whose JSON reads back as the same value."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return INT_MIN <= value <= INT_MAX  # type: ignore[no-any-return]  # an int, as just seen
    return kind is float and value - value == 0.0  # finite


def frozen_copy(
    value: dict[str, Any], depth_left: int = _COPIED_DEPTH, room: list[int] | None = None
) -> FrozenDict | None:
    """The read-only form of a small dict of plain values, which reads back as the same; None if it
    is large or deep, or if a value or a name in it needs a closer look.

    The copy is what is looked at: a caller that changes its dict meanwhile changes nothing. `room`
    is how many values are still looked at, in all: a list may contain itself.
    """
    copy = FrozenDict(value)
    if room is None:
        room = [_COPIED_TOTAL]
    room[0] -= len(copy)
    if room[0] < 0:
        return None
    for name, inner in copy.items():
        if type(name) is not str:
            return None
        kind = type(inner)
        if kind is str or (kind is float and inner - inner == 0.0):  # finite
            continue
        if kind is int and INT_MIN <= inner <= INT_MAX:
            continue
        if kind is dict and depth_left:
            inside: Any = frozen_copy(inner, depth_left - 1, room)
        elif kind is list and depth_left:
            inside = _frozen_list(inner, depth_left - 1, room)
        elif is_exact(inner):
            continue
        else:
            return None
        if inside is None:
            return None
        _put(copy, name, inside)  # ours until it is returned; its names stay
    return copy


def _frozen_list(value: list[Any], depth_left: int, room: list[int]) -> FrozenList | None:
    """Return the frozen form of a list."""
    copy = FrozenList(value)
    room[0] -= len(copy) + 1  # an empty one counts, too
    if room[0] < 0:
        return None
    for place, inner in enumerate(copy):
        kind = type(inner)
        if kind is str or is_exact(inner):
            continue
        inside: Any = None
        if kind is dict and depth_left:
            inside = frozen_copy(inner, depth_left - 1, room)
        elif kind is list and depth_left:
            inside = _frozen_list(inner, depth_left - 1, room)
        if inside is None:
            return None
        list.__setitem__(copy, place, inside)
    return copy


def try_encode(value: Any) -> bytes | None:
    """The encoding of a value, or None if its text cannot be encoded."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return None


def is_plain(value: Any, where: str, *, depth_max: int, values_max: int) -> bool:
    """True if a dict can be encoded as it is, but for lone surrogates, which encoders refuse.

    Works level by level, so that most of the work is done in C and depth costs no stack. False
    means that `settle` must copy it or name the problem. Raises InvalidValue if it is endless or
    too large.
    """
    level = [value]
    shared = False
    for _ in range(depth_max):
        if not shared and len(set(map(id, level))) < len(level):
            shared = True
            _count(value, where, depth_max, values_max, {})
        inside = _inside(level)
        if inside is None or not _are_exact(inside):
            return False
        level = [inner for inner in inside if type(inner) not in _SCALARS]
        if not level:
            return True
    return False


def _inside(level: list[Any]) -> list[Any] | None:
    """The items of all lists and dicts of one level; None if a container or a name is not plain."""
    if not _CONTAINERS.issuperset(map(type, level)):
        return None
    dicts = [inner for inner in level if isinstance(inner, dict)]
    if not _NAMES.issuperset(map(type, chain.from_iterable(dicts))):
        return None
    lists = [inner for inner in level if isinstance(inner, list)]
    named = chain.from_iterable([inner.values() for inner in dicts])
    return [*chain.from_iterable(lists), *named]


def _are_exact(values: list[Any]) -> bool:
    """True if every number among the values is finite and within 64 bits."""
    integers = [value for value in values if type(value) is int]
    if integers and not (min(integers) >= INT_MIN and max(integers) <= INT_MAX):
        return False
    return all(map(math.isfinite, [value for value in values if type(value) is float]))


def _count(value: Any, where: str, depth_left: int, values_max: int, known: dict[int, int]) -> int:
    """Return how many values are written for this one; a shared value is written each time.

    Thirty lists, each holding the next one twice, become a billion values when written.
    """
    if not depth_left:
        raise InvalidValue(where, "contains itself, or is nested too deep")
    if id(value) not in known:
        inside = [*(value.values() if isinstance(value, dict) else value)]
        open_ = [inner for inner in inside if type(inner) in _CONTAINERS]
        counts = [_count(inner, where, depth_left - 1, values_max, known) for inner in open_]
        known[id(value)] = len(inside) + sum(counts)
        if known[id(value)] > values_max:
            raise InvalidValue(where, "has more values, counting shared ones, than can be written")
    return known[id(value)]


def admit(value: Any, where: str) -> Any:
    """The read-only form of a value that can be stored. Raises InvalidValue, naming the place.

    A value that is already read-only was accepted before and is returned unchanged.
    """
    if type(value) is FrozenDict or type(value) is FrozenList:
        return value
    if is_exact(value) and (type(value) is not str or _is_text(value)):
        return value
    trip = round_trip(value, _decode_any)
    return freeze(settle(value, where) if trip is None else trip[1])


def _is_text(text: str) -> bool:
    return text.isascii() or try_encode(text) is not None


def settle(value: Any, where: str, *, depth_max: int = VALUE_DEPTH_MAX) -> Any:
    """A plain copy of `value` that can be stored. Raises InvalidValue, naming the exact place."""
    return _settle(value, where, depth_max, [])


def _settle(value: Any, where: str, depth_max: int, open_: list[int]) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _settle_text(value, where)
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise InvalidValue(where, "is an integer past 64 bits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValue(where, f"is {value!r}, which JSON cannot hold")
        return float(value)
    if isinstance(value, (Mapping, list, tuple)):
        if id(value) in open_:
            raise InvalidValue(where, "contains itself")
        if len(open_) >= depth_max:
            raise InvalidValue(where, f"is nested more than {depth_max} levels deep")
        open_.append(id(value))
        plain = _settle_inside(value, where, depth_max, open_)
        open_.pop()
        return plain
    raise InvalidValue(where, unfitting(value, "which JSON cannot hold"))


def unfitting(value: object, why: str) -> str:
    """The error text for a value of a wrong type; for typed state, how to get its plain values."""
    if getattr(type(value), "__is_record__", False):
        why = "typed state: pass s.values, or what limpet.encode_fields makes of a State"
    return f"is {type(value).__name__}, {why}"


def _settle_inside(value: Any, where: str, depth_max: int, open_: list[int]) -> Any:
    if not isinstance(value, Mapping):
        return [_settle(v, f"{where}[{i}]", depth_max, open_) for i, v in enumerate(value)]
    plain = {}
    for name, v in value.items():
        if not isinstance(name, str):
            raise InvalidValue(where, f"has the key {name!r}, which is not text")
        plain[_settle_text(name, f"a key of {where}")] = _settle(
            v, f"{where}[{name!r}]", depth_max, open_
        )
    return plain


def _settle_text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValue(where, "holds a lone surrogate, which UTF-8 cannot encode") from None
    return str.__str__(text) if type(text) is str else "".join(text)


def described(value: object) -> str:
    """A value as errors describe it: its type, and enough of it to find it."""
    if value is None:
        return "None"
    try:
        if isinstance(value, type):
            return f"the class {value.__qualname__[:60]}"
        text = _short(value)
    except Exception:  # an integer too long to print, an object that cannot show itself
        return type(value).__name__
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:59] + '…'}"


_reprs: Final = reprlib.Repr()  # always short
_reprs.maxother = _reprs.maxstring = 60
_short: Final = _reprs.repr


def _refuse_change(self: object, *_: object, **__: object) -> NoReturn:
    raise InvalidInput(
        "the state that an update is given is read-only. Return the changes as a dict, as in "
        'lambda state: {"count": state["count"] + 1}.'
    )


class Reads(Mapping[str, Any]):
    """A mapping that remembers what was read: single names, or the set of all names.

    It is deliberately not a dict: C code (json, msgspec) reads the items of a dict directly, and
    those reads would go unnoticed; with this class it raises instead. Every copy is a plain dict,
    made after all names were noted.
    """

    __slots__ = ("_of", "all", "names")
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse_change
    __ior__ = _refuse_change

    def __init__(self, of: Mapping[str, Any]) -> None:
        self._of = of
        self.names: set[str] = set()
        self.all = False

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return self._of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def __repr__(self) -> str:
        return repr(dict(self._whole()))

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other} if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self} if isinstance(other, Mapping) else NotImplemented

    def copy(self) -> dict[str, Any]:
        """A plain dict of the same values."""
        return dict(self._whole())

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        return {name: thaw(value) for name, value in self._whole().items()}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[dict[str, Any]]]:
        return (FrozenDict, (dict(self._whole()),))  # a pickle, which is a copy too

    def __getstate__(self) -> dict[str, Any]:
        return self.copy()

    def _whole(self) -> Mapping[str, Any]:
        """All items, noted as read."""
        self.all = True
        self.names.update(self._of)
        return self._of


canonical: Final = msgspec.json.Encoder(order="deterministic").encode
# Tells the same values apart as the canonical encoding does, without the cost of escaping text.
packed: Final = msgspec.msgpack.Encoder(order="deterministic").encode
SCALARS: Final = frozenset((str, int, float, bool, type(None)))


def checksum(fields: Any) -> bytes:
    """SHA-256 of the canonical encoding. A snapshot's state must still match it."""
    return hashlib.sha256(canonical(fields)).digest()


def same(a: Any, b: Any) -> bool:
    """True if two values have the same canonical encoding. ABSENT equals only itself."""
    if a is b:
        return True
    kind = type(a)
    if kind is float:
        return type(b) is float and a == b and math.copysign(1.0, a) == math.copysign(1.0, b)
    if kind in SCALARS:
        return kind is type(b) and bool(a == b)
    if a is ABSENT or b is ABSENT:
        return False
    return packed(a) == packed(b)
