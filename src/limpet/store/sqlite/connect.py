"""Connections: how a database file is opened, recognised, and how its errors are told.

WAL, and a fsync of it on every commit (synchronous=FULL) unless the URL asks for less. Several
processes may write one file: SQLite's own busy handler backs off to 100 ms and starves writers
under load, so ours waits 0.2 to 2 ms, at random, until a deadline.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote
from zlib import crc32

import apsw

from limpet.errors import (
    Asked,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreForked,
    StoreFull,
    StoreNewer,
    StoreOlder,
    StoreReadOnly,
    StoreUnopened,
)
from limpet.store.logs import SQLITE
from limpet.store.sqlite import ledger
from limpet.store.sqlite.files import being_restored
from limpet.store.sqlite.filesystems import is_full
from limpet.store.sqlite.header import APPLICATION_ID, kind_of

SCHEMA: Final = 3
BUSY_SECONDS_MAX: Final = 10.0
_WAIT_SECONDS: Final = (0.0002, 0.002)
_EFFECTIVE: Final = os.access in os.supports_effective_ids
_LOGS: Final = ("-wal", "-journal")
_DIRECTORY: Final = "it is a directory; name a file"
_NOTHING_MADE: Final = "the file is empty, and nothing is made of it here; restore a backup"
_LOG_UNREAD: Final = (
    "its log (the -wal file) holds commits and can only be read where files may be written. Copy "
    "the file and its -wal to a directory of your own and look at the copy"
)
_UNREADABLE: Final = (
    "It cannot be opened any more. Keep a copy of it with its -wal, and restore a backup in its "
    "place (limpet restore FILE STORE --replace sets it aside)"
)
DAMAGED_HEADER: Final = (
    "its header is damaged: the first bytes, which say what the file is, are not what a Limpet "
    "database begins with, and the rest is"
)
_RESTORED: Final = "a restore is putting a backup in its place"
_RESTORE_ENDS: Final = "the restored store can be opened as soon as that has ended"
_WRITTEN: Final = (
    "it was written while it was read, and where nothing may be written it cannot be held. Copy "
    "the file and its -wal to a directory of your own and look at the copy"
)


# The files this process has open, by device and inode, with the process that opened them. After
# os.fork the child inherits SQLite's tables of locks but not the locks: opening such a file again
# there would lose commits. An entry with another process's id is such an inheritance.
_opened: dict[tuple[int, int], tuple[int, int]] = {}


class Database:
    """A file and how to open it. Connections come from here and nowhere else."""

    def __init__(
        self,
        path: Path,
        *,
        sync: str,
        vfs: str | None,
        busy_seconds: float = BUSY_SECONDS_MAX,
        looking: bool = False,
    ) -> None:
        self.path = followed(path).absolute()  # a log lies beside the file, not beside a link to it
        self.looking = looking  # only to read what is there, also where nothing may be written
        self.where = str(path)
        self.plain = vfs is None  # the operating system's own files, not a test's
        self._sync, self._vfs = sync, vfs
        self._known = (0, 0)  # device and inode, once it is open
        self._found: tuple[int, int] | None = None  # the file as it lay there, if read unlocked
        self.busy_seconds = busy_seconds

    def connect(self) -> apsw.Connection:
        """A connection with our pragmas to a file that was prepared."""
        try:
            conn = self._opened()
        except apsw.Error as error:
            raise translate(error, self.where, "read") from error
        try:
            return self._tuned(conn)
        except apsw.Error as error:
            close(conn)
            raise translate(error, self.where, "read") from error

    def recognise(self, *, older: bool = False) -> apsw.Connection:
        """Connect to a file that is ours and stays as it is: nothing is made or brought forward.

        With `older` also to one of an earlier schema. Raises StoreError.
        """
        self._refuse_inherited()
        if self.path.is_dir():
            raise StoreUnopened(self.where, _DIRECTORY)
        try:
            conn = self._opened()
            try:
                found = schema_of(self._tuned(conn))
            except apsw.Error:
                close(conn)
                raise
        except apsw.Error as error:
            raise self._cannot_look(error) from error
        if found == SCHEMA or (older and 0 < found < SCHEMA):
            return conn
        close(conn)
        if found == 0:
            raise StoreUnopened(self.where, _NOTHING_MADE)
        if found < 0:
            raise self._not_ours()
        known = StoreOlder if found < SCHEMA else StoreNewer
        raise known(self.where, found, SCHEMA)

    def prepare(self, *, patient: bool = True) -> apsw.Connection:
        """Create the file or recognise it as ours, bring its schema forward, and stay connected.

        Waits for other processes; raises StoreBusy at once if not `patient`.
        """
        wait, tries = self.patience(), 0
        while True:
            self._refuse_inherited()
            try:
                return self._prepared(patient=patient)
            except StoreBusy as error:
                # A restore has put another file in this place since: that one is to be opened.
                if not (patient and _is_replaced(error.__cause__) and wait(tries)):
                    raise
                tries += 1

    def _prepared(self, *, patient: bool) -> apsw.Connection:
        try:
            conn = apsw.Connection(str(self.path), vfs=self._vfs)
        except apsw.Error as error:
            raise self._cannot_open(error) from error
        try:
            self._tuned(conn)
            if not patient:
                conn.set_busy_handler(None)
            self._bring_forward(conn, patient=patient)
            conn.set_busy_handler(self.patience())
            self.remember()
        except BaseException as error:
            close(conn)
            if isinstance(error, apsw.Error):
                raise self._unknowable(error) from error
            raise
        return conn

    def patience(self, seconds_max: float | None = None) -> Callable[[int], bool]:
        """A busy handler of our own for one connection."""
        return _patience(self.busy_seconds if seconds_max is None else seconds_max)

    def _refuse_inherited(self) -> None:
        """Before SQLite is asked: its tables are the parent's."""
        if _opened.get(self._inode(), (os.getpid(), 0))[0] != os.getpid():
            raise StoreForked

    def remember(self) -> None:
        """A store on this file is open in this process."""
        self._known = self._inode()
        _opened[self._known] = (os.getpid(), _opened.get(self._known, (0, 0))[1] + 1)

    def forget(self) -> None:
        """The store on this file is closed."""
        pid, count = _opened.pop(self._known, (0, 0))
        if pid != os.getpid() or count > 1:
            _opened[self._known] = (pid, count if pid != os.getpid() else count - 1)

    def refuse_written(self) -> None:
        """Raise StoreUnopened if a file that was read unlocked is not as it was found."""
        if self._found is not None and self._found != self._stamp():
            raise StoreUnopened(self.where, _WRITTEN)

    def _opened(self) -> apsw.Connection:
        """A bare connection; where we only look and cannot write, one that needs no lock.

        SQLite reads a WAL database only where it can make files beside it, or finds those of a
        process that has it open. If there are none the file is all there is, and it is read as it
        lies there. Files of ours would be in the way of those who may write.
        """
        full = self.looking and is_full(self.path)
        logged = self.looking and self._has_log(empty=not full)
        if not self.looking or (self._may_write() and not full):
            flags = apsw.SQLITE_OPEN_READWRITE
            conn = apsw.Connection(str(self.path), flags=flags, vfs=self._vfs)
            if logged:  # the last to close would copy the log into the file
                conn.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            return conn
        name = f"file:{quote(str(self.path))}?mode=ro"
        if not logged:
            self._found = self._found or self._stamp()
            name += "&immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return apsw.Connection(name, flags=flags, vfs=self._vfs)

    def _has_log(self, *, empty: bool) -> bool:
        """Whether a log lies beside the file. An opening that found no space leaves an `empty`
        one, which counts only where somebody may be about to write it."""
        logs = [log for log in map(self._beside, _LOGS) if log.exists()]
        return any(empty or log.stat().st_size for log in logs)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _may_write(self) -> bool:
        return may_write(self.path) and may_write(self.path.parent)

    def _stamp(self) -> tuple[int, int]:
        found = self.path.stat()
        return (found.st_mtime_ns, found.st_size)

    def _inode(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError:
            return (0, 0)
        return (found.st_dev, found.st_ino)

    def _tuned(self, conn: apsw.Connection) -> apsw.Connection:
        conn.set_busy_handler(self.patience())
        conn.pragma("synchronous", self._sync)
        conn.pragma("wal_autocheckpoint", 0)  # the writer checkpoints, off the critical path
        return conn

    def _bring_forward(self, conn: apsw.Connection, *, patient: bool) -> None:
        found = schema_of(conn)
        if found == SCHEMA:
            if conn.pragma("journal_mode") != "wal":  # a copy made by other means
                self._enter_wal(conn, patient=patient)
            _begin_ledger(conn)
            return
        if found > SCHEMA:
            raise StoreNewer(self.where, found, SCHEMA)
        if found < 0:
            raise self._not_ours()
        self._enter_wal(conn, patient=patient)
        # Under the write lock, and looked at again: two processes may open a new file at once.
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
        self._tell_forward(found)

    def _tell_forward(self, found: int) -> None:
        if found == 0:
            SQLITE.info("store created: store=%s schema=%d", self.path, SCHEMA)
        elif found < SCHEMA:
            SQLITE.info("schema migrated: store=%s from=%d to=%d", self.path, found, SCHEMA)

    def _enter_wal(self, conn: apsw.Connection, *, patient: bool) -> None:
        """SQLite does not ask the busy handler here, so we wait by ourselves."""
        wait, tries = self.patience(), 0
        while True:
            try:
                conn.pragma("journal_mode", "wal")
                return
            except apsw.BusyError:
                if not patient or not wait(tries):
                    raise
                tries += 1

    def _cannot_open(self, error: apsw.Error) -> StoreError:
        if not self.path.parent.is_dir():
            return StoreUnopened(self.where, "its directory does not exist; create it first")
        if self.path.is_dir():
            return StoreUnopened(self.where, _DIRECTORY)
        return translate(error, self.where, "change")

    def _cannot_look(self, error: apsw.Error) -> StoreError:
        unwritable = isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError))
        if not os.access(self.path, os.R_OK, effective_ids=_EFFECTIVE):
            return StoreUnopened(self.where, "this user may not read it; ask for that right")
        if unwritable and not self._may_write():
            return StoreReadOnly(self.where, _LOG_UNREAD)
        return self._unknowable(error)

    def _unknowable(self, error: apsw.Error) -> StoreError:
        """Why it cannot be told what the file is."""
        if isinstance(error, apsw.NotADBError):
            return self._not_ours()
        if isinstance(error, apsw.CorruptError):
            return StoreCorrupt(self.where, str(error), _UNREADABLE)
        if isinstance(error, apsw.BusyError) and being_restored(self.path):
            return StoreBusy(self.where, _RESTORED, _RESTORE_ENDS)
        if isinstance(error, apsw.IOError) and is_full(self.path):
            return StoreFull(self.where)
        return translate(error, self.where, "read")

    def _not_ours(self) -> StoreError:
        """Another program's file, or one of ours whose header does not say so any more."""
        with suppress(OSError):
            if kind_of(self.path) != "foreign":
                return StoreCorrupt(self.where, DAMAGED_HEADER, _UNREADABLE)
        return StoreForeign(self.where)


