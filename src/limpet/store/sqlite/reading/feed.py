"""The feed: the events of all sessions in one order, an entry each, read on from a position.

A position is the event's row number. No number is given twice, also not that of a row that is gone
(`retire` notes it before the rows go), and rows are written under the write lock: so no event
appears behind a position that was returned.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any, Final
from zlib import crc32

import apsw

from limpet.errors import PositionUnknown
from limpet.model import Key
from limpet.store.coding.seal import Unready
from limpet.store.cursor import read_position, write_position
from limpet.store.pages import PageBytes, bare, within
from limpet.store.protocol import FeedEntry, Touched
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading.reader import SQLiteReader, stored_key
from limpet.store.sqlite.sql import SQL

STRETCH: Final = 2_000  # positions that are looked at in one instant


class FeedPage:
    """One call of `changes`: a page of entries, gathered over as many instants as it takes."""

    def __init__(
        self, reader: SQLiteReader, after: str | None, app: str | None, key: Key | None, limit: int
    ) -> None:
        self._reader, self._app, self._key, self._limit = reader, app, key, limit
        self._position = 0 if after is None else read_position(after, 1)[0]
        self._entries: list[FeedEntry] = []
        self._room = PageBytes()

    def step(self) -> bool:
        """Read one stretch. Whether the page is complete, or the feed has no more for now."""
        left = self._limit - len(self._entries)
        asked = (self._position, self._app, self._key, left, self._room)
        with self._reader.instant():
            entries, end = changes(self._reader, *asked)
        self._entries += entries
        before, self._position = self._position, end
        return len(self._entries) == self._limit or self._room.full or end == before

    def result(self) -> tuple[tuple[FeedEntry, ...], str]:
        """The entries, and the position that was read up to."""
        return tuple(self._entries), write_position(self._position)


def changes(
    reader: SQLiteReader, after: int, app: str | None, key: Key | None, limit: int, room: PageBytes
) -> tuple[tuple[FeedEntry, ...], int]:
    """Entries beyond a position, and the position that was read up to. Looks at one stretch."""
    row = reader.conn.execute(SQL["feed_next"], (after,)).fetchone()
    start, end = row or (None, None)
    if start is None:
        if after > last_position(reader.conn):
            raise PositionUnknown(write_position(after))
        return (), after
    stretch = min(end, start + STRETCH - 1)  # from where there is something: there are gaps
    user, id = (None, None) if key is None else (key.user, key.id)
    app = app if key is None else key.app
    entries = bare(_entries(reader, (after, stretch, app, user, id, limit), room))
    if len(entries) == limit or room.full:
        return entries, int(entries[-1].position)
    return entries, stretch


def touched(reader: SQLiteReader, after: str) -> Touched:
    """The sessions with events in one stretch beyond a position, and where that stretch ends."""
    (position,) = read_position(after, 1)
    with reader.instant():
        conn = reader.conn
        ended = str(conn.execute(SQL["feed_ended"]).get)
        start, end = conn.execute(SQL["feed_next"], (position,)).fetchone() or (None, None)
        if start is None:
            if position > last_position(conn):
                raise PositionUnknown(after)
            return Touched({}, after, more=False, whole=True, ended=ended)
        stretch = min(end, start + STRETCH - 1)
        fetched: list[Any] = conn.execute(SQL["feed_touched"], (position, stretch)).fetchall()
    sessions = {stored_key(*names): seq for *names, seq in fetched}
    more = stretch < end
    return Touched(sessions, write_position(stretch), more=more, whole=True, ended=ended)


def position(conn: apsw.Connection) -> str:
    """The end of the feed."""
    return write_position(last_position(conn))


def last_position(conn: apsw.Connection) -> int:
    """The last position that was handed out, also if its event is gone."""
    return int(conn.execute(SQL["feed_issued"]).get)


def retire(conn: apsw.Connection) -> None:
    """Note the last position, before rows of the log go: theirs are not given again."""
    begin_after(conn, last_position(conn))


def begin_after(conn: apsw.Connection, last: int) -> None:
    """Give no position up to this one any more. A lower one would be given twice: its checksum
    lets verify tell."""
    conn.execute(SQL["put_meta"], ("feed", last))
    conn.execute(SQL["put_meta"], ("feed_crc", noted_crc(last)))


def noted_crc(last: object) -> int:
    """The checksum of a noted position."""
    return crc32(str(last).encode())


def _entries(
    reader: SQLiteReader, asked: tuple[Any, ...], room: PageBytes
) -> list[tuple[FeedEntry, int]]:
    used = room.used
    try:
        with closing(reader.conn.execute(SQL["feed"], asked)) as entries:
            return within(room, (_entry(reader, row) for row in entries))
    except Unready:  # ask for the keys of the whole page, not for one at a time
        room.used = used
        with suppress(apsw.CorruptError, UnicodeDecodeError):
            listed: list[Any] = reader.conn.execute(SQL["feed_positions"], asked).fetchall()
            reader.codec.sealer.require([rows.unpack_id(row[4]) for row in listed])
        raise
    except (apsw.CorruptError, UnicodeDecodeError):
        # Some row is broken: read each entry alone, so that only that one is lost.
        room.used = used
        positions = reader.conn.execute(SQL["feed_positions"], asked).fetchall()
        return within(room, (_entry_at(reader, row) for row in positions))


def _entry(reader: SQLiteReader, row: tuple[Any, ...]) -> tuple[FeedEntry, int]:
    event, size = rows.sized_event(row[4:], rows.unpack_id(row[3]), reader.codec)
    return FeedEntry(write_position(row[4]), Key(*row[:3]), event), size


def _entry_at(reader: SQLiteReader, row: tuple[Any, ...]) -> tuple[FeedEntry, int]:
    """One entry: if its row cannot be read, an event stands for it that says so."""
    pos, app, user, id, _, seq = row
    try:
        asked = (pos - 1, pos, app, user, id, 1)
        return _entry(reader, reader.conn.execute(SQL["feed"], asked).fetchall()[0])
    except (apsw.CorruptError, UnicodeDecodeError) as error:
        lost = rows.lost_event(seq, f"has a row that cannot be read ({error})")
        return FeedEntry(write_position(pos), Key(app, user, id), lost), 0
