"""Compaction: moving the oldest events of a session into a segment, under the session's lock.

One segment a transaction: its row is written and the rows of its events are removed together.
Commits of that session wait for it, or it for them.
"""

from __future__ import annotations

from typing import Any

from limpet.model import Key, genesis
from limpet.store import cold
from limpet.store.coding.bodies import packed_snapshot
from limpet.store.coding.codec import Damaged
from limpet.store.cold import Cold
from limpet.store.postgres import cold as segments, rows
from limpet.store.postgres.reading.lineage import base_of
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Compacted


async def compact(conn: Connection, reader: PostgresReader, key: Key, upto: int) -> Compacted:
    """Move one segment of events up to a seq; an empty count if nothing is left."""
    await conn.fetch(SQL["lock"], [key.app], [key.user], [key.id])
    row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
    if row is None:
        raise await reader.gone(conn, key)
    if row["archived"]:  # what stands for an archived session stays where every load reads it
        return Compacted()
    top = max(row["floor"], await segments.top(conn, row["sid"]))
    if settled := await _settled_segment(conn, reader, row, top):
        return await _move(conn, reader, row, settled, len(settled)) or Compacted()
    while (done := await _next(conn, reader, key, row, top, upto)) is not None:
        if done.events:
            return done
        top = await segments.top(conn, row["sid"])  # a segment of what is pending, nothing else
    return Compacted()


async def _next(
    conn: Connection, reader: PostgresReader, key: Key, row: Any, top: int, upto: int
) -> Compacted | None:
    """Move the next events; None if there is nothing left to move."""
    last = await conn.fetchval(SQL["compactable"], row["sid"], top, upto, row["version"])
    if last is None or last <= top or not await _keep_snapshot(conn, reader, key, row, last):
        return None
    small = await _small_segment(conn, reader, row, top)
    events = [*small, *await _next_events(conn, reader, row, (top, last), len(small))]
    if events and events[-1].record.event.seq == last:
        at_snapshot = await conn.fetchval(SQL["snapshot_at"], row["sid"], last)
        events = events if at_snapshot else cold.trimmed(events)  # where one stands, a segment ends
    return await _move(conn, reader, row, events, len(small)) if len(events) > len(small) else None


async def _settled_segment(
    conn: Connection, reader: PostgresReader, row: Any, top: int
) -> list[Cold]:
    """A segment with an input that kept its row while it was pending, and is processed by now. Its
    row goes before the event that processed it does: that one has the time."""
    held = await conn.fetchrow(SQL["settled_segment"], row["sid"], top)
    if held is None:
        return []
    try:
        segment = await segments.segment(reader.codec, conn, (row["sid"], row["uid"]), held)
    except Damaged:
        return []  # it stays as it is
    return [] if any([each.record.event.damage for each in segment]) else segment


async def _keep_snapshot(
    conn: Connection, reader: PostgresReader, key: Key, row: Any, last: int
) -> bool:
    """Have a snapshot from there on, so that a load reads no segment. False if there cannot be."""
    newest = await conn.fetchval(SQL["last_snapshot"], row["sid"])
    if newest is not None and newest >= last:
        return True
    live = (await reader.load(conn, key)).live
    if live.fold.damaged:  # a snapshot must not hide that the log is damaged
        return False
    seq, packed, _ = packed_snapshot(live.fold, reader.codec)
    await conn.execute(SQL["put_snapshot"], row["sid"], seq, *packed)
    return True


async def _small_segment(
    conn: Connection, reader: PostgresReader, row: Any, top: int
) -> list[Cold]:
    """The segment before, if it is small and no snapshot stands at its end: it is joined."""
    before = await conn.fetchrow(SQL["segment_below"], row["sid"], top)
    if before is None or before["last"] - before["first"] + 1 >= cold.EVENTS_MIN:
        return []
    if await conn.fetchval(SQL["snapshot_at"], row["sid"], top):
        return []
    try:
        return await segments.segment(reader.codec, conn, (row["sid"], row["uid"]), before)
    except Damaged:
        return []  # it stays as it is


async def _next_events(
    conn: Connection, reader: PostgresReader, row: Any, between: tuple[int, int], most: int
) -> list[Cold]:
    """The next events, as many as fit a segment, up to one that cannot be read."""
    cold_events: list[Cold] = []
    top, last = between
    asked = (row["sid"], top, cold.EVENTS_MAX - most, cold.BYTES_MAX)
    for each in await conn.fetch(SQL["verify_events"], *asked):
        record, _ = rows.record_from(each, row["uid"], reader.codec)
        event = record.event
        if event.seq > last or event.damage is not None or event.seq != top + 1 + len(cold_events):
            break
        cold_events.append(Cold(record, event.seq <= row["adopted"]))
    return cold_events


async def _move(
    conn: Connection, reader: PostgresReader, row: Any, cold_events: list[Cold], joined: int
) -> Compacted | None:
    sid, uid = row["sid"], row["uid"]
    first, last = cold_events[0].record.event, cold_events[-1].record.event
    previous = await _previous(conn, reader, row, first.seq)
    raw = cold.encode(cold.hollowed(cold_events))
    try:
        cold.decode(raw, first.seq, previous, last.link)
    except Damaged:  # the chain is broken in there: the rows stay for verify to find
        return None
    packed = reader.codec.pack(raw, cold.place(uid, first.seq, last.seq), bound=True)
    new = cold_events[joined:]
    seqs = [each.record.event.seq for each in new]
    marks = [cold.mark(each.record.event.id) for each in new]
    asked = (sid, first.seq, last.seq, *packed, previous, last.link, last.at_us)
    await conn.execute(SQL["put_segment"], *asked)
    await conn.execute(SQL["put_segment_ids"], sid, marks, seqs)
    gone = await conn.fetchrow(SQL["move_rows"], sid, first.seq, last.seq)
    size = len(packed[1]) + cold.ID_BYTES * len(new)
    return Compacted(gone["moved"], gone["bytes"], size)


async def _previous(conn: Connection, reader: PostgresReader, row: Any, first: int) -> bytes:
    """The link before the first event of a segment."""
    if first > row["floor"] + 1:
        before = await conn.fetchrow(SQL["segment_below"], row["sid"], first - 1)
        assert before is not None, "the segment before it ends there"
        return bytes(before["link"])
    if not row["floor"]:
        return genesis(row["uid"])
    return (await base_of(reader, conn, row)).link
