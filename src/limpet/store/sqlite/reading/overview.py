"""Open requests by their labels, and counts of sessions."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import Any, Final

import apsw

from limpet.model import Key, is_reserved
from limpet.model.facts.running.waiting import ASKED, open_request
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery
from limpet.store.sqlite.sql import SQL

_LAST_APP: Final = chr(0x10FFFF)


def waiting(
    conn: apsw.Connection, query: WaitingQuery, limit: int, after: WaitingPlace | None
) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
    """One page of open requests. To be called within one instant."""
    name = "waiting_in_app" if query.user is None else "waiting_of_user"
    rest = (query.user, *(after or (ASKED, 0)), query.kind, limit + 1)
    apps = _apps(conn) if query.app is None else [query.app]
    pages: list[Any] = [conn.execute(SQL[name], (app, *rest)).fetchall() for app in apps]
    rows = list(islice(merge(*pages, key=lambda row: (row[0], row[2])), limit + 1))
    more = (rows[limit - 1][0], rows[limit - 1][2]) if len(rows) > limit else None
    found = [(Key(*row[3:]), open_request(row[0], row[1])) for row in rows[:limit]]
    return tuple([AskedBy(key, asked) for key, asked in found if asked is not None]), more


def tally(conn: apsw.Connection, app: str | None, now_us: int, limit: int) -> tuple[Tally, ...]:
    """How many sessions there are of each kind."""
    between = ("", _LAST_APP) if app is None else (app, app)
    rows: Any = conn.execute(SQL["tally"], (now_us, limit, *between)).fetchall()
    return tuple([Tally(row[0], row[1], row[2], bool(row[3]), row[4]) for row in rows])


def _apps(conn: apsw.Connection) -> list[str]:
    """The apps that have labels, without reserved ones."""
    apps, last = list[str](), ""
    while True:
        app: Any = conn.execute(SQL["labeled_app_after"], (last,)).get
        if app is None:
            return apps
        last = app
        if not is_reserved(app):
            apps.append(app)
