"""Connections: the pool, the schema brought forward, and how PostgreSQL's errors are told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import asyncpg

from holdfast.errors import (
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
    StoreUnopened,
)

SCHEMA: Final = 2
POOL_MAX: Final = 8
CONNECT_SECONDS_MAX: Final = 10.0
STATEMENT_SECONDS_MAX: Final = 30.0
LOCK_SECONDS_MAX: Final = 10.0
# One process at a time brings the schema forward; the number only has to be ours.
_MIGRATING: Final = 0x484F4C44

Pool = Any  # asyncpg is not typed
Connection = Any


async def connect(url: str) -> Pool:
    """A pool on a database whose schema is ours and current. Raises StoreError."""
    try:
        pool = await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=POOL_MAX,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=STATEMENT_SECONDS_MAX,
            server_settings={
                "application_name": "holdfast",
                "statement_timeout": str(int(STATEMENT_SECONDS_MAX * 1_000)),
                "lock_timeout": str(int(LOCK_SECONDS_MAX * 1_000)),
                "search_path": "pg_catalog",
            },
        )
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnopened(where(url), f"{error or type(error).__name__}") from error
    try:
        async with pool.acquire() as conn:
            await bring_forward(conn, where(url))
    except BaseException as error:
        await pool.close()
        if isinstance(error, (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
            raise translate(error, where(url)) from error
        raise
    return pool


def where(url: str) -> str:
    """The URL without its password, for people."""
    before, at, after = url.rpartition("@")
    if not at or "://" not in before:
        return url
    scheme, _, login = before.partition("://")
    return f"{scheme}://{login.partition(':')[0]}@{after}"


async def bring_forward(conn: Connection, place: str) -> None:
    """Run the migrations that the database lacks, under a lock that all processes share."""
    found = await _schema(conn)
    if found == SCHEMA:
        return
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATING)
        found = await _schema(conn)
        if found > SCHEMA:
            raise StoreNewer(place, found, SCHEMA)
        if found < 0:
            raise StoreForeign(place)
        if found == 0:
            await conn.execute("CREATE SCHEMA holdfast")
        for number in range(found + 1, SCHEMA + 1):
            await conn.execute(_sql(f"{number:04}.sql"))
        await conn.execute(_sql("functions.sql"))
        await conn.execute(
            "INSERT INTO holdfast.meta VALUES ('secret', $1) ON CONFLICT DO NOTHING", os.urandom(32)
        )
        await conn.execute(
            "INSERT INTO holdfast.meta VALUES ('schema', $1) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            str(SCHEMA).encode(),
        )


async def _schema(conn: Connection) -> int:
    """The schema number, 0 where there is none, -1 where somebody else uses the name."""
    if not await conn.fetchval("SELECT to_regnamespace('holdfast') IS NOT NULL"):
        return 0
    if not await conn.fetchval("SELECT to_regclass('holdfast.meta') IS NOT NULL"):
        return -1
    found = await conn.fetchval("SELECT value FROM holdfast.meta WHERE name = 'schema'")
    return -1 if found is None else int(bytes(found))


def _sql(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def translate(error: BaseException, place: str) -> StoreError:
    """The one place where PostgreSQL's errors become ours."""
    match error:
        case (
            asyncpg.LockNotAvailableError()
            | asyncpg.QueryCanceledError()
            | asyncpg.DeadlockDetectedError()
            | asyncpg.TooManyConnectionsError()
            | TimeoutError()
        ):
            return StoreBusy(place)
        case asyncpg.DiskFullError() | asyncpg.OutOfMemoryError():
            return StoreFull(place)
        case asyncpg.ReadOnlySQLTransactionError() | asyncpg.InsufficientPrivilegeError():
            return StoreReadOnly(place)
        case _:
            return StoreFailed(place, f"{type(error).__name__}: {error}")
