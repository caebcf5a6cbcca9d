"""Envelopes as Protocol Buffers: from values to a row of messages, and back.

The only module that imports the protobuf package, and itself imported only when that format is
asked for. The messages are those of envelope.proto, described here in Python so that no generated
code has to fit the installed version of the package; a test compares the two descriptions.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from limpet.errors import InvalidEnvelope
from limpet.model.envelope.record import NUMBER, Envelope
from limpet.model.limits import STATE_DEPTH_MAX

_Field: Final[Any] = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "limpet.envelope"
_KINDS: Final = {bool: "boolean", int: "integer", float: "real", str: "text"}
_EMPTY: Final[dict[str, type]] = {"null": type(None), "list": list, "dict": dict}


def write(envelope: Envelope) -> bytes:
    """The canonical bytes of an envelope whose fields are known to be plain values."""
    message = _ENVELOPE(
        checksum=bytes.fromhex(envelope.checksum),
        envelope=NUMBER,
        schema_version=envelope.schema_version or "",
        serialized_at_us=envelope.serialized_at_us,
        state_version=envelope.state_version,
    )
    add = message.fields.add
    waiting: list[tuple[str, Any]] = [("", envelope.fields)]  # the next one last
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            add(name=name, dict=len(value))
            waiting.extend(sorted(value.items(), reverse=True))
        elif isinstance(value, list):
            add(name=name, list=len(value))
            waiting.extend([("", inner) for inner in reversed(value)])
        elif value is None:
            add(name=name, null=0)
        else:
            setattr(add(name=name), _KINDS[type(value)], value)
    # Fields are written in the order of their numbers, and those at their default left out.
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # bytes


def read(raw: bytes) -> Envelope:
    """Return the envelope in these bytes, canonical or not. Raises InvalidEnvelope."""
    try:
        message = _ENVELOPE.FromString(raw)
    except DecodeError as error:
        raise InvalidEnvelope("they are not a message of envelope.proto") from error
    return Envelope(
        schema_version=message.schema_version or None,
        state_version=message.state_version,
        serialized_at_us=message.serialized_at_us,
        fields=_gather(message.fields),
        checksum=message.checksum.hex(),
    )


def _gather(row: Any) -> Any:
    """The value that a row of messages encodes. Counts are trusted only as values arrive."""
    root: list[Any] = []
    holder: Any = root
    left = 1  # how many values the holder still waits for
    above: list[tuple[Any, int]] = []
    for item in row:
        while not left and above:
            holder, left = above.pop()
        if not left:
            raise InvalidEnvelope("there are values beyond the counts of their lists and dicts")
        kind = item.WhichOneof("kind")
        if kind is None:
            raise InvalidEnvelope("a value is of no known kind")
        value = _EMPTY[kind]() if kind in _EMPTY else getattr(item, kind)
        if holder.__class__ is dict:
            holder[item.name] = value
        else:
            holder.append(value)
        left -= 1
        if kind == "list" or kind == "dict":
            above.append((holder, left))
            holder, left = value, getattr(item, kind)
            if len(above) > STATE_DEPTH_MAX:
                raise InvalidEnvelope(f"values are nested more than {STATE_DEPTH_MAX} levels deep")
    if left or any(count for _, count in above):
        raise InvalidEnvelope("a list or dict has fewer values than it counts")
    return root[0]


def described() -> Any:
    """envelope.proto as a FileDescriptorProto."""
    file: Any = descriptor_pb2.FileDescriptorProto(
        name="envelope.proto", package=_PACKAGE, syntax="proto3"
    )
    envelope = file.message_type.add(name="Envelope")
    _describe(envelope, "checksum", _Field.TYPE_BYTES)
    _describe(envelope, "envelope", _Field.TYPE_UINT32)
    _describe(
        envelope,
        "fields",
        _Field.TYPE_MESSAGE,
        label=_Field.LABEL_REPEATED,
        type_name=f".{_PACKAGE}.Value",
    )
    _describe(envelope, "schema_version", _Field.TYPE_STRING)
    _describe(envelope, "serialized_at_us", _Field.TYPE_INT64)
    _describe(envelope, "state_version", _Field.TYPE_INT64)
    value = file.message_type.add(name="Value")
    value.oneof_decl.add(name="kind")
    _describe(value, "name", _Field.TYPE_STRING)
    _describe(value, "null", _Field.TYPE_ENUM, oneof_index=0, type_name=f".{_PACKAGE}.Null")
    _describe(value, "boolean", _Field.TYPE_BOOL, oneof_index=0)
    _describe(value, "integer", _Field.TYPE_SINT64, oneof_index=0)
    _describe(value, "real", _Field.TYPE_DOUBLE, oneof_index=0)
    _describe(value, "text", _Field.TYPE_STRING, oneof_index=0)
    _describe(value, "list", _Field.TYPE_UINT32, oneof_index=0)
    _describe(value, "dict", _Field.TYPE_UINT32, oneof_index=0)
    file.enum_type.add(name="Null").value.add(name="NULL", number=0)
    return file


def _describe(message: Any, name: str, type: int, **more: Any) -> None:
    """Add a field; fields are numbered as they come."""
    given = {"label": _Field.LABEL_OPTIONAL, **more}
    message.field.add(name=name, number=len(message.field) + 1, type=type, **given)


def _message(name: str) -> Any:
    # A pool of our own: a program that has compiled envelope.proto for itself keeps the shared one.
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(described())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


_ENVELOPE: Final[Any] = _message("Envelope")
