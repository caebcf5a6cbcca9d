"""Many stores on one PostgreSQL database: nothing is lost, nobody fails, nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

import limpet
from limpet.errors import (
    LimpetError,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionExists,
    StoreFailed,
)
from limpet.model import Commit
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing.batch import CommitReply, PostgresBatch
from limpet.store.postgres.writing.jobs import PostgresJob
from limpet.store.postgres.writing.lane import LOCK_AFTER_TRIES, Flight
from limpet.store.protocol import Committed, Place
from limpet.testing.commits import add, addition, create, creation, draft, key, load, log
from tests.support.postgres import waiting_backend
from tests.support.seal import KeylessSeal

A = key("a")
Open = Callable[[int], Awaitable[list[PostgresStore]]]


@pytest.fixture
async def open_stores(postgres_store_url: str) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def open(count: int) -> list[PostgresStore]:
            stores = [await PostgresStore.open(postgres_store_url) for _ in range(count)]
            for store in stores:
                stack.push_async_callback(store.close)
            return stores

        yield open


async def test_racing_retries_of_one_draft_are_one_record(open_stores: Open) -> None:
    """Two stores send the same draft at once, forty times: both get the same event."""
    one, two = await open_stores(2)
    await create(one, A)
    for n in range(40):
        same = draft(id=f"d{n}", inc={"n": 1})
        first, second = await asyncio.gather(add(one, A, same), add(two, A, same))
        assert first.events == second.events
    assert (await load(one, A)).fields == {"n": 40}
    assert len(await log(two, A)) == 41


async def test_racing_retries_of_one_creation_are_one_session(open_stores: Open) -> None:
    """A creation sent twice under one id succeeds twice and happens once; another is refused."""
    one, two = await open_stores(2)
    for n in range(20):
        of = key(f"s{n}")
        same = [creation(of, {"n": n}, id=f"c{n}")]
        answers = await asyncio.gather(one.commit(same), two.commit(same))
        assert answers[0][0].events == answers[1][0].events
        with pytest.raises(SessionExists):
            await create(two, of)


async def test_ten_stores_write_one_session(open_stores: Open) -> None:
    """Appends of all of them are recorded, each once, and answered with their own state."""
    stores = await open_stores(10)
    await create(stores[0], A)
    answers = await asyncio.gather(
        *(add(store, A, draft(inc={"n": 1})) for _ in range(10) for store in stores)
    )
    assert sorted(answer.fields["n"] for answer in answers) == list(range(1, 101))
    assert sorted(answer.head.version for answer in answers) == list(range(2, 102))
    assert (await stores[0].verify(None)).findings == ()


async def test_of_strict_writers_of_two_stores_one_wins(open_stores: Open) -> None:
    """Twenty rounds: of ten commits that expect one version exactly one is recorded."""
    stores = await open_stores(2)
    await create(stores[0], A)
    for version in range(1, 21):
        answers = await asyncio.gather(
            *(add(stores[n % 2], A, expect=version) for n in range(10)), return_exceptions=True
        )
        assert sum(isinstance(answer, Committed) for answer in answers) == 1
        assert sum(type(answer) is SessionConflict for answer in answers) == 9


async def test_ten_stores_count_one_app_key(open_stores: Open) -> None:
    """Each writes sessions of its own, all one app: name: no update is lost, nobody fails."""
    stores = await open_stores(10)
    keys = [key(f"s{n}") for n in range(10)]
    for store, of in zip(stores, keys, strict=True):
        await create(store, of)
    answers = await asyncio.gather(
        *(
            add(store, of, draft(inc={"app:n": 1}))
            for _ in range(20)
            for store, of in zip(stores, keys, strict=True)
        )
    )
    assert sorted(answer.scopes["app:n"].value for answer in answers) == list(range(1, 201))
    assert (await load(stores[3], keys[3])).scopes["app:n"].value == 200
    assert (await stores[0].verify(None)).findings == ()


async def test_updates_of_two_instances_all_count(postgres_store_url: str) -> None:
    """Read, compute, write, from both sides at once: no update is lost."""
    async with limpet.open(postgres_store_url) as one, limpet.open(postgres_store_url) as two:
        await one.create("shop", "ada", id="a", state={"n": 0, "app:left": 60})
        handles = [lp.session(("shop", "ada", "a"), actor="x") for lp in (one, two)]

        async def take(session: limpet.Session) -> None:
            await session.refresh()
            for _ in range(15):
                await session.update(
                    lambda state: {"n": state["n"] + 1, "app:left": state["app:left"] - 2}
                )

        await asyncio.gather(*map(take, handles))
        state = (await one.get(("shop", "ada", "a"))).state
        assert (state["n"], state["app:left"]) == (30, 0)


async def test_sessions_crossed_by_many_stores_do_not_deadlock(open_stores: Open) -> None:
    """Commits over the same sessions in opposite orders, some of them new: all succeed."""
    stores = await open_stores(4)
    old = [key(f"old{n}") for n in range(3)]
    for of in old:
        await create(stores[0], of)

    async def cross(n: int) -> None:
        store, order = stores[n % 4], old if n % 2 else old[::-1]
        parts = [addition(of, draft(inc={"app:n": 1})) for of in order]
        parts.insert(n % 3, creation(key(f"new{n}")))
        await store.commit(parts)

    await asyncio.gather(*(cross(n) for n in range(40)))
    assert (await load(stores[0], old[0])).head.version == 41
    assert (await load(stores[1], old[1])).scopes["app:n"].value == 120


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 50])
async def test_cancelled_callers_harm_nobody(open_stores: Open, turns: int) -> None:
    """Half of the callers give up: what they asked for is whole or not there; others succeed."""
    one, two = await open_stores(2)
    await create(one, A)
    tasks = [
        asyncio.create_task(add((one, two)[n % 2], A, draft(id=f"a{n}"), draft(id=f"b{n}")))
        for n in range(20)
    ]
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    recorded = {event.id for event in await log(one, A)}
    for n, answer in enumerate(answers):
        assert (f"a{n}" in recorded) == (f"b{n}" in recorded)
        assert isinstance(answer, Committed) or n % 3 == 0
        assert not isinstance(answer, Committed) or f"a{n}" in recorded
    assert (await one.verify(None)).findings == ()


async def test_the_feed_keeps_a_session_in_order_over_a_long_wait(
    open_stores: Open, postgres_store_url: str
) -> None:
    """A job that waits under its locks is passed by a younger one, and is written after it."""
    one, two = await open_stores(2)
    keys = [key("a"), key("b"), key("c")]
    for of in keys:
        await create(one, of)
    await load(two, keys[2])
    foreign = await asyncpg.connect(postgres_store_url)
    held = foreign.transaction()
    await held.start()
    await foreign.execute("SELECT 1 FROM limpet.sessions WHERE id = 'b' FOR UPDATE")
    job = PostgresJob([addition(of, draft(type="slow.write")) for of in keys])
    job.tries = LOCK_AFTER_TRIES  # it was overtaken before: it takes its locks first
    serving = asyncio.create_task(one._committer._lanes[0].serve(Flight([job])))
    await waiting_backend(foreign)
    await add(two, keys[2], draft(type="quick.write"))
    await held.rollback()
    await foreign.close()
    await serving
    changes, _ = await two.changes(None, app=None, key=None, limit=100)
    told = [(change.event.seq, change.event.type) for change in changes if change.key == keys[2]]
    assert told == [(1, "session.created"), (2, "quick.write"), (3, "slow.write")]


async def test_one_id_may_stand_in_two_sessions_of_one_commit(open_stores: Open) -> None:
    """Each event is chained on with its own header, whatever else the commit holds."""
    (one,) = await open_stores(1)
    keys = [key("a"), key("b")]
    for of in keys:
        await create(one, of)
    types = ("left.said", "right.said")
    commits = [addition(of, draft(type, id="same")) for of, type in zip(keys, types, strict=True)]
    answers = await one.commit(commits)
    assert [answer.events[0].type for answer in answers] == list(types)
    await add(one, keys[0], draft("left.again", id="twice"), draft("right.again", id="twice"))
    assert (await one.verify(None)).findings == ()


async def test_an_erased_key_is_not_made_again_by_a_creation_on_its_way(
    open_stores: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look and its call another process creates and erases: it is told so."""
    one, two = await open_stores(2)
    send = PostgresBatch.send

    async def slow(self: PostgresBatch, conn: object) -> CommitReply:
        monkeypatch.setattr(PostgresBatch, "send", send)
        await create(two, A)
        assert await two.erase(A) is not None
        return await send(self, conn)

    monkeypatch.setattr(PostgresBatch, "send", slow)
    with pytest.raises(SessionErased):
        await create(one, A)
    assert await one.erase(A) is not None


