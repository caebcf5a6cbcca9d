"""How PostgreSQL's errors are told: in words of ours, with what to do."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import asyncpg
import pytest

from limpet.errors import (
    Asked,
    InvalidURL,
    LimpetError,
    StoreBusy,
    StoreFailed,
    StoreRefused,
    StoreUnopened,
    StoreUnreachable,
)
from limpet.store.postgres.failures import translate, unopened
from limpet.store.postgres.server.pool import CONNECTIONS

PLACE = "postgresql://ada@host/db"
HBA = 'no pg_hba.conf entry for host "10.0.0.1", user "ada", database "db", no encryption'


def client(name: str, text: str) -> Exception:
    """An error of the driver's own."""
    made: Exception = getattr(asyncpg.exceptions, name)(text)
    return made


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (asyncpg.InvalidPasswordError("no"), StoreUnopened, "Correct user and password"),
        (asyncpg.InvalidAuthorizationSpecificationError(HBA), StoreUnopened, "sslmode=require"),
        (
            asyncpg.InvalidAuthorizationSpecificationError('role "ada" does not exist'),
            StoreUnopened,
            "CREATE ROLE",
        ),
        (asyncpg.InvalidCatalogNameError("no"), StoreUnopened, "CREATE DATABASE"),
        (asyncpg.UndefinedObjectError("no"), StoreUnopened, "after the ? in the URL"),
        (asyncpg.InvalidParameterValueError("no"), StoreUnopened, "after the ? in the URL"),
        (asyncpg.CantChangeRuntimeParamError("no"), StoreUnopened, "after the ? in the URL"),
        (asyncpg.CannotConnectNowError("starting up"), StoreUnreachable, "Wait"),
        (asyncpg.AdminShutdownError("shutting down"), StoreUnreachable, "Wait"),
        (asyncpg.InsufficientPrivilegeError("no"), StoreUnopened, "GRANT"),
        (
            asyncpg.ProtocolViolationError("unsupported startup parameter: lock_timeout"),
            StoreUnopened,
            "add pooler=transaction to the URL",
        ),
        (asyncpg.ObjectNotInPrerequisiteStateError("closed"), StoreUnopened, "server's log"),
        (asyncpg.TooManyConnectionsError("sorry"), StoreBusy, "max_connections"),
        (ConnectionRefusedError(111, "Connect call failed"), StoreUnreachable, "running"),
        (FileNotFoundError(2, "No such file or directory"), StoreUnreachable, "running"),
        (TimeoutError(), StoreUnreachable, "firewall"),
        (socket.gaierror(-2, "Name or service not known"), StoreUnopened, "Correct the host"),
        (socket.gaierror(socket.EAI_AGAIN, "later"), StoreUnreachable, "network"),
        (
            ConnectionError('PostgreSQL server at "host" rejected SSL upgrade'),
            StoreUnopened,
            "take sslmode out of the URL",
        ),
        (ssl.SSLCertVerificationError(1, "self-signed"), StoreUnopened, "sslrootcert="),
        (
            client("ClientConfigurationError", "root certificate file does not exist"),
            StoreUnopened,
            "sslrootcert=",
        ),
        (
            client("TargetServerAttributeNotMatched", "None of the hosts match <x>"),
            StoreUnreachable,
            "target_session_attrs",
        ),
        (
            client("ClientConfigurationError", "target_session_attrs is one of <built-in x>"),
            InvalidURL,
            "prefer-standby",
        ),
        (client("ClientConfigurationError", "`sslmode` must be one of"), InvalidURL, "sslmode"),
        (client("InterfaceError", "what"), StoreUnreachable, "running"),
        (UnicodeError("label too long"), InvalidURL, "host"),
        (OverflowError("port must be 0-65535"), InvalidURL, "host"),
    ],
)
def test_what_keeps_a_store_from_opening_is_told_with_advice(
    error: Exception, kind: type[LimpetError], advice: str
) -> None:
    """One sentence each, and nothing of a socket's or a driver's vocabulary alone."""
    told = unopened(error, PLACE)
    assert type(told) is kind
    assert advice in str(told)
    assert str(told).endswith(".")
    assert "<" not in str(told)
    assert told.retryable == ("try again" in str(told) or kind is StoreBusy)


def test_too_many_connections_are_not_told_as_a_lock() -> None:
    """The words name the limit and how many connections a process takes."""
    told = translate(asyncpg.TooManyConnectionsError("too many clients already"), PLACE, "write")
    assert isinstance(told, StoreBusy)
    assert "no connection is free (too many clients already)" in str(told)
    assert f"fewer connections than {CONNECTIONS}" in told.advice
    assert "transaction" not in str(told)
    assert "transaction" in str(translate(asyncpg.LockNotAvailableError("x"), PLACE, "write"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(2, "No such file or directory"), "the server does not answer ("),
        (TimeoutError(), "the server does not answer (TimeoutError)"),
        (asyncpg.CannotConnectNowError("starting up."), "the server does not answer (starting up)"),
        (asyncpg.ConnectionDoesNotExistError("closed"), "the connection to the server broke ("),
        (asyncpg.UniqueViolationError("odd"), "UniqueViolationError: odd"),
        (asyncpg.InvalidCachedStatementError("odd"), "InvalidCachedStatementError: odd"),
        (asyncpg.DuplicatePreparedStatementError("odd"), "DuplicatePreparedStatementError: odd"),
    ],
)
def test_a_line_that_breaks_is_told_as_such(error: Exception, reason: str) -> None:
    """Whatever the operating system calls it."""
    told = translate(error, PLACE, "read")
    assert isinstance(told, StoreFailed)
    assert told.reason.startswith(reason)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InvalidTextRepresentationError('invalid input syntax for type bigint: "null"'),
        asyncpg.UndefinedTableError("odd"),
        asyncpg.UndefinedFunctionError("odd"),
        asyncpg.NotNullViolationError("odd"),
        asyncpg.StatementTooComplexError("odd"),
    ],
)
@pytest.mark.parametrize("asked", ["read", "write"])
def test_what_a_server_would_refuse_again_is_not_to_be_tried_again(
    error: asyncpg.PostgresError, asked: Asked
) -> None:
    """No retry is promised, and nothing is called unknown."""
    told = translate(error, PLACE, asked)
    assert isinstance(told, StoreRefused)
    assert not told.retryable
    assert "unknown" not in str(told)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_file_descriptors_is_not_blamed_on_the_server(number: int) -> None:
    """Neither when it is opened nor later; what an earlier attempt wrote stays unknown."""
    error = OSError(number, os.strerror(number))
    for told in (unopened(error, PLACE), translate(error, PLACE, "read")):
        assert isinstance(told, StoreBusy)
        assert "no file descriptor is free" in str(told)
        assert "ulimit -n" in str(told)
    told = translate(error, PLACE, "write")
    assert isinstance(told, StoreFailed)
    assert "no file descriptor is free" in str(told)
    assert "unknown" in str(told)
