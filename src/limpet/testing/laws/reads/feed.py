"""The feed: the log of all sessions, from any position."""

from __future__ import annotations

from typing import Protocol

import pytest

from limpet.errors import PositionUnknown, StoreClosed
from limpet.model import Key
from limpet.store.protocol import Feed, FeedEntry, Store
from limpet.testing.commits import ALL, add, create, draft, key
from limpet.testing.laws.reads.pages import check_page, fill

A, B = key("a"), key("b", app="other")


class FeedStore(Store, Feed, Protocol):
    """A store with a feed, as all of ours are."""


async def met(store: FeedStore, count: int, after: str | None = None) -> list[FeedEntry]:
    """This many entries after a position, waiting for them if needed."""
    entries_met: list[FeedEntry] = []
    while len(entries_met) < count:
        entries, after = await store.changes(after, app=None, key=None, limit=ALL)
        entries_met += entries
    return entries_met


async def touched(store: FeedStore, after: str) -> dict[Key, int]:
    """Every session with events beyond a position, over all pages."""
    versions: dict[Key, int] = {}
    more = True
    while more:
        page = await store.touched(after)
        assert page.whole
        versions |= page.sessions
        after, more = page.position, page.more
    return versions


def keys_and_seqs(entries: list[FeedEntry]) -> list[tuple[str, int]]:
    return [(entry.key.id, entry.event.seq) for entry in entries]


class FeedLaws:
    """For stores with a feed."""

    async def test_the_feed_has_every_event_in_order(self, store: FeedStore) -> None:
        """Of all sessions, in the order recorded, from the first or from any position."""
        await create(store, A)
        await create(store, B)
        await add(store, A, draft(), draft())
        entries = await met(store, 4)
        assert keys_and_seqs(entries) == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]
        for place, entry in enumerate(entries[:-1], 1):
            assert await met(store, 4 - place, entry.position) == entries[place:]

    async def test_what_comes_after_the_end_lies_beyond_it(self, store: FeedStore) -> None:
        """New entries come after the end, and deletions bring back no old ones."""
        await create(store, A)
        await create(store, B)
        await met(store, 2)
        end = await store.position()
        await add(store, A, draft(), draft())
        assert keys_and_seqs(await met(store, 2, end)) == [("a", 2), ("a", 3)]
        again = await store.position()
        await store.delete(A)
        late = await store.position()
        await add(store, B)
        for position in (end, again, late):
            assert keys_and_seqs(await met(store, 1, position)) == [("b", 2)]

    @pytest.mark.parametrize("compressible", [True, False])
    async def test_a_page_of_the_feed_ends_early(
        self, store: FeedStore, *, compressible: bool
    ) -> None:
        """Its last position leads to the next entry, for all sessions or for one."""
        await create(store, B)
        last = await fill(store, compressible=compressible)
        await add(store, B)
        for of, count in ((None, last + 2), (A, last)):
            met: list[FeedEntry] = []
            pages, after = 0, None
            while len(met) < count:
                entries, after = await store.changes(after, app=None, key=of, limit=ALL)
                met += entries
                if entries:
                    check_page(tuple(entry.event for entry in entries), ALL)
                    pages += 1
            assert len(set(keys_and_seqs(met))) == len(met) == count
            assert [seq for id, seq in keys_and_seqs(met) if id == "a"] == list(range(1, last + 1))
            assert 1 < pages < count

    async def test_touched_sessions_are_named_without_their_events(self, store: FeedStore) -> None:
        """Each session with events beyond a position, with its last seq, and no other."""
        start = await store.position()
        await create(store, A)
        await create(store, B)
        await add(store, A, draft(), draft())
        assert await touched(store, start) == {A: 3, B: 1}
        await met(store, 4)  # until everything is handed out
        end = (await store.touched(start)).position
        assert await touched(store, end) == {}
        await add(store, B)
        assert await touched(store, end) == {B: 2}
        await store.delete(B)
        assert await touched(store, start) == {A: 3}

    async def test_whoever_looks_for_touched_sessions_hears_of_endings(
        self, store: FeedStore
    ) -> None:
        """Deleting and erasing change the mark; nothing else does."""
        await create(store, A)
        await create(store, B)
        start = await store.position()
        marks = [(await store.touched(start)).ended]
        await add(store, A)
        assert (await store.touched(start)).ended == marks[0]
        for end in (store.delete(A), store.erase(A), store.erase(B)):
            await end
            marks.append((await store.touched(start)).ended)
        assert len(set(marks)) == 4

    async def test_touched_sessions_are_named_from_our_positions_only(
        self, store: FeedStore
    ) -> None:
        """A position that this store never issued raises PositionUnknown."""
        await create(store, A)
        (entry,) = await met(store, 1)
        beyond = ".".join(["9" * 18] * (entry.position.count(".") + 1))
        with pytest.raises(PositionUnknown):
            await store.touched(beyond)

    async def test_an_empty_feed_has_an_end(self, store: FeedStore) -> None:
        """The end of an empty feed is before the first event."""
        end = await store.position()
        await create(store, A)
        assert keys_and_seqs(await met(store, 1, end)) == [("a", 1)]

    async def test_a_closed_store_has_no_feed(self, store: FeedStore) -> None:
        """Every call after close raises StoreClosed."""
        end = await store.position()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.position()
        with pytest.raises(StoreClosed):
            await store.touched(end)
        with pytest.raises(StoreClosed):
            await store.changes(None, app=None, key=None, limit=1)