@pytest.mark.parametrize("way", ["read", "read_ids", "blob"])
async def test_a_session_that_comes_during_a_read_is_read(
    open_stores: Open, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A read finds none; before it asks what became of the session, another process creates it."""
    one, two = await open_stores(2)
    absent = PostgresReader.absent

    async def slow(self: PostgresReader, conn: Connection, key: limpet.Key) -> LimpetError:
        monkeypatch.setattr(PostgresReader, "absent", absent)
        await create(two, A)
        return await absent(self, conn, key)

    monkeypatch.setattr(PostgresReader, "absent", slow)
    if way == "read":
        page = await one.read(A, after=0, limit=5, reverse=False, types=None)
        assert [event.type for event in page] == ["session.created"]
    elif way == "read_ids":
        assert await one.read_ids(A, ["unheard of"]) == ()
    else:
        assert await one.blobs.find(A, "0" * 64) is None


async def test_a_lost_answer_is_waited_for_like_the_first(open_stores: Open) -> None:
    """What is found recorded is locked once more: that waits for whatever a commit waits for."""
    (one,) = await open_stores(1)
    await create(one, A)
    job = PostgresJob([addition(A, draft(id="x"))])
    await add(one, A, draft(id="x"))
    job.resend()
    lane = one._committer._lanes[0]
    locked: list[list[PostgresJob]] = []
    lock_rows = lane._lock_rows

    async def noted(conn: object, jobs: list[PostgresJob]) -> str:
        locked.append(jobs)
        return await lock_rows(conn, jobs)

    lane._lock_rows = noted  # type: ignore[method-assign]
    await lane.serve(Flight([job]))
    assert (await job.answer)[0].events[0].seq == 2
    assert locked == [[job]]


async def test_a_snapshot_of_a_deleted_session_is_not_kept(
    open_stores: Open, postgres_store_url: str
) -> None:
    """Whichever comes first, the deletion wins."""
    (one,) = await open_stores(1)
    await create(one, A)
    sid = (await one._reader.load(one._pools.reading, A)).live.sid
    foreign = await asyncpg.connect(postgres_store_url)
    bury = foreign.transaction()
    await bury.start()
    await foreign.fetchval(SQL["unmake"], *("shop", "ada", "a"))
    put = asyncio.create_task(
        one._pools.reading.execute(SQL["put_snapshot"], sid, 1, 0, b"state", 0)
    )
    await waiting_backend(foreign)
    await bury.commit()
    await put
    assert await foreign.fetchval("SELECT count(*) FROM limpet.snapshots") == 0
    await foreign.close()


async def test_a_seal_that_fails_for_one_fails_only_that_one(postgres_store_url: str) -> None:
    """Its neighbours in the batch are recorded, and so is whatever comes after."""

    class Moody(KeylessSeal):
        def seal(self, plain: bytes, place: Place) -> bytes:
            if b"bad" in plain:
                raise RuntimeError("no key for this tenant")
            return plain

    store = await PostgresStore.open(postgres_store_url, seal=Moody())
    keys = [key("a"), key("b"), key("c")]
    for of in keys:
        await create(store, of)
    answers = await asyncio.gather(
        add(store, keys[0], draft(set={"x": "good"})),
        add(store, keys[1], draft(set={"x": "bad"})),
        add(store, keys[2], draft(set={"x": "good"})),
        return_exceptions=True,
    )
    assert [isinstance(answer, StoreFailed) for answer in answers] == [False, True, False]
    await add(store, keys[1], draft(set={"x": "good"}))
    await store.close()


async def test_a_caller_cancelled_as_its_answer_comes_does_not_hang() -> None:
    """The outcome is known before the caller wakes: there is nothing left to wait for."""
    job = PostgresJob([])
    job.succeed(())
    await asyncio.wait_for(job.known(), 60)


async def test_thousands_of_shared_names_leave_room_in_the_lock_table(open_stores: Open) -> None:
    """However many names a commit touches, others still find locks."""
    one, two = await open_stores(2)
    await create(one, A)
    await create(two, key("b"))
    names = {f"app:n{n}": n for n in range(900)}  # of ten apps, each with room for so many
    many, few = await asyncio.gather(
        one.commit([creation(key("c", app=f"app{n}"), names) for n in range(10)]),
        add(two, key("b"), draft()),
    )
    assert [len(made.scopes) for made in many] == [900] * 10
    assert few.head.version == 2


async def test_a_repeat_holds_only_with_what_it_repeats(open_stores: Open) -> None:
    """It is of a batch in which another job records the draft first, and is refused: nothing of a
    commit is recorded before all of it."""
    one, other = await open_stores(2)
    for of in (A, key("b")):
        await create(one, of)
    await add(other, A)  # what is planned on A does not hold
    same = draft(id="d")
    first, (second, beside) = await asyncio.gather(
        add(one, A, same), one.commit([addition(A, same), addition(key("b"))])
    )
    assert (first.events[0].seq, second.events[0].seq, second.repeated) == (3, 3, 1)
    assert beside.head.version == 2
    assert beside.token == second.token == first.token
    assert len(await log(one, key("b"))) == 2


async def test_a_look_at_a_session_of_the_batch_holds_only_with_its_creation(
    open_stores: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else was faster to create it: what was to be recorded beside it is not."""
    one, other = await open_stores(2)
    await create(one, A)
    made, send = key("made"), PostgresBatch.send

    async def late(batch: PostgresBatch, conn: Connection) -> CommitReply:
        monkeypatch.setattr(PostgresBatch, "send", send)
        await create(other, made)
        return await send(batch, conn)

    monkeypatch.setattr(PostgresBatch, "send", late)
    answers = await asyncio.gather(
        one.commit([creation(made, id="mine")]),
        one.commit([Commit(made, (), uid="mine"), addition(A)]),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [SessionExists, SessionDeleted]
    assert len(await log(one, A)) == 1


async def test_a_created_session_is_not_shown_names_that_were_not_recorded(
    open_stores: Open,
) -> None:
    """The job before it in its batch writes one, and is refused."""
    one, other = await open_stores(2)
    await create(one, A)
    await add(other, A)
    written, (made,) = await asyncio.gather(
        add(one, A, draft(set={"app:x": 1}), expect=1),
        one.commit([creation(key("made"))]),
        return_exceptions=True,
    )
    assert isinstance(written, SessionConflict)
    assert made.scopes == (await load(one, key("made"))).scopes == {}
