"""The codec: compressed when it pays, sealed when asked, and never silently wrong."""

from __future__ import annotations

import os

import pytest

from limpet.store.coding.codec import COMPRESS_BYTES_MIN, COMPRESSED, SEALED, Codec, Damaged
from limpet.store.protocol import Place
from tests.support import seal

PLACE = Place("event", "uid", "id", "a.b")
BODIES = {
    "empty": b"",
    "small": b'{"data":{}}',
    "text": b'{"data":"' + b"the same again and again " * 200 + b'"}',
    "noise": os.urandom(5_000),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("codec", [Codec(), seal.codec(PLACE.owner)], ids=["plain", "sealed"])
def test_what_is_packed_unpacks(codec: Codec, body: bytes) -> None:
    """Both directions, for every kind of body."""
    flags, stored, crc = codec.pack(body, PLACE)
    assert codec.unpack(flags, stored, crc, lambda: PLACE) == body


def test_compression_is_used_when_it_pays() -> None:
    """Small and incompressible bodies are stored as they are."""
    codec = Codec()
    assert codec.pack(b"x" * (COMPRESS_BYTES_MIN - 1), PLACE)[0] == 0
    assert codec.pack(BODIES["noise"], PLACE)[:2] == (0, BODIES["noise"])
    flags, stored, _ = codec.pack(BODIES["text"], PLACE)
    assert flags == COMPRESSED
    assert len(stored) < len(BODIES["text"]) // 5


def test_a_sealed_body_shows_nothing() -> None:
    """Compression comes before sealing, and neither text nor place is in the bytes."""
    flags, stored, _ = seal.codec(PLACE.owner).pack(BODIES["text"], PLACE)
    assert flags == COMPRESSED | SEALED
    assert b"again" not in stored


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_every_flipped_bit_is_found(body: bytes) -> None:
    """The checksum finds rot without a key."""
    codec = Codec()
    flags, stored, crc = codec.pack(body, PLACE)
    for at in range(0, len(stored), max(1, len(stored) // 50)):
        rotten = bytearray(stored)
        rotten[at] ^= 1
        with pytest.raises(Damaged):
            codec.unpack(flags, bytes(rotten), crc, lambda: PLACE)


@pytest.mark.parametrize(
    "elsewhere",
    [
        Place("scope", "uid", "id", "a.b"),
        Place("event", "other", "id", "a.b"),
        Place("event", "uid", "other", "a.b"),
        Place("event", "uid", "id", "a.c"),
    ],
    ids=str,
)
def test_a_sealed_body_opens_only_in_its_place(elsewhere: Place) -> None:
    """A body moved to another row, with its checksum, is damaged there."""
    codec = seal.codec(PLACE.owner, elsewhere.owner)
    packed = codec.pack(b"{}", PLACE)
    with pytest.raises(Damaged):
        codec.unpack(*packed, lambda: elsewhere)


def test_a_sealed_body_needs_its_key() -> None:
    """No seal, or another key, is told apart from rot."""
    packed = seal.codec(PLACE.owner).pack(b"{}", PLACE)
    with pytest.raises(Damaged, match="no seal"):
        Codec().unpack(*packed, lambda: PLACE)
    with pytest.raises(Damaged, match="does not open"):
        seal.codec(PLACE.owner, key=b"k" * 32).unpack(*packed, lambda: PLACE)


def test_plain_and_sealed_may_be_mixed() -> None:
    """A store that begins to seal still reads what it wrote before."""
    packed = Codec().pack(b"{}", PLACE)
    assert seal.codec(PLACE.owner).unpack(*packed, lambda: PLACE) == b"{}"


def test_an_unknown_form_is_not_guessed_at() -> None:
    """A body written by a later release is damaged, not misread."""
    _, stored, crc = Codec().pack(b"{}", PLACE)
    with pytest.raises(Damaged, match="form"):
        Codec().unpack(8, stored, crc, lambda: PLACE)


def test_a_place_spells_itself_without_ambiguity() -> None:
    """Different places have different bytes, however their parts are cut."""
    places = [
        Place("event", "a", "bc"),
        Place("event", "ab", "c"),
        Place("event", "a", "b", "c"),
        Place("event", 'a","b', "c"),
        Place("snapshot", "a", "bc"),
    ]
    assert len({place.aad() for place in places}) == len(places)
