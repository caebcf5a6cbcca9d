"""What was sealed with built-in keys once is opened for ever, and only where it stood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from msgspec import structs

from limpet.security.keys import KeySeal
from limpet.security.ring import MemoryRing, RingRow
from tests.golden.keys import BODY, GOLDEN, HEAD, PLACE, UID, rows, seal_of

THEN: dict[str, Any] = json.loads(GOLDEN.read_text())


@pytest.fixture
async def seal() -> KeySeal:
    """A seal on the ring that was written then."""
    ring = MemoryRing()
    await ring.put([RingRow(*row[:3], bytes.fromhex(row[3])) for row in THEN["ring"]])
    (row,) = await ring.get("meta", ["id"])
    found = seal_of(ring)
    await found.open_ring(row.value.decode())
    await found.ready([UID])
    return found


async def test_a_body_is_opened(seal: KeySeal) -> None:
    """And is sealed with the same format and the same key now."""
    sealed = bytes.fromhex(THEN["body"])
    assert seal.open(sealed, PLACE) == BODY
    assert seal.seal(BODY, PLACE)[:5] == sealed[:5]
    with pytest.raises(InvalidTag):
        seal.open(sealed, structs.replace(PLACE, id="e2"))


async def test_marks_and_anchors_hold(seal: KeySeal) -> None:
    """What was plain then, the MAC of a head, and where a session stood."""
    assert seal._owners[UID].plain == 3
    assert seal.mac(HEAD).hex() == THEN["mac"]
    ((_, anchor),) = [each async for each in seal.anchors([UID])]
    assert anchor.version == 7
    assert await seal.vouches(UID, anchor)
    assert not await seal.vouches(UID, structs.replace(anchor, version=8))


async def test_the_same_key_signs(seal: KeySeal) -> None:
    """Whoever has its public key checks what is signed now."""
    assert seal.public_key == THEN["public_key"]
    assert seal.sign(b"signed").hex() == THEN["signature"]


async def test_nothing_was_added_to_the_ring(seal: KeySeal) -> None:
    """A key that is not understood would be made anew."""
    assert isinstance(seal.ring, MemoryRing)
    now = [[*row[:3], row.value.hex()] for row in await rows(seal.ring)]
    assert sorted(now) == sorted(THEN["ring"])
