"""Validation: exact rules for pydantic, and its errors as SchemaViolation.

`exact` walks the rules that pydantic generated for a class and makes them exact: 64-bit integers,
floats without loss, aware datetimes in UTC, enums that keep values from newer code, and stored text
that is read only in the exact form it is written in. `violation` turns pydantic's first error into
a SchemaViolation that names the user's fields and types. Imported only where typed state is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema as core

from limpet.errors import SchemaViolation
from limpet.model.limits import INT_MAX, INT_MIN
from limpet.model.ops import show
from limpet.model.state.forms import (
    MISFIT,
    SCALARS,
    DictForm,
    Form,
    Misfit,
    Step,
    UnionForm,
    duration_of,
    duration_text,
    exact_float,
    is_unknown,
    plain_json,
    utc,
)
from limpet.model.state.types import UnknownVariant
from limpet.model.values import described

# The context in which stored fields are read: only there an unknown variant is kept.
STORED: Final = object()
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}").fullmatch
_LITERALS: Final = frozenset((str, int, bool, type(None)))
_WRITTEN: Final = (int, date, timedelta, UUID, Decimal)  # read from text; a datetime is a date
_OURS: Final = "limpet"  # marks a rule that is exact already
_NESTED: Final = (
    "schema",
    "items_schema",
    "keys_schema",
    "values_schema",
    "json_schema",
    "python_schema",
    "lax_schema",
    "strict_schema",
)


def exact(schema: CoreSchema, handler: GetCoreSchemaHandler) -> CoreSchema:
    """The rules of a class, made exact in place."""
    top: Any = handler.resolve_ref_schema(schema)
    top["schema"] = _exact(top["schema"], handler, set())
    return schema


def _exact(rule: Any, handler: GetCoreSchemaHandler, seen: set[str]) -> Any:
    """The rule that replaces `rule`. Nested records are already exact."""
    kind = rule["type"]
    if kind == "model" or _OURS in rule.get("metadata", {}):
        return rule
    if kind == "definition-ref":
        named: Any = handler.resolve_ref_schema(rule)
        if named["type"] in _EXACT:  # an enum, or a named type: a copy of our own
            return _exact({k: v for k, v in named.items() if k != "ref"}, handler, seen)
        if rule["schema_ref"] not in seen:
            seen.add(rule["schema_ref"])
            _inside(named, handler, seen)
        return rule
    _inside(rule, handler, seen)
    make = _EXACT.get(kind)
    return rule if make is None else make(rule)


def _inside(rule: Any, handler: GetCoreSchemaHandler, seen: set[str]) -> None:
    if rule["type"] == "model":
        return
    if rule["type"] == "dict" and "keys_schema" in rule:
        rule["keys_schema"] = _exact_key(rule["keys_schema"], handler)
    for key in _NESTED:
        if isinstance(rule.get(key), dict):
            rule[key] = _exact(rule[key], handler, seen)
    if rule["type"] == "tuple":
        rule["items_schema"] = [_exact(item, handler, seen) for item in rule["items_schema"]]
    for field in rule.get("fields", {}).values() if rule["type"] == "model-fields" else ():
        field["schema"] = _exact(field["schema"], handler, seen)
    choices = rule.get("choices")
    if isinstance(choices, dict):
        rule["choices"] = {tag: _exact(c, handler, seen) for tag, c in choices.items()}
    elif isinstance(choices, list):
        rule["choices"] = [
            (_exact(c[0], handler, seen), c[1])
            if isinstance(c, tuple)
            else _exact(c, handler, seen)
            for c in choices
        ]


def _exact_key(rule: Any, handler: GetCoreSchemaHandler) -> Any:
    """The rule for the names of a dict, which are text when they are stored."""
    if rule["type"] == "definition-ref":
        named: Any = handler.resolve_ref_schema(rule)
        rule = {name: value for name, value in named.items() if name != "ref"}
    if rule["type"] == "enum":
        return _exact_enum(rule, names=True)
    if rule["type"] == "int":
        exact_rule = _exact_int(rule)
        return _either(_as_written(exact_rule, int, str), exact_rule, "int")
    if rule["type"].startswith("function-") and "schema" in rule:  # a validator around the name
        rule["schema"] = _exact_key(rule["schema"], handler)
    return rule


# --- the rules ------------------------------------------------------------------------------------


def _exact_int(rule: Any) -> Any:
    rule["ge"] = max(rule.get("ge", INT_MIN), INT_MIN)
    rule["le"] = min(rule.get("le", INT_MAX), INT_MAX)
    return rule


def _exact_default(rule: Any) -> Any:
    """An integer as the default of a float field is that float."""
    inner = rule["schema"]
    while inner["type"] == "nullable":
        inner = inner["schema"]
    is_float = inner.get("metadata", {}).get(_OURS) == "float"
    if is_float and type(rule.get("default")) is int and exact_float(rule["default"]) is not MISFIT:
        rule["default"] = exact_float(rule["default"])
    return rule


def _exact_float(rule: Any) -> Any:
    def same(value: Any) -> Any:
        # An integer stays one here: in a union pydantic must see that it is not quite a float.
        # Pydantic refuses what is not a number.
        made = exact_float(value)
        if made is MISFIT and type(value) is int:
            raise PydanticCustomError("float_exact", "a number that a float holds exactly")
        return made if type(value) is float and made is not MISFIT else value

    return _either(rule, core.no_info_before_validator_function(same, rule), "float")


def _exact_datetime(rule: Any) -> Any:
    def in_utc(value: Any) -> Any:
        moment = utc(value)
        if moment is MISFIT:
            raise PydanticCustomError("datetime_exact", "a moment between the years 1 and 9999")
        return moment

    rule["tz_constraint"] = "aware"
    stored = _as_written(rule, datetime.fromisoformat, SCALARS[datetime].encode)
    return _either(stored, core.no_info_after_validator_function(in_utc, rule), "datetime")


def _exact_date(rule: Any) -> Any:
    return _either(_as_written(rule, date.fromisoformat, date.isoformat), rule, "date")


def _exact_decimal(rule: Any) -> Any:
    return _either(_as_written(rule, Decimal, str), rule, "decimal")


def _exact_uuid(rule: Any) -> Any:
    return _either(_as_written(rule, UUID, str), rule, "uuid")


def _exact_timedelta(rule: Any) -> Any:
    def plain(value: timedelta) -> timedelta:
        # A TTL is a timedelta, and would be read back as one.
        return timedelta(value.days, value.seconds, value.microseconds)

    stored = _as_written(rule, duration_of, duration_text)
    return _either(stored, core.no_info_after_validator_function(plain, rule), "timedelta")


def _exact_enum(rule: Any, *, names: bool = False) -> Any:
    """A member, or a newer value of the same kind; as a name in a dict it is text.

    Stored values must match in type too: 1.0 and true are not the member whose value is 1.
    """
    of = rule["cls"]
    kinds = {type(member.value) for member in of}

    def read(value: Any, info: core.ValidationInfo[Any]) -> Any:
        if type(value) is of or is_unknown(value, of):  # the latter was read before, and passed on
            return value
        if info.mode == "json":
            if names and kinds == {int} and type(value) is str and _INTEGER(value):
                value = int(value)
            if type(value) in kinds:
                return _member(of, value, info)
        raise PydanticCustomError("enum", "a member")

    plain = core.with_info_plain_validator_function(read, json_schema_input_schema=rule)
    return _either(plain, plain, "enum")


def _member(of: type[Enum], value: Any, info: core.ValidationInfo[Any]) -> Any:
    """The member of a stored value; the enum itself may handle an unknown value."""
    try:
        return of(value)
    except ValueError:
        if info.context is STORED:
            return UnknownVariant(value, of)
        raise PydanticCustomError("enum", "a member") from None


def _exact_literal(rule: Any) -> Any:
    """One of the values, with its exact type: pydantic treats 1, 1.0 and True as equal."""
    values = {(type(value), value) for value in rule["expected"]}
    if not {int, bool} & {kind for kind, _ in values}:
        return rule  # left as it is: a literal of text may tell the members of a union apart

    def read(value: Any) -> Any:
        if type(value) in _LITERALS and (type(value), value) in values:
            return value
        raise PydanticCustomError("literal_error", "one of the values")

    plain = core.no_info_plain_validator_function(read, json_schema_input_schema=rule)
    return _either(plain, plain, "literal")


def _exact_any(rule: Any) -> Any:
    def plain(value: Any) -> Any:
        try:
            return plain_json(value)
        except Misfit as misfit:
            raise PydanticCustomError("json_exact", "a value that JSON can hold") from misfit

    return _either(rule, core.no_info_plain_validator_function(plain), "any")


def _as_written(rule: Any, read: Callable[[str], Any], write: Callable[[Any], str]) -> Any:
    """The rule for stored text, which must be exactly what is written for its value."""

    def exact_text(value: Any) -> Any:
        if isinstance(value, _WRITTEN):  # a default, or what a validator made of the text
            return value
        try:
            if type(value) is str and write(made := read(value)) == value:
                return made
        except (ValueError, ArithmeticError, Misfit):
            pass
        raise PydanticCustomError("text_exact", "the text that is written for a value")

    first = core.no_info_plain_validator_function(exact_text, json_schema_input_schema=rule)
    return core.chain_schema([first, rule])


def _exact_str(rule: Any) -> Any:
    rule.setdefault("min_length", 0)  # a bound, so that pydantic looks: no lone surrogates
    return rule


def _either(stored: Any, given: Any, what: str) -> Any:
    """One rule for stored JSON, another for values from a caller."""
    return core.json_or_python_schema(
        json_schema=stored, python_schema=given, metadata={_OURS: what}
    )


_EXACT: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _exact_int,
    "float": _exact_float,
    "datetime": _exact_datetime,
    "date": _exact_date,
    "timedelta": _exact_timedelta,
    "decimal": _exact_decimal,
    "uuid": _exact_uuid,
    "str": _exact_str,
    "enum": _exact_enum,
    "literal": _exact_literal,
    "any": _exact_any,
    "default": _exact_default,
}

# --- errors ---------------------------------------------------------------------------------------

_BY_TYPE: Final = frozenset(
    (
        "enum",
        "literal_error",
        "timezone_aware",
        "float_exact",
        "finite_number",
        "string_unicode",
        "needs_python_object",
        "model_attributes_type",
        "datetime_exact",
        "json_exact",
        "text_exact",
    )
)
_TYPE_ENDINGS: Final = ("_type", "_parsing", "_instance_of", "_encoding", "_object_invalid")
_BOUNDS: Final = {"greater_than_equal": INT_MIN, "less_than_equal": INT_MAX}


def violation(error: ValidationError, form: Form, name: str) -> SchemaViolation:
    """Pydantic's first error as a violation of the user's field and type."""
    first = _first(error.errors(include_url=False))
    way, at = _placed(form, first["loc"])
    kind, words = first["type"], at.words if at is not None else "nothing"
    actual = described(first.get("input"))
    if kind == "missing":
        actual = "nothing"
    elif kind == "extra_forbidden":
        words, actual = f"a field of {_owner(form, way)}", "a name that it does not declare"
    elif _by_size(first):
        words = f"{words} (an int has 64 bits)"
    elif not kind.endswith(_TYPE_ENDINGS) and kind not in _BY_TYPE:
        said = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        words = f"{words} ({said[:1].lower()}{said[1:]})"
    made = SchemaViolation(show(way) if way else name, words, actual)
    made.__cause__ = error
    return made


def failed(error: Exception, form: Form, name: str, value: object) -> SchemaViolation:
    """The violation for an exception that a user's validator raised outside pydantic's errors."""
    words = f"{form.words} (its validator raised {type(error).__name__})"
    return SchemaViolation(name, words, described(value))


def _first(errors: list[Any]) -> Any:
    """The first error, skipping union members that a literal field rules out."""
    ruled_out = {error["loc"][:-1] for error in errors if error["type"] == "literal_error"}
    for error in errors:
        loc = error["loc"]
        if not any(loc[:length] in ruled_out for length in range(len(loc))):
            return error
    return errors[0]


def _by_size(error: Any) -> bool:
    """True if the only problem is that an integer does not fit 64 bits."""
    bound = error.get("ctx", {}).get("ge", error.get("ctx", {}).get("le"))
    return bound is not None and _BOUNDS.get(error["type"]) == bound


def _placed(form: Form, loc: tuple[Step, ...]) -> tuple[list[Step], Form | None]:
    """The user's path within pydantic's, which also names union members; and the form there."""
    way: list[Step] = []
    here: Form | None = form
    skip = False
    for place, step in enumerate(loc):
        if isinstance(here, UnionForm) and here.tagged and not skip:
            skip = True  # the name of a member
            continue
        skip = False
        if isinstance(here, DictForm) and loc[place + 1 :] == ("[key]",) and _is_leaf(here.value):
            return [*way, step], here.key  # the name itself is meant
        inner = here.inner(step) if here is not None else None
        if inner is None and place < len(loc) - 1:
            continue
        if inner is None and (way and not isinstance(here, Form)):
            continue
        if inner is None and here is not None and not _holds_names(here):
            continue
        way.append(step)
        here = inner
    return way, here


def _owner(form: Form, way: list[Step]) -> str:
    """The record that does not have the last name of the path."""
    here: Form = form
    for step in way[:-1]:
        here = here.inner(step) or here
    return here.words


def _is_leaf(form: Form) -> bool:
    return form.inner("[key]") is None


def _holds_names(form: Form) -> bool:
    return "dict" in form.kinds and not isinstance(form, DictForm)
