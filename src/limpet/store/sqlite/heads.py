"""Pages of heads: one index range each, put together from what the query names."""

from __future__ import annotations

from typing import Any

import apsw

from limpet.store import cursor as cursors
from limpet.store.protocol import Page, Query
from limpet.store.sqlite import rows


def page(conn: apsw.Connection, query: Query, *, cursor: str | None, limit: int) -> Page:
    """One page, and the cursor to the next if there is one."""
    cursors.check(query)
    sql, args = _statement(query, cursor)
    found: list[tuple[Any, ...]] = conn.execute(sql, (*args, limit + 1)).fetchall()
    heads = tuple(rows.head_from(row) for row in found[:limit])
    if len(found) <= limit:
        return Page(heads, None)
    last = heads[-1]
    mark = last.updated_us if query.order == "updated" else last.created_us
    return Page(heads, cursors.write(query, mark, found[limit - 1][0]))


def _statement(query: Query, cursor: str | None) -> tuple[str, list[Any]]:
    mark = "s.updated_us" if query.order == "updated" else "s.created_us"
    source, where = "sessions s", ["s.deleted_us IS NULL"]
    args: list[Any] = []
    if query.labels:
        source, mark, more, args = _by_label(query)
        where += more
    else:
        for column, value in (("app", query.app), ("user", query.user)):
            if value is not None:
                where.append(f"s.{column} = ?")
                args.append(value)
    after_us = query.updated_after_us if query.order == "updated" else query.created_after_us
    if after_us is not None:
        where.append(f"{mark} > ?")
        args.append(after_us)
    row = "l0.sid" if query.labels else "s.sid"
    if cursor is not None:
        where.append(f"({mark}, {row}) {'<' if query.reverse else '>'} (?, ?)")
        args += cursors.read(cursor, query)
    columns = ", ".join(f"s.{column}" for column in rows.HEAD_COLUMNS.split(", "))
    way = "DESC" if query.reverse else "ASC"
    sql = f"SELECT {columns} FROM {source} WHERE {' AND '.join(where)} "
    return sql + f"ORDER BY {mark} {way}, {row} {way} LIMIT ?", args


def _by_label(query: Query) -> tuple[str, str, list[str], list[Any]]:
    """The first label is an index range; each further one is looked up for every row of it."""
    source, where, args = "", [], []
    for place, (name, value) in enumerate(query.labels.items()):
        source += (" CROSS JOIN " if place else "") + f"labels l{place}"
        where += [f"l{place}.app = ?", f"l{place}.name = ?", f"l{place}.value = ?"]
        args += [query.app, name, value]
        if query.user is not None:
            where.append(f"l{place}.user = ?")
            args.append(query.user)
        if place:
            where += [f"l{place}.created_us = l0.created_us", f"l{place}.sid = l0.sid"]
    where.append("s.sid = l0.sid")
    return source + " CROSS JOIN sessions s", "l0.created_us", where, args
