"""Failures: how PostgreSQL's and its driver's errors are told.

Every error that a caller may meet becomes one of ours here, in words that say what to do. Opening
asks why no connection came about (`unopened`), every later call what became of it (`translate`).
No password is ever shown: what is told of a place is what `connect.where` leaves of its URL.
"""

from __future__ import annotations

from typing import Final

import asyncpg

from holdfast.errors import (
    Asked,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
)

# The line to the server broke, or was never there: what was asked may be asked again.
BROKEN: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
)
FAILURES: Final = (*BROKEN, asyncpg.PostgresError)

RIGHTS: Final = (
    "Let a role with CREATE on the database open it once, then GRANT USAGE ON SCHEMA holdfast and "
    "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast to this role"
)


def translate(error: BaseException, place: str, asked: Asked) -> StoreError:
    """The one place where PostgreSQL's errors become ours, told by what was asked."""
    match error:
        case (
            asyncpg.LockNotAvailableError()
            | asyncpg.QueryCanceledError()
            | asyncpg.DeadlockDetectedError()
            | asyncpg.TooManyConnectionsError()
        ):
            return StoreBusy(place)
        case asyncpg.DiskFullError():
            return StoreFull(place)
        case asyncpg.ReadOnlySQLTransactionError():
            return StoreReadOnly(
                place, "the server is a standby or read-only. Connect to the primary"
            )
        case asyncpg.InsufficientPrivilegeError():
            return StoreReadOnly(place, f"{said(error)}. {RIGHTS}")
        case asyncpg.UndefinedFunctionError():
            newer = "A newer release may have changed the schema: upgrade"
            return StoreFailed(place, f"{said(error)}. {newer}", asked)
        case _:
            return StoreFailed(place, _reason(error), asked)


def said(error: BaseException) -> str:
    """The error's own words, without their full stop; its name where it has none."""
    return str(error).strip().rstrip(".") or type(error).__name__


def _reason(error: BaseException) -> str:
    """Why a call came to nothing."""
    if isinstance(error, (OSError, asyncpg.CannotConnectNowError)):
        return f"the server does not answer ({said(error)})"
    if isinstance(error, BROKEN):
        return f"the connection to the server broke ({said(error)})"
    return f"{type(error).__name__}: {said(error)}"
