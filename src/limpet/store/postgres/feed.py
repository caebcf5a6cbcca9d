"""The feed on PostgreSQL, and hints that something changed.

Identity order is not commit order: a transaction that took its numbers early may commit late. So
the order is (transaction id, position), and only what lies below every open transaction is handed
out. NOTIFY is sent after the durable commit, on its own, many commits at a time: inside, it would
halve the throughput. It is a hint; the reading is the truth.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from limpet.errors import PositionUnknown
from limpet.model.keys import Key
from limpet.store import cursor as cursors
from limpet.store.codec import Codec
from limpet.store.pages import page
from limpet.store.postgres import rows
from limpet.store.postgres.connect import Connection, Pool
from limpet.store.postgres.failures import FAILURES
from limpet.store.postgres.outage import Outage
from limpet.store.postgres.rows import SQL
from limpet.store.protocol import FeedEntry

CHANNEL: Final = "limpet"
LISTEN_AGAIN_SECONDS: Final = 1.0
# A hint need not be durable: without this the server would flush its log for every one of them,
# and the next commit would wait for that flush.
_NOTIFY: Final = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')"


async def changes(
    codec: Codec, after: str | None, app: str | None, key: Key | None, limit: int, conn: Connection
) -> tuple[tuple[FeedEntry, ...], str]:
    """Events beyond a position, below the horizon; and the position that was read up to."""
    xid, pos = (0, 0) if after is None else cursors.read_position(after, 2)
    one = (None, None) if key is None else (key.user, key.id)
    app = app if key is None else key.app
    found = await conn.fetch(SQL["feed"], str(xid), pos, app, *one, limit)
    entries = page(_entry(row, codec) for row in found if row["pos"] is not None)
    many = found[0]["many"] or 0
    if many == limit or len(entries) < many:
        return entries, entries[-1].position
    if xid >= found[0]["horizon"] and not await conn.fetchval("SELECT pg_is_in_recovery()"):
        assert after is not None
        raise PositionUnknown(after)
    # All below the horizon was looked at, whether it was asked for or not: never again.
    seen = (found[0]["last_x"] or 0, found[0]["last_pos"] or 0)
    return entries, cursors.write_position(*max(seen, (xid, pos)))


async def position(conn: Connection) -> str:
    """The end of what may be handed out now."""
    row = await conn.fetchrow(SQL["feed_end"])
    return cursors.write_position(*(row or (0, 0)))


def _entry(row: Any, codec: Codec) -> tuple[FeedEntry, int]:
    key = Key(row["app"], row["owner"], row["session_id"])
    event, size = rows.sized_event(row, row["uid"], codec)
    return FeedEntry(cursors.write_position(row["x"], row["pos"]), key, event), size


class Hinting:
    """Tells other processes, and hears from them. Whatever fails here only delays."""

    def __init__(self, pool: Pool, connect: Callable[[], Any], place: str) -> None:
        self._pool, self._connect = pool, connect
        self._outage = Outage(place, "listener")
        self._telling: asyncio.Task[None] | None = None
        self._more = False
        self._heard: Callable[[], None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._listened_at = 0.0
        self._ear: Connection | None = None
        self.hints = 0

    def tell(self) -> None:
        """Say that something was committed. Returns at once; many commits are told in one."""
        self._more = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    def listen(self, heard: Callable[[], None]) -> None:
        """Hear from others, on a connection of its own, from about now on."""
        self._heard = heard
        self.listen_again()

    def wanted(self) -> bool:
        return self._heard is not None

    def listen_again(self) -> None:
        """See to it that the ear is open, if anybody wants to hear; not too often."""
        deaf = self._ear is None or self._ear.is_closed()
        busy = self._listening is not None and not self._listening.done()
        if self._heard is None or busy or not deaf:
            return
        if time.monotonic() - self._listened_at >= LISTEN_AGAIN_SECONDS:
            self._listened_at = time.monotonic()
            self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        for task in (self._telling, self._listening):
            if task is self._listening and task is not None:
                task.cancel()
            if task is not None:
                await asyncio.gather(task, return_exceptions=True)
        if self._ear is not None:
            self._ear.terminate()

    async def _listen(self) -> None:
        if self._ear is not None:
            self._outage.lost(ConnectionResetError())
            self._ear.terminate()
        try:
            self._ear = await self._connect()
            await self._ear.add_listener(CHANNEL, self._ring)
            # Held for as long as the connection: by it, committers know that hints are heard.
            await self._ear.execute("SELECT pg_advisory_lock_shared(limpet.listening())")
            self._ring()  # what was committed before they knew
            self._outage.over()
        except FAILURES as error:
            self._outage.lost(error)
            if self._ear is not None:
                self._ear.terminate()  # polling goes on

    def _ring(self, *_: object) -> None:
        self.hints += 1
        if self._heard is not None:
            self._heard()

    async def _tell(self) -> None:
        while self._more:
            self._more = False
            try:
                await self._pool.execute(_NOTIFY, CHANNEL)
            except FAILURES:
                return
