"""What PostgreSQL reads does not grow with a table whose statistics say that it is small."""

from __future__ import annotations

import asyncpg

from limpet.store.postgres.store import PostgresStore
from limpet.testing.commits import add, create, draft, key
from tests.support.postgres import without_clients

A = key("a")
ROUNDS = 5
READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'events_by_id'"


async def test_a_plan_made_while_the_log_was_small_serves_a_long_one(
    postgres_store_url: str, admin: asyncpg.Connection
) -> None:
    """Analysed with one event in it, the table looks cheap to compare with every chosen id."""
    store = await PostgresStore.open(postgres_store_url)
    await create(store, A)
    await store.close()
    await admin.execute("ANALYZE limpet.events, limpet.sessions")
    await without_clients(postgres_store_url)  # a backend tells its figures when it ends
    before = await admin.fetchval(READ)
    store = await PostgresStore.open(postgres_store_url)
    for made in range(ROUNDS):
        await add(store, A, *[draft(id=f"e{made}-{n}") for n in range(100)])
    await store.close()
    await without_clients(postgres_store_url)
    assert await admin.fetchval(READ) == before  # all of the ids are new
