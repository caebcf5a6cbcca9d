"""Names: which events name a field, and who changed a shared name since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from limpet.model.events import Event
from limpet.model.fold import ScopeKey, ScopeValue
from limpet.model.keys import Key
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.model.ops import scope_of
from limpet.store.postgres import rows
from limpet.store.postgres.lineage import inherited_event
from limpet.store.postgres.reader import LAST, Reader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import NameSince

_PAGE: Final = 100


async def events_naming(
    reader: Reader, conn: Connection, key: Key, name: str, before: int, limit: int
) -> list[tuple[Event, int]]:
    """A page of the history before a seq, descending, with all events that name a field."""
    asked = (before, limit, READ_PAGE_BYTES_MAX, msgspec.json.encode(name))
    found = await conn.fetch(SQL["naming"], key.app, key.user, key.id, *asked)
    if not found:
        raise await reader.gone(conn, key)
    return [inherited_event(reader, row) for row in found if row["seq"] is not None]


async def names_since(
    reader: Reader, conn: Connection, key: Key, seq: int, names: Sequence[str]
) -> dict[str, NameSince]:
    """What shared names were before the session changed them, and whether others did too."""
    found: dict[str, NameSince] = {}
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
        if row is None:
            raise await reader.gone(conn, key)
        at = (seq, await conn.fetchval(SQL["time_at"], row["sid"], seq) or 0)
        for name in names:
            of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
            since = await _since(reader, conn, row["uid"], at, of)
            if since is not None:
                found[name] = since
    return found


async def _since(
    reader: Reader, conn: Connection, mine: str, at: tuple[int, int], of: ScopeKey
) -> NameSince | None:
    first, newest, others, below = 0, 0, False, LAST
    while page := await conn.fetch(SQL["scope_makers"], *of, below, _PAGE):
        newest, below = newest or page[0]["version"], page[-1]["version"]
        for version, uid, seq, when_us in page:
            own = uid == mine
            if seq <= at[0] if own else when_us is not None and when_us <= at[1]:
                below = 0
                break
            first, others = (version, others) if own else (first, True)
        if not below:
            break
    if not first:
        return None
    return NameSince(await _value(reader, conn, of, first - 1), newest, others)


async def _value(reader: Reader, conn: Connection, of: ScopeKey, version: int) -> ScopeValue | None:
    """What a name was at one version."""
    name = rows.Name(of, reader.codec)
    found: list[Any] = await conn.fetch(SQL["scope_at"], *of, version)
    for row in found:
        name.add(row)
    return name.value
