"""Damage in PostgreSQL's tables: verify finds it, and what can be read around it is."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import asyncpg
import pytest

from limpet.model.ops import Set
from limpet.store.postgres.store import PostgresStore
from limpet.testing.commits import add, create, draft, key, load

A = key("a")
BIG = random.Random(7).randbytes(100_000).hex()  # past the size at which a snapshot is taken


@pytest.fixture
async def admin(postgres_store_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the store's, over a database with something of everything."""
    store = await PostgresStore.open(postgres_store_url)
    await create(store, A, {"n": 1})
    await add(store, A, draft("user.said", set={"big": BIG}, inc={"app:visits": 1}))
    await add(store, A, draft("user.said", inc={"app:visits": 1, "n": 1}))
    await add(store, A, draft("session.labeled", {"labels": {"plan": "gold"}}))
    for id in ("dead", "gone"):
        await create(store, key(id))
    await store.delete(key("dead"))
    await store.erase(key("gone"))
    assert (await store.verify(None)).findings == ()
    await store.close()
    conn = await asyncpg.connect(postgres_store_url)
    assert await conn.fetchval("SELECT count(*) FROM limpet.snapshots") == 1
    yield conn
    await conn.close()


FLIPPED = "set_byte(body, length(body) / 2, get_byte(body, length(body) / 2) # 1)"


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("event", f"UPDATE events SET body = {FLIPPED} WHERE seq = 2"),
        ("event", "UPDATE events SET at_us = at_us - 1 WHERE seq = 2"),
        ("event", "UPDATE events SET actor = 'mallory' WHERE seq = 2"),
        ("event", "UPDATE events SET processed = 4 WHERE seq = 3"),
        ("event", "UPDATE events SET processed = NULL WHERE seq = 3"),
        ("event", "DELETE FROM events WHERE seq = 2"),
        (
            "event",
            "INSERT INTO events (xid, pos, sid, seq, id, type, actor, at_us, flags, body, crc, "
            "salt, digest, link) SELECT xid, pos + 9, 99, seq, id, type, actor, at_us, flags, "
            "body, crc, salt, digest, link FROM events WHERE seq = 1",
        ),
        ("event", "UPDATE events SET pos = pos + 1 WHERE seq = 2"),
        ("head", "UPDATE sessions SET facts = jsonb_set(facts, '{inputs,pending}', '7')"),
        ("head", "UPDATE sessions SET due_us = 7"),
        ("head", "UPDATE sessions SET deadline_us = 7"),
        ("head", "UPDATE sessions SET priority = 7"),
        ("head", "UPDATE sessions SET active_us = 7"),
        ("head", "UPDATE sessions SET version = 2"),
        ("head", "UPDATE sessions SET facts = facts - 'labels'"),
        ("head", "UPDATE sessions SET facts = NULL"),
        ("base", "UPDATE sessions SET parent = 7"),
        ("head", "UPDATE sessions SET parent = 7"),
        ("tombstone", "UPDATE tombstones SET parent = 77"),
        ("base", "INSERT INTO bases SELECT sid, 0, '', 0 FROM sessions"),
        ("event", "UPDATE events SET xid = '7' WHERE seq = 3"),
        ("label", "UPDATE labels SET value = 'lead'"),
        ("label", "DELETE FROM labels"),
        ("snapshot", f"UPDATE snapshots SET body = {FLIPPED}"),
        ("snapshot", "UPDATE snapshots SET seq = 9"),
        ("scope", f"UPDATE scopes SET body = {FLIPPED} WHERE version = 1"),
        ("scope", "DELETE FROM scopes WHERE version = 1"),
        ("scope", "DELETE FROM scopes WHERE version = 2"),
        ("scope", "UPDATE scopes SET name = 'app:other'"),
        ("scope", "UPDATE scope_owners SET names = names + 1"),
        ("scope", "UPDATE scope_owners SET ever = ever + 1"),
        ("scope", "DELETE FROM scope_owners"),
        ("tombstone", "UPDATE tombstones SET version = 9"),
        ("tombstone", "UPDATE tombstones SET created_us = 9"),
        ("tombstone", "UPDATE tombstones SET owner = 'eve'"),
        ("tombstone", "UPDATE tombstones SET ending = 'moved'"),
        ("tombstone", "UPDATE tombstones SET floor = 1"),
        ("tombstone", "DELETE FROM tombstones"),
        ("erasure", "UPDATE erased SET version = 9"),
        ("erasure", "UPDATE erased SET forks_kept = 9"),
        ("erasure", "UPDATE erased SET key_hash = '\\x00'"),
        ("meta", "UPDATE meta SET value = '\\x00' WHERE name = 'secret'"),
    ],
)
async def test_verify_finds(
    admin: asyncpg.Connection, postgres_store_url: str, where: str, change: str
) -> None:
    """Whatever was changed by hand, in the table it was changed in."""
    await admin.execute("SET search_path = limpet")
    await admin.execute(change)
    store = await PostgresStore.open(postgres_store_url)
    report = await store.verify(None)
    await store.close()
    assert where in {finding.where for finding in report.findings}, report.findings


@pytest.mark.parametrize("change", [f"body = {FLIPPED}", "crc = crc + 1", "flags = 1 - flags"])
async def test_a_damaged_snapshot_only_costs_time(
    admin: asyncpg.Connection, postgres_store_url: str, change: str
) -> None:
    """The log is read from its first event on instead, by readers and by the next commit."""
    await admin.execute(f"UPDATE limpet.snapshots SET {change}")
    store = await PostgresStore.open(postgres_store_url)
    assert (await load(store, A)).fields == {"n": 2, "big": BIG}
    made = await add(store, A, draft(inc={"n": 1}))
    assert made.fields == {"n": 3, "big": BIG}
    await store.close()


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ("UPDATE limpet.events SET crc = crc + 1 WHERE seq = 2", (2, 3)),
        ("DELETE FROM limpet.events WHERE seq = 4", (4,)),
    ],
    ids=["rotted", "gone"],
)
async def test_what_is_left_of_a_damaged_log_is_read_and_written(
    postgres_store_url: str, change: str, lost: tuple[int, ...]
) -> None:
    """Events that cannot be read, stand on such a one, or are not there are named; others count."""
    store = await PostgresStore.open(postgres_store_url)
    await create(store, A)
    await add(store, A, draft(set={"plan": {"x": 1}}))
    await add(store, A, draft(ops=(Set(("plan", "y"), 2),)))
    await add(store, A, draft(inc={"n": 1}))
    await store.close()
    conn = await asyncpg.connect(postgres_store_url)
    await conn.execute(change)
    await conn.close()
    store = await PostgresStore.open(postgres_store_url)
    assert (await load(store, A)).damaged == lost
    assert (await add(store, A, draft(inc={"m": 1}))).fields["m"] == 1
    assert (await load(store, A)).damaged == lost
    assert not (await store.verify(None)).ok
    await store.close()
