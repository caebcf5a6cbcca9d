"""Reading through: a log that begins on a state of its parent is read on in the parent's.

A history is a row of segments, each the own events of one session. Most histories have one. An
input that the parent had pending at the fork has ended with it: the fork's first event stands as
what processed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from limpet.model import Event, Head, removed_event
from limpet.store.paging import Room
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL


class Segment(msgspec.Struct, frozen=True):
    """Own events of one session with floor < seq <= ceiling; no sid: they are gone."""

    sid: int | None
    head: Head
    floor: int
    ceiling: int
    cuts: tuple[Event, ...]  # the first events of the forks that go on from here, oldest first


def segments(reader: SQLiteReader, sid: int, head: Head) -> Iterator[Segment]:
    """The history of a session, the newest part first."""
    at: int | None = sid
    ceiling = head.version
    cuts: tuple[Event, ...] = ()
    while True:
        yield Segment(at, head, head.floor, ceiling, cuts)
        if at is None or not head.floor:
            return
        cuts, ceiling = (_first(reader, at, head), *cuts), min(ceiling, head.floor)
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
    return _gathered(reader, parts, "events_after", after, limit, types)


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
    return _gathered(reader, parts, "events_last", before, limit, types)


def _gathered(
    reader: SQLiteReader,
    parts: list[Segment],
    name: str,
    start: int,
    limit: int,
    types: tuple[str, ...] | None,
) -> tuple[Event, ...]:
    room = Room()
    found: list[Event] = []
    for part in parts:
        left = limit - len(found)
        if left <= 0 or room.full:
            break
        found += _read(reader, part, name, start, left, types, room)
    return tuple(found)


def _read(
    reader: SQLiteReader,
    part: Segment,
    name: str,
    start: int,
    limit: int,
    types: tuple[str, ...] | None,
    room: Room,
) -> list[Event]:
    up = name == "events_after"
    low, high = max(start, part.floor), part.ceiling
    if not up:
        low, high = part.floor, min(start, part.ceiling + 1)
    if part.sid is None:
        seqs = range(low + 1, high + 1) if up else range(high - 1, low, -1)
        return [] if types is not None else [removed_event(seq) for seq in seqs[:limit]]
    bounds = (low, high) if up else (high, low)
    found = reader.events(part.sid, part.head.uid, name, bounds, limit, types=types, room=room)
    return [_ended(event, part.cuts) for event in found]


def _ended(event: Event, cuts: tuple[Event, ...]) -> Event:
    for cut in cuts:
        if event.processed is not None and not 0 < event.processed < cut.seq:
            event = msgspec.structs.replace(event, processed=cut.seq, processed_us=cut.at_us)
    return event


def _first(reader: SQLiteReader, sid: int, head: Head) -> Event:
    """The first own event of a fork: its seq and time are all that is needed."""
    at_us = reader.time_at(sid, head.uid, head.floor + 1)
    return Event(head.floor + 1, "", "", "", at_us or head.created_us, None)


def _parent(reader: SQLiteReader, sid: int) -> int | None:
    found: Any = reader.conn.execute(SQL["parent_of"], (sid,)).get
    return found if isinstance(found, int) else None


def _session(reader: SQLiteReader, sid: int | None) -> tuple[int, Head] | None:
    """A parent, living or deleted."""
    if sid is None:
        return None
    row = reader.conn.execute(SQL["head_at"], (sid,)).fetchone()
    if row is not None:
        return sid, rows.head_from(row)
    row = reader.conn.execute(SQL["tombstone_at"], (sid,)).fetchone()
    return None if row is None else (sid, rows.tombstone_from(row))
