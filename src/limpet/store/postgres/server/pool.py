"""Connections to the server: two pools for calls, and one connection for each lane.

`open_current_pool` checks what must hold before a database is used. A connection is lent for one
call and given back as it was. No call may leave behind what the next one would meet: an open
transaction, a cursor, a setting. A call that comes to its end leaves nothing, and giving back costs
no round trip. A call that is cut short is followed by a reset, and if that fails the pool closes
the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import asyncpg

from limpet.errors import (
    Asked,
    InvalidInput,
    LimpetError,
    StoreClosed,
    StoreForked,
    StoreOlder,
    StoreUnopened,
)
from limpet.model import described
from limpet.store.coding.codec import Codec
from limpet.store.coding.seal import Awaited, refuse_locked
from limpet.store.logs import POSTGRES, error_name
from limpet.store.postgres.failures import BROKEN, FAILURES, UNOPENED, translate, unopened
from limpet.store.postgres.server import schema, settings
from limpet.store.postgres.server.pooler import Through, arguments, connect_alone, ready
from limpet.store.postgres.server.schema import follow_timeline
from limpet.store.postgres.server.settings import (
    Connection,
    Pool,
    check_url,
    check_version,
    is_pooled,
    where,
)
from limpet.store.system import PROCESS

T = TypeVar("T")
CONNECTIONS: Final = 11  # of one store, unless its opener says otherwise
CONNECTIONS_MIN: Final = 6
CONNECTIONS_MAX: Final = 1_000
_OUTDATED: Final = (
    "its functions are of another release, or it was moved here from another server, and this "
    "command changes nothing; start your application with this release first"
)


def shares(connections: int) -> tuple[int, int]:
    """Divide connections: for reading, and for what may wait for a row (claims, locks, deletions).

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


async def open_current_pool(url: str, *, size: int, looking: bool = False) -> Pool:
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


class Pools:
    """The two pools of a store: one for reads, one for calls that may wait for a row lock.

    So many as they are, calls that wait do not keep others from reading.
    """

    def __init__(self, reading: Pool, waiting: Pool, place: str, codec: Codec) -> None:
        self.reading, self.waiting, self._place = reading, waiting, place
        self._sealer, self._locked = codec.sealer, codec.locked
        self._outage = Outage(place, "pool")
        self._forks = PROCESS.forks
        self._open = True

    @property
    def size(self) -> int:
        """The number of connections that there may be."""
        found: int = self.reading.get_max_size() + self.waiting.get_max_size()
        return found

    def check(self) -> None:
        """Raise StoreClosed after `end`, StoreForked in a child process."""
        if not self._open:
            raise StoreClosed
        if self._forks != PROCESS.forks:
            raise StoreForked

    async def run(
        self,
        query: Callable[[Connection], Awaitable[T]],
        *,
        asked: Asked = "read",
        repeatable: bool = True,
    ) -> T:
        """Run a query on a connection of a pool.

        Runs it again if the connection broke and a repetition does no harm, and if it met sealed
        bodies before their keys were there. Raises StoreError.
        """
        return await self._sealer.opening(
            lambda: self._run(query, asked=asked, repeatable=repeatable)
        )

    async def _run(
        self, query: Callable[[Connection], Awaitable[T]], *, asked: Asked, repeatable: bool
    ) -> T:
        if self._locked and asked != "read":
            refuse_locked(self._place)
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

    async def in_transaction(self, change: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a change in one transaction, once."""

        async def run(conn: Connection) -> T:
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


class Pooled(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """A connection that knows whether its last call came to its end."""

    cut_short = False

    def itself(self) -> Pooled:
        """The connection behind the pool's proxy, which is another one for each call."""
        return self


class PooledThrough(Through, Pooled):
    """The same behind a pooler: its transactions are ended by the driver, and it has no settings
    that a reset would have to restore."""

    async def reset(self, **_: Any) -> None:
        pass


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


class PostgresWriteConnection:
    """One connection, made when it is needed and made again when it broke."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.place = where(url)
        self._conn: Connection = None

    async def get(self) -> Connection:
        """The connection. Raises what asyncpg raises."""
        if self._conn is None or self._conn.is_closed():
            wanted = settings.connection_settings(settings.LANE_LOCK_SECONDS_MAX)
            conn = await connect_alone(
                self._url,
                wanted | settings.LOOKUP_PLANS,
                command_timeout=settings.STATEMENT_SECONDS_MAX,
            )
            try:
                await follow_timeline(conn, self._url)
            except BaseException:
                conn.terminate()
                raise
            self._conn = conn
        return self._conn

    def drop(self) -> None:
        """Leave a connection that broke, or whose state is unknown."""
        if self._conn is not None:
            self._conn.terminate()
            self._conn = None

    async def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()


class Outage:
    """Belongs to what connects to the server: a lane, the pools or the listener."""

    __slots__ = ("_connection", "_place", "_since", "_tries")

    def __init__(self, place: str, connection: str) -> None:
        self._place, self._connection = place, connection
        self._since, self._tries = 0.0, 0

    def lost(self, error: BaseException) -> None:
        """A call failed because the connection broke, or none could be made."""
        self._tries += 1
        if self._tries == 1:
            self._since = time.monotonic()
            text = "connection lost: store=%s connection=%s error=%s"
            POSTGRES.warning(text, self._place, self._connection, error_name(error))
        else:
            text = "connection retried: store=%s connection=%s error=%s tries=%d"
            POSTGRES.debug(text, self._place, self._connection, error_name(error), self._tries)

    def over(self) -> None:
        """A call succeeded. Costs one comparison if nothing was lost."""
        if self._tries:
            seconds, tries, self._tries = time.monotonic() - self._since, self._tries, 0
            text = "connection regained: store=%s connection=%s seconds=%.3f tries=%d"
            POSTGRES.info(text, self._place, self._connection, seconds, tries)
