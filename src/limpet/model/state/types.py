"""Types that typed state adds to Python's own: TTL, Ref, UnknownVariant.

They need no extra: a program can create and check references without typed state. If pydantic is
installed, it asks each class for its rules through `__get_pydantic_core_schema__`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from limpet.errors import SchemaViolation
from limpet.model.keys import unfit
from limpet.model.limits import MEDIA_TYPE_CHARS_MAX
from limpet.model.values import described

if TYPE_CHECKING:
    import typing_extensions

    T = typing_extensions.TypeVar("T", default=Any)
else:
    T = TypeVar("T")

URI_CHARS_MAX: Final = 2_048
BLOB_SCHEME: Final = "blob:sha256:"
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\s\x00-\x1f\x7f\ud800-\udfff]+").fullmatch
_SHA256: Final = re.compile(r"[0-9a-f]{64}").fullmatch


class TTL(timedelta):
    """A time to live, counted from a start that its owner knows. Never negative.

    A separate type, so that a field shows whether it holds a duration or an expiry:
    `TTL(hours=1).ends_at(made_at)`.
    """

    __slots__ = ()

    def __new__(cls, *args: float, **parts: float) -> TTL:
        made = super().__new__(cls, *args, **parts)
        if made < timedelta():
            raise SchemaViolation("TTL", "a duration that is not negative", str(made))
        return made

    @classmethod
    def of(cls, duration: timedelta) -> TTL:
        """Return the TTL of this `duration`."""
        return cls(duration.days, duration.seconds, duration.microseconds)

    def ends_at(self, start: datetime) -> datetime:
        """Return when it expires, given its `start`."""
        return start + self

    def is_over(self, start: datetime, now: datetime) -> bool:
        """True if it has expired at `now`, given its `start`. It is over at its very end."""
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
    One to a blob of a session, as s.blobs.put returns it, has a size and a media type too.
    """

    uri: str
    sha256: str
    size: int | None = None
    media_type: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str) or len(self.uri) > URI_CHARS_MAX or not _URI(self.uri):
            raise SchemaViolation("uri", "a URI such as s3://bucket/name", described(self.uri))
        if not isinstance(self.sha256, str) or not _SHA256(self.sha256):
            raise SchemaViolation("sha256", "64 lower-case hex digits", described(self.sha256))
        if self.size is not None and (type(self.size) is not int or self.size < 0):
            raise SchemaViolation("size", "a number of bytes", described(self.size))
        if self.media_type is not None and unfit(self.media_type, MEDIA_TYPE_CHARS_MAX):
            raise SchemaViolation(
                "media_type", "a text such as image/png", described(self.media_type)
            )

    @classmethod
    def blob(cls, hash: str, size: int, media_type: str) -> Ref[T]:
        """Return a reference to a blob of a session, by its content."""
        return cls(f"{BLOB_SCHEME}{hash}", hash, size, media_type)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Ref[T]:
        """The reference whose `data` this is. Raises SchemaViolation; passes over other members."""
        try:
            return cls(data["uri"], data["sha256"], data.get("size"), data.get("media_type"))
        except (TypeError, KeyError, AttributeError):
            raise SchemaViolation("ref", "the data of a reference", described(data)) from None

    @property
    def hash(self) -> str:
        """The SHA-256 of the content, in hex."""
        return self.sha256

    @property
    def data(self) -> dict[str, Any]:
        """The reference as plain JSON, for the data of an event."""
        named = {"uri": self.uri, "sha256": self.sha256, "size": self.size}
        named["media_type"] = self.media_type
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def to(cls, uri: str, content: bytes) -> Ref[T]:
        """Return a reference to `content`, which the caller keeps at `uri`."""
        return cls(uri, hashlib.sha256(content).hexdigest())

    def matches(self, content: bytes) -> bool:
        """True if this is exactly the referenced content."""
        return hashlib.sha256(content).hexdigest() == self.sha256

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import PydanticCustomError, core_schema as core

        def read(value: Any) -> Any:
            try:
                return value if isinstance(value, Ref) else Ref.parse(value)
            except SchemaViolation as error:
                raise PydanticCustomError("ref_type", "a reference") from error

        text = core.typed_dict_field(core.str_schema())
        size = core.typed_dict_field(core.int_schema(), required=False)
        kind = core.typed_dict_field(core.str_schema(), required=False)
        form = core.typed_dict_schema(
            {"uri": text, "sha256": text, "size": size, "media_type": kind}
        )
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
