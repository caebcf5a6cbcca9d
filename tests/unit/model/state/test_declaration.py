"""Declaring state: what is admitted, what is refused, when, and with which name."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypedDict

import pytest
from pydantic import (
    AnyUrl,
    AwareDatetime,
    Base64Bytes,
    Base64UrlStr,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    SecretStr,
    Strict,
    StrictInt,
    create_model,
)
from typing_extensions import TypeAliasType

from limpet import Record, State
from limpet.errors import InvalidSchema
from limpet.model.state import reducers as r
from limpet.model.state.state import encode_fields
from tests.support.declared import Called, Level, Message, Node, Point, Role, Said
from tests.support.ids import plain


@dataclasses.dataclass
class Data:
    x: int = 1


class Typed(TypedDict):
    x: int


class Named(NamedTuple):
    x: int


class Foreign(BaseModel):
    x: int = 1


class Flags(enum.IntFlag):
    A = 1


class Halves(enum.Enum):
    A = 0.5


class Huge(enum.Enum):
    A = 2**64


class First(Record):
    kind: Literal[1] = 1


class Second(Record):
    kind: Literal[2] = 2


class Holder(Record):
    names: dict[str, int] = {}


def declared(type_: Any, default: Any = ...) -> type[State]:
    made: type[State] = create_model("Made", __base__=State, field=(type_, default))
    return made


@pytest.mark.parametrize(
    "type_",
    [
        complex,
        object,
        range,
        bytearray,
        time,
        Data,
        Typed,
        Named,
        Foreign,
        SecretStr,
        AnyUrl,
        type,
        Callable[[], int],
        typing.Sequence[int],
        typing.Mapping[str, int],
        typing.Iterable[int],
        Flags,
        Halves,
        Huge,
        Literal[Role.USER],
        Literal[b"x"],
        Literal[2**64],
        set[list[int]],
        set[Any],
        set[Holder],
        set[dict[str, int]],
        frozenset[tuple[list[int], ...]],
        dict[float, int],
        dict[bool, int],
        dict[date, int],
        dict[str | int, int],
        dict[None, int],
        dict[tuple[int, int], int],
        dict[Literal[1], int],
        dict[Literal["a", 1], int],
        bytes | str,
        AwareDatetime | str,
        Role | str,
        Role | Literal["x"],
        float | Literal[1],
        Level | float,
        Decimal | int,
        list[int] | set[int],
        list[int] | tuple[int, ...],
        Point | Node,
        Point | dict[str, int],
        Any | int,
        Literal["a"] | Literal["a", "b"] | bytes,
        list[complex],
        dict[str, list[complex | None]],
        tuple[int, complex],
        Annotated[list[Annotated[list[int], r.append]], Field()],
        Base64Bytes,
        list[Base64UrlStr],
        Annotated[int, Strict(False)],
        list[Annotated[int, Field(strict=False)]],
        Annotated[First | Second, Field(discriminator="kind")],
        list[Annotated[First | Second, Field(discriminator="kind")]],
    ],
    ids=str,
)
def test_a_type_without_an_exact_form_is_refused_by_name(type_: Any) -> None:
    """When the class is defined, not when somebody's data meets it."""
    with pytest.raises(InvalidSchema, match=r"Made\.field"):
        declared(type_)


@pytest.mark.parametrize(
    "type_",
    [
        PositiveInt,
        StrictInt,
        AwareDatetime,
        typing.List[int],  # noqa: UP006  # the old spelling means the same
        typing.Dict[str, int],  # noqa: UP006
        typing.Optional[int],  # noqa: UP045
        Any | None,
        Literal["a"] | str,
        Literal["a"] | Literal["b"],
        Said | Called,
        First | Second,
        Annotated[Said | Called, Field(discriminator="kind")],
        frozenset[Point],
        set[tuple[int, str]],
        dict[Literal["a", "b"], int],
        int | float | None,
        list,
        dict,
        tuple,
        tuple[()],
        TypeAliasType("Points", list[Point]),
    ],
    ids=str,
)
def test_a_type_with_an_exact_form_is_admitted(type_: Any) -> None:
    """Constraints, aliases, old spellings, and unions that nobody can confuse."""
    assert declared(type_).model_fields.keys() == {"field"}


def test_an_alias_that_names_itself_is_refused() -> None:
    """A Record may contain itself; an alias has no name to be stored by."""
    nested = TypeAliasType("nested", "list[nested] | int")  # type: ignore[misc]
    with pytest.raises(InvalidSchema, match="alias"):
        declared(nested)


@pytest.mark.parametrize(
    ("type_", "default"),
    [(int, "1"), (int, None), (float, 2**53 + 1), (Role, "user"), (list[int], ()), (int, 2**63)],
)
def test_a_default_of_another_type_is_refused(type_: Any, default: Any) -> None:
    """A default is a value like any other."""
    with pytest.raises(InvalidSchema, match=r"the default of Made\.field"):
        declared(type_, default)


def test_an_integer_default_of_a_float_is_a_float() -> None:
    """`score: float = 0` is what people write."""
    assert type(Point(x=1).y) is float
    made = declared(float | None, 3)()
    assert type(made.field) is float  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "version",
    [
        "1",
        "1.0",
        f"1.{10**18}.0",
        "1.0.0.0",
        "01.0.0",
        "1.0.0-rc1",
        "v1.0.0",
        "1.0.x",
        "",
        "1.0.0\n",
        1,
    ],
)
def test_a_version_is_three_numbers(version: Any) -> None:
    """MAJOR.MINOR.PATCH and nothing else, looked at when the class is defined."""
    with pytest.raises(InvalidSchema, match="schema_version"):
        type("Made", (State,), {"schema_version": version, "__annotations__": {}})


