"""The schema of a database file: which one it has, and the migrations to this release's.

Each migration is a numbered file in `sql/`. A database is migrated when it is opened to be written,
in one transaction under the write lock; one that is only read stays as it is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final
from zlib import crc32

import apsw

from limpet.store.sqlite import ledger
from limpet.store.sqlite.file.header import APPLICATION_ID
from limpet.store.sqlite.sql import SQL, script

SCHEMA: Final = 1


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
    for _ in conn.execute(script(f"{number:04}")):
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
        found = max(schema_of(conn), 0)
        for number in range(found + 1, SCHEMA + 1):
            migrate(conn, number)
        ledger.begin(conn)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    return found


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
