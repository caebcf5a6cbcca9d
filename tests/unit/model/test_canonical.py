"""The canonical encoding: equal values, equal bytes."""

from __future__ import annotations

import hashlib

import pytest

from limpet.model.values import canonical, checksum, freeze


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ({"b": 1, "a": 2}, b'{"a":2,"b":1}'),
        ({"b": {"d": 1, "c": []}}, b'{"b":{"c":[],"d":1}}'),
        ([True, None, "é", 1, 1.0], '[true,null,"é",1,1.0]'.encode()),
        ({"é": 1, "z": 2, "😀": 3}, '{"z":2,"é":1,"😀":3}'.encode()),
        (("id", None), b'["id",null]'),
        ('\x00\n"\\/', b'"\\u0000\\n\\"\\\\/"'),
        (1e22, b"1e22"),
        (0.1, b"0.1"),
        (-0.0, b"-0.0"),
    ],
    ids=str,
)
def test_the_encoding_is_what_it_says(value: object, encoded: bytes) -> None:
    """UTF-8 JSON without white space, names in order, numbers in their shortest form."""
    assert canonical(value) == encoded


def test_the_order_of_names_does_not_matter() -> None:
    """Two dicts with the same items have one encoding, at every depth, frozen or not."""
    one = {"a": {"x": 1, "y": [{"p": 1, "q": 2}]}, "b": 2}
    two = {"b": 2, "a": {"y": [{"q": 2, "p": 1}], "x": 1}}
    assert canonical(one) == canonical(two) == canonical(freeze(two))


def test_kinds_of_number_are_kept_apart() -> None:
    """1, 1.0 and True are different values with different encodings."""
    assert len({canonical({"n": n}) for n in (1, 1.0, True)}) == 3


def test_a_checksum_is_sha_256_of_the_encoding() -> None:
    """Anyone with a JSON encoder and SHA-256 can check it."""
    assert checksum({"b": 1, "a": "é"}) == hashlib.sha256('{"a":"é","b":1}'.encode()).digest()
