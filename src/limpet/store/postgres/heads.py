"""Pages of heads: one index range each, put together from what the query names."""

from __future__ import annotations

from typing import Any, Final

from limpet.model import limits
from limpet.store import cursor as cursors
from limpet.store.postgres import rows
from limpet.store.postgres.server.settings import Connection
from limpet.store.protocol import Page, Query

_COLUMNS: Final = (
    "s.sid, s.app, s.owner, s.id AS session_id, s.uid, s.version, s.link, s.created_us, "
    "s.updated_us, s.labels::text, s.pending, s.pending_us, s.timers::text, s.priority, "
    "s.schema_version, s.fence, s.lease_us, s.worker, s.deleted_us"
)


async def page(conn: Connection, query: Query, *, cursor: str | None, limit: int) -> Page:
    """One page, and the cursor to the next if there is one."""
    sql, args = statement(query, cursor, limit)
    met, more = on_page(await conn.fetch(sql, *args), query, limit)
    return Page(tuple([rows.head_from(rows.key_from(row), row) for row in met]), more)


def statement(query: Query, cursor: str | None, limit: int, *first: Any) -> tuple[str, list[Any]]:
    """What is asked for a page: one row more than it has, to know whether there is another.

    Its parameters come after the `first`, which are the caller's.

    Where the order's index does not serve a filter, the rows of the range are counted as they are
    met, and looked at up to a bound: the last one comes along, whether it passes or not.
    """
    cursors.check(query)
    args: list[Any] = list(first)
    source, where, columns = (
        _by_key(query, cursor, args) if query.deleted else _range(query, cursor, args)
    )
    way = "DESC" if query.reverse else "ASC"
    order = ", ".join([f"{column} {way}" for column in columns])
    passes = _passing(query, args)
    number = f"row_number() OVER (ORDER BY {order})" if passes else "0"
    sql = f"SELECT {_COLUMNS}, {number} AS n, {passes or 'true'} AS passes FROM {source} "
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
    if query.deleted:
        return cursors.write_key(query, rows.key_from(row))
    return cursors.write(query, row[f"{query.order}_us"], row["sid"])


def _passing(query: Query, args: list[Any]) -> str:
    """The filters that the order does not go by, as a condition; empty if there are none."""
    if not cursors.filters(query):
        return ""
    wanted = ["s.deleted_us IS NOT NULL"] if query.deleted else []
    for column, after_us in (
        ("created_us", query.created_after_us),
        ("updated_us", query.updated_after_us),
    ):
        if after_us is not None:
            wanted.append(f"s.{column} > {_bind(args, after_us)}")
    if query.schema_version is not None:
        wanted.append(f"s.schema_version IS NOT DISTINCT FROM {_bind(args, query.schema_version)}")
    return f"({' AND '.join(wanted)})"


def _range(query: Query, cursor: str | None, args: list[Any]) -> tuple[str, list[str], list[str]]:
    """The range of an index: its source, its conditions, and the columns that order it."""
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
        where.append(_beyond(columns, at, args, reverse=query.reverse))
    return source, where, columns


def _by_key(query: Query, cursor: str | None, args: list[Any]) -> tuple[str, list[str], list[str]]:
    """Living and deleted in the order of their keys, the only index that has the deleted."""
    owner = [value for value in (query.app, query.user) if value is not None]
    columns = ["s.app", "s.owner", "s.id"]
    rest = columns[len(owner) :]
    named = zip(columns[: len(owner)], owner, strict=True)
    where = [f"{column} = {_bind(args, value)}" for column, value in named]
    if cursor is not None:
        at = cursors.read_key(cursor, query)
        where.append(
            _beyond(rest, [at.app, at.user, at.id][len(owner) :], args, reverse=query.reverse)
        )
    return "limpet.sessions s", where, rest


def _beyond(columns: list[str], at: list[Any], args: list[Any], *, reverse: bool) -> str:
    """The condition that a row comes after the one that a cursor names."""
    marks = ", ".join([_bind(args, value) for value in at])
    return f"({', '.join(columns)}) {'<' if reverse else '>'} ({marks})"


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
