"""PostgreSQL at its limits: locks held by others, a crowd on the pool, a clock that goes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from limpet.errors import StoreBusy
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.store.postgres.server import pool, settings
from limpet.store.postgres.sql import SQL
from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Committed
from limpet.testing.commits import add, create, draft, key, load, log
from tests.support.postgres import waiting_backend

READERS, _ = pool.shares(pool.CONNECTIONS)
A, B = key("a"), key("b")


@pytest.fixture
async def store(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PostgresStore]:
    """A store that waits for locks half a second only."""
    monkeypatch.setattr(settings, "LANE_LOCK_SECONDS_MAX", 0.5)
    store = await PostgresStore.open(postgres_store_url)
    yield store
    await store.close()


@asynccontextmanager
async def held(conn: asyncpg.Connection, sql: str) -> AsyncIterator[None]:
    """Somebody else's transaction, open for the length of the block."""
    async with conn.transaction():
        await conn.execute(sql)
        yield


async def test_a_session_locked_by_another_transaction_is_told(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """StoreBusy, nothing written; once the lock is gone the same store writes on."""
    await create(store, A)
    async with held(admin, "SELECT FROM limpet.sessions FOR UPDATE"):
        with pytest.raises(StoreBusy):
            await add(store, A, draft(id="x"))
        assert (await load(store, A)).head.version == 1
    made = await add(store, A, draft(id="x"))
    assert made.head.version == 2
    assert len(await log(store, A)) == 2


async def test_a_locked_session_does_not_fail_its_neighbours(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """Sent together with commits to a locked session, commits to others are recorded."""
    await create(store, A)
    others = [key(f"s{n}") for n in range(5)]
    for other in others:
        await create(store, other)
    async with held(admin, "SELECT FROM limpet.sessions WHERE id = 'a' FOR UPDATE"):
        answers = await asyncio.gather(
            *(add(store, of) for of in (A, *others)), return_exceptions=True
        )
        assert type(answers[0]) is StoreBusy
        assert [type(answer) for answer in answers[1:]] == [Committed] * 5
    assert (await add(store, A)).head.version == 2


async def test_a_long_wait_for_a_lock_ends_well(
    postgres_store_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that goes in time delays the commit and nothing else."""
    monkeypatch.setattr(settings, "LANE_LOCK_SECONDS_MAX", 25.0)
    store = await PostgresStore.open(postgres_store_url)
    await create(store, A)
    async with held(admin, "SELECT FROM limpet.sessions FOR UPDATE"):
        task = asyncio.create_task(add(store, A))
        await waiting_backend(admin)
    assert (await task).head.version == 2
    await store.close()


async def test_a_locked_table_is_told_to_readers(
    postgres_store_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody rebuilds a table: reading says StoreBusy, and works afterwards."""
    monkeypatch.setattr(settings, "LOCK_SECONDS_MAX", 0.5)
    store = await PostgresStore.open(postgres_store_url)
    try:
        await create(store, A)
        async with held(admin, "LOCK TABLE limpet.sessions IN ACCESS EXCLUSIVE MODE"):
            with pytest.raises(StoreBusy):
                await load(store, A)
        assert (await load(store, A)).head.version == 1
    finally:
        await store.close()


async def test_a_crowd_of_readers_is_served_and_writers_too(store: PostgresStore) -> None:
    """Hundreds of reads at once, far more than the pool has connections, and commits among them."""
    await create(store, A)
    reads = [load(store, A) for _ in range(40 * READERS)]
    writes = [add(store, A, draft(inc={"n": 1})) for _ in range(40)]
    answers = await asyncio.gather(*reads, *writes)
    assert len(answers) == len(reads) + len(writes)
    assert (await load(store, A)).fields == {"n": 40}


async def test_readers_that_hang_do_not_stop_writers(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """Every connection for reading waits for a locked table; a commit is recorded meanwhile."""
    await create(store, A)
    async with held(admin, "LOCK TABLE limpet.snapshots IN ACCESS EXCLUSIVE MODE"):
        reads = [asyncio.create_task(load(store, A)) for _ in range(2 * READERS)]
        await waiting_backend(admin)
        made = await add(store, A)
        assert made.head.version == 2
        assert not any(read.done() for read in reads[:1])
    for answer in await asyncio.gather(*reads, return_exceptions=True):
        assert not isinstance(answer, Exception) or type(answer) is StoreBusy
    assert (await load(store, A)).head.version == 2


async def test_deletions_that_wait_do_not_stop_readers(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """More of them than there are connections for reading wait for a row; others read meanwhile."""
    await create(store, A)
    await create(store, B)
    async with held(admin, "SELECT FROM limpet.sessions WHERE id = 'a' FOR UPDATE"):
        waiting = [asyncio.create_task(store.delete(A)) for _ in range(2 * READERS)]
        await waiting_backend(admin)
        for _ in range(3 * READERS):
            assert (await load(store, B)).head.version == 1
        assert not any(task.done() for task in waiting)
    assert sorted(await asyncio.gather(*waiting))[-2:] == [False, True]


async def test_a_lock_lasts_from_when_it_is_had(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """Not from when its holder began to wait for the row."""
    await create(store, A)
    async with held(admin, "SELECT FROM limpet.sessions FOR UPDATE"):
        waiting = asyncio.create_task(store.acquire(A, "ada", 30.0))
        await waiting_backend(admin)
        await admin.execute("SELECT pg_sleep(0.2)")
        now_us = await admin.fetchval("SELECT limpet.now_us()")
    assert (await waiting).until_us >= now_us + 30_000_000


async def test_time_never_goes_back_within_a_session(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """The server's clock is set back an hour: `at` stands still until it has caught up."""
    await create(store, A)
    before = (await add(store, A)).events[0].at_us
    await admin.execute(
        "CREATE OR REPLACE FUNCTION limpet.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS "
        "$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 3600000000 $$"
    )
    made = await add(store, A, draft(), draft())
    assert [event.at_us for event in made.events] == [before, before]
    assert made.head.updated_us == before
    assert (await create(store, B)).events[0].at_us < before
    assert [event.seq for event in await log(store, A)] == [1, 2, 3, 4]
    assert (await store.verify(None)).findings == ()


async def test_the_history_of_a_name_does_not_slow_its_readers(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """A thousand versions of an app: name, and no statistics: loading reads a handful of rows."""
    await admin.execute("ALTER TABLE limpet.scopes SET (autovacuum_enabled = off)")
    await create(store, A, {"app:n": 0, "app:m": 0})
    await asyncio.gather(*(add(store, A, draft(inc={"app:n": 1})) for _ in range(1_000)))
    explain = "EXPLAIN (ANALYZE, FORMAT JSON) SELECT * FROM limpet.scopes_of('shop', '')"
    plan = json.loads(await admin.fetchval(explain))[0]["Plan"]
    assert (await load(store, A)).scopes["app:n"].value == 1_000
    assert most_rows(plan) < 100


@pytest.mark.parametrize("statistics", [False, True])
async def test_a_long_log_does_not_slow_the_look_for_what_is_pending(
    store: PostgresStore, admin: asyncpg.Connection, statistics: bool
) -> None:
    """Four thousand inputs dealt with, whatever the planner knows: a few rows are read for two."""
    await admin.execute("ALTER TABLE limpet.events SET (autovacuum_enabled = off)")
    await create(store, A)
    await add(store, A, *(draft("user.said") for _ in range(4_000)))
    await add(store, A, draft("session.processed", {"seqs": list(range(2, 4_002))}))
    await add(store, A, draft("user.said"), draft(), draft("user.said"))
    if statistics:
        await admin.execute("ANALYZE limpet.events")
    statement = await admin.prepare("EXPLAIN (ANALYZE, FORMAT JSON) " + SQL["pending_inputs"])
    plan = json.loads(await statement.fetchval("shop", "ada", "a", 100, READ_PAGE_BYTES_MAX))[0][
        "Plan"
    ]
    found = await store.pending_inputs(A, limit=100)
    assert [event.seq for event in found] == [4_003, 4_005]
    assert most_rows(plan) < 100


def most_rows(plan: dict[str, Any]) -> float:
    """The most rows that any step of a plan has looked at, over all its rounds."""
    below = [most_rows(each) for each in plan.get("Plans", ())]
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return max([rows * plan["Actual Loops"], *below])
