"""Calls to PostgreSQL that are cancelled: their connection is as good as new for the next call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest

from limpet.errors import SessionNotFound, StoreFailed, StoreRefused
from limpet.model.keys import Key
from limpet.store.postgres.server.pool import CONNECTIONS_MIN, shares
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing import lane
from limpet.store.protocol import Committed
from limpet.testing.commits import add, create, draft, key, load, log
from tests.support.awaits import When, cancel_at, cancelled_at
from tests.support.examples import tries
from tests.support.postgres import waiting_backend

A = key("a")
AWAITS_MAX = 200
PATIENCE_SECONDS = 60.0
CALLS: dict[str, Callable[[PostgresStore, Key], Awaitable[Any]]] = {
    "read": lambda s, _: s.read(A, after=0, limit=9, reverse=False, types=("user.*",)),
    "read of nothing": lambda s, _: s.read(key("no"), after=0, limit=9, reverse=True, types=None),
    "load": lambda s, _: s.load(A, tail=9),
    "pending": lambda s, _: s.pending_inputs(A, limit=9),
    "changes": lambda s, _: s.changes(None, app=None, key=None, limit=9),
    "verify": lambda s, _: s.verify(A),
    "claim": lambda s, _: s.claim("w", limit=1, lease_seconds=60),
    "erase": lambda s, other: s.erase(other),
}
BUSY = (
    "SELECT pid, state, query FROM pg_stat_activity "
    "WHERE application_name = 'limpet' AND state <> 'idle' AND datname = current_database()"
)
# The driver sets jit aside while it asks for a type (that of an array, say), and then back.
SET = (
    "SELECT name, setting FROM pg_settings WHERE source = 'session' "
    "AND (name <> 'jit' OR setting <> reset_val) ORDER BY name"
)


@pytest.fixture
async def admin(postgres_store_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the store's, and a role whose default is not durable."""
    conn = await asyncpg.connect(postgres_store_url)
    role = await conn.fetchval("SELECT current_user")
    await conn.execute(f'ALTER ROLE "{role}" SET synchronous_commit = off')
    yield conn
    await conn.execute(f'ALTER ROLE "{role}" RESET synchronous_commit')
    await conn.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    """A store with one connection for reading and one for what may wait: no statement prepared."""
    assert shares(CONNECTIONS_MIN) == (1, 1)
    store = await PostgresStore.open(url, connections=CONNECTIONS_MIN)
    try:
        yield store
    finally:
        await store.close()


async def check_clean(store: PostgresStore, admin: asyncpg.Connection) -> None:
    """Both connections are outside of any transaction, have their settings, and serve."""
    end = time.monotonic() + PATIENCE_SECONDS
    while busy := await admin.fetch(BUSY):  # one whose client is gone may take a moment to notice
        assert time.monotonic() < end, busy
    for pool in (store._pools.reading, store._pools.waiting):
        assert [tuple(row) for row in await pool.fetch(SET)] == [("synchronous_commit", "on")]
    assert (await store.verify(None)).ok
    assert (await load(store, A)).events == await log(store, A)
    assert not await store.delete(key("never there"))


@pytest.mark.parametrize("when", ["waiting", "answered"])
@pytest.mark.parametrize("call", CALLS)
async def test_a_cancelled_call_leaves_its_connection_clean(
    postgres_store_url: str, admin: asyncpg.Connection, call: str, when: When
) -> None:
    """Cancelled at each await there is, the same connection serves whoever comes next.

    In the suite at every third of them, the first included.
    """
    stride = tries(3, 1)
    async with opened(postgres_store_url) as store:
        await create(store, A)
        await add(store, A, draft("user.said"))
    cancelled = True
    number = 1 - stride
    while cancelled:
        number += stride
        assert number < AWAITS_MAX, "the call never comes to its end"
        async with opened(postgres_store_url) as store:
            other = key(f"other {number}")
            await create(store, other)

            async def run(store: PostgresStore = store, other: Key = other) -> None:
                with suppress(SessionNotFound):
                    await CALLS[call](store, other)

            cancelled = await cancelled_at(number, when, run)
            await check_clean(store, admin)
    assert number > 1, "nothing was cancelled"


async def test_a_call_cancelled_while_the_server_works_leaves_its_connection_clean(
    postgres_store_url: str, admin: asyncpg.Connection
) -> None:
    """A read that waits for a locked table, inside a transaction or not, is cancelled there."""
    async with opened(postgres_store_url) as store:
        await create(store, A)
        for call in ("read", "load", "verify"):
            async with admin.transaction():
                await admin.execute("LOCK TABLE limpet.sessions IN ACCESS EXCLUSIVE MODE")
                task = asyncio.ensure_future(CALLS[call](store, A))
                await waiting_backend(admin)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await check_clean(store, admin)


async def test_a_call_that_fails_on_its_way_out_leaves_its_connection_clean(
    postgres_store_url: str, admin: asyncpg.Connection
) -> None:
    """An argument that the driver cannot encode is noticed after the statement was prepared."""
    async with opened(postgres_store_url) as store:
        await create(store, A)
        with pytest.raises(StoreRefused):
            await store._pools.run(lambda conn: conn.fetch("SELECT $1::bigint", 2**70))
        await check_clean(store, admin)


@pytest.mark.parametrize("when", ["waiting", "answered"])
async def test_a_lane_that_is_ended_leaves_no_transaction(
    postgres_store_url: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, when: When
) -> None:
    """Whoever cancels every task of the loop, at any await of a commit under locks, and goes on."""
    monkeypatch.setattr(lane, "LOCK_AFTER_TRIES", 0)
    async with opened(postgres_store_url) as store:
        await create(store, A)
    cancelled = True
    number = 0
    while cancelled:
        number += 1
        async with opened(postgres_store_url) as store:
            commit = asyncio.ensure_future(add(store, A))
            await asyncio.sleep(0)
            first = store._committer._tasks[0]
            cancelled = await cancel_at(number, when, first, commit)
            (answer,) = await asyncio.gather(commit, return_exceptions=True)
            assert isinstance(answer, (Committed, StoreFailed))
            await asyncio.gather(*(add(store, A) for _ in range(3)))
            await check_clean(store, admin)
    assert number > 5, "the commit was over too soon"
