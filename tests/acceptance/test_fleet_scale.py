"""The fleet among many sessions: a page reads as much as it shows, however many there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import limpet
from limpet import Limpet
from limpet.model import Head, limits
from limpet.server.routes import fleet
from limpet.server.serve import serving
from limpet.store.postgres.reading import heads
from limpet.store.postgres.sql import SQL
from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Query
from limpet.store.sqlite import rows
from limpet.store.sqlite.store import SQLiteStore
from tests.support.http_door import HttpDoor

FEW, MANY, PAGE = 200, 2_400, 50
# What the fleet page asks for, filter by filter.
SERVED = {
    "everything": "",
    "app": "app=shop",
    "user": "app=shop&user=ada",
    "label": "app=shop&labels[plan]=gold",
    "phase": "phase=completed",
    "phase of an app": "app=shop&phase=completed",
    "dead": "app=shop&ready=dead",
}


async def grow(lp: Limpet, to: int, since: int = 0) -> None:
    """Sessions of two apps, of which one in forty is completed, labeled or Ada's."""
    for start in range(since, to, 200):
        await asyncio.gather(*(_create(lp, n) for n in range(start, min(to, start + 200))))


async def _create(lp: Limpet, n: int) -> None:
    app, user = "shop" if n % 4 else "desk", "ada" if n % 40 == 1 else f"u{n % 40}"
    labels = {"plan": "gold" if n % 40 == 2 else "free"}
    s = await lp.create(app, user, f"s{n:05}", labels=labels, actor="test:fleet")
    if n % 40 == 3:
        await s.complete()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = await SQLiteStore.open(tmp_path / "fleet.db", sync="off")
    yield store
    await store.close()


async def test_a_page_costs_the_same_among_many_sessions(store: SQLiteStore) -> None:
    """Twenty times the sessions, and each filter takes no more steps of the database for a page."""
    steps: list[int] = []

    def note(event: Any) -> None:
        steps.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])

    async def cost(door: HttpDoor) -> dict[str, int]:
        costs = {}
        for name, query in SERVED.items():
            steps.clear()
            found = await door.get(f"/limpet/v1/sessions?limit=3&{query}")
            assert len(found.body["data"]) == (0 if name == "dead" else 3), name
            costs[name] = sum(steps)
        return costs

    async with Limpet("sqlite:///", store=store) as lp, serving(lp, dev=True) as url:
        door = HttpDoor(url)
        await grow(lp, FEW)
        conn = store._reader.conn
        conn.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
        few = await cost(door)
        await grow(lp, MANY, FEW)
        many = await cost(door)
        conn.trace_v2(0, None)
    assert all(few.values())
    assert {name for name in SERVED if many[name] > few[name] * 1.2} == set(), (few, many)


async def test_a_text_is_looked_for_some_thousand_sessions_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no index serves gives an empty page and a cursor, and paging comes to its end."""
    monkeypatch.setattr(fleet, "_SCANNED_MAX", 2_000)
    store = await SQLiteStore.open(tmp_path / "fleet.db", sync="off")
    async with Limpet("sqlite:///", store=store) as lp, serving(lp, dev=True) as url:
        door = HttpDoor(url)
        await grow(lp, MANY)
        for query in ("q=s00003", "phase=active&q=s00002", "phase=completed&q=s00003"):
            looks, page = [], ""
            while True:
                found = await door.get(f"/limpet/v1/sessions?limit=50&{query}{page}")
                looks.append([each["session"]["id"] for each in found.body["data"]])
                if found.body["next_page"] is None:
                    break
                page = f"&page={found.body['next_page']}"
            id = query[-6:]
            assert looks == ([[id]] if "completed" in query else [[], [id]]), query
        for wrong, known in (
            ("phase=done", "suspended"),
            ("status=busy", "rescheduling"),
            ("app=shop&by=updated&ready=busy", "blocked"),
        ):
            refused = await door.get(f"/limpet/v1/sessions?{wrong}")
            assert refused.status == 400
            assert known in refused.body["error"]["message"]


async def test_what_sessions_do_is_found_among_all_of_them_at_once(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request finds the single session that is due, blocked or of a status, the oldest of all;
    with a phase, a user or a text beside it too. Only heads that match are read."""
    read: list[Head] = []
    head_from = rows.head_from
    monkeypatch.setattr(rows, "head_from", lambda row: (read.append(h := head_from(row)), h)[1])
    async with Limpet("sqlite:///", store=store) as lp, serving(lp, dev=True) as url:
        door = HttpDoor(url)
        s = await lp.create("shop", "zoe", "oldest", actor="test:fleet")
        await s.append("user.message", {"text": "hi"})
        await grow(lp, MANY)
        ended = len((await lp.list(phase="completed", limit=100)).items)
        for query, count in (
            ("ready=due", 1),
            ("ready=due&phase=active", 1),
            ("ready=due&user=zoe&q=OLDEST", 1),
            ("ready=due&phase=completed", 0),
            ("ready=dead", 0),
            ("status=running", 0),
            ("status=terminated", ended),
        ):
            read.clear()
            page = (await door.get(f"/limpet/v1/sessions?limit=100&{query}")).body
            assert (len(page["data"]), page["next_page"]) == (count, None), query
            assert len(read) <= max(count, ended), query
            assert [h["session"]["id"] for h in page["data"]] == ["oldest"] or count != 1
        for wrong in ("status=asleep", "ready=busy"):
            refused = await door.get(f"/limpet/v1/sessions?{wrong}")
            assert (refused.status, "is one of" in refused.body["error"]["message"]) == (400, True)


