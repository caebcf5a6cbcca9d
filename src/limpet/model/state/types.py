"""Types that typed state adds to Python's own: TTL, Ref, UnknownVariant.

They need no extra: a program can create and check references without typed state. If pydantic is
installed, it asks each class for its rules through `__get_pydantic_core_schema__`.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import msgspec

from limpet.errors import SchemaViolation
from limpet.model.values import described

T = TypeVar("T")

URI_CHARS_MAX: Final = 2_048
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\s\x00-\x1f\x7f\ud800-\udfff]+").fullmatch
_SHA256: Final = re.compile(r"[0-9a-f]{64}").fullmatch


class TTL(timedelta):
    """How long something stays valid, counted from a start that its owner knows. Never negative.

    A separate type, so that a field shows whether it holds a difference between two times or an
    expiry: `TTL(hours=1).ends_at(made_at)`.
    """

    __slots__ = ()

    def __new__(cls, *args: float, **parts: float) -> TTL:
        made = super().__new__(cls, *args, **parts)
        if made < timedelta():
            raise SchemaViolation("TTL", "a duration that is not negative", str(made))
        return made

    @classmethod
    def of(cls, duration: timedelta) -> TTL:
        """The TTL as long as `duration`."""
        return cls(duration.days, duration.seconds, duration.microseconds)

    def ends_at(self, start: datetime) -> datetime:
        """When it expires, if it began at `start`."""
        return start + self

    def is_over(self, start: datetime, now: datetime) -> bool:
        """Whether it has expired at `now`, if it began at `start`. At the end itself it has."""
        return now >= self.ends_at(start)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as core

        stored = core.timedelta_schema(ge=timedelta())
        return core.json_or_python_schema(
            json_schema=core.no_info_after_validator_function(cls.of, stored),
            python_schema=core.is_instance_schema(cls),
        )


class Ref(msgspec.Struct, Generic[T], frozen=True, order=True):
    """A reference to something stored elsewhere: its URI and the SHA-256 of its content.

    `Ref[Checkpoint]` tells readers and type checkers what it points to; it is stored like `Ref`.
    """

    uri: str
    sha256: str

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str) or len(self.uri) > URI_CHARS_MAX or not _URI(self.uri):
            raise SchemaViolation("uri", "a URI such as s3://bucket/name", described(self.uri))
        if not isinstance(self.sha256, str) or not _SHA256(self.sha256):
            raise SchemaViolation("sha256", "64 lower-case hex digits", described(self.sha256))

    @classmethod
    def to(cls, uri: str, content: bytes) -> Ref[T]:
        """A reference to `content`, which the caller keeps at `uri`."""
        return cls(uri, hashlib.sha256(content).hexdigest())

    def matches(self, content: bytes) -> bool:
        """Whether this is exactly the referenced content."""
        return hashlib.sha256(content).hexdigest() == self.sha256

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import PydanticCustomError
        from pydantic_core import core_schema as core

        def read(value: Any) -> Any:
            try:
                return value if isinstance(value, Ref) else Ref(value["uri"], value["sha256"])
            except (TypeError, KeyError, SchemaViolation) as error:
                raise PydanticCustomError("ref_type", "a reference") from error

        text = core.typed_dict_field(core.str_schema())
        form = core.typed_dict_schema({"uri": text, "sha256": text})
        return core.json_or_python_schema(
            json_schema=core.no_info_plain_validator_function(read, json_schema_input_schema=form),
            python_schema=core.is_instance_schema(Ref),
        )


class UnknownVariant(msgspec.Struct, frozen=True):
    """A stored enum value that newer code added and this code does not know.

    It takes the place of the member, has the raw value as `value`, and is written back unchanged.
    Only decoding creates one: a caller's unknown value is refused.
    """

    value: str | int
    of: type[Enum]
