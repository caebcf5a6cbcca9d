"""Failures: how SQLite's errors become ours. No other module of this store translates one.

`translate` is for a database that is open. The others are for opening, where the same SQLite error
may mean a missing directory, another program's file, a damaged header or a restore that is running.
An error says what happened to which file; it never quotes a row.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from limpet.errors import (
    Asked,
    LimpetError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreReadOnly,
    StoreUnopened,
)
from limpet.store.coding.codec import Damaged
from limpet.store.sqlite.file.filesystems import is_full
from limpet.store.sqlite.file.locks import being_restored
from limpet.store.sqlite.file.schema import kind_of
from limpet.store.system import fourth_slash, out_of_descriptors, reported

DIRECTORY: Final = "it is a directory; name a file"
DAMAGED_HEADER: Final = (
    "its header is damaged: the first bytes, which say what the file is, are not what a Limpet "
    "database begins with, and the rest is"
)
_EFFECTIVE: Final = os.access in os.supports_effective_ids
_LOG_UNREAD: Final = (
    "its log (the -wal file) holds commits and can only be read where files may be written. Copy "
    "the file and its -wal to a directory of your own and look at the copy"
)
_UNREADABLE: Final = (
    "It cannot be opened any more. Keep a copy of it with its -wal, and restore a backup in its "
    "place (limpet restore FILE STORE --replace sets it aside)"
)
_RESTORED: Final = "a restore is putting a backup in its place"
_RESTORE_ENDS: Final = "the restored store can be opened as soon as that has ended"


# --- an open database ----------------------------------------------------------------------------


def translate(error: apsw.Error, where: str, asked: Asked) -> StoreError:
    """SQLite's error as ours, in words that fit what was asked."""
    if is_replaced(error):
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
            reason = "check that the file may be read and written here"
            return out_of_descriptors(where) or StoreUnopened(where, reason)
        case _:
            return StoreFailed(where, f"{type(error).__name__}: {error}", asked)


def write_failure(error: BaseException, where: str, asked: Asked) -> LimpetError:
    """Any error of the writer's thread as ours. A new object, unless it is ours already: no two
    callers may get the same one."""
    if isinstance(error, LimpetError):
        return error
    failure: LimpetError = StoreFailed(where, repr(error), asked)
    if isinstance(error, apsw.Error):
        failure = translate(error, where, asked)
    elif isinstance(error, OSError):  # whether anything was written is not known here
        failure = StoreFailed(where, reported(error), asked)
    elif isinstance(error, (Damaged, UnicodeDecodeError)):
        failure = StoreCorrupt(where, str(error))
    failure.__cause__ = error
    return failure


def is_replaced(error: BaseException | None) -> bool:
    """True if SQLite found that its file has lost its name: another file has that name now."""
    return getattr(error, "extendedresult", 0) == apsw.SQLITE_READONLY_DBMOVED


# --- opening -------------------------------------------------------------------------------------


def unopened(error: apsw.Error, path: Path, where: str) -> StoreError:
    """The error for a file that could not be opened to be written."""
    if not path.parent.is_dir():
        hint = fourth_slash("sqlite", Path(where))
        return StoreUnopened(where, f"its directory does not exist; create it first{hint}")
    if path.is_dir():
        return StoreUnopened(where, DIRECTORY)
    return translate(error, where, "change")


def unread(error: apsw.Error, path: Path, where: str, *, writable: bool) -> StoreError:
    """The error for a file that could not be opened to be read. `writable`: by this user."""
    locked_out = isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError))
    if locked_out and (short := out_of_descriptors(where)) is not None:
        return short
    if not os.access(path, os.R_OK, effective_ids=_EFFECTIVE):
        return StoreUnopened(where, "this user may not read it; ask for that right")
    if locked_out and not writable:
        return StoreReadOnly(where, _LOG_UNREAD)
    return unrecognised(error, path, where)


def unrecognised(error: apsw.Error, path: Path, where: str) -> StoreError:
    """The error for a file that could not be recognised."""
    if isinstance(error, apsw.NotADBError):
        return not_ours(path, where)
    if isinstance(error, apsw.CorruptError):
        return StoreCorrupt(where, str(error), _UNREADABLE)
    if isinstance(error, apsw.BusyError) and being_restored(path):
        return StoreBusy(where, _RESTORED, _RESTORE_ENDS)
    if isinstance(error, apsw.IOError) and is_full(path):
        return StoreFull(where)
    return translate(error, where, "read")


def not_ours(path: Path, where: str) -> StoreError:
    """Return the error for another program's file, or one of ours whose header no longer says
    so."""
    with suppress(OSError):
        if kind_of(path) != "foreign":
            return StoreCorrupt(where, DAMAGED_HEADER, _UNREADABLE)
    return StoreForeign(where)
