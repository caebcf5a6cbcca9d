"""Envelopes: what they hold, what they refuse, and what hostile bytes cannot do."""

from __future__ import annotations

import collections
import inspect
import math
import subprocess
import sys
from typing import Any

import msgspec
import pytest

import limpet
from limpet import Envelope, InvalidInput, LimpetError, envelope
from limpet.errors import EnvelopeNewer, IntegrityViolation, InvalidEnvelope, InvalidValue
from limpet.model.envelope.envelope import check_names
from limpet.model.limits import ENVELOPE_BYTES_MAX, STATE_DEPTH_MAX, VALUE_DEPTH_MAX
from limpet.model.values import FrozenDict, freeze
from tests.support import envelopes
from tests.support.envelopes import FORMATS, seal, varint

FIELDS = {"step": 3, "plan": ["a", {"b": None}], "rate": 0.5}
HEADER: dict[str, Any] = {"schema_version": "1.4.0", "state_version": 7, "serialized_at_us": 9}

every_format = pytest.mark.parametrize("format", FORMATS)


def written(fields: Any, format: Any, **header: Any) -> bytes:
    return envelope.encode(fields, format=format, **{**HEADER, **header})


def nested(levels: int, kind: type = dict) -> dict[str, Any]:
    """So many dicts or lists inside each other, the dict of all fields included."""
    inner: Any = kind()
    for _ in range(levels - 2):
        inner = {"k": inner} if kind is dict else [inner]
    return {"k": inner}


def reason(raw: bytes, format: Any = None) -> str:
    with pytest.raises(InvalidEnvelope) as info:
        envelope.decode(raw, format)
    return info.value.reason


# --- what they hold -------------------------------------------------------------------------------


@every_format
def test_an_envelope_gives_back_what_was_put_in(format: Any) -> None:
    """Fields, schema version, state version and time, with the checksum of these bytes."""
    raw = written(FIELDS, format)
    found = envelope.decode(raw)
    assert found == Envelope(**HEADER, fields=FIELDS, checksum=found.checksum)
    start, end = {"json": (13, 77), "msgpack": (12, 44), "protobuf": (2, 34)}[format]
    held = raw[start:end]
    assert found.checksum == (held.decode() if format == "json" else held.hex())


@every_format
def test_what_is_decoded_is_read_only(format: Any) -> None:
    """As all state is; the frozen state of a session is encoded as it is."""
    found = envelope.decode(written(freeze(FIELDS), format))
    assert type(found.fields) is FrozenDict
    with pytest.raises(TypeError):
        found.fields["plan"].append(1)
    with pytest.raises(AttributeError):
        found.state_version = 8  # type: ignore[misc]


@every_format
def test_likenesses_of_plain_values_become_plain(format: Any) -> None:
    """Tuples, other mappings and subclasses are written as what they stand for."""
    alike = collections.OrderedDict(plan=("a", collections.ChainMap({"b": None})), rate=0.5)
    assert written({"step": 3, **alike}, format) == written(FIELDS, format)
    assert written(collections.ChainMap(FIELDS), format) == written(FIELDS, format)


@every_format
def test_state_without_a_schema_has_none(format: Any) -> None:
    """None is kept, and is other bytes than any version."""
    raw = written(FIELDS, format, schema_version=None)
    assert envelope.decode(raw).schema_version is None
    assert raw != written(FIELDS, format)


@every_format
def test_bytes_may_come_in_any_buffer(format: Any) -> None:
    """bytes, bytearray and memoryview are the same to decode."""
    raw = written(FIELDS, format)
    for form in (bytearray(raw), memoryview(raw), memoryview(b"x" + raw)[1:]):
        assert envelope.decode(form) == envelope.decode(raw)


@every_format
@pytest.mark.parametrize("kind", [dict, list])
def test_the_deepest_state_fits(format: Any, kind: type) -> None:
    """A value as deep as values may be, at the end of a path as long as paths may be."""
    assert STATE_DEPTH_MAX == 2 * VALUE_DEPTH_MAX
    deepest = nested(STATE_DEPTH_MAX, kind)
    assert envelope.decode(written(deepest, format)).fields == deepest
    with pytest.raises(InvalidValue, match="192 levels"):
        written(nested(STATE_DEPTH_MAX + 1, kind), format)


