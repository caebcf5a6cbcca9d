"""Open requests by their labels, and counts of sessions: one statement each."""

from __future__ import annotations

from typing import Final

from limpet.model.facts.running.waiting import ASKED, open_request
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery
from limpet.store.postgres.rows import key_from
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL

_LAST_APP: Final = chr(0x10FFFF)


async def waiting(
    conn: Connection, query: WaitingQuery, limit: int, after: WaitingPlace | None
) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
    """One page of open requests."""
    asked = (query.app, query.user, query.kind, *(after or (ASKED, 0)), limit + 1)
    rows = await conn.fetch(SQL["waiting"], *asked)
    last = rows[limit - 1] if len(rows) > limit else None
    found = [(key_from(row), open_request(row["name"], row["value"])) for row in rows[:limit]]
    page = tuple([AskedBy(key, request) for key, request in found if request is not None])
    return page, None if last is None else (last["name"], last["sid"])


async def tally(conn: Connection, app: str | None, limit: int) -> tuple[Tally, ...]:
    """How many sessions there are of each kind."""
    between = ("", _LAST_APP) if app is None else (app, app)
    return tuple([Tally(*row) for row in await conn.fetch(SQL["tally"], limit, *between)])
