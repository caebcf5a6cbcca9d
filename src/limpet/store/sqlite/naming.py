"""Names: which events name a field, and who changed a shared name since."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from limpet.model import Event, Head, Key, ScopeKey, path_opening, scope_of
from limpet.store.paging import Room, bare, within
from limpet.store.protocol import NameSince
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading import lineage
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL


def events_naming(
    reader: SQLiteReader, key: Key, name: str, before: int, after: int, limit: int
) -> tuple[Event, ...]:
    """A page of the history before a seq, descending, with all events that name a field."""
    needle, room, found = path_opening(name), Room(), list[Event]()
    with reader.instant():
        sid, head = reader.present(key)
        for part in lineage.segments(reader, sid, head):
            left = limit - len(found)
            if left <= 0 or room.full or part.ceiling <= after:
                break
            if part.sid is not None:
                bounds = (part.sid, min(before, part.ceiling + 1), max(after, part.floor))
                asked = (*bounds, needle, left)
                found += _read(reader, part.head.uid, name, asked, room)
    return tuple(found)


def _read(
    reader: SQLiteReader, uid: str, name: str, asked: tuple[Any, ...], room: Room
) -> tuple[Event, ...]:
    sid, before, after, needle, limit = asked
    top = reader.cold.top(sid)  # below it rows are of what is pending, and read with their segments
    asked = (sid, before, max(after, top), needle, limit)
    with closing(reader.conn.execute(SQL["events_naming"], asked)) as rows_:
        found = within(room, (rows.sized_event(row, uid, reader.codec) for row in rows_))
    if top > after and len(found) < limit and not room.full:
        older = reader.cold.events(sid, uid, after, min(before - 1, top), reverse=True)
        named = (pair for pair in older if _names(pair[0], name))
        found += within(room, islice(named, limit - len(found)))
    return bare(found)


def _names(event: Event, name: str) -> bool:
    return event.data is None or any([op.path[0] == name for op in event.ops])


def names_since(
    reader: SQLiteReader, key: Key, seq: int, names: Sequence[str]
) -> dict[str, NameSince]:
    """What shared names were before the session changed them, and whether others did too."""
    with reader.instant():
        sid, head = reader.present(key)
        part = lineage.segment_with(reader, sid, head, seq)
        at_us = None if part.sid is None else reader.time_at(part.sid, part.head.uid, seq)
        found = {name: _since(reader, head, (seq, at_us or 0), name) for name in names}
    return {name: since for name, since in found.items() if since is not None}


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
