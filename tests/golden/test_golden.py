"""The golden files: what was written once is read for ever, and written the same again."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import pytest

from limpet import envelope
from tests.support import envelopes

HERE: Final = Path(__file__).parent
FILES: Final[dict[envelope.Format, str]] = {
    "json": "envelope-1.json",
    "msgpack": "envelope-1.msgpack",
    "protobuf": "envelope-1.pb",
}
HEADER: Final[dict[str, Any]] = {
    "schema_version": "2.11.0-rc.1+build.7",
    "state_version": 1_234_567,
    "serialized_at_us": 1_767_225_600_123_456,
}
CHECKSUMS: Final = {
    "json": "a9129b0f64109475fe38166bf337b77feba508d823474423008e1fcafbc09f23",
    "msgpack": "307ee43ea9d17e3fa36e8991a19809b068925d06e524f6ec0fd505d524f67a32",
    "protobuf": "e4992a5491bbf3b4c5f871fc34b83bf10250733f6c346b604127de591aabf8f6",
}
# The contents of envelope-1. Never changed: the files hold exactly this.
FIELDS: Final[dict[str, Any]] = {
    "": "an empty name",
    "nothing": None,
    "yes": True,
    "no": False,
    "integers": [
        *(0, 1, -1, 31, -32, -33, 127, 128, -128, -129, 255, 256, 32_767, -32_768, -32_769),
        *(65_535, 65_536, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32),
        *(2**53, 2**53 + 1, 10**18, 2**63 - 1, -(2**63)),
    ],
    "reals": [
        *(0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 1.5, 100.0, 3.141592653589793, 0.3333333333333333),
        *(1e15, 1e16, 1e17, 123456789012345.67, 9007199254740993.0, 0.0001, 0.00001, 0.000001),
        *(1.5e-7, 1e21, 1e22, 1e23, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308),
        *(-1.7976931348623157e308, -5e-324),
    ],
    "texts": [
        *("", "a", "é", "e\u0301", "日本語", "😀", "\uffff", "\U0010ffff", "\u2028", "שלום"),
        *("\x00", "\x1f", "\x7f", "\b\t\n\f\r", '"quoted"', "back\\slash", "a/b", "\u0080"),
        *("x" * 31, "x" * 32, "y" * 255, "y" * 256),
    ],
    "lists": [[], [[]], [[], [[], []]], list(range(15)), list(range(16))],
    "dicts": [{}, {"": {}}, {str(n): n for n in range(15)}, {str(n): n for n in range(16)}],
    "order": {"b": 1, "B": 2, "a": 3, "aa": 4, "é": 5, "\uffff": 6, "😀": 7, "10": 8, "9": 9},
    "alike": [1, 1.0, True, "1", "true", 0, 0.0, -0.0, False, "", None, [], {}],
    "messages": [
        {"role": "user", "text": "Where is my order?", "at": 1_767_225_599.25},
        {
            "role": "agent",
            "text": "On its way. 📦",
            "calls": [{"tool": "track", "args": {"id": 17}}],
        },
    ],
}


def exact(value: Any) -> Any:
    """A form in which only the very same values are equal: kinds apart, zeros apart."""
    if isinstance(value, dict):
        return {name: exact(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    return (type(value), struct.pack(">d", value) if isinstance(value, float) else value)


@pytest.mark.parametrize("format", FILES)
def test_a_golden_file_is_read_for_ever(format: Any) -> None:
    """Every value is of its kind, exactly; so is the header."""
    found = envelope.decode((HERE / FILES[format]).read_bytes())
    assert exact(found.fields) == exact(FIELDS)
    assert {name: getattr(found, name) for name in HEADER} == HEADER
    assert found.checksum == CHECKSUMS[format]


@pytest.mark.parametrize("format", FILES)
def test_a_golden_file_is_written_the_same_again(format: Any) -> None:
    """The canonical encoding has not changed by one byte, and is the one that is specified."""
    golden = (HERE / FILES[format]).read_bytes()
    assert envelope.encode(FIELDS, format=format, **HEADER) == golden
    header = (HEADER["schema_version"], HEADER["serialized_at_us"], HEADER["state_version"])
    assert envelopes.write(format, FIELDS, header) == golden