async def test_the_state_of_a_session_goes_in_as_it_is() -> None:
    """State, version and time of a session are what an envelope asks for."""
    async with limpet.open("memory://") as lp:
        s = await lp.create("shop", "ada", state={"cart": ["tea"]})
        raw = written(s.state, "json", state_version=s.version)
    found = envelope.decode(raw)
    assert (found.fields, found.state_version) == ({"cart": ["tea"]}, 1)


# --- what cannot be held --------------------------------------------------------------------------


def _looped(width: int) -> dict[str, Any]:
    inner: list[Any] = []
    inner.extend([inner] * width)
    return {"a": inner}


def _multiplied(levels: int) -> dict[str, Any]:
    inner: Any = []
    for _ in range(levels):
        inner = [inner, inner]
    return {"a": inner}


UNFIT: dict[str, tuple[Any, str]] = {
    "nan": ({"a": [math.nan]}, "fields['a'][0]"),
    "infinity": ({"a": math.inf}, "fields['a']"),
    "2**63": ({"a": {"b": 2**63}}, "fields['a']['b']"),
    "-2**63-1": ({"a": -(2**63) - 1}, "fields['a']"),
    "bytes": ({"a": b"x"}, "fields['a']"),
    "a set": ({"a": {1}}, "fields['a']"),
    "a number as a name": ({"a": {1: 2}}, "fields['a']"),
    "a number as the first name": ({1: 2}, "fields"),
    "a lone surrogate": ({"a": ["\ud800"]}, "fields['a'][0]"),
    "a lone surrogate in a name": ({"\udc00": 1}, "a key of fields"),
    "a loop": (_looped(1), "fields['a'][0]"),
    "a loop that doubles": (_looped(2), "fields"),
    "a billion lists from thirty": (_multiplied(30), "fields"),
    "a list": ([1], "fields"),
    "nothing": (None, "fields"),
}


@every_format
@pytest.mark.parametrize("unfit", UNFIT)
def test_what_cannot_be_held_is_refused_with_its_place(format: Any, unfit: str) -> None:
    """Nothing is written that would read back as something else."""
    value, where = UNFIT[unfit]
    with pytest.raises(InvalidValue) as info:
        written(value, format)
    assert info.value.where == where


@every_format
def test_shared_parts_are_written_each_time(format: Any) -> None:
    """A list that stands in two places is two equal lists afterwards."""
    part = [1, {"b": 2}]
    found = envelope.decode(written({"x": part, "y": part, "z": [part, part]}, format))
    assert found.fields == {"x": part, "y": part, "z": [part, part]}


