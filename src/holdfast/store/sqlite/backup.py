"""Online backup and restore of a database file.

A backup is a consistent copy taken while others write. Both write beside the target and rename,
so that a target is complete or as it was, whatever happens in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from holdfast.errors import BackupRefused, StoreCorrupt, StoreForeign, StoreNewer
from holdfast.store.protocol import Progress
from holdfast.store.sqlite.connect import SCHEMA, Database, close, schema_of, translate
from holdfast.store.sqlite.sql import SQL

_PAGES_PER_STEP: Final = 1_000
_EPOCH_BITS: Final = 30  # positions between two restores; the seconds of the clock stand above
_EXISTS: Final = (
    "it exists already; to overwrite it, ask for that (replace=True, or --replace on the command "
    "line)"
)


def back_up(database: Database, target: Path, progress: Progress | None) -> None:
    """Copy the database as it is at this moment to a file that must not exist yet."""
    if target.exists():
        raise BackupRefused(str(target), "it exists already; choose another name or remove it")
    source = database.connect()
    part = _beside(target)
    try:
        source.execute("BEGIN")
        source.execute("SELECT 1 FROM meta").fetchone()  # the copy is of this instant
        _copy(source, part, progress)
        _put(part, target)
    except apsw.Error as error:
        raise translate(error, str(target), "change") from error
    except OSError as error:
        raise BackupRefused(str(target), str(error)) from error
    finally:
        part.unlink(missing_ok=True)
        close(source)


def restore(backup: Path, target: Path, *, replace: bool, progress: Progress | None) -> None:
    """Put a backup in the place of a database that no process has open.

    The backup is only read. What was in its place is moved aside if it cannot be closed cleanly;
    nothing is ever deleted.
    """
    if not backup.is_file():
        raise BackupRefused(str(backup), "there is no such file")
    if target.exists() and not replace:
        raise BackupRefused(str(target), _EXISTS)
    part = _beside(target)
    source = _open_backup(backup)
    try:
        _copy(source, part, progress)
        with _set_aside(target) as issued:
            _lift(part, issued)
            _put(part, target)
    except apsw.Error as error:
        raise translate(error, str(target), "change") from error
    except OSError as error:
        raise BackupRefused(str(target), str(error)) from error
    finally:
        part.unlink(missing_ok=True)
        close(source)


def _open_backup(backup: Path) -> apsw.Connection:
    """A backup, read-only and checked: ours, of a schema we know, and intact."""
    where = str(backup)
    name = f"file:{quote(str(backup.absolute()))}?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        conn = apsw.Connection(name, flags=flags)
        found = schema_of(conn)
        if found < 1:
            raise StoreForeign(where)
        if found > SCHEMA:
            raise StoreNewer(where, found, SCHEMA)
        problem = conn.execute("PRAGMA integrity_check(1)").get
    except apsw.NotADBError as error:
        raise StoreForeign(where) from error
    except apsw.Error as error:
        raise translate(error, where, "read") from error
    if problem != "ok":
        raise StoreCorrupt(where, problem)
    return conn


@contextmanager
def _set_aside(target: Path) -> Iterator[int]:
    """Hold the database that is replaced, so that nobody opens it meanwhile; what _issued says of
    it, or 0.

    Leaving WAL mode writes everything back into the file and fails if any process has it open. A
    file too damaged for that is moved aside with its log, where it can still be looked at.
    """
    if not target.exists():
        yield 0
        return
    conn = apsw.Connection(str(target))
    # If it cannot be closed cleanly, closing must not throw its log away.
    conn.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    try:
        conn.pragma("locking_mode", "exclusive")
        conn.pragma("journal_mode", "delete")
        conn.execute("BEGIN EXCLUSIVE")
        issued = _issued(conn)
    except (apsw.BusyError, apsw.LockedError) as error:
        close(conn)
        raise BackupRefused(str(target), "a process has it open; close it there first") from error
    except apsw.Error:
        close(conn)
        moved = _move_aside(target)
        try:
            yield 0
        except BaseException:
            for old, aside in moved:
                aside.rename(old)
            raise
        return
    try:
        yield issued
    finally:
        close(conn)


def _move_aside(target: Path) -> list[tuple[Path, Path]]:
    """Give a damaged database another name, log included; what was moved, and to where."""
    name = _beside(target).with_suffix(".damaged")
    moved = []
    for suffix in ("-wal", "-shm", ""):
        old = target.with_name(target.name + suffix)
        if old.exists():
            aside = name.with_name(name.name + suffix)
            old.rename(aside)
            moved.append((old, aside))
    return moved


def _beside(target: Path) -> Path:
    """A name of our own in the target's directory. What dead processes left there is cleared."""
    for left in target.parent.glob(f"{target.name}.*-*.part*"):
        pid = left.name.removeprefix(f"{target.name}.").partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            left.unlink(missing_ok=True)
    return target.with_name(f"{target.name}.{os.getpid()}-{os.urandom(4).hex()}.part")


def _copy(source: apsw.Connection, part: Path, progress: Progress | None) -> None:
    part.unlink(missing_ok=True)
    copy = apsw.Connection(str(part))
    try:
        with copy.backup("main", source, "main") as running:
            while not running.done:
                running.step(_PAGES_PER_STEP)
                if progress is not None:
                    progress(running.page_count - running.remaining, running.page_count)
        copy.pragma("journal_mode", "delete")  # one file, no -wal beside it
        copy.pragma("journal_mode", "wal")
    finally:
        close(copy)


def _lift(part: Path, issued: int) -> None:
    """Let positions in the feed begin above every one that was handed out since the backup.

    What was recorded since then is gone, and watchers remember positions of it: given again, they
    would hide what comes now. By the clock, as the file that held them may be gone too.
    """
    copy = apsw.Connection(str(part))
    try:
        epochs = [(each >> _EPOCH_BITS) + 1 for each in (issued, _issued(copy))]
        with copy:
            copy.execute(SQL["feed_forget"])
            copy.execute(SQL["feed_begin"], (max(int(time.time()), *epochs) << _EPOCH_BITS,))
    finally:
        close(copy)


def _issued(conn: apsw.Connection) -> int:
    """The last position that a database has handed out."""
    return int(conn.execute(SQL["feed_issued"]).get)


def _put(part: Path, target: Path) -> None:
    """Durable under its name: the bytes first, then the name, then the directory that has it."""
    for path in (part, target.parent):
        if path == target.parent:
            os.replace(part, target)  # noqa: PTH105  # the atomic one, by its name
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
