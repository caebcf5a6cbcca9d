"""The raw limit: the same bytes in plain SQLite, with the pragmas of the store.

A table like the store's log with the one index that reading needs: no head, no chain, no
idempotency, no fold, no event loop. Nothing that keeps promises can be faster for long; the
ratio to it is the price of the promises.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw
import msgspec

from limpet.store.sqlite.write_connection import CHECKPOINT_PAGES

PAGE_BYTES: Final = 4_096
_SCHEMA: Final = """
CREATE TABLE heads (sid INTEGER PRIMARY KEY, version INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE events (
    pos INTEGER PRIMARY KEY AUTOINCREMENT,
    sid INTEGER NOT NULL, seq INTEGER NOT NULL, id BLOB NOT NULL, type TEXT NOT NULL,
    actor TEXT NOT NULL, at_us INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_seq ON events (sid, seq);
"""
_INSERT: Final = (
    "INSERT INTO events (sid, seq, id, type, actor, at_us, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_LAST: Final = (
    "SELECT seq, id, type, actor, at_us, body FROM events WHERE sid = ? ORDER BY seq DESC LIMIT ?"
)

RawRow: TypeAlias = tuple[int, int, bytes, str, str, int, bytes]


def connect(path: Path, *, schema: str = _SCHEMA) -> apsw.Connection:
    """A connection as the store makes one: WAL, synchronous=FULL, rare checkpoints."""
    conn = apsw.Connection(str(path))
    if not conn.execute("SELECT count(*) FROM sqlite_schema").get:
        conn.pragma("page_size", PAGE_BYTES)
        conn.pragma("journal_mode", "wal")
        conn.execute(schema)
    conn.pragma("synchronous", "full")
    conn.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
    return conn


def rows(payloads: Iterable[dict[str, Any]], *, sid: int = 1) -> list[RawRow]:
    """The rows of one session, encoded beforehand: the limit is about writing, not encoding."""
    encode = msgspec.json.encode
    now_us = time.time_ns() // 1_000
    return [
        (sid, seq, seq.to_bytes(16, "big"), "tool.result", "agent:main", now_us, encode(payload))
        for seq, payload in enumerate(payloads, 1)
    ]


def insert_singly(conn: apsw.Connection, rows: Sequence[RawRow]) -> float:
    """Seconds for one transaction a row."""
    execute = conn.execute
    begin = time.perf_counter()
    for row in rows:
        execute(_INSERT, row)
    return time.perf_counter() - begin


def insert_in_batches(conn: apsw.Connection, rows: Sequence[RawRow], size: int) -> float:
    """Seconds for one transaction per `size` rows."""
    begin = time.perf_counter()
    for at in range(0, len(rows), size):
        with conn:
            conn.executemany(_INSERT, rows[at : at + size])
    return time.perf_counter() - begin


def put_head(conn: apsw.Connection, version: int, state: dict[str, Any]) -> None:
    """The state of session 1, as one row."""
    head = (1, version, msgspec.json.encode(state))
    conn.execute("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", head)


def head(conn: apsw.Connection) -> tuple[int, Any]:
    """Version and state of session 1."""
    ((version, state),) = conn.execute("SELECT version, state FROM heads WHERE sid = 1")
    return version, msgspec.json.decode(state)


def last(conn: apsw.Connection, count: int, *, sid: int = 1) -> list[tuple[Any, ...]]:
    """The newest rows of a session, bodies decoded."""
    decode = msgspec.json.decode
    return [(*row[:5], decode(row[5])) for row in conn.execute(_LAST, (sid, count))]
