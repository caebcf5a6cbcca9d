"""Forms: how each type of typed state is written as a plain JSON value, without loss.

A form belongs to one type. `encode` checks while it writes: a value of another type raises Misfit,
so a wrong type is never written, however its owner was made. Equal values have one written form:
datetimes are written in UTC, −0.0 as 0.0, sets in the order of their items' canonical bytes.
Pydantic reads the values back (see `validation`); this module does not need it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from limpet.errors import InvalidSchema, InvalidValue
from limpet.model.limits import INT_MAX, INT_MIN
from limpet.model.state.types import TTL, Ref, UnknownVariant
from limpet.model.values import ABSENT, canonical, round_trip, settle

Step: TypeAlias = str | int
MISFIT: Final[Any] = object()  # what a writer returns for a value that is not of its type
_decode: Final = msgspec.json.Decoder().decode
_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000
_MINUTE: Final = 60_000_000
_SECOND: Final = 1_000_000
_DURATION: Final = re.compile(
    r"(-?)P(?:([0-9]{1,9})D)?"
    r"(?:T(?:([0-9]{1,2})H)?(?:([0-9]{1,2})M)?(?:([0-9]{1,2})(?:\.([0-9]{1,6}))?S)?)?"
).fullmatch


class Misfit(Exception):
    """A value of the wrong type: what was expected, what was found, and where."""

    def __init__(self, expected: str, value: object) -> None:
        self.expected, self.value = expected, value
        self.way: list[Step] = []  # from the inside out

    def at(self, step: Step) -> Misfit:
        self.way.append(step)
        return self


class Form:
    """The form in which one type is written. `kinds` are the kinds of JSON value it may become."""

    words: str
    kinds: frozenset[str]
    hashable = True

    def encode(self, value: Any) -> Any:
        """The plain value; raises Misfit."""
        raise Misfit(self.words, value)

    def inner(self, step: Step) -> Form | None:
        """The form of the value one step inside, or None."""
        return None


class Scalar(Form):
    """One value without parts."""

    def __init__(self, words: str, kinds: str, write: Callable[[Any], Any]) -> None:
        self.words, self.kinds, self._write = words, frozenset(kinds.split()), write

    def encode(self, value: Any) -> Any:
        plain = self._write(value)
        if plain is MISFIT:
            raise Misfit(self.words, value)
        return plain


class AnyForm(Form):
    """Any value that JSON holds without loss."""

    words = "any JSON value"
    kinds = frozenset(("null", "bool", "int", "float", "str", "list", "dict"))
    hashable = False

    def encode(self, value: Any) -> Any:
        return plain_json(value)


class EnumForm(Form):
    """A member, stored by its value. A value that newer code wrote is written back unchanged."""

    def __init__(self, of: type[Enum]) -> None:
        self.of = of
        self.words = f"a member of {of.__name__}"
        self.kinds = frozenset("str" if type(m.value) is str else "int" for m in of)

    def encode(self, value: Any) -> Any:
        if type(value) is self.of or is_unknown(value, self.of):
            return value.value
        raise Misfit(self.words, value)


class LiteralForm(Form):
    """One of a few written values."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = {(type(value), value) for value in values}
        ordered = sorted(repr(value) for _, value in self.values)
        self.words = ordered[0] if len(ordered) == 1 else f"one of {', '.join(ordered)}"
        self.kinds = frozenset(_KIND[kind] for kind, _ in self.values)

    def encode(self, value: Any) -> Any:
        if type(value) in _KIND and (type(value), value) in self.values:
            return value
        raise Misfit(self.words, value)


class RefForm(Form):
    words = "Ref"
    kinds = frozenset(("dict",))

    def encode(self, value: Any) -> Any:
        if type(value) is not Ref:
            raise Misfit(self.words, value)
        return dict(sorted(value.data.items()))


class ItemsForm(Form):
    """A list, or a tuple of any length: a JSON array in its own order."""

    kinds = frozenset(("list",))

    def __init__(self, of: type[Any], item: Form) -> None:
        self.of, self.item = of, item
        self.words = f"{of.__name__} of {item.words}"
        self.hashable = of is tuple and item.hashable

    def encode(self, value: Any) -> Any:
        if not isinstance(value, self.of):
            raise Misfit(self.words, value)
        return self._written(value)

    def _written(self, value: Iterable[Any]) -> list[Any]:
        written, encode, at = [], self.item.encode, 0
        try:
            for at, item in enumerate(value):  # noqa: B007  # read below, when an item is unfit
                written.append(encode(item))
        except Misfit as misfit:
            raise misfit.at(at) from None
        return written

    def inner(self, step: Step) -> Form | None:
        return self.item if isinstance(step, int) else None


