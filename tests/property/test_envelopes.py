"""Laws of envelopes: nothing is lost, one value has one encoding, and no damage passes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from limpet import envelope
from limpet.errors import EnvelopeNewer, IntegrityViolation, InvalidEnvelope
from limpet.model.envelope.envelope import check_names
from tests.property.strategies import values
from tests.support import envelopes
from tests.support.envelopes import FORMATS
from tests.support.examples import examples

formats = st.sampled_from(FORMATS)
fields = st.dictionaries(st.text(max_size=6), values, max_size=5)
numbers = st.integers(0, 300) | st.integers(0, 2**63 - 1)
schemas = st.none() | st.sampled_from(["0.0.0", "1.4.0", "2.0.0-rc.1+build.7", "10.20.30"])
headers = st.tuples(schemas, numbers, numbers)
# Few and easily taken for each other, so that equal pairs and nearly equal ones are both met.
_alike = st.recursive(
    st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, None, "", "0", "1"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["", "0"]), inner, max_size=2)
    ),
    max_leaves=3,
)
alike = st.dictionaries(st.sampled_from(["a", "b"]), _alike, max_size=2)
# Numbers where the ways of writing them change.
edges = st.one_of(
    st.integers(0, 64).flatmap(lambda power: st.integers(-3, 3).map(lambda d: 2**power + d)),
    st.integers(0, 64).flatmap(lambda power: st.integers(-3, 3).map(lambda d: -(2**power) + d)),
).filter(lambda n: -(2**63) <= n < 2**63)
reals = st.floats(allow_nan=False, allow_infinity=False) | st.builds(
    lambda digits, power: digits * 10.0**power, st.integers(-(10**17), 10**17), st.integers(-25, 25)
)


def written(x: dict[str, Any], header: envelopes.Header, format: Any) -> bytes:
    schema_version, serialized_at_us, state_version = header
    return envelope.encode(
        x,
        schema_version=schema_version,
        state_version=state_version,
        serialized_at_us=serialized_at_us,
        format=format,
    )


def exact(value: Any) -> Any:
    """A form in which only the very same values are equal: kinds apart, zeros apart."""
    if isinstance(value, dict):
        return ("dict", frozenset((name, exact(inner)) for name, inner in value.items()))
    if isinstance(value, list):
        return ("list", tuple(map(exact, value)))
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    return (type(value).__name__, value)


def refused(raw: bytes, format: Any = None) -> bool:
    try:
        envelope.decode(raw, format)
    except (IntegrityViolation, InvalidEnvelope, EnvelopeNewer):
        return True
    return False


# --- nothing is lost ------------------------------------------------------------------------------


@examples(300)
@given(fields, headers, formats)
def test_what_was_encoded_is_decoded(
    x: dict[str, Any], header: envelopes.Header, format: Any
) -> None:
    """Exactly, with the header, whether the format is named or told from the bytes."""
    raw = written(x, header, format)
    found = envelope.decode(raw)
    assert found == envelope.decode(raw, format)
    assert exact(found.fields) == exact(x)
    assert (found.schema_version, found.serialized_at_us, found.state_version) == header
    assert found.checksum in raw.hex() or found.checksum.encode() in raw
    assert written(found.fields, header, format) == raw


@examples(300)
@given(fields, headers)
def test_the_formats_agree(x: dict[str, Any], header: envelopes.Header) -> None:
    """From each format into each other and back: the same bytes as from the start."""
    raws = {format: written(x, header, format) for format in FORMATS}
    for format in FORMATS:
        found = envelope.decode(raws[format])
        assert {f: written(found.fields, header, f) for f in FORMATS} == raws


@examples(300)
@given(fields | st.dictionaries(st.text(max_size=2), edges | reals), headers, formats)
@example(
    {"": 5e-324, "a": 1e16, "b": 9999999999999998.0, "c": 1e-5, "d": 9.9e-6}, (None, 0, 0), "json"
)
@example({"a" * 31: "b" * 32, "c" * 256: ["d" * 65_536] * 16}, ("1.0.0", 1, 1), "msgpack")
@example({str(n): [n] * n for n in (15, 16, 300)}, ("1.0.0", 1, 1), "protobuf")
def test_the_bytes_are_those_of_the_specification(
    x: dict[str, Any], header: envelopes.Header, format: Any
) -> None:
    """A second writer, made from docs/envelopes.md without our packages, writes the same bytes."""
    assert written(x, header, format) == envelopes.write(format, x, header)


# --- one value, one encoding ----------------------------------------------------------------------


@examples(600)
@given(alike, alike, formats)
def test_bytes_are_equal_exactly_if_values_are(
    x: dict[str, Any], y: dict[str, Any], format: Any
) -> None:
    """1, 1.0 and True are three values, and the two zeros are two."""
    header = ("1.0.0", 1, 1)
    same = written(x, header, format) == written(y, header, format)
    assert same == (exact(x) == exact(y))


@examples(200)
@given(fields, headers, headers, formats)
def test_another_header_is_other_bytes(
    x: dict[str, Any], one: envelopes.Header, two: envelopes.Header, format: Any
) -> None:
    """The header is as much a part of the envelope as the fields."""
    assert (written(x, one, format) == written(x, two, format)) == (one == two)


@examples(200)
@given(fields, st.randoms(use_true_random=False), formats)
def test_the_order_of_names_does_not_show(x: dict[str, Any], random: Any, format: Any) -> None:
    """However a dict was filled, at every depth, its bytes are the same."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = [(name, shuffled(inner)) for name, inner in value.items()]
            random.shuffle(items)
            return dict(items)
        return [shuffled(inner) for inner in value] if isinstance(value, list) else value

    header = (None, 0, 0)
    assert written(shuffled(x), header, format) == written(x, header, format)


