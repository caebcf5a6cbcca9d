"""Cold segments: what is read from them is what was recorded, or nothing of it is used."""

from __future__ import annotations

import msgspec
import pytest

from limpet.model import genesis
from limpet.store import cold
from limpet.store.coding.codec import Codec
from limpet.store.cold import Cold, SegmentDamaged
from limpet.store.memory import MemoryStore
from limpet.testing.commits import add, create, draft, key, load
from limpet.testing.histories import recorded

A = key("a")
CODEC = Codec()


async def segment() -> tuple[str, list[Cold]]:
    """Four events of a session, and its uid."""
    store = MemoryStore()
    await create(store, A)
    await add(store, A, *[draft("user.said", {"n": n}) for n in range(3)])
    return (await load(store, A)).head.uid, [Cold(r, False) for r in await recorded(store, A)]


def opened(uid: str, raw: bytes, last: int, link: bytes) -> list[Cold]:
    stored = CODEC.pack(raw, cold.place(uid, 1, last), bound=True)
    return cold.opened(CODEC, uid, (1, last), stored, (genesis(uid), link))


async def test_a_segment_is_read_as_it_was_recorded() -> None:
    """Digests and links are computed again, and are the same."""
    uid, found = await segment()
    assert opened(uid, cold.encode(found), 4, found[-1].record.event.link) == found


async def test_the_problem_of_a_segment_is_told_of_it_and_of_its_events() -> None:
    """Too short, with another end, with too few salts, or with bytes that are none of ours."""
    uid, found = await segment()
    link, whole = found[-1].record.event.link, cold.encode(found)
    columns = msgspec.msgpack.decode(whole)
    short = [*columns[:10], b"", *columns[11:]]
    for raw, last, end, problem in (
        (whole, 5, link, "has another length"),
        (whole, 4, genesis(uid), "does not lead to the link after it"),
        (msgspec.msgpack.encode(short), 4, link, "cannot be read (StopIteration())"),
        (b"{", 4, link, "cannot be read ("),
    ):
        with pytest.raises(SegmentDamaged) as info:
            opened(uid, raw, last, end)
        assert info.value.problem.startswith(problem)
        assert str(info.value) == f"is in a segment that {info.value.problem}"


async def test_bytes_of_another_place_are_not_a_segment() -> None:
    """Its place is part of its checksum."""
    uid, found = await segment()
    link = found[-1].record.event.link
    stored = CODEC.pack(cold.encode(found), cold.place("another", 1, 4), bound=True)
    with pytest.raises(SegmentDamaged, match="is in a segment that cannot be read: it "):
        cold.opened(CODEC, uid, (1, 4), stored, (genesis(uid), link))
