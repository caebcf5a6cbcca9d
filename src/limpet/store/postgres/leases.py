"""Claims and leases: one statement each, by the server's clock and under its row locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import (
    LimpetError,
    SessionDeleted,
    SessionErased,
    SessionFenced,
    SessionNotFound,
    StoreBusy,
)
from limpet.model import LEFT_US, Head, Key, Lease, blank, due_for, lasting, left_until, locked
from limpet.model.facts.moves import check_here
from limpet.model.lease import ALONE, WITHDRAWN, Expired, expired_lease
from limpet.model.limits import INT_MAX
from limpet.store.cache import Cache
from limpet.store.leases import Place, span_us
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.rows import facts_from
from limpet.store.postgres.server.pool import Pools
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL

TRIES_MAX: Final = 10


Held: TypeAlias = tuple[Key, int, str]  # the session, the fence and the uid of a lease


class PostgresLeases:
    """Belongs to one store. A new lease is put into the committer's cache, so that the first
    commit under it needs no second try."""

    def __init__(self, pools: Pools, reader: PostgresReader, cache: Cache) -> None:
        self._pools, self._reader, self._cache = pools, reader, cache

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        args = (worker, limit, span_us(lease_seconds), app)
        rows = await self._pools.run(
            lambda conn: conn.fetch(SQL["claim"], *args), asked="lease", repeatable=False
        )
        claimed = []
        for of_app, user, id, uid, fence, until_us, at_us, facts, *last, server_us in rows:
            key, reasons = Key(of_app, user, id), due_for(facts_from(facts), at_us)
            until = (until_us, lease_seconds, at_us)
            expired = _expired(last, at_us, server_us)
            lease = Lease(key, worker, fence, *until, reasons, uid=uid, expired=expired)
            claimed.append(lease)
        for lease in claimed:
            self._remember(lease, lease.claimed_us)
        return tuple(claimed)

    async def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        spans = [each.lease_seconds if lease_seconds is None else lease_seconds for each in leases]
        asked = {
            _lease_key(lease): (span, lease.worker)
            for lease, span in zip(leases, spans, strict=True)
        }

        async def run(conn: Connection) -> tuple[Lease | LimpetError, ...]:
            renewed = await self._renew_held(conn, asked)
            answers: list[Lease | LimpetError] = []
            for lease, span in zip(leases, spans, strict=True):
                renewal = renewed.get(_lease_key(lease))
                if renewal is None:
                    answers.append(await self._lost(conn, lease))
                    continue
                longer = lasting(lease, renewal[0], span)
                self._remember(longer, renewal[1])
                answers.append(longer)
            return tuple(answers)

        return await self._pools.run(run, asked="change")

    async def _renew_held(
        self, conn: Connection, asked: Mapping[Held, tuple[float, str]]
    ) -> dict[Held, tuple[int, int]]:
        """Return by session and fence the end of the lease, and now. Only of those that are
        held."""
        held = list(asked)
        if not held:
            return {}
        keys, fences, uids = [list(column) for column in zip(*held, strict=True)]
        names = [[key.app for key in keys], [key.user for key in keys], [key.id for key in keys]]
        spans = [span_us(seconds) for seconds, _ in asked.values()]
        workers = [worker for _, worker in asked.values()]
        bare = [worker.removesuffix(ALONE) for worker in workers]
        rows = await conn.fetch(SQL["renew"], *names, fences, spans, uids, workers, bare, ALONE)
        return {held[row["i"] - 1]: (row["lease_us"], row["now_us"]) for row in rows}

    async def _lost(self, conn: Connection, lease: Lease) -> LimpetError:
        """The error for a lease that is not held any more."""
        try:
            head = await self._head(conn, lease.key)
        except (SessionNotFound, SessionDeleted, SessionErased) as error:
            return error
        return SessionFenced(lease.key, lease.fence, head.fence)

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        key = lease.key
        retry_us = None if retry_seconds is None else span_us(retry_seconds)
        held = (key.app, key.user, key.id, lease.fence)

        async def run(conn: Connection) -> bool:
            for _ in range(TRIES_MAX):
                row = await conn.fetchrow(SQL["release"], *held, retry_us, lease.lock, lease.uid)
                if row is None:
                    await conn.execute(SQL["withdraw"], *held, lease.uid, WITHDRAWN)
                if row is None or row["done"]:
                    return row is not None
                # It is due: for anything new? Judged here, and again if something is recorded.
                head = _with_facts(lease, row["facts"])
                left_us = None if left_until(head, lease, row["now_us"]) is None else LEFT_US
                judged = (*held, row["version"], left_us, lease.uid)
                if await conn.fetchval(SQL["release_judged"], *judged) is not None:
                    return True
            raise StoreBusy(str(key))

        return await self._pools.run(run, asked="change", repeatable=False)

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        lease: Lease = await self._pools.run(
            lambda conn: self._acquire(conn, key, worker, lease_seconds), asked="lease"
        )
        self._remember(lease, lease.claimed_us)
        return lease

    async def _acquire(
        self, conn: Connection, key: Key, worker: str, lease_seconds: float
    ) -> Lease:
        args = (key.app, key.user, key.id, worker, span_us(lease_seconds))
        for _ in range(TRIES_MAX):
            row = await conn.fetchrow(SQL["acquire"], *args)
            if row is not None:
                fence, until_us, at_us, packed, uid, *last, server_us = row
                facts = facts_from(packed)
                if "departed" in facts:  # its lease goes with the transaction
                    check_here(key, facts)
                given = (fence, until_us, lease_seconds, at_us, due_for(facts, at_us))
                expired = _expired(last, at_us, server_us)
                return Lease(key, worker, *given, lock=True, uid=uid, expired=expired)
            await conn.execute(SQL["measure_again"])
            head = await self._head(conn, key)
            if head.worker is not None:
                raise locked(head)
            # It was released between the two statements: try again.
        raise StoreBusy(str(key))

    async def expired(
        self, *, limit: int, after: Place | None = None
    ) -> tuple[tuple[Key, ...], Place | None]:
        asked = (limit, *(after or (-INT_MAX, 0)))
        rows = await self._pools.run(lambda conn: conn.fetch(SQL["expired"], *asked))
        keys = tuple([Key(row["app"], row["owner"], row["id"]) for row in rows])
        last = rows[-1] if len(rows) == limit else None
        return keys, None if last is None else (last["deadline_us"], last["sid"])

    async def _head(self, conn: Connection, key: Key) -> Head:
        """The head as it is now. Raises what load would."""
        return (await self._reader.load(conn, key)).live.fold.head

    def _remember(self, lease: Lease, leased_us: int) -> None:
        live = self._cache.peek(lease.key)
        if live is not None:
            live.lease(lease.fence, lease.until_us, lease.worker, leased_us)


def _expired(last: Sequence[Any], now_us: int, server_us: int) -> Expired | None:
    """Return the lease that ran out before this one. If the server was started again while it was
    held, its holder could not renew it, and may live."""
    worker, until_us, since_us = last
    expired = expired_lease(worker, until_us, since_us, now_us)
    if expired is not None and expired.leased_us < server_us:
        return msgspec.structs.replace(expired, excused=True)
    return expired


def _with_facts(lease: Lease, facts: str | None) -> Head:
    """Return as much of a head as says what the session is due for."""
    return msgspec.structs.replace(blank(lease.key, "", 0), facts=facts_from(facts))


def _lease_key(lease: Lease) -> Held:
    return lease.key, lease.fence, lease.uid
