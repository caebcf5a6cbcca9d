"""Logs just as they were recorded: events with their encoded bodies, salts and digests."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from limpet.model import READ_PAGE_BYTES_MAX
from limpet.store.protocol import Record
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading.reader import Reader
from limpet.store.sqlite.sql import SQL


def page(reader: Reader, sid: int, uid: str, after: int, limit: int) -> tuple[Record, ...]:
    """At most `limit` own events beyond a seq, as many as fit a page."""
    found, used = _cold(reader, sid, uid, after, limit)
    if len(found) >= limit or used >= READ_PAGE_BYTES_MAX:
        return tuple(found)
    after = found[-1].event.seq if found else after
    asked = (sid, after, limit - len(found))
    with closing(reader.conn.execute(SQL["stored_events"], asked)) as rows_:
        for row in rows_:
            record, size = sized(reader, row, uid)
            found.append(record)
            used += size
            if used >= READ_PAGE_BYTES_MAX:
                break
    return tuple(found)


def _cold(reader: Reader, sid: int, uid: str, after: int, limit: int) -> tuple[list[Record], int]:
    """What of a page is in segments, and the bytes of its bodies."""
    found: list[Record] = []
    used = 0
    for cold in reader.cold.records(sid, uid, after) if after < reader.cold.top(sid) else ():
        found.append(cold.record)
        used += len(cold.record.raw or b"")
        if len(found) >= limit or used >= READ_PAGE_BYTES_MAX:
            break
    return found, used


def sized(reader: Reader, row: tuple[Any, ...], uid: str) -> tuple[Record, int]:
    """The record in a row of EVENT_COLUMNS with salt and digest, and the bytes of its body."""
    plain = rows.plain_event(row[:-2])
    if plain is not None:
        return Record(*plain, row[-2], row[-1]), len(plain[1])
    event, size, raw, sealed = rows.opened_event(row[:-2], uid, reader.codec)
    return Record(event, raw, row[-2] if sealed is None else sealed, row[-1]), size
