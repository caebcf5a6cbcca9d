"""Claims and leases: one statement each, by the server's clock and under its row locks."""

from __future__ import annotations

import msgspec

from limpet.errors import SessionFenced, StoreBusy
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.lease import LEFT_US, Lease, lasting, locked
from limpet.store.postgres.connect import Connection
from limpet.store.postgres.reader import Reader
from limpet.store.postgres.rows import SQL, reasons_from
from limpet.store.work import span_us

_CLAIM = (
    "SELECT app, owner, id, fence, until_us, claimed_us, timers, pending, pending_us "
    "FROM limpet.claim($1, $2, $3, $4)"
)
TRIES_MAX = 10


async def claim(
    conn: Connection, worker: str, limit: int, lease_seconds: float, app: str | None
) -> tuple[Lease, ...]:
    found = await conn.fetch(_CLAIM, worker, limit, span_us(lease_seconds), app)
    return tuple(
        Lease(
            Key(of_app, user, id),
            worker,
            fence,
            until_us,
            lease_seconds,
            at_us,
            reasons_from(at_us, *wants),
        )
        for of_app, user, id, fence, until_us, at_us, *wants in found
    )


async def renew(conn: Connection, reader: Reader, lease: Lease, lease_seconds: float) -> Lease:
    key = lease.key
    args = (key.app, key.user, key.id, lease.fence, span_us(lease_seconds))
    until_us = await conn.fetchval(SQL["renew"], *args)
    if until_us is None:
        head = await _head(conn, reader, key)
        raise SessionFenced(key, lease.fence, head.fence)
    return lasting(lease, until_us, lease_seconds)


async def release(conn: Connection, lease: Lease, retry_seconds: float | None) -> bool:
    key, given = lease.key, lease.reasons
    retry_us = None if retry_seconds is None else span_us(retry_seconds)
    left_us = None if lease.lock else LEFT_US  # a lock is given back as if it had not been
    had = (given.pending, given.pending_us, msgspec.json.encode(dict(given.timers)).decode())
    args = (key.app, key.user, key.id, lease.fence, retry_us, left_us, *had)
    return await conn.fetchval(SQL["release"], *args) is not None


async def acquire(
    conn: Connection, reader: Reader, key: Key, worker: str, lease_seconds: float
) -> Lease:
    args = (key.app, key.user, key.id, worker, span_us(lease_seconds))
    for _ in range(TRIES_MAX):
        row = await conn.fetchrow(SQL["acquire"], *args)
        if row is not None:
            fence, until_us, at_us, *wants = row
            reasons = reasons_from(at_us, *wants)
            return Lease(key, worker, fence, until_us, lease_seconds, at_us, reasons, lock=True)
        head = await _head(conn, reader, key)
        if head.worker is not None:
            raise locked(head)
        # It was released between the two statements: try again.
    raise StoreBusy(str(key))


async def _head(conn: Connection, reader: Reader, key: Key) -> Head:
    """The head as it is now. Raises what load would."""
    return (await reader.load(conn, key)).live.fold.head
