"""Keys: what may name a session."""

from __future__ import annotations

from enum import StrEnum

import msgspec
import pytest

from limpet.errors import InvalidKey
from limpet.model.keys import Key, unfit
from limpet.model.limits import KEY_PART_CHARS_MAX

BAD = {
    "empty": "",
    "over-long": "x" * (KEY_PART_CHARS_MAX + 1),
    "padded before": " x",
    "padded behind": "x\t",
    "padded with a no-break space": "x\u00a0",
    "blank": "   ",
    "NUL": "a\x00b",
    "newline": "a\nb",
    "delete": "a\x7fb",
    "lone surrogate": "a\ud800b",
    "None": None,
    "bytes": b"x",
    "number": 5,
    "list": ["x"],
}


class Shop(StrEnum):
    """Texts of a class of their own, as settings often are."""

    EU = "shop eu"


def test_a_part_of_a_class_of_its_own_is_kept_as_plain_text() -> None:
    """No codec and no driver has to know the class, and the key is that of the plain text."""
    key = Key(Shop.EU, Shop.EU, Shop.EU)
    assert [type(part) for part in (key.app, key.user, key.id)] == [str] * 3
    assert (key, hash(key)) == (plain := Key("shop eu", "shop eu", "shop eu"), hash(plain))
    assert str(key) == "shop eu/shop eu/shop eu"


@pytest.mark.parametrize("part", ["app", "user", "id"])
@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
def test_an_unfit_part_is_refused_by_name(part: str, value: object) -> None:
    """The error says which part of the key is wrong and why."""
    parts = {"app": "a", "user": "u", "id": "i"} | {part: value}
    with pytest.raises(InvalidKey) as info:
        Key(**parts)  # type: ignore[arg-type]  # wrong on purpose
    assert info.value.code == "key.invalid"
    assert info.value.part == part
    assert part in str(info.value)


@pytest.mark.parametrize(
    "value",
    ["x", "x" * KEY_PART_CHARS_MAX, "a b", "a/b:c", "ä😀", "%", "'; --", "e\u0301", "x\u2028x"],
)
def test_any_other_text_is_kept_as_given(value: str) -> None:
    """Nothing is trimmed, folded or normalised."""
    key = Key(value, value, value)
    assert (key.app, key.user, key.id) == (value, value, value)


def test_keys_are_values() -> None:
    """Equal, hashable, sortable, unchangeable, and readable in messages."""
    assert Key("a", "b", "c") == Key("a", "b", "c")
    assert len({Key("a", "b", "c"), Key("a", "b", "c"), Key("a", "c", "b")}) == 2
    assert sorted([Key("b", "a", "a"), Key("a", "b", "a")])[0].app == "a"
    assert str(Key("a", "b", "c")) == "a/b/c"
    with pytest.raises(AttributeError):
        Key("a", "b", "c").app = "x"  # type: ignore[misc]  # wrong on purpose


def test_a_decoded_key_is_checked_too() -> None:
    """A key that arrives as JSON obeys the same rules."""
    assert msgspec.json.decode(b'{"app":"a","user":"b","id":"c"}', type=Key) == Key("a", "b", "c")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"app":"","user":"b","id":"c"}', type=Key)


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
def test_unfit_tells_why(value: object) -> None:
    """The reason is words that continue a sentence; fit text has none."""
    reason = unfit(value, KEY_PART_CHARS_MAX)
    assert reason
    assert not reason.endswith(".")
    assert unfit("fit", 3) is None
