"""Values of a graph as plain data and back. Data only: nothing stored names code to import.

JSON values are stored as they are; everything else is a dict with a "$" that names its form. The
forms are the fixed tables of this module and the codecs that the application gives. A type that is
in neither is refused when it is written, never pickled.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from math import isfinite
from pathlib import Path, PosixPath, PurePath, WindowsPath
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item

from limpet.errors import InvalidInput

FORM: Final = "$"
_INT_BITS: Final = 63
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_PLAIN: Final = frozenset((str, bool, type(None)))  # stored as they are, whatever they hold

# A name in the stored form, and the class; the class is found here and nowhere else.
_MESSAGES: Final[Mapping[str, type[Any]]] = {
    "ai": AIMessage,
    "ai-chunk": AIMessageChunk,
    "chat": ChatMessage,
    "chat-chunk": ChatMessageChunk,
    "function": FunctionMessage,
    "function-chunk": FunctionMessageChunk,
    "human": HumanMessage,
    "human-chunk": HumanMessageChunk,
    "remove": RemoveMessage,
    "system": SystemMessage,
    "system-chunk": SystemMessageChunk,
    "tool": ToolMessage,
    "tool-chunk": ToolMessageChunk,
}
_MESSAGE_NAMES: Final = {cls: name for name, cls in _MESSAGES.items()}


@dataclasses.dataclass(frozen=True)
class ValueCodec:
    """Stores objects of one class under `name`, in the form that `encode` returns.

    `encode` returns anything that can be stored; `decode` is given it back. The name is stored
    with every value: do not change it.
    """

    name: str
    cls: type[Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def codec_of(given: ValueCodec | type[Any]) -> ValueCodec:
    """A codec, or the one that follows from a class: a pydantic model, dataclass or enum."""
    if isinstance(given, ValueCodec):
        return given
    if isinstance(given, type):
        name = given.__name__
        if issubclass(given, Enum):
            return ValueCodec(name, given, lambda value: value.value, given)
        if dataclasses.is_dataclass(given):
            return ValueCodec(name, given, _fields, lambda fields: given(**fields))
        if hasattr(given, "model_validate"):
            return ValueCodec(name, given, lambda model: dict(model), lambda kept: given(**kept))
        if issubclass(given, tuple) and hasattr(given, "_fields"):
            return ValueCodec(name, given, list, lambda parts: given(*parts))
    raise InvalidInput(
        f"{given!r} cannot be stored as it is. Pass codecs=[ValueCodec(name, cls, encode, "
        "decode)], or a pydantic model, dataclass, named tuple or enum class."
    )


def _fields(of: Any) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in dataclasses.fields(of)}


def _builtin() -> tuple[ValueCodec, ...]:
    """The forms that every saver knows besides JSON and messages."""
    listed: tuple[Any, ...] = (tuple, set, frozenset, deque)
    texts: tuple[Any, ...] = (UUID, Decimal, IPv4Address, IPv4Interface, IPv4Network)
    texts += (IPv6Address, IPv6Interface, IPv6Network)
    timed: tuple[Any, ...] = (datetime, date, time)
    paths: set[Any] = {PosixPath, WindowsPath, type(Path())}
    return (
        *[ValueCodec(cls.__name__, cls, list, cls) for cls in listed],
        *[ValueCodec(cls.__name__, cls, str, cls) for cls in texts],
        *[ValueCodec(cls.__name__, cls, cls.isoformat, cls.fromisoformat) for cls in timed],
        *[ValueCodec("path", cls, str, Path) for cls in paths],
        ValueCodec("timedelta", timedelta, _duration, lambda parts: timedelta(*parts)),
        ValueCodec("zone", ZoneInfo, str, ZoneInfo),
        ValueCodec("regex", re.Pattern, lambda p: [p.pattern, p.flags], lambda p: re.compile(*p)),
        ValueCodec("bytes", bytes, lambda raw: b64encode(raw).decode(), b64decode),
        ValueCodec("bytearray", bytearray, lambda raw: b64encode(raw).decode(), _bytearray),
        ValueCodec("document", Document, _set_fields, lambda kept: Document(**kept)),
        ValueCodec("item", Item, _slots, lambda kept: Item(**kept)),
        ValueCodec("snapshot", _DeltaSnapshot, lambda kept: kept.value, _DeltaSnapshot),
        *_of_graphs(),
    )


def _of_graphs() -> Iterable[ValueCodec]:
    """Types of langgraph itself, which need not be installed to use the saver."""
    try:
        from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy
    except ModuleNotFoundError:
        return ()
    return (
        ValueCodec("command", Command, _fields, lambda parts: Command(**parts)),
        ValueCodec("overwrite", Overwrite, _fields, lambda parts: Overwrite(**parts)),
        ValueCodec("timeout", TimeoutPolicy, _fields, lambda parts: TimeoutPolicy(**parts)),
        ValueCodec("interrupt", Interrupt, _interrupt, lambda parts: Interrupt(**parts)),
        ValueCodec("send", Send, _send, lambda parts: Send(**parts)),
    )


def _interrupt(of: Any) -> dict[str, Any]:
    kept = {"value": of.value, "id": of.id}
    schema = getattr(of, "response_schema", None)
    # A class describes what an answer looks like; it is code, and belongs to the graph.
    return kept | ({"response_schema": schema} if isinstance(schema, dict) else {})


def _send(of: Any) -> dict[str, Any]:
    kept = {"node": of.node, "arg": of.arg}
    timeout = getattr(of, "timeout", None)
    return kept if timeout is None else kept | {"timeout": timeout}


def _duration(of: timedelta) -> list[int]:
    return [of.days, of.seconds, of.microseconds]


def _bytearray(text: str) -> bytearray:
    return bytearray(b64decode(text))


def _slots(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__slots__}


def _set_fields(of: Any) -> dict[str, Any]:
    """The fields of a pydantic object that are not what a new one would have."""
    defaults = _defaults(type(of))
    kept = {
        name: value
        for name, value in of.__dict__.items()
        if name not in defaults
        or (
            value is not (default := defaults[name])
            and (type(value) is not type(default) or value != default)
        )
    }
    extra = of.__pydantic_extra__
    return {**kept, **extra} if extra else kept


_DEFAULTS: dict[type[Any], dict[str, Any]] = {}


def _defaults(cls: type[Any]) -> dict[str, Any]:
    defaults = _DEFAULTS.get(cls)
    if defaults is None:
        fields = cls.model_fields.items()
        defaults = {
            name: field.get_default(call_default_factory=True, validated_data={})
            for name, field in fields
            if not field.is_required()
        }
        _DEFAULTS[cls] = defaults
    return defaults


class Values:
    """Both directions. `serde` stores what no codec knows, if the application chose that."""

    def __init__(self, codecs: Iterable[ValueCodec | type[Any]] = (), serde: Any = None) -> None:
        self._by_name: dict[str, ValueCodec] = {}
        self._by_class: dict[type[Any], ValueCodec] = {}
        self._serde = serde
        for codec in (*_builtin(), *map(codec_of, codecs)):
            known = self._by_name.setdefault(codec.name, codec)
            if codec.name in (*_MESSAGES, "dict", "int", "float", "serde", "message") or (
                known is not codec and codec.name != "path"
            ):
                raise InvalidInput(
                    f"two codecs have the name {codec.name!r}. Give one of them another name: "
                    "ValueCodec(name, cls, encode, decode)."
                )
            self._by_class[codec.cls] = codec

    def encode(self, value: Any) -> Any:
        """Plain data, which shares nothing with the value. Raises InvalidInput."""
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            return value if value.bit_length() <= _INT_BITS else {FORM: "int", "v": str(value)}
        if kind is float:
            return value if isfinite(value) else {FORM: "float", "v": str(value)}
        if kind is list:
            return [self.encode(item) for item in value]
        if kind is dict:
            return self._encode_dict(value)
        codec = self._by_class.get(kind)
        if codec is not None:
            return {FORM: codec.name, "v": self.encode(codec.encode(value))}
        if kind in _MESSAGE_NAMES:
            return self.encode_message(value)
        if isinstance(value, BaseException):  # what LangGraph's own savers keep of an error
            return repr(value)
        if isinstance(value, dict):
            return self._encode_dict(value)
        if isinstance(value, list):
            return [self.encode(item) for item in value]
        if isinstance(value, str) and not isinstance(value, Enum):
            return str(value)
        if isinstance(value, PurePath):
            return {FORM: "path", "v": str(value)}
        if self._serde is not None:
            form, raw = self._serde.dumps_typed(value)
            if form != "pickle":
                return {FORM: "serde", "form": form, "v": b64encode(raw).decode()}
        raise InvalidInput(
            f"{kind.__module__}.{kind.__qualname__} is not a type that LimpetSaver stores, and it "
            "never pickles. Pass codecs=[…] with the class, or with a ValueCodec."
        )

    def _encode_dict(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        if FORM not in value and all([type(name) is str for name in value]):
            return {
                name: item if type(item) in _PLAIN else self.encode(item)
                for name, item in value.items()
            }
        pairs = [[self.encode(name), self.encode(item)] for name, item in value.items()]
        return {FORM: "dict", "v": pairs}

    def encode_message(self, message: BaseMessage) -> dict[str, Any]:
        fields = _set_fields(message)
        fields.pop("type", None)
        kept = {FORM: "message", "type": _MESSAGE_NAMES[type(message)]}
        for name, item in fields.items():
            kept[name] = item if type(item) in _PLAIN else self.encode(item)
        return kept

    def decode(self, data: Any) -> Any:
        """The value again, which shares nothing with the data. Raises InvalidInput."""
        kind = type(data)
        if kind in _SCALARS:
            return data
        if isinstance(data, list):
            return [self.decode(item) for item in data]
        form = data.get(FORM)
        if form is None:
            return {name: self.decode(item) for name, item in data.items()}
        if form == "message":
            fields = {name: self.decode(item) for name, item in data.items() if name != FORM}
            return _MESSAGES[fields.pop("type")](**fields)
        if form == "dict":
            return {self.decode(name): self.decode(item) for name, item in data["v"]}
        if form == "int":
            return int(data["v"])
        if form == "float":
            return float(data["v"])
        codec = self._by_name.get(form)
        if codec is not None:
            return codec.decode(self.decode(data["v"]))
        if form == "serde" and self._serde is not None and data["form"] != "pickle":
            return self._serde.loads_typed((data["form"], b64decode(data["v"])))
        raise InvalidInput(
            f"a stored value has the form {form!r}, which no codec of this saver reads. Pass the "
            "codecs= (or the serde=) that it was written with."
        )


def is_message(value: Any) -> bool:
    """True if this is a message whose fields say everything about it."""
    return type(value) in _MESSAGE_NAMES and not value.__pydantic_extra__


def fields_shot(message: BaseMessage) -> dict[str, Any]:
    """The fields as they are now, to see later whether they still are."""
    return {
        name: value if type(value) in _SCALARS else _copy(value)
        for name, value in message.__dict__.items()
    }


def _copy(value: Any) -> Any:
    """Most fields of a message are empty: those need no deep copy."""
    kind = type(value)
    return kind() if not value and (kind is dict or kind is list) else copy.deepcopy(value)
