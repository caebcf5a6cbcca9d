"""Annotations: from a declared type to its stored form, or to the reason why it has none.

A type is accepted only if each of its values can be written and read back exactly. A union is
accepted only if the stored value identifies its member: no two members may become the same kind of
JSON value, except different literals, and records with different literal fields.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum, Flag
from itertools import combinations
from typing import Annotated, Any, Final, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

from limpet.errors import InvalidSchema
from limpet.model.state.forms import (
    SCALARS,
    AnyForm,
    DictForm,
    EnumForm,
    Form,
    ItemsForm,
    LiteralForm,
    RecordForm,
    RefForm,
    RowForm,
    Scalar,
    SetForm,
    UnionForm,
)
from limpet.model.state.reducers import Reducer
from limpet.model.state.types import Ref

_LITERALS: Final = (str, int, bool, type(None))
# Names that pydantic has for types that are ours anyway; by name, because it is not imported here.
_PYDANTIC: Final = {
    ("pydantic.types", "JsonValue"): Any,
    ("pydantic.types", "AwareDatetime"): datetime,
}


_ENCODERS: Final = {("pydantic.types", "EncodedBytes"), ("pydantic.types", "EncodedStr")}


class Undefined(Exception):
    """The annotation names something that is not defined yet."""


def form_of(annotation: Any, where: str) -> Form:
    """The form of an annotation; `where` names the field in errors. Raises InvalidSchema."""
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, (str, ForwardRef)):
        raise Undefined
    if origin is Annotated:
        if any(isinstance(item, Reducer) for item in args[1:]):
            raise InvalidSchema(f"{where} has a reducer inside its type; it stands on the field")
        form = form_of(args[0], where)
        check_marks(args[1:], where)
        for item in args[1:]:
            check_discriminator(getattr(item, "discriminator", None), form, where)
        return form
    if (aliased := _aliased(annotation)) is not None:
        return form_of(aliased, where)
    if origin is Literal:
        return _literal(args, where)
    if origin in (Union, types.UnionType):
        return _union(tuple(form_of(arg, where) for arg in args), where)
    if origin in _COLLECTIONS or annotation in _COLLECTIONS:
        return _collection(origin or annotation, args, where)
    return _single(origin or annotation, where)


def check_marks(marks: Iterable[Any], where: str) -> None:
    """Refuse what would change a type: a custom encoder, or non-strict validation."""
    for mark in marks:
        names = {(kind.__module__, kind.__name__) for kind in type(mark).__mro__}
        if names & _ENCODERS:
            raise InvalidSchema(
                f"{where} has an encoder in its type, so what is stored would not read back; use "
                "bytes or str"
            )
        if getattr(mark, "strict", None) is False:
            raise InvalidSchema(
                f"{where} is not strict, so 1 and '1' would be one value; be strict"
            )
        if ("pydantic.fields", "FieldInfo") in names:
            check_marks(mark.metadata, where)


def check_discriminator(name: Any, form: Form, where: str) -> None:
    """Refuse a number as a discriminator: pydantic treats 1, 1.0 and True as equal there."""
    for member in form.members if isinstance(form, UnionForm) and isinstance(name, str) else ():
        values = _literal_fields(member).get(name, ()) if isinstance(member, RecordForm) else ()
        if any(kind in (int, bool) for kind, _ in values):
            raise InvalidSchema(
                f"{where} has the discriminator {name!r}, which is a number in {member.words}; use "
                "literals of text, or leave the discriminator out"
            )


def _aliased(annotation: Any) -> Any:
    """The type behind a NewType or a type alias; None if it is neither."""
    name = (getattr(annotation, "__module__", ""), getattr(annotation, "__name__", ""))
    if name in _PYDANTIC:
        return _PYDANTIC[name]
    if (of := getattr(annotation, "__supertype__", None)) is not None:
        return of
    return None if isinstance(annotation, type) else getattr(annotation, "__value__", None)


def _single(annotation: Any, where: str) -> Form:
    if annotation is None or (annotation.__hash__ and annotation in SCALARS):
        return SCALARS[type(None) if annotation is None else annotation]
    if annotation is Any or isinstance(annotation, TypeVar):
        return AnyForm()
    if annotation is Ref:
        return RefForm()
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            return _enum(annotation, where)
        if hasattr(annotation, "__is_record__"):
            return RecordForm(annotation)
    raise InvalidSchema(
        f"{where} is of type {_shown(annotation)}, which has no exact stored form; use a type of "
        "the table in docs/state.md, or a Record"
    )


def _enum(of: type[Enum], where: str) -> Form:
    values = [type(member.value) in (str, int) for member in of]
    if issubclass(of, Flag) or not values or not all(values):
        raise InvalidSchema(f"{where} is the enum {of.__name__}, whose values are not str or int")
    for member in of:
        _check_literal(member.value, where)
    return EnumForm(of)


def _literal(values: tuple[Any, ...], where: str) -> Form:
    for value in values:
        if type(value) not in _LITERALS:
            raise InvalidSchema(f"{where} has the literal {value!r}: only str, int, bool and None")
        _check_literal(value, where)
    return LiteralForm(values)


def _check_literal(value: Any, where: str) -> None:
    form = SCALARS[type(value)]
    try:
        form.encode(value)
    except Exception as error:
        raise InvalidSchema(f"{where} has the value {value!r}, which cannot be stored") from error


# --- collections ----------------------------------------------------------------------------------


def _collection(of: type[Any], args: tuple[Any, ...], where: str) -> Form:
    if of is dict:
        key, value = args or (str, Any)
        return DictForm(_key(form_of(key, where), where), form_of(value, where))
    if of is tuple and args and args[-1:] != (Ellipsis,):
        return RowForm(tuple(form_of(arg, where) for arg in args))
    item = form_of(args[0] if args else Any, where)
    if of in (set, frozenset):
        if not item.hashable:
            raise InvalidSchema(f"{where} is a set of {item.words}, which cannot be in a set")
        return SetForm(of, item)
    return ItemsForm(of, item)


_COLLECTIONS: Final = (list, tuple, dict, set, frozenset)


def _key(form: Form, where: str) -> Form:
    fits = isinstance(form, Scalar) and form.words in ("str", "int", "UUID")
    one_kind = isinstance(form, (EnumForm, LiteralForm)) and len(form.kinds) == 1
    if not fits and not (one_kind and form.kinds <= {"str", "int"}):
        raise InvalidSchema(
            f"{where} is a dict whose keys are {form.words}; keys are str, int, UUID, or an enum "
            "or literal of one of the first two"
        )
    if isinstance(form, LiteralForm) and form.kinds == {"int"}:
        raise InvalidSchema(f"{where} is a dict whose keys are literal numbers; use int or an enum")
    return form


# --- unions ---------------------------------------------------------------------------------------


def _union(members: tuple[Form, ...], where: str) -> Form:
    for one, other in combinations(members, 2):
        if _alike(one, other) and not _told_apart(one, other):
            raise InvalidSchema(
                f"{where} is {one.words} or {other.words}, which look alike when stored; use one "
                "of them, or records that a literal field tells apart"
            )
    return UnionForm(members)


def _alike(one: Form, other: Form) -> bool:
    """Whether the two may become the same kind of JSON value.

    An int and a float differ by kind, but an enum or literal of numbers accepts 1.0 for 1.
    """
    named = (EnumForm, LiteralForm)
    numbers = one.kinds | other.kinds >= {"int", "float"}
    floats = "float" in (one.words, other.words)
    return bool(one.kinds & other.kinds) or (
        numbers and floats and (isinstance(one, named) or isinstance(other, named))
    )


def _told_apart(one: Form, other: Form) -> bool:
    if isinstance(one, LiteralForm) and isinstance(other, LiteralForm):
        return not one.values & other.values
    if isinstance(one, AnyForm) or isinstance(other, AnyForm):
        return "None" in (one.words, other.words)
    if isinstance(one, LiteralForm) or isinstance(other, LiteralForm):
        # The same value, read as either: a literal beside its own plain type.
        return {one.words, other.words} & {"str", "int", "bool"} != set()
    if isinstance(one, RecordForm) and isinstance(other, RecordForm):
        ours, theirs = _literal_fields(one), _literal_fields(other)
        return any(not ours[name] & theirs[name] for name in ours.keys() & theirs.keys())
    return False


def _literal_fields(form: RecordForm) -> dict[str, set[Any]]:
    fields: Mapping[str, Form] = form.of.__dict__.get("__fields_of__") or {}
    return {name: f.values for name, f in fields.items() if isinstance(f, LiteralForm)}


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else repr(annotation)
