"""Pages of heads: one index range each, put together from what the query names."""

from __future__ import annotations

from contextlib import closing
from typing import Any, TypeAlias

import apsw
import msgspec

from limpet.model import limits
from limpet.store.paging import cursor as cursors
from limpet.store.paging import walk
from limpet.store.protocol import Page, Query
from limpet.store.sqlite import rows

HeadRow: TypeAlias = tuple[Any, ...]  # of HEAD_COLUMNS, or of TOMBSTONE_COLUMNS
_COLUMNS = ", ".join(f"s.{column}" for column in rows.HEAD_COLUMNS.split(", "))
_CREATED, _UPDATED, _FACTS = 7, 8, 10  # in a row of either; facts are in a row of heads
_decode_facts = msgspec.json.Decoder(dict[str, Any]).decode


def page(conn: apsw.Connection, query: Query, *, cursor: str | None, limit: int) -> Page:
    """One page, and the cursor to the next if there is one."""
    found, more = rows_of(conn, query, cursor=cursor, limit=limit)
    made = rows.tombstone_from if query.deleted else rows.head_from
    return Page(tuple([made(row) for row in found]), more)


def rows_of(
    conn: apsw.Connection, query: Query, *, cursor: str | None, limit: int
) -> tuple[list[HeadRow], str | None]:
    """The rows of one page, and the cursor to the next if there is one."""
    cursors.check(query)
    sql, args = _by_key(query, cursor) if _keyed(query) else _statement(query, cursor)
    most = limits.WALK_MAX if cursors.filters(query) else limit + 1
    # Row by row: what lies beyond the page is not read. Closed, or its reading would go on.
    with closing(conn.cursor()) as found:
        met, last = walk(found.execute(sql, (*args, most)), lambda row: _passes(row, query), limit)
    return met, None if last is None else cursor_after(last, query)


def cursor_after(row: HeadRow, query: Query) -> str:
    """Where a page that ends with this row is gone on from."""
    if _keyed(query):
        return cursors.write_key(query, rows.key_of(row), row[0])
    mark = row[_UPDATED] if query.order == "updated" else row[_CREATED]
    return cursors.write(query, mark, row[0])


def _keyed(query: Query) -> bool:
    return query.deleted or query.order == "key"


def _passes(row: HeadRow, query: Query) -> bool:
    schema = None if query.schema_version is None else _schema(row)
    return cursors.passes(query, row[_CREATED], row[_UPDATED], schema)


def _schema(row: HeadRow) -> str | None:
    facts = row[_FACTS]
    found: str | None = None if facts is None else _decode_facts(facts).get("schema_version")
    return found


def _statement(query: Query, cursor: str | None) -> tuple[str, list[Any]]:
    mark = "s.updated_us" if query.order == "updated" else "s.created_us"
    source, (where, args) = "sessions s", _owned(query)
    if query.labels:
        source, mark, where, args = _by_label(query)
    row = "l0.sid" if query.labels else "s.sid"
    _add_range(query, mark, where, args)
    order = [mark, row]
    if query.order == "updated":  # by slots, as the index has them, and sorted within each
        order.insert(0, "s.slot")
    if cursor is not None:
        sign, (at, at_row) = "<" if query.reverse else ">", cursors.read(cursor, query)
        if query.order == "updated":
            where.append(f"s.slot {sign}= ?")
            args.append(at >> limits.UPDATE_SLOT_BITS)
        where.append(f"({mark}, {row}) {sign} (?, ?)")
        args += [at, at_row]
    return _select(source, where, order, query), args


def _owned(query: Query) -> tuple[list[str], list[Any]]:
    """Whose sessions: an app's, a user's, or everybody's."""
    if query.app is None:
        reserved = "(s.app < '$' OR s.app >= '%')"
        return ([] if query.reserved else [reserved]), []
    if query.user is None:
        return ["s.app = ?"], [query.app]
    return ["s.app = ?", "s.user = ?"], [query.app, query.user]


def _add_range(query: Query, mark: str, where: list[str], args: list[Any]) -> None:
    """The times between which the order's index is read."""
    if query.order == "updated":
        if query.updated_after_us is not None:
            where += ["s.slot >= ?", f"{mark} > ?"]
            args += [query.updated_after_us >> limits.UPDATE_SLOT_BITS, query.updated_after_us]
        return
    for sign, bound in ((">", query.created_after_us), ("<", query.created_before_us)):
        if bound is not None:
            where.append(f"{mark} {sign} ?")
            args.append(bound)


def _select(source: str, where: list[str], order: list[str], query: Query) -> str:
    columns = _COLUMNS if not query.deleted else rows.TOMBSTONE_COLUMNS
    way = "DESC" if query.reverse else "ASC"
    chosen = f" WHERE {' AND '.join(where)}" if where else ""
    ordered = ", ".join(f"{column} {way}" for column in order)
    return f"SELECT {columns} FROM {source}{chosen} ORDER BY {ordered} LIMIT ?"


def _by_key(query: Query, cursor: str | None) -> tuple[str, list[Any]]:
    """In the order of keys: living sessions, or those that were deleted."""
    where, args = _owned(query)
    columns = ["s.app", "s.user", "s.id", "s.sid"]
    rest = columns if query.app is None else columns[1 if query.user is None else 2 :]
    if query.prefix:
        where.append("s.id >= ? AND substr(s.id, 1, ?) = ?")
        args += [query.prefix, len(query.prefix), query.prefix]
        last = prefix_end(query.prefix)
        if last is not None:
            where.append("s.id < ?")
            args.append(last)
    if cursor is not None:
        key, row = cursors.read_key(cursor, query)
        marks = ", ".join("?" for _ in rest)
        where.append(f"({', '.join(rest)}) {'<' if query.reverse else '>'} ({marks})")
        args += [key.app, key.user, key.id, row][-len(rest) :]
    source = "tombstones s" if query.deleted else "sessions s"
    return _select(source, where, rest, query), args


def prefix_end(prefix: str) -> str | None:
    """The first text, by code points, after every one that begins so; None if there is none."""
    for end in range(len(prefix), 0, -1):
        point = ord(prefix[end - 1]) + 1
        if point == 0xD800:  # surrogates are not text
            point = 0xE000
        if point <= 0x10FFFF:
            return prefix[: end - 1] + chr(point)
    return None


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
