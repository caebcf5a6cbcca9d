"""The feed on PostgreSQL: entries and their positions.

Identity order is not commit order: a transaction that took its row numbers early may commit late.
So a position is (transaction, row number), and only entries below every open transaction are
returned.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.errors import PositionUnknown
from limpet.model import Key
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.store import cursor as cursors
from limpet.store.coding.codec import Codec
from limpet.store.pages import page
from limpet.store.postgres import rows
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import FeedEntry, Touched

TOUCHED: Final = 2_000  # events that are looked at in one page of touched sessions


async def changes(
    codec: Codec, after: str | None, app: str | None, key: Key | None, limit: int, conn: Connection
) -> tuple[tuple[FeedEntry, ...], str]:
    """Entries beyond a position, and the position that was read up to. Raises PositionUnknown."""
    xid, pos = (0, 0) if after is None else cursors.read_position(after, 2)
    one = (None, None) if key is None else (key.user, key.id)
    app = app if key is None else key.app
    fetched = await conn.fetch(SQL["feed"], str(xid), pos, app, *one, limit, READ_PAGE_BYTES_MAX)
    # The keys of the whole page, not of one entry at a time.
    sealed = [
        row["uid"] for row in fetched if row["pos"] is not None and codec.needs_keys(row["flags"])
    ]
    codec.sealer.require(sealed)
    entries = page(_entry(row, codec) for row in fetched if row["pos"] is not None)
    many = fetched[0]["many"] or 0
    if many == limit or len(entries) < many:
        return entries, entries[-1].position
    if xid >= fetched[0]["horizon"] and not await conn.fetchval(SQL["is_standby"]):
        assert after is not None
        raise PositionUnknown(after)
    # All below the horizon was looked at, whether it was asked for or not: never again.
    seen = (fetched[0]["last_xid"] or 0, fetched[0]["last_pos"] or 0)
    return entries, cursors.write_position(*max(seen, (xid, pos)))


async def touched(after: str, conn: Connection) -> Touched:
    """The sessions with events beyond a position. Raises PositionUnknown."""
    xid, pos = cursors.read_position(after, 2)
    fetched = await conn.fetch(SQL["feed_touched"], str(xid), pos, TOUCHED)
    one = fetched[0]
    if xid >= one["horizon"] and not await conn.fetchval(SQL["is_standby"]):
        raise PositionUnknown(after)
    sessions = {rows.key_from(row): row["seq"] for row in fetched if row["app"] is not None}
    below = one["below"] or 0
    if below:
        after = cursors.write_position(one["last_xid"], one["last_pos"])
    full = one["many"] == TOUCHED
    more = full and below == TOUCHED
    return Touched(sessions, after, more=more, whole=more or not full, ended=one["ended"])


async def position(conn: Connection) -> str:
    """The position of the last entry that may be returned now."""
    row = await conn.fetchrow(SQL["feed_end"])
    return cursors.write_position(*(row or (0, 0)))


def _entry(row: Any, codec: Codec) -> tuple[FeedEntry, int]:
    key = rows.key_from(row)
    event, size = rows.sized_event(row, row["uid"], codec)
    return FeedEntry(cursors.write_position(row["xid"], row["pos"]), key, event), size