def test_a_state_larger_than_an_envelope_is_refused() -> None:
    """The bound is on the bytes that would be written, and can be raised on both sides."""
    half = "x" * (ENVELOPE_BYTES_MAX // 2)
    with pytest.raises(InvalidValue, match="more than 16,777,216"):
        written({"a": half, "b": half}, "json")
    large = written({"a": half, "b": half}, "json", bytes_max=2 * ENVELOPE_BYTES_MAX)
    assert "may be 16,777,216" in reason(large)
    assert envelope.decode(large, bytes_max=len(large)).fields["a"] == half


@every_format
@pytest.mark.parametrize(
    "header",
    [
        *({"schema_version": v} for v in ("", "1", "1.0", "01.0.0", "1.0.0-", "1.0.0+", "v1.0.0")),
        *(
            {"schema_version": v}
            for v in ("1.0.0\n", "1.0.0-01", "1.0.x", "\u0661.0.0", 1, b"1.0.0")
        ),
        {"schema_version": "1.0." + "9" * 256},
        {"schema_version": collections.UserString("1.0.0")},
        {"schema_version": type("Text", (str,), {})("1.0.0")},
        *({"state_version": v} for v in (-1, 2**63, True, 1.0, "1", None)),
        pytest.param({"state_version": 10**5_000}, id="more digits than Python shows"),
        pytest.param({"schema_version": 10**5_000}, id="more digits than Python shows, again"),
        *({"serialized_at_us": v} for v in (-1, 2**63, False, 0.5, None)),
    ],
    ids=str,
)
def test_a_header_is_checked(format: Any, header: dict[str, Any]) -> None:
    """A schema version is a semantic one; versions and times are integers from 0."""
    with pytest.raises(InvalidInput):
        written(FIELDS, format, **header)


@pytest.mark.parametrize(
    "version", ["0.0.0", "1.0.0-alpha.1", "1.0.0-0a.b-c+001.x", "1.0.0+b", "99999.0.1--"]
)
def test_semantic_versions_are_taken_whole(version: str) -> None:
    """With pre-release and build, as the specification has them."""
    assert envelope.decode(written({}, "json", schema_version=version)).schema_version == version


def test_an_unknown_format_is_refused() -> None:
    """By encode and decode alike, with the names of those there are."""
    with pytest.raises(InvalidInput, match="json, msgpack or protobuf"):
        written(FIELDS, "xml")
    with pytest.raises(InvalidInput, match="json, msgpack or protobuf"):
        envelope.decode(b"", "xml")  # type: ignore[arg-type]


# --- the checksum and the number ------------------------------------------------------------------


@every_format
def test_a_damaged_envelope_says_what_it_should_be(format: Any) -> None:
    """The error has the checksum that was carried and the one that was computed."""
    raw = written(FIELDS, format)
    found = envelope.decode(raw)
    damaged = raw[:-1] + bytes([raw[-1] ^ 1])
    with pytest.raises(IntegrityViolation) as info:
        envelope.decode(damaged)
    assert info.value.expected == found.checksum
    assert info.value.computed not in ("", found.checksum)
    assert info.value.what == "the envelope"


@every_format
def test_a_later_format_is_told_from_damage(format: Any) -> None:
    """With a checksum that fits, the number is believed; without, it is damage."""
    newer = envelopes.write(format, FIELDS, ("1.4.0", 9, 7), number=2)
    with pytest.raises(EnvelopeNewer) as info:
        envelope.decode(newer)
    assert (info.value.found, info.value.known) == (2, 1)
    old = envelopes.write(format, FIELDS, ("1.4.0", 9, 7))
    (at,) = [i for i, (a, b) in enumerate(zip(old, newer, strict=True)) if a != b][-1:]
    with pytest.raises(IntegrityViolation):
        envelope.decode(old[:at] + newer[at : at + 1] + old[at + 1 :])


@every_format
def test_format_numbers_go_from_1_to_127(format: Any) -> None:
    """In every format alike, so that each has one byte for it where bytes are counted."""
    for number in (0, 128):
        raw = envelopes.write(format, FIELDS, ("1.4.0", 9, 7), number=number)
        assert "do not start" in reason(raw)
    raw = envelopes.write(format, FIELDS, ("1.4.0", 9, 7), number=127)
    with pytest.raises(EnvelopeNewer, match="127"):
        envelope.decode(raw)


# --- bytes that are not canonical -----------------------------------------------------------------


def as_json(text: str) -> bytes:
    """A JSON envelope with these characters for its fields, and a checksum that fits."""
    raw = written({}, "json").replace(b'"fields":{}', b'"fields":' + text.encode())
    return seal(raw, "json")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"b":1,"a":2}',
        '{"a":1,"a":1}',
        '{"a":-0}',
        '{"a":1.00}',
        '{"a":1E2}',
        '{"a":1e2}',
        '{"a":0.1000000000000000055}',
        '{"a":"\\u0041"}',
        '{"a":"\\/"}',
        '{"a":"\\u001F"}',
        '{"a":"\\n\\u000a"}',
        '{"\\u00e9":1}',
        '{"a":[1,]}',
        '{"a":NaN}',
        '{"a":1e400}',
        '{"a":9223372036854775808}',
        '{"a":"\\ud800"}',
        "{}x",
        "[]",
        "null",
        '{},"fields":{}',
    ],
)
def test_json_has_one_way_to_write_a_value(text: str) -> None:
    """Every other way is refused, though its checksum fits."""
    assert reason(as_json(text))


