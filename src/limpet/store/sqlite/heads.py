"""Pages of heads: one index range each, put together from what the query names."""

from __future__ import annotations

from contextlib import closing
from typing import Any, TypeAlias

import apsw

from limpet.model import limits
from limpet.model.head import Head, buried
from limpet.store import cursor as cursors
from limpet.store.pages import walk
from limpet.store.protocol import Page, Query
from limpet.store.sqlite import rows

Row: TypeAlias = tuple[Any, ...]  # of HEAD_COLUMNS
_COLUMNS = ", ".join(f"s.{column}" for column in rows.HEAD_COLUMNS.split(", "))
_PLACES = {name: place for place, name in enumerate(rows.HEAD_COLUMNS.split(", "))}
_CREATED, _UPDATED = _PLACES["created_us"], _PLACES["updated_us"]
_SCHEMA, _DELETED = _PLACES["schema_version"], _PLACES["deleted_us"]


def page(conn: apsw.Connection, query: Query, *, cursor: str | None, limit: int) -> Page:
    """One page, and the cursor to the next if there is one."""
    found, more = rows_of(conn, query, cursor=cursor, limit=limit)
    return Page(tuple([head_of(row) for row in found]), more)


def rows_of(
    conn: apsw.Connection, query: Query, *, cursor: str | None, limit: int
) -> tuple[list[Row], str | None]:
    """The rows of one page, and the cursor to the next if there is one."""
    cursors.check(query)
    sql, args = _by_key(query, cursor) if query.deleted else _statement(query, cursor)
    most = limits.WALK_MAX if cursors.filters(query) else limit + 1
    # Row by row: what lies beyond the page is not read. Closed, or its reading would go on.
    with closing(conn.cursor()) as found:
        met, last = walk(found.execute(sql, (*args, most)), lambda row: _passes(row, query), limit)
    return met, None if last is None else cursor_after(last, query)


def head_of(row: Row) -> Head:
    """The head of a living session, or what is kept of a deleted one. Raises Damaged."""
    head, deleted_us = rows.head_from(row), row[_DELETED]
    return head if deleted_us is None else buried(head, deleted_us)


def cursor_after(row: Row, query: Query) -> str:
    """Where a page that ends with this row is gone on from."""
    if query.deleted:
        return cursors.write_key(query, rows.key_of(row))
    mark = row[_UPDATED] if query.order == "updated" else row[_CREATED]
    return cursors.write(query, mark, row[0])


def _passes(row: Row, query: Query) -> bool:
    if query.deleted and row[_DELETED] is None:
        return False
    return cursors.passes(query, row[_CREATED], row[_UPDATED], row[_SCHEMA])


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
    way = "DESC" if query.reverse else "ASC"
    sql = f"SELECT {_COLUMNS} FROM {source} WHERE {' AND '.join(where)} "
    return sql + f"ORDER BY {mark} {way}, {row} {way} LIMIT ?", args


def _by_key(query: Query, cursor: str | None) -> tuple[str, list[Any]]:
    """Living and deleted in the order of their keys, the only index that has the deleted."""
    columns = ["app", "user", "id"]
    args = [value for value in (query.app, query.user) if value is not None]
    where = [f"s.{column} = ?" for column in columns[: len(args)]]
    rest = columns[len(args) :]
    if cursor is not None:
        at = cursors.read_key(cursor, query)
        names = ", ".join(f"s.{column}" for column in rest)
        marks = ", ".join("?" for _ in rest)
        where.append(f"({names}) {'<' if query.reverse else '>'} ({marks})")
        args += [getattr(at, column) for column in rest]
    way = "DESC" if query.reverse else "ASC"
    chosen = f"WHERE {' AND '.join(where)} " if where else ""
    order = ", ".join(f"s.{column} {way}" for column in rest)
    return f"SELECT {_COLUMNS} FROM sessions s {chosen}ORDER BY {order} LIMIT ?", args


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
