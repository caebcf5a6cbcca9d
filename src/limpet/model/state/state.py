"""State and Record: the classes that declare a session's own fields.

A State is a frozen pydantic model with strict types; a Record is nested in it. Both are checked
when the class is defined: every field has an exact stored form, and every reducer matches its
field. `encode_fields` returns the plain fields that a session stores. `decode_fields` reads them
back: it is strict about types, fills in defaults and ignores names that only newer code knows. A
record keeps those names and writes them back.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum, Flag
from functools import partial
from itertools import combinations
from types import BuiltinFunctionType, FunctionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    ForwardRef,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, PydanticUserError, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticUndefined

from limpet.errors import InvalidSchema, LimpetError, SchemaViolation
from limpet.model import described, scope_of, unfit
from limpet.model.limits import KEY_PART_CHARS_MAX, NAME_CHARS_MAX
from limpet.model.ops import show
from limpet.model.state import validation
from limpet.model.state.forms import (
    SCALARS,
    AnyForm,
    DictForm,
    EnumForm,
    Form,
    ItemsForm,
    LiteralForm,
    Misfit,
    RecordForm,
    RefForm,
    RowForm,
    Scalar,
    SetForm,
    UnionForm,
    fields_of,
)
from limpet.model.state.migrations import NewerMinor, SchemaVersion
from limpet.model.state.reducers import FACTORIES, Keyed, Reducer
from limpet.model.state.types import Ref
from limpet.model.values import ABSENT, encode

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry

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


_LITERALS: Final = (str, int, bool, type(None))
# Names that pydantic has for types that are ours anyway.
_PYDANTIC: Final = {
    ("pydantic.types", "JsonValue"): Any,
    ("pydantic.types", "AwareDatetime"): datetime,
}
_ENCODERS: Final = {("pydantic.types", "EncodedBytes"), ("pydantic.types", "EncodedStr")}


class Undefined(Exception):
    """The annotation names something that is not defined yet."""


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


# --- from an annotation to its stored form --------------------------------------------------------


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
        of = origin or annotation
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
    """True if the two may become the same kind of JSON value.

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


# --- reducers -------------------------------------------------------------------------------------

# Other frameworks use these as reducers: here they would be ignored, and data overwritten.
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, partial)
_NAMES: Final = frozenset(
    {
        "append",
        "bounded_append",
        "concat_flatten",
        "dedupe_append",
        "last_write_wins",
        "merge",
        "merge_all",
        "merge_by_key",
    }
)


def check_reducers(metadata: Iterable[Any], form: Form, where: str, *, allowed: bool) -> None:
    """Refuse two reducers on one field, a reducer of the wrong type, and one in a nested record."""
    metadata = list(metadata)
    for item in metadata:
        if any(item is factory for factory in FACTORIES):
            raise InvalidSchema(f"{where} has {item.__name__} without its argument; call it")
        if isinstance(item, _FUNCTIONS) or (isinstance(item, str) and item in _NAMES):
            named = item if isinstance(item, str) else getattr(item, "__name__", "a function")
            raise InvalidSchema(
                f"{where} has {named}, which is not a reducer; use one of limpet.reducers: "
                f"{', '.join(sorted(_NAMES))}"
            )
    reducers = [item for item in metadata if isinstance(item, Reducer)]
    if not reducers:
        return
    if not allowed:
        raise InvalidSchema(f"{where} has a reducer; reducers stand on fields of a State")
    if len(reducers) > 1:
        names = " and ".join(reducer.name for reducer in reducers)
        raise InvalidSchema(f"{where} has the reducers {names}; a field has one")
    _check_fit(reducers[0], form, where)


def _check_fit(reducer: Reducer, form: Form, where: str) -> None:
    is_list = isinstance(form, ItemsForm) and not isinstance(form, SetForm)
    if reducer.holds == "list" and not is_list:
        raise InvalidSchema(f"{where} is {form.words}, and {reducer.name} needs a list or tuple")
    if reducer.holds == "dict" and not isinstance(form, DictForm):
        raise InvalidSchema(f"{where} is {form.words}, and {reducer.name} needs a dict")
    key = reducer.key if isinstance(reducer, Keyed) else None
    if callable(key):
        raise InvalidSchema(
            f"{where} has the reducer {reducer.name}, whose key is a function; name a field or a "
            "dotted path"
        )
    if key is not None and isinstance(form, ItemsForm) and not _has(form.item, key.split(".")):
        raise InvalidSchema(f"{where} is {form.words}, which has no key {key!r}")


