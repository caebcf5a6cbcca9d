"""States of a page of sessions: heads, snapshots, events since and names in one round trip."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, TypeAlias

from limpet.errors import SessionDeleted, SessionErased, SessionNotFound
from limpet.model import (
    EVENT_OVERHEAD_BYTES,
    STATES_BYTES_MAX,
    STATES_NAME_BYTES,
    FrozenDict,
    Head,
    Key,
    ScopeKey,
    ScopeValue,
)
from limpet.store.coding import SEALED, scope_owner
from limpet.store.postgres import rows
from limpet.store.postgres.reading import heads
from limpet.store.postgres.reading.reader import PostgresReader, replayed
from limpet.store.postgres.server import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Page, Query, scope_fields

NamesByOwner: TypeAlias = dict[tuple[str, str], dict[str, ScopeValue]]  # by app and owner


async def page(
    reader: PostgresReader, conn: Connection, query: Query, *, cursor: str | None, limit: int
) -> Page:
    """A page of heads with their states, all from one snapshot of the server."""
    sizes = (STATES_BYTES_MAX, EVENT_OVERHEAD_BYTES, STATES_NAME_BYTES)
    bounds = (limit, *sizes)
    asked, args = heads.statement(query, cursor, limit, *bounds)
    page = f"SELECT q.*, row_number() OVER () AS place FROM ({asked}) q"
    sql = f"WITH page AS MATERIALIZED ({page}){SQL['states']}"
    kinds = rows.by_kind(await conn.fetch(sql, *args))
    met, more = heads.on_page(sorted(kinds["head"], key=itemgetter("place")), query, limit)
    kept = [row for row in met if row["within"]]
    if len(kept) < len(met):
        more = heads.cursor_after(kept[-1], query)
    _require_keys(reader, kinds)
    names, since = _names(reader, kinds["name"]), _by_session(kinds["event"])
    starts = {row["sid"]: row for row in kinds["snapshot"] + kinds["base"]}
    listed = tuple([rows.head_from(rows.key_from(row), row) for row in kept])
    states: dict[Key, FrozenDict] = {}
    for head, row in zip(listed, kept, strict=True):
        sid = row["sid"]
        fields = await _fields(reader, conn, head, starts.get(sid), since.get(sid, []))
        if fields is not None:
            states[head.key] = FrozenDict({**fields, **_shared(names, head.key)})
    damaged = tuple([head.key for head in listed if head.key not in states])
    return Page(listed, more, states, damaged)


def _require_keys(reader: PostgresReader, kinds: dict[str, list[Any]]) -> None:
    """The keys of the whole page, not of one session at a time."""
    uids = {row["sid"]: row["uid"] for row in kinds["head"]}
    bodies = [row for row in (*kinds["snapshot"], *kinds["event"]) if row["flags"] & SEALED]
    names = [row for row in kinds["name"] if row["flags"] & SEALED]
    owners = [uids[row["sid"]] for row in bodies if row["sid"] in uids]
    owners += [scope_owner(row["app"], row["owner"]) for row in names]
    reader.codec.sealer.require(owners)


def _by_session(events: list[Any]) -> dict[int, list[Any]]:
    """Rows of events in the order of their seqs, by the number of their session."""
    found: dict[int, list[Any]] = {}
    for row in sorted(events, key=itemgetter("seq")):
        found.setdefault(row["sid"], []).append(row)
    return found


async def _fields(
    reader: PostgresReader, conn: Connection, head: Head, start: Any, since: list[Any]
) -> FrozenDict | None:
    """The session's own fields at its head; None if an event of it cannot be read."""
    events = [rows.event_from(each, head.uid, reader.codec) for each in since]
    begun = reader.start(head, start, events[0] if events else None)
    if begun is None:
        return await _reread(reader, conn, head.key)  # what the snapshot stood for
    fold = replayed(begun[0], events, head.version)
    return None if fold.damaged else fold.fields


async def _reread(reader: PostgresReader, conn: Connection, key: Key) -> FrozenDict | None:
    """The whole log of one session, because its newest snapshot cannot be read."""
    try:
        found = await reader.load(conn, key)
    except (SessionNotFound, SessionDeleted, SessionErased):  # it ended since the page was read
        return None
    return None if found.live.damaged else found.live.fold.fields


def _names(reader: PostgresReader, found: list[Any]) -> NamesByOwner:
    """The newest version of every shared name, by its owner."""
    names: dict[ScopeKey, rows.ScopeNameReader] = {}
    for row in sorted(found, key=itemgetter("version")):
        key = (row["app"], row["owner"], row["name"])
        names.setdefault(key, rows.ScopeNameReader(key, reader.codec)).add(row)
    values: NamesByOwner = {}
    for (app, owner, called), name in names.items():
        if name.value is not None:
            values.setdefault((app, owner), {})[called] = name.value
    return values


def _shared(names: NamesByOwner, key: Key) -> dict[str, Any]:
    app, user = names.get((key.app, ""), {}), names.get((key.app, key.user), {})
    return {**scope_fields(app), **scope_fields(user)}
