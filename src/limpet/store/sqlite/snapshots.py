"""Snapshots: folds written beside the log, so that a session is loaded without its whole log.

One is due when the log since the last has grown as large as the snapshot. It is written from the
writer's cache, inside a transaction. Older ones are kept, a ladder by which any version is near, as
far as they take less than an eighth of the log: where a state grows like its log, reading that is
as quick. Losing one costs time and never data.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from limpet.model import SNAPSHOT_FLOOR_BYTES, SNAPSHOT_SHARE, Key
from limpet.store.cache import Live
from limpet.store.coding import Unready, bodies
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.transactions import SQLiteWriteConnection

SNAPSHOTS_PER_BATCH: Final = 4
CLOSE_SNAPSHOT_BYTES_MIN: Final = 8 * 2**10


class SQLiteSnapshots:
    """The sessions whose snapshots are due."""

    def __init__(self, writes: SQLiteWriteConnection) -> None:
        self._writes = writes
        self._due: dict[Key, Live] = {}

    @property
    def due(self) -> bool:
        return bool(self._due)

    def note(self, touched: Iterable[tuple[Key, Live]]) -> None:
        """Sessions that a batch wrote to."""
        for key, live in touched:
            if live.delta_bytes >= SNAPSHOT_FLOOR_BYTES and live.delta_bytes >= live.snapshot_bytes:
                self._due[key] = live

    def note_all(self) -> None:
        """Before a clean end: every session in memory that the next process would load slowly. If
        each of many short processes wrote a large state again, the file would be full of it."""
        for key, live in self._writes.cache.sessions():
            if live.delta_bytes >= max(CLOSE_SNAPSHOT_BYTES_MIN, live.snapshot_bytes // 2):
                self._due[key] = live

    def forget(self) -> None:
        self._due.clear()

    def write(self, most: int = SNAPSHOTS_PER_BATCH) -> None:
        """Inside a transaction, from the cache's folds, as far as they are still the newest."""
        cache = self._writes.cache
        for key in list(self._due)[:most]:
            live = self._due.pop(key)
            current = cache.peek(key) is live and live.era == cache.era
            if current and not live.damaged:  # a snapshot must not hide that the log is damaged
                with suppress(RecursionError, ValueError, TypeError, Unready):  # it costs time
                    self._write(live)

    def _write(self, live: Live) -> None:
        seq, packed, size = bodies.packed_snapshot(live.fold, self._writes.codec)
        # First: the new one takes the pages of the one that goes.
        self._writes.conn.execute(SQL["thin_snapshots"], (live.sid, seq, SNAPSHOT_SHARE))
        self._writes.conn.execute(SQL["keep_snapshot"], (live.sid, seq, *packed))
        live.snapshot_bytes, live.delta_bytes = size, 0
