"""What PostgreSQL sends of a page of large events: the server leaves off what does not fit."""

from __future__ import annotations

from random import Random
from typing import Any

import asyncpg

from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.store.postgres.sql import SQL
from limpet.store.postgres.store import PostgresStore
from limpet.testing.commits import ALL, add, draft
from limpet.testing.laws.reads.pages import LARGE, A, fill


async def test_the_server_sends_no_more_than_a_page(postgres_store_url: str) -> None:
    """Of a read either way, of inputs, the feed, a tail, and of what a verification reads."""
    store = await PostgresStore.open(postgres_store_url)
    try:
        await fill(store, compressible=False)
        await fill_names(store)
    finally:
        await store.close()
    conn = await asyncpg.connect(postgres_store_url)
    try:
        sid = await conn.fetchval("SELECT sid FROM limpet.sessions")
        key = (A.app, A.user, A.id)
        page = READ_PAGE_BYTES_MAX
        asked: list[tuple[Any, ...]] = [
            (SQL["read"], *key, 0, ALL, page, None, None),
            (SQL["read_reverse"], *key, ALL, ALL, page, None, None),
            (SQL["pending_inputs"], *key, ALL, page),
            (SQL["feed"], "0", 0, None, None, None, ALL, page),
            (SQL["verify_events"], sid, 0, ALL, page),
            (SQL["verify_scopes"], "", "", "", 0, ALL, page),
            (SQL["load"], *([part] for part in key), ALL, False, None, page, ALL, [""], [""], True),
        ]
        await conn.execute(
            "DELETE FROM limpet.snapshots; "
            "INSERT INTO limpet.snapshots SELECT sid, version, 0, '', 0 FROM limpet.sessions"
        )
        for sql, *args in asked:
            found = await conn.fetch(sql, *args)
            sizes = [len(row["body"] or b"") for row in found]
            assert sum(sizes) < READ_PAGE_BYTES_MAX + LARGE, sql
            assert sum(sizes) > READ_PAGE_BYTES_MAX // 2, sql
    finally:
        await conn.close()


async def fill_names(store: PostgresStore) -> None:
    """Shared names that are larger together than a page."""
    for n in range(5):
        text = Random(n).randbytes(LARGE // 2).hex()
        await add(store, A, draft(set={f"app:{n}": text}))
