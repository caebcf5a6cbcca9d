"""Histories: a log that begins on a state of its parent is read on in the parent's.

Most logs begin on nothing, and are read by one statement over their own events. Only where a page
goes below the floor of a log are the logs that it began on read too. The
last part finds the events that name a field, and who changed a shared name since.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from limpet.errors import InvalidInput, SessionCorrupt
from limpet.model import (
    Base,
    Event,
    Fold,
    Head,
    Key,
    ScopeKey,
    ScopeValue,
    path_opening,
    removed_event,
    scope_of,
)
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.store.coding.bodies import (
    ScopeNameReader,
    inherited_event,
    is_naming,
    replay_events,
    start_fold,
)
from limpet.store.coding.codec import Damaged
from limpet.store.pages import PageBytes, within
from limpet.store.postgres import cold as segments, rows
from limpet.store.postgres.reading.reader import LAST, PostgresReader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import ChainedEvent, NameSince


async def events(
    reader: PostgresReader,
    conn: Connection,
    key: Key,
    start: int,
    limit: int,
    types: tuple[str, ...] | None,
    *,
    reverse: bool,
) -> list[tuple[Event, int]]:
    """A page of a session's history beyond a seq, or before it and back; with sizes."""
    names, chosen = (key.app, key.user, key.id), select(types)
    end = (start or LAST) if reverse else start
    asked = (*names, end, limit, READ_PAGE_BYTES_MAX, *chosen)
    fetched = await conn.fetch(SQL["read_reverse" if reverse else "read"], *asked)
    if not fetched:
        raise await reader.absent(conn, key)
    if fetched[0]["cold"]:
        return await _slowly(reader, conn, key, end, limit, types, reverse=reverse)
    own = [row for row in fetched if row["seq"] is not None]
    codec, room = reader.codec, PageBytes()
    page = within(room, (rows.sized_event(row, row["uid"], codec) for row in own))
    floor = fetched[0]["floor"]
    below = (len(page) < limit and not room.full) if reverse else start < floor
    if not floor or not below:
        return page
    fetched = await conn.fetch(SQL["read_line_reverse" if reverse else "read_line"], *asked)
    if not fetched:
        raise await reader.absent(conn, key)
    if fetched[0]["cold"]:
        return await _slowly(reader, conn, key, end, limit, types, reverse=reverse)
    return _through(reader, fetched, end, limit, reverse=reverse, stubs=types is None)


