"""Cold segments on the server: reading on into them.

The events of a session that are in segments are always its oldest own ones. A segment ends where a
snapshot stands, so a state of long ago is read from a snapshot and one segment. Most sessions have
none, and are read by statements that know nothing of segments. What is pending keeps its row, and
is read from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from limpet.model import Event
from limpet.store import cold
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.cold import Cold
from limpet.store.pages import PageBytes, wanted, within
from limpet.store.postgres import rows
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL


async def top(conn: Connection, sid: int) -> int:
    """The newest event of a session that is in a segment; 0 if none is."""
    return int(await conn.fetchval(SQL["segment_top"], sid) or 0)


async def events(
    codec: Codec,
    conn: Connection,
    of: tuple[int, str],
    between: tuple[int, int],
    limit: int,
    room: PageBytes,
    types: tuple[str, ...] | None = None,
    *,
    reverse: bool = False,
) -> list[tuple[Event, int]]:
    """Return the events of a session (its sid and uid) with low < seq <= high, as many as fit a
    page."""
    page: list[tuple[Event, int]] = []
    low, high = between
    at = high if reverse else low + 1
    name = "segment_below" if reverse else "segment_above"
    while low < at <= high and len(page) < limit and not room.full:
        row = await conn.fetchrow(SQL[name], of[0], at)
        if row is None or row["last"] <= low or row["first"] > high:
            break
        held = await readable(codec, conn, of, row)
        chosen = [
            pair
            for pair in (reversed(held) if reverse else held)
            if low < pair[0].seq <= high and wanted(pair[0].type, types)
        ]
        page += within(room, chosen[: limit - len(page)])
        at = row["first"] - 1 if reverse else row["last"] + 1
    return page


async def all_events(
    codec: Codec, conn: Connection, of: tuple[int, str], low: int, high: int
) -> list[Event]:
    """Return all events without bounds, ascending, to be replayed."""
    every: list[Event] = []
    while low < high:
        page = await events(codec, conn, of, (low, high), high - low, PageBytes())
        if not page:
            break
        every += [event for event, _ in page]
        low = page[-1][0].seq
    return every


async def at(codec: Codec, conn: Connection, of: tuple[int, str], seq: int) -> Event | None:
    page = await events(codec, conn, of, (seq - 1, seq), 1, PageBytes())
    return page[0][0] if page else None


async def by_ids(
    codec: Codec, conn: Connection, of: tuple[int, str], ids: Sequence[str]
) -> list[Event]:
    """The events that were recorded under these ids."""
    page: list[Event] = []
    marks = {cold.mark(id): id for id in ids}
    for row in await conn.fetch(SQL["segment_seqs"], of[0], list(marks)):
        event = await at(codec, conn, of, row["seq"])
        if event is not None and event.id in ids:
            page.append(event)
    return page


async def readable(
    codec: Codec, conn: Connection, of: tuple[int, str], row: Any
) -> list[tuple[Event, int]]:
    """The events of a segment; if it cannot be read, what stands for each."""
    try:
        opened = await segment(codec, conn, of, row)
    except Damaged as error:
        seqs = range(row["first"], row["last"] + 1)
        lost = {"id": "", "type": "", "actor": "", "at_us": 0, "data": None}
        return [(Event(seq=seq, damage=str(error), **lost), 0) for seq in seqs]  # type: ignore[arg-type]
    return [(each.record.event, len(each.record.raw or b"")) for each in opened]


async def segment(codec: Codec, conn: Connection, of: tuple[int, str], row: Any) -> list[Cold]:
    """The events of one segment, those that are pending from their rows. Raises SegmentDamaged."""
    seqs, links = (row["first"], row["last"]), (row["previous"], row["link"])
    opened = cold.opened(codec, of[1], seqs, (row["flags"], row["body"], row["crc"]), links)
    if not cold.lacks(opened):
        return opened
    adopted = {each.record.event.seq for each in opened if each.adopted}
    kept = {}
    for each in await conn.fetch(SQL["kept_rows"], of[0], *seqs):
        record = rows.record_from(each, of[1], codec)[0]
        kept[each["seq"]] = Cold(record, each["seq"] in adopted)
    return cold.filled(opened, kept)
