"""Dates on PostgreSQL: the client plans by an estimate of the server's clock, the server checks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import msgspec
import pytest

from limpet.errors import InvalidInput, StoreBusy
from limpet.model.commit import Commit
from limpet.model.events import Origin
from limpet.store.memory import MemoryStore
from limpet.store.postgres.rows import SLOT_BITS
from limpet.store.postgres.store import PostgresStore
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.postgres.writing.lane import TRIES_MAX
from limpet.testing.clock import FakeClock
from limpet.testing.commits import add, create, creation, draft, key, load
from tests.support.postgres import without_clients

A, B = key("a"), key("b")
HOUR_US = 3_600_000_000
_NOW = (
    "CREATE OR REPLACE FUNCTION limpet.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS "
    "$$ SELECT {} $$"
)
_SHIFTED = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {}"


@pytest.fixture
async def store(postgres_store_url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(postgres_store_url)
    yield store
    await store.close()


async def server_us(admin: asyncpg.Connection) -> int:
    return int(await admin.fetchval("SELECT limpet.now_us()"))


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_servers_clock_that_was_set_dates_the_next_event(
    store: PostgresStore, admin: asyncpg.Connection, hours: int
) -> None:
    """The estimate of before is refused, corrected, and the job is planned again; once."""
    await create(store, A)
    await admin.execute(_NOW.format(_SHIFTED.format(hours * HOUR_US)))
    before_us = await server_us(admin)
    made = await create(store, B)
    assert before_us - 1_000_000 <= made.head.updated_us <= await server_us(admin) + 1_000_000
    made = await add(store, B)
    assert before_us - 1_000_000 <= made.head.updated_us <= await server_us(admin) + 1_000_000
    assert (await store.verify(None)).ok


async def test_time_never_runs_backwards_in_a_session(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """A session that is ahead of a clock that was set back goes on from its own time."""
    first = await create(store, A)
    await admin.execute(_NOW.format(_SHIFTED.format(-HOUR_US)))
    made = await add(store, A)
    assert made.head.updated_us == first.head.updated_us
    assert (await store.verify(None)).ok


async def test_a_clock_that_nobody_can_follow_ends_in_an_error(
    store: PostgresStore, admin: asyncpg.Connection
) -> None:
    """A server whose clock goes back ten seconds with every look: tried often, then told."""
    await create(store, A)
    await admin.execute("CREATE SEQUENCE limpet.looks")
    back = "(2000000000000000 - nextval('limpet.looks') * 10000000)::bigint"
    await admin.execute(_NOW.format(back))
    with pytest.raises(StoreBusy):
        await create(store, B)
    looks = await admin.fetchval("SELECT last_value FROM limpet.looks")
    assert looks <= 2 * TRIES_MAX
    await admin.execute(_NOW.format(_SHIFTED.format(0)))
    assert (await create(store, B)).head.version == 1


async def test_adopted_events_keep_times_that_are_ahead(store: PostgresStore) -> None:
    """They were dated by another store; what is recorded after them goes on from there."""
    there = MemoryStore(FakeClock(datetime(2096, 1, 1, tzinfo=UTC)).clock())
    await there.commit([creation(A)])
    (record,) = await there.records(A, after=0, limit=10)
    event = record.event
    (made,) = creation(A, id=event.id).drafts
    origin = Origin(event.seq, event.at_us, record.salt, event.link)
    made = msgspec.structs.replace(made, raw=record.raw, origin=origin)
    (done,) = await store.commit([Commit(A, (made,))])
    assert done.head.updated_us == event.at_us
    assert (await add(store, A)).head.updated_us == event.at_us
    assert (await store.verify(None)).ok


async def test_a_read_may_demand_a_commit(store: PostgresStore, admin: asyncpg.Connection) -> None:
    """It is refused, to be tried again, while the server does not see the transaction yet."""
    made = await create(store, A)
    repeated = await add(store, A, draft(id="x"))
    for token in (made.token, repeated.token, (await add(store, A, draft(id="x"))).token):
        assert int(token) > 0
        assert (await store.load(A, tail=0, at_least=token)).head.version == 2
    async with admin.transaction():
        unseen = await admin.fetchval("SELECT limpet.stamp(pg_current_xact_id())::text")
        with pytest.raises(StoreBusy) as refused:
            await store.load(A, tail=0, at_least=unseen)
        assert refused.value.retryable
    assert (await store.load(A, tail=0, at_least=unseen)).head.version == 2
    with pytest.raises(InvalidInput):
        await store.load(A, tail=0, at_least="yesterday")


async def test_a_token_of_before_a_move_is_not_waited_for(
    store: PostgresStore, admin: asyncpg.Connection, postgres_store_url: str
) -> None:
    """On another server numbers begin again: a commit of before was restored, or it is lost."""
    token = (await create(store, A)).token
    await admin.execute("UPDATE limpet.meta SET value = 'elsewhere' WHERE name = 'home'")
    moved = await PostgresStore.open(postgres_store_url)
    assert (await moved.load(A, tail=0, at_least=token)).head.version == 1
    later = (await add(moved, A)).token
    assert int(later) > int(token)
    assert (await moved.load(A, tail=0, at_least=later)).head.version == 2
    await moved.close()


async def updates(admin: asyncpg.Connection, url: str) -> tuple[int, int]:
    """How many updates of heads there were, and how many of them touched no index."""
    await without_clients(url)  # then all that they counted is there
    found = await admin.fetchrow(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
        "WHERE schemaname = 'limpet' AND relname = 'sessions'"
    )
    return found["n_tup_upd"], found["n_tup_hot_upd"]


async def test_lone_appends_within_a_slot_touch_no_index(
    store: PostgresStore, admin: asyncpg.Connection, postgres_store_url: str
) -> None:
    """Every one of them is a heap-only update of its head."""
    await store.close()
    before = await updates(admin, postgres_store_url)
    began = await server_us(admin) >> SLOT_BITS << SLOT_BITS
    await admin.execute(_NOW.format(began))  # time stands still, there and here
    store = await PostgresStore.open(postgres_store_url, clock=ServerClock(lambda: 0))
    await create(store, A)
    for _ in range(20):
        await add(store, A, draft("agent.said", inc={"n": 1}))
    head = (await load(store, A)).head
    assert head.updated_us == began
    await store.close()
    after = await updates(admin, postgres_store_url)
    assert (after[0] - before[0], after[1] - before[1]) == (21, 21)