async def _slowly(
    reader: PostgresReader,
    conn: Connection,
    key: Key,
    start: int,
    limit: int,
    types: tuple[str, ...] | None,
    *,
    reverse: bool,
) -> list[tuple[Event, int]]:
    """The same of a history of which some events are cold: part by part, from one instant."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
        if row is None or row["archived"]:
            raise await reader.absent(conn, key)
        parts = await conn.fetch(SQL["line_of"], row["sid"])
        bottom = min([part["low"] for part in parts]) if types is None else 0
        gone = range(min(start - 1, bottom), 0, -1) if reverse else range(start + 1, bottom + 1)
        room = PageBytes()
        page = [] if reverse else [(removed_event(seq), 0) for seq in gone[:limit]]
        for part in parts if reverse else parts[::-1]:
            low, high = part["low"], part["high"]
            between = (low, min(high, start - 1)) if reverse else (max(low, start), high)
            if between[0] < between[1] and len(page) < limit and not room.full:
                asked = (between, limit - len(page), room, types)
                page += await _part(reader, conn, part, *asked, reverse=reverse)
        if reverse and len(page) < limit and not room.full:
            page += [(removed_event(seq), 0) for seq in gone[: limit - len(page)]]
    return page


async def _part(
    reader: PostgresReader,
    conn: Connection,
    part: Any,
    between: tuple[int, int],
    limit: int,
    room: PageBytes,
    types: tuple[str, ...] | None,
    *,
    reverse: bool,
) -> list[tuple[Event, int]]:
    """Own events of one session on the way, hot and cold."""
    of, codec, top = (part["sid"], part["uid"]), reader.codec, part["top"]
    (low, high), events = between, list[tuple[Event, int]]()

    async def hot() -> None:
        left, sign = limit - len(events), -1 if reverse else 1
        if high > max(low, top) and left > 0 and not room.full:
            asked = (max(low, top), high, sign, left, READ_PAGE_BYTES_MAX, *select(types))
            rows_ = await conn.fetch(SQL["part"], of[0], *asked)
            events.extend(within(room, (rows.sized_event(r, of[1], codec) for r in rows_)))

    async def cold() -> None:
        left = limit - len(events)
        if low < top and left > 0 and not room.full:
            asked = ((low, min(high, top)), left, room, types)
            events.extend(await segments.events(codec, conn, of, *asked, reverse=reverse))

    for read in (hot, cold) if reverse else (cold, hot):
        await read()
    began = list(zip(part["floors"], part["begans"], strict=True))[::-1]
    return [(inherited_event(event, began), size) for event, size in events]


def _through(
    reader: PostgresReader,
    event_rows: list[Any],
    start: int,
    limit: int,
    *,
    reverse: bool,
    stubs: bool,
) -> list[tuple[Event, int]]:
    """The page in rows of `read_line`, with stubs for what was erased with a parent."""
    bottom = event_rows[0]["bottom"] if stubs else 0
    gone = range(min(start - 1, bottom), 0, -1) if reverse else range(start + 1, bottom + 1)
    there = [row for row in event_rows if row["seq"] is not None]
    room = PageBytes()
    page: list[tuple[Event, int]] = []
    if not reverse:
        page = [(removed_event(seq), 0) for seq in gone[:limit]]
    page += within(room, (_inherited_row(reader, row) for row in there[: limit - len(page)]))
    reached = not there or there[-1]["seq"] == bottom + 1
    if reverse and reached and not room.full:
        page += [(removed_event(seq), 0) for seq in gone[: limit - len(page)]]
    return page


def _inherited_row(reader: PostgresReader, row: Any) -> tuple[Event, int]:
    """The event in a row of `read_line`, as the session that reads it has it, and its size."""
    event, size = rows.sized_event(row, row["uid"], reader.codec)
    return inherited_event(event, list(zip(row["floors"], row["begans"], strict=True))[::-1]), size


async def records(
    reader: PostgresReader, conn: Connection, key: Key, after: int, limit: int
) -> list[tuple[ChainedEvent, int]]:
    """Own events just as they were recorded."""
    row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
    page: list[tuple[ChainedEvent, int]] = []
    if row is not None and after < await segments.top(conn, row["sid"]):
        held = await conn.fetchrow(SQL["segment_above"], row["sid"], after + 1)
        if held is None:  # its rows went to the archive between two statements: look again
            return await records(reader, conn, key, after, limit)
        for each in await segments.segment(reader.codec, conn, (row["sid"], row["uid"]), held):
            if each.record.event.seq > after:
                page.append((each.record.undecoded, len(each.record.raw or b"")))
        return page[:limit]
    asked = (key.app, key.user, key.id, after, limit, READ_PAGE_BYTES_MAX)
    read = await conn.fetch(SQL["records"], *asked)
    if not read:
        raise await reader.gone(conn, key)
    sized = [rows.record_from(r, r["uid"], reader.codec) for r in read if r["seq"] is not None]
    return [(record.undecoded, size) for record, size in sized]


async def base(reader: PostgresReader, conn: Connection, key: Key) -> Base | None:
    """The state that the session's log begins on, if any. Raises SessionCorrupt."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
        if row is None:
            raise await reader.gone(conn, key)
        if not row["floor"]:
            return None
        try:
            return await base_of(reader, conn, row)
        except Damaged as error:
            raise SessionCorrupt(key, str(error)) from error


async def base_of(reader: PostgresReader, conn: Connection, row: Any) -> Base:
    """Return the base of a row that has a floor. Raises Damaged."""
    head, floor = _outline(row), row["floor"]
    first = await conn.fetchrow(SQL["events_between"], row["sid"], floor, floor + 1)
    of = (row["sid"], head.uid)
    if first is None:
        event = await segments.at(reader.codec, conn, of, floor + 1)
    else:
        event = rows.event_from(first, head.uid, reader.codec)
    return reader.base_in(head, await conn.fetchrow(SQL["base_of"], row["sid"]), event)


async def fold_at(
    reader: PostgresReader, conn: Connection, key: Key, seq: int, *, replay: bool = True
) -> Fold:
    """The fold after event `seq`, from one instant; without `replay`, at the snapshot before.

    Raises SessionCorrupt, InvalidInput.
    """
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
        if row is None or row["archived"]:
            raise await reader.absent(conn, key)
        if not 1 <= seq <= row["version"]:
            raise InvalidInput(f"session {key} has no event {seq}.")
        while row is not None and seq <= row["floor"]:
            row = await conn.fetchrow(SQL["origin"], row["parent"])
        if row is None:
            raise SessionCorrupt(key, f"event {seq} was removed with the session it forks")
        fold = await _fold_at(reader, conn, row, seq, replay=replay)
    if fold.damaged:
        raise SessionCorrupt(key, f"event {fold.damaged[0]} cannot be read")
    return fold


async def _fold_at(
    reader: PostgresReader, conn: Connection, row: Any, seq: int, *, replay: bool
) -> Fold:
    """The fold after an own event of the session in a row."""
    sid, head = row["sid"], _outline(row)
    start, until = None, seq
    while start is None:
        snapshot = await conn.fetchrow(SQL["snapshot_below"], sid, until)
        if snapshot is None:
            base = None
            if head.floor:
                with suppress(Damaged):
                    base = await base_of(reader, conn, row)
            start = start_fold(head, base)
        else:
            fold = reader.snapshot(head, snapshot)
            start, until = None if fold is None else fold[0], snapshot["seq"] - 1
    if not replay:
        return start
    at = start.head.version
    top = min(seq, await segments.top(conn, sid))
    cold = await segments.all_events(reader.codec, conn, (sid, head.uid), at, top)
    since = await conn.fetch(SQL["events_between"], sid, max(at, top), seq)
    hot = [rows.event_from(r, head.uid, reader.codec) for r in since]
    return replay_events(start, [*cold, *hot], seq)


