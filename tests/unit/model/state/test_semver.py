"""Schema versions: strict to write, ordered, and clear about what code can read."""

from __future__ import annotations

import msgspec
import pytest

from limpet import InvalidInput, SchemaVersion
from limpet.errors import InvalidSchema
from limpet.model.state.migrations import compatible, relation

V = SchemaVersion.parse


@pytest.mark.parametrize("text", ["0.0.0", "1.2.3", "10.20.30", f"1.2.{'9' * 18}"])
def test_a_version_is_written_as_it_was_read(text: str) -> None:
    """Parsing loses nothing, and a version that is parsed already is itself."""
    version = SchemaVersion.parse(text)
    assert str(version) == text
    assert SchemaVersion.parse(version) is version
    assert version == SchemaVersion(*map(int, text.split(".")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1.2.3-rc1", "pre-release"),
        ("1.2.3+build", "pre-release or a build"),
        ("01.2.3", "leading zero"),
        ("1.02.3", "leading zero"),
        ("1.2.00", "leading zero"),
        (f"1.2.{'9' * 19}", "18 digits"),
        ("9" * 10_000, "MAJOR.MINOR.PATCH"),
        *((t, "MAJOR.MINOR.PATCH") for t in ("", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.x")),
        *((t, "MAJOR.MINOR.PATCH") for t in (" 1.2.3", "1.2.3\n", "1..3", "-1.2.3", "1.2.-3")),
        *((t, "MAJOR.MINOR.PATCH") for t in ("\u0661.1.1", "1.2.³", "1,2,3", "\ud800.1.1", "\x00")),
        *((t, "text") for t in (None, 1, 1.2, b"1.2.3", (1, 2, 3))),
    ],
    ids=lambda part: ascii(part)[:20],
)
def test_what_is_no_version_is_refused_with_the_reason(text: str, reason: str) -> None:
    """Three plain numbers and nothing else; the message is short and can be printed."""
    with pytest.raises(InvalidSchema, match=reason) as info:
        SchemaVersion.parse(text)
    assert info.value.code == "schema.invalid"
    assert isinstance(info.value, InvalidInput)
    assert len(str(info.value).encode()) < 400
    assert info.value.reason in str(info.value)


@pytest.mark.parametrize("number", [-1, 10**18, 10**5_000, True, "1", 1.0, None], ids=type)
def test_a_version_cannot_be_built_from_other_things(number: object) -> None:
    """Whichever of the three numbers it is, nothing but a small natural number will do."""
    for numbers in ((number, 0, 0), (0, number, 0), (0, 0, number)):
        with pytest.raises(InvalidSchema):
            SchemaVersion(*numbers)  # type: ignore[arg-type]


def test_versions_are_ordered_by_number_and_cannot_change() -> None:
    """2 comes before 10, MAJOR counts most; a version can be a key of a dict."""
    texts = ["0.9.9", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0", "10.0.0"]
    assert [str(v) for v in sorted(map(V, reversed(texts)))] == texts
    assert len({V("1.2.3"), V("1.2.3")}) == 1
    with pytest.raises(AttributeError):
        V("1.2.3").major = 2  # type: ignore[misc]


def test_a_version_survives_encoding() -> None:
    """It is read back equal, and a bad one is not read at all."""
    raw = msgspec.json.encode(V("1.2.3"))
    assert msgspec.json.decode(raw, type=SchemaVersion) == V("1.2.3")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(raw.replace(b"2", b"-2"), type=SchemaVersion)


@pytest.mark.parametrize(
    ("stored", "code", "reads", "stands"),
    [
        ("1.2.3", "1.2.3", True, "same"),
        ("1.2.9", "1.2.0", True, "same"),
        ("1.2.0", "1.2.9", True, "same"),
        ("1.1.9", "1.2.0", True, "older_minor"),
        ("1.0.0", "1.10.0", True, "older_minor"),
        ("1.10.0", "1.9.0", False, "newer_minor"),
        ("1.3.0", "1.2.9", False, "newer_minor"),
        ("1.2.0", "2.2.0", False, "migration"),
        ("1.9.0", "2.0.0", False, "migration"),
        ("2.0.0", "1.9.0", False, "migration"),
        ("0.1.0", "1.1.0", False, "migration"),
    ],
)
def test_code_reads_the_older_minors_of_its_major(
    stored: str, code: str, *, reads: bool, stands: str
) -> None:
    """Compatible means the same MAJOR and a MINOR that is not older; PATCH never matters."""
    assert compatible(V(stored), V(code)) is reads
    assert relation(V(stored), V(code)) == stands
