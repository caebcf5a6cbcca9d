"""The PostgreSQL store: many processes and machines on one database.

Reads take a connection from a pool for one round trip; writes go to the committer. Events are
planned here, by an estimate of the server's clock, and checked there, under its locks. Leases are
judged there.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from limpet.errors import InvalidInput, PositionUnknown, QuorumUnavailable, StoreBusy
from limpet.model import Base, Commit, Event, Fold, Head, Key, ScopeValue, checkpoints_of, described
from limpet.model.limits import INT_MAX, MARKS_SWEPT, READ_PAGE_BYTES_MAX
from limpet.store import cursor as cursors
from limpet.store.blobs import Blobs
from limpet.store.coding.bodies import store_identity
from limpet.store.coding.codec import Codec
from limpet.store.coding.seal import refuse_locked
from limpet.store.marks import Mark, Marks
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery
from limpet.store.pages import bare, newest, newest_since, page
from limpet.store.postgres import cold, compaction, doctor, erasure, rows, verify
from limpet.store.postgres.blobs import PostgresBlobs
from limpet.store.postgres.failures import FAILURES, translate
from limpet.store.postgres.leases import PostgresLeases
from limpet.store.postgres.live import open_channel
from limpet.store.postgres.notify import Notifier
from limpet.store.postgres.reading import feed, heads, lineage
from limpet.store.postgres.reading.reader import LoadRequest, PostgresReader, StoredSession
from limpet.store.postgres.server.cluster import CausalTokens, Cluster, cluster_of
from limpet.store.postgres.server.pool import (
    CONNECTIONS,
    Pools,
    PostgresWriteConnection,
    Replicas,
    open_current_pool,
    open_pool,
    shares,
)
from limpet.store.postgres.server.schema import follow_timeline
from limpet.store.postgres.server.settings import Connection, where
from limpet.store.postgres.sql import SQL
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.postgres.writing.committer import LANES, Committer
from limpet.store.protocol import (
    ChainedEvent,
    Channel,
    Check,
    Checked,
    Committed,
    Compacted,
    Ending,
    Erasure,
    Erasures,
    Exchange,
    FeedEntry,
    Forks,
    Loaded,
    NameSince,
    Owner,
    Page,
    Progress,
    Query,
    Report,
    Seal,
    Standing,
    Touched,
)

T = TypeVar("T")
POLL_SECONDS: Final = 0.25
UNHEARD_POLL_SECONDS: Final = 0.1  # where nothing but a read shows a change
LOAD_MAX: Final = 100  # sessions in one round trip
_BEHIND: Final = "the server does not see the commit yet that the read asks for"
_CATCH_UP: Final = "a replica has it a moment later; the primary has it at once"


class PostgresStore:
    """A database on a server. Open with `await PostgresStore.open(url)`."""

    def __init__(self, pools: Pools, url: str, reader: PostgresReader, clock: ServerClock) -> None:
        self._pools, self._reader, self._url = pools, reader, url
        self._notifier = Notifier(pools.reading, url)
        # Connections of the committer's own: readers, however many, do not keep it from writing.
        writers = [PostgresWriteConnection(url) for _ in range(LANES)]
        self._committer = Committer(writers, reader, clock, self._notifier.notify)
        self.now_us: Callable[[], int] = clock.now_us
        leases = PostgresLeases(pools, reader, self._committer.cache)
        self.claim, self.renew, self.release = leases.claim, leases.renew, leases.release
        self.acquire, self.expired = leases.acquire, leases.expired
        self._step = POLL_SECONDS if self._notifier.can_listen else UNHEARD_POLL_SECONDS
        self.sealer = reader.codec.sealer
        self.blobs: Blobs = PostgresBlobs(pools, reader)
        self.marks: Marks = PostgresMarks(pools)
        self._cluster: Cluster | None = None
        self._causal: CausalTokens | None = None  # of reads that a replica may answer
        self._polled = 0  # how often the pulse was asked for while nobody listened

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int = CONNECTIONS,
        looking: bool = False,
        clock: ServerClock | None = None,
        check: Checked | None = None,
    ) -> PostgresStore:
        """Connect, and migrate the schema if it is outdated and not only looked at.

        No more than so many connections are open at any time. Raises StoreError.
        """
        (reading, waiting), clock = shares(connections), clock or ServerClock()
        pool = await open_current_pool(url, size=reading, looking=looking)
        try:
            asked_us = clock.local_us()
            secret, now_us, sealed = await pool.fetchrow(SQL["opening"])
            clock.learn(asked_us, now_us)
            others = await open_pool(url, size=waiting)
            cluster = cluster_of(url)
            replicas = None
            if cluster is not None and cluster.options.reads == "any":
                replicas = Replicas(url, cluster, reading)
        except BaseException as error:
            await pool.close()
            if isinstance(error, FAILURES):
                raise translate(error, where(url), "read") from error
            raise
        codec = Codec(seal, check)
        codec.lock(sealed=sealed)
        pools = Pools(pool, others, where(url), codec, replicas, cluster)
        store = cls(pools, url, PostgresReader(codec, secret), clock)
        store._cluster, store._causal = cluster, None if replicas is None else replicas.tokens
        return store

    # --- writing -------------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> Coroutine[Any, Any, tuple[Committed, ...]]:
        self._pools.check()
        if self._reader.codec.locked:
            refuse_locked(where(self._url))
        if self._causal is not None:
            return self._commit_and_note(commits, self._causal)
        return self._committer.commit(commits)

    async def _commit_and_note(
        self, commits: Sequence[Commit], causal: CausalTokens
    ) -> tuple[Committed, ...]:
        """Commit, and have later reads see it, whichever server answers them."""
        answers = await self._committer.commit(commits)
        for answer in answers:
            causal.note(answer.head.key, answer.token)
        return answers

    async def _read(
        self,
        query: Callable[[Connection], Awaitable[T]],
        *keys: Key,
        everything: bool = False,
        token: int | None = None,
    ) -> T:
        """Read from the primary, or from a replica that sees what was committed here before."""
        if self._causal is None:
            return await self._pools.run(query)
        after = self._causal.of(None if everything else keys, token)
        return await self._pools.run(query, after=after)

    async def delete(
        self, key: Key, *, ending: Ending = "deleted", at: Standing | None = None
    ) -> bool:
        deleted: bool = await self._pools.in_transaction(
            lambda conn: erasure.delete(conn, key, ending, at)
        )
        self._committer.cache.forget(key)
        return deleted

    async def exchange(self, exchanges: Sequence[Exchange]) -> bool:
        try:
            await self._pools.in_transaction(
                lambda conn: erasure.exchange(conn, self._reader, exchanges)
            )
        except erasure.NotExchanged:
            return False
        finally:
            for each in exchanges:
                for key in (each.key, checkpoints_of(each.key), *([each.by] if each.by else [])):
                    self._committer.cache.forget(key)
        return True

    async def erase(self, key: Key, *, forks: Forks = "refuse") -> Erasure | None:
        proof: Erasure | None = await self.sealer.erasing(
            lambda gone: self._pools.in_transaction(
                lambda conn: erasure.erase(conn, self._reader, key, forks, gone)
            )
        )
        self._committer.cache.forget(key)
        return proof

    async def compact(self, key: Key, *, upto: int) -> Compacted:
        return await self.sealer.opening(
            lambda: self._pools.in_transaction(
                lambda conn: compaction.compact(conn, self._reader, key, upto)
            )
        )

    async def unpin(self, key: Key, seqs: Sequence[int]) -> None:
        async def run(conn: Connection) -> None:
            if not await conn.fetchval(SQL["unpin"], key.app, key.user, key.id, list(seqs)):
                raise await self._reader.gone(conn, key)

        await self._pools.in_transaction(run)

    async def erase_user(self, app: str, user: str) -> Erasures:
        proof: Erasures = await self.sealer.erasing(
            lambda gone: self._pools.in_transaction(
                lambda conn: erasure.erase_user(conn, self._reader, app, user, gone)
            )
        )
        self._committer.cache.clear()
        return proof

    # --- its keys ------------------------------------------------------------------------------

    async def ring(self) -> str | None:
        value = await self._pools.run(lambda conn: conn.fetchval(SQL["meta"], "ring"))
        return None if value is None else bytes(value).decode()

    async def bind_ring(self, id: str) -> str:
        asked = ("ring", id.encode())
        await self._pools.run(lambda conn: conn.execute(SQL["keep_meta"], *asked), asked="change")
        ring = await self.ring()
        assert ring is not None
        return ring

    async def accept_head(self, key: Key) -> bool:
        async def accept(conn: Connection) -> bool:
            loaded = await self._reader.load(conn, key)
            if loaded.holds:
                return False
            head = loaded.live.fold.head
            mac = self._reader.codec.head_mac(head)
            await conn.execute(SQL["set_mac"], loaded.live.sid, head.version, head.link, mac)
            return True

        return await self._pools.run(accept, asked="change")

    # --- leases --------------------------------------------------------------------------------

    async def waiting(
        self, query: WaitingQuery, *, limit: int, after: WaitingPlace | None = None
    ) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
        return await self._pools.run(lambda conn: heads.waiting(conn, query, limit, after))

    async def tally(self, app: str | None, *, limit: int) -> tuple[Tally, ...]:
        return await self._pools.run(lambda conn: heads.tally(conn, app, limit))

    # --- reading -------------------------------------------------------------------------------

    async def load(
        self,
        key: Key,
        *,
        tail: int,
        since_us: int | None = None,
        scopes: bool = True,
        at_least: str = "",
    ) -> Loaded:
        asked = LoadRequest(tail, scopes, since_us)
        token = read_token(at_least)

        async def run(conn: Connection) -> Loaded:
            checked = self._causal is not None or token is None
            if not checked and not await conn.fetchval(SQL["seen"], token):
                raise StoreBusy(where(self._url), _BEHIND, _CATCH_UP)
            loaded = await self._reader.load(conn, key, asked)
            return await self._load_session(conn, loaded, asked)

        return await self._read(run, key, token=token)

    async def head(self, key: Key) -> Head:
        head = await self._read(lambda conn: heads.vouched(self._reader, conn, key), key)
        if head is not None:
            return head
        return (await self.load(key, tail=0, scopes=False)).head  # says how it ended

    async def load_many(self, keys: Sequence[Key], *, tail: int) -> tuple[Loaded | None, ...]:
        asked = LoadRequest(tail, True)

        async def run(conn: Connection) -> list[Loaded | None]:
            done: list[Loaded | None] = []
            for start in range(0, len(keys), LOAD_MAX):
                part = keys[start : start + LOAD_MAX]
                for row in await self._reader.load_many(conn, part, asked):
                    loaded = None if row is None else await self._load_session(conn, row, asked)
                    done.append(loaded)
            return done

        return tuple(await self._read(run, *keys))

    async def _load_session(
        self, conn: Connection, stored: StoredSession, asked: LoadRequest
    ) -> Loaded:
        """The session, with events of the logs that it began on where more are asked for."""
        self._committer.remember(stored.live)
        fold, tail = stored.live.fold, asked.tail
        head, sized = fold.head, newest(stored.events, tail)
        own = min(tail, head.version - head.floor)
        short = len(sized) < own and await cold.top(conn, stored.live.sid)
        if short or (head.floor and len(sized) == own < tail):
            sized = await self._with_parents(conn, head, tail)
        events = newest_since(bare(sized), asked.since_us)
        damaged = {*fold.damaged, *[event.seq for event in events if event.damage]}
        state = (head, fold.fields, fold.versions, stored.scopes)
        checkpoint = stored.checkpoint if asked.scopes else None
        return Loaded(*state, events, tuple(sorted(damaged)), checkpoint, fold.texts)

    async def _with_parents(
        self, conn: Connection, head: Head, tail: int
    ) -> list[tuple[Event, int]]:
        past = head.version + 1
        page = lineage.events(self._reader, conn, head.key, past, tail, None, reverse=True)
        return (await page)[::-1]

    async def fold_at(self, key: Key, seq: int) -> Fold:
        return await self._read(lambda conn: lineage.fold_at(self._reader, conn, key, seq), key)

    async def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        asked = (key, after, limit, types)
        return bare(
            await self._read(
                lambda conn: lineage.events(self._reader, conn, *asked, reverse=reverse), key
            )
        )

    async def read_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        events = await self._events(key, SQL["read_ids"], list(ids))
        by_id = {event.id: event for event in events}
        if missing := [id for id in ids if id not in by_id]:
            by_id |= {event.id: event for event in await self._cold_by_ids(key, missing)}
        return tuple([by_id[id] for id in ids if id in by_id])

    async def _cold_by_ids(self, key: Key, ids: list[str]) -> list[Event]:
        async def run(conn: Connection) -> list[Event]:
            row = await conn.fetchrow(SQL["living"], key.app, key.user, key.id)
            of = None if row is None else (row["sid"], row["uid"])
            return [] if of is None else await cold.by_ids(self._reader.codec, conn, of, ids)

        return await self.sealer.opening(lambda: self._pools.run(run))

    async def rung(self, key: Key, seq: int) -> Fold:
        return await self._read(
            lambda conn: lineage.fold_at(self._reader, conn, key, seq, replay=False), key
        )

    async def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        asked = (key, name, (before, after), limit)
        return page(
            await self._read(lambda conn: lineage.events_naming(self._reader, conn, *asked), key)
        )

    async def names_since(self, key: Key, seq: int, names: Sequence[str]) -> dict[str, NameSince]:
        return await self._read(
            lambda conn: lineage.names_since(self._reader, conn, key, seq, names), key
        )

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        return page(
            await self._sized_events(key, SQL["pending_inputs"], limit, READ_PAGE_BYTES_MAX)
        )

    async def _events(self, key: Key, sql: str, *args: Any) -> tuple[Event, ...]:
        return bare(await self._sized_events(key, sql, *args))

    async def _sized_events(self, key: Key, sql: str, *args: Any) -> list[tuple[Event, int]]:
        """Events of a session by a statement that begins at its head; raises if it has none."""
        return await self.sealer.opening(lambda: self._sized_once(key, sql, *args))

    async def _sized_once(self, key: Key, sql: str, *args: Any) -> list[tuple[Event, int]]:
        async def run(conn: Connection) -> list[Any]:
            event_rows: list[Any] = await conn.fetch(sql, key.app, key.user, key.id, *args)
            if not event_rows:
                raise await self._reader.absent(conn, key)
            return event_rows

        event_rows = await self._read(run, key)
        codec = self._reader.codec
        return [rows.sized_event(r, r["uid"], codec) for r in event_rows if r["seq"] is not None]

    async def records(self, key: Key, *, after: int, limit: int) -> tuple[ChainedEvent, ...]:
        return page(
            await self._pools.run(
                lambda conn: lineage.records(self._reader, conn, key, after, limit)
            )
        )

    async def base(self, key: Key) -> Base | None:
        return await self._pools.run(lambda conn: lineage.base(self._reader, conn, key))

    async def keys_with(self, uid: str) -> tuple[Key, ...]:
        fetched = await self._pools.run(lambda conn: conn.fetch(SQL["keys_with"], uid))
        return tuple([Key(row["app"], row["owner"], row["id"]) for row in fetched])

    async def owners(
        self, app: str | None, *, after: Owner | None, limit: int
    ) -> tuple[Owner, ...]:
        beyond = (app, *(after or (None, None)), limit)
        fetched = await self._pools.run(lambda conn: conn.fetch(SQL["owners"], *beyond))
        return tuple([(row["app"], row["owner"]) for row in fetched])

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        return await self._pools.run(lambda conn: self._reader.names_of(conn, app, user))

    async def forks(self, key: Key) -> tuple[Key, ...]:
        return await self._pools.run(lambda conn: erasure.forks(conn, key))

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page[Head]:
        asked = heads.page if not states else partial(heads.page_with_states, self._reader)
        return await self._read(
            lambda conn: asked(conn, query, cursor=cursor, limit=limit), everything=True
        )

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        self.sealer.doubt()  # as a process would see it that opens the store now
        return await self._pools.run(lambda conn: verify.run(conn, self._reader, key, progress))

    async def examine(self) -> tuple[Check, ...]:
        # And one for partials; the listener's, if there is one.
        each = self._pools.size + LANES + 1 + self._notifier.can_listen
        return await self._pools.run(
            lambda conn: doctor.examine(conn, each, self._url), confirmed=False
        )

    async def probe(self) -> tuple[Check, ...]:
        return await self._pools.run(doctor.probe, confirmed=False)

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        entries, position = await self._ask_feed(
            partial(feed.changes, self._reader.codec, after, app, key, limit)
        )
        if entries and self._cluster is not None and not await self._confirm(self._cluster):
            return (), cursors.write_position(0, 0) if after is None else after
        return entries, position

    async def touched(self, after: str) -> Touched:
        touched = await self._ask_feed(partial(feed.touched, after))
        if (
            touched.sessions
            and self._cluster is not None
            and not await self._confirm(self._cluster)
        ):
            return Touched({}, after, more=False, whole=True, ended=touched.ended)
        return touched

    async def _confirm(self, cluster: Cluster) -> bool:
        """True when the quorum has all that a page of the feed shows. Rows that it lacks can be
        seen after the primary crashed, or after somebody ended a wait."""

        async def run(conn: Connection) -> None:
            await conn.execute(SQL["confirm_quorum"])

        try:
            await self._pools.run(run, asked="change")
        except QuorumUnavailable:
            return False
        return True

    async def _ask_feed(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await self._pools.run(ask)
        except PositionUnknown:  # until the epoch is raised, if the server was put back in time
            await self._pools.run(lambda conn: follow_timeline(conn, self._url))
            return await self._pools.run(ask)

    async def position(self) -> str:
        return await self._pools.run(feed.position)

    async def listen(self, heard: Callable[[], None]) -> None:
        self._pools.check()
        self._notifier.listen(heard)

    def channel(self) -> Channel:
        return open_channel(self._url, self._reader.codec)

    async def identity(self) -> str:
        secret = await self._pools.run(lambda conn: conn.fetchval(SQL["meta"], "secret"))
        return store_identity(bytes(secret))

    def pulse(self) -> int:
        """Notifications, and the time in coarse steps: a lost one costs no more than a step.

        Where nobody can LISTEN there are no notifications, only steps.
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


def read_token(token: str) -> int | None:
    """The number in the token of a commit; None if there is none. Raises InvalidInput."""
    if not token:
        return None
    digits = isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 20
    if not digits or int(token) > INT_MAX:
        said = described(token)
        raise InvalidInput(f"{said} is not a token. Pass the token of a commit as it is.")
    return int(token)


# --- marks ---------------------------------------------------------------------------------------


class PostgresMarks:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        return bool(await self._write("mark_once", space, name, until_us, value, MARKS_SWEPT))

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        await self._write("mark_put", space, name, until_us, value, MARKS_SWEPT)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        return int(await self._write("mark_add", space, name, until_us, by, MARKS_SWEPT))

    async def get(self, space: str, name: str) -> Mark | None:
        row = await self._pools.run(lambda conn: conn.fetchrow(SQL["mark"], space, name))
        return None if row is None else Mark(space, name, *row)

    async def sweep(self, limit: int) -> int:
        return int(await self._write("sweep_marks", limit))

    async def _write(self, statement: str, *args: Any) -> Any:
        """Not repeated if the answer is lost: a nonce would be refused, a counter count twice."""
        return await self._pools.run(
            lambda conn: conn.fetchval(SQL[statement], *args), asked="change", repeatable=False
        )
