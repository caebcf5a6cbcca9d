"""Names: which events name a field, and who changed a shared name since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from limpet.model import (
    READ_PAGE_BYTES_MAX,
    Event,
    Key,
    ScopeKey,
    ScopeValue,
    path_opening,
    scope_of,
)
from limpet.store.postgres import rows
from limpet.store.postgres.reading.lineage import events as history
from limpet.store.postgres.reading.lineage import inherited_event, time_at
from limpet.store.postgres.reading.reader import LAST, PostgresReader
from limpet.store.postgres.server import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import NameSince

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
    found = await conn.fetch(SQL["naming"], key.app, key.user, key.id, *asked)
    if not found:
        raise await reader.absent(conn, key)
    hot = [inherited_event(reader, row) for row in found if row["seq"] is not None]
    if len(hot) < limit and await conn.fetchval(SQL["has_cold"], found[0]["sid"]):
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
    found: list[tuple[Event, int]] = []
    while before > after + 1 and len(found) < limit:
        page = await history(reader, conn, key, before, _PAGE, None, reverse=True)
        found += [p for p in page if p[0].seq > after and _names(p[0], name)]
        before = page[-1][0].seq if page else 0
    return found[:limit]


def _names(event: Event, name: str) -> bool:
    return event.data is None or any([op.path[0] == name for op in event.ops])


async def names_since(
    reader: PostgresReader, conn: Connection, key: Key, seq: int, names: Sequence[str]
) -> dict[str, NameSince]:
    """What shared names were before the session changed them, and whether others did too."""
    found: dict[str, NameSince] = {}
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
        if row is None or row["archived"]:
            raise await reader.absent(conn, key)
        at = (seq, await time_at(reader, conn, row["sid"], seq) or 0)
        for name in names:
            of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
            since = await _since(reader, conn, row["uid"], at, of)
            if since is not None:
                found[name] = since
    return found


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
    """What a name was at one version."""
    name = rows.ScopeNameReader(of, reader.codec)
    found: list[Any] = await conn.fetch(SQL["scope_at"], *of, version)
    for row in found:
        name.add(row)
    return name.value
