"""Two releases on one database: what the first schema's release wrote, under the present code.

schema1/ keeps that release's SQL as it was. The rows are written here as it wrote them, column by
column, so that a change of today's row code cannot change what is tested.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import asyncpg
import pytest

import limpet
from limpet.model.canonical import canonical
from limpet.model.events import Fact, prepare
from limpet.model.fold import Fold, Recorded, record
from limpet.model.head import blank
from limpet.store.postgres import connect as postgres
from limpet.store.sqlite.file import schema as sqlite

FIRST = Path(__file__).with_name("schema1")
ACTOR = "test:first"
KEY = limpet.Key("shop", "ada", "one")
GONE = limpet.Key("shop", "ada", "gone")
AT_US = 1_750_000_000_000_000
WAKE_US = AT_US + 9_000_000
DRAFTS = (
    Fact(
        type="session.created",
        data={"app": "shop", "user": "ada", "id": "one", "labels": {"plan": "gold"}},
        set={"step": 0},
    ),
    Fact(type="user.said", data={"text": "hi"}, set={"step": 1}, inc={"app:visits": 1}),
    Fact(type="session.processed", data={"seqs": [2]}),
    Fact(type="session.timer_set", data={"name": "t", "at_us": WAKE_US, "kind": "wake"}),
    Fact(type="user.said", data={"text": "again"}, add={"log": ["x"]}),
)
SCOPE = b"1"  # the value of app:visits
# A scope's checksum covers its place too: owner, name and version, form, base and event.
SCOPE_CRC = crc32(b'["scope","[\\"shop\\",\\"\\"]","app:visits@1","0/1/e1/2"]', crc32(SCOPE))
SECRET = b"\7" * 32


def first_release() -> tuple[Fold, list[Recorded]]:
    """The session as its release folded it: five events, a second apart."""
    fold = Fold(blank(KEY, "e1", AT_US))
    records = []
    for place, draft in enumerate(DRAFTS, 1):
        ready = prepare(draft, id=f"e{place}", actor=ACTOR)
        now_us = AT_US + (place - 1) * 1_000_000
        fold, rec = record(fold, ready, now_us, bytes([place]) * 16)
        records.append(rec)
    return fold, records


def event_values(rec: Recorded) -> list[Any]:
    """seq to digest and link, without what is NULL in all of them."""
    e = rec.event
    done_us = AT_US + 2_000_000 if e.seq == 2 else None
    body = (0, rec.raw, crc32(rec.raw), rec.salt, rec.digest, e.link, done_us)
    return [e.seq, e.id, e.type, e.actor, e.at_us, *body]


def head_values(fold: Fold) -> list[Any]:
    """app to deadline, in the order in which both stores' columns are named below."""
    head = fold.head
    assert (head.version, head.pending, head.pending_us) == (5, 1, AT_US + 4_000_000)
    labels, timers = json.dumps({"plan": "gold"}), json.dumps({"t": {"at_us": WAKE_US}})
    times = (head.created_us, head.updated_us)
    due = (head.pending, head.pending_us, timers, head.pending_us)
    return ["shop", "ada", "one", "e1", 5, head.link, *times, labels, *due]


EVENT = "seq, id, type, actor, at_us, flags, body, crc, salt, digest, link, processed_us"
HEAD = "id, uid, version, link, created_us, updated_us, labels, pending, pending_us, timers"


# --- the two databases ---------------------------------------------------------------------------


def first_file(tmp_path: Path) -> str:
    """A file of schema 1 with a session, a tombstone and a scope name."""
    path = tmp_path / "first.db"
    fold, records = first_release()
    conn = apsw.Connection(str(path))
    conn.pragma("journal_mode", "wal")
    conn.execute("BEGIN")
    conn.execute((FIRST / "sqlite_0001.sql").read_text())
    _insert(conn, "meta", ["secret", SECRET])
    _insert(conn, "meta", ["secret_crc", crc32(SECRET)])
    _insert(conn, f"sessions (app, user, {HEAD}, runnable_us)", head_values(fold))
    kept = (GONE, "g1", 3, b"\1" * 32, AT_US, AT_US, AT_US)  # what its checksum covers
    grave = ("shop", "ada", "gone", *kept[1:5], AT_US, 0, AT_US, crc32(canonical(kept)))
    columns = "app, user, id, uid, version, link, created_us, updated_us, pending, deleted_us"
    _insert(conn, f"sessions ({columns}, tomb_crc)", grave)
    label = ("shop", "plan", "gold", AT_US, 1, "ada")
    _insert(conn, "labels (app, name, value, created_us, sid, user)", label)
    for rec in records:
        _insert(conn, f"events (sid, {EVENT})", [1, *event_values(rec)])
    scope = ("shop", "", "app:visits", 1, 1, 0, 0, SCOPE, SCOPE_CRC, "e1", 2)
    columns = "app, user, name, version, base, form, flags, body, crc, uid, seq"
    _insert(conn, f"scopes ({columns})", scope)
    conn.pragma("application_id", 0x4C4D5054)
    conn.pragma("user_version", 1)
    conn.execute("COMMIT")
    conn.close()
    return f"sqlite:///{path}"


def _insert(conn: apsw.Connection, into: str, values: Sequence[Any]) -> None:
    marks = ", ".join("?" for _ in values)
    conn.execute(f"INSERT INTO {into} VALUES ({marks})", values)


