"""Reaching into a SQLite store, for tests that must do what no caller can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.store.sqlite.jobs import Job
from limpet.store.sqlite.store import SQLiteStore
from limpet.store.sqlite.transactions import WriteConnection


async def on_writer(store: SQLiteStore, work: Callable[[WriteConnection], Any]) -> Any:
    """Run something on the writer's thread, between two batches."""
    return await store._write().submit(Job((), work))
