"""Watching: every event of a store, an app or a session, from any position on, each once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

import limpet
from limpet import Draft, FeedEntry, Key, Limpet, Session
from limpet.errors import InvalidCursor, PositionUnknown, StoreClosed
from limpet.store.sqlite.reading import feed

SOON = 60.0  # seconds; what is awaited comes at once, or the test has failed
PAGE = 200  # changes that are read at a time


async def take(watching: AsyncIterator[FeedEntry], count: int) -> list[FeedEntry]:
    """The next `count` changes."""
    async with asyncio.timeout(SOON):
        return [await anext(watching) for _ in range(count)]


async def none_left(watching: AsyncIterator[FeedEntry], session: Session) -> None:
    """The next change is one that is made now."""
    event = await session.append("test.end", actor="x")
    (change,) = await take(watching, 1)
    assert (change.key, change.event) == (session.key, event)


def named(changes: Iterable[FeedEntry]) -> list[tuple[str, int]]:
    return [(change.key.id, change.event.seq) for change in changes]


async def fill(lp: Limpet) -> dict[Key, Session]:
    """Three sessions of two apps, written in turns, 20 events in all."""
    made = [await lp.create(app, "u", id=id, actor="x") for app, id in ("a1", "a2", "b3")]
    for number in range(5):
        for session in made:
            await session.append("x.y", {"n": number}, inc={"app:n": 1})
    await made[0].append_many([Draft(type="x.z")] * 2)
    return {session.key: session for session in made}


@pytest.fixture
async def two(url: str) -> AsyncIterator[tuple[Limpet, Limpet]]:
    """Two instances on one store."""
    if url.startswith("memory:"):
        pytest.skip("a memory store is of one instance")
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(limpet.open(url)) for _ in range(2)]
        yield opened[0], opened[1]


# --- what is there -------------------------------------------------------------------------------


async def test_the_whole_store_is_watched_in_the_order_of_its_commits(lp: Limpet) -> None:
    """From the first event, each as it is stored; one caller's order is the order of the feed."""
    sessions = await fill(lp)
    watching = lp.watch()
    changes = await take(watching, 20)
    assert named(changes)[:6] == [("1", 1), ("2", 1), ("3", 1), ("1", 2), ("2", 2), ("3", 2)]
    for key, session in sessions.items():
        mine = tuple(change.event for change in changes if change.key == key)
        assert mine == await session.read()
    assert len({change.position for change in changes}) == 20
    await none_left(watching, next(iter(sessions.values())))


async def test_an_app_and_a_session_are_watched_alone(lp: Limpet) -> None:
    """Nothing of others comes, and nothing of theirs is missing."""
    sessions = await fill(lp)
    one, two, three = sessions.values()
    for watching, owners, session in (
        (lp.watch(app="a"), (one, two), two),
        (lp.watch(app="b"), (three,), three),
        (lp.watch(key=two.key), (two,), two),
        (lp.watch(key=("a", "u", "1")), (one,), one),
    ):
        changes = await take(watching, sum(owner.version for owner in owners))
        for owner in owners:
            seqs = [change.event.seq for change in changes if change.key == owner.key]
            assert seqs == list(range(1, owner.version + 1))
        await three.append("x.y") if session is not three else await one.append("x.y")
        await none_left(watching, session)


async def test_what_comes_is_met(lp: Limpet) -> None:
    """A watcher that has seen everything waits, and a session not there yet may be watched."""
    watching = lp.watch(key=("a", "u", "later"))
    first = asyncio.ensure_future(anext(watching))
    session = await lp.create("a", "u", id="later", actor="x")
    assert named([await asyncio.wait_for(first, SOON)]) == [("later", 1)]
    await session.append_many([Draft(type="x.y")] * (PAGE + 5))
    seqs = [change.event.seq for change in await take(watching, PAGE + 5)]
    assert seqs == list(range(2, PAGE + 7))


# --- positions -----------------------------------------------------------------------------------


async def test_any_position_leads_on(lp: Limpet) -> None:
    """Begun again after any change: the rest, none missed and none twice."""
    sessions = await fill(lp)
    changes = await take(lp.watch(), 20)
    for place, change in enumerate(changes[:-1]):
        rest = await take(lp.watch(after=change.position), 19 - place)
        assert rest == changes[place + 1 :]
    end = lp.watch(after=changes[-1].position)
    await none_left(end, next(iter(sessions.values())))


async def test_a_watcher_that_stops_anywhere_misses_nothing(lp: Limpet) -> None:
    """Cut off and begun again after every few changes, while others write."""
    sessions = [await lp.create("a", "u", id=str(n), actor="x") for n in range(4)]

    async def write(session: Session) -> None:
        for number in range(50):
            await session.append("x.y", {"n": number})

    seen: list[FeedEntry] = []

    async def watch() -> None:
        while len(seen) < 204:
            after = seen[-1].position if seen else None
            async for change in lp.watch(after=after):
                seen.append(change)
                if len(seen) % 7 == 0 or len(seen) == 204:
                    break

    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        group.create_task(watch())
        for session in sessions:
            group.create_task(write(session))
    for session in sessions:
        mine = [change.event.seq for change in seen if change.key == session.key]
        assert mine == list(range(1, 52))


