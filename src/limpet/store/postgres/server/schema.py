"""The schema on the server: which release it is of, and its migration to this one.

Migrations run in one transaction, under a lock that all processes share. The row `home` of
`limpet.meta` names the server that the database is on. When that changes, transaction numbers may
begin again at lower ones; the epoch is then raised, so that later events stay later in the feed.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final
from zlib import crc32

import asyncpg

from limpet.errors import QuorumUnavailable, StoreError, StoreForeign, StoreNewer
from limpet.store.logs import POSTGRES
from limpet.store.postgres.server import settings
from limpet.store.postgres.server.cluster import cluster_of
from limpet.store.postgres.server.pooler import connect_alone
from limpet.store.postgres.server.settings import Connection, where
from limpet.store.postgres.sql import SCRIPTS, SQL

SCHEMA: Final = 2
FUNCTIONS: Final = 4  # raised with every release that changes functions.sql
TIMELINE: Final = {"timeline"}  # the least that can be out of date


async def installed(conn: Connection) -> int:
    """The number of the schema there; 0 if there is none, -1 if somebody else uses its name."""
    if not await conn.fetchval(SQL["schema_exists"]):
        return 0
    if not await conn.fetchval(SQL["meta_exists"]):
        # Empty: somebody made it for us. Anything in it is somebody else's.
        return -1 if await conn.fetchval(SQL["schema_occupied"]) else 0
    try:
        value = await conn.fetchval(SQL["meta"], "schema")
    except asyncpg.UndefinedColumnError:
        return -1
    number = b"" if value is None else bytes(value)
    return int(number) if number.isdigit() else -1


async def outdated(conn: Connection) -> set[str]:
    """The parts that are not of this release or not of this server; TIMELINE if only that."""
    if await installed(conn) != SCHEMA:
        return {"schema"}
    here = _marks(await conn.fetchval(SQL["server_identity"]))
    rows = await conn.fetch(SQL["meta_values"], list(here))
    stored = {name: bytes(value) for name, value in rows}
    differ = {name for name in stored | here if stored.get(name) != here.get(name)}
    if _newer(stored.get("functions")):
        differ -= {"functions"}  # they serve older releases too, and must not be put back
    if differ == {"home"} and _server(stored.get("home", b"")) == _server(here["home"]):
        return TIMELINE
    return differ


async def ensure_current(conn: Connection, url: str) -> None:
    """Migrate the database if this release cannot work on it as it is. Raises StoreError.

    A timeline alone may stay outdated where this role or this server cannot write it: the doctor
    reports it, and nobody is kept from working.
    """
    differing = await outdated(conn)
    if differing:
        try:
            await _migrate_unhurried(url)
        except (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError):
            if differing != TIMELINE:
                raise


async def follow_timeline(conn: Connection, url: str) -> None:
    """Raise the epoch if a standby took the server's place, or it was put back in time."""
    try:
        if await outdated(conn) == TIMELINE:
            await ensure_current(conn, url)
    except QuorumUnavailable:  # without it, places in the feed could be handed out twice
        raise
    except StoreError:  # a newer release may have been here, and has raised it
        pass


async def migrate(conn: Connection, place: str) -> None:
    """Make the database what this release works on, under a lock that all processes share."""
    async with conn.transaction():
        await conn.execute(SQL["lock_migration"])
        before = await installed(conn)
        if before > SCHEMA:
            raise StoreNewer(place, before, SCHEMA)
        if before < 0:
            raise StoreForeign(place)
        if not await outdated(conn):
            return  # another process was faster, and may be using it already
        await conn.execute(SQL["create_schema"])
        for number in range(before + 1, SCHEMA + 1):
            await conn.execute(SCRIPTS[f"{number:04}"])
        moved = await _raise_epoch(conn)
        marks = _marks(await conn.fetchval(SQL["server_identity"]))
        if _newer(await conn.fetchval(SQL["meta"], "functions")):
            del marks["functions"]
        else:
            await conn.execute(SCRIPTS["functions"])
        for name, value in marks.items():
            await conn.execute(SQL["put_meta"], name, value)
        await conn.execute(SQL["keep_meta"], "secret", os.urandom(32))
        secret = await conn.fetchval(SQL["meta"], "secret")
        await conn.execute(SQL["keep_meta"], "secret_crc", secret_crc(secret))
        await conn.execute(SQL["begin_ledger"])
    _log_migration(place, before, moved=moved)


def secret_crc(secret: bytes) -> bytes:
    """The checksum of the secret by which erased keys are recognised."""
    return str(crc32(secret)).encode()


async def _migrate_unhurried(url: str) -> None:
    """Migrate on a connection without a time limit: a migration takes as long as it takes."""
    conn, cluster = await connect_alone(url, settings.unlimited_settings()), cluster_of(url)
    try:
        making = migrate(conn, where(url))
        await (making if cluster is None else cluster.acknowledged(conn, making, "change"))
    finally:
        await conn.close()


async def _raise_epoch(conn: Connection) -> bool:
    """Raise the epoch if transactions here begin at numbers that were used before.

    True if it was raised.
    """
    home = await conn.fetchval(SQL["meta"], "home")
    if home is None or bytes(home).decode() == await conn.fetchval(SQL["server_identity"]):
        return False
    await conn.execute(SQL["lock_events"])
    await conn.execute(SQL["raise_epoch"])
    return True


def _log_migration(place: str, before: int, *, moved: bool) -> None:
    """Log a committed migration once: other processes had nothing left to do."""
    if before == 0:
        POSTGRES.info("store created: store=%s schema=%d", place, SCHEMA)
    elif before < SCHEMA:
        POSTGRES.info("schema migrated: store=%s from=%d to=%d", place, before, SCHEMA)
    elif not moved:
        POSTGRES.info("functions replaced: store=%s release=%d", place, FUNCTIONS)
    if moved:
        POSTGRES.warning("store moved: store=%s", place)


def _newer(functions: bytes | None) -> bool:
    """True if stored functions are of a later release than this."""
    number = (functions or b"").partition(b" ")[0]
    return number.isdigit() and int(number) > FUNCTIONS


def _server(home: bytes) -> bytes:
    return home.partition(b"/")[0]


def _marks(home: str) -> dict[str, bytes]:
    """The rows of `limpet.meta` that a database of this release has on the server `home`."""
    digest = hashlib.sha256(SCRIPTS["functions"].encode()).hexdigest()
    marks = {"schema": f"{SCHEMA}", "functions": f"{FUNCTIONS} {digest}", "home": home}
    return {name: text.encode() for name, text in marks.items()}
