"""Logs just as they were recorded: events with their encoded bodies, salts and digests."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from limpet.store.pages import Room, bare, within
from limpet.store.protocol import Record
from limpet.store.sqlite import rows
from limpet.store.sqlite.reader import Reader
from limpet.store.sqlite.sql import SQL


def page(reader: Reader, sid: int, uid: str, after: int, limit: int) -> tuple[Record, ...]:
    """At most `limit` own events beyond a seq, as many as fit a page."""
    asked = (sid, after, limit)
    with closing(reader.conn.execute(SQL["stored_events"], asked)) as found:
        return bare(within(Room(), (sized(reader, row, uid) for row in found)))


def sized(reader: Reader, row: tuple[Any, ...], uid: str) -> tuple[Record, int]:
    """The record in a row of EVENT_COLUMNS with salt and digest, and the bytes of its body."""
    *plain, salt, digest = row
    event, size, raw, sealed = rows.opened_event(tuple(plain), uid, reader.codec)
    return Record(event, raw, salt if sealed is None else sealed, digest), size
