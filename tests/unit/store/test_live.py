"""Partials on their way: packed, sealed, read again or dropped."""

from __future__ import annotations

import asyncio

import pytest

from limpet.store.coding.codec import Codec
from limpet.store.live import Packed, pack, unpack
from limpet.testing.laws.reads.live import partial
from tests.support.seal import FixedKeySeal

CODECS = [Codec(), Codec(FixedKeySeal())]


def packed(codec: Codec) -> Packed:
    uid = partial().uid
    asyncio.run(codec.sealer.ready([uid, uid[:-1] + "~"]))  # and of the session it is moved to
    found = pack(codec, partial(text="some words" * 300))
    assert found is not None
    return found


@pytest.mark.parametrize("codec", CODECS, ids=["plain", "sealed"])
def test_a_partial_reads_back_as_it_was(codec: Codec) -> None:
    """Key, mark and every member of the event."""
    assert unpack(codec, packed(codec)) == partial(text="some words" * 300)


@pytest.mark.parametrize("codec", CODECS, ids=["plain", "sealed"])
@pytest.mark.parametrize("name", ["uid", "event_id", "type", "flags", "body", "crc"])
def test_a_partial_that_was_changed_is_dropped(codec: Codec, name: str) -> None:
    """Nothing of it can be moved to another session, event or type."""
    found = packed(codec)
    was = getattr(found, name)
    now = was + 1 if isinstance(was, int) else was + was[:1]
    assert unpack(codec, found._replace(**{name: now})) is None


def test_a_sealed_partial_needs_its_seal() -> None:
    """Without it nothing is read, and its bytes are those of no event."""
    found = packed(CODECS[1])
    assert unpack(CODECS[0], found) is None
    assert b"some words" not in found.body
    assert found.place.type == "partial:agent.message"
