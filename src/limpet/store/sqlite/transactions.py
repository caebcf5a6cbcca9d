"""The connection that writes: its transactions, and what is remembered between them.

There is one in a store. The writer's thread uses it, and an event loop that commits by itself: one
at a time, whoever holds the writer's lock. Only the thread ever waits for another process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import apsw

from limpet.model import SALT_BYTES, Noise
from limpet.store.cache import Cache
from limpet.store.coding import Codec
from limpet.store.sqlite.file.connect import Database, close
from limpet.store.sqlite.file.wal import RESTART_SECONDS_MAX, Wal
from limpet.store.sqlite.reading.reader import SQLiteReader


class SQLiteWriteConnection:
    """Opened by the thread that uses it. The cache outlives a connection that is replaced."""

    def __init__(self, database: Database, codec: Codec) -> None:
        self.cache = Cache()
        self.codec = codec
        self.conn: apsw.Connection
        self._transaction: Transaction
        self.cursor: apsw.Cursor  # for statements without rows: making one takes longer than BEGIN
        self.reader: SQLiteReader
        self.wal: Wal
        self.purging = True  # there may be purges that an earlier process left unfinished
        self.sweeping = True  # and uploads of blobs that nobody will finish
        self.path, self.where = database.path, database.where
        self._database = database
        self._connected = False
        self._home = 0  # the thread that opened it
        self.salt = Noise(os.urandom, SALT_BYTES)  # a new one for the digest of an event

    def open(self) -> None:
        """Connect, or connect again."""
        self._home = threading.get_ident()
        self.conn, self._connected = self._database.connect(), True
        self.cursor = self.conn.cursor()
        self._transaction = Transaction(self.cursor, self.cache)
        self.cache.note_version(None)  # each connection counts for itself
        # What is deleted is overwritten: an erased session must not linger in free pages.
        self.conn.pragma("secure_delete", True)
        self.reader = SQLiteReader(self.conn, self.codec)
        usual = self._waiting(self._database.busy_handler())
        brief = self._waiting(self._database.busy_handler(RESTART_SECONDS_MAX))
        self.conn.set_busy_handler(usual)
        self.wal = Wal(self.conn, usual, brief, grow=self._database.plain)

    def _waiting(self, pause: Callable[[int], bool]) -> Callable[[int], bool]:
        """A busy handler that waits on the thread only. On a loop it gives up at once."""
        return lambda tries: threading.get_ident() == self._home and pause(tries)

    def close(self) -> None:
        """Let go of the file and its locks, if it was ever opened."""
        if self._connected:
            close(self.conn)

    def replace_stuck(self) -> bool:
        """Connect again if a transaction could not be ended, which would keep everybody else out.
        Whether that was so."""
        if not self.conn.in_transaction:
            return False
        close(self.conn)
        self.open()
        return True

    def transaction(self) -> Transaction:
        """The write lock, from BEGIN IMMEDIATE to a durable COMMIT or a ROLLBACK."""
        return self._transaction


class Transaction:
    """BEGIN IMMEDIATE … COMMIT, and the question whether another process has committed since. One
    serves all transactions of a connection."""

    __slots__ = ("_cache", "_conn", "_cursor")

    def __init__(self, cursor: apsw.Cursor, cache: Cache) -> None:
        self._cursor, self._cache, self._conn = cursor, cache, cursor.connection

    def __enter__(self) -> None:
        try:
            # IMMEDIATE: the write lock comes first, so nothing read inside can be overtaken.
            self._cursor.execute("BEGIN IMMEDIATE")
            # Counts our commits, too, and is asked without a statement.
            self._cache.note_version(self._conn.data_version())
        except BaseException:
            self._roll_back()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._cursor.execute("COMMIT")  # durable here: the WAL is synced
            except BaseException:
                self._roll_back()
                raise
            # Nobody else's commit is in it: this connection sees those when it next begins.
            self._cache.leave_version(self._conn.data_version())
            return
        self._roll_back()

    def _roll_back(self) -> None:
        if self._conn.in_transaction:
            self._conn.execute("ROLLBACK")
