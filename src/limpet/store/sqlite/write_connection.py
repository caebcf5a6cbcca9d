"""The connection that writes: its transactions, its cache and its write-ahead log.

A store has one. The writer's thread uses it, and an event loop that makes a commit itself: one at a
time, whoever holds the writer's lock. Only the thread ever waits for another process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

import apsw

from limpet.model import SALT_BYTES, Noise
from limpet.store.cache import Cache
from limpet.store.coding.codec import Codec
from limpet.store.logs import SQLITE
from limpet.store.sqlite.file.connect import Database, close
from limpet.store.sqlite.reading.reader import SQLiteReader

CHECKPOINT_PAGES: Final = 1_000
RESTART_PAGES: Final = 8_000  # from here on readers are waited for
RESTART_SECONDS_MAX: Final = 0.5  # to wait for the write lock and, holding it, for them
FILE_BYTES_MAX: Final = 64 * 2**20  # of a log that a long reader made longer, once it begins again
_FRAME_BYTES: Final = 4_096 + 24
_STEP_BYTES: Final = 2 * 2**20
# A write of megabytes becomes one huge page in the cache of newer kernels, and every fsync goes
# through all of it: it took 155 instead of 85 µs of processor time for a commit of four pages.
_CHUNK_BYTES: Final = 32 * 2**10


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
        # Deleted rows are overwritten: an erased session must not linger in free pages.
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


class Wal:
    """The write-ahead log file: kept at a length that makes commits cheap, and emptied in time.

    Appending to a file costs a journal entry of the file system on every fsync; writing inside it
    does not. So the WAL is lengthened with zeros ahead of use (SQLite stops reading at the first
    frame that is not one), and checkpointed when it is long, between batches rather than inside a
    commit.

    A commit begins the log again from its start only if everything in it was copied and no reader
    uses it at that moment. Where many processes write and watch there is always one who does, so a
    log that was checkpointed and still grows is begun again by waiting a moment for those readers.

    Only the writer's thread tends it. `usual` and `brief` are busy handlers.
    """

    def __init__(
        self,
        conn: apsw.Connection,
        usual: Callable[[int], bool],
        brief: Callable[[int], bool],
        *,
        grow: bool,
    ) -> None:
        self._conn, self._usual, self._brief, self._grow = conn, usual, brief, grow
        self._pages = 0  # in the log, since it was last begun
        self._idle = 0  # do not try again before this many pages: the next commit may begin it
        self._truncate = False
        self._length = 0  # of the file, as far as we know; others may have made it longer
        conn.pragma("journal_size_limit", FILE_BYTES_MAX)
        conn.set_wal_hook(self._committed)

    def tend(self, *, idle: bool) -> None:
        """Checkpoint after a batch if the log is long, and lengthen it if its end is near."""
        if self._truncate and idle:
            self.truncate()
        if self._pages >= max(CHECKPOINT_PAGES, self._idle):
            self._checkpoint()
        if self._is_short:
            self._lengthen()

    @property
    def neglected(self) -> bool:
        """True if `tend` has something to do."""
        pages = self._pages
        if self._truncate or (pages >= CHECKPOINT_PAGES and pages >= self._idle):
            return True
        return self._is_short

    @property
    def _is_short(self) -> bool:
        """True if the end of the file is near."""
        used = self._pages * _FRAME_BYTES
        if self._length > used + _STEP_BYTES // 4:
            return False
        return self._grow and used > 0 and self._length <= self._used + _STEP_BYTES // 4

    @property
    def _used(self) -> int:
        return min(self._pages, CHECKPOINT_PAGES) * _FRAME_BYTES

    def truncate(self) -> bool:
        """Empty the file, so that nothing erased is left in it. False if a reader is in the way.

        Never waits: a checkpoint that waits holds the write lock meanwhile.
        """
        self._conn.set_busy_handler(None)
        try:
            self._conn.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.BusyError, apsw.LockedError):
            self._truncate = True
        else:
            self._truncate, self._pages, self._length = False, 0, 0
        finally:
            self._conn.set_busy_handler(self._usual)
        return not self._truncate

    def _committed(self, _: apsw.Connection, __: str, pages: int) -> int:
        if pages < self._pages:  # begun again, here or in another process, which may have cut it
            self._idle = self._length = 0
        self._pages = pages
        return 0

    def _checkpoint(self) -> None:
        # PASSIVE waits for nobody: a reader in another process only makes it do less. The next
        # commit begins the log again if all of it was copied and nobody reads it just then.
        began = time.monotonic()
        total, copied = self._conn.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        soon = CHECKPOINT_PAGES // 4
        self._pages, self._idle = total, total + soon
        if copied == total:
            text = "WAL checkpoint: store=%s pages=%d seconds=%.3f"
            SQLITE.debug(text, self._conn.filename, total, time.monotonic() - began)
        else:
            text = "WAL checkpoint held up: store=%s copied=%d pages=%d"
            SQLITE.info(text, self._conn.filename, copied, total)
        if total >= RESTART_PAGES and total - copied < soon:  # else someone reads for long
            self._restart()

    def _restart(self) -> None:
        """Copy the rest and wait until nobody reads the log, so that it begins again.

        Whoever begins to read meanwhile reads the file itself and is not in the way.
        """
        self._conn.set_busy_handler(self._brief)
        try:
            self._conn.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except (apsw.BusyError, apsw.LockedError):
            pass  # tried again when the log is longer
        else:
            self._pages = self._idle = 0
        finally:
            self._conn.set_busy_handler(self._usual)

    def _lengthen(self) -> None:
        path = self._conn.filename_wal
        # Only with the write lock nobody else adds frames, so what lies past the end is nobody's.
        self._conn.execute("BEGIN IMMEDIATE")
        try:
            self._length = _add_zeros(path, self._used + _STEP_BYTES)
        except OSError:  # no room to be generous: commits still work, a little slower
            self._grow = False
        finally:
            self._conn.execute("ROLLBACK")


def _add_zeros(path: str, length: int) -> int:
    """Lengthen a file to `length` and see it on disk, so that no commit pays for it."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        size = os.fstat(handle).st_size
        if size < length:
            zeros = memoryview(bytes(_CHUNK_BYTES))
            for at in range(size, length, _CHUNK_BYTES):
                os.write(handle, zeros[: length - at])
            os.fsync(handle)
        return max(size, length)
    finally:
        os.close(handle)