def _has(form: Form | None, path: list[str]) -> bool:
    """True if a value of the form may have something at the path."""
    if form is None or not path:
        return form is not None
    if isinstance(form, UnionForm):
        members = [member for member in form.members if member.words != "None"]
        return bool(members) and all(_has(member, path) for member in members)
    if isinstance(form, AnyForm):
        return True
    if isinstance(form, RecordForm):
        return _has(fields_of(form.of).get(path[0]), path[1:])
    return isinstance(form, DictForm) and _has(form.value, path[1:])


# --- the classes --------------------------------------------------------------------------------

S = TypeVar("S", bound="State")


class Record(BaseModel):
    """A frozen record nested in a State: a message, a plan, a step."""

    model_config = CONFIG
    __is_record__: ClassVar[bool] = True
    __fields_of__: ClassVar[Mapping[str, Form]] = {}  # the form of each field

    if not TYPE_CHECKING:  # a type checker sees the fields as arguments

        def __init__(self, /, **data: Any) -> None:
            try:
                self.__pydantic_validator__.validate_python(data, self_instance=self)
            except ValidationError as error:
                cls = type(self)
                raise validation.violation(error, RecordForm(cls), cls.__name__) from error
            except PydanticUserError as error:
                raise _unfinished(type(self)) from error
            except LimpetError:
                raise
            except Exception as error:
                cls = type(self)
                raise validation.failed(error, RecordForm(cls), cls.__name__, data) from error

        # Without this mark pydantic would call __init__ for every nested record.
        __init__.__pydantic_base_init__ = True

        def __setattr__(self, name: str, value: Any) -> None:
            raise TypeError(
                f"{type(self).__name__}.{name} is read-only: state changes with "
                f"await session.apply({{{name!r}: …}}), a record with model_copy(update=…)"
            )

        def __delattr__(self, name: str) -> None:
            raise TypeError(f"{type(self).__name__}.{name} is read-only and cannot be deleted")

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        known = check_declaration(cls)
        schema = handler(source)  # raises, for pydantic to try again, if a name is not defined yet
        if not known:
            raise InvalidSchema(f"{cls.__name__} has an alias that names itself; use a Record")
        return validation.exact(schema, handler)


class State(Record):
    """Declares a session's own fields. Names that it does not declare are left alone.

    `schema_version` is the version of the declaration, MAJOR.MINOR.PATCH. `newer_minor` says how to
    treat state that a newer MINOR has written: "refuse" it, or work on it beside the newer code and
    "keep" what this class does not know.
    """

    schema_version: ClassVar[str] = "1.0.0"
    newer_minor: ClassVar[NewerMinor] = "refuse"
    __is_state__: ClassVar[bool] = True

    @classmethod
    def access_of(cls, field: str) -> Access:
        """Return the declared access to a field. Raises SchemaViolation."""
        if field not in cls.__pydantic_fields__:
            words = f"a field of {cls.__name__}"
            raise SchemaViolation(field, words, "a name that it does not declare")
        return access_of(cls.__pydantic_fields__[field].metadata)


def field_policies(state_type: type[State]) -> dict[str, Any]:
    """The fields whose access is declared, in the form that is kept with a session: the roles that
    may `read` and `write` each, where not everybody may."""
    declared = {name: state_type.access_of(name) for name in state_type.__pydantic_fields__}
    return {name: form for name, access in declared.items() if (form := access.form)}


def encode_fields(state: State) -> dict[str, Any]:
    """The plain values of every field, as a session holds them. Raises SchemaViolation."""
    if not isinstance(state, State):
        raise SchemaViolation("state", "a State", described(state))
    written: dict[str, Any] = encoded(RecordForm(type(state)), state)
    return written


