"""Failures: the errors of PostgreSQL and its driver, as errors of ours.

Every error that a caller may meet becomes one of ours here, in words that say what to do. Opening
asks why no connection came about (`unopened`), every later call what became of it (`translate`).
No password is ever shown: of a place only what `address.where` leaves of its URL is shown.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

import asyncpg

from limpet.errors import (
    Asked,
    InvalidURL,
    LimpetError,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnopened,
    StoreUnreachable,
)
from limpet.store.system import is_out_of_descriptors, of_system, reported

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
APPEARANCES_MAX: Final = 10  # of one session during one read
UNOPENED: Final = (*FAILURES, ValueError, OverflowError)  # the last two of a URL nobody can read

_FINAL: Final = (
    asyncpg.DataError,
    asyncpg.SyntaxOrAccessError,
    asyncpg.FeatureNotSupportedError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.NotNullViolationError,
    asyncpg.CheckViolationError,
)
_STARTS_OR_STOPS: Final = (
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
_OF_THE_SESSION: Final = (
    asyncpg.InvalidCachedStatementError,
    asyncpg.DuplicatePreparedStatementError,
    asyncpg.DuplicateCursorError,
)

RIGHTS: Final = (
    "Let a role with CREATE on the database open it once, then GRANT USAGE ON SCHEMA limpet and "
    "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA limpet to this role"
)
_READ_ONLY: Final = (
    "the server is a standby, or default_transaction_read_only is on. Name the primary in the URL, "
    "or turn the setting off where it was turned on: ALTER ROLE name (or ALTER DATABASE name, or "
    "ALTER SYSTEM) SET default_transaction_read_only = off"
)
_ATTRIBUTES: Final = "any, primary, standby, read-write, read-only, prefer-standby"
_SETTINGS: Final = (
    "What stands after the ? in the URL and is not an option of the driver is a setting for the "
    "server: correct it, or take it out"
)
_FEWER: Final = (
    "if it stays so, raise max_connections on the server (or the limit of this role or database), "
    "run fewer processes, or give each fewer connections than 11: limpet.open(url, connections=…)"
)


class SessionAppeared(Exception):
    """A session that one statement of a read did not find is there for the next: read again."""


def unopened(error: Exception, place: str) -> LimpetError:
    """The error for a connection that could not be made, with what to do."""
    match error:
        case OSError() if is_out_of_descriptors(error):
            return of_system(error, place, "read")
        case asyncpg.TooManyConnectionsError():
            return translate(error, place, "read")
        case asyncpg.ClientConfigurationError() if "certificate" not in str(error):
            return InvalidURL(place, _misread(error))
        case OSError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return _unopened_as(error)(place, _unreachable_advice(error))
        case asyncpg.PostgresError():
            return _unopened_as(error)(place, f"{said(error)}. {_login_advice(error)}")
        case _:
            return InvalidURL(place, "it names a host that cannot be")


def _unopened_as(error: Exception) -> type[StoreUnopened]:
    """Return StoreUnreachable if the same connection may be made later: the server restarts, or
    another takes its place."""
    match error:
        case asyncpg.PostgresError():
            passes = isinstance(error, _STARTS_OR_STOPS)
        case socket.gaierror():
            passes = error.errno == socket.EAI_AGAIN
        case ssl.SSLError() | asyncpg.ClientConfigurationError():
            passes = False
        case _:
            passes = "SSL" not in str(error)
    return StoreUnreachable if passes else StoreUnopened


def translate(error: BaseException, place: str, asked: Asked) -> StoreError:
    """The one place where PostgreSQL's errors become ours, by what was asked."""
    match error:
        case (
            asyncpg.LockNotAvailableError()
            | asyncpg.QueryCanceledError()
            | asyncpg.DeadlockDetectedError()
        ):
            return StoreBusy(place)
        case asyncpg.TooManyConnectionsError():
            return StoreBusy(place, f"no connection is free ({said(error)})", _FEWER)
        case asyncpg.DiskFullError():
            return StoreFull(place)
        case OSError() if is_out_of_descriptors(error) and asked == "read":
            return of_system(error, place, asked)
        case asyncpg.ReadOnlySQLTransactionError():
            return StoreReadOnly(place, _READ_ONLY)
        case asyncpg.InsufficientPrivilegeError():
            return StoreReadOnly(place, f"{said(error)}. {RIGHTS}")
        case asyncpg.UndefinedFunctionError():
            newer = "A newer release may have changed the schema: upgrade"
            return StoreRefused(place, said(error), newer)
        case asyncpg.PostgresError() if _is_final(error):
            return StoreRefused(place, f"{type(error).__name__}: {said(error)}")
        case _:
            return StoreFailed(place, _reason(error), asked)


