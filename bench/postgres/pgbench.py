"""The raw limit on PostgreSQL: pgbench, from the same binaries, on the same server.

Its script inserts the bytes of one event and moves the session's head, in one transaction, with
the one index that reading needs: no chain, no idempotency, no check of versions, no fold.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import asyncpg
import msgspec

from bench import texts
from tests.support.postgres import Server, binaries, unprivileged

CLIENTS_MAX: Final = 64
_SCHEMA: Final = """
DROP SCHEMA IF EXISTS plain CASCADE;
CREATE SCHEMA plain;
CREATE TABLE plain.heads (sid integer PRIMARY KEY, version bigint NOT NULL, updated_us bigint);
CREATE TABLE plain.events (
    pos bigint GENERATED ALWAYS AS IDENTITY, sid integer NOT NULL, seq bigint NOT NULL,
    id text NOT NULL, type text NOT NULL, actor text NOT NULL, at_us bigint NOT NULL,
    body bytea NOT NULL
);
CREATE UNIQUE INDEX events_by_seq ON plain.events (sid, seq);
INSERT INTO plain.heads SELECT n, 0, 0 FROM generate_series(1, 64) n;
"""
_SCRIPT: Final = """
\\set sid :client_id + 1
BEGIN;
UPDATE plain.heads SET version = version + 1,
    updated_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint WHERE sid = :sid;
INSERT INTO plain.events (sid, seq, id, type, actor, at_us, body)
SELECT sid, version, gen_random_uuid()::text, 'tool.result', 'agent-main', updated_us,
    decode('{body}', 'hex')
FROM plain.heads WHERE sid = :sid;
COMMIT;
"""


def body() -> bytes:
    """The bytes of one event, as JSON."""
    (data,) = texts.tool_results(1)
    return msgspec.json.encode({"data": data, "set": texts.changes(1)})


async def prepare(url: str) -> None:
    """Empty tables."""
    conn = await asyncpg.connect(url)
    await conn.execute("SET client_min_messages = warning")
    await conn.execute(_SCHEMA)
    await conn.close()


def rate(server: Server, *, clients: int, seconds: int) -> float:
    """Transactions a second."""
    asyncio.run(prepare(server.url))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "event.sql"
        script.write_text(_SCRIPT.replace("{body}", body().hex()))
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [
                str(binaries() / "pgbench"),
                *("-h", str(server.folder), "-U", "holdfast", "-n", "-M", "prepared"),
                *("-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds)),
                *("-f", str(script), "postgres"),
            ],
            capture_output=True,
            text=True,
            cwd="/",
            check=True,
            **unprivileged(),
        )
    found = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return float(found[1])
