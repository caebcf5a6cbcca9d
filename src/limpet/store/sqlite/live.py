"""The live channel of a database file: a small database beside it, with a ring of partial events.

It is named like the database, with `-live` at the end. The first who follows makes it; publishers
write to it only while somebody else's entry in `subscribers` is fresh. It is never synced and never
larger than PAGES_MAX pages: what does not fit replaces what is there. A rollback journal instead of
a WAL: it keeps the file whole if a writer is killed, leaves no second file behind, and what is
deleted is overwritten at once. Whoever deletes the file loses partials and nothing else; the ends
notice within KEEP_SECONDS and make it again. Backups leave it out.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw

from limpet.model import Key
from limpet.store.coding.codec import Codec
from limpet.store.live import Inbox, Packed, can_pack, pack_all
from limpet.store.logs import SQLITE, error_name
from limpet.store.protocol import Partial
from limpet.store.sqlite.file.connect import close
from limpet.store.sqlite.sql import SCRIPTS, SQL
from limpet.store.system import PROCESS, in_thread

SUFFIX: Final = "-live"
FORMAT: Final = 1
PAGES_MAX: Final = 1_024  # of 4 KiB
ROWS_MAX: Final = 1_024
KEEP_SECONDS: Final = 1.0  # how often a subscriber renews its entry and looks for its file
FRESH_SECONDS: Final = 5.0  # how long an entry counts
BUSY_MS: Final = 100  # a writer waits no longer for readers and other writers
_READ_MAX: Final = 1_024  # partials that are taken at a time
_FAILURES: Final = (apsw.Error, OSError)


def live_path(path: Path) -> Path:
    """The path of a database's live channel."""
    return path.with_name(path.name + SUFFIX)


def forget(path: Path, key: Key | None) -> None:
    """Remove the partials of a session, or all, from the file if there is one; if that fails, the
    file."""
    live = live_path(path)
    if not live.exists():
        return
    try:
        conn = _connect(live)
        try:
            if key is None:
                conn.execute(SQL["live_clear"])
            else:
                conn.execute(SQL["live_forget"], (key.app, key.user, key.id))
        finally:
            close(conn)
    except _FAILURES as error:  # in use for too long, or damaged
        SQLITE.info("live channel removed: store=%s error=%s", path, error_name(error))
        live.unlink(missing_ok=True)


def unreadable(live: Path) -> str | None:
    """The reason why a file cannot be used as a live channel; None if it can."""
    try:
        conn = _connect(live, looking=True)
    except apsw.BusyError:
        return None
    except _FAILURES as error:
        return str(error)
    close(conn)
    return None