async def time_at(reader: PostgresReader, conn: Connection, sid: int, seq: int) -> int | None:
    """The time at which an event of a session's history was recorded."""
    at_us: int | None = await conn.fetchval(SQL["time_at"], sid, seq)
    if at_us is None and (event := await _cold_at(reader, conn, sid, seq)) is not None:
        at_us = event.at_us
    return at_us


async def link_at(reader: PostgresReader, conn: Connection, sid: int, seq: int) -> bytes | None:
    """The link of an event of a session's history, hot or cold."""
    link: bytes | None = await conn.fetchval(SQL["link_at"], sid, seq)
    if link is None and (event := await _cold_at(reader, conn, sid, seq)) is not None:
        link = event.link or None
    return link


async def _cold_at(reader: PostgresReader, conn: Connection, sid: int, seq: int) -> Event | None:
    """An event of a session's history that is in a segment."""
    for part in await conn.fetch(SQL["line_of"], sid):
        if part["low"] < seq <= min(part["high"], part["top"]):
            of = (part["sid"], part["uid"])
            return await segments.at(reader.codec, conn, of, seq)
    return None


def _outline(row: Any) -> Head:
    """Return as much of a head as its log begins with."""
    created_us = row["created_us"]
    times = (created_us, created_us, created_us)
    return Head(rows.key_from(row), row["uid"], row["version"], b"", *times, floor=row["floor"])


def select(types: tuple[str, ...] | None) -> tuple[list[str] | None, list[str] | None]:
    """Types as parameters of a statement: exact names, and patterns for families."""
    if types is None:
        return None, None
    exact = [t for t in types if not t.endswith(".*")]
    return exact, [_like(t[:-1]) for t in types if t.endswith(".*")]


def _like(prefix: str) -> str:
    return prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


_PAGE: Final = 100


async def events_naming(
    reader: PostgresReader,
    conn: Connection,
    key: Key,
    name: str,
    between: tuple[int, int],
    limit: int,
) -> list[tuple[Event, int]]:
    """A page of the history between seqs, descending, with all events that name a field."""
    before, after = between
    asked = (before, limit, READ_PAGE_BYTES_MAX, path_opening(name), after)
    fetched = await conn.fetch(SQL["naming"], key.app, key.user, key.id, *asked)
    if not fetched:
        raise await reader.absent(conn, key)
    hot = [_inherited_row(reader, row) for row in fetched if row["seq"] is not None]
    if len(hot) < limit and await conn.fetchval(SQL["has_cold"], fetched[0]["sid"]):
        return await _with_cold(reader, conn, key, name, between, limit)
    return hot


async def _with_cold(
    reader: PostgresReader,
    conn: Connection,
    key: Key,
    name: str,
    between: tuple[int, int],
    limit: int,
) -> list[tuple[Event, int]]:
    """The same of a history of which some events are cold: all of it is read through."""
    before, after = between
    naming: list[tuple[Event, int]] = []
    while before > after + 1 and len(naming) < limit:
        page = await events(reader, conn, key, before, _PAGE, None, reverse=True)
        naming += [p for p in page if p[0].seq > after and is_naming(p[0], name)]
        before = page[-1][0].seq if page else 0
    return naming[:limit]


async def names_since(
    reader: PostgresReader, conn: Connection, key: Key, seq: int, names: Sequence[str]
) -> dict[str, NameSince]:
    """The values of shared names before the session changed them, and whether others did too."""
    changes: dict[str, NameSince] = {}
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
        if row is None or row["archived"]:
            raise await reader.absent(conn, key)
        at = (seq, await time_at(reader, conn, row["sid"], seq) or 0)
        for name in names:
            of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
            since = await _since(reader, conn, row["uid"], at, of)
            if since is not None:
                changes[name] = since
    return changes


async def _since(
    reader: PostgresReader, conn: Connection, mine: str, at: tuple[int, int], of: ScopeKey
) -> NameSince | None:
    first, newest, others, below = 0, 0, False, LAST
    while page := await conn.fetch(SQL["scope_makers"], *of, below, _PAGE):
        newest, below = newest or page[0]["version"], page[-1]["version"]
        for version, uid, seq, when_us in page:
            own = uid == mine
            if seq <= at[0] if own else when_us is not None and when_us < at[1]:
                below = 0
                break
            first, others = (version, others) if own else (first, True)
        if not below:
            break
    if not first:
        return None
    return NameSince(await _value(reader, conn, of, first - 1), newest, others)


async def _value(
    reader: PostgresReader, conn: Connection, of: ScopeKey, version: int
) -> ScopeValue | None:
    """The value of a name at one version."""
    name = ScopeNameReader(of, reader.codec)
    fetched: list[Any] = await conn.fetch(SQL["scope_at"], *of, version)
    for row in fetched:
        name.add(rows.scope_row(row))
    return name.value