async def test_few_among_many_are_all_met(lp: Limpet, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far apart they lie: a quiet store is watched to its end."""
    monkeypatch.setattr(feed, "STRETCH", 7)
    rare = await lp.create("rare", "u", id="rare", actor="x")
    crowd = await lp.create("crowd", "u", id="crowd", actor="x")
    for _ in range(5):
        await crowd.append_many([Draft(type="x.y") for _ in range(20)])
        await rare.append("x.y")
    for seen in (lp.watch(app="rare"), lp.watch(key=rare.key)):
        assert [change.event.seq for change in await take(seen, 6)] == [1, 2, 3, 4, 5, 6]


async def test_watching_may_begin_from_now(lp: Limpet) -> None:
    """Of all, of an app and of one session: what was there does not come, what follows does."""
    one, _, three = (await fill(lp)).values()
    seen = lp.watch()
    await take(seen, 20)
    end = await lp.position()
    await none_left(lp.watch(app="b", after=end), three)
    await none_left(lp.watch(key=one.key, after=end), one)
    await take(seen, 2)
    await none_left(lp.watch(after=await lp.position()), three)


@pytest.mark.parametrize(
    "after", ["", "x", "-1", "1.2.3", "1.", ".1", "9" * 40, "1e3", "²", 5, b"1"], ids=repr
)
async def test_what_is_no_position_is_refused(lp: Limpet, s: Session, after: Any) -> None:
    """With InvalidCursor, and the store serves on."""
    with pytest.raises(InvalidCursor):
        await take(lp.watch(after=after), 1)
    assert named(await take(lp.watch(), 1)) == [("one", 1)]


async def test_a_position_that_was_never_handed_out_is_refused(lp: Limpet, s: Session) -> None:
    """One of another store, or of a time that was taken back: it would hide what comes now."""
    (change,) = await take(lp.watch(), 1)
    beyond = ".".join(["9" * 18] * (change.position.count(".") + 1))
    with pytest.raises(PositionUnknown) as info:
        await take(lp.watch(after=beyond), 1)
    assert info.value.position == beyond
    assert named(await take(lp.watch(), 1)) == [("one", 1)]


# --- others --------------------------------------------------------------------------------------


async def test_writers_of_two_instances_are_all_watched(two: tuple[Limpet, Limpet]) -> None:
    """Each event once, each session in its order, seen from both sides and again from halfway."""
    one, other = two
    keys = [(await one.create("a", "u", id=str(n))).key for n in range(3)]

    async def write(lp: Limpet, key: Key) -> None:
        session = lp.session(key, actor="x")
        for number in range(20):
            await session.append("x.y", {"n": number}, inc={"app:n": 1})

    watchers = [asyncio.create_task(take(lp.watch(), 123)) for lp in two]
    await asyncio.gather(*(write(lp, key) for lp in two for key in keys))
    first, second = await asyncio.gather(*watchers)
    assert first == second
    for key in keys:
        assert [c.event.seq for c in first if c.key == key] == list(range(1, 42))
    assert await take(other.watch(after=first[60].position), 62) == first[61:]


async def test_deletion_takes_a_session_out_of_the_feed(lp: Limpet) -> None:
    """A position within it leads on all the same: what is left comes once, in order."""
    one, two, three = (await fill(lp)).values()
    watching = lp.watch()
    before = await take(watching, 10)
    await lp.delete(one.key)
    await lp.erase(two.key)
    for place, change in enumerate(before):
        met = sum(each.key == three.key for each in before[: place + 1])
        again = lp.watch(after=change.position)
        rest = await take(again, 6 - met)
        assert named(rest) == [("3", seq) for seq in range(met + 1, 7)]
    assert named(await take(lp.watch(), 6)) == [("3", seq) for seq in range(1, 7)]
    await none_left(again, three)
    async with asyncio.timeout(SOON):  # one that was under way may have read ahead, and goes on
        last = [change async for change in until(watching, three.version)][-1]
    assert (last.key, last.event.seq) == (three.key, three.version)


async def until(watching: AsyncIterator[FeedEntry], seq: int) -> AsyncIterator[FeedEntry]:
    """Changes up to the first with this seq."""
    async for change in watching:
        yield change
        if change.event.seq == seq and change.key.id == "3":
            return


async def test_deleting_while_others_write_stops_no_watcher(two: tuple[Limpet, Limpet]) -> None:
    """Sessions come and go in one instance; the watcher of the other meets all that stay."""
    one, other = two
    kept = await one.create("a", "u", id="kept", actor="x")

    async def come_and_go() -> None:
        for number in range(10):
            brief = await one.create("a", "u", id=f"brief-{number}", actor="x")
            await kept.append("x.y")
            await brief.append("x.y")
            await (one.delete if number % 2 else one.erase)(brief.key)
            await kept.append("x.y")

    going = asyncio.create_task(come_and_go())
    seen: list[int] = []
    async with asyncio.timeout(SOON):
        async for change in other.watch(app="a"):
            if change.key == kept.key:
                seen.append(change.event.seq)
            if seen[-1:] == [21]:
                break
    await going
    assert seen == list(range(1, 22))


async def test_watching_ends_with_its_store(lp: Limpet, s: Session) -> None:
    """A watcher that waits is told when the store is closed."""
    watching = lp.watch()
    await take(watching, s.version)
    waiting = asyncio.ensure_future(anext(watching))
    for _ in range(50):
        await asyncio.sleep(0)
    await lp.close()
    with pytest.raises(StoreClosed):
        await asyncio.wait_for(waiting, SOON)


# --- PostgreSQL: numbers are taken before they are committed -------------------------------------


async def test_nothing_is_handed_out_past_an_open_transaction(postgres_store_url: str) -> None:
    """One that began earlier may still add before it: the feed ends there until it has ended."""
    async with limpet.open(postgres_store_url) as lp:
        session = await lp.create("a", "u", id="1", actor="x")
        (first,) = await take(lp.watch(), 1)
        store: Any = lp._journal.store
        late = await asyncpg.connect(postgres_store_url)
        try:
            transaction = late.transaction()
            await transaction.start()
            await late.fetchval("SELECT pg_current_xact_id()")
            await session.append("x.y")
            changes, end = await store.changes(first.position, app=None, key=None, limit=10)
            assert changes == ()
            assert named((await store.changes(end, app=None, key=None, limit=10))[0]) == []
            changes, _ = await store.changes(None, app=None, key=None, limit=10)
            assert named(changes) == [("1", 1)]
            await transaction.commit()
        finally:
            await late.close()
        for position in (first.position, end):
            assert named(await take(lp.watch(after=position), 1)) == [("1", 2)]


async def test_from_now_misses_nothing_of_an_open_transaction(postgres_store_url: str) -> None:
    """What is not handed out yet comes once it can be, beside all that is recorded later."""
    async with limpet.open(postgres_store_url) as lp:
        session = await lp.create("a", "u", id="1", actor="x")
        await take(lp.watch(), 1)
        late = await asyncpg.connect(postgres_store_url)
        try:
            transaction = late.transaction()
            await transaction.start()
            await late.fetchval("SELECT pg_current_xact_id()")
            await session.append("x.y")
            end = await lp.position()
            await session.append("x.y")
            await transaction.commit()
        finally:
            await late.close()
        watching = lp.watch(after=end)
        assert named(await take(watching, 2)) == [("1", 2), ("1", 3)]
        await none_left(watching, session)


async def test_an_event_numbered_early_and_committed_late_is_not_missed(
    postgres_store_url: str,
) -> None:
    """A watcher that reads on while it is open meets it afterwards, and everything once."""
    async with limpet.open(postgres_store_url) as lp:
        early = await lp.create("a", "u", id="early", actor="x")
        other = await lp.create("a", "u", id="other", actor="x")
        await early.append("x.y")
        watching = lp.watch()
        seen = await take(watching, 3)
        late = await asyncpg.connect(postgres_store_url)
        try:
            transaction = late.transaction()
            await transaction.start()
            columns = await late.fetchval(
                "SELECT string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position) "
                "FROM information_schema.columns WHERE table_schema = 'limpet' "
                "AND table_name = 'events' AND column_name NOT IN ('pos', 'xid', 'seq', 'id')"
            )
            await late.execute(
                f"INSERT INTO limpet.events (xid, pos, seq, id, {columns}) "
                f"SELECT limpet.stamp(pg_current_xact_id()), 1, 3, 'late', {columns} "
                "FROM limpet.events WHERE seq = 2"
            )
            waiting = asyncio.ensure_future(anext(watching))
            for _ in range(5):
                await other.append("x.y")
            assert not waiting.done()
            await transaction.commit()
        finally:
            await late.close()
        seen.append(await asyncio.wait_for(waiting, SOON))
        seen += await take(watching, 5)
        assert sorted(named(seen)) == [
            *(("early", seq) for seq in (1, 2, 3)),
            *(("other", seq) for seq in range(1, 7)),
        ]
        assert seen == await take(lp.watch(), 9)


async def test_a_watcher_far_behind_lets_others_run(lp: Limpet) -> None:
    """Between pages, though a store answers without a pause and all that is there is wanted."""
    session = await lp.create("a", "u", actor="x")
    await session.append_many([Draft(type="x.y")] * (5 * PAGE))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    watching = lp.watch()
    await take(watching, 1)
    before = turns
    await take(watching, 5 * PAGE)
    assert turns - before >= 5
    beside.cancel()
    await watching.aclose()
