"""The schema of a database file: whose file it is, which schema it has, and the migrations.

A database says whose it is in its first hundred bytes. When those are damaged, the pages after them
still show it: by the tables that they define, or by looking like pages of SQLite at all.

Each migration is a numbered file in `sql/`. A database is migrated when it is opened to be written,
in one transaction under the write lock; one that is only read stays as it is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias
from zlib import crc32

import apsw

from limpet.store.sqlite import ledger
from limpet.store.sqlite.file.locks import first_bytes
from limpet.store.sqlite.sql import SCRIPTS, SQL

SCHEMA: Final = 2

APPLICATION_ID: Final = 0x4C4D5054  # "LMPT"
DatabaseKind: TypeAlias = Literal["ours", "damaged", "foreign"]

_MAGIC: Final = b"SQLite format 3\x00"
_LOG_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_DUMP_MAGIC: Final = b"PGDMP"
_LOOKED_AT_BYTES: Final = 2**20
_PAGE_BYTES: Final = 4_096
_PAGES_MIN: Final = 2  # that look like pages of SQLite: one may be chance
# Definitions that every schema of ours has had, as the migrations spell them.
_TABLES: Final = (
    b"CREATE TABLE erased (\n    key_hash  BLOB PRIMARY KEY",
    b"CREATE TABLE purges (\n    sid INTEGER PRIMARY KEY",
    b"CREATE TABLE scopes (\n    pos     INTEGER PRIMARY KEY",
)


def schema_of(conn: apsw.Connection) -> int:
    """The schema number of our database, 0 for an empty one, below 0 for one that is not ours, or
    whose header does not say so."""
    with conn:  # one instant: another process may be creating the file right now
        empty = conn.execute(SQL["count_definitions"]).get == 0
        application, version = conn.pragma("application_id"), conn.pragma("user_version")
    if application == APPLICATION_ID:
        return -1 if version == 0 and not empty else int(version)
    return 0 if empty and application == 0 else -1


def migrate(conn: apsw.Connection, number: int) -> None:
    """One step, inside the caller's transaction."""
    for _ in conn.execute(SCRIPTS[f"{number:04}"]):
        pass
    if number == 1:
        secret = os.urandom(32)
        conn.execute(SQL["put_meta"], ("secret", secret))
        conn.execute(SQL["put_meta"], ("secret_crc", crc32(secret)))
        conn.pragma("application_id", APPLICATION_ID)
    conn.pragma("user_version", number)


def migrate_all(conn: apsw.Connection) -> int:
    """Every step that is missing, in one transaction. Returns the schema that was found.

    Looks again under the write lock: two processes may open a new file at once.
    """
    conn.execute("BEGIN IMMEDIATE")
    try:
        schema = max(schema_of(conn), 0)
        for number in range(schema + 1, SCHEMA + 1):
            migrate(conn, number)
        ledger.begin(conn)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    return schema


def begin_ledger(conn: apsw.Connection) -> None:
    """Give a file that was made before there was a ledger one, if that can be done now.

    If not, the next process that opens it or deletes a session does it.
    """
    with suppress(apsw.Error, *ledger.UNREADABLE):
        if ledger.read(conn) is not None:
            return
        try:
            conn.execute("BEGIN IMMEDIATE")
            ledger.begin(conn)
            conn.execute("COMMIT")
        finally:
            if conn.in_transaction:
                conn.execute("ROLLBACK")


def kind_of(path: Path) -> DatabaseKind:
    """Tell whose file this is by its bytes: ours as its header says, ours (most likely) with a
    damaged header, or somebody else's. Raises OSError."""
    content = first_bytes(path, _LOOKED_AT_BYTES)
    known = content.startswith(_MAGIC)
    schema, application = content[60:64], content[68:72]
    if known and any(schema) and application == APPLICATION_ID.to_bytes(4, "big"):
        return "ours"
    if any(table in content for table in _TABLES):
        return "damaged"
    if known:  # a sound header, without our mark, before tables that are not ours
        return "foreign"
    return "damaged" if _has_pages(content) or _has_log(path) else "foreign"


def is_dump(path: Path) -> bool:
    """True if the file was written by pg_dump -Fc. Raises OSError."""
    return first_bytes(path, len(_DUMP_MAGIC)) == _DUMP_MAGIC


def _has_pages(content: bytes) -> bool:
    """True if what follows the first page looks like trees of SQLite."""
    starts = range(_PAGE_BYTES, len(content) - _PAGE_BYTES + 1, _PAGE_BYTES)
    return sum(_is_tree(content[start : start + _PAGE_BYTES]) for start in starts) >= _PAGES_MIN


def _is_tree(page: bytes) -> bool:
    """A page of a table or an index: its kind, then numbers that fit each other."""
    if page[0] not in (2, 5, 10, 13):
        return False
    cells, content = int.from_bytes(page[3:5], "big"), int.from_bytes(page[5:7], "big")
    pointers_end = (8 if page[0] in (10, 13) else 12) + 2 * cells
    return pointers_end <= content <= _PAGE_BYTES


def _has_log(path: Path) -> bool:
    """True if SQLite's log lies beside it. The log has no locks that reading it could drop."""
    try:
        with path.with_name(f"{path.name}-wal").open("rb") as log:
            return log.read(4) in _LOG_MAGIC
    except OSError:
        return False
