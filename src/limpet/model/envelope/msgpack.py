"""Envelopes as MessagePack: the same members as in JSON, the checksum as bytes.

Maps in this format may have keys of any kind, and the decoder puts them into a dict before we see
them. Python hashes text with a secret, but an attacker can choose numbers whose hashes collide and
make that quadratic. So a large map is scanned for such keys before it is decoded.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from limpet.errors import InvalidEnvelope
from limpet.model.envelope.record import Envelope, members

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


def write(envelope: Envelope) -> bytes:
    """The canonical bytes of an envelope whose fields are known to be plain values."""
    return _pack(members(envelope, bytes.fromhex(envelope.checksum)))


def read(raw: bytes) -> Envelope:
    """What the bytes say, whether or not they are the canonical ones."""
    if _LARGE_MAP.search(raw):
        check_names(raw)
    found = _unpack(raw)
    return Envelope(
        schema_version=found.schema_version,
        state_version=found.state_version,
        serialized_at_us=found.serialized_at_us,
        fields=found.fields,
        checksum=found.checksum.hex(),
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
    """Where the value at `at` ends, or its contents begin; and how many values it contains."""
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
