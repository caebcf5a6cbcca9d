"""The raw limit on PostgreSQL: pgbench, from the same binaries, on the same server.

Two scripts, both with one transaction an event. `equivalent` does by hand what a commit does: lock
the head, look for a repeat, hash the chain on, insert the event, move the head, on tables with our
columns and indexes; `shared` counts up one key of the app besides. `bare` is the least that could
be called storing an event: an insert and a counter, with the one index that reading needs.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Literal, TypeAlias

import asyncpg
import msgspec

import limpet
from bench import texts
from tests.support.postgres import Server, binaries, unprivileged

Script: TypeAlias = Literal["bare", "equivalent", "shared"]

CLIENTS_MAX: Final = 64
_TABLES: Final = f"""
DROP SCHEMA IF EXISTS plain CASCADE;
CREATE SCHEMA plain;
CREATE TABLE plain.heads (sid integer PRIMARY KEY, version bigint NOT NULL, updated_us bigint);
CREATE TABLE plain.logs (
    pos bigint GENERATED ALWAYS AS IDENTITY, sid integer NOT NULL, seq bigint NOT NULL,
    id text NOT NULL, type text NOT NULL, actor text NOT NULL, at_us bigint NOT NULL,
    body bytea NOT NULL
);
CREATE UNIQUE INDEX logs_by_seq ON plain.logs (sid, seq);
INSERT INTO plain.heads SELECT n, 0, 0 FROM generate_series(1, {CLIENTS_MAX}) n;

CREATE TABLE plain.sessions (LIKE limpet.sessions INCLUDING ALL);
ALTER TABLE plain.sessions SET (fillfactor = 70);
CREATE TABLE plain.events (LIKE limpet.events INCLUDING ALL);
CREATE TABLE plain.counts (app text PRIMARY KEY, n bigint NOT NULL);
INSERT INTO plain.counts VALUES ('bench', 0);
INSERT INTO plain.sessions (app, owner, id, uid, version, link, created_us, updated_us, active_us)
SELECT 'bench', 'ada', 'p-' || n, 'p-' || n, 0, sha256(''), 0, 0, 0
FROM generate_series(1, {CLIENTS_MAX}) n;
"""
_BARE: Final = """
\\set sid :client_id + 1
BEGIN;
UPDATE plain.heads SET version = version + 1,
    updated_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint WHERE sid = :sid;
INSERT INTO plain.logs (sid, seq, id, type, actor, at_us, body)
SELECT sid, version, gen_random_uuid()::text, 'tool.result', 'agent-main', updated_us,
    decode('{body}', 'hex')
FROM plain.heads WHERE sid = :sid;
COMMIT;
"""
# The id is looked for after the lock, as any writer must who may be retried.
_EQUIVALENT: Final = """
\\set sid :client_id + 1
\\set id random(1, 1000000000000000)
BEGIN;
SELECT version, link, updated_us FROM plain.sessions WHERE sid = :sid FOR UPDATE;
SELECT seq FROM plain.events WHERE id = 'event-' || :id AND sid = :sid;
{more}INSERT INTO plain.events
    (xid, pos, sid, seq, id, type, actor, at_us, flags, body, crc, salt, digest, link)
SELECT pg_current_xact_id(), 1, sid, version + 1, 'event-' || :id, 'tool.result', 'agent-main',
    now.us, 0, now.body, 0,
    decode('{salt}', 'hex'), sha256(now.body), sha256(link || int8send(version + 1) || now.body)
FROM plain.sessions, (SELECT decode('{body}', 'hex') AS body,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) now WHERE sid = :sid;
UPDATE plain.sessions s SET version = e.seq, link = e.link, updated_us = e.at_us,
    active_us = e.at_us
FROM plain.events e WHERE s.sid = :sid AND e.id = 'event-' || :id AND e.sid = :sid;
COMMIT;
"""
# As on our own lanes: a plan made while the tables are empty must not walk through them later.
_PLANS: Final = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
_COUNT: Final = "UPDATE plain.counts SET n = n + 1 WHERE app = 'bench';\n"


def body() -> bytes:
    """The bytes of one event, as JSON."""
    (data,) = texts.tool_results(1)
    return msgspec.json.encode({"data": data, "set": texts.changes(1)})


async def prepare(url: str) -> None:
    """Empty tables, of our own shape and of the barest."""
    async with limpet.open(url):
        pass  # our schema is there to be taken as a model
    conn = await asyncpg.connect(url)
    await conn.execute("SET client_min_messages = warning")
    await conn.execute(_TABLES)
    await conn.close()


def rate(server: Server, *, clients: int, seconds: int, script: Script) -> float:
    """Transactions a second."""
    asyncio.run(prepare(server.url))
    text = _BARE if script == "bare" else _EQUIVALENT
    text = text.replace("{more}", _COUNT if script == "shared" else "")
    text = text.replace("{body}", body().hex()).replace("{salt}", bytes(16).hex())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "event.sql"
        path.write_text(text)
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [
                str(binaries() / "pgbench"),
                *("-h", str(server.folder), "-U", "limpet", "-n", "-M", "prepared"),
                *("-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds)),
                *("-f", str(path), "postgres"),
            ],
            capture_output=True,
            text=True,
            cwd="/",
            check=True,
            env=os.environ | {"PGOPTIONS": _PLANS},
            **unprivileged(),
        )
    found = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return float(found[1])
