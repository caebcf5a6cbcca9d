"""Time: the store's own clock, which never runs backwards within a session."""

from __future__ import annotations

from datetime import timedelta

import pytest

from limpet.store.protocol import Query, Store
from limpet.testing.clock import FakeClock
from limpet.testing.commits import add, create, draft, key, load, log
from limpet.testing.histories import fork

A, B, C = key("a"), key("b"), key("c")
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


class TimeLaws:
    """For stores that take a clock. The suite's `store` must read the suite's `clock`."""

    async def test_events_are_dated_by_the_store(self, store: Store, clock: FakeClock) -> None:
        """The clock's reading at the commit is the time of all its events."""
        made = await create(store, A)
        assert made.events[0].at_us == clock.now_us
        clock.advance(HOUR)
        made = await add(store, A, draft(), draft())
        assert [event.at_us for event in made.events] == [clock.now_us] * 2
        assert (made.head.updated_us, made.head.created_us) == (
            clock.now_us,
            clock.now_us - 3_600_000_000,
        )

    async def test_the_store_says_what_time_it_is(self, store: Store, clock: FakeClock) -> None:
        """An event recorded now is dated as `now_us` says."""
        clock.advance(HOUR)
        assert store.now_us() == clock.now_us
        assert (await create(store, A)).events[0].at_us == store.now_us()

    async def test_time_never_runs_backwards_within_a_session(
        self, store: Store, clock: FakeClock
    ) -> None:
        """After the wall clock is set back, a session's time stops until it has caught up."""
        clock.advance(HOUR)
        before = (await create(store, A)).events[0].at_us
        clock.leap(-HOUR)
        assert (await add(store, A)).events[0].at_us == before
        assert (await create(store, B)).events[0].at_us == clock.now_us < before
        clock.advance(HOUR + SECOND)
        assert (await add(store, A)).events[0].at_us == before + 1_000_000
        times = [event.at_us for event in await log(store, A)]
        assert times == sorted(times)
        assert (await store.verify(None)).ok

    async def test_one_mad_reading_does_not_date_the_future(
        self, store: Store, clock: FakeClock
    ) -> None:
        """A wall clock that jumps years ahead is ignored and has no lasting effect."""
        before = (await create(store, A)).events[0].at_us
        clock.leap(timedelta(days=3_650))
        clock.advance(SECOND)
        assert (await add(store, A)).events[0].at_us == before + 1_000_000
        clock.leap(timedelta(days=-3_650))
        clock.advance(SECOND)
        assert (await add(store, A)).events[0].at_us == before + 2_000_000

    async def test_equal_times_do_not_confuse_order(self, store: Store, clock: FakeClock) -> None:
        """With a stopped clock, seqs, expect and pages work as usual."""
        for id in "abcdef":
            await create(store, key(id))
            await add(store, key(id), expect=1)
        query = Query(app="shop", order="updated")
        met: list[str] = []
        cursor = None
        for _ in range(6):
            page = await store.heads(query, cursor=cursor, limit=1)
            met += [head.key.id for head in page.items]
            cursor = page.cursor
        assert cursor is None
        assert sorted(met) == list("abcdef")

    async def test_a_load_since_a_time_leaves_out_what_was_before(
        self, store: Store, clock: FakeClock
    ) -> None:
        """Events at exactly that time are included, older ones are not."""
        await create(store, A)
        for _ in range(4):
            clock.advance(SECOND)
            await add(store, A)
        since_us = clock.now_us - 1_000_000
        loaded = await store.load(A, tail=10, since_us=since_us)
        assert [event.seq for event in loaded.events] == [4, 5]
        loaded = await store.load(A, tail=1, since_us=since_us)
        assert [event.seq for event in loaded.events] == [5]

    async def test_pending_counts_from_the_first_input(
        self, store: Store, clock: FakeClock
    ) -> None:
        """A second input does not make the first one younger."""
        await create(store, A)
        first = (await add(store, A, draft("user.said"))).events[0].at_us
        clock.advance(HOUR)
        await add(store, A, draft("user.said"))
        assert (await load(store, A)).head.pending_us == first

    async def test_the_last_update_orders_sessions(self, store: Store, clock: FakeClock) -> None:
        """The session written last is the newest, in any order of creation."""
        for id in "abc":
            clock.advance(SECOND)
            await create(store, key(id))
        clock.advance(SECOND)
        await add(store, key("b"))
        page = await store.heads(Query(app="shop", order="updated"), cursor=None, limit=9)
        assert [head.key.id for head in page.items] == ["b", "c", "a"]

    @pytest.mark.parametrize("ends", ["delete", "erase", "delete, then erase", "erase, keep forks"])
    async def test_a_session_that_was_erased_may_have_changed_a_name_since(
        self, store: Store, clock: FakeClock, ends: str
    ) -> None:
        """An erased session takes the time of its last write with it; a tombstone keeps it."""
        await create(store, A)
        await create(store, B)
        await add(store, B, draft(set={"user:lang": "de"}))
        clock.advance(HOUR)
        at = (await add(store, A, draft())).head.version
        if ends == "erase, keep forks":
            await fork(store, C, B, 2)
        if ends.startswith("delete"):
            await store.delete(B)
        if "erase" in ends:
            await store.erase(B, forks="keep")
        await add(store, A, draft(set={"user:lang": "en"}))
        (since,) = (await store.names_since(A, at, ["user:lang"])).values()
        assert since.before is not None
        assert (since.before.value, since.version, since.others) == ("de", 2, "erase" in ends)
