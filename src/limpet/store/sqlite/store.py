"""The SQLite store: the embedded default.

Reads run inline on the caller's event loop, each bounded and within one instant of the database;
writes go to the writer's thread, which is started by the first of them. Several processes may
open the same file.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from limpet.errors import (
    Asked,
    LimpetError,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreForked,
    StoreReadOnly,
)
from limpet.model.events import Commit, Event
from limpet.model.fold import Fold
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.store import cursor as cursors
from limpet.store.cache import TAIL_BYTES_MAX, TAIL_MAX
from limpet.store.clock import Clock
from limpet.store.codec import Codec
from limpet.store.logs import SQLITE
from limpet.store.pages import Room
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
from limpet.store.scopes import Scopes
from limpet.store.select import newest_since
from limpet.store.sqlite import doctor, erasure, heads
from limpet.store.sqlite import states as states_of
from limpet.store.sqlite.backup import back_up
from limpet.store.sqlite.connect import BUSY_SECONDS_MAX, Database, close, translate
from limpet.store.sqlite.filesystems import refuse_network
from limpet.store.sqlite.leases import Leases
from limpet.store.sqlite.reader import Reader
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.verify import Verification
from limpet.store.sqlite.writer import Job, Writer
from limpet.store.threads import in_thread

TAILS_MAX: Final = 256
T = TypeVar("T")


class SQLiteStore:
    """A database file. Open with `await SQLiteStore.open(path)`."""

    def __init__(
        self, database: Database, conn: apsw.Connection, codec: Codec, clock: Clock
    ) -> None:
        self._database, self._codec, self._clock = database, codec, clock
        self._reader = Reader(conn, codec)
        self._writer: Writer | None = None
        self._tails: dict[Key, tuple[Event, ...]] = {}
        self._pid = os.getpid()
        self._open = True
        self._closed = asyncio.Event()

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
    ) -> SQLiteStore:
        """Open the file, creating it if it is not there. Raises StoreError."""
        refuse_network(path)
        database = Database(path, sync=sync, vfs=vfs, busy_seconds=busy_seconds)
        try:
            conn = database.prepare(patient=False)
        except StoreBusy:  # another process is at it: wait where nobody else has to
            SQLITE.info("open waits: store=%s", database.path)
            conn = await in_thread(database.prepare)
        return cls(database, conn, Codec(seal), clock or Clock())

    @classmethod
    async def look(cls, path: Path, *, sync: str = "full") -> SQLiteStore:
        """Open the file that is there to read it, and nothing else. Raises StoreError."""
        refuse_network(path)
        database = Database(path, sync=sync, vfs=None, looking=True)
        conn = await in_thread(database.recognise)
        database.remember()
        return cls(database, conn, Codec(None), Clock())

    # --- writing -------------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> Coroutine[Any, Any, tuple[Committed, ...]]:
        return self._write().submit(Job(commits, None))

    async def delete(self, key: Key) -> bool:
        job = Job((), partial(self._remove, erasure.delete, key), "change")
        deleted: bool = await self._write().submit(job)
        return deleted

    async def erase(self, key: Key) -> Erasure | None:
        job = Job((), partial(self._remove, erasure.erase, key), "change")
        certificate: Erasure | None = await self._write().submit(job)
        # Also when it was erased before: that process may have died between there and here.
        if certificate is not None and await self._write().submit(
            Job((), erasure.is_unfinished, "change")
        ):
            await self._overwrite()
        return certificate

    async def _overwrite(self) -> None:
        """Let nothing of what was erased be left in the files. Others write between the steps."""
        while await self._write().submit(Job((), Writer.purge_some, "change")):
            pass
        await self._write().submit(Job((), erasure.rewrite, "change"))
        deadline = time.monotonic() + self._database.busy_seconds
        while not await self._write().submit(Job((), erasure.finish, "change")):
            if time.monotonic() > deadline:
                raise StoreBusy(f"{self._database.where} (erased, but its log is still read)")
            await asyncio.sleep(0.01)

    def _remove(self, how: Callable[[Writer, Key, int], Any], key: Key, writer: Writer) -> Any:
        return how(writer, key, self._clock())

    # --- work ----------------------------------------------------------------------------------

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        return await self._lease(
            lambda leases: leases.claim(worker, limit, lease_seconds, app), "lease"
        )

    async def renew(self, lease: Lease, lease_seconds: float) -> Lease:
        return await self._lease(lambda leases: leases.renew(lease, lease_seconds), "change")

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        return await self._lease(lambda leases: leases.release(lease, retry_seconds), "change")

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        return await self._lease(lambda leases: leases.acquire(key, worker, lease_seconds), "lease")

    async def _lease(self, ask: Callable[[Leases], T], asked: Asked) -> T:
        job = Job((), lambda writer: ask(Leases(writer, self._clock)), asked)
        answer: T = await self._write().submit(job)
        return answer

    # --- reading -------------------------------------------------------------------------------

    async def load(
        self, key: Key, *, tail: int, since_us: int | None = None, scopes: bool = True
    ) -> Loaded:
        return self._read(lambda: self._load(key, tail, since_us, scopes=scopes))

    async def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        return self._read(lambda: self._events(key, after, limit, types, reverse=reverse))

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        return self._read(lambda: self._pending_inputs(key, limit))

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page:
        conn = self._reader.conn
        if states:
            return self._read(lambda: self._states(query, cursor, limit))
        return self._read(lambda: heads.page(conn, query, cursor=cursor, limit=limit))

    def _states(self, query: Query, cursor: str | None, limit: int) -> Page:
        with self._reader.instant():
            return states_of.page(self._reader, self._known, query, cursor=cursor, limit=limit)

    def _known(self, head: Head) -> Fold | None:
        """The fold at this very head, if the writer remembers it whole."""
        live = None if self._writer is None else self._writer.cache.peek(head.key)
        if live is None or live.damaged:
            return None
        fold = live.fold
        same = (fold.head.version, fold.head.uid) == (head.version, head.uid)
        return fold if same else None

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        position = 0 if after is None else cursors.read_position(after, 1)[0]
        found: list[FeedEntry] = []
        room = Room()
        while True:
            left = limit - len(found)
            more, end = self._read(partial(self._changes, position, app, key, left, room))
            found += more
            if len(found) == limit or room.full or end == position:
                return tuple(found), cursors.write_position(end)
            position = end
            await asyncio.sleep(0)  # a stretch of the log was looked at: let others run

    def _changes(
        self, after: int, app: str | None, key: Key | None, limit: int, room: Room
    ) -> tuple[tuple[FeedEntry, ...], int]:
        with self._reader.instant():
            return self._reader.changes(after, app, key, limit, room)

    async def position(self) -> str:
        return self._read(lambda: cursors.write_position(self._reader.feed_end()))

    def pulse(self) -> int:
        return self._read(lambda: int(self._reader.conn.execute("PRAGMA data_version").get))

    # --- the whole file ------------------------------------------------------------------------

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        self._check()

        return await self._apart(lambda conn: Verification(conn, self._codec).run(key, progress))

    async def examine(self) -> tuple[Check, ...]:
        self._check()
        now_us = self._clock()
        return await self._apart(lambda conn: doctor.examine(conn, self._database.path, now_us))

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
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

    # --- private -------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._open:
            raise StoreClosed
        if self._pid != os.getpid():
            raise StoreForked

    async def _apart(self, work: Callable[[apsw.Connection], T]) -> T:
        """Long reading: in a thread, on a connection of its own."""

        def run() -> T:
            conn = self._database.connect()
            try:
                return work(conn)
            except apsw.Error as error:
                raise translate(error, self._database.where, "read") from error
            finally:
                close(conn)

        return await in_thread(run)

    def _write(self) -> Writer:
        self._check()
        if self._database.looking:
            raise StoreReadOnly(self._database.where, "it was opened to be looked at. Open it anew")
        if self._writer is None or self._writer.failed:
            if self._writer is not None:
                SQLITE.info("writer restarted: store=%s", self._database.path)
            self._writer = Writer(self._database, self._codec, self._clock)
            self._writer.start()
        return self._writer

    def _read(self, query: Callable[[], T]) -> T:
        self._check()
        try:
            return query()
        except apsw.Error as error:
            raise translate(error, self._database.where, "read") from error
        except (LimpetError, MemoryError):
            raise
        except Exception as error:  # what is stored cannot be what was written
            raise StoreCorrupt(self._database.where, repr(error)) from error

    def _load(self, key: Key, tail: int, since_us: int | None, *, scopes: bool) -> Loaded:
        reader = self._reader
        with reader.instant():
            sid, head = reader.living(key)
            fold, events, damaged = self._fold(sid, head, tail)
            if len(events) < min(tail, head.version):
                events = self._newest(sid, key, head, tail, since_us)
            names = reader.scopes(key.app, key.user) if scopes else Scopes()
        events = newest_since(events[len(events) - min(tail, len(events)) :], since_us)
        damaged = tuple(sorted({*damaged, *(event.seq for event in events if event.damage)}))
        return Loaded(head, fold.fields, fold.versions, names, events, damaged)

    def _fold(
        self, sid: int, head: Head, tail: int
    ) -> tuple[Fold, tuple[Event, ...], tuple[int, ...]]:
        """The fold at this head: the writer's if it is just that, else read from the tables."""
        fold = self._known(head)
        if fold is not None:
            return fold, (), ()
        found = self._reader.found(sid, head, tail=tail)
        return found.fold, found.events, found.fold.damaged

    def _newest(
        self, sid: int, key: Key, head: Head, limit: int, since_us: int | None = None
    ) -> tuple[Event, ...]:
        """The last events, as many as fit a page, ascending; of a time, hardly any older."""
        last = self._last(key, head, limit)
        if last is None:
            room = Room()
            last = self._reader.newest(sid, head, limit, since_us, room)
            if since_us is None:
                self._keep_last(key, last, room.used)
        return last

    def _last(self, key: Key, head: Head, limit: int) -> tuple[Event, ...] | None:
        """The last events from the writer's memory, if it has them all at this very version.

        Whatever changes an event (being processed) is an event too, so equal versions are equal.
        """
        live = None if self._writer is None else self._writer.cache.peek(key)
        for last in (() if live is None else live.tail, self._tails.get(key, ())):
            current = last and last[-1].seq == head.version and last[-1].link == head.link
            if current and len(last) >= min(limit, head.version):
                return last[len(last) - min(limit, len(last)) :]
        return None

    def _keep_last(self, key: Key, last: tuple[Event, ...], size: int) -> None:
        """Remember the last events that were read: they are asked for again and again.

        But for what could not be read: it may be readable the next time.
        """
        if any([event.damage for event in last]):
            return
        if 0 < len(last) <= TAIL_MAX and size <= TAIL_MAX * TAIL_BYTES_MAX:
            if len(self._tails) >= TAILS_MAX:
                self._tails.clear()
            self._tails[key] = last

    def _events(
        self, key: Key, after: int, limit: int, types: tuple[str, ...] | None, *, reverse: bool
    ) -> tuple[Event, ...]:
        sql = SQL["events_last" if reverse else "events_after"]
        start = (after or 2**62) if reverse else after
        with self._reader.instant():
            sid, head = self._reader.living(key)
            if reverse and types is None and not 0 < after <= head.version:
                return self._newest(sid, key, head, limit)[::-1]
            if types is None:
                return self._reader.events(sid, head.uid, sql, start, limit)
            chosen, args = _by_type(types)
            sql = sql.replace(" ORDER BY", f" AND ({chosen}) ORDER BY")
            return self._reader.events(sid, head.uid, sql, start, *args, limit)

    def _pending_inputs(self, key: Key, limit: int) -> tuple[Event, ...]:
        """The head knows how many there are, so no row before the oldest is looked at."""
        with self._reader.instant():
            sid, head = self._reader.living(key)
            if not head.pending:
                return ()
            since = self._reader.conn.execute(SQL["pending_since"], (sid, head.pending)).get
            if since is None:  # the head counts inputs that are lost
                return ()
            sql = SQL["pending_inputs"]
            return self._reader.events(sid, head.uid, sql, since, limit)


def _by_type(types: tuple[str, ...]) -> tuple[str, list[str]]:
    """A condition on type. A family is the range from its dot to the character after the dot."""
    if not types:
        return "FALSE", []
    parts, args = [], []
    for each in types:
        if each.endswith(".*"):
            parts.append("type >= ? AND type < ?")
            args += [each[:-1], each[:-2] + "/"]
        else:
            parts.append("type = ?")
            args.append(each)
    return " OR ".join(f"({part})" for part in parts), args
