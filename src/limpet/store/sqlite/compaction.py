"""Compaction: moving the oldest events of a session into a segment, on the writer's thread.

One segment a transaction: its row is written and the rows of its events are removed together, so
that a process that dies leaves each event in one place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from limpet.model import Head, Key, genesis
from limpet.model.facts.phases import is_stub
from limpet.store import cold
from limpet.store.coding.bodies import packed_snapshot
from limpet.store.coding.codec import Damaged
from limpet.store.cold import Cold
from limpet.store.protocol import Compacted
from limpet.store.sqlite import rows
from limpet.store.sqlite.cold import segment_row
from limpet.store.sqlite.reading import feed, lineage
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import SQLiteWriteConnection


class _Session(NamedTuple):
    sid: int
    head: Head


def compact(writes: SQLiteWriteConnection, key: Key, upto: int) -> Compacted:
    """Move one segment's worth of events up to a seq; none if there is nothing left to move."""
    with writes.transaction():
        of = _Session(*writes.reader.living(key))
        if is_stub(of.head.facts):  # it stays where every load reads it
            return Compacted()
        top = max(of.head.floor, writes.reader.cold.top(of.sid))
        if settled := _settled_segment(writes, of, top):
            return _move(writes, of, settled, len(settled)) or Compacted()
        while (done := _next(writes, of, top, upto)) is not None:
            if done.events:
                return done
            top = writes.reader.cold.top(of.sid)  # a segment of what is pending and nothing else
        return Compacted()


def _next(writes: SQLiteWriteConnection, of: _Session, top: int, upto: int) -> Compacted | None:
    """Move the next events; None if there is nothing left to move."""
    last = _last(writes, of, top, upto)
    if last <= top or not _keep_snapshot(writes, of, last):
        return None
    small = _small_segment(writes, of, top)
    events = [*small, *_next_events(writes, of, top, last, len(small))]
    if events and events[-1].record.event.seq == last:
        at_snapshot = writes.conn.execute(SQL["snapshot_at"], (of.sid, last)).fetchone()
        events = events if at_snapshot else cold.trimmed(events)  # where one stands, a segment ends
    return _move(writes, of, events, len(small)) if len(events) > len(small) else None


def _settled_segment(writes: SQLiteWriteConnection, of: _Session, top: int) -> list[Cold]:
    """A segment with an input that kept its row while it was pending, and is processed by now. Its
    row goes before the event that processed it does: that one has the time."""
    seq = writes.conn.execute(SQL["first_settled"], (of.sid, top)).get
    if seq is None:
        return []
    row: Any = writes.conn.execute(SQL["segment_before"], (of.sid, seq + 1)).fetchone()
    try:
        segment = writes.reader.cold.segment(of.sid, of.head.uid, *row)
    except Damaged:
        return []  # it stays as it is
    return [] if any([each.record.event.damage for each in segment]) else segment


def _last(writes: SQLiteWriteConnection, of: _Session, top: int, upto: int) -> int:
    """The last event that the next segment may have: not the newest, and none beyond the next
    snapshot."""
    last = min(upto, of.head.version - 1)
    rung = writes.conn.execute(SQL["next_snapshot"], (of.sid, top)).get
    return last if rung is None else min(last, rung)


def _keep_snapshot(writes: SQLiteWriteConnection, of: _Session, last: int) -> bool:
    """Have a snapshot from there on, so that a load reads no segment. False if there cannot be."""
    newest = writes.conn.execute(SQL["last_snapshot"], (of.sid,)).get
    if newest is not None and newest >= last:
        return True
    fold = writes.reader.load_fold(of.sid, of.head).fold
    if fold.damaged:  # a snapshot must not hide that the log is damaged
        return False
    seq, packed, _ = packed_snapshot(fold, writes.codec)
    writes.conn.execute(SQL["keep_snapshot"], (of.sid, seq, *packed))
    return True


def _small_segment(writes: SQLiteWriteConnection, of: _Session, top: int) -> list[Cold]:
    """The segment before, if it is small and no snapshot stands at its end: it is joined."""
    row = writes.conn.execute(SQL["segment_before"], (of.sid, top + 1)).fetchone()
    if row is None or row[1] != top or row[1] - row[0] + 1 >= cold.EVENTS_MIN:
        return []
    if writes.conn.execute(SQL["snapshot_at"], (of.sid, top)).fetchone() is not None:
        return []
    try:
        return list(writes.reader.cold.segment(of.sid, of.head.uid, *row))
    except Damaged:
        return []  # it stays as it is


def _next_events(
    writes: SQLiteWriteConnection, of: _Session, top: int, last: int, most: int
) -> list[Cold]:
    """The next events, as many as fit a segment, up to one that cannot be read."""
    cold_events: list[Cold] = []
    size, limit = 0, cold.EVENTS_MAX - most
    asked = (of.sid, top, limit)
    for row in writes.conn.execute(SQL["stored_events"], asked).fetchall():
        record = lineage.sized_record(writes.reader, row, of.head.uid)[0]
        event = record.event
        dense = event.seq == top + 1 + len(cold_events)
        if event.seq > last or event.damage is not None or not dense or size >= cold.BYTES_MAX:
            break
        cold_events.append(Cold(record, rows.is_adopted(row[10])))
        size += 0 if event.processed == 0 else len(record.raw or b"")
    return cold_events


def _move(
    writes: SQLiteWriteConnection, of: _Session, cold_events: list[Cold], joined: int
) -> Compacted | None:
    conn, sid = writes.conn, of.sid
    first, last = cold_events[0].record.event.seq, cold_events[-1].record.event.seq
    row = segment_row(sid, of.head.uid, cold_events, _previous(writes, of, first), writes.codec)
    try:
        cold.decode(cold.encode(cold.hollowed(cold_events)), first, row[6], row[7])
    except Damaged:  # the chain is broken in there: the rows stay for verify to find
        return None
    feed.retire(conn)
    moved = (sid, first, last)
    before = int(conn.execute(SQL["rows_bytes"], moved).get)
    conn.execute(SQL["drop_segment"], (sid, first))
    conn.execute(SQL["add_segment"], row)
    marks = [(sid, cold.mark(c.record.event.id), c.record.event.seq) for c in cold_events[joined:]]
    conn.executemany(SQL["add_segment_id"], marks)
    conn.execute(SQL["drop_rows"], moved)
    dropped = conn.changes()
    writes.reader.cold.forget()
    return Compacted(dropped, before, len(row[4]) + cold.ID_BYTES * len(marks))


def _previous(writes: SQLiteWriteConnection, of: _Session, first: int) -> bytes:
    """The link before the first event of a segment."""
    if first > of.head.floor + 1:
        link: Any = writes.reader.cold.link_at(of.sid, of.head.uid, first - 1)
        assert link is not None, "the segment before it ends there"
        return bytes(link)
    return writes.reader.base(of.sid, of.head).link if of.head.floor else genesis(of.head.uid)