@pytest.mark.parametrize(
    "change",
    [
        (b'"schema_version":"1.4.0"', b'"schema_version":"1.4"'),
        (b'"schema_version":"1.4.0"', b'"schema_version":4'),
        (b'"schema_version":"1.4.0",', b""),
        (b'"state_version":7', b'"state_version":-7'),
        (b'"state_version":7', b'"state_version":7.0'),
        (b'"state_version":7', b'"state_version":7,"more":1'),
        (b'"serialized_at_us":9', b'"serialized_at_us":null'),
        (b'"serialized_at_us":9', b'"serialized_at_us":9223372036854775808'),
        (b'"state_version":7}', b'"state_version":7}\n'),
    ],
    ids=str,
)
def test_a_header_is_checked_on_the_way_in(change: tuple[bytes, bytes]) -> None:
    """Its members are all there, of their kinds, and nothing is beside them."""
    raw = written(FIELDS, "json")
    assert change[0] in raw
    assert reason(seal(raw.replace(*change), "json"))


def as_msgpack(value: bytes) -> bytes:
    """A MessagePack envelope with one field of these bytes, and a checksum that fits."""
    raw = written({"a": 5}, "msgpack")
    assert raw.count(b"\x81\xa1a\x05") == 1
    return seal(raw.replace(b"\x81\xa1a\x05", b"\x81\xa1a" + value), "msgpack")


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("a wide integer", b"\xcc\x05"),
        ("a positive integer, signed", b"\xd0\x05"),
        ("an integer past 64 bits", b"\xcf\x80" + bytes(7)),
        ("a small float", b"\xca\x3f\x80\x00\x00"),
        ("nan", b"\xcb\x7f\xf8" + bytes(6)),
        ("infinity", b"\xcb\x7f\xf0" + bytes(6)),
        ("bytes", b"\xc4\x01x"),
        ("a time", b"\xd6\xff" + bytes(4)),
        ("an extension", b"\xd4\x05x"),
        ("an invalid byte", b"\xc1"),
        ("long text", b"\xd9\x01x"),
        ("text that is not UTF-8", b"\xa1\xff"),
        ("a lone surrogate", b"\xa3\xed\xa0\x80"),
        ("a long list", b"\xdc\x00\x00"),
        ("a long map", b"\xde\x00\x00"),
        ("names out of order", b"\x82\xa1b\x01\xa1a\x01"),
        ("a name twice", b"\x82\xa1a\x01\xa1a\x01"),
        ("a number as a name", b"\x81\x01\x01"),
        ("a list as a name", b"\x81\x90\x01"),
        ("a map as a name", b"\x81\x80\x01"),
        ("bytes as a name", b"\x81\xc4\x01x\x01"),
        ("four thousand million items", b"\xdd\xff\xff\xff\xff"),
        ("four thousand million names", b"\xdf\xff\xff\xff\xff"),
        ("four gigabytes of text", b"\xdb\xff\xff\xff\xff"),
        ("two values", b"\x05\x05"),
    ],
)
def test_messagepack_has_one_way_to_write_a_value(what: str, value: bytes) -> None:
    """Every other way, and every kind that JSON has not, is refused."""
    assert reason(as_msgpack(value)), what


def as_protobuf(*row: bytes, more: bytes = b"") -> bytes:
    """A Protocol Buffers envelope of these values, and a checksum that fits."""
    items = b"".join(b"\x1a" + varint(len(item)) + item for item in row)
    return seal(
        b"\x0a\x20" + bytes(32) + b"\x10\x01" + items + b"\x28\x09\x30\x07" + more, "protobuf"
    )


A = b"\x0a\x01a"  # the name


def test_the_row_of_values_is_read_as_meant() -> None:
    """What the cases below are changed from is itself good."""
    raw = as_protobuf(b"\x40\x01", A + b"\x38\x02", b"\x20\x02", b"\x10\x00")
    assert envelope.decode(raw).fields == {"a": [1, None]}