async def first_database(url: str) -> str:
    """A database of schema 1 with the same."""
    fold, records = first_release()
    conn = await asyncpg.connect(url)
    await conn.execute("CREATE SCHEMA limpet")
    await conn.execute((FIRST / "postgres_0001.sql").read_text())
    await conn.execute((FIRST / "postgres_functions.sql").read_text())
    await _put(conn, "meta (name, value)", ["secret", SECRET])
    await _put(conn, "meta (name, value)", ["schema", b"1"])
    values = [*head_values(fold), WAKE_US]
    await _put(conn, f"sessions (app, owner, {HEAD}, runnable_us, wake_us)", values)
    grave = ["shop", "ada", "gone", "g1", 3, b"\1" * 32, AT_US, AT_US, AT_US]
    columns = "app, owner, id, uid, version, link, created_us, updated_us, deleted_us"
    await _put(conn, f"sessions ({columns})", grave)
    label = ["shop", "plan", "gold", AT_US, 1, "ada"]
    await _put(conn, "labels (app, name, value, created_us, sid, owner)", label)
    for rec in records:
        await _put(conn, f"events (sid, {EVENT})", [1, *event_values(rec)])
    scope = ["shop", "", "app:visits", 1, 1, 0, 0, SCOPE, SCOPE_CRC, "e1", 2]
    columns = "app, owner, name, version, base, form, flags, body, crc, uid, seq"
    await _put(conn, f"scopes ({columns})", scope)
    await conn.close()
    return url


async def _put(conn: Any, into: str, values: list[Any]) -> None:
    marks = ", ".join(f"${place}" for place in range(1, len(values) + 1))
    await conn.execute(f"INSERT INTO limpet.{into} VALUES ({marks})", *values)


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> str:
    return first_file(tmp_path) if request.param == "sqlite" else await first_database(postgres_url)


# --- what the present code makes of them ---------------------------------------------------------


async def test_everything_is_there(url: str) -> None:
    """Head, state, scopes, log, listing and tombstone read as they were written."""
    fold, records = first_release()
    async with limpet.open(url) as lp:
        session = await lp.get(KEY)
        assert session.head == fold.head
        assert (session.head.priority, session.head.fence, session.head.lease_us) == (0, 0, None)
        assert session.state == {"step": 1, "log": ["x"], "app:visits": 1}
        read = await session.read()
        assert [event.link for event in read] == [rec.event.link for rec in records]
        assert [event.data for event in read] == [rec.event.data for rec in records]
        assert read[1].processed_us == AT_US + 2_000_000
        for query in ({}, {"app": "shop"}, {"app": "shop", "labels": {"plan": "gold"}}):
            assert [head.key for head in (await lp.list(**query)).items] == [KEY]
        with pytest.raises(limpet.SessionDeleted):
            await lp.get(GONE)
        assert (await lp.verify()).findings == ()


async def test_it_goes_on(url: str) -> None:
    """The old log takes new events, new facts and leases, and all of it verifies afterwards."""
    async with limpet.open(url) as lp:
        (lease,) = await lp.claim("w")
        assert (lease.key, lease.fence) == (KEY, 1)
        session = lp.session(KEY, actor=ACTOR, lease=lease)
        again = await session.append("user.said", {"text": "again"}, id="e5")
        assert again.seq == 5
        await session.append("agent.said", inc={"step": 1, "app:visits": 1})
        await session.set_priority(7)
        await session.mark_processed([5])
        await lp.release(lease)
    async with limpet.open(url) as lp:
        session = await lp.get(KEY)
        assert session.state == {"step": 2, "log": ["x"], "app:visits": 2}
        assert (session.version, session.head.priority, session.head.fence) == (8, 7, 1)
        due = limpet.runnable_at(session.head)
        assert due is not None
        assert due > session.head.timers["t"].at  # not cleared: held back for a moment
        assert (await lp.verify()).findings == ()


async def test_the_schema_is_brought_forward_once(url: str) -> None:
    """Opened again, and by two at once, it is as if it had always been so."""
    async with limpet.open(url) as one, limpet.open(url) as other:
        await one.session(KEY, actor=ACTOR).append("note.made")
        assert (await other.get(KEY)).version == 6
    async with limpet.open(url) as lp:
        assert (await lp.verify()).findings == ()


async def test_the_store_says_which_schema_it_has_now(url: str) -> None:
    """The number in the database is the present one after the first opening."""
    async with limpet.open(url):
        pass
    assert await _schema(url) == (sqlite.SCHEMA if url.startswith("sqlite") else postgres.SCHEMA)


async def test_a_newer_schema_is_refused(url: str) -> None:
    """As this release would be by the first, if it looked."""
    async with limpet.open(url):
        pass
    await _set_schema(url, 99)
    with pytest.raises(limpet.StoreNewer) as caught:
        async with limpet.open(url):
            pass
    assert caught.value.found == 99


async def _schema(url: str) -> int:
    if url.startswith("sqlite"):
        return int(apsw.Connection(url.removeprefix("sqlite:///")).pragma("user_version"))
    conn = await asyncpg.connect(url)
    value = await conn.fetchval("SELECT value FROM limpet.meta WHERE name = 'schema'")
    await conn.close()
    return int(value)


async def _set_schema(url: str, number: int) -> None:
    if url.startswith("sqlite"):
        conn = apsw.Connection(url.removeprefix("sqlite:///"))
        conn.pragma("user_version", number)
        conn.close()
        return
    server = await asyncpg.connect(url)
    sql = "UPDATE limpet.meta SET value = $1 WHERE name = 'schema'"
    await server.execute(sql, str(number).encode())
    await server.close()
