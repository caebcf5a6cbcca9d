"""The PostgreSQL store: many processes and machines on one database.

Reads take a connection from a pool for one round trip; writes go to the committer. Everything that
orders or dates events happens on the server: its clock, its locks, its hashes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from limpet.errors import PositionUnknown, SessionDeleted, SessionErased, SessionNotFound
from limpet.model.events import Commit, Event
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.model.limits import READ_PAGE_BYTES_MAX
from limpet.store.codec import Codec
from limpet.store.pages import bare, newest, page
from limpet.store.postgres import doctor, erasure, feed, heads, rows, verify
from limpet.store.postgres import states as states_of
from limpet.store.postgres.committer import LANES, Committer
from limpet.store.postgres.connect import CONNECTIONS, connect, shares
from limpet.store.postgres.failures import FAILURES, translate
from limpet.store.postgres.leases import Leases
from limpet.store.postgres.notify import Notifier
from limpet.store.postgres.reader import Reader
from limpet.store.postgres.server import pooler
from limpet.store.postgres.server.address import is_pooled, where
from limpet.store.postgres.server.pool import Pools, open_pool
from limpet.store.postgres.server.schema import follow_timeline
from limpet.store.postgres.server.writer import WriteConnection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import (
    Check,
    Committed,
    Erasure,
    FeedEntry,
    Loaded,
    Page,
    Progress,
    Query,
    Report,
    Seal,
)
from limpet.store.select import newest_since

POLL_SECONDS: Final = 0.25
POOLED_POLL_SECONDS: Final = 0.1  # where nothing but a read shows a change


class PostgresStore:
    """A database on a server. Open with `await PostgresStore.open(url)`."""

    def __init__(self, pools: Pools, url: str, reader: Reader) -> None:
        self._pools, self._reader, self._url = pools, reader, url
        self._pooled = is_pooled(url)
        # A LISTEN needs a process of the server to itself, which a pooler does not give.
        listener = None if self._pooled else partial(pooler.connect, url, {})
        self._notifier = Notifier(pools.reading, listener, where(url))
        # Connections of the committer's own: readers, however many, do not keep it from writing.
        writers = [WriteConnection(url) for _ in range(LANES)]
        self._committer = Committer(writers, reader, self._notifier.notify)
        self._leases = Leases(pools, reader, self._committer.cache)
        self._step = POOLED_POLL_SECONDS if self._pooled else POLL_SECONDS
        self._polled = 0  # how often the pulse was asked for while nobody listened

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int = CONNECTIONS,
        looking: bool = False,
    ) -> PostgresStore:
        """Connect, and migrate the schema if it is outdated and not only looked at.

        No more than so many connections are open at any time. Raises StoreError.
        """
        reading, waiting = shares(connections)
        pool = await connect(url, size=reading, looking=looking)
        try:
            secret = await pool.fetchval(SQL["secret"])
            others = await open_pool(url, size=waiting)
        except BaseException as error:
            await pool.close()
            if isinstance(error, FAILURES):
                raise translate(error, where(url), "read") from error
            raise
        codec = Codec(seal)
        return cls(Pools(pool, others, where(url), codec.sealer), url, Reader(codec, secret))

    # --- writing -------------------------------------------------------------------------------

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        self._pools.check()
        return await self._committer.commit(commits)

    async def delete(self, key: Key) -> bool:
        deleted: bool = await self._pools.in_transaction(lambda conn: erasure.delete(conn, key))
        self._committer.cache.forget(key)
        return deleted

    async def erase(self, key: Key) -> Erasure | None:
        proof: Erasure | None = await self._reader.codec.sealer.erasing(
            lambda gone: self._pools.in_transaction(
                lambda conn: erasure.erase(conn, self._reader, key, gone)
            )
        )
        self._committer.cache.forget(key)
        return proof

    # --- leases --------------------------------------------------------------------------------

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        return await self._leases.claim(worker, limit=limit, lease_seconds=lease_seconds, app=app)

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        return await self._leases.renew(lease, lease_seconds)

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        return await self._leases.release(lease, retry_seconds)

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        return await self._leases.acquire(key, worker, lease_seconds)

    # --- reading -------------------------------------------------------------------------------

    async def load(
        self, key: Key, *, tail: int, since_us: int | None = None, scopes: bool = True
    ) -> Loaded:
        found = await self._pools.run(
            lambda conn: self._reader.load(conn, key, tail=tail, scopes=scopes, since_us=since_us)
        )
        events = newest_since(bare(newest(found.events, tail)), since_us)
        fold = found.live.fold
        return Loaded(fold.head, fold.fields, fold.versions, found.scopes, events, fold.damaged)

    async def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        exact = patterns = None
        if types is not None:
            exact = [t for t in types if not t.endswith(".*")]
            patterns = [_like(t[:-1]) for t in types if t.endswith(".*")]
        end = (after or 2**62) if reverse else after
        sql = SQL["read_reverse" if reverse else "read"]
        return await self._events(key, sql, end, limit, READ_PAGE_BYTES_MAX, exact, patterns)

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        return await self._events(key, SQL["pending_inputs"], limit, READ_PAGE_BYTES_MAX)

    async def _events(self, key: Key, sql: str, *args: Any) -> tuple[Event, ...]:
        """Events of a session by a statement that begins at its head; raises if it has none."""
        sealer = self._reader.codec.sealer
        return await sealer.opening(lambda: self._events_once(key, sql, *args))

    async def _events_once(self, key: Key, sql: str, *args: Any) -> tuple[Event, ...]:
        found = await self._pools.run(
            lambda conn: conn.fetch(sql, key.app, key.user, key.id, *args)
        )
        if not found:
            erased = await self._pools.run(lambda conn: self._reader.erasure(conn, key))
            raise SessionNotFound(key) if erased is None else SessionErased(key)
        if found[0]["deleted_us"] is not None:
            raise SessionDeleted(key)
        uid, codec = found[0]["uid"], self._reader.codec
        return page(rows.sized_event(r, uid, codec) for r in found if r["seq"] is not None)

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page:
        asked = heads.page if not states else partial(states_of.page, self._reader)
        found: Page = await self._pools.run(
            lambda conn: asked(conn, query, cursor=cursor, limit=limit)
        )
        return found

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        report: Report = await self._pools.run(
            lambda conn: verify.run(conn, self._reader, key, progress)
        )
        return report

    async def examine(self) -> tuple[Check, ...]:
        each = self._pools.size + LANES + (not self._pooled)  # the listener
        checks: tuple[Check, ...] = await self._pools.run(
            lambda conn: doctor.examine(conn, each, pooled=self._pooled)
        )
        return checks

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        found: tuple[tuple[FeedEntry, ...], str]
        ask = partial(feed.changes, self._reader.codec, after, app, key, limit)
        try:
            found = await self._pools.run(ask)
        except PositionUnknown:  # until the epoch is raised, if the server was put back in time
            await self._pools.run(lambda conn: follow_timeline(conn, self._url))
            found = await self._pools.run(ask)
        return found

    async def position(self) -> str:
        end: str = await self._pools.run(feed.position)
        return end

    async def listen(self, heard: Callable[[], None]) -> None:
        self._pools.check()
        self._notifier.listen(heard)

    def pulse(self) -> int:
        """Notifications, and the time in coarse steps: a lost one costs no more than a step.

        Behind a pooler there are no notifications, only steps.
        """
        if not self._notifier.wanted:
            self._polled += 1  # nobody listens: only a read can show a change
        self._notifier.keep_listening()
        return self._polled + self._notifier.received + int(time.monotonic() / self._step)

    async def close(self) -> None:
        if self._pools.end():
            await self._committer.close()
            await self._notifier.close()
            await self._pools.close()


def _like(prefix: str) -> str:
    return prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
