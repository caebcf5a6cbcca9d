"""Reaching into a SQLite store, for tests that must do what no caller can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from limpet.store.jobs import WriterCall
from limpet.store.sqlite.store import SQLiteStore
from limpet.store.sqlite.write_connection import SQLiteWriteConnection


async def on_writer(store: SQLiteStore, work: Callable[[SQLiteWriteConnection], Any]) -> Any:
    """Run something on the writer's thread, between two batches."""
    return await store._write().jobs.submit(WriterCall(work))


async def as_one_batch(store: SQLiteStore, *asked: Awaitable[Any]) -> list[Any]:
    """What is asked for reaches the writer's thread before it begins with any of it.

    Handed over while it is free, it could begin with the first before the last is there. For what
    the loop does not commit by itself.
    """
    writer = store._write()
    jobs, before = writer.jobs, writer.jobs._handed
    with writer._hold:
        tasks = [asyncio.ensure_future(each) for each in asked]
        while jobs._handed < before + len(tasks):  # noqa: ASYNC110 - a turn
            await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)