@pytest.mark.parametrize(
    ("what", "row"),
    [
        ("nothing at all", ()),
        ("no dict of all fields", (b"\x20\x02",)),
        ("a list of all fields", (b"\x38\x00",)),
        ("a name for all fields", (A + b"\x40\x00",)),
        ("too few values", (b"\x40\x02", A + b"\x20\x02")),
        ("too few inside", (b"\x40\x01", A + b"\x38\x02", b"\x20\x02")),
        ("too many values", (b"\x40\x01", A + b"\x20\x02", A + b"\x20\x02")),
        ("four thousand million items", (b"\x40\x01", A + b"\x38\xff\xff\xff\xff\x0f")),
        ("a value of no kind", (b"\x40\x01", A)),
        ("a value of two kinds", (b"\x40\x01", A + b"\x10\x00\x20\x02")),
        ("an unknown kind", (b"\x40\x01", A + b"\x48\x00")),
        ("an unknown field", (b"\x40\x01", A + b"\x20\x02\x48\x00")),
        ("another null", (b"\x40\x01", A + b"\x10\x01")),
        ("another true", (b"\x40\x01", A + b"\x18\x02")),
        ("a wide integer", (b"\x40\x01", A + b"\x20\x82\x00")),
        ("an integer of another wire type", (b"\x40\x01", A + b"\x21" + bytes(8))),
        ("nan", (b"\x40\x01", A + b"\x29" + bytes(6) + b"\xf8\x7f")),
        ("infinity", (b"\x40\x01", A + b"\x29" + bytes(6) + b"\xf0\x7f")),
        ("text that is not UTF-8", (b"\x40\x01", A + b"\x32\x01\xff")),
        ("a name after the value", (b"\x40\x01", b"\x20\x02" + A)),
        ("an empty name written out", (b"\x40\x01", b"\x0a\x00\x20\x02")),
        ("a name in a list", (b"\x40\x01", A + b"\x38\x01", A + b"\x20\x02")),
        ("names out of order", (b"\x40\x02", b"\x0a\x01b\x20\x02", A + b"\x20\x02")),
        ("a name twice", (b"\x40\x02", A + b"\x20\x02", A + b"\x20\x02")),
    ],
)
def test_protobuf_has_one_way_to_write_a_value(what: str, row: tuple[bytes, ...]) -> None:
    """Every other way, and everything that envelope.proto does not name, is refused."""
    assert reason(as_protobuf(*row)), what


def test_protobuf_takes_nothing_beside_its_fields() -> None:
    """Not an unknown field, not a field twice, not a group."""
    for more in (b"\x38\x01", b"\x30\x07", b"\x10\x01", b"\x3b\x3c", b"\x00"):
        assert reason(as_protobuf(b"\x40\x00", more=more))


# --- hostile bytes --------------------------------------------------------------------------------


def test_depth_without_end_is_refused() -> None:
    """Nesting costs the reader no stack, whatever the format."""
    deep = 100_000
    assert reason(as_json('{"a":' + "[" * deep + "]" * deep + "}"))
    assert reason(as_json('{"a":' * deep + "1" + "}" * deep))
    assert reason(as_msgpack(b"\x91" * deep + b"\x90"))
    assert reason(as_msgpack(b"\x81\xa0" * deep + b"\x90"))
    assert reason(as_protobuf(b"\x40\x01", *[b"\x40\x01"] * deep, b"\x40\x00"))


@every_format
def test_a_caller_who_is_deep_in_calls_gets_a_refusal_too(format: Any) -> None:
    """What little stack is left is not the sender's to use up."""
    raw = written(nested(STATE_DEPTH_MAX), format)

    def down(calls: int) -> Envelope:
        return down(calls - 1) if calls else envelope.decode(raw)

    assert down(0).fields == nested(STATE_DEPTH_MAX)
    used = len(inspect.stack(0))
    with pytest.raises(InvalidEnvelope, match="too deep"):
        down(sys.getrecursionlimit() - used - 100)


@every_format
def test_one_level_too_many_is_refused(format: Any) -> None:
    """The bound is the same for reading and for writing."""
    too_deep = nested(STATE_DEPTH_MAX + 1)
    assert "192 levels" in reason(envelopes.write(format, too_deep, ("1.4.0", 9, 7)))


@every_format
def test_size_is_bounded_before_anything_is_looked_at(format: Any) -> None:
    """By 16 MiB, or by what the caller says."""
    raw = written(FIELDS, format)
    assert envelope.decode(raw, bytes_max=len(raw)).fields == FIELDS
    with pytest.raises(InvalidEnvelope):
        envelope.decode(raw, bytes_max=len(raw) - 1)
    assert "may be 16,777,216" in reason(raw + bytes(ENVELOPE_BYTES_MAX))


