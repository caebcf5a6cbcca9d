"""Online backup and restore of a database file.

A backup is a consistent copy taken while others write, of the schema that it was taken from. Both
write beside the target, verify what they wrote, and rename: after a failure at any point the target
is complete or as it was.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from limpet.errors import (
    BackupDamaged,
    BackupRefused,
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreNewer,
)
from limpet.store.doctor import damage
from limpet.store.logs import SQLITE
from limpet.store.protocol import Progress, Report, Restored
from limpet.store.sqlite.failures import DAMAGED_HEADER, translate
from limpet.store.sqlite.file.connect import Database, close, followed, may_write
from limpet.store.sqlite.file.filesystems import refuse_network
from limpet.store.sqlite.file.locks import first_bytes, locked, part_beside, refuse_open
from limpet.store.sqlite.file.schema import SCHEMA, is_dump, kind_of, schema_of
from limpet.store.sqlite.reading.feed import begin_after, last_position
from limpet.store.sqlite.verify import verify_copy
from limpet.store.system import is_out_of_descriptors, of_system

_PAGES_PER_STEP: Final = 1_000
_EPOCH_BITS: Final = 20  # below the milliseconds of the clock: positions between two restores
_EXISTS: Final = (
    "exists already; to overwrite it, ask for that (replace=True, or --replace on the command line)"
)
_TAKEN: Final = "exists already; choose another name or remove it"
_DIRECTORY: Final = "is a directory; name a file in it"
_NO_DIRECTORY: Final = "is in a directory that does not exist; create it first"
_NOT_WRITTEN: Final = "is in a directory that this user may not write; name another"
_NO_BACKUP: Final = "is not there; name the file of a backup"
_NOT_OURS: Final = (
    "Nothing was replaced: name another file. If this was a store once and is too damaged to be "
    "known as one, move it away first"
)
_DUMP: Final = (
    "is a dump of a PostgreSQL database. Put it back with pg_restore -d URL FILE, where URL is "
    "that of a PostgreSQL database; limpet restore takes the files that limpet backup makes"
)
_IN_USE: Final = (
    "has a log of its own beside it (-wal): it is open in a process, or was not closed. Close it "
    "there, or copy it with limpet backup and restore the copy"
)
_ANOTHER: Final = "Restore another backup"
_BACKED_UP: Final = "backup written: store=%s file=%s seconds=%.3f verified=%s findings=%d"
_RESTORED: Final = "store restored: store=%s file=%s seconds=%.3f verified=%s findings=%d"


def back_up(
    database: Database,
    target: Path,
    progress: Progress | None,
    *,
    verify: bool = False,
    checking: Progress | None = None,
) -> Report | None:
    """Copy the database as it is at this moment to a file that must not exist yet.

    With `verify` the copy is read back before it gets its name, and a report returned; damage is
    copied.
    """
    target = followed(target)
    _refuse_place(target)
    if target.exists():
        raise BackupRefused(str(target), _TAKEN)
    source, began = database.connect(), time.monotonic()
    part: Path | None = None
    try:
        part = part_beside(target)
        source.execute("BEGIN")
        source.execute("SELECT 1 FROM meta").fetchone()  # the copy is of this instant
        _make(part, database.path)
        report = _copy(source, part, progress, checking, verify=verify)
        _put(part, target)
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise translate(error, database.where, "read") from error
    except apsw.Error as error:
        raise translate(error, str(target), "change") from error
    except OSError as error:
        raise _write_error(error, target) from error
    finally:
        _remove(part)
        close(source)
    _log_copy(_BACKED_UP, database.path, target, began, report)
    return report


def back_up_file(
    path: Path,
    target: Path,
    *,
    sync: str,
    verify: bool,
    progress: Progress | None,
    checking: Progress | None,
) -> Report | None:
    """Copy a database that is not open here, as it is: of an older schema it stays one."""
    refuse_network(path)
    database = Database(path, sync=sync, vfs=None, looking=True)
    close(database.recognise(older=True))
    report = back_up(database, target, progress, verify=verify, checking=checking)
    database.refuse_written()
    return report


def restore(
    backup: Path,
    target: Path,
    *,
    replace: bool,
    damaged: bool = False,
    progress: Progress | None = None,
    checking: Progress | None = None,
) -> Restored:
    """Put a backup in the place of a database that no process has open.

    The backup is only read, and its copy verified before anything is replaced: with findings it
    is refused, unless `damaged`. What was in its place is moved aside if it cannot be closed
    cleanly; nothing but the database that is replaced is ever deleted.
    """
    target = followed(target)
    _refuse_place(target)
    if target.exists() and not replace:
        raise BackupRefused(str(target), _EXISTS)
    backup = followed(backup)
    source, began = _open_backup(backup), time.monotonic()
    part: Path | None = None
    try:
        part = part_beside(target)
        _refuse_foreign(target)
        _make(part, target if target.exists() else backup)
        report = _copy(source, part, progress, checking, verify=True)
        assert report is not None
        if not damaged:
            _refuse_damaged(backup, report)
        with _set_aside(target) as (aside, issued):
            _lift(part, issued)
            _put(part, target)
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise StoreCorrupt(str(backup), str(error), _ANOTHER) from error
    except apsw.Error as error:
        raise translate(error, str(target), "change") from error
    except OSError as error:
        raise _write_error(error, target) from error
    finally:
        _remove(part)
        close(source)
    _log_copy(_RESTORED, target, backup, began, report)
    if aside is not None:
        SQLITE.warning("store set aside: store=%s aside=%s", target, aside)
    return Restored(report, aside)


def _log_copy(text: str, store: Path, file: Path, began: float, report: Report | None) -> None:
    findings = 0 if report is None else len(damage(report))
    level = logging.WARNING if findings else logging.INFO
    seconds, verified = time.monotonic() - began, report is not None
    SQLITE.log(level, text, store, file, seconds, verified, findings)


# --- what is refused -----------------------------------------------------------------------------


def _refuse_place(target: Path) -> None:
    try:
        if target.is_dir():
            raise BackupRefused(str(target), _DIRECTORY)
        if not target.parent.is_dir():
            raise BackupRefused(str(target), _NO_DIRECTORY)
        if not may_write(target.parent):
            raise BackupRefused(str(target), _NOT_WRITTEN)
    except OSError as error:
        raise _write_error(error, target) from error


def _refuse_damaged(backup: Path, report: Report) -> None:
    findings = damage(report)
    broken = [finding.problem for finding in findings if finding.where == "file"]
    if broken:
        raise StoreCorrupt(str(backup), broken[0], _ANOTHER)
    if findings:
        raise BackupDamaged(str(backup), tuple(map(str, findings)))


def _refuse_foreign(target: Path) -> None:
    """Raise StoreForeign for a file that is there and is not ours, however damaged."""
    if not target.exists() or not target.stat().st_size or kind_of(target) != "foreign":
        return
    try:  # a new database has its name in its log until that is copied into the file
        conn = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            ours = schema_of(conn) >= 0
        finally:
            close(conn)
    except apsw.NoMemError:
        raise  # says nothing about the file
    except apsw.Error:
        ours = False
    if not ours:
        raise StoreForeign(str(target), _NOT_OURS)


def _write_error(error: OSError, target: Path) -> StoreError:
    if is_out_of_descriptors(error):
        return of_system(error, str(target), "change")
    what = error.strerror or str(error)
    reason = f"cannot be written: {what}. Check the path, its permissions and the space on its disk"
    return BackupRefused(str(target), reason)


def _remove(part: Path | None) -> None:
    """Remove the parts of a copy that failed. What cannot be removed is cleared by the next one."""
    if part is None:
        return
    for suffix in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            part.with_name(part.name + suffix).unlink(missing_ok=True)


def _open_backup(backup: Path) -> apsw.Connection:
    """A backup, read-only: ours, and of a schema we know."""
    where = str(backup)
    _refuse_unreadable(backup)
    name = f"file:{quote(str(backup.absolute()))}?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        conn = apsw.Connection(name, flags=flags)
        schema = schema_of(conn)
    except apsw.NotADBError as error:
        raise _no_backup(backup) from error
    except apsw.CorruptError as error:
        raise StoreCorrupt(where, str(error), _ANOTHER) from error
    except apsw.Error as error:
        raise translate(error, where, "read") from error
    if 0 < schema <= SCHEMA:
        return conn
    close(conn)
    raise _no_backup(backup) if schema < 1 else StoreNewer(where, schema, SCHEMA)


def _no_backup(file: Path) -> StoreError:
    """The error for a readable file that is not a backup."""
    if is_dump(file):
        return BackupRefused(str(file), _DUMP)
    if kind_of(file) == "foreign":
        return StoreForeign(str(file))
    return StoreCorrupt(str(file), DAMAGED_HEADER, _ANOTHER)


def _refuse_unreadable(backup: Path) -> None:
    try:
        first_bytes(backup, 1)
        log = backup.with_name(f"{backup.name}-wal")
        beside = log.exists() and log.stat().st_size > 0
    except FileNotFoundError as error:
        raise BackupRefused(str(backup), _NO_BACKUP) from error
    except IsADirectoryError as error:
        raise BackupRefused(str(backup), "is a directory; name the file of a backup") from error
    except OSError as error:
        if is_out_of_descriptors(error):
            raise of_system(error, str(backup), "read") from error
        what = f"cannot be read: {error.strerror}. Give this user the right to read it"
        raise BackupRefused(str(backup), what) from error
    if beside:
        raise BackupRefused(str(backup), _IN_USE)


# --- what is in the way --------------------------------------------------------------------------


@contextmanager
def _set_aside(target: Path) -> Iterator[tuple[Path | None, int]]:
    """Hold the database that is replaced, so that nobody opens it meanwhile.

    Leaving WAL mode writes everything back into the file and fails if any process has it open. A
    file too damaged for that is moved aside with its log, where it can still be looked at: the
    new name is yielded, and the last position that the database has handed out.
    """
    if not target.exists() or not target.stat().st_size:
        # A log of a file that is gone would be taken for the log of the one that comes.
        with _move_aside(target, "-wal", "-shm", "-journal") as aside:
            yield aside, 0
        return
    conn, issued = _open_exclusively(target)
    with ExitStack() as held:
        if conn is not None:
            held.callback(close, conn)
            yield None, issued
            return
        with _refuse_if_open(target):
            held.enter_context(locked(target))
        yield held.enter_context(_move_aside(target, "-wal", "-shm", "-journal", "")), issued


def _open_exclusively(target: Path) -> tuple[apsw.Connection | None, int]:
    """A connection that has the database to itself, with everything written back into the file,
    and the last position that it has handed out. No connection if it is too damaged for that."""
    conn, issued = apsw.Connection(str(target)), 0
    # If it cannot be closed cleanly, closing must not throw its log away.
    conn.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    try:
        with _refuse_if_open(target):
            conn.pragma("locking_mode", "exclusive")
            conn.execute("BEGIN EXCLUSIVE; ROLLBACK")  # the mode keeps the lock
            refuse_open(target)  # before the log goes, which that process may be writing
            conn.pragma("journal_mode", "delete")
            conn.execute("BEGIN EXCLUSIVE")
            issued = last_position(conn)
            if kind_of(target) == "ours":
                return conn, issued
    except apsw.NoMemError:
        close(conn)
        raise  # says nothing about the file
    except apsw.Error:
        pass
    except BaseException:
        close(conn)
        raise
    close(conn)
    return None, issued


@contextmanager
def _refuse_if_open(target: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise BackupRefused(str(target), "is open in a process; close it there first") from error


@contextmanager
def _move_aside(target: Path, *suffixes: str) -> Iterator[Path | None]:
    """Give what is left of a database another name, log included, and take it back on failure."""
    name = part_beside(target).with_suffix(".damaged")
    moved = []
    for suffix in suffixes:
        old = target.with_name(target.name + suffix)
        if old.exists():
            aside = name.with_name(name.name + suffix)
            old.rename(aside)
            moved.append((old, aside))
    try:
        asides = dict(moved)
        yield asides.get(target, moved[0][1] if moved else None)
    except BaseException:
        for old, aside in moved:
            aside.rename(old)
        raise


def _make(part: Path, like: Path) -> None:
    """An empty file that nobody may read who may not read the other: of its owner and its group as
    far as this user may give it away."""
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    status = like.stat()
    mode = stat.S_IMODE(status.st_mode) | stat.S_IWUSR
    with suppress(PermissionError):  # only root may
        os.chown(part, status.st_uid, -1)
    try:
        os.chown(part, -1, status.st_gid)
    except PermissionError:
        mode &= ~stat.S_IRWXG  # another group was not meant
    part.chmod(mode)


# --- the copy ------------------------------------------------------------------------------------


def _copy(
    source: apsw.Connection,
    part: Path,
    progress: Progress | None,
    checking: Progress | None,
    *,
    verify: bool,
) -> Report | None:
    """All pages in a new file; what a verification of it found, if it is to be verified."""
    copy = apsw.Connection(str(part))
    try:
        with copy.backup("main", source, "main") as running:
            while not running.done:
                running.step(_PAGES_PER_STEP)
                if progress is not None:
                    progress(running.page_count - running.remaining, running.page_count)
        copy.pragma("journal_mode", "delete")  # one file, no -wal beside it
        report = verify_copy(copy, checking) if verify else None
        copy.pragma("journal_mode", "wal")
        return report
    finally:
        close(copy)


def _lift(part: Path, issued: int) -> None:
    """Let positions in the feed begin above every one that was handed out since the backup.

    What was recorded since then is gone, and watchers remember positions of it. Used again, they
    would hide what comes now. By the clock, as the file that held them may be gone too.
    """
    copy = apsw.Connection(str(part))
    try:
        epochs = [(each >> _EPOCH_BITS) + 1 for each in (issued, last_position(copy))]
        with copy:
            begin_after(copy, max(time.time_ns() // 1_000_000, *epochs) << _EPOCH_BITS)
    finally:
        close(copy)


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
