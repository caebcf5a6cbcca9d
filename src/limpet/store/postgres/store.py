"""The PostgreSQL store: many processes and machines on one database.

Reads take a connection from the pool for one round trip; writes go to the committer. Everything
that orders or dates events happens on the server: its clock, its locks, its hashes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import asyncpg

from limpet.errors import (
    Asked,
    PositionUnknown,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    StoreClosed,
    StoreForked,
)
from limpet.model.events import Commit, Event
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.store import bodies
from limpet.store.codec import Codec
from limpet.store.ledger import Ledger, buried, erased
from limpet.store.pages import bare, newest, page
from limpet.store.postgres import doctor, feed, heads, leases, ledger, rows, verify
from limpet.store.postgres import states as states_of
from limpet.store.postgres.address import where
from limpet.store.postgres.committer import LANES, Committer
from limpet.store.postgres.connect import (
    CONNECT_SECONDS_MAX,
    CONNECTIONS,
    LOST_PAUSE_SECONDS,
    LOST_SECONDS_MAX,
    Connection,
    Line,
    Pool,
    connect,
    notice_move,
    open_pool,
    shares,
)
from limpet.store.postgres.failures import BROKEN, FAILURES, translate
from limpet.store.postgres.lending import lent
from limpet.store.postgres.outage import Outage
from limpet.store.postgres.reader import Reader
from limpet.store.postgres.rows import SQL
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


class PostgresStore:
    """A database on a server. Open with `await PostgresStore.open(url)`."""

    def __init__(
        self, pool: Pool, desk: Pool, url: str, reader: Reader, ear: Callable[[], Any]
    ) -> None:
        self._pool, self._reader, self._url, self._place = pool, reader, url, where(url)
        self._desk = desk
        self._hinting = feed.Hinting(pool, ear, self._place)
        # Connections of the committer's own: readers, however many, do not keep it from writing.
        lines = [Line(url) for _ in range(LANES)]
        self._committer = Committer(lines, reader, self._hinting.tell)
        self._outage = Outage(self._place, "pool")
        self._asked = 0
        self._pid = os.getpid()
        self._open = True

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int = CONNECTIONS,
        looking: bool = False,
    ) -> PostgresStore:
        """Connect, and bring the schema forward if it is behind and not only looked at.

        No more than so many connections are open at any time. Raises StoreError.
        """
        reading, waiting = shares(connections)
        pool = await connect(url, size=reading, looking=looking)
        try:
            secret = await pool.fetchval("SELECT value FROM limpet.meta WHERE name = 'secret'")
            # For what may wait for a row: readers do not wait behind it.
            desk = await open_pool(url, size=waiting)
        except BaseException as error:
            await pool.close()
            if isinstance(error, FAILURES):
                raise translate(error, where(url), "read") from error
            raise
        ear = partial(asyncpg.connect, url, timeout=CONNECT_SECONDS_MAX)
        return cls(pool, desk, url, Reader(Codec(seal), secret), ear)

    # --- writing -------------------------------------------------------------------------------

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        self._check()
        return await self._committer.commit(commits)

    async def delete(self, key: Key) -> bool:
        async def run(conn: Connection) -> bool:
            await ledger.begin(conn)
            row = await conn.fetchrow(SQL["bury"], key.app, key.user, key.id)
            if row is None:
                return False
            crc = bodies.tomb_crc(rows.buried(key, row), row["deleted_us"])
            await conn.execute(SQL["put_tomb"], row["sid"], crc)
            await _remove_rows(conn, row["sid"])
            await ledger.enter(conn, row["sid"], buried(crc))
            return True

        deleted: bool = await self._in_transaction(run)
        self._committer.cache.forget(key)
        return deleted

    async def erase(self, key: Key) -> Erasure | None:
        async def run(conn: Connection) -> Erasure | None:
            await ledger.begin(conn)
            row = await conn.fetchrow(
                SQL["unmake"],
                key.app,
                key.user,
                key.id,
            )
            if row is None:
                return await self._reader.erasure(conn, key)
            await _remove_rows(conn, row["sid"])
            erasure = Erasure(self._reader.key_hash(key), row["version"], row["link"], row["at_us"])
            crc = bodies.erasure_crc(erasure)
            before = await conn.fetchrow(SQL["erased_crc"], erasure.key_hash)
            await conn.execute(
                SQL["put_erased"],
                erasure.key_hash,
                erasure.version,
                erasure.link,
                erasure.erased_us,
                crc,
            )
            change = erased(crc, row["tomb_crc"], was_tomb=row["deleted_us"] is not None)
            if before is not None:  # erased, made again in that very moment, and now replaced
                change = change.plus(Ledger(0, 0, -1, -(before["crc"] or 0)))
            await ledger.enter(conn, row["sid"], change)
            return erasure

        erasure: Erasure | None = await self._in_transaction(run)
        self._committer.cache.forget(key)
        return erasure

    # --- work ----------------------------------------------------------------------------------

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        claimed: tuple[Lease, ...] = await self._with(
            lambda conn: leases.claim(conn, worker, limit, lease_seconds, app),
            asked="lease",
            repeatable=False,
        )
        for lease in claimed:
            self._note(lease)
        return claimed

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        renewed: Lease = await self._with(
            lambda conn: leases.renew(conn, self._reader, lease, lease_seconds), asked="change"
        )
        return renewed

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        released: bool = await self._with(
            lambda conn: leases.release(conn, lease, retry_seconds),
            asked="change",
            repeatable=False,
        )
        return released

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        lease: Lease = await self._with(
            lambda conn: leases.acquire(conn, self._reader, key, worker, lease_seconds),
            asked="lease",
        )
        self._note(lease)
        return lease

    def _note(self, lease: Lease) -> None:
        """Tell the committer: its first commit under the lease then needs no second try."""
        live = self._committer.cache.peek(lease.key)
        if live is not None:
            live.lease(lease.fence, lease.until_us, lease.worker)

    # --- reading -------------------------------------------------------------------------------

    async def load(
        self, key: Key, *, tail: int, since_us: int | None = None, scopes: bool = True
    ) -> Loaded:
        found = await self._with(
            lambda conn: self._reader.load(conn, key, tail=tail, scopes=scopes, since_us=since_us)
        )
        events = newest_since(bare(newest(found.events, tail)), since_us)
        fold = found.live.fold
        return Loaded(fold.head, fold.fields, fold.versions, found.scopes, events, fold.damaged)

    async def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        condition = "e.seq < $4" if reverse else "e.seq > $4"
        if types is not None:
            condition += " AND (e.type = ANY ($6::text[]) OR e.type LIKE ANY ($7::text[]))"
        sql = SQL["read"].replace("{where}", condition).replace("{way}", "DESC" if reverse else "")
        args: list[Any] = [(after or 2**62) if reverse else after, limit]
        if types is not None:
            exact = [t for t in types if not t.endswith(".*")]
            families = [_like(t[:-1]) for t in types if t.endswith(".*")]
            args += [exact, families]
        return await self._events(key, sql, *args)

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        return await self._events(key, SQL["pending_inputs"], limit)

    async def _events(self, key: Key, sql: str, *args: Any) -> tuple[Event, ...]:
        """Events of a session by a statement that begins at its head; raises if it has none."""
        found = await self._with(lambda conn: conn.fetch(sql, key.app, key.user, key.id, *args))
        if not found:
            erased = await self._with(lambda conn: self._reader.erasure(conn, key))
            raise SessionNotFound(key) if erased is None else SessionErased(key)
        if found[0]["deleted_us"] is not None:
            raise SessionDeleted(key)
        uid, codec = found[0]["uid"], self._reader.codec
        return page(rows.sized_event(r, uid, codec) for r in found if r["seq"] is not None)

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page:
        asked = heads.page if not states else partial(states_of.page, self._reader)
        found: Page = await self._with(lambda conn: asked(conn, query, cursor=cursor, limit=limit))
        return found

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        report: Report = await self._with(
            lambda conn: verify.run(conn, self._reader, key, progress)
        )
        return report

    async def examine(self) -> tuple[Check, ...]:
        each = self._pool.get_max_size() + self._desk.get_max_size() + LANES + 1  # an ear
        checks: tuple[Check, ...] = await self._with(lambda conn: doctor.examine(conn, each))
        return checks

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        found: tuple[tuple[FeedEntry, ...], str]
        ask = partial(feed.changes, self._reader.codec, after, app, key, limit)
        try:
            found = await self._with(ask)
        except PositionUnknown:  # if the server was put back in time, the epoch makes it good again
            await self._with(lambda conn: notice_move(conn, self._url))
            found = await self._with(ask)
        return found

    async def position(self) -> str:
        end: str = await self._with(feed.position)
        return end

    async def listen(self, heard: Callable[[], None]) -> None:
        self._check()
        self._hinting.listen(heard)

    def pulse(self) -> int:
        """Hints heard, and the time in coarse steps: a lost hint costs no more than a step."""
        if not self._hinting.wanted():
            self._asked += 1  # nobody listens: only a read can tell
        self._hinting.listen_again()
        return self._asked + self._hinting.hints + int(time.monotonic() / POLL_SECONDS)

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self._committer.close()
            await self._hinting.close()
            await self._desk.close()
            await self._pool.close()

    # --- private -------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._open:
            raise StoreClosed
        if self._pid != os.getpid():
            raise StoreForked

    async def _with(self, query: Any, *, asked: Asked = "read", repeatable: bool = True) -> Any:
        """Ask on a connection of a pool; again, if the line broke and that does no harm."""
        pool = self._pool if asked == "read" else self._desk
        deadline = time.monotonic() + LOST_SECONDS_MAX
        while True:
            self._check()
            try:
                async with lent(pool) as conn:
                    answer = await query(conn)
                self._outage.over()
                return answer
            except FAILURES as error:
                if isinstance(error, BROKEN):
                    self._outage.lost(error)
                hopeless = not repeatable or not isinstance(error, BROKEN)
                if hopeless or time.monotonic() > deadline:
                    raise translate(error, self._place, asked) from error
            await asyncio.sleep(LOST_PAUSE_SECONDS)

    async def _in_transaction(self, work: Any) -> Any:
        async def run(conn: Connection) -> Any:
            async with conn.transaction():
                return await work(conn)

        return await self._with(run, asked="change", repeatable=False)


async def _remove_rows(conn: Connection, sid: int) -> None:
    for table in ("events", "snapshots", "labels"):
        await conn.execute(f"DELETE FROM limpet.{table} WHERE sid = $1", sid)


def _like(prefix: str) -> str:
    return prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
