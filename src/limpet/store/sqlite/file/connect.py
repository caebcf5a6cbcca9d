"""Connections: how a database file is opened, created and recognised.

WAL, and a fsync of it on every commit (synchronous=FULL) unless the URL asks for less. Several
processes may write one file: SQLite's own busy handler backs off to 100 ms and starves writers
under load, so ours waits 0.2 to 2 ms, at random, until a deadline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from limpet.errors import StoreBusy, StoreForked, StoreNewer, StoreOlder, StoreUnopened
from limpet.store.logs import SQLITE
from limpet.store.sqlite.failures import (
    DIRECTORY,
    is_replaced,
    not_ours,
    translate,
    unopened,
    unread,
    unrecognised,
)
from limpet.store.sqlite.file.filesystems import is_full
from limpet.store.sqlite.file.schema import SCHEMA, begin_ledger, migrate_all, schema_of

BUSY_SECONDS_MAX: Final = 10.0
_WAIT_SECONDS: Final = (0.0002, 0.002)
_EFFECTIVE: Final = os.access in os.supports_effective_ids
_LOGS: Final = ("-wal", "-journal")
_NOTHING_MADE: Final = "the file is empty, and nothing is made of it here; restore a backup"
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
            return self._tune(conn)
        except apsw.Error as error:
            close(conn)
            raise translate(error, self.where, "read") from error

    def recognise(self, *, older: bool = False) -> apsw.Connection:
        """Connect to a file that is ours and stays as it is: nothing is made or migrated.

        With `older` also to one of an earlier schema. Raises StoreError.
        """
        self._refuse_inherited()
        if self.path.is_dir():
            raise StoreUnopened(self.where, DIRECTORY)
        try:
            conn = self._opened()
            try:
                schema = schema_of(self._tune(conn))
            except apsw.Error:
                close(conn)
                raise
        except apsw.Error as error:
            raise unread(error, self.path, self.where, writable=self._may_write()) from error
        if schema == SCHEMA or (older and 0 < schema < SCHEMA):
            return conn
        close(conn)
        if schema == 0:
            raise StoreUnopened(self.where, _NOTHING_MADE)
        if schema < 0:
            raise not_ours(self.path, self.where)
        known = StoreOlder if schema < SCHEMA else StoreNewer
        raise known(self.where, schema, SCHEMA)

    def prepare(self, *, wait: bool = True) -> apsw.Connection:
        """Create the file or recognise it as ours, migrate its schema, and stay connected.

        Waits for other processes; raises StoreBusy at once if `wait` is False.
        """
        pause, tries = self.busy_handler(), 0
        while True:
            self._refuse_inherited()
            try:
                return self._prepare(wait=wait)
            except StoreBusy as error:
                # A restore has put another file in this place since: that one is to be opened.
                if not (wait and is_replaced(error.__cause__) and pause(tries)):
                    raise
                tries += 1

    def _prepare(self, *, wait: bool) -> apsw.Connection:
        try:
            conn = apsw.Connection(str(self.path), vfs=self._vfs)
        except apsw.Error as error:
            raise unopened(error, self.path, self.where) from error
        try:
            self._tune(conn)
            if not wait:
                conn.set_busy_handler(None)
            self._migrate(conn, wait=wait)
            conn.set_busy_handler(self.busy_handler())
            self.remember()
        except BaseException as error:
            close(conn)
            if isinstance(error, apsw.Error):
                raise unrecognised(error, self.path, self.where) from error
            raise
        return conn

    def busy_handler(self, seconds_max: float | None = None) -> Callable[[int], bool]:
        """A busy handler of our own for one connection."""
        return _busy_handler(self.busy_seconds if seconds_max is None else seconds_max)

    def _refuse_inherited(self) -> None:
        """Refuse a forked child before SQLite is asked: its tables are the parent's."""
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
        """True if a log lies beside the file. An opening that found no space leaves an `empty`
        one, which counts only where somebody may be about to write it."""
        logs = [log for log in map(self._beside, _LOGS) if log.exists()]
        return any(empty or log.stat().st_size for log in logs)

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _may_write(self) -> bool:
        return may_write(self.path) and may_write(self.path.parent)

    def _stamp(self) -> tuple[int, int]:
        stat = self.path.stat()
        return (stat.st_mtime_ns, stat.st_size)

    def _inode(self) -> tuple[int, int]:
        try:
            stat = self.path.stat()
        except OSError:
            return (0, 0)
        return (stat.st_dev, stat.st_ino)

    def _tune(self, conn: apsw.Connection) -> apsw.Connection:
        conn.set_busy_handler(self.busy_handler())
        conn.pragma("synchronous", self._sync)
        conn.pragma("wal_autocheckpoint", 0)  # the writer checkpoints, off the critical path
        return conn

    def _migrate(self, conn: apsw.Connection, *, wait: bool) -> None:
        schema = schema_of(conn)
        if schema == SCHEMA:
            if conn.pragma("journal_mode") != "wal":  # a copy made by other means
                self._enter_wal(conn, wait=wait)
            begin_ledger(conn)
            return
        if schema > SCHEMA:
            raise StoreNewer(self.where, schema, SCHEMA)
        if schema < 0:
            raise not_ours(self.path, self.where)
        self._enter_wal(conn, wait=wait)
        self._log_migration(migrate_all(conn))

    def _log_migration(self, installed: int) -> None:
        if installed == 0:
            SQLITE.info("store created: store=%s schema=%d", self.path, SCHEMA)
        elif installed < SCHEMA:
            SQLITE.info("schema migrated: store=%s from=%d to=%d", self.path, installed, SCHEMA)

    def _enter_wal(self, conn: apsw.Connection, *, wait: bool) -> None:
        """SQLite does not call the busy handler here, so we wait by ourselves."""
        pause, tries = self.busy_handler(), 0
        while True:
            try:
                conn.pragma("journal_mode", "wal")
                return
            except apsw.BusyError:
                if not wait or not pause(tries):
                    raise
                tries += 1


def followed(path: Path) -> Path:
    """Resolve a link. A path that cannot be looked at, or leads nowhere, stays as it is."""
    with suppress(OSError, RuntimeError):
        if path.is_symlink():
            return path.resolve()
    return path


def may_write(path: Path) -> bool:
    """True if this process may write the file, or into the directory."""
    return os.access(path, os.W_OK, effective_ids=_EFFECTIVE)


def _busy_handler(seconds_max: float) -> Callable[[int], bool]:
    """Wait a little at random, again and again until the deadline: short enough that no writer
    starves, random enough that two do not meet again."""
    began = 0.0

    def pause(tries: int) -> bool:
        nonlocal began
        now = time.monotonic()
        if tries == 0:
            began = now
        if now - began > seconds_max:
            return False
        import random  # most processes wait for nobody

        time.sleep(random.uniform(*_WAIT_SECONDS))  # nosec B311  # spreads retries
        return True

    return pause


def close(conn: apsw.Connection) -> None:
    """Close, and let go even if SQLite cannot do it cleanly: the WAL is recovered at next open."""
    try:
        conn.close()
    except apsw.Error:
        conn.close(True)