async def test_postgres_reads_a_page_of_a_phase_from_its_index(postgres_url: str) -> None:
    """Of an app and of all apps: no step of the plan looks at more rows than the page has."""
    async with limpet.open(postgres_url) as lp:
        await grow(lp, MANY // 2)
    store = await PostgresStore.open(postgres_url)
    admin = await asyncpg.connect(postgres_url)
    try:
        await admin.execute("ANALYZE limpet.sessions")
        for app in ("shop", None):
            query = Query(app=app, phase="completed")
            first = await store.heads(query, cursor=None, limit=PAGE // 5)
            assert len(first.items) == PAGE // 5
            for cursor in (None, first.cursor):
                sql, args = heads.statement(query, cursor, PAGE // 5)
                explain = await admin.prepare(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
                plan = json.loads(await explain.fetchval(*args))[0]["Plan"]
                assert most_rows(plan) <= 2 * PAGE, (app, plan)
    finally:
        await admin.close()
        await store.close()


async def test_postgres_claims_without_a_look_at_what_it_does_not_take(postgres_url: str) -> None:
    """Of many sessions few are due: no step of the plan looks at more rows than these."""
    async with limpet.open(postgres_url) as lp:
        await grow(lp, MANY // 2)
        for n in range(PAGE // 10):
            due = await lp.create("shop", "ada", f"due{n}", actor="test:fleet")
            await due.append("user.message", {"text": "hi"}, actor="user:ada")
    admin = await asyncpg.connect(postgres_url)
    try:
        await admin.execute("ANALYZE limpet.sessions")
        explain = await admin.prepare(f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL['claim']}")
        plan = json.loads(await explain.fetchval("w1", PAGE, 1_000_000, "shop"))[0]["Plan"]
        assert plan["Actual Rows"] == PAGE // 10
        assert most_rows(plan) <= PAGE // 10, plan
    finally:
        await admin.close()


def most_rows(plan: dict[str, Any]) -> float:
    """The most rows that any step of a plan has looked at, over all its rounds."""
    below = [most_rows(each) for each in plan.get("Plans", ())]
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return max([rows * plan["Actual Loops"], *below])


async def test_a_phase_comes_in_the_order_of_arrival_with_every_filter() -> None:
    """As lp.list and lp.each show it; a phase that there is not is refused."""
    async with limpet.open("memory://") as lp:
        await grow(lp, FEW)
        ended = [head.key.id async for head in lp.each(status="terminated", reverse=False)]
        ids = [head.key.id async for head in lp.each(phase="completed", reverse=False)]
        assert ids == ended == [f"s{n:05}" for n in range(3, FEW, 40)]
        page = await lp.list(app="shop", phase="active", limit=limits.PAGE_MAX)
        assert {head.phase for head in page.items} == {"active"}
        with pytest.raises(limpet.errors.InvalidQuery, match="suspended"):
            await lp.list(phase="asleep")  # type: ignore[arg-type]  # what is refused


async def test_counts_of_an_admin_are_one_statement(store: SQLiteStore) -> None:
    """The same counts as from every head, isolated sessions too, and no head is read for them."""
    statements: list[str] = []
    async with Limpet("sqlite:///", store=store) as lp:
        await grow(lp, FEW)
        await lp.create("shop", "ada", isolation=limpet.Isolation("per_task", task="audit"))
        admin = lp.acting_as(limpet.Principal("user:root", role="admin"))
        viewer = lp.acting_as(limpet.Principal("user:ada", role="viewer", app="shop", user="ada"))
        conn = store._reader.conn
        conn.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"]))
        seen = await admin.status()
        conn.trace_v2(0, None)
        assert len([each for each in statements if "FROM sessions" in each]) == 1
        assert seen.sessions == FEW + 1
        assert seen.by_phase == (await lp.status()).by_phase
        assert (await admin.status("shop")).sessions == (await lp.status("shop")).sessions
        assert (await viewer.status()).sessions == FEW // 40


@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_a_page_by_status_decodes_no_more_heads_than_another(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without a database decodes each, and nothing else runs in its process meanwhile."""
    monkeypatch.setattr(limits, "WALK_MAX", 2)
    url = "memory://" if kind == "memory" else f"files:///{tmp_path}/fleet"
    async with limpet.open(url) as lp:
        await grow(lp, 5)
        pages = [await lp.list(status="running")]
        while pages[-1].cursor is not None:
            pages.append(await lp.list(status="running", cursor=pages[-1].cursor))
    assert len(pages) == 3
