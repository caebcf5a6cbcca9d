"""Histories: a log that begins on a state of its parent is read on in the parent's.

A history is a row of segments, each the own events of one session. Most histories have one. An
input that the parent had pending at the fork has ended with it: the fork's first event stands as
what processed it. Records are own events as they are stored, for whoever moves logs; the last part
finds the events that name a field, and who changed a shared name since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

import msgspec

from limpet.model import Event, Head, Key, ScopeKey, path_opening, removed_event, scope_of
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.store.coding.bodies import inherited_event, is_naming
from limpet.store.coding.codec import ADOPTED, COMPRESSED, Damaged
from limpet.store.pages import PageBytes, bare, within
from limpet.store.protocol import ChainedEvent, NameSince
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL


class Segment(msgspec.Struct, frozen=True):
    """Own events of one session with floor < seq <= ceiling; no sid: they are gone."""

    sid: int | None
    head: Head
    floor: int
    ceiling: int
    forks: tuple[tuple[int, int], ...]  # floor and time of those that go on from here, oldest first


def segments(reader: SQLiteReader, sid: int, head: Head) -> Iterator[Segment]:
    """The history of a session, the newest part first."""
    at: int | None = sid
    ceiling = head.version
    forks: tuple[tuple[int, int], ...] = ()
    while True:
        yield Segment(at, head, head.floor, ceiling, forks)
        if at is None or not head.floor:
            return
        at_us = reader.time_at(at, head.uid, head.floor + 1) or head.created_us
        forks, ceiling = ((head.floor, at_us), *forks), min(ceiling, head.floor)
        parent = _session(reader, _parent(reader, at))
        if parent is None:
            gone = msgspec.structs.replace(head, floor=0)
            at, head = None, gone
        else:
            at, head = parent


def segment_with(reader: SQLiteReader, sid: int, head: Head, seq: int) -> Segment:
    """The part of the history that has this event."""
    for segment in segments(reader, sid, head):
        if segment.floor < seq:
            return segment
    raise AssertionError("the last segment goes down to 0")


def events_after(
    reader: SQLiteReader,
    sid: int,
    head: Head,
    after: int,
    limit: int,
    types: tuple[str, ...] | None,
) -> tuple[Event, ...]:
    """A page of the history beyond a seq, ascending."""
    parts = [p for p in segments(reader, sid, head) if p.ceiling > after][::-1]
    return _read_segments(reader, parts, "events_after", after, limit, types)


def events_last(
    reader: SQLiteReader,
    sid: int,
    head: Head,
    before: int,
    limit: int,
    types: tuple[str, ...] | None,
) -> tuple[Event, ...]:
    """A page of the history before a seq, descending."""
    parts = [p for p in segments(reader, sid, head) if p.floor + 1 < before]
    return _read_segments(reader, parts, "events_last", before, limit, types)


def _read_segments(
    reader: SQLiteReader,
    parts: list[Segment],
    name: str,
    start: int,
    limit: int,
    types: tuple[str, ...] | None,
) -> tuple[Event, ...]:
    room = PageBytes()
    events: list[Event] = []
    for part in parts:
        left = limit - len(events)
        if left <= 0 or room.full:
            break
        events += _read_segment(reader, part, name, start, left, types, room)
    return tuple(events)


def _read_segment(
    reader: SQLiteReader,
    part: Segment,
    name: str,
    start: int,
    limit: int,
    types: tuple[str, ...] | None,
    room: PageBytes,
) -> list[Event]:
    up = name == "events_after"
    low, high = max(start, part.floor), part.ceiling
    if not up:
        low, high = part.floor, min(start, part.ceiling + 1)
    if part.sid is None:
        seqs = range(low + 1, high + 1) if up else range(high - 1, low, -1)
        return [] if types is not None else [removed_event(seq) for seq in seqs[:limit]]
    bounds = (low, high) if up else (high, low)
    events = reader.events(part.sid, part.head.uid, name, bounds, limit, types=types, room=room)
    return [inherited_event(event, part.forks) for event in events]


def _parent(reader: SQLiteReader, sid: int) -> int | None:
    parent: Any = reader.conn.execute(SQL["parent_of"], (sid,)).get
    return parent if isinstance(parent, int) else None


def _session(reader: SQLiteReader, sid: int | None) -> tuple[int, Head] | None:
    """A parent, living or deleted."""
    if sid is None:
        return None
    row = reader.conn.execute(SQL["head_at"], (sid,)).fetchone()
    if row is not None:
        return sid, rows.head_from(row)
    row = reader.conn.execute(SQL["tombstone_at"], (sid,)).fetchone()
    return None if row is None else (sid, rows.tombstone_from(row))


def records_after(
    reader: SQLiteReader, key: Key, after: int, limit: int
) -> tuple[ChainedEvent, ...]:
    """The page in one statement, if the event after `after` is a row; else nothing, and
    `records_page` says what there is. Moving many short logs is mostly this."""
    records: list[ChainedEvent] = []
    used, uid, asked = 0, "", (key.app, key.user, key.id, after, limit)
    with closing(reader.conn.execute(SQL["records"], asked)) as rows_:
        for row in rows_:
            if row[1] != after + 1 + len(records):
                break
            uid = uid or rows.unpack_id(row[-1])
            record, size = _undecoded_record(reader, row[:-1], uid)
            records.append(record)
            used += size
            if used >= READ_PAGE_BYTES_MAX:
                break
    return tuple(records)


def records_page(
    reader: SQLiteReader, sid: int, uid: str, after: int, limit: int
) -> tuple[ChainedEvent, ...]:
    """At most `limit` own events beyond a seq, as many as fit a page."""
    records: list[ChainedEvent] = []
    used = 0
    for cold in reader.cold.records(sid, uid, after) if after < reader.cold.top(sid) else ():
        records.append(cold.record.undecoded)
        used += len(cold.record.raw or b"")
        if len(records) >= limit or used >= READ_PAGE_BYTES_MAX:
            break
    if len(records) >= limit or used >= READ_PAGE_BYTES_MAX:
        return tuple(records)
    after = records[-1].event.seq if records else after
    asked = (sid, after, limit - len(records))
    with closing(reader.conn.execute(SQL["stored_events"], asked)) as rows_:
        for row in rows_:
            record, size = _undecoded_record(reader, row, uid)
            records.append(record)
            used += size
            if used >= READ_PAGE_BYTES_MAX:
                break
    return tuple(records)


def _undecoded_record(
    reader: SQLiteReader, row: tuple[Any, ...], uid: str
) -> tuple[ChainedEvent, int]:
    """The record in a row without the data and ops of its event: its body is not looked into."""
    try:
        event = rows.plain_names(row)
        if event is not None:
            raw, salt, compressed = _record_body(reader, row, uid, event)
            return ChainedEvent(event, raw, salt, row[-1], compressed), len(raw)
    except (Damaged, TypeError, ValueError):
        pass  # said by whoever reads it all
    record, size = sized_record(reader, row, uid)
    return record.undecoded, size


def _record_body(
    reader: SQLiteReader, row: tuple[Any, ...], uid: str, event: Event
) -> tuple[bytes, bytes, bytes | None]:
    """The encoded body in a row, its salt, and what it is compressed to. Raises Damaged."""
    codec = reader.codec
    if not codec.marks and rows.is_plain(row):
        return row[11], row[-2], None
    place = rows.plain_place(row, event, uid, codec)
    salt, raw = rows.body_in(row[0], place, row[10:13], codec)
    compressed = row[11] if row[10] & ~ADOPTED == COMPRESSED else None
    return raw, row[-2] if salt is None else salt, compressed


def sized_record(reader: SQLiteReader, row: tuple[Any, ...], uid: str) -> tuple[ChainedEvent, int]:
    """The record in a row of EVENT_COLUMNS with salt and digest, and the bytes of its body."""
    plain = None if reader.codec.marks else rows.plain_event(row[:-2])
    if plain is not None:
        return ChainedEvent(*plain, row[-2], row[-1]), len(plain[1])
    event, size, raw, sealed = rows.opened_event(row[:-2], uid, reader.codec)
    return ChainedEvent(event, raw, row[-2] if sealed is None else sealed, row[-1]), size


def events_naming(
    reader: SQLiteReader, key: Key, name: str, before: int, after: int, limit: int
) -> tuple[Event, ...]:
    """A page of the history before a seq, descending, with all events that name a field."""
    needle, room, events = path_opening(name), PageBytes(), list[Event]()
    with reader.instant():
        sid, head = reader.present(key)
        for part in segments(reader, sid, head):
            left = limit - len(events)
            if left <= 0 or room.full or part.ceiling <= after:
                break
            if part.sid is not None:
                bounds = (part.sid, min(before, part.ceiling + 1), max(after, part.floor))
                asked = (*bounds, needle, left)
                events += _segment_naming(reader, part.head.uid, name, asked, room)
    return tuple(events)


def _segment_naming(
    reader: SQLiteReader, uid: str, name: str, asked: tuple[Any, ...], room: PageBytes
) -> tuple[Event, ...]:
    sid, before, after, needle, limit = asked
    top = reader.cold.top(sid)  # below it rows are of what is pending, and read with their segments
    asked = (sid, before, max(after, top), needle, limit)
    with closing(reader.conn.execute(SQL["events_naming"], asked)) as rows_:
        events = within(room, (rows.sized_event(row, uid, reader.codec) for row in rows_))
    if top > after and len(events) < limit and not room.full:
        older = reader.cold.events(sid, uid, after, min(before - 1, top), reverse=True)
        named = (pair for pair in older if is_naming(pair[0], name))
        events += within(room, islice(named, limit - len(events)))
    return bare(events)


def names_since(
    reader: SQLiteReader, key: Key, seq: int, names: Sequence[str]
) -> dict[str, NameSince]:
    """The values of shared names before the session changed them, and whether others did too."""
    with reader.instant():
        sid, head = reader.present(key)
        part = segment_with(reader, sid, head, seq)
        at_us = None if part.sid is None else reader.time_at(part.sid, part.head.uid, seq)
        changes = {name: _since(reader, head, (seq, at_us or 0), name) for name in names}
    return {name: since for name, since in changes.items() if since is not None}


def _since(reader: SQLiteReader, head: Head, at: tuple[int, int], name: str) -> NameSince | None:
    key, mine = head.key, rows.pack_id(head.uid)
    of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
    first, newest, others = 0, 0, False
    with closing(reader.conn.execute(SQL["scope_makers"], of)) as made:
        for version, uid, seq, when_us in made:
            newest = newest or version
            if uid == mine:
                if seq <= at[0]:
                    break
                first = version
            elif when_us is not None and when_us < at[1]:
                break
            else:
                others = True
    if not first:
        return None
    return NameSince(reader.scopes.at(of, first - 1), newest, others)
