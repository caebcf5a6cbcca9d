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
from limpet.model.envelope.record import NUMBER, Envelope, members
from limpet.model.limits import ENVELOPE_BYTES_MAX, INT_MAX, NAME_CHARS_MAX, STATE_DEPTH_MAX
from limpet.model.values import canonical, freeze, is_plain, settle, unfitting

Format: TypeAlias = Literal["json", "msgpack", "protobuf"]

# The beginning of an envelope, in this format and every later one: the checksum, then the number.
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
    return _with_checksum(raw, format)


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
    name = _recognise(raw) if format is None else _check_format(format)
    _verify(raw, name)
    try:
        envelope = _read(raw, name)
        return msgspec.structs.replace(envelope, fields=freeze(envelope.fields))
    except RecursionError as error:
        raise InvalidEnvelope("values are nested too deep for the remaining call stack") from error


# --- the frame: opening and checksum --------------------------------------------------------------


def _recognise(raw: bytes) -> Format:
    match raw[:1]:
        case b"{":
            return "json"
        case b"\n":
            return "protobuf"
        case first if b"\x80" <= first <= b"\x8f":
            return "msgpack"
        case _:
            raise InvalidEnvelope("they do not start like an envelope")


def _check_format(format: Format) -> Format:
    if format not in get_args(Format):
        raise InvalidInput(f"{format!r} is not an envelope format. Use json, msgpack or protobuf.")
    return format


def _verify(raw: bytes, format: Format) -> None:
    """Refuse damaged bytes before anything is parsed, and only then a newer format."""
    opening = _OPENINGS[format].match(raw)
    if opening is None:
        raise InvalidEnvelope(f"they do not start like an envelope in {format}")
    digest, number = opening.groups()
    expected = digest.decode() if format == "json" else digest.hex()
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


def _with_checksum(raw: bytes, format: Format) -> bytes:
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
        # A stranger's text is never repeated in full.
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
    match _check_format(format):
        case "json":
            return _Codec(_write_json, _read_json)
        case "msgpack":
            return _Codec(_write_msgpack, _read_msgpack)
        case "protobuf":
            try:
                from limpet.model.envelope import protobuf
            except ImportError as error:
                raise ExtraMissing("protobuf", "protobuf") from error
            return _Codec(protobuf.write, protobuf.read)


def _write_json(envelope: Envelope) -> bytes:
    return canonical(members(envelope, envelope.checksum))


_read_json: Final = msgspec.json.Decoder(Envelope).decode


# --- MessagePack ----------------------------------------------------------------------------------
#
# The same members as in JSON, the checksum as bytes. Maps in this format may have keys of any
# kind, and the decoder puts them into a dict before we see them. Python hashes text with a secret,
# but an attacker can choose numbers whose hashes collide and make that quadratic. So a large map is
# scanned for such keys before it is decoded.

_pack: Final = msgspec.msgpack.Encoder(order="deterministic").encode
# A map of 256 names or more begins with one of these. They may stand inside text and numbers too.
_LARGE_MAP: Final = re.compile(rb"\xdf|\xde[^\x00]")
# By the first byte of a value: bytes that follow it; bytes of the length or count that follows it.
_FIXED: Final = (
    {0xCA: 4, 0xCB: 8}
    | {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
    | {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
)
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTED: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_TEXT: Final = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))
_MAPS: Final = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_EXTENDED: Final = frozenset((0xC7, 0xC8, 0xC9))  # these have one more byte, of their type


class _Packed(msgspec.Struct, frozen=True):
    checksum: bytes
    fields: dict[str, Any]
    schema_version: str | None
    serialized_at_us: int
    state_version: int


_unpack: Final = msgspec.msgpack.Decoder(_Packed).decode


def _write_msgpack(envelope: Envelope) -> bytes:
    """The canonical bytes of an envelope whose fields are known to be plain values."""
    return _pack(members(envelope, bytes.fromhex(envelope.checksum)))


def _read_msgpack(raw: bytes) -> Envelope:
    """Return the envelope in these bytes, canonical or not."""
    if _LARGE_MAP.search(raw):
        check_names(raw)
    packed = _unpack(raw)
    return Envelope(
        schema_version=packed.schema_version,
        state_version=packed.state_version,
        serialized_at_us=packed.serialized_at_us,
        fields=packed.fields,
        checksum=packed.checksum.hex(),
    )


def check_names(raw: bytes) -> None:
    """Raise InvalidEnvelope at the first name in a map that is not text. Checks nothing else."""
    at, end = 0, len(raw)
    left, in_map = 1, False  # what is still to come of the innermost list or map; names count too
    above: list[tuple[int, bool]] = []
    while at < end:
        while not left:
            if not above:
                return
            left, in_map = above.pop()
        first = raw[at]
        if in_map and not left % 2 and first not in _TEXT:
            raise InvalidEnvelope("a name in a map is not text")
        at, count = _step(raw, at, first)
        left -= 1
        if count:
            above.append((left, in_map))
            in_map = first in _MAPS
            left = count * 2 if in_map else count


def _step(raw: bytes, at: int, first: int) -> tuple[int, int]:
    """Return where the value at `at` ends, or its contents begin; and how many values it
    contains."""
    if first < 0x80 or first >= 0xE0:  # a small number
        return at + 1, 0
    if first < 0xA0:  # a short map or list
        return at + 1, first & 0x0F
    if first < 0xC0:  # short text
        return at + 1 + (first & 0x1F), 0
    if width := _SIZED.get(first):
        size = int.from_bytes(raw[at + 1 : at + 1 + width])
        return at + 1 + width + size + (first in _EXTENDED), 0
    if width := _COUNTED.get(first):
        return at + 1 + width, int.from_bytes(raw[at + 1 : at + 1 + width])
    return at + 1 + _FIXED.get(first, 0), 0
