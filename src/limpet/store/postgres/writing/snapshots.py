"""Snapshots: folds written beside the log, so that a session is loaded without its whole log.

One is due when the log since the last has grown as large as the snapshot. Older ones are kept, a
ladder by which any version is near, as far as they take less than an eighth of the log. They are
written off the critical path, by a lane that has nothing else to do, or now and then; losing one
costs time and never data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from limpet.model import EVENT_OVERHEAD_BYTES, SNAPSHOT_FLOOR_BYTES, SNAPSHOT_SHARE, Key
from limpet.store.cache import Cache, CachedSession
from limpet.store.coding import Codec, bodies
from limpet.store.postgres.server import Connection
from limpet.store.postgres.sql import SQL

_THINNED: Final = (SNAPSHOT_SHARE, EVENT_OVERHEAD_BYTES)


class PostgresSnapshots:
    """The sessions whose snapshots are due. Shared by the lanes of a committer."""

    def __init__(self, cache: Cache, codec: Codec) -> None:
        self._cache, self._codec = cache, codec
        self._due: dict[Key, CachedSession] = {}
        self._written: set[Key] = set()  # on their way: no second rung beside the first

    @property
    def due(self) -> bool:
        """Whether there is one to write."""
        return bool(self._due)

    def note(self, key: Key, live: CachedSession) -> None:
        """A session that a batch wrote to."""
        delta = live.delta_bytes
        due = delta >= SNAPSHOT_FLOOR_BYTES and delta >= live.snapshot_bytes
        if due and key not in self._written:
            self._due[key] = live

    async def write(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        """Write what is due. What fails is left out: it becomes due again."""
        while self._due:
            key, live = self._due.popitem()
            self._written.add(key)
            try:
                await self._write(connect, key, live)
            except Exception:  # a seal may fail with anything, and nobody waits for this
                self._due.clear()
            finally:
                self._written.discard(key)

    async def _write(
        self, connect: Callable[[], Awaitable[Connection]], key: Key, live: CachedSession
    ) -> None:
        if live.damaged:  # a snapshot must not hide that the log is damaged
            return
        seq, packed, size = bodies.packed_snapshot(live.fold, self._codec)
        conn = await connect()
        await conn.execute(SQL["put_snapshot"], live.sid, seq, *packed)
        await conn.execute(SQL["thin_snapshots"], live.sid, seq, *_THINNED)
        now = self._cache.peek(key)  # others may have been recorded meanwhile
        if now is not None and now.sid == live.sid:
            now.snapshot_bytes, now.delta_bytes = size, max(0, now.delta_bytes - live.delta_bytes)
