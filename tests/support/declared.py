"""States that tests declare: one field for each type class, and a chat."""

from __future__ import annotations

import enum
import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar

from pydantic import JsonValue

from limpet import TTL, Record, Ref, State
from limpet.model.state.reducers import (
    append,
    bounded_append,
    concat_flatten,
    dedupe_append,
    merge,
    merge_all,
    merge_by_key,
)

T = TypeVar("T")
Tokens = NewType("Tokens", int)


class Role(enum.Enum):
    USER = "user"
    AGENT = "agent"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(Record):
    x: int
    y: float = 0


class Node(Record):
    name: str
    children: list[Node] = []


class Said(Record):
    kind: Literal["said"] = "said"
    text: str


class Called(Record):
    kind: Literal["called"] = "called"
    tool: str
    arguments: dict[str, Any] = {}
    then: list[Said | Called] = []


class Boxed(Record, Generic[T]):
    content: T


class Everything(State):
    """Every type class, each with what may go wrong in it."""

    int_: int
    float_: float
    str_: str
    bool_: bool
    bytes_: bytes
    none: None
    datetime_: datetime
    date_: date
    timedelta_: timedelta
    ttl: TTL
    uuid_: uuid.UUID
    decimal: Decimal
    named: Tokens
    optional: int | None
    role: Role
    level: Level
    literal: Literal["a", 1, True, None]
    number: int | float
    scalar: int | float | str | bool | None
    moment: datetime | int
    ref: Ref[Point]
    list_: list[float]
    deep: list[list[bytes | None]]
    tuple_: tuple[int, ...]
    row: tuple[int, str, datetime]
    set_: set[str]
    numbers: set[int]
    moments: frozenset[datetime]
    points: frozenset[Point]
    dict_: dict[str, timedelta]
    by_int: dict[int, str]
    by_uuid: dict[uuid.UUID, int]
    by_role: dict[Role, list[int]]
    by_level: dict[Level, bool]
    point: Point
    maybe: Point | None
    tree: Node
    steps: list[Said | Called]
    boxed: Boxed[bytes]
    any_: Any
    json_: JsonValue


class Message(Record):
    id: str
    text: str
    role: Role = Role.USER


class Reduced(State):
    """One field for each reducer."""

    last: list[Message] = []
    appended: Annotated[list[Message], append] = []
    concat: Annotated[list[Message], concat_flatten] = []
    bounded: Annotated[list[Message], bounded_append(3)] = []
    dedupe: Annotated[list[Message], dedupe_append("id")] = []
    whole: Annotated[list[Message], dedupe_append()] = []
    keyed: Annotated[list[Message], merge_by_key("id")] = []
    merged: Annotated[dict[str, int], merge] = {}
    all_merged: Annotated[dict[str, int], merge_all] = {}
    tuple_: Annotated[tuple[Message, ...], append] = ()