def decode_fields(
    state_type: type[S],
    fields: Mapping[str, Any],
    *,
    schema_version: str | None = None,
    migrations: MigrationRegistry | None = None,
) -> S:
    """The typed view of a session's fields. Raises SchemaViolation.

    Missing fields take their defaults. Names that the class does not declare are ignored, except
    that nested records keep theirs; unknown enum values become UnknownVariant. With the
    `schema_version` they were stored under, fields of another MAJOR are migrated by `migrations`,
    or MigrationError is raised.
    """
    if schema_version is not None:
        from limpet.model.state.migrations import MigrationRegistry, check_registry

        registry = MigrationRegistry() if migrations is None else check_registry(migrations)
        plain = fields if isinstance(fields, dict) else dict(fields)
        wanted, newer = state_type.schema_version, state_type.newer_minor
        fields = registry.migrate(plain, schema_version, wanted, newer_minor=newer).fields
    own = {name: fields[name] for name in state_type.__pydantic_fields__ if name in fields}
    read: S = decoded(state_type, own)
    return read


def encoded(form: Form, value: Any, name: str = "") -> Any:
    """The plain form of a value. Raises SchemaViolation with paths that start with `name`."""
    try:
        return form.encode(value)
    except Misfit as misfit:
        way = [*([name] if name else []), *reversed(misfit.way)]
        actual = "nothing" if misfit.value is ABSENT else described(misfit.value)
        where = show(way) if way else form.words
        raise SchemaViolation(where, misfit.expected, actual) from misfit
    except RecursionError as error:
        where = name or form.words
        raise SchemaViolation(where, "a value that ends", "nested without end") from error


def decoded(record: type[Record], fields: Mapping[str, Any]) -> Any:
    """A record of the class, read from stored fields. Raises SchemaViolation."""
    try:
        raw = encode(fields)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise SchemaViolation(record.__name__, "plain JSON values", described(fields)) from error
    try:
        return record.__pydantic_validator__.validate_json(
            raw, strict=True, extra="allow", context=validation.STORED
        )
    except ValidationError as error:
        raise validation.violation(error, RecordForm(record), record.__name__) from error
    except PydanticUserError as error:
        raise _unfinished(record) from error
    except LimpetError:
        raise
    except Exception as error:
        raise validation.failed(error, RecordForm(record), record.__name__, fields) from error


def _unfinished(record: type[Record]) -> InvalidSchema:
    return InvalidSchema(f"{record.__name__} names a type that is not defined")


# --- access --------------------------------------------------------------------------------------


Operation: TypeAlias = Literal["read", "write"]


class Access(msgspec.Struct, frozen=True):
    """The roles that may read and write. None means everybody."""

    read: frozenset[str] | None = None
    write: frozenset[str] | None = None

    def allows(self, operation: Operation, actor: str) -> bool:
        """True if a principal of this role may read or write the field."""
        roles = self.read if operation == "read" else self.write
        return roles is None or actor.partition(":")[0] in roles

    @property
    def form(self) -> dict[str, list[str]]:
        """Return the plain values to store with a session; empty if there is no restriction."""
        roles = {"read": self.read, "write": self.write}
        return {name: sorted(of) for name, of in roles.items() if of is not None}


OPEN: Final = Access()


def access(*, read: Iterable[str] | None = None, write: Iterable[str] | None = None) -> Access:
    """Declare who may read or write a field: `Annotated[str, access(write=["agent"])]`.

    Raises InvalidSchema.
    """
    return Access(_roles("read", read), _roles("write", write))


def access_of(metadata: Iterable[Any]) -> Access:
    """The access among a field's annotations."""
    return next((item for item in metadata if isinstance(item, Access)), OPEN)


def _roles(what: str, given: Iterable[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    roles = [given] if isinstance(given, str) else list(given)
    for role in roles:
        if reason := unfit(role, KEY_PART_CHARS_MAX):
            raise InvalidSchema(f"a role that may {what} {reason}")
        if ":" in role:
            raise InvalidSchema(
                f"the role {role!r} has a colon; it is the part of an actor before that"
            )
    return frozenset(roles)
