"""States of a page of sessions: heads, snapshots, events since and names in one round trip."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final, TypeAlias

from limpet.errors import SessionDeleted, SessionErased, SessionNotFound
from limpet.model import limits
from limpet.model.events import Event
from limpet.model.fold import Fold, ScopeKey, ScopeValue, replay_any
from limpet.model.head import Head, blank
from limpet.model.keys import Key
from limpet.model.values import FrozenDict
from limpet.store.postgres import heads, rows
from limpet.store.postgres.connect import Connection
from limpet.store.postgres.reader import Reader
from limpet.store.postgres.rows import SQL
from limpet.store.protocol import Page, Query, scope_fields

Names: TypeAlias = dict[tuple[str, str], dict[str, ScopeValue]]  # by app and owner
_REST: Final[dict[str, Any]] = {
    **dict.fromkeys(("cause", "invocation_id", "correlation_id", "wake_id", "processed_us")),
    "actor": "",
    "at_us": 0,
    "link": b"",
}


async def page(
    reader: Reader, conn: Connection, query: Query, *, cursor: str | None, limit: int
) -> Page:
    """A page of heads with their states, all from one snapshot of the server."""
    asked, args = heads.statement(query, cursor, limit)
    sql = SQL["states"].replace("{page}", asked).replace("{limit}", str(limit))
    sql = sql.replace("{bytes}", str(limits.STATES_BYTES_MAX))
    sql = sql.replace("{overhead}", str(limits.EVENT_OVERHEAD_BYTES))
    sql = sql.replace("{name}", str(limits.STATES_NAME_BYTES))
    kinds: tuple[list[Any], ...] = ([], [], [])
    for row in await conn.fetch(sql, *args):
        kinds[row["kind"]].append(row)
    found, named, events = kinds
    met, more = heads.on_page(sorted(found, key=itemgetter("place")), query, limit)
    kept = [row for row in met if row["within"]]
    if len(kept) < len(met):
        more = heads.cursor_after(kept[-1], query)
    names, since = _names(reader, named), _by_session(events)
    listed = tuple([heads.head_of(row) for row in kept])
    states: dict[Key, FrozenDict] = {}
    for head, row in zip(listed, kept, strict=True):
        fields = await _fields(reader, conn, head, row, since.get(row["sid"], []))
        if fields is not None:
            states[head.key] = FrozenDict({**fields, **_shared(names, head.key)})
    damaged = tuple([head.key for head in listed if head.key not in states])
    return Page(listed, more, states, damaged)


def _by_session(events: list[Any]) -> dict[int, list[Any]]:
    """Rows of events in the order of their seqs, by the number of their session."""
    found: dict[int, list[Any]] = {}
    for row in sorted(events, key=itemgetter("version")):
        found.setdefault(row["sid"], []).append(row)
    return found


async def _fields(
    reader: Reader, conn: Connection, head: Head, row: Any, since: list[Any]
) -> FrozenDict | None:
    """The session's own fields at its head; None if an event of it cannot be read."""
    fold = Fold(blank(head.key, head.uid, head.created_us))
    if row["snap_seq"] is not None:
        stored = {name: row[f"snap_{name}"] for name in ("seq", "flags", "body", "crc")}
        _, kept, _ = reader.snapshot(head, stored)
        if kept is None:
            return await _reread(reader, conn, head.key)  # what it stood for
        fold = kept
    for each in since:
        event = _event(reader, head, each)
        dense = event.seq == fold.head.version + 1
        fold, readable = replay_any(fold, event)
        if not dense or not readable:
            return None
    return fold.fields if fold.head.version == head.version else None


def _event(reader: Reader, head: Head, row: Any) -> Event:
    """As much of an event as a fold of fields needs: its body and where that belongs."""
    body = {name: row[f"snap_{name}"] for name in ("flags", "body", "crc")}
    named = {"seq": row["version"], "id": row["id"], "type": row["uid"]}
    return rows.event_from({**_REST, **named, **body}, head.uid, reader.codec)


async def _reread(reader: Reader, conn: Connection, key: Key) -> FrozenDict | None:
    """The whole log of one session, because its snapshot cannot be read."""
    try:
        found = await reader.load(conn, key)
    except (SessionNotFound, SessionDeleted, SessionErased):  # it ended since the page was read
        return None
    return None if found.live.damaged else found.live.fold.fields


def _names(reader: Reader, found: list[Any]) -> Names:
    """The newest version of every shared name, by its owner."""
    names: dict[ScopeKey, rows.Name] = {}
    for row in sorted(found, key=itemgetter("version")):
        key = (row["app"], row["owner"], row["id"])
        name = names.setdefault(key, rows.Name(key, reader.codec))
        name.add(
            {
                "version": row["version"],
                "base": row["created_us"],
                "form": row["pending"],
                "uid": row["uid"],
                "seq": row["updated_us"],
                "flags": row["snap_flags"],
                "body": row["snap_body"],
                "crc": row["snap_crc"],
            }
        )
    values: Names = {}
    for (app, owner, called), name in names.items():
        if name.value is not None:
            values.setdefault((app, owner), {})[called] = name.value
    return values


def _shared(names: Names, key: Key) -> dict[str, Any]:
    app, user = names.get((key.app, ""), {}), names.get((key.app, key.user), {})
    return {**scope_fields(app), **scope_fields(user)}