def _is_final(error: asyncpg.PostgresError) -> bool:
    """True if the server would refuse the same again: a value, a name or a statement that it does
    not take. A prepared statement may be lost behind a pooler, or outdated by a change of the
    schema; it is prepared again."""
    return isinstance(error, _FINAL) and not isinstance(error, _OF_THE_SESSION)


def said(error: BaseException) -> str:
    """The error's message without its full stop, or its name if it has none."""
    return str(error).strip().rstrip(".") or type(error).__name__


def _reason(error: BaseException) -> str:
    """The error for a call that failed."""
    if isinstance(error, OSError) and is_out_of_descriptors(error):
        return reported(error)  # an earlier attempt may have been sent
    if isinstance(error, (OSError, asyncpg.CannotConnectNowError)):
        return f"the server does not answer ({said(error)})"
    if isinstance(error, BROKEN):
        return f"the connection to the server broke ({said(error)})"
    if isinstance(error, asyncio.CancelledError):
        return "the store's own task was cancelled while it wrote"
    return f"{type(error).__name__}: {said(error)}"


def _misread(error: asyncpg.ClientConfigurationError) -> str:
    """The reason why the driver refused an option of the URL."""
    if "target_session_attrs" in str(error):
        return f"its target_session_attrs is none of {_ATTRIBUTES}"
    return said(error)


def _unreachable_advice(error: Exception) -> str:
    """Return the advice if no server answered, or none that could be talked to."""
    text = said(error)
    match error:
        case TimeoutError():
            return (
                "the server does not answer in time. Check host and port in the URL, that the "
                "server is running, and that no firewall stands between; then try again"
            )
        case socket.gaierror() if error.errno == socket.EAI_AGAIN:
            return f"its host cannot be looked up now ({text}). Check the network; then try again"
        case socket.gaierror():
            return f"its host is not known ({text}). Correct the host in the URL"
        case ssl.SSLError() | asyncpg.ClientConfigurationError():
            return (
                f"its certificate cannot be checked ({text}). Name the authority's file in the "
                "URL (sslrootcert=), or ask for less (sslmode=require encrypts and checks nothing)"
            )
        case asyncpg.TargetServerAttributeNotMatched() if "of its servers" in text:  # a cluster's
            return f"{text}. Bring servers back, or promote a standby; then try again"
        case asyncpg.TargetServerAttributeNotMatched():
            return (
                "none of its hosts is what target_session_attrs asks for. During a failover try "
                "again; else name the right host in the URL, or ask for another"
            )
        case ConnectionError() if "SSL" in text:
            return (
                f"{text}. Turn ssl on at the server, or take sslmode out of the URL; or what "
                "listens there is no PostgreSQL: then correct host and port"
            )
        case _:
            return (
                f"the server does not answer ({text}). Check that it is running, and host and port "
                "in the URL; then try again"
            )


def _login_advice(error: asyncpg.PostgresError) -> str:
    """Advice for a server that answered and refused the login."""
    match error:
        case asyncpg.InvalidPasswordError():
            return "Correct user and password in the URL, or in PGPASSWORD or ~/.pgpass"
        case asyncpg.InvalidAuthorizationSpecificationError() if "pg_hba" in str(error):
            return (
                "Have the server's pg_hba.conf admit this host, user and database; if it admits "
                "them with encryption only, write sslmode=require into the URL"
            )
        case asyncpg.InvalidAuthorizationSpecificationError():
            return "Name another user in the URL, or make this one: CREATE ROLE name LOGIN"
        case asyncpg.InvalidCatalogNameError():
            return "Name another database in the URL, or make this one: CREATE DATABASE name"
        case asyncpg.InsufficientPrivilegeError():
            return RIGHTS
        case _ if isinstance(error, _STARTS_OR_STOPS):
            return "Wait until the server is up, then try again"
        case asyncpg.ProtocolViolationError() if "parameter" in str(error):
            return (
                "A pooler stands between that does not pass settings on to the server: if it is "
                "in transaction mode add pooler=transaction to the URL, or name the server there"
            )
        case asyncpg.UndefinedObjectError() | asyncpg.DataError() | asyncpg.SyntaxOrAccessError():
            return _SETTINGS
        case asyncpg.CantChangeRuntimeParamError():
            return _SETTINGS
        case _:
            return "Look into the server's log"