@pytest.mark.filterwarnings("ignore:Field name")  # pydantic warns before we refuse
def test_the_version_is_the_classes_own() -> None:
    """1.0.0 unless said otherwise, inherited, and no field."""

    class First(State):
        x: int = 0

    class Second(First):
        schema_version: ClassVar[str] = "2.10.3"

    assert (First.schema_version, Second.schema_version) == ("1.0.0", "2.10.3")
    assert "schema_version" not in encode_fields(Second())
    with pytest.raises(InvalidSchema, match="ClassVar"):

        class Third(State):
            schema_version: str = "1.0.0"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["app:n", "user:n", "temp:n", " n", "n" * 300, "a\nb"])
def test_a_field_has_a_name_of_the_sessions_own(name: str) -> None:
    """Scopes have no place in a State, nor have names that no session could hold."""
    fields: dict[str, Any] = {name: (int, 0)}
    with pytest.raises(InvalidSchema):
        create_model("Made", __base__=State, **fields)


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[int, r.append],
        Annotated[str, r.concat_flatten],
        Annotated[list[int] | None, r.append],
        Annotated[set[int], r.append],
        Annotated[dict[str, int], r.bounded_append(3)],
        Annotated[tuple[int, str], r.append],
        Annotated[list[int], r.merge],
        Annotated[Point, r.merge],
        Annotated[list[int], r.merge_all],
        Annotated[list[int], r.dedupe_append("id")],
        Annotated[list[Message], r.dedupe_append("uid")],
        Annotated[list[Message], r.merge_by_key("id.x")],
        Annotated[list[Said | Called], r.merge_by_key("text")],
        Annotated[list[int], r.append, r.bounded_append(3)],
        Annotated[list[int], r.append, r.append],
        Annotated[list[int], r.bounded_append],
        Annotated[list[Message], r.merge_by_key],
    ],
    ids=plain,
)
def test_a_reducer_that_does_not_fit_is_refused(annotation: Any) -> None:
    """A wrong type, an unknown key, two of them, or one without its argument."""
    with pytest.raises(InvalidSchema, match=r"Made\.field"):
        declared(annotation)


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[list[Any], r.merge_by_key("id")],
        Annotated[list[dict[str, Any]], r.dedupe_append("meta.id")],
        Annotated[list[Said | Called], r.merge_by_key("kind")],
        Annotated[tuple[Message, ...], r.append],
        Annotated[list[int], r.dedupe_append()],
        Annotated[dict[Role, int], r.merge],
        Annotated[list[int], Field(max_length=3), r.append],
        Annotated[int, r.last_write_wins],
    ],
    ids=str,
)
def test_a_reducer_that_fits_is_admitted(annotation: Any) -> None:
    """Keys are looked for as deep as the types are known."""
    assert declared(annotation)


def test_reducers_stand_on_fields_of_a_state() -> None:
    """A nested record is replaced or merged as a whole."""
    with pytest.raises(InvalidSchema, match="fields of a State"):
        create_model("Made", __base__=Record, field=(Annotated[list[int], r.append], []))


@pytest.mark.parametrize(
    "config",
    [
        ConfigDict(extra="allow"),
        ConfigDict(frozen=False),
        ConfigDict(strict=False),
        ConfigDict(val_json_bytes="utf8"),
        ConfigDict(use_enum_values=True),
        ConfigDict(alias_generator=str.upper),
        ConfigDict(arbitrary_types_allowed=True),
        ConfigDict(allow_inf_nan=True),
    ],
    ids=str,
)
def test_the_promises_cannot_be_switched_off(config: ConfigDict) -> None:
    """A setting that would make stored names or values inexact is refused."""
    with pytest.raises(InvalidSchema, match="setting"):
        type("Made", (State,), {"model_config": config, "__annotations__": {"x": int}, "x": 0})


def test_what_would_not_be_stored_is_refused() -> None:
    """Private attributes, other names than the fields', and a constructor of one's own."""
    with pytest.raises(InvalidSchema, match="private"):

        class Private(State):
            _hidden: int = PrivateAttr(0)

    with pytest.raises(InvalidSchema, match="alias"):

        class Aliased(State):
            x: int = Field(0, alias="y")

    with pytest.raises(InvalidSchema, match="__init__"):

        class Built(State):
            x: int = 0

            def __init__(self, **data: Any) -> None:
                super().__init__(**data)


def test_a_class_may_name_what_is_defined_later() -> None:
    """Until then using it is an InvalidSchema; afterwards it is checked and whole."""
    names: dict[str, Any] = {"State": State, "Record": Record}
    exec("class Late(State):\n    items: 'list[Later]' = []\n", names)
    with pytest.raises(InvalidSchema, match="not defined"):
        names["Late"]()
    exec("class Later(Record):\n    x: int\n", names)
    names["Late"].model_rebuild(_types_namespace=names)
    assert encode_fields(names["Late"](items=[{"x": 1}])) == {"items": [{"x": 1}]}
