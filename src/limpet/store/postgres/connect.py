"""Opening: how many connections a store has, and what must hold before they are used."""

from __future__ import annotations

from typing import Final

import asyncpg

from limpet.errors import InvalidInput, StoreOlder, StoreUnopened
from limpet.model import described
from limpet.store.postgres.failures import FAILURES, UNOPENED, translate, unopened
from limpet.store.postgres.server import (
    Pool,
    check_version,
    connect_alone,
    open_pool,
    schema,
    settings,
    where,
)
from limpet.store.postgres.server.address import check_url

CONNECTIONS: Final = 11  # of one store, unless its opener says otherwise
CONNECTIONS_MIN: Final = 6
CONNECTIONS_MAX: Final = 1_000
_OUTDATED: Final = (
    "its functions are of another release, or it was moved here from another server, and this "
    "command changes nothing; start your application with this release first"
)


def shares(connections: int) -> tuple[int, int]:
    """How many are for reading, and how many for what may wait for a row: claims, locks, deletions.

    Two more are the committer's lanes', one is the listener's and one the live channel's.
    Raises InvalidInput.
    """
    if type(connections) is not int or not CONNECTIONS_MIN <= connections <= CONNECTIONS_MAX:
        raise InvalidInput(
            f"a store has {CONNECTIONS_MIN} to {CONNECTIONS_MAX:,} connections, not "
            f"{described(connections)}. Leave connections out for {CONNECTIONS}."
        )
    rest = connections - 4
    waiting = max(1, rest // 3)
    return rest - waiting, waiting


async def connect(url: str, *, size: int, looking: bool = False) -> Pool:
    """A pool on a database whose schema is ours and current, or, `looking`, is left as it is.

    Raises StoreError.
    """
    pool = await open_pool(url, size=size)
    try:
        async with pool.acquire() as conn:
            check_version(conn, where(url))
            if not looking:
                settings.check_encoding(conn, where(url))
                await schema.ensure_current(conn, url)
    except BaseException as error:
        await pool.close()
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            raise unopened(error, where(url)) from error
        if isinstance(error, FAILURES):
            raise translate(error, where(url), "change") from error
        raise
    return pool


async def refuse_empty(url: str, *, ready: bool = False) -> None:
    """Raise StoreError where opening would make or change the schema: for read-only commands.

    With `ready` also where it would do no more than bring functions of ours up to date.
    """
    check_url(url)
    try:
        conn = await connect_alone(url, settings.unlimited_settings())
        try:
            check_version(conn, where(url))
            found = await schema.installed(conn)
            current = ready and found == schema.SCHEMA
            late = current and await schema.outdated(conn) not in (set(), schema.TIMELINE)
        finally:
            await conn.close()
    except UNOPENED as error:
        raise unopened(error, where(url)) from error
    if found == 0:
        raise StoreUnopened(where(url), "the database has no schema limpet; check the URL")
    if 0 < found < schema.SCHEMA:
        raise StoreOlder(where(url), found, schema.SCHEMA)
    if late:
        raise StoreUnopened(where(url), _OUTDATED)
