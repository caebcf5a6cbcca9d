"""Pages of heads: one index range each, put together from what the query names."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.model.head import Head, Timer
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict
from limpet.store import cursor as cursors
from limpet.store.postgres.connect import Connection
from limpet.store.protocol import Page, Query

_COLUMNS: Final = (
    "s.sid, s.app, s.owner, s.id, s.uid, s.version, s.link, s.created_us, s.updated_us, "
    "s.labels::text, s.pending, s.pending_us, s.timers::text, s.priority, s.schema_version, "
    "s.fence, s.lease_us, s.worker"
)
_timers: Final = msgspec.json.Decoder(dict[str, Timer]).decode


async def page(conn: Connection, query: Query, *, cursor: str | None, limit: int) -> Page:
    """One page, and the cursor to the next if there is one."""
    cursors.check(query)
    args: list[Any] = []
    source, where, mark = _source(query, args)
    row = "l0.sid" if query.labels else "s.sid"
    columns = [mark, row]
    after_us = query.created_after_us
    at = None if cursor is None else list(cursors.read(cursor, query))
    if query.order == "updated":  # indexed by the second, and sorted within it
        columns.insert(0, "s.updated_s")
        after_us = query.updated_after_us
        if after_us is not None:
            where.append(f"s.updated_s >= {_bind(args, after_us // 1_000_000)}")
        if at is not None:
            at.insert(0, at[0] // 1_000_000)
    if after_us is not None:
        where.append(f"{mark} > {_bind(args, after_us)}")
    if at is not None:
        marks = ", ".join([_bind(args, value) for value in at])
        where.append(f"({', '.join(columns)}) {'<' if query.reverse else '>'} ({marks})")
    way = "DESC" if query.reverse else "ASC"
    order = ", ".join([f"{column} {way}" for column in columns])
    sql = f"SELECT {_COLUMNS} FROM {source} WHERE {' AND '.join(where)} "
    # Written out: of a page whose size it does not know, the server thinks a tenth of the table,
    # and then plans the statement anew on every call.
    sql += f"ORDER BY {order} LIMIT {limit + 1}"
    found = await conn.fetch(sql, *args)
    heads = tuple(_head(r) for r in found[:limit])
    if len(found) <= limit:
        return Page(heads, None)
    last = heads[-1]
    at_us = last.updated_us if query.order == "updated" else last.created_us
    return Page(heads, cursors.write(query, at_us, found[limit - 1][0]))


def _source(query: Query, args: list[Any]) -> tuple[str, list[str], str]:
    """Where the rows come from: the heads themselves, or the rows of a label."""
    where = ["s.deleted_us IS NULL"]
    if not query.labels:
        for column, value in (("app", query.app), ("owner", query.user)):
            if value is not None:
                where.append(f"s.{column} = {_bind(args, value)}")
        return "limpet.sessions s", where, f"s.{query.order}_us"
    source = ""
    for place, (name, value) in enumerate(query.labels.items()):
        source += (" JOIN " if place else "") + f"limpet.labels l{place}"
        if place:
            source += f" ON l{place}.sid = l0.sid AND l{place}.created_us = l0.created_us"
        for column, text in (("app", query.app), ("name", name), ("value", value)):
            where.append(f"l{place}.{column} = {_bind(args, text)}")
        if query.user is not None:
            where.append(f"l{place}.owner = {_bind(args, query.user)}")
    return f"{source} JOIN limpet.sessions s ON s.sid = l0.sid", where, "l0.created_us"


def _bind(args: list[Any], value: Any) -> str:
    args.append(value)
    return f"${len(args)}"


def _head(row: Any) -> Head:
    (
        _,
        app,
        owner,
        id,
        uid,
        version,
        link,
        created,
        updated,
        labels,
        pending,
        since,
        timers,
        *rest,
    ) = row
    plain, ticking = msgspec.json.decode(labels), _timers(timers)
    return Head(
        Key(app, owner, id),
        uid,
        version,
        link,
        created,
        updated,
        FrozenDict(plain) if plain else EMPTY,
        pending,
        since,
        FrozenDict(ticking) if ticking else EMPTY,
        *rest,
    )
