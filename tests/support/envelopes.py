"""Envelopes written by a second hand, from docs/envelopes.md alone, without the packages we use."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any, Final

FORMATS: Final = ("json", "msgpack", "protobuf")
_CHECKSUM: Final = {"json": (13, 77), "msgpack": (12, 44), "protobuf": (2, 34)}
Header = tuple[str | None, int, int]  # schema_version, serialized_at_us, state_version


def write(format: str, fields: dict[str, Any], header: Header, *, number: int = 1) -> bytes:
    """The bytes that an envelope must have."""
    writer = {"json": _json, "msgpack": _msgpack, "protobuf": _protobuf}[format]
    return seal(writer(fields, header, number), format)


def seal(raw: bytes, format: str) -> bytes:
    """The bytes with the checksum that fits them: what somebody hostile sends."""
    start, end = _CHECKSUM[format]
    digest = hashlib.sha256(raw[:start] + raw[end:])
    put = digest.hexdigest().encode() if format == "json" else digest.digest()
    return raw[:start] + put + raw[end:]


def _members(checksum: Any, fields: dict[str, Any], header: Header, number: int) -> dict[str, Any]:
    schema_version, serialized_at_us, state_version = header
    return {
        "checksum": checksum,
        "envelope": number,
        "fields": fields,
        "schema_version": schema_version,
        "serialized_at_us": serialized_at_us,
        "state_version": state_version,
    }


# --- JSON ---------------------------------------------------------------------------------------


def _json(fields: dict[str, Any], header: Header, number: int) -> bytes:
    return _json_value(_members("0" * 64, fields, header, number)).encode()


def _json_value(value: Any) -> str:
    if isinstance(value, dict):
        inside = (f"{_json_text(name)}:{_json_value(value[name])}" for name in sorted(value))
        return "{" + ",".join(inside) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json_value, value)) + "]"
    if isinstance(value, str):
        return _json_text(value)
    return _json_real(value) if isinstance(value, float) else json.dumps(value)


def _json_text(text: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n"}
    short |= {"\f": "\\f", "\r": "\\r"}
    put = (short.get(c, c if c >= " " else f"\\u{ord(c):04x}") for c in text)
    return '"' + "".join(put) + '"'


def _json_real(value: float) -> str:
    """Shortest digits d1…dn and a point before position p: 0.d1…dn × 10^p."""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    point = len(whole) + int(power or 0) - (len(whole + part) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if struct.pack(">d", value)[0] & 0x80 else ""
    if not digits:
        return sign + "0.0"
    if -5 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if 0 < point <= 16:
        padded = digits.ljust(point, "0")
        return f"{sign}{padded[:point]}.{padded[point:] or '0'}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1}"


# --- MessagePack --------------------------------------------------------------------------------


def _msgpack(fields: dict[str, Any], header: Header, number: int) -> bytes:
    return _packed(_members(bytes(32), fields, header, number))


def _packed(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return _packed_integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"\xc4" + bytes([len(value)]) + value
    if isinstance(value, str):
        raw = value.encode()
        return _sized(len(raw), (0xA0, 31), ((0xD9, 1), (0xDA, 2), (0xDB, 4))) + raw
    if isinstance(value, list):
        return _sized(len(value), (0x90, 15), ((0xDC, 2), (0xDD, 4))) + b"".join(
            map(_packed, value)
        )
    inside = (_packed(name) + _packed(value[name]) for name in sorted(value))
    return _sized(len(value), (0x80, 15), ((0xDE, 2), (0xDF, 4))) + b"".join(inside)


def _packed_integer(value: int) -> bytes:
    if -32 <= value < 128:
        return bytes([value & 0xFF])
    first = 0xCC if value >= 0 else 0xD0
    for step, width in enumerate((1, 2, 4, 8)):
        try:
            return bytes([first + step]) + value.to_bytes(width, signed=value < 0)
        except OverflowError:
            continue
    raise AssertionError(value)


def _sized(size: int, short: tuple[int, int], longer: tuple[tuple[int, int], ...]) -> bytes:
    if size <= short[1]:
        return bytes([short[0] | size])
    first, width = next((f, w) for f, w in longer if size < 1 << 8 * w)
    return bytes([first]) + size.to_bytes(width)


# --- Protocol Buffers ---------------------------------------------------------------------------


def _protobuf(fields: dict[str, Any], header: Header, number: int) -> bytes:
    schema_version, serialized_at_us, state_version = header
    raw = b"\x0a\x20" + bytes(32) + b"\x10" + varint(number)
    raw += b"".join(_delimited(3, item) for item in _row("", fields))
    if schema_version:
        raw += _delimited(4, schema_version.encode())
    for field, value in ((5, serialized_at_us), (6, state_version)):
        raw += bytes([field << 3]) + varint(value) if value else b""
    return raw


def _row(name: str, value: Any) -> list[bytes]:
    named = _delimited(1, name.encode()) if name else b""
    if isinstance(value, dict):
        inside = [item for inner in sorted(value) for item in _row(inner, value[inner])]
        return [named + b"\x40" + varint(len(value)), *inside]
    if isinstance(value, list):
        inside = [item for inner in value for item in _row("", inner)]
        return [named + b"\x38" + varint(len(value)), *inside]
    if value is None:
        return [named + b"\x10\x00"]
    if isinstance(value, bool):
        return [named + b"\x18" + varint(value)]
    if isinstance(value, int):
        return [named + b"\x20" + varint(value * 2 if value >= 0 else -value * 2 - 1)]
    if isinstance(value, float):
        return [named + b"\x29" + struct.pack("<d", value)]
    return [named + _delimited(6, value.encode())]


def _delimited(field: int, raw: bytes) -> bytes:
    return bytes([field << 3 | 2]) + varint(len(raw)) + raw


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    put = bytearray()
    while number > 0x7F:
        put.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*put, number])
