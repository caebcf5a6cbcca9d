"""Online backup and restore of a database file.

A backup is a consistent copy taken while others write. Both write beside the target and rename,
so that a target is complete or not there, whatever happens in between.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import BackupRefused, StoreCorrupt, StoreForeign
from holdfast.store.protocol import Progress
from holdfast.store.sqlite.connect import Database, close, translate

_PAGES_PER_STEP: Final = 1_000
_EXISTS: Final = (
    "it exists already; to overwrite it, ask for that (replace=True, or --replace on the command "
    "line)"
)


def back_up(database: Database, target: Path, progress: Progress | None) -> None:
    """Copy the database as it is at this moment to a file that must not exist yet."""
    if target.exists():
        raise BackupRefused(str(target), "it exists already; choose another name or remove it")
    source = database.connect()
    part = target.with_name(target.name + ".part")
    try:
        source.execute("BEGIN")
        source.execute("SELECT 1 FROM meta").fetchone()  # the copy is of this instant
        _copy(source, part, progress)
        _put(part, target)
    except apsw.Error as error:
        raise translate(error, str(target)) from error
    except OSError as error:
        raise BackupRefused(str(target), str(error)) from error
    finally:
        part.unlink(missing_ok=True)
        close(source)


def restore(backup: Path, target: Path, *, replace: bool, progress: Progress | None) -> None:
    """Put a backup in the place of a database that no process has open."""
    if not backup.is_file():
        raise BackupRefused(str(backup), "there is no such file")
    if target.exists() and not replace:
        raise BackupRefused(str(target), _EXISTS)
    source = Database(backup, sync="full", vfs=None).prepare()
    part = target.with_name(target.name + ".part")
    try:
        if (problem := source.execute("PRAGMA integrity_check(1)").get) != "ok":
            raise StoreCorrupt(str(backup), problem)
        _copy(source, part, progress)
        for suffix in ("-wal", "-shm"):  # they belong to the database that is replaced
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        _put(part, target)
    except apsw.NotADBError as error:
        raise StoreForeign(str(backup)) from error
    except apsw.Error as error:
        raise translate(error, str(target)) from error
    except OSError as error:
        raise BackupRefused(str(target), str(error)) from error
    finally:
        part.unlink(missing_ok=True)
        close(source)


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