def followed(path: Path) -> Path:
    """Where a link leads. A path that cannot be looked at, or leads nowhere, stays as it is."""
    with suppress(OSError, RuntimeError):
        if path.is_symlink():
            return path.resolve()
    return path


def may_write(path: Path) -> bool:
    """Whether this process may write the file, or into the directory."""
    return os.access(path, os.W_OK, effective_ids=_EFFECTIVE)


def schema_of(conn: apsw.Connection) -> int:
    """The schema number of our database, 0 for an empty one, below 0 for one that is not ours, or
    whose header does not say so."""
    with conn:  # one instant: another process may be making the file just now
        empty = conn.execute("SELECT count(*) FROM sqlite_schema").get == 0
        application, version = conn.pragma("application_id"), conn.pragma("user_version")
    if application == APPLICATION_ID:
        return -1 if version == 0 and not empty else int(version)
    return 0 if empty and application == 0 else -1


def migrate(conn: apsw.Connection, number: int) -> None:
    """One step forward, inside the caller's transaction."""
    sql = Path(__file__).with_name(f"{number:04}.sql").read_text()
    for _ in conn.execute(sql):
        pass
    if number == 1:
        secret = os.urandom(32)
        conn.execute("INSERT INTO meta VALUES ('secret', ?)", (secret,))
        conn.execute("INSERT INTO meta VALUES ('secret_crc', ?)", (crc32(secret),))
        conn.pragma("application_id", APPLICATION_ID)
    conn.pragma("user_version", number)


