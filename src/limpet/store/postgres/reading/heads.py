"""Pages of heads: one index range each, put together from what the query names."""

from __future__ import annotations

import sys
from typing import Any, Final

from limpet.model import limits
from limpet.store.paging import cursor as cursors
from limpet.store.postgres import rows
from limpet.store.postgres.server import Connection
from limpet.store.protocol import Page, Query

_COMMON: Final = (
    "s.sid, s.app, s.owner, s.id AS session_id, s.uid, s.version, s.link, s.created_us, "
    "s.updated_us, s.active_us, s.floor"
)
_LIVING: Final = (
    f"{_COMMON}, s.facts::text, s.fence, s.lease_us, s.leased_us, s.worker, "
    "NULL::bigint AS deleted_us"
)
_DELETED: Final = f"{_COMMON}, s.deleted_us, s.ending"
_UNRESERVED: Final = "(s.app < '$' OR s.app >= '%')"


async def page(conn: Connection, query: Query, *, cursor: str | None, limit: int) -> Page:
    """One page, and the cursor to the next if there is one."""
    sql, args = statement(query, cursor, limit)
    met, more = on_page(await conn.fetch(sql, *args), query, limit)
    read = rows.tombstone_from if query.deleted else rows.head_from
    return Page(tuple([read(rows.key_from(row), row) for row in met]), more)


def statement(query: Query, cursor: str | None, limit: int, *first: Any) -> tuple[str, list[Any]]:
    """What is asked for a page: one row more than it has, to know whether there is another.

    Its parameters come after the `first`, which are the caller's.

    Where the order's index does not serve a filter, the rows of the range are counted as they are
    met, and looked at up to a bound: the last one comes along, whether it passes or not.
    """
    cursors.check(query)
    args: list[Any] = list(first)
    by_key = query.deleted or query.order == "key"
    source, where, columns = (_by_key if by_key else _range)(query, cursor, args)
    if query.app is None and not query.reserved:
        where.append(_UNRESERVED)
    way = "DESC" if query.reverse else "ASC"
    order = ", ".join([f"{column} {way}" for column in columns])
    passes = _passing(query, args)
    number = f"row_number() OVER (ORDER BY {order})" if passes else "0"
    shown = _DELETED if query.deleted else _LIVING
    sql = f"SELECT {shown}, {number} AS n, {passes or 'true'} AS passes FROM {source} "
    sql += f"WHERE {' AND '.join(where)} " if where else ""
    # Written out: of a page whose size it does not know, the server thinks a tenth of the table,
    # and then plans the statement again on every call.
    sql += f"ORDER BY {order} LIMIT {limits.WALK_MAX if passes else limit + 1}"
    if passes:
        sql = f"SELECT * FROM ({sql}) w WHERE passes OR n = {limits.WALK_MAX} LIMIT {limit + 1}"
    return sql, args


def on_page(found: list[Any], query: Query, limit: int) -> tuple[list[Any], str | None]:
    """The rows of a page among those that its statement brought, and the cursor to the next."""
    met = [row for row in found if row["passes"]]
    if len(met) > limit:
        return met[:limit], cursor_after(met[limit - 1], query)
    walked = bool(found) and found[-1]["n"] == limits.WALK_MAX
    return met, cursor_after(found[-1], query) if walked else None


def cursor_after(row: Any, query: Query) -> str:
    """Where a page that ends with this row is gone on from."""
    if query.deleted or query.order == "key":
        return cursors.write_key(query, rows.key_from(row), row["sid"])
    return cursors.write(query, row[f"{query.order}_us"], row["sid"])


def _passing(query: Query, args: list[Any]) -> str:
    """The filters that the order does not go by, as a condition; empty if there are none."""
    if not cursors.filters(query) and not (query.deleted and _ranged(query)):
        return ""
    wanted = []
    for condition, at_us in (
        ("s.created_us >", query.created_after_us),
        ("s.created_us <", query.created_before_us),
        ("s.updated_us >", query.updated_after_us),
    ):
        if at_us is not None:
            wanted.append(f"{condition} {_bind(args, at_us)}")
    if query.schema_version is not None:
        version = _bind(args, query.schema_version)
        wanted.append(f"s.facts ->> 'schema_version' IS NOT DISTINCT FROM {version}")
    return f"({' AND '.join(wanted)})"


def _ranged(query: Query) -> bool:
    return query.created_after_us is not None or query.created_before_us is not None


def _range(query: Query, cursor: str | None, args: list[Any]) -> tuple[str, list[str], list[str]]:
    """The range of an index: its source, its conditions, and the columns that order it."""
    source, where, mark = _source(query, args)
    row = "l0.sid" if query.labels else "s.sid"
    columns = [mark, row]
    at = None if cursor is None else list(cursors.read(cursor, query))
    if query.order == "updated":  # indexed by the slot, and sorted within it
        columns.insert(0, "s.slot")
        after_us = query.updated_after_us
        if after_us is not None:
            where.append(f"s.slot >= {_bind(args, after_us >> rows.SLOT_BITS)}")
            where.append(f"{mark} > {_bind(args, after_us)}")
        if at is not None:
            at.insert(0, at[0] >> rows.SLOT_BITS)
    else:
        for sign, at_us in ((">", query.created_after_us), ("<", query.created_before_us)):
            if at_us is not None:
                where.append(f"{mark} {sign} {_bind(args, at_us)}")
    if at is not None:
        where.append(_beyond(columns, at, args, reverse=query.reverse))
    return source, where, columns


def _by_key(query: Query, cursor: str | None, args: list[Any]) -> tuple[str, list[str], list[str]]:
    """In the order of keys; those deleted under one key in the order of their rows."""
    owner = [value for value in (query.app, query.user) if value is not None]
    columns = ["s.app", "s.owner", "s.id"]
    rest = columns[len(owner) :]
    named = zip(columns[: len(owner)], owner, strict=True)
    where = [f"{column} = {_bind(args, value)}" for column, value in named]
    if query.prefix:
        where.append(f"s.id >= {_bind(args, query.prefix)}")
        if (past := _past(query.prefix)) is not None:
            where.append(f"s.id < {_bind(args, past)}")
    if query.deleted:
        rest.append("s.sid")
    if cursor is not None:
        at, row = cursors.read_key(cursor, query)
        marks = [at.app, at.user, at.id, row][len(owner) :]
        where.append(_beyond(rest, marks[: len(rest)], args, reverse=query.reverse))
    return f"limpet.{'tombstones' if query.deleted else 'sessions'} s", where, rest


def _past(prefix: str) -> str | None:
    """The first text, by code point, after all that begin with this; None if there is none."""
    for place in reversed(range(len(prefix))):
        after = ord(prefix[place]) + 1
        if after <= sys.maxunicode:
            # Surrogates are no characters: what follows the last before them is the first after.
            return prefix[:place] + chr(0xE000 if 0xD800 <= after <= 0xDFFF else after)
    return None


def _beyond(columns: list[str], at: list[Any], args: list[Any], *, reverse: bool) -> str:
    """The condition that a row comes after the one that a cursor names."""
    marks = ", ".join([_bind(args, value) for value in at])
    return f"({', '.join(columns)}) {'<' if reverse else '>'} ({marks})"


def _source(query: Query, args: list[Any]) -> tuple[str, list[str], str]:
    """Where the rows come from: the heads themselves, or the rows of a label."""
    where: list[str] = []
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
