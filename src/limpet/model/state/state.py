"""State and Record: the classes that declare a session's own fields.

A State is a frozen pydantic model with strict types; a Record is nested in it. Both are checked
when the class is defined: every field has an exact stored form, and every reducer matches its
field. `encode_fields` returns the plain fields that a session stores. `decode_fields` reads them
back: it is strict about types, fills in defaults and ignores names that only newer code knows. A
record keeps those names and writes them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel, GetCoreSchemaHandler, PydanticUserError, ValidationError
from pydantic_core import CoreSchema

from limpet.errors import InvalidSchema, LimpetError, SchemaViolation
from limpet.model.ops import show
from limpet.model.state import validation
from limpet.model.state.access import Access, access_of
from limpet.model.state.declaration import CONFIG, check_declaration
from limpet.model.state.forms import Form, Misfit, RecordForm
from limpet.model.state.semver import NewerMinor
from limpet.model.values import ABSENT, described, encode

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry

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
        """Who may read and write a field, as declared. Raises SchemaViolation."""
        if field not in cls.__pydantic_fields__:
            words = f"a field of {cls.__name__}"
            raise SchemaViolation(field, words, "a name that it does not declare")
        return access_of(cls.__pydantic_fields__[field].metadata)


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
        fields = _migrated(state_type, fields, schema_version, migrations)
    own = {name: fields[name] for name in state_type.__pydantic_fields__ if name in fields}
    read: S = decoded(state_type, own)
    return read


def _migrated(
    state_type: type[State],
    fields: Mapping[str, Any],
    stored: str,
    migrations: MigrationRegistry | None,
) -> Mapping[str, Any]:
    from limpet.model.state.migrations import MigrationRegistry, check_registry

    registry = MigrationRegistry() if migrations is None else check_registry(migrations)
    plain = fields if isinstance(fields, dict) else dict(fields)
    wanted, newer = state_type.schema_version, state_type.newer_minor
    return registry.migrate(plain, stored, wanted, newer_minor=newer).fields


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
