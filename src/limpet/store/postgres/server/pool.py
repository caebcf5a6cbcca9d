"""Pools of connections, each lent for one call and given back as it was.

No call may leave behind what the next one would meet: an open transaction, a cursor, a setting. A
call that comes to its end leaves nothing, and giving back costs no round trip. A call that is cut
short is followed by a reset, and if that fails the pool closes the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from limpet.errors import Asked, LimpetError, StoreClosed, StoreForked
from limpet.store.coding import Awaited, Sealer
from limpet.store.postgres.failures import BROKEN, FAILURES, UNOPENED, translate, unopened
from limpet.store.postgres.server import settings
from limpet.store.postgres.server.address import check_url, is_pooled, where
from limpet.store.postgres.server.outage import Outage
from limpet.store.postgres.server.pooler import Through, arguments, ready
from limpet.store.postgres.server.settings import Connection, Pool
from limpet.store.threads import PROCESS


class Pooled(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """A connection that knows whether its last call came to its end."""

    cut_short = False

    def itself(self) -> Pooled:
        """What stands behind the pool's proxy, which is another one for each call."""
        return self


class PooledThrough(Through, Pooled):
    """The same behind a pooler: its transactions are ended by the driver, and it has no settings
    that a reset would have to restore."""

    async def reset(self, **_: Any) -> None:
        pass


class Pools:
    """The two pools of a store: one for reads, one for calls that may wait for a row lock.

    So many as they are, calls that wait do not keep others from reading.
    """

    def __init__(self, reading: Pool, waiting: Pool, place: str, sealer: Sealer) -> None:
        self.reading, self.waiting, self._place = reading, waiting, place
        self._sealer = sealer
        self._outage = Outage(place, "pool")
        self._forks = PROCESS.forks
        self._open = True

    @property
    def size(self) -> int:
        """How many connections there may be."""
        found: int = self.reading.get_max_size() + self.waiting.get_max_size()
        return found

    def check(self) -> None:
        """Raise StoreClosed after `end`, StoreForked in a child process."""
        if not self._open:
            raise StoreClosed
        if self._forks != PROCESS.forks:
            raise StoreForked

    async def run(self, query: Any, *, asked: Asked = "read", repeatable: bool = True) -> Any:
        """Run a query on a connection of a pool.

        Runs it again if the connection broke and a repetition does no harm, and if it met sealed
        bodies before their keys were there. Raises StoreError.
        """
        return await self._sealer.opening(
            lambda: self._run(query, asked=asked, repeatable=repeatable)
        )

    async def _run(self, query: Any, *, asked: Asked, repeatable: bool) -> Any:
        pool = self.reading if asked == "read" else self.waiting
        deadline = time.monotonic() + settings.LOST_SECONDS_MAX
        while True:
            self.check()
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
            await asyncio.sleep(settings.LOST_PAUSE_SECONDS)

    async def in_transaction(self, change: Any) -> Any:
        """Run a change in one transaction, once."""

        async def run(conn: Connection) -> Any:
            async with conn.transaction():
                return await change(conn)

        return await self.run(run, asked="change", repeatable=False)

    def end(self) -> bool:
        """Take no more calls. False if that was said before."""
        was_open, self._open = self._open, False
        return was_open

    async def close(self) -> None:
        await self.waiting.close()
        await self.reading.close()


async def open_pool(url: str, *, size: int) -> Pool:
    """Connections, one of them made now. Raises InvalidURL, StoreBusy, StoreUnopened."""
    check_url(url)
    wanted = settings.connection_settings(settings.LOCK_SECONDS_MAX)
    made = arguments(url, wanted)
    made["connection_class"] = PooledThrough if is_pooled(url) else Pooled
    try:
        pool = await asyncpg.create_pool(
            **made,
            min_size=0,  # no floor: nobody keeps asking for a server that is away
            max_size=size,
            timeout=settings.CONNECT_SECONDS_MAX,
            command_timeout=settings.STATEMENT_SECONDS_MAX,
            init=lambda conn: ready(conn, url, wanted),
            reset=lambda conn: reset(conn, lambda: ready(conn, url, wanted)),
        )
        async with pool.acquire():
            return pool
    except UNOPENED as error:
        raise unopened(error, where(url)) from error


@asynccontextmanager
async def lent(pool: Pool) -> AsyncIterator[Connection]:
    """A connection of the pool for one call.

    A call that returns, or that we refuse, has had all its answers. One that is cancelled, or
    fails in another way, may leave a transaction open, even one that the driver does not know of:
    between the preparation of a statement and its execution the server is in one.
    """
    async with pool.acquire() as conn:
        held = conn.itself()
        try:
            yield conn
        except (LimpetError, Awaited):
            raise
        except BaseException:
            held.cut_short = True
            raise


async def reset(conn: Connection, restore: Callable[[], Awaitable[None]]) -> None:
    """Called before a connection goes back to its pool. `restore` sets what a new one has set."""
    if conn.cut_short:
        await conn.reset()  # ends transactions, closes cursors, sets everything back
        await restore()
        conn.cut_short = False
