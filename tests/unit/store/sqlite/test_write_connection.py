"""Transactions: what is remembered between them holds until somebody else has committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from limpet.store.sqlite.file.connect import close
from limpet.store.sqlite.store import SQLiteStore
from limpet.store.sqlite.write_connection import SQLiteWriteConnection
from limpet.testing.commits import add, create, key, load

A = key("a")


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[SQLiteStore, SQLiteStore]]:
    """Two stores on one file, as two processes have it. The first has a session."""
    one = await SQLiteStore.open(tmp_path / "a.db")
    two = await SQLiteStore.open(tmp_path / "a.db")
    await create(one, A)
    yield one, two
    await one.close()
    await two.close()


def cache(store: SQLiteStore) -> Any:
    writer: Any = store._writer
    return writer.cache


def positions(store: SQLiteStore) -> list[int]:
    return [pos for (pos,) in store._reader.conn.execute("SELECT pos FROM events ORDER BY pos")]


async def test_only_commits_of_others_bring_memory_into_doubt(
    stores: tuple[SQLiteStore, SQLiteStore],
) -> None:
    """Ours are counted by the database too, and are known to be ours."""
    one, two = stores
    await add(one, A)
    era = cache(one).era
    for _ in range(3):
        await add(one, A)
    assert cache(one).era == era
    await add(two, A)
    assert (await add(one, A)).head.version == 7
    assert cache(one).era == era + 1
    await add(one, A)
    assert cache(one).era == era + 1


async def test_positions_go_on_after_those_of_others(
    stores: tuple[SQLiteStore, SQLiteStore],
) -> None:
    """The last one is remembered, as long as nobody else has been given one."""
    one, two = stores
    for store in (one, one, two, two, one, two, one, one):
        await add(store, A)
    assert positions(one) == list(range(1, 10))
    assert (await load(two, A)).head.version == 9


async def test_a_connection_that_is_replaced_doubts_what_the_last_one_remembered(
    stores: tuple[SQLiteStore, SQLiteStore],
) -> None:
    """Each counts commits for itself: the same number says nothing."""
    one, two = stores
    await add(one, A)
    era = cache(one).era

    def replace(writes: SQLiteWriteConnection) -> None:
        close(writes.conn)
        writes.open()

    await one._run(replace)
    assert cache(one).era > era
    await add(two, A)
    assert (await add(one, A)).head.version == 4
