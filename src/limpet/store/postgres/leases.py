"""Claims and leases: one statement each, by the server's clock and under its row locks."""

from __future__ import annotations

from typing import Final

import msgspec

from limpet.errors import SessionFenced, StoreBusy
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.lease import LEFT_US, Lease, lasting, locked
from limpet.store.cache import Cache
from limpet.store.leases import span_us
from limpet.store.postgres.reader import Reader
from limpet.store.postgres.rows import reasons_from
from limpet.store.postgres.server.pool import Pools
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL

TRIES_MAX: Final = 10


class Leases:
    """Belongs to one store. A new lease is put into the committer's cache, so that the first
    commit under it needs no second try."""

    def __init__(self, pools: Pools, reader: Reader, cache: Cache) -> None:
        self._pools, self._reader, self._cache = pools, reader, cache

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None
    ) -> tuple[Lease, ...]:
        args = (worker, limit, span_us(lease_seconds), app)
        found = await self._pools.run(
            lambda conn: conn.fetch(SQL["claim"], *args), asked="lease", repeatable=False
        )
        claimed = []
        for of_app, user, id, fence, until_us, at_us, *wants in found:
            key, reasons = Key(of_app, user, id), reasons_from(at_us, *wants)
            claimed.append(Lease(key, worker, fence, until_us, lease_seconds, at_us, reasons))
        for lease in claimed:
            self._remember(lease)
        return tuple(claimed)

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        key = lease.key
        args = (key.app, key.user, key.id, lease.fence, span_us(lease_seconds))

        async def run(conn: Connection) -> Lease:
            until_us = await conn.fetchval(SQL["renew"], *args)
            if until_us is None:
                head = await self._head(conn, key)
                raise SessionFenced(key, lease.fence, head.fence)
            return lasting(lease, until_us, lease_seconds)

        renewed: Lease = await self._pools.run(run, asked="change")
        return renewed

    async def release(self, lease: Lease, retry_seconds: float | None) -> bool:
        key, was = lease.key, lease.reasons
        retry_us = None if retry_seconds is None else span_us(retry_seconds)
        left_us = None if lease.lock else LEFT_US  # a lock is given back as if it had not been
        had = (was.pending, was.pending_us, msgspec.json.encode(dict(was.timers)).decode())
        args = (key.app, key.user, key.id, lease.fence, retry_us, left_us, *had)
        released = await self._pools.run(
            lambda conn: conn.fetchval(SQL["release"], *args), asked="change", repeatable=False
        )
        return released is not None

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        lease: Lease = await self._pools.run(
            lambda conn: self._acquire(conn, key, worker, lease_seconds), asked="lease"
        )
        self._remember(lease)
        return lease

    async def _acquire(
        self, conn: Connection, key: Key, worker: str, lease_seconds: float
    ) -> Lease:
        args = (key.app, key.user, key.id, worker, span_us(lease_seconds))
        for _ in range(TRIES_MAX):
            row = await conn.fetchrow(SQL["acquire"], *args)
            if row is not None:
                fence, until_us, at_us, *wants = row
                reasons = reasons_from(at_us, *wants)
                return Lease(key, worker, fence, until_us, lease_seconds, at_us, reasons, lock=True)
            head = await self._head(conn, key)
            if head.worker is not None:
                raise locked(head)
            # It was released between the two statements: try again.
        raise StoreBusy(str(key))

    async def _head(self, conn: Connection, key: Key) -> Head:
        """The head as it is now. Raises what load would."""
        return (await self._reader.load(conn, key)).live.fold.head

    def _remember(self, lease: Lease) -> None:
        live = self._cache.peek(lease.key)
        if live is not None:
            live.lease(lease.fence, lease.until_us, lease.worker)