def _begin_ledger(conn: apsw.Connection) -> None:
    """Give a file from before there was a ledger one, if that can be done now.

    If not, the next who opens it or deletes a session does it.
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


def _patience(seconds_max: float) -> Callable[[int], bool]:
    """Wait a little at random, again and again until the deadline: short enough that no writer
    starves, random enough that two do not meet again."""
    began = 0.0

    def wait(tries: int) -> bool:
        nonlocal began
        now = time.monotonic()
        if tries == 0:
            began = now
        if now - began > seconds_max:
            return False
        time.sleep(random.uniform(*_WAIT_SECONDS))
        return True

    return wait


def translate(error: apsw.Error, where: str, asked: Asked) -> StoreError:
    """The one place where SQLite's errors become ours, told by what was asked."""
    if _is_replaced(error):
        return StoreBusy(where, _RESTORED, _RESTORE_ENDS)
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(where)
        case apsw.FullError():
            return StoreFull(where)
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return StoreReadOnly(where)
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreCorrupt(where, str(error))
        case apsw.CantOpenError():
            return StoreUnopened(where, "check that the file may be read and written here")
        case _:
            return StoreFailed(where, f"{type(error).__name__}: {error}", asked)


def _is_replaced(error: BaseException | None) -> bool:
    """Whether SQLite found that its file has lost its name: another one has it by now."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_READONLY_DBMOVED


def close(conn: apsw.Connection) -> None:
    """Close, and let go even if SQLite cannot do it cleanly: the WAL is recovered at next open."""
    try:
        conn.close()
    except apsw.Error:
        conn.close(True)
