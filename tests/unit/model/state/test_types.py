"""TTL, Ref and UnknownVariant: what each holds and refuses, without any extra."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from limpet import TTL, Ref, UnknownVariant
from limpet.errors import SchemaViolation
from tests.support.declared import Role

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_a_ttl_ends_after_its_duration_and_not_before() -> None:
    """It is over at the very end, wherever it began."""
    ttl = TTL(minutes=5)
    assert ttl.ends_at(NOW) == NOW + timedelta(minutes=5)
    assert not ttl.is_over(NOW, NOW + timedelta(minutes=5, microseconds=-1))
    assert ttl.is_over(NOW, NOW + timedelta(minutes=5))
    assert TTL().is_over(NOW, NOW)


def test_a_ttl_is_a_duration_that_is_not_negative() -> None:
    """It equals the timedelta of its length, and a negative one cannot be made."""
    assert TTL(hours=1) == timedelta(hours=1) == TTL.of(timedelta(hours=1))
    assert type(TTL.of(timedelta.max)) is TTL
    with pytest.raises(SchemaViolation):
        TTL(microseconds=-1)


def test_a_ref_knows_its_content() -> None:
    """To the last bit."""
    ref = Ref[bytes].to("s3://evidence/7", b"what was seen")
    assert ref == Ref("s3://evidence/7", hashlib.sha256(b"what was seen").hexdigest())
    assert ref.matches(b"what was seen")
    assert not ref.matches(b"what was seem")
    assert len({ref, Ref.to("s3://evidence/7", b"what was seen")}) == 1


@pytest.mark.parametrize(
    ("uri", "sha256", "field"),
    [
        ("", "0" * 64, "uri"),
        ("no scheme", "0" * 64, "uri"),
        ("//host/path", "0" * 64, "uri"),
        ("s3://with space", "0" * 64, "uri"),
        ("s3://\ud800", "0" * 64, "uri"),
        ("s3://" + "x" * 3_000, "0" * 64, "uri"),
        (7, "0" * 64, "uri"),
        ("s3://x", "0" * 63, "sha256"),
        ("s3://x", "A" * 64, "sha256"),
        ("s3://x", b"0" * 64, "sha256"),
    ],
)
def test_a_ref_is_a_uri_and_a_sha256(uri: Any, sha256: Any, field: str) -> None:
    """Anything else is refused where it is made."""
    with pytest.raises(SchemaViolation) as caught:
        Ref(uri, sha256)
    assert caught.value.field == field


def test_an_unknown_variant_has_a_value_as_members_have() -> None:
    """Code that reads `.value` reads both; two are equal if value and enum are."""
    assert UnknownVariant("judge", Role).value == "judge"
    assert UnknownVariant("judge", Role) == UnknownVariant("judge", Role)
    assert len({UnknownVariant("judge", Role), UnknownVariant("judge", Role)}) == 1
