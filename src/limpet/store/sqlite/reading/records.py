"""Logs just as they were recorded: events with their encoded bodies, salts and digests."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from limpet.model import READ_PAGE_BYTES_MAX, Key
from limpet.store.coding import COMPRESSED, Damaged
from limpet.store.coding.codec import ADOPTED
from limpet.store.protocol import ChainedEvent
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL


def following(reader: SQLiteReader, key: Key, after: int, limit: int) -> tuple[ChainedEvent, ...]:
    """The page in one statement, if the event after `after` is a row; else nothing, and `page` says
    what there is. Moving many short logs is mostly this."""
    found: list[ChainedEvent] = []
    used, uid, asked = 0, "", (key.app, key.user, key.id, after, limit)
    with closing(reader.conn.execute(SQL["records"], asked)) as rows_:
        for row in rows_:
            if row[1] != after + 1 + len(found):
                break
            uid = uid or rows.unpack_id(row[-1])
            record, size = _undecoded(reader, row[:-1], uid)
            found.append(record)
            used += size
            if used >= READ_PAGE_BYTES_MAX:
                break
    return tuple(found)


def page(
    reader: SQLiteReader, sid: int, uid: str, after: int, limit: int
) -> tuple[ChainedEvent, ...]:
    """At most `limit` own events beyond a seq, as many as fit a page."""
    found, used = _cold(reader, sid, uid, after, limit)
    if len(found) >= limit or used >= READ_PAGE_BYTES_MAX:
        return tuple(found)
    after = found[-1].event.seq if found else after
    asked = (sid, after, limit - len(found))
    with closing(reader.conn.execute(SQL["stored_events"], asked)) as rows_:
        for row in rows_:
            record, size = _undecoded(reader, row, uid)
            found.append(record)
            used += size
            if used >= READ_PAGE_BYTES_MAX:
                break
    return tuple(found)


def _cold(
    reader: SQLiteReader, sid: int, uid: str, after: int, limit: int
) -> tuple[list[ChainedEvent], int]:
    """What of a page is in segments, and the bytes of its bodies."""
    found: list[ChainedEvent] = []
    used = 0
    for cold in reader.cold.records(sid, uid, after) if after < reader.cold.top(sid) else ():
        found.append(cold.record.undecoded)
        used += len(cold.record.raw or b"")
        if len(found) >= limit or used >= READ_PAGE_BYTES_MAX:
            break
    return found, used


def _undecoded(reader: SQLiteReader, row: tuple[Any, ...], uid: str) -> tuple[ChainedEvent, int]:
    """The record in a row without the data and ops of its event: its body is not looked into."""
    try:
        event = rows.plain_names(row)
        if event is not None:
            raw, salt, compressed = _body(reader, row, uid, (event.id, event.type))
            return ChainedEvent(event, raw, salt, row[-1], compressed), len(raw)
    except (Damaged, TypeError, ValueError):
        pass  # said by whoever reads it all
    record, size = sized(reader, row, uid)
    return record.undecoded, size


def _body(
    reader: SQLiteReader, row: tuple[Any, ...], uid: str, names: tuple[str, str]
) -> tuple[bytes, bytes, bytes | None]:
    """The encoded body in a row, its salt, and what it is compressed to. Raises Damaged."""
    if rows.is_plain(row):
        return row[11], row[-2], None
    salt, raw = rows.body_in(row[0], uid, names, row[10:13], reader.codec)
    compressed = row[11] if row[10] & ~ADOPTED == COMPRESSED else None
    return raw, row[-2] if salt is None else salt, compressed


def sized(reader: SQLiteReader, row: tuple[Any, ...], uid: str) -> tuple[ChainedEvent, int]:
    """The record in a row of EVENT_COLUMNS with salt and digest, and the bytes of its body."""
    plain = rows.plain_event(row[:-2])
    if plain is not None:
        return ChainedEvent(*plain, row[-2], row[-1]), len(plain[1])
    event, size, raw, sealed = rows.opened_event(row[:-2], uid, reader.codec)
    return ChainedEvent(event, raw, row[-2] if sealed is None else sealed, row[-1]), size


def is_adopted(row: tuple[Any, ...]) -> bool:
    """Whether another store recorded the event in such a row."""
    return rows.is_adopted(row[10])
