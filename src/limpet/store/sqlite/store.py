"""The SQLite store: the embedded default.

Reads run inline on the caller's event loop, each bounded and within one instant of the database;
writes go to the writer's thread, which is started by the first of them. Several processes may
open the same file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import apsw

from limpet.errors import (
    Asked,
    InvalidInput,
    LimpetError,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreForked,
    StoreReadOnly,
)
from limpet.model import (
    NO_CHECKPOINT,
    Base,
    Commit,
    Event,
    Fold,
    Head,
    Key,
    LastCheckpoint,
    Lease,
    ScopeValue,
)
from limpet.model.lease import with_lease
from limpet.store.blobs import Blobs
from limpet.store.cache import TAIL_BYTES_MAX, TAIL_MAX, CachedSession
from limpet.store.clock import Clock
from limpet.store.coding.bodies import store_identity
from limpet.store.coding.codec import UNHELD, Codec, Damaged
from limpet.store.coding.seal import Unavailable, Unready, owners_of, refuse_locked
from limpet.store.jobs import Pace, WriteJob, WriterCall
from limpet.store.leases import Place
from limpet.store.logs import SQLITE
from limpet.store.marks import Marks
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery
from limpet.store.pages import PageBytes, newest_since
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
from limpet.store.scopes import Scopes
from limpet.store.sqlite import erasure
from limpet.store.sqlite.blobs import SQLiteBlobs, SQLiteMarks
from limpet.store.sqlite.failures import translate
from limpet.store.sqlite.file.connect import BUSY_SECONDS_MAX, Database, close
from limpet.store.sqlite.file.filesystems import refuse_network
from limpet.store.sqlite.leases import SQLiteLeases, expired
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.rows import pack_id
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import SQLiteWriteConnection
from limpet.store.sqlite.writer import SQLiteWriter
from limpet.store.system import PROCESS, in_thread, of_system

P = ParamSpec("P")
T = TypeVar("T")
TAILS_MAX: Final = 256
RING: Final = "ring"  # the row of meta that names the key ring
_BREATH: Final = 32  # sessions that are read before others may run
_LAST: Final = 2**62  # beyond every seq


def _opened(
    read: Callable[Concatenate[SQLiteStore, P], T],
) -> Callable[Concatenate[SQLiteStore, P], Coroutine[Any, Any, T]]:
    """A read of bodies as a coroutine: made again once the keys are there, if it met sealed
    ones."""

    @wraps(read)
    async def opened(store: SQLiteStore, /, *args: P.args, **named: P.kwargs) -> T:
        return await store._open_read(lambda: read(store, *args, **named))

    return opened


class SQLiteStore:
    """A database file. Open with `await SQLiteStore.open(path)`.

    What was committed or read a moment ago is mostly still in memory: the writer's folds, and the
    last events of sessions. It is used if it is of the very version that the head has now. What a
    process may never read (forks, lists, logs as they were recorded) is imported when it first
    does.
    """

    def __init__(
        self,
        database: Database,
        conn: apsw.Connection,
        codec: Codec,
        clock: Clock,
        pace: Pace | None = None,
    ) -> None:
        self._database, self._codec, self._clock = database, codec, clock
        self.sealer = codec.sealer
        self.now_us: Callable[[], int] = clock
        self._pace = pace or Pace()
        self._reader = SQLiteReader(conn, codec)
        self._tails: dict[Key, tuple[Event, ...]] = {}  # the last events of sessions
        ways = (self._reader, clock, self._read, self._run)
        self.blobs: Blobs = SQLiteBlobs(*ways)
        self.marks: Marks = SQLiteMarks(*ways)
        self._writer: SQLiteWriter | None = None
        self._forks, self._open = PROCESS.forks, True
        self._closed = asyncio.Event()
        self.mirror_directory: Path | None = None  # if files for people are kept beside it
        self.mirror_mark: Path | None = None

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        sync: str = "full",
        seal: Seal | None = None,
        vfs: str | None = None,
        busy_seconds: float = BUSY_SECONDS_MAX,
        clock: Clock | None = None,
        pace: Pace | None = None,
        check: Checked | None = None,
    ) -> SQLiteStore:
        """Open the file, creating it if it is not there. Raises StoreError."""
        refuse_network(path)
        database = Database(path, sync=sync, vfs=vfs, busy_seconds=busy_seconds)
        try:
            conn = database.prepare(wait=False)
        except StoreBusy:  # another process has it locked: wait in a thread
            SQLITE.info("open waits: store=%s", database.path)
            conn = await in_thread(database.prepare)
        codec = Codec(seal, check)
        try:
            codec.lock(sealed=conn.execute(SQL["meta"], (RING,)).get is not None)
        except apsw.Error as error:  # before anything else is read: the page of meta is broken
            conn.close()
            raise translate(error, database.where, "read") from error
        return cls(database, conn, codec, clock or Clock(), pace)

    @classmethod
    async def look(cls, path: Path, *, sync: str = "full", seal: Seal | None = None) -> SQLiteStore:
        """Open the file that is there to read it, and nothing else. Raises StoreError."""
        refuse_network(path)
        database = Database(path, sync=sync, vfs=None, looking=True)
        conn = await in_thread(database.recognise)
        database.remember()
        return cls(database, conn, Codec(seal), Clock())

    # --- writing -------------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> Coroutine[Any, Any, tuple[Committed, ...]]:
        if self._codec.seals:
            return self._commit_sealed(commits)
        return self._write().jobs.submit(WriteJob(commits))

    async def _commit_sealed(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Keys first; the writer gives back what met others than were expected."""
        if not self._is_prepared(commits):
            await self.sealer.ready(owners_of(commits, self._uid))
        while True:
            try:
                answers: tuple[Committed, ...] = await self._write().jobs.submit(WriteJob(commits))
                return answers
            except Unready as needed:
                await self.sealer.ready(needed.owners)

    def _is_prepared(self, commits: Sequence[Commit]) -> bool:
        """True if one session is written whose keys are at hand, and no shared name: most are."""
        if len(commits) != 1:
            return False
        commit = commits[0]
        live = self._peek(commit.key)
        if live is None or not self.sealer.is_ready(live.fold.head.uid):
            return False
        return not any([draft.scoped for draft in commit.drafts])

    def _uid(self, key: Key) -> str | None:
        live = self._peek(key)
        return None if live is None else live.fold.head.uid

    async def delete(
        self, key: Key, *, ending: Ending = "deleted", at: Standing | None = None
    ) -> bool:
        now_us = self._clock()
        deleted = await self._run(lambda writes: erasure.delete(writes, key, now_us, ending, at))
        await self._forget_partials(key)
        return deleted

    async def exchange(self, exchanges: Sequence[Exchange]) -> bool:
        now_us = self._clock()
        return await self.sealer.opening(
            lambda: self._run(lambda writes: erasure.exchange(writes, exchanges, now_us))
        )

    async def compact(self, key: Key, *, upto: int) -> Compacted:
        from limpet.store.sqlite import compaction

        return await self.sealer.opening(
            lambda: self._run(lambda writes: compaction.compact(writes, key, upto))
        )

    async def unpin(self, key: Key, seqs: Sequence[int]) -> None:
        await self._run(lambda writes: erasure.unpin(writes, key, seqs))

    async def erase_user(self, app: str, user: str) -> Erasures:
        asked = (app, user, self._clock())
        done = await self.sealer.erasing(
            lambda gone: self._run(lambda writes: erasure.erase_user(writes, *asked, gone))
        )
        await self._forget_partials(None)
        if await self._run(erasure.is_unfinished):
            await self._overwrite()
        return done

    async def erase(self, key: Key, *, forks: Forks = "refuse") -> Erasure | None:
        asked = (key, self._clock(), forks)
        erasing = await self.sealer.erasing(
            lambda gone: self._run(lambda writes: erasure.erase(writes, *asked, gone))
        )
        await self._forget_partials(key if forks != "erase" else None)
        # Also when it was erased before: that process may have died before it was finished.
        if erasing is not None and await self._run(erasure.is_unfinished):
            await self._overwrite()
        return erasing

    async def _forget_partials(self, key: Key | None) -> None:
        """Forget the partials of one session, or all: they may be lost at any time."""
        from limpet.store.sqlite import live

        if live.live_path(self._database.path).exists():
            await in_thread(lambda: live.forget(self._database.path, key))

    async def _overwrite(self) -> None:
        """Let nothing of what was erased be left in the files. Others write between the steps."""
        while await self._run(erasure.purge_some):
            pass
        await self._run(erasure.rewrite)
        deadline = time.monotonic() + self._database.busy_seconds
        while not await self._run(erasure.finish):
            if time.monotonic() > deadline:
                raise StoreBusy(f"{self._database.where} (erased, but its log is still read)")
            await asyncio.sleep(0.01)

    # --- leases --------------------------------------------------------------------------------

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        return await self._run(
            lambda writes: self._leases(writes).claim(worker, limit, lease_seconds, app), "lease"
        )

    async def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        return await self._run(lambda writes: self._leases(writes).renew(leases, lease_seconds))

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        return await self._run(lambda writes: self._leases(writes).release(lease, retry_seconds))

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        return await self._run(
            lambda writes: self._leases(writes).acquire(key, worker, lease_seconds), "lease"
        )

    async def expired(
        self, *, limit: int, after: Place | None = None
    ) -> tuple[tuple[Key, ...], Place | None]:
        asked = (self._clock(), limit, after)
        return self._read(lambda: expired(self._reader.conn, *asked))

    async def waiting(
        self, query: WaitingQuery, *, limit: int, after: WaitingPlace | None = None
    ) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
        from limpet.store.sqlite.reading import heads

        def read() -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
            with self._reader.instant():
                return heads.waiting(self._reader.conn, query, limit, after)

        return self._read(read)

    async def tally(self, app: str | None, *, limit: int) -> tuple[Tally, ...]:
        from limpet.store.sqlite.reading import heads

        now_us = self._clock()
        return self._read(lambda: heads.tally(self._reader.conn, app, now_us, limit))

    def _leases(self, writes: SQLiteWriteConnection) -> SQLiteLeases:
        return SQLiteLeases(writes, self._clock)

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
        return await self._open_read(lambda: self._load(key, tail, since_us, scopes=scopes))

    def _load(self, key: Key, tail: int, since_us: int | None, *, scopes: bool) -> Loaded:
        reader = self._reader
        with reader.instant():
            living = self._living(key)  # first: what is gone needs no keys of its names
            names = reader.scopes.all(key.app, key.user) if scopes else Scopes()
            checkpoint = reader.checkpoint(key) if scopes else None
            return self._load_session(*living, tail, since_us, names, checkpoint)

    async def head(self, key: Key) -> Head:
        if self._codec.marks:
            return await self._open_read(lambda: self._vouched_head(key))
        return self._read(lambda: self._living(key)[1])

    async def load_many(self, keys: Sequence[Key], *, tail: int) -> tuple[Loaded | None, ...]:
        loadings: list[Loaded | None] = []
        for start in range(0, len(keys), _BREATH):
            part = keys[start : start + _BREATH]
            loadings += await self._open_read(partial(self._load_many, part, tail))
            await asyncio.sleep(0)  # they are read inline: let others run
        return tuple(loadings)

    def _load_many(self, keys: Sequence[Key], tail: int) -> list[Loaded | None]:
        """All from one instant; the names of an owner are read once."""
        reader, names = self._reader, dict[Owner, Scopes]()
        done: list[Loaded | None] = []
        with reader.instant():
            has_any = reader.has_checkpoints()
            for key in keys:
                try:
                    living = self._living(key)
                except (SessionNotFound, SessionDeleted, SessionErased):
                    done.append(None)
                    continue
                owner = (key.app, key.user)
                if owner not in names:
                    names[owner] = reader.scopes.all(*owner)
                last = reader.checkpoint(key) if has_any else NO_CHECKPOINT
                done.append(self._load_session(*living, tail, None, names[owner], last))
        return done

    def _load_session(
        self,
        sid: int,
        head: Head,
        tail: int,
        since_us: int | None,
        names: Scopes,
        checkpoint: LastCheckpoint | None,
    ) -> Loaded:
        fold, events, damaged = self._fold(sid, head, tail)
        if len(events) < min(tail, head.version - head.floor):
            events = self._newest(sid, head.key, head, tail, since_us)
        if head.floor and len(events) < tail:
            events = self._with_parents(sid, head, events, tail)
        events = events[len(events) - min(tail, len(events)) :]
        if since_us is not None:
            events = newest_since(events, since_us)
        own = [event.seq for event in events if event.damage and event.seq > head.floor]
        if own:  # what is below the floor is in the base
            damaged = tuple(sorted({*damaged, *own}))
        state = (head, fold.fields, fold.versions, names)
        return Loaded(*state, events, damaged, checkpoint, fold.texts)

    @_opened
    def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        with self._reader.instant():
            sid, head = self._reader.log(key)
            if head.floor:
                from limpet.store.sqlite.reading import lineage

                read = lineage.events_last if reverse else lineage.events_after
                start = (after or head.version + 1) if reverse else after
                return read(self._reader, sid, head, start, limit, types)
            if reverse and types is None and not 0 < after <= head.version:
                return self._newest(sid, key, head, limit)[::-1]
            name = "events_last" if reverse else "events_after"
            bounds = ((after or _LAST), 0) if reverse else (after, _LAST)
            return self._reader.events(sid, head.uid, name, bounds, limit, types=types)

    @_opened
    def read_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        with self._reader.instant():
            sid, head = self._reader.present(key)
            events = [self._reader.event_by_id(sid, head.uid, id) for id in ids]
        return tuple([event for event in events if event is not None])

    @_opened
    def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        with self._reader.instant():
            sid, head = self._reader.present(key)
            if not head.pending:
                return ()
            return self._reader.events(sid, head.uid, "pending_inputs", (0, _LAST), limit)

    @_opened
    def fold_at(self, key: Key, seq: int) -> Fold:
        return self._fold_at(key, seq)

    @_opened
    def rung(self, key: Key, seq: int) -> Fold:
        return self._fold_at(key, seq, replay=False)

    def _fold_at(self, key: Key, seq: int, *, replay: bool = True) -> Fold:
        """Return the fold at a seq; without `replay`, at the snapshot before, or where the log
        begins."""
        with self._reader.instant():
            sid, head = self._reader.present(key)
            if not 1 <= seq <= head.version:
                raise InvalidInput(f"session {key} has no event {seq}.")
            if seq <= head.floor:  # in a log that this one forks
                from limpet.store.sqlite.reading import lineage

                part = lineage.segment_with(self._reader, sid, head, seq)
                if part.sid is None:
                    raise SessionCorrupt(key, f"event {seq} was removed with the session it forks")
                sid, head = part.sid, part.head
            if replay:
                fold = self._reader.fold_at(sid, head, seq).fold
            else:
                fold = self._reader.snapshot(sid, head, seq)[0]
        if fold.damaged:
            raise SessionCorrupt(key, f"event {fold.damaged[0]} cannot be read")
        return fold

    @_opened
    def records(self, key: Key, *, after: int, limit: int) -> tuple[ChainedEvent, ...]:
        from limpet.store.sqlite.reading import lineage

        if records_after := lineage.records_after(self._reader, key, after, limit):
            return records_after
        with self._reader.instant():
            sid, head = self._reader.living(key)
            return lineage.records_page(self._reader, sid, head.uid, after, limit)

    @_opened
    def base(self, key: Key) -> Base | None:
        with self._reader.instant():
            sid, head = self._reader.living(key)
            if not head.floor:
                return None
            try:
                return self._reader.base(sid, head)
            except Damaged as error:
                raise SessionCorrupt(key, str(error)) from error

    @_opened
    def forks(self, key: Key) -> tuple[Key, ...]:
        """Of the session that lives under the key, also from before it was archived; or of those
        that were deleted under it."""
        conn, names = self._reader.conn, (key.app, key.user, key.id)
        with self._reader.instant():
            rows = conn.execute(SQL["sid_of"], names).fetchall()
            name = "tombstones_moved" if rows else "tombstones_of"
            rows = [*[row[:1] for row in conn.execute(SQL[name], names)], *rows]
            rows_ = [row for sid in rows for row in conn.execute(SQL["forks_of"], sid[:1])]
        return tuple([Key(*row) for row in rows_])

    @_opened
    def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        from limpet.store.sqlite.reading import lineage

        return lineage.events_naming(self._reader, key, name, before, after, limit)

    @_opened
    def names_since(self, key: Key, seq: int, names: Sequence[str]) -> dict[str, NameSince]:
        from limpet.store.sqlite.reading import lineage

        return lineage.names_since(self._reader, key, seq, names)

    @_opened
    def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page[Head]:
        from limpet.store.sqlite.reading import heads

        now_us = self._clock()
        if not states:
            return heads.page(self._reader.conn, query, now_us, cursor=cursor, limit=limit)
        with self._reader.instant():
            return heads.page_with_states(
                self._reader, self._cached_fold, query, now_us, cursor=cursor, limit=limit
            )

    async def keys_with(self, uid: str) -> tuple[Key, ...]:
        asked = (SQL["keys_with"], (pack_id(uid),))
        keys: list[Any] = self._read(lambda: self._reader.conn.execute(*asked).fetchall())
        return tuple([Key(*names) for names in keys])

    async def owners(
        self, app: str | None, *, after: Owner | None, limit: int
    ) -> tuple[Owner, ...]:
        return self._read(lambda: self._reader.scopes.owners(app, after, limit))

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        return await self._open_read(lambda: self._reader.scopes.of(app, user))

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        from limpet.store.sqlite.reading import feed

        reading = feed.FeedPage(self._reader, after, app, key, limit)
        while True:
            if await self._open_read(reading.step):
                return reading.result()
            await asyncio.sleep(0)  # a stretch of the log was looked at: let others run

    async def touched(self, after: str) -> Touched:
        from limpet.store.sqlite.reading import feed

        return self._read(lambda: feed.touched(self._reader, after))

    async def position(self) -> str:
        from limpet.store.sqlite.reading import feed

        return self._read(lambda: feed.position(self._reader.conn))

    async def identity(self) -> str:
        return self._read(lambda: store_identity(self._reader.secret))

    def pulse(self) -> int:
        return self._read(lambda: int(self._reader.conn.execute("PRAGMA data_version").get))

    def channel(self) -> Channel:
        from limpet.store.sqlite.live import FileChannel  # most processes follow nothing

        looking = self._database.looking or self._codec.locked
        return FileChannel(self._database.path, self._codec, looking=looking)

    # --- its keys ------------------------------------------------------------------------------

    async def ring(self) -> str | None:
        events: str | None = self._read(lambda: self._reader.conn.execute(SQL["meta"], (RING,)).get)
        return events

    async def bind_ring(self, id: str) -> str:
        def bind(writes: SQLiteWriteConnection) -> None:
            writes.conn.execute(SQL["keep_meta"], (RING, id))

        await self._run(bind)
        ring: str | None = await self.ring()
        assert ring is not None
        return ring

    async def accept_head(self, key: Key) -> bool:
        def accept(writes: SQLiteWriteConnection) -> bool:
            reader = writes.reader
            sid, head = reader.living(key)
            if reader.holds(sid, head):
                return False
            mac = self._codec.head_mac(head)
            writes.conn.execute(SQL["set_mac"], (mac, sid))
            return True

        return await self.sealer.opening(lambda: self._run(accept))

    # --- the whole file ------------------------------------------------------------------------

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        from limpet.store.sqlite.verify import SQLiteVerification

        self._check()
        self.sealer.doubt()  # as a process would see it that opens the store now
        codec = self._codec.waiting(asyncio.get_running_loop())
        try:
            return await self._apart(
                lambda conn: SQLiteVerification(conn, codec).run(key, progress)
            )
        except Unavailable as failed:
            raise failed.error from failed.error.__cause__

    async def examine(self) -> tuple[Check, ...]:
        from limpet.store.sqlite import doctor

        self._check()
        now_us = self._clock()
        path = self._database.path
        checks = await self._apart(lambda conn: doctor.examine(conn, path, now_us))
        return (*checks, doctor.event_loop(self._pace))

    async def probe(self) -> tuple[Check, ...]:
        from limpet.store.sqlite import doctor

        self._check()
        return await self._apart(doctor.probe)

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        from limpet.store.sqlite.file.backup import back_up

        self._check()
        await in_thread(lambda: back_up(self._database, target, progress))

    async def close(self) -> None:
        if not self._open:
            await self._closed.wait()
            return
        self._open = False
        try:
            close(self._reader.conn)
            if self._writer is not None:
                await self._writer.end()
            self._database.forget()
        finally:
            self._closed.set()
        self._database.refuse_written()

    # --- what is in memory ---------------------------------------------------------------------

    def _living(self, key: Key) -> tuple[int, Head]:
        """sid and head: the writer's, if it is the one that is stored, which is not decoded then.

        The link stands for the whole log, and so for all that follows from it; a lease does not.
        """
        return self._cached_head(key) or self._reader.living(key)

    def _cached_head(self, key: Key) -> tuple[int, Head] | None:
        live = self._peek(key)
        if live is None:
            return None
        head, names = live.fold.head, (key.app, key.user, key.id)
        row = self._reader.conn.execute(SQL["standing"], names).fetchone()
        if row is None or row[:3] != (live.sid, head.version, head.link):
            return None
        lease = (head.fence, head.lease_us, head.worker, head.leased_us)
        return live.sid, head if row[3:] == lease else with_lease(head, *row[3:])

    def _vouched_head(self, key: Key) -> Head:
        """The head that the session's keys vouch for. Raises SessionCorrupt if they do not."""
        cached = self._cached_head(key)  # they did when it was read
        if cached is not None:
            return cached[1]
        sid, head = self._reader.living(key)
        if not self._reader.holds(sid, head):
            raise SessionCorrupt(key, f"its head {UNHELD}")
        return head

    def _cached_fold(self, head: Head) -> Fold | None:
        """The fold at this very head, if the writer has it undamaged."""
        live = self._peek(head.key)
        if live is None or live.fold.damaged:
            return None
        fold = live.fold
        same = (fold.head.version, fold.head.uid) == (head.version, head.uid)
        return fold if same else None

    def _fold(
        self, sid: int, head: Head, tail: int
    ) -> tuple[Fold, tuple[Event, ...], tuple[int, ...]]:
        """The fold at this head: the writer's if it is just that, else read from the tables."""
        fold = self._cached_fold(head)
        if fold is not None:
            return fold, (), ()
        loaded = self._reader.load_fold(sid, head, tail=tail)
        return loaded.fold, loaded.events, loaded.fold.damaged

    def _newest(
        self, sid: int, key: Key, head: Head, limit: int, since_us: int | None = None
    ) -> tuple[Event, ...]:
        """The last events, as many as fit a page, ascending; of a time, hardly any older."""
        last = self._last(key, head, limit)
        if last is None:
            room = PageBytes()
            last = self._reader.newest(sid, head, limit, since_us, room)
            if since_us is None:
                self._keep_last(key, last, room.used)
        return last

    def _last(self, key: Key, head: Head, limit: int) -> tuple[Event, ...] | None:
        """The last events from memory, if all of them are there at this very version.

        An event only changes by another event (when it is processed), so equal versions are equal.
        """
        live = self._peek(key)
        for last in (() if live is None else tuple(live.tail), self._tails.get(key, ())):
            current = last and last[-1].seq == head.version and last[-1].link == head.link
            if current and len(last) >= min(limit, head.version - head.floor):
                return last[len(last) - min(limit, len(last)) :]
        return None

    def _with_parents(
        self, sid: int, head: Head, events: tuple[Event, ...], tail: int
    ) -> tuple[Event, ...]:
        """The last events, and before them those of the parent, as many as were asked for."""
        first = events[0].seq if events else head.version + 1
        if first != head.floor + 1:  # not all own events fitted: no gap is left
            return events
        from limpet.store.sqlite.reading import lineage

        left = tail - len(events)
        older = lineage.events_last(self._reader, sid, head, first, left, None)
        return (*reversed(older), *events)

    def _keep_last(self, key: Key, last: tuple[Event, ...], size: int) -> None:
        """Remember the last events that were read: they are asked for again and again.

        Not those with an event that could not be read: it may be readable the next time.
        """
        if any([event.damage for event in last]):
            return
        if 0 < len(last) <= TAIL_MAX and size <= TAIL_MAX * TAIL_BYTES_MAX:
            if len(self._tails) >= TAILS_MAX:
                self._tails.clear()
            self._tails[key] = last

    # --- private -------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._open:
            raise StoreClosed
        if self._forks != PROCESS.forks:
            raise StoreForked

    def _peek(self, key: Key) -> CachedSession | None:
        """The session as the writer has cached it."""
        return None if self._writer is None else self._writer.cache.peek(key)

    async def _apart(self, work: Callable[[apsw.Connection], T]) -> T:
        """Long reading: in a thread, on a connection of its own."""

        def run() -> T:
            conn = self._database.connect()
            try:
                return work(conn)
            except apsw.Error as error:
                raise translate(error, self._database.where, "read") from error
            except OSError as error:
                raise of_system(error, self._database.where, "read") from error
            finally:
                close(conn)

        return await in_thread(run)

    async def _run(self, run: Callable[[SQLiteWriteConnection], T], asked: Asked = "change") -> T:
        """Run a function on the writer's thread, between two batches."""
        result: T = await self._write().jobs.submit(WriterCall(run, asked))
        return result

    def _write(self) -> SQLiteWriter:
        if not self._open or self._forks != PROCESS.forks:
            self._check()
        if self._writer is None or self._writer.jobs.failure is not None:
            if self._codec.locked:
                refuse_locked(self._database.where)
            if self._database.looking:
                why = "it was opened read-only; reopen it to write"
                raise StoreReadOnly(self._database.where, why)
            if self._writer is not None:
                SQLITE.info("writer restarted: store=%s", self._database.path)
            writes = SQLiteWriteConnection(self._database, self._codec)
            self._writer = SQLiteWriter(writes, self._clock, self._pace)
            self._writer.start()
        return self._writer

    async def _open_read(self, query: Callable[[], T]) -> T:
        """A read of bodies: made again once the keys are there, if it met sealed ones."""
        while True:
            try:
                return self._read(query)
            except Unready as needed:
                await self.sealer.ready(needed.owners)

    def _read(self, query: Callable[[], T]) -> T:
        self._check()
        try:
            return query()
        except apsw.Error as error:
            raise translate(error, self._database.where, "read") from error
        except (LimpetError, MemoryError, Unready):
            raise
        except OSError as error:
            raise of_system(error, self._database.where, "read") from error
        except Exception as error:  # what is stored cannot be what was written
            raise StoreCorrupt(self._database.where, repr(error)) from error
