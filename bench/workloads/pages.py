"""W5: a page of 50 sessions among ten thousand and among a million.

By app, by user and by label; the first page, and one from the middle, reached by its cursor. Every
second session belongs to one of twenty busy users, so that each of them has pages to turn. Then the
studio's fleet over HTTP: its list, the same of a phase, and its counts.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw

import limpet
from bench import raw
from bench.rounds import Numbers, Run, milliseconds, milliseconds_plain
from bench.table import Row, at_most, row
from limpet.server.serve import serving

_PAGE = 50
_MS_MAX = 1.0
_FLEET_MS_MAX = 10.0
_FLEET = {
    "the studio's list": f"sessions?limit={_PAGE}",
    "the studio's list of a phase": f"sessions?limit={_PAGE}&phase=active",
    "the studio's counts": "status",
}
_QUERIES: dict[str, dict[str, Any]] = {
    "app": {"app": "app-1"},
    "user": {"app": "app-1", "user": "user-1"},
    "label": {"app": "app-1", "labels": {"plan": "gold"}},
}
_PLANS = ("gold", "silver", "bronze", "free")
_SCHEMA = """
CREATE TABLE heads (
    sid INTEGER PRIMARY KEY, app TEXT NOT NULL, user TEXT NOT NULL, id TEXT NOT NULL,
    created_us INTEGER NOT NULL, labels TEXT NOT NULL, plan TEXT NOT NULL
) STRICT;
CREATE INDEX heads_by_app ON heads (app, sid);
CREATE INDEX heads_by_user ON heads (app, user, sid);
CREATE INDEX heads_by_plan ON heads (app, plan, sid);
"""
_WHERE = {
    "app": "app = 'app-1'",
    "user": "app = 'app-1' AND user = 'user-1'",
    "label": "app = 'app-1' AND plan = 'gold'",
}


def rows(run: Run) -> list[Row]:
    found = []
    calls = run.size(200, 50)
    for count in (10_000, run.size(1_000_000, 30_000)):
        with run.place.empty() as path:
            asyncio.run(_build_ours(run, path, count))
            _build_raw(path, count)
            readings = run.alternate_in(
                path,
                {
                    "ours": lambda path: asyncio.run(_ours(path, calls)),
                    "raw": lambda path: _raw(path, calls),
                },
            )
        for query in _QUERIES:
            for where in ("first", "middle"):
                name = f"{query} {where}"
                what = f"by {query}, {where} page of {count:,}"
                limit = at_most(_MS_MAX, "ms", readings.median("ours", name))
                found.append(row("W5", what, "ms", readings, name, limit))
        for name in _FLEET:
            limit = at_most(_FLEET_MS_MAX, "ms", readings.median("ours", name))
            found.append(row("W5", f"{name}, {count:,} sessions", "ms", readings, name, limit))
    return found


def _sessions(count: int) -> Iterator[tuple[str, str, str, str]]:
    """App, user, id and plan of every session."""
    for number in range(count):
        user = f"user-{number % 40}" if number % 2 else f"guest-{number}"
        plan = _PLANS[number // 10 % 4]
        yield f"app-{number % 10}", user, f"session-{number:07}", plan


async def _build_ours(run: Run, path: Path, count: int) -> None:
    """Through the public door, a thousand creations at once."""
    async with limpet.open(f"sqlite:///{path}/ours.db") as lp:
        waiting = []
        for number, (app, user, id, plan) in enumerate(_sessions(count), 1):
            waiting.append(lp.create(app, user, id=id, labels={"plan": plan}))
            if number % 1_000 == 0:
                await asyncio.gather(*waiting)
                waiting.clear()
            if number % 10_000 == 0:
                run.say(f"building {count:,} sessions: {number:,}")
        await asyncio.gather(*waiting)


def _build_raw(path: Path, count: int) -> None:
    conn = raw.connect(path / "raw.db", schema=_SCHEMA)
    now_us = time.time_ns() // 1_000
    lines = (
        (app, user, id, now_us, f'{{"plan":"{plan}"}}', plan)
        for app, user, id, plan in _sessions(count)
    )
    insert = "INSERT INTO heads (app, user, id, created_us, labels, plan) VALUES (?, ?, ?, ?, ?, ?)"
    with conn:
        conn.executemany(insert, lines)
    conn.close()


async def _ours(path: Path, calls: int) -> Numbers:
    numbers = {}
    async with limpet.open(f"sqlite:///{path}/ours.db") as lp:
        for query, args in _QUERIES.items():
            cursors = {"first": None, "middle": await _middle(lp, args)}
            for where, cursor in cursors.items():
                turn = partial(lp.list, **args, limit=_PAGE, cursor=cursor)
                numbers[f"{query} {where}"] = await milliseconds(turn, calls)
                assert len((await turn()).items) == _PAGE
        async with serving(lp, dev=True) as url:
            for name, path_of in _FLEET.items():
                call = partial(asyncio.to_thread, _get, f"{url}/limpet/v1/{path_of}")
                numbers[name] = await milliseconds(call, calls)
    return numbers


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        body: bytes = answer.read()
        return body


async def _middle(lp: limpet.Limpet, args: dict[str, Any]) -> str:
    """A cursor from the middle of everything the query finds, reached in large pages."""
    cursors = []
    page = await lp.list(**args, limit=100)
    while page.cursor is not None:
        cursors.append(page.cursor)
        page = await lp.list(**args, limit=100 if len(cursors) < 5 else 1_000, cursor=page.cursor)
    return cursors[len(cursors) // 2]


def _raw(path: Path, calls: int) -> Numbers:
    numbers = {}
    conn = raw.connect(path / "raw.db")
    for query, condition in _WHERE.items():
        sql = f"SELECT * FROM heads WHERE {condition} AND sid < ? ORDER BY sid DESC LIMIT {_PAGE}"
        for where, before in (("first", 2**62), ("middle", _raw_middle(conn, condition))):
            turn = partial(_fetch, conn, sql, before)
            numbers[f"{query} {where}"] = milliseconds_plain(turn, calls)
            assert len(turn()) == _PAGE
    conn.close()
    return numbers


def _fetch(conn: apsw.Connection, sql: str, before: int) -> list[tuple[Any, ...]]:
    return conn.execute(sql, (before,)).fetchall()


def _raw_middle(conn: apsw.Connection, condition: str) -> int:
    found: list[Any] = conn.execute(f"SELECT sid FROM heads WHERE {condition}").fetchall()
    sids: list[int] = sorted(sid for (sid,) in found)
    return sids[len(sids) // 2]
