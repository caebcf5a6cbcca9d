"""Envelopes: one state for another system, as bytes with a checksum.

An envelope is one state with its schema version, its session's version and the time of writing, in
JSON, MessagePack or Protocol Buffers. Each format has one way to write a value, so equal envelopes
are equal bytes; bytes that are not the canonical encoding of their contents are refused. The
checksum covers every other byte and is verified on every decode. docs/envelopes.md is the
specification.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from limpet.errors import (
    EnvelopeNewer,
    ExtraMissing,
    IntegrityViolation,
    InvalidEnvelope,
    InvalidInput,
    InvalidValue,
)
from limpet.model.canonical import canonical
from limpet.model.envelope.record import NUMBER, Envelope, members
from limpet.model.limits import ENVELOPE_BYTES_MAX, INT_MAX, NAME_CHARS_MAX, STATE_DEPTH_MAX
from limpet.model.values import freeze, is_plain, settle, unfitting

Format: TypeAlias = Literal["json", "msgpack", "protobuf"]

# How an envelope begins, in this format number and every later one: the checksum, then the number.
# The first byte alone tells the three apart: 0x7b, 0x80 to 0x8f, 0x0a.
_OPENINGS: Final[dict[str, re.Pattern[bytes]]] = {
    "json": re.compile(
        rb'\{"checksum":"([0-9a-f]{64})","envelope":([1-9][0-9]?|1[01][0-9]|12[0-7]),'
    ),
    "msgpack": re.compile(
        rb"[\x80-\x8f]\xa8checksum\xc4\x20(.{32})\xa8envelope([\x01-\x7f])", re.DOTALL
    ),
    "protobuf": re.compile(rb"\x0a\x20(.{32})\x10([\x01-\x7f])", re.DOTALL),
}
_UNSEALED: Final = "0" * 64
_IDENTIFIER: Final = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER: Final = re.compile(
    r"(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2}"
    rf"(?:-{_IDENTIFIER}(?:\.{_IDENTIFIER})*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


def encode(
    fields: Mapping[str, Any],
    *,
    schema_version: str | None,
    state_version: int,
    serialized_at_us: int,
    format: Format = "json",
    bytes_max: int = ENVELOPE_BYTES_MAX,
) -> bytes:
    """The canonical bytes of a state in its envelope. Raises InvalidValue, InvalidInput."""
    codec = _codec(format)
    if fault := _header_fault(schema_version, state_version, serialized_at_us):
        raise InvalidInput(f"{fault}. Correct it and encode again.")
    envelope = Envelope(
        schema_version=schema_version,
        state_version=state_version,
        serialized_at_us=serialized_at_us,
        fields=_plain(fields, bytes_max),
        checksum=_UNSEALED,
    )
    try:
        raw = codec.write(envelope)
    except ValueError:  # text with a lone surrogate
        settle(fields, "fields", depth_max=STATE_DEPTH_MAX)  # raises, and says where
        raise
    if len(raw) > bytes_max:
        raise InvalidValue("fields", f"takes {len(raw):,} bytes, more than {bytes_max:,}")
    return _sealed(raw, format)


def decode(
    raw: bytes | bytearray | memoryview,
    format: Format | None = None,
    *,
    bytes_max: int = ENVELOPE_BYTES_MAX,
) -> Envelope:
    """The envelope in these bytes; if no format is given, the first byte identifies it.

    Invalid bytes raise InvalidEnvelope, IntegrityViolation or EnvelopeNewer, nothing else. Decoding
    takes at most 170 times the memory of the bytes, which `bytes_max` limits.
    """
    if not isinstance(raw, (bytes, bytearray, memoryview)):
        raise InvalidEnvelope(f"{type(raw).__name__} was given, not bytes")
    if (size := memoryview(raw).nbytes) > bytes_max:
        raise InvalidEnvelope(f"they are {size:,}, and may be {bytes_max:,}")
    raw = bytes(raw)
    name = _recognised(raw) if format is None else _known(format)
    _verify(raw, name)
    try:
        envelope = _read(raw, name)
        return msgspec.structs.replace(envelope, fields=freeze(envelope.fields))
    except RecursionError as error:
        raise InvalidEnvelope("values are nested too deep for the remaining call stack") from error


# --- the frame: opening and checksum --------------------------------------------------------------


def _recognised(raw: bytes) -> Format:
    match raw[:1]:
        case b"{":
            return "json"
        case b"\n":
            return "protobuf"
        case first if b"\x80" <= first <= b"\x8f":
            return "msgpack"
        case _:
            raise InvalidEnvelope("they do not start like an envelope")


def _known(format: Format) -> Format:
    if format not in get_args(Format):
        raise InvalidInput(f"{format!r} is not an envelope format. Use json, msgpack or protobuf.")
    return format


def _verify(raw: bytes, format: Format) -> None:
    """Refuse damaged bytes before anything is parsed, and only then a newer format."""
    opening = _OPENINGS[format].match(raw)
    if opening is None:
        raise InvalidEnvelope(f"they do not start like an envelope in {format}")
    found, number = opening.groups()
    expected = found.decode() if format == "json" else found.hex()
    computed = _checksum(raw, *opening.span(1))
    if expected != computed:
        raise IntegrityViolation("the envelope", expected, computed)
    known = int(number) if format == "json" else number[0]
    if known > NUMBER:
        raise EnvelopeNewer(known, NUMBER)


def _checksum(raw: bytes, start: int, end: int) -> str:
    """SHA-256 of every byte but those of the checksum itself."""
    digest = hashlib.sha256(raw[:start])
    digest.update(memoryview(raw)[end:])
    return digest.hexdigest()


def _sealed(raw: bytes, format: Format) -> bytes:
    """The bytes with their checksum in its place."""
    opening = _OPENINGS[format].match(raw)
    assert opening is not None, raw[:100]
    start, end = opening.span(1)
    checksum = _checksum(raw, start, end)
    put = checksum.encode() if format == "json" else bytes.fromhex(checksum)
    return b"".join((raw[:start], put, raw[end:]))


# --- the contents ---------------------------------------------------------------------------------


def _header_fault(schema_version: Any, state_version: Any, serialized_at_us: Any) -> str | None:
    if schema_version is not None and not (
        type(schema_version) is str
        and len(schema_version) <= NAME_CHARS_MAX
        and _SEMVER.fullmatch(schema_version)
    ):
        shown = repr(schema_version[:80]) if isinstance(schema_version, str) else "given"
        return f"the schema version {shown} is not a semantic version like 1.4.0"
    for name, number in (("state_version", state_version), ("serialized_at_us", serialized_at_us)):
        if type(number) is not int or not 0 <= number <= INT_MAX:
            return f"{name} is not an integer from 0 to {INT_MAX}"
    return None


def _plain(fields: Any, bytes_max: int) -> dict[str, Any]:
    """The fields as they are if they can be written as they are, or else a plain copy."""
    if not isinstance(fields, Mapping):
        raise InvalidValue("fields", unfitting(fields, "not a dict"))
    # A value takes at least a byte, so more values than bytes cannot fit.
    if is_plain(fields, "fields", depth_max=STATE_DEPTH_MAX, values_max=bytes_max):
        return fields  # type: ignore[return-value]  # plain, so a dict
    return settle(fields, "fields", depth_max=STATE_DEPTH_MAX)  # type: ignore[no-any-return]


def _read(raw: bytes, format: Format) -> Envelope:
    """The contents of bytes whose checksum matches; refused unless they are canonical."""
    codec = _codec(format)
    try:
        envelope = codec.read(raw)
        fields = _plain(envelope.fields, len(raw))
    except InvalidValue as error:
        # What a stranger wrote is not repeated at any length.
        raise InvalidEnvelope(f"{error.where:.200} {error.reason:.200}") from None
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidEnvelope(f"they cannot be read as {format}: {error!s:.200}") from error
    fault = _header_fault(
        envelope.schema_version, envelope.state_version, envelope.serialized_at_us
    )
    if fault:
        raise InvalidEnvelope(fault)
    if fields is not envelope.fields or codec.write(envelope) != raw:
        raise InvalidEnvelope("they are not the canonical encoding of their contents")
    return envelope


# --- the formats ----------------------------------------------------------------------------------


class _Codec(NamedTuple):
    """One format: bytes from an envelope whose fields are plain, and back, unchecked."""

    write: Callable[[Envelope], bytes]
    read: Callable[[bytes], Envelope]


def _codec(format: Format) -> _Codec:
    # The other two modules stand on this one.
    match _known(format):
        case "json":
            return _Codec(_write, _parse)
        case "msgpack":
            from limpet.model.envelope import msgpack

            return _Codec(msgpack.write, msgpack.read)
        case "protobuf":
            try:
                from limpet.model.envelope import protobuf
            except ImportError as error:
                raise ExtraMissing("protobuf", "protobuf") from error
            return _Codec(protobuf.write, protobuf.read)


def _write(envelope: Envelope) -> bytes:
    return canonical(members(envelope, envelope.checksum))


_parse: Final = msgspec.json.Decoder(Envelope).decode