@examples(200)
@given(fields, headers, formats)
def test_no_envelope_is_taken_for_one_of_another_format(
    x: dict[str, Any], header: envelopes.Header, format: Any
) -> None:
    """Named wrongly it is refused: each format has its own first byte."""
    raw = written(x, header, format)
    for other in FORMATS:
        assert refused(raw, other) == (other != format)


# --- no damage passes -----------------------------------------------------------------------------


@examples(600)
@given(fields, headers, formats, st.data())
def test_a_changed_byte_is_refused(
    x: dict[str, Any], header: envelopes.Header, format: Any, data: st.DataObject
) -> None:
    """Any byte, changed to any other."""
    raw = bytearray(written(x, header, format))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    assert refused(bytes(raw))
    assert refused(bytes(raw), format)


@examples(300)
@given(fields, headers, formats, st.binary(min_size=1, max_size=20), st.data())
def test_a_missing_end_and_an_added_one_are_refused(
    x: dict[str, Any], header: envelopes.Header, format: Any, more: bytes, data: st.DataObject
) -> None:
    """Cut anywhere, or followed by anything."""
    raw = written(x, header, format)
    assert refused(raw[: data.draw(st.integers(0, len(raw) - 1))])
    assert refused(raw + more)
    assert refused(more + raw)


@examples(1500)
@given(fields, headers, formats, st.data())
def test_what_is_sealed_again_is_canonical_or_refused(
    x: dict[str, Any], header: envelopes.Header, format: Any, data: st.DataObject
) -> None:
    """Bytes changed by somebody who knows the checksum decode to what encodes to them, or not."""
    raw = bytearray(written(x, header, format))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), at + data.draw(st.integers(0, 3)))
        raw[at:end] = data.draw(st.binary(max_size=3))
    hostile = envelopes.seal(bytes(raw), format)
    try:
        found = envelope.decode(hostile, format)
    except (IntegrityViolation, InvalidEnvelope, EnvelopeNewer):
        return
    got = (found.schema_version, found.serialized_at_us, found.state_version)
    assert written(found.fields, got, format) == hostile


@examples(500)
@given(st.binary(max_size=200), st.sampled_from([None, *FORMATS]))
@example(b"", None)
@example(b"{", None)
@example(b"\n", None)
@example(b"\x86", None)
def test_no_bytes_at_all_raise_anything_else(raw: bytes, format: Any) -> None:
    """Whatever arrives, the error is one of three."""
    assert refused(raw, format)


@examples(300)
@given(fields, headers)
def test_names_that_are_text_pass_the_look_before_decoding(
    x: dict[str, Any], header: envelopes.Header
) -> None:
    """The look through MessagePack finds nothing wrong in what we wrote."""
    check_names(written(x, header, "msgpack"))


@pytest.mark.parametrize("format", FORMATS)
def test_every_bit_of_an_envelope_counts(format: Any) -> None:
    """Each bit of one envelope, turned over, one at a time."""
    x = {"a": [1, 1.5, None, True, "é"], "b": {"c": {}, "d": []}}
    raw = written(x, ("1.0.0", 1_700_000_000_000_000, 7), format)
    for at in range(len(raw)):
        for bit in range(8):
            damaged = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
            assert refused(damaged), (at, bit)