class SetForm(ItemsForm):
    """A set or frozenset: a JSON array in the order of its items' canonical bytes."""

    def __init__(self, of: type[Any], item: Form) -> None:
        super().__init__(of, item)
        self.hashable = of is frozenset

    def _written(self, value: Iterable[Any]) -> list[Any]:
        return sorted(super()._written(value), key=canonical)


class RowForm(Form):
    """A tuple of fixed length, each place with its own type."""

    kinds = frozenset(("list",))

    def __init__(self, places: tuple[Form, ...]) -> None:
        self.places = places
        self.words = f"tuple of {', '.join(place.words for place in places) or 'nothing'}"
        self.hashable = all(place.hashable for place in places)

    def encode(self, value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(self.places):
            raise Misfit(self.words, value)
        written: list[Any] = []
        for place, item in zip(self.places, value, strict=True):
            try:
                written.append(place.encode(item))
            except Misfit as misfit:
                raise misfit.at(len(written)) from None
        return written

    def inner(self, step: Step) -> Form | None:
        return self.places[step] if isinstance(step, int) and step < len(self.places) else None


class DictForm(Form):
    """A JSON object. Names that are not text are written as text, and read back exactly."""

    kinds = frozenset(("dict",))
    hashable = False

    def __init__(self, key: Form, value: Form) -> None:
        self.key, self.value = key, value
        self.words = f"dict of {key.words} to {value.words}"

    def encode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise Misfit(self.words, value)
        written = {}
        for name, held in value.items():
            try:
                written[str(self.key.encode(name))] = self.value.encode(held)
            except Misfit as misfit:
                raise misfit.at(str(name)) from None
        return written

    def inner(self, step: Step) -> Form | None:
        return self.value if isinstance(step, str) else None


class RecordForm(Form):
    """A nested record, or a whole State: a JSON object with every field of the class.

    Fields that only newer code knows are written back unchanged.
    """

    kinds = frozenset(("dict",))

    def __init__(self, of: type[Any]) -> None:
        self.of, self.words = of, of.__name__

    @property
    def hashable(self) -> bool:  # type: ignore[override]  # known when its fields are
        fields: Mapping[str, Form] = self.of.__dict__.get("__fields_of__") or {}
        return all(form.hashable for form in fields.values())

    def encode(self, value: Any) -> Any:
        # A subclass has fields of its own, which would be lost: it is not of this type.
        if type(value) is not self.of:
            raise Misfit(self.words, value)
        held, kept, written = value.__dict__, value.__pydantic_extra__, {}
        name = ""
        try:
            for name, form in fields_of(self.of).items():
                written[name] = form.encode(held.get(name, ABSENT))
            for name in kept or ():
                written.setdefault(name, plain_json(kept[name]))
        except Misfit as misfit:
            raise misfit.at(name) from None
        return written

    def inner(self, step: Step) -> Form | None:
        return fields_of(self.of).get(step) if isinstance(step, str) else None


class UnionForm(Form):
    """One of several types that are always distinguishable (see `annotations`)."""

    def __init__(self, members: tuple[Form, ...]) -> None:
        # None is named last, as people say it; int before float, which accepts integers too.
        self.members = tuple(sorted(members, key=lambda m: (m.words == "None", m.words == "float")))
        self.words = " or ".join(member.words for member in self.members)
        self.kinds = frozenset[str]().union(*(member.kinds for member in members))
        self.hashable = all(member.hashable for member in members)
        self.tagged = sum(member.words != "None" for member in members) > 1

    def encode(self, value: Any) -> Any:
        inside: Misfit | None = None
        for member in self.members:
            try:
                return member.encode(value)
            except Misfit as misfit:
                inside = misfit if misfit.way else inside
        raise inside or Misfit(self.words, value)

    def inner(self, step: Step) -> Form | None:
        forms = [form for member in self.members if (form := member.inner(step)) is not None]
        return forms[0] if forms else None


def fields_of(record: type[Any]) -> Mapping[str, Form]:
    """The form of each field of a State or Record class, by name."""
    fields: Mapping[str, Form] | None = record.__dict__.get("__fields_of__")
    if fields is None:
        record.model_rebuild(raise_errors=False)
        fields = record.__dict__.get("__fields_of__")
    if fields is None:
        raise InvalidSchema(f"{record.__name__} names a type that is not defined")
    return fields


def is_unknown(value: Any, of: type[Enum]) -> bool:
    """True if this is an enum value that only newer code knows."""
    if type(value) is not UnknownVariant or value.of is not of:
        return False
    return all(value.value != member.value for member in of)


def plain_json(value: Any) -> Any:
    """A plain copy of a value that JSON holds without loss; raises Misfit."""
    if (trip := round_trip(value, _decode)) is not None:
        return trip[1]
    try:
        return settle(value, "value")
    except InvalidValue as error:
        misfit = Misfit("a value that JSON can hold", value)
        place = re.findall(r"\[(\d+)\]|\['([^']*)'\]", error.where)
        misfit.way = [int(at) if at else name for at, name in reversed(place)]
        raise misfit from error
    except RecursionError as error:
        raise Misfit("a value that JSON can hold", value) from error


def exact_float(value: Any) -> Any:
    """A finite float. An integer is converted if it is exactly the same number; else MISFIT."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return MISFIT
        try:
            same = float(value)
        except OverflowError:
            return MISFIT
        if same != value:
            return MISFIT
        value = same
    return value + 0.0 if value - value == 0.0 else MISFIT


def utc(value: datetime) -> Any:
    """The same time in UTC; MISFIT if it is naive or out of range."""
    try:
        return MISFIT if value.utcoffset() is None else value.astimezone(UTC)
    except OverflowError:
        return MISFIT


def duration_text(value: timedelta) -> str:
    """A duration as ISO 8601 writes it, exact to the microsecond: -P1DT2H3M4.000005S."""
    rest = value // timedelta(microseconds=1)
    sign, rest = ("-", -rest) if rest < 0 else ("", rest)
    days, rest = divmod(rest, _DAY)
    hours, rest = divmod(rest, _HOUR)
    minutes, rest = divmod(rest, _MINUTE)
    seconds, micros = divmod(rest, _SECOND)
    time = f"{hours}H" if hours else ""
    time += f"{minutes}M" if minutes else ""
    if seconds or micros or not (days or time):
        time += f"{seconds}.{micros:06}".rstrip("0") + "S" if micros else f"{seconds}S"
    return f"{sign}P{f'{days}D' if days else ''}{f'T{time}' if time else ''}"


def duration_of(text: str) -> timedelta:
    """Parse a duration in that form. Raises ValueError or OverflowError."""
    if (match := _DURATION(text)) is None:
        raise ValueError(text)
    sign, days, hours, minutes, seconds, micros = [part or "0" for part in match.groups()]
    made = timedelta(
        int(days), int(seconds), int(micros.ljust(6, "0")), 0, int(minutes), int(hours)
    )
    return -made if sign == "-" else made


# --- how each scalar is written -------------------------------------------------------------------


def _int(value: Any) -> Any:
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, int):
            return MISFIT
        value = int(value)
    return value if INT_MIN <= value <= INT_MAX else MISFIT


def _str(value: Any) -> Any:
    if not isinstance(value, str):
        return MISFIT
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return MISFIT
    return value if type(value) is str else "".join(value)


def _datetime(value: Any) -> Any:
    moment = utc(value) if isinstance(value, datetime) else MISFIT
    # Not by its own method: a subclass may write itself otherwise.
    return moment if moment is MISFIT else datetime.isoformat(moment)[:-6] + "Z"


def _date(value: Any) -> Any:
    return MISFIT if type(value) is not date else value.isoformat()


def _decimal(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) and value.is_finite() else MISFIT


def _exactly(kind: type[Any], write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: write(value) if isinstance(value, kind) else MISFIT


_KIND: Final = {str: "str", int: "int", bool: "bool", type(None): "null"}
NONE: Final = Scalar("None", "null", lambda value: None if value is None else MISFIT)
SCALARS: Final[Mapping[Any, Scalar]] = {
    type(None): NONE,
    bool: Scalar("bool", "bool", lambda value: value if type(value) is bool else MISFIT),
    int: Scalar("int", "int", _int),
    float: Scalar("float", "float", exact_float),
    str: Scalar("str", "str", _str),
    bytes: Scalar("bytes", "str", _exactly(bytes, lambda v: base64.b64encode(v).decode())),
    datetime: Scalar("aware datetime", "str", _datetime),
    date: Scalar("date", "str", _date),
    timedelta: Scalar("timedelta", "str", _exactly(timedelta, duration_text)),
    TTL: Scalar("TTL", "str", _exactly(TTL, duration_text)),
    UUID: Scalar("UUID", "str", _exactly(UUID, str)),
    # Written as text; a number that other code wrote is read as well, so none may stand beside it.
    Decimal: Scalar("finite Decimal", "str int float", _decimal),
}
