"""Connections to the server: two pools for calls, and one connection for each lane.

`open_current_pool` checks what must hold before a database is used. A connection is lent for one
call and given back as it was. No call may leave behind what the next one would meet: an open
transaction, a cursor, a setting. A call that comes to its end leaves nothing, and giving back costs
no round trip. A call that is cut short is followed by a reset, and if that fails the pool closes
the connection.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import asyncpg

from limpet.errors import (
    Asked,
    InvalidInput,
    LimpetError,
    ReplicaBehind,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreForked,
    StoreOlder,
    StoreUnopened,
)
from limpet.model import described
from limpet.store.coding.codec import Codec
from limpet.store.coding.seal import Awaited, refuse_locked
from limpet.store.logs import POSTGRES, error_name
from limpet.store.postgres.failures import (
    APPEARANCES_MAX,
    BROKEN,
    FAILURES,
    UNOPENED,
    SessionAppeared,
    translate,
    unopened,
)
from limpet.store.postgres.server import schema, settings
from limpet.store.postgres.server.cluster import CausalTokens, Cluster, cluster_of
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
from limpet.store.postgres.sql import SQL
from limpet.store.system import PROCESS

T = TypeVar("T")
CONNECTIONS: Final = 11  # of one store, unless its opener says otherwise
CONNECTIONS_MIN: Final = 6
CONNECTIONS_MAX: Final = 1_000
BEHIND_PAUSE_SECONDS: Final = 0.01  # between two looks whether a replica has caught up
AWAY_SECONDS: Final = 2.0  # after no replica answered
_NOT_THERE_YET: Final = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedTableError,
)
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
    pool, cluster = await open_pool(url, size=size), cluster_of(url)
    try:
        async with pool.acquire() as conn:
            check_version(conn, where(url))
            if cluster is not None and not looking:
                cluster.check_settings()
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
    cluster_of(url)
    try:
        conn = await connect_alone(url, settings.unlimited_settings())
        try:
            check_version(conn, where(url))
            installed = await schema.installed(conn)
            current = ready and installed == schema.SCHEMA
            late = current and await schema.outdated(conn) not in (set(), schema.TIMELINE)
        finally:
            await conn.close()
    except UNOPENED as error:
        raise unopened(error, where(url)) from error
    if installed == 0:
        raise StoreUnopened(where(url), "the database has no schema limpet; check the URL")
    if 0 < installed < schema.SCHEMA:
        raise StoreOlder(where(url), installed, schema.SCHEMA)
    if late:
        raise StoreUnopened(where(url), _OUTDATED)


async def open_pool(
    url: str, *, size: int, connect: Callable[..., Awaitable[Connection]] | None = None
) -> Pool:
    """Connections, one of them made now. Raises InvalidURL, StoreBusy, StoreUnopened.

    `connect` is another way to connect, to a replica of a cluster.
    """
    check_url(url)
    wanted = settings.connection_settings(settings.LOCK_SECONDS_MAX)
    made, cluster = arguments(url, wanted), cluster_of(url)
    made["connection_class"] = PooledThrough if is_pooled(url) else Pooled
    if cluster is not None:
        made["connect"] = partial(_connect_to_primary, cluster) if connect is None else connect
    try:
        pool = await asyncpg.create_pool(
            **made,
            min_size=0,  # no floor: nobody keeps asking for a server that is away
            max_size=size,
            timeout=settings.CONNECT_SECONDS_MAX,
            command_timeout=_command_seconds(cluster),
            init=lambda conn: ready(conn, url, wanted),
            reset=lambda conn: reset(conn, lambda: ready(conn, url, wanted)),
        )
        async with pool.acquire():
            return pool
    except UNOPENED as error:
        raise unopened(error, where(url)) from error


def _command_seconds(cluster: Cluster | None) -> float:
    return settings.STATEMENT_SECONDS_MAX if cluster is None else cluster.options.command_seconds


class Pools:
    """The two pools of a store: one for reads, one for calls that may wait for a row lock.

    So many as they are, calls that wait do not keep others from reading.
    """

    def __init__(
        self,
        reading: Pool,
        waiting: Pool,
        place: str,
        codec: Codec,
        replicas: Replicas | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.reading, self.waiting, self._place = reading, waiting, place
        self._cluster, self._replicas = cluster, replicas
        self._generation = 0 if cluster is None else cluster.generation
        self._look: asyncio.Task[object] | None = None
        self._sealer, self._locked = codec.sealer, codec.locked
        self._outage = Outage(place, "pool")
        self._forks = PROCESS.forks
        self._open = True

    @property
    def size(self) -> int:
        """The number of connections that there may be."""
        connections: int = self.reading.get_max_size() + self.waiting.get_max_size()
        return connections

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
        after: Sequence[int] | None = None,
        confirmed: bool = True,
    ) -> T:
        """Run a query on a connection of a pool.

        `after` lets a replica answer, if the URL says so, once it sees the commits with these
        tokens. `confirmed` lets the primary of a cluster answer a read only when the quorum has
        what it shows.

        Runs it again if the connection broke and a repetition does no harm, if it met sealed bodies
        before their keys were there, and if its session came while it ran. Raises StoreError.
        """

        async def repeated(conn: Connection) -> T:
            for _ in range(APPEARANCES_MAX):
                with suppress(SessionAppeared):
                    return await query(conn)
            reason = f"a session came and went {APPEARANCES_MAX} times while it was read"
            raise StoreBusy(self._place, reason, "read it again")

        return await self._sealer.opening(
            lambda: self._run(
                repeated, asked=asked, repeatable=repeatable, after=after, confirmed=confirmed
            )
        )

    async def _run(
        self,
        query: Callable[[Connection], Awaitable[T]],
        *,
        asked: Asked,
        repeatable: bool,
        after: Sequence[int] | None,
        confirmed: bool,
    ) -> T:
        if self._locked and asked != "read":
            refuse_locked(self._place)
        if self._replicas is not None and after is not None:
            self.check()
            try:
                return await self._replicas.run(query, after)
            except NoReplica:
                pass  # the primary answers
            except FAILURES as error:
                raise translate(error, self._place, asked) from error
        pool = self.reading if asked == "read" else self.waiting
        deadline = time.monotonic() + settings.LOST_SECONDS_MAX
        while True:
            self.check()
            if self._cluster is not None:
                await self._follow(self._cluster)
            try:
                if self._cluster is None or asked == "read":
                    async with lent(pool) as conn:
                        if self._cluster is not None and confirmed:
                            await _confirm(self._cluster, conn)
                        answer = await query(conn)
                else:
                    answer = await self._change(self._cluster, query, asked)
                self._outage.over()
                return answer
            except FAILURES as error:
                if isinstance(error, BROKEN):
                    self._outage.lost(error)
                hopeless = not repeatable or not isinstance(error, BROKEN)
                if hopeless or time.monotonic() > deadline:
                    raise translate(error, self._place, asked) from error
            await asyncio.sleep(settings.LOST_PAUSE_SECONDS)

    async def _change(
        self, cluster: Cluster, query: Callable[[Connection], Awaitable[T]], asked: Asked
    ) -> T:
        """Change something in a cluster: the quorum has it when it returns."""
        await cluster.quorum_back(asked)

        async def run(conn: Connection) -> T:
            return await query(conn)

        async with lent(self.waiting) as conn:
            answer = await cluster.acknowledged(conn, run(conn), asked)
            cluster.see_names(await conn.fetchval(SQL["synchronous_standbys"]), asked)
            if self._replicas is not None:
                self._replicas.tokens.written(await conn.fetchval(SQL["written_up_to"]))
        return answer

    async def _follow(self, cluster: Cluster) -> None:
        """Leave connections to a server that is not the primary any more, and look now and then
        whether another is."""
        if cluster.is_look_due and (self._look is None or self._look.done()):
            self._look = asyncio.get_running_loop().create_task(_looking(cluster))
        if self._generation != cluster.generation:
            self._generation = cluster.generation
            await self.reading.expire_connections()
            await self.waiting.expire_connections()
            if self._replicas is not None:
                await self._replicas.follow()

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
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
        if self._replicas is not None:
            await self._replicas.close()
        await self.waiting.close()
        await self.reading.close()


async def _confirm(cluster: Cluster, conn: Connection) -> None:
    """Before the first read from a primary since it started or crashed: return when the quorum has
    everything that was committed there. Raises QuorumUnavailable.

    A primary that crashed and came back shows commits that waited for their quorum when it died;
    lost for good, it would take them along, and with them what was read. Later it shows a commit
    only when the quorum has it, until somebody is heard to have ended a wait.
    """
    shown = (conn.itself().run, cluster.doubts)
    if cluster.confirmed == shown:
        return
    await cluster.quorum_back("read")
    await cluster.acknowledged(conn, _emit(conn), "read")
    cluster.confirmed = shown


async def _emit(conn: Connection) -> None:
    await conn.execute(SQL["confirm_quorum"])


async def _looking(cluster: Cluster) -> None:
    with suppress(*FAILURES, StoreError):  # whoever connects next meets it
        await cluster.find()


class NoReplica(Exception):  # no error of the tree: the primary answers in its place
    """No replica can be asked."""


class Replicas:
    """Reads from a replica of a cluster, always the same one as long as it answers: what it showed
    once it shows again. After a change of replicas the next one has to have caught up with the
    primary of that moment."""

    def __init__(self, url: str, cluster: Cluster, size: int) -> None:
        self._url, self._cluster, self._size = url, cluster, size
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()
        self._away_until = 0.0  # when no replica answered: not asked for again before
        self.tokens = CausalTokens()

    async def run(self, query: Callable[[Connection], Awaitable[T]], after: Sequence[int]) -> T:
        """Run a read on a replica. Raises ReplicaBehind, NoReplica, and what the driver raises."""
        deadline = time.monotonic() + self._cluster.options.quorum_seconds
        while True:
            try:
                async with lent(await self._opened()) as conn:
                    if await self._caught_up(conn, after):
                        return await query(conn)
            except _NOT_THERE_YET:
                pass  # it has not replayed the making of the schema
            except (*BROKEN, asyncpg.SerializationError) as error:
                # Broken, or ended by the standby's recovery, which needed what the query read.
                await self._leave()
                raise NoReplica from error
            behind = self._cluster.options.behind
            if behind == "primary":
                raise NoReplica
            if behind == "fail" or time.monotonic() > deadline:
                raise ReplicaBehind(self._cluster.where)
            await asyncio.sleep(BEHIND_PAUSE_SECONDS)

    async def _caught_up(self, conn: Connection, after: Sequence[int]) -> bool:
        if not after and not self.tokens.lsn:
            return True
        return bool(await conn.fetchval(SQL["caught_up"], list(after), self.tokens.lsn))

    async def _opened(self) -> Pool:
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    if time.monotonic() < self._away_until:
                        raise NoReplica
                    self._pool = await self._open()
        return self._pool

    async def _open(self) -> Pool:
        """A pool on one of the standbys, chosen at random; on none if none answers."""
        members = await self._cluster.find()
        primary = self._cluster.primary
        assert primary is not None
        standbys = [
            each
            for each in members
            if each is not None and each.standby and each.timeline >= primary.timeline
        ]
        if not standbys:
            self._away_until = time.monotonic() + AWAY_SECONDS
            raise NoReplica
        place = random.choice(standbys).place  # nosec B311  # no secret
        connect = partial(_connect_to, self._cluster, place)
        self.tokens.written(primary.lsn)
        return await open_pool(self._url, size=self._size, connect=connect)

    async def _leave(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.terminate()

    async def follow(self) -> None:
        """Another server is the primary: it may be the one that was asked."""
        await self._leave()

    async def close(self) -> None:
        await self._leave()


async def _connect_to_primary(
    cluster: Cluster, dsn: str | None = None, **arguments: Any
) -> Connection:
    conn = await cluster.connect(dsn, **arguments)
    conn.run = cluster.run
    return conn


async def _connect_to(
    cluster: Cluster, place: int, dsn: str | None = None, **arguments: Any
) -> Connection:
    return await cluster.connect_to(place, **arguments)


class Pooled(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """A connection that knows whether its last call came to its end, and, of a cluster, to which
    run of the primary it was made: a crash ends it."""

    cut_short = False
    run: tuple[int, int, str] | None = None

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
        self.cluster = cluster_of(url)
        self._conn: Connection = None
        self._generation = 0

    async def acknowledged(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call that commits on this connection; in a cluster the quorum has it then."""
        if self.cluster is None:
            return await call
        return await self.cluster.acknowledged(self._conn, call)

    async def get(self) -> Connection:
        """The connection. Raises what asyncpg raises; of a cluster, QuorumUnavailable."""
        if self.cluster is not None:
            await self.cluster.quorum_back()
            if self._generation != self.cluster.generation:
                self.drop()  # another server is the primary
                self._generation = self.cluster.generation
        if self._conn is None or self._conn.is_closed():
            wanted = settings.connection_settings(settings.LANE_LOCK_SECONDS_MAX)
            conn = await connect_alone(
                self._url,
                wanted | settings.LOOKUP_PLANS,
                command_timeout=_command_seconds(self.cluster),
            )
            try:
                await follow_timeline(conn, self._url)
            except BaseException:
                conn.terminate()
                raise
            self._conn = conn
            if self.cluster is not None:
                self._generation = self.cluster.generation
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
