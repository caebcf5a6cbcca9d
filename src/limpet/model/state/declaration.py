"""Declarations: checks a class that declares state, once, when the class is defined.

Checks its settings, names, types, defaults, reducers and version. A class that passes has an exact
stored form for every value it may hold.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args, get_origin

from pydantic import ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from limpet.errors import InvalidSchema
from limpet.model import NAME_CHARS_MAX, described, scope_of, unfit
from limpet.model.state.access import Access
from limpet.model.state.annotations import Undefined, check_discriminator, check_marks, form_of
from limpet.model.state.forms import Form, Misfit
from limpet.model.state.reducer_types import check_reducers
from limpet.model.state.semver import NewerMinor, SchemaVersion

CONFIG: Final = ConfigDict(
    strict=True,
    extra="forbid",
    frozen=True,
    allow_inf_nan=False,
    val_json_bytes="base64",
    ser_json_bytes="base64",
)
# Settings that would make stored names or values differ from the declared ones.
_UNWANTED: Final = ("alias_generator", "use_enum_values", "arbitrary_types_allowed")


def check_declaration(cls: type[Any]) -> bool:
    """Check a class and store the form of each field. Raises InvalidSchema.

    Returns False if an annotation names something that is not defined yet, or the class itself.
    """
    fields = cls.__pydantic_fields__
    _check_class(cls)
    forms: dict[str, Form] = {}
    cls.__fields_of__ = forms  # a record may be among its own parts
    try:
        # Literals first: they tell the members of a union apart, this class perhaps among them.
        for name in sorted(fields, key=lambda name: get_origin(fields[name].annotation) != Literal):
            forms[name] = form_of(fields[name].annotation, f"{cls.__name__}.{name}")
        for name, field in fields.items():
            _check_field(cls, name, field, forms[name])
    except (Undefined, RecursionError):
        del cls.__fields_of__
        return False
    except InvalidSchema:
        del cls.__fields_of__
        raise
    cls.__fields_of__ = {name: forms[name] for name in fields}
    return True


def _check_class(cls: type[Any]) -> None:
    for setting, value in CONFIG.items():
        if cls.model_config.get(setting) != value:
            raise InvalidSchema(f"{cls.__name__} changes the setting {setting!r}; leave it {value}")
    for setting in _UNWANTED:
        if cls.model_config.get(setting):
            raise InvalidSchema(f"{cls.__name__} uses the setting {setting!r}; leave it out")
    if cls.__pydantic_custom_init__:
        raise InvalidSchema(f"{cls.__name__} defines __init__; use a validator or a classmethod")
    if cls.__private_attributes__:
        name = next(iter(cls.__private_attributes__))
        raise InvalidSchema(f"{cls.__name__}.{name} is private and would not be stored; rename it")
    if _is_state(cls):
        if "schema_version" in cls.__pydantic_fields__:
            raise InvalidSchema(f"{cls.__name__}.schema_version is a ClassVar[str], not a field")
        if cls.newer_minor not in get_args(NewerMinor) or "newer_minor" in cls.__pydantic_fields__:
            raise InvalidSchema(
                f'{cls.__name__}.newer_minor is neither "refuse" nor "keep"',
                'Write newer_minor: ClassVar[Literal["refuse", "keep"]] = "keep", or leave it out',
            )
        _check_version(cls)


def _check_version(cls: type[Any]) -> None:
    try:
        if isinstance(cls.schema_version, str):
            SchemaVersion.parse(cls.schema_version)
            return
    except InvalidSchema:
        pass  # said below, with the name of the class
    raise InvalidSchema(
        f"{cls.__name__}.schema_version is {cls.schema_version!r}; write three numbers of at most "
        "18 digits, as in '1.0.0'"
    )


def _check_field(cls: type[Any], name: str, field: FieldInfo, form: Form) -> None:
    where = f"{cls.__name__}.{name}"
    if reason := unfit(name, NAME_CHARS_MAX):
        raise InvalidSchema(f"the name of {where} {reason}")
    if _is_state(cls) and scope_of(name) != "session":
        raise InvalidSchema(f"{where} has a scope's prefix; a State has the session's own fields")
    if field.alias or field.validation_alias or field.serialization_alias:
        raise InvalidSchema(f"{where} has an alias; fields are stored by their own names")
    check_marks(field.metadata, where)
    check_discriminator(field.discriminator, form, where)
    check_reducers(field.metadata, form, where, allowed=_is_state(cls))
    policies = [item for item in field.metadata if isinstance(item, Access)]
    if len(policies) > 1 or (policies and not _is_state(cls)):
        raise InvalidSchema(f"{where} has an access of its own; one stands on a field of a State")
    if field.default is not PydanticUndefined:
        try:
            form.encode(field.default)
        except Misfit:
            said = described(field.default)
            raise InvalidSchema(f"the default of {where} is {said}, not {form.words}") from None


def _is_state(cls: type[Any]) -> bool:
    return hasattr(cls, "__is_state__")