class FileChannel:
    """One end of a database's live channel.

    Reads run inline on the event loop: a tick with nothing new costs a few microseconds. All else
    runs in threads, one at a time, on a connection of its own.
    """

    def __init__(self, path: Path, codec: Codec, *, looking: bool) -> None:
        self._path, self._codec = live_path(path), codec
        self._file = _LiveFile(path, looking=looking)
        self._reader: apsw.Connection | None = None
        self._position = 0
        self._version: int | None = None  # of the file, when everything in it was read
        self._keeping: asyncio.Task[None] | None = None
        self._opened = Inbox(codec)
        self._heard: Callable[[], None] = lambda: None

    async def publish(self, partials: Sequence[Partial]) -> None:
        if self._path.exists() and await can_pack(self._codec, partials):
            await in_thread(lambda: self._file.add(lambda: pack_all(self._codec, partials)))

    async def subscribe(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._take(await in_thread(self._file.enter))
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def received(self, wanted: Callable[[Key], bool]) -> tuple[Partial, ...]:
        conn = self._reader
        if conn is None:
            return ()
        try:
            version = int(conn.execute(SQL["live_version"]).get)
            if version == self._version:
                return self._opened.take((), self._heard)
            asked = (self._position, self._file.me, _READ_MAX)
            rows: list[Any] = conn.execute(SQL["live_read"], asked).fetchall()
        except _FAILURES:  # somebody writes it just now, or it is damaged: later, or never
            return ()
        self._version = version if len(rows) < _READ_MAX else None
        if rows:
            self._position = rows[-1][0]
        return self._opened.take(
            [p for row in rows if wanted((p := Packed(*row[1:])).key)], self._heard
        )

    async def unsubscribe(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await in_thread(self._file.leave)
        self._take(None)
        self._opened.clear()

    async def close(self) -> None:
        await self.unsubscribe()
        await in_thread(self._file.close)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            renewed = await in_thread(self._file.renew)
            if renewed is not None:
                self._take(renewed)

    def _take(self, opened: tuple[apsw.Connection, int] | None) -> None:
        """Read from here on, instead of what was read before."""
        if self._reader is not None:
            close(self._reader)
        self._reader, self._position = opened or (None, 0)
        self._version = None


class _LiveFile:
    """The file as threads use it: one call at a time. Nothing raises: what fails is lost."""

    def __init__(self, main: Path, *, looking: bool) -> None:
        self._main, self._path, self._looking = main, live_path(main), looking
        self.me = os.urandom(8)
        self._lock = threading.Lock()
        PROCESS.fork_waits_for(self._lock)
        self._conn: apsw.Connection | None = None
        self._failed = False  # and that was logged
        self._inode: tuple[int, int] | None = None

    def add(self, packed: Callable[[], Sequence[Packed]]) -> None:
        """Write partials if somebody else is subscribed; the oldest make room for them."""
        with self._lock, suppress(*_FAILURES):
            conn = self._opened()
            if conn is None or self._looking or not self._has_others(conn):
                return
            rows = [(_now_us(), self.me, *partial) for partial in packed()]
            try:
                self._add(conn, rows)
            except apsw.FullError:
                conn.execute(SQL["live_clear"])
                self._add(conn, rows)

    def _has_others(self, conn: apsw.Connection) -> bool:
        return bool(conn.execute(SQL["live_others"], (self.me, _now_us())).get)

    def _add(self, conn: apsw.Connection, rows: Sequence[tuple[object, ...]]) -> None:
        with _writing(conn):
            conn.executemany(SQL["live_add"], rows)
            conn.execute(SQL["live_trim"], (ROWS_MAX,))

    def enter(self) -> tuple[apsw.Connection, int] | None:
        """Subscribe. A connection to read from, and the present end; None if there is none yet."""
        with self._lock:
            try:
                if not self._looking and not self._path.exists():
                    _create(self._main, self._path)
                conn = self._opened()
                if conn is None:
                    return None
                self._renew(conn)
                self._failed = False
                conn = _connect(self._path, looking=self._looking)
                end = int(conn.execute(SQL["live_end"]).get)
                conn.set_busy_timeout(0)
                return conn, end
            except _FAILURES as error:
                if not self._failed:
                    text = "live channel not opened: store=%s error=%s"
                    SQLITE.info(text, self._main, error_name(error))
                self._failed = True
                self._drop(error)
                return None

    def renew(self) -> tuple[apsw.Connection, int] | None:
        """Stay subscribed. A new connection if the file is another than before."""
        before = self._inode
        with self._lock:
            try:
                conn = self._opened()
                if conn is not None and self._inode == before:
                    self._renew(conn)
                    return None
            except apsw.BusyError:
                return None
            except _FAILURES as error:
                self._drop(error)
        return self.enter()

    def leave(self) -> None:
        """Unsubscribe; the last one leaves no partials behind."""
        with self._lock, suppress(*_FAILURES):
            conn = self._opened()
            if conn is not None and not self._looking:
                conn.execute(SQL["live_leave"], (self.me,))
                if not self._has_others(conn):
                    conn.execute(SQL["live_clear"])

    def close(self) -> None:
        with self._lock:
            self._forget()

    def _renew(self, conn: apsw.Connection) -> None:
        if self._looking:
            return
        now_us = _now_us()
        with _writing(conn):
            conn.execute(SQL["live_enter"], (self.me, now_us + int(FRESH_SECONDS * 1e6)))
            conn.execute(SQL["live_stale"], (now_us - int(FRESH_SECONDS * 1e6),))
            conn.execute(SQL["live_lapsed"], (now_us,))

    def _opened(self) -> apsw.Connection | None:
        """A connection to the file that is there now; None if there is none."""
        inode = _inode(self._path)
        if inode != self._inode or inode is None:
            self._forget()
        if inode is None:
            return None
        if self._conn is None:
            self._conn, self._inode = _connect(self._path, looking=self._looking), inode
        return self._conn

    def _forget(self) -> None:
        conn, self._conn, self._inode = self._conn, None, None
        if conn is not None:
            close(conn)

    def _drop(self, error: Exception) -> None:
        """Remove a file that is damaged: it is made again."""
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)) and not self._looking:
            self._forget()
            with suppress(OSError):
                self._path.unlink()


@contextmanager
def _writing(conn: apsw.Connection) -> Iterator[None]:
    """All or nothing: readers never see a part, and a killed writer leaves none."""
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def _connect(path: Path, *, looking: bool = False) -> apsw.Connection:
    """A connection to a file that is there. Raises apsw.Error."""
    flags = apsw.SQLITE_OPEN_READONLY if looking else apsw.SQLITE_OPEN_READWRITE
    conn = apsw.Connection(str(path), flags=flags)
    try:
        conn.set_busy_timeout(BUSY_MS)
        conn.pragma("synchronous", "off")
        conn.pragma("secure_delete", True)
        conn.pragma("max_page_count", PAGES_MAX)
        pragma = conn.pragma("user_version")
        if pragma != FORMAT:
            raise apsw.CantOpenError(f"it is of format {pragma}, not {FORMAT}")
    except BaseException:
        close(conn)
        raise
    return conn


def _create(main: Path, path: Path) -> None:
    """Make the file beside the database, as readable as that, complete or not at all."""
    number = random.getrandbits(32)  # nosec B311  # a name that no other attempt has
    part = path.with_name(f"{path.name}.{os.getpid()}-{number:08x}.part")
    try:
        conn = apsw.Connection(str(part))
        try:
            conn.pragma("synchronous", "off")
            conn.execute(SCRIPTS["live_schema"])
        finally:
            close(conn)
        part.chmod(main.stat().st_mode & 0o777)
        with suppress(FileExistsError):  # another was faster, which is as good
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino)


def _now_us() -> int:
    return time.time_ns() // 1_000
