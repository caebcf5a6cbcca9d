"""Marks in the database: one row each, written by the writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.model.limits import MARKS_SWEPT
from limpet.store.marks import Mark, added
from limpet.store.sqlite.blobs import RunRead, RunWrite
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import SQLiteWriteConnection


class SQLiteMarks:
    def __init__(
        self, reader: SQLiteReader, clock: Callable[[], int], read: RunRead, write: RunWrite
    ) -> None:
        self._reader, self._clock, self._read, self._write = reader, clock, read, write

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        def run(writes: SQLiteWriteConnection) -> bool:
            with writes.transaction():
                now_us = self._begin(writes)
                found = writes.conn.execute(SQL["mark"], (space, name, now_us)).fetchone()
                if until_us <= now_us or found is not None:
                    return False
                writes.conn.execute(SQL["put_mark"], (space, name, until_us, value))
                return True

        return await self._write(run)

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        def run(writes: SQLiteWriteConnection) -> None:
            with writes.transaction():
                self._begin(writes)
                writes.conn.execute(SQL["put_mark"], (space, name, until_us, value))

        await self._write(run)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        def run(writes: SQLiteWriteConnection) -> int:
            with writes.transaction():
                asked = (space, name, self._begin(writes))
                found: Any = writes.conn.execute(SQL["mark"], asked).fetchone()
                value, until = (0, until_us) if found is None else found
                value = added(value, by)
                writes.conn.execute(SQL["put_mark"], (space, name, until, value))
                return int(value)

        return await self._write(run)

    async def get(self, space: str, name: str) -> Mark | None:
        asked = (space, name, self._clock())
        found: Any = self._read(lambda: self._reader.conn.execute(SQL["mark"], asked).fetchone())
        return None if found is None else Mark(space, name, *found)

    async def sweep(self, limit: int) -> int:
        def run(writes: SQLiteWriteConnection) -> int:
            with writes.transaction():
                writes.conn.execute(SQL["sweep_marks"], (self._clock(), limit))
                return writes.conn.changes()

        return await self._write(run)

    def _begin(self, writes: SQLiteWriteConnection) -> int:
        """The time by the store's clock, read under the write lock; and some ended marks go."""
        now_us = self._clock()
        writes.conn.execute(SQL["sweep_marks"], (now_us, MARKS_SWEPT))
        return now_us