def test_large_maps_of_numbers_are_refused_before_they_become_dicts() -> None:
    """Numbers can be chosen so that a dict takes quadratic time for them; text cannot."""
    for header in (b"\xde\x01\x00", b"\xdf\x00\x00\x01\x00", b"\xdf\xff\xff\xff\xff"):
        names = b"".join(msgspec.msgpack.encode(n) + b"\xc0" for n in range(256))
        assert reason(as_msgpack(header + names)) == "a name in a map is not text"


def test_a_look_for_names_passes_over_everything_else() -> None:
    """Each kind of value is stepped over exactly, so that names are found where they are."""
    kinds = [None, True, 1, -1, 200, -200, 70_000, -70_000, 2**40, -(2**40), 1.5, "x", "x" * 40]
    kinds += ["x" * 300, "x" * 70_000, b"x", b"x" * 300, [], [1] * 20, {}, [{"a": [1, {}]}]]
    kinds += [msgspec.msgpack.Ext(5, b"x" * n) for n in (1, 2, 4, 8, 16, 3, 300, 70_000)]
    for kind in kinds:
        check_names(msgspec.msgpack.encode({"a": kind, "b": {"c": kind}}))
        with pytest.raises(InvalidEnvelope):
            check_names(msgspec.msgpack.encode({"a": [kind, kind], "b": {"c": kind, 1: 2}}))


def test_numbers_of_a_million_digits_are_refused() -> None:
    """In the fields and in the header, without the time it takes to make numbers of them."""
    digits = "9" * 1_000_000
    assert reason(as_json('{"a":' + digits + "}"))
    assert reason(as_json('{"a":' + digits + ".5}"))
    header = written({}, "json").replace(b'"state_version":7', f'"state_version":{digits}'.encode())
    assert reason(seal(header, "json"))


def test_a_refusal_does_not_repeat_all_that_was_sent() -> None:
    """Messages are short, whatever the bytes are."""
    long = "x" * 1_000_000
    raw = written({}, "json", schema_version="1.0.0")
    for hostile in (
        as_json(f'{{"{long}":{{"{long}":99999999999999999999}}}}'),
        seal(raw.replace(b'"1.0.0"', f'"{long}"'.encode()), "json"),
        as_msgpack(b"\x81\xdb" + len(long).to_bytes(4) + long.encode() + b"\x81\x01\x02"),
        envelopes.write("protobuf", {}, (long, 1, 1)),
    ):
        assert len(reason(hostile)) < 500


@pytest.mark.parametrize("other", ["text", None, 5, ["x"]], ids=str)
def test_what_is_not_bytes_is_refused(other: Any) -> None:
    """Text is not guessed to be UTF-8."""
    assert "not bytes" in reason(other)


def test_every_refusal_is_under_one_branch() -> None:
    """`except StateError` is enough for bytes from elsewhere."""
    for kind in (IntegrityViolation, InvalidEnvelope, EnvelopeNewer):
        assert issubclass(kind, limpet.errors.StateError)
        assert issubclass(kind, LimpetError)


# --- the extra ------------------------------------------------------------------------------------

WITHOUT = """
import sys
sys.modules["google.protobuf"] = None
from limpet import envelope
from limpet.errors import ExtraMissing, IntegrityViolation
header = dict(schema_version=None, state_version=0, serialized_at_us=0)
for format in ("json", "msgpack"):
    assert envelope.decode(envelope.encode({"a": 1}, format=format, **header)).fields == {"a": 1}
raw = bytes.fromhex(sys.argv[1])
write = lambda: envelope.encode({}, format="protobuf", **header)
for call in (write, lambda: envelope.decode(raw)):
    try:
        call()
    except ExtraMissing as error:
        print(error)
try:
    envelope.decode(raw[:-1])
except IntegrityViolation:
    print("damaged")
"""


def test_without_the_package_the_other_formats_work() -> None:
    """The extra is named, and damage is still told from a package that is not there."""
    raw = written(FIELDS, "protobuf")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, raw.hex()],
        capture_output=True,
        text=True,
        check=True,
    )
    line = "protobuf is not installed. Run: pip install 'limpet[protobuf]'."
    assert ran.stdout.splitlines() == [line, line, "damaged"]
