"""The writer: one thread that turns a queue of commits into few transactions.

Everything that waits is planned and written together and made durable by one fsync; then each
caller is answered. Snapshots, purges and checkpoints happen when nobody waits, or ride along when
they must. A caller that is cancelled takes its commit back if the writer has not begun it, and
waits for the end if it has: a commit is never in doubt.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

import apsw

from limpet.errors import (
    Asked,
    LimpetError,
    SessionError,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
)
from limpet.model.chain import SALT_BYTES
from limpet.model.events import Commit
from limpet.model.ids import Entropy
from limpet.model.keys import Key
from limpet.model.limits import SNAPSHOT_FLOOR_BYTES
from limpet.store import bodies, logs
from limpet.store.cache import Cache, Live
from limpet.store.clock import Clock
from limpet.store.codec import Codec, Damaged
from limpet.store.logs import SQLITE
from limpet.store.protocol import Place
from limpet.store.sqlite.batch import Batch
from limpet.store.sqlite.connect import Database, close, translate
from limpet.store.sqlite.reader import Reader
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.wal import RESTART_SECONDS_MAX, Wal
from limpet.store.threads import in_thread

BATCH_MAX: Final = 512
BATCH_BYTES_MAX: Final = 8 * 2**20
WAITING_MAX: Final = 16_384
SNAPSHOTS_PER_BATCH: Final = 4
CLOSE_SNAPSHOT_BYTES_MIN: Final = 8 * 2**10
PURGE_ROWS: Final = 2_000
GATHER_SECONDS: Final = 0.0001


class Job:
    """Something the writer is asked to do, and whom to tell."""

    __slots__ = ("answered", "asked", "call", "commits", "future", "loop", "ticket")

    def __init__(
        self,
        commits: Sequence[Commit],
        call: Callable[[Writer], Any] | None,
        asked: Asked = "write",
    ) -> None:
        self.commits, self.call, self.asked = commits, call, asked
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.ticket = [None]  # whoever pops it, writer or cancelled caller, decides
        self.answered = False

    def claim(self) -> bool:
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True


Answer: TypeAlias = tuple[Job, Any, BaseException | None]


class Writer(threading.Thread):
    """The only one who writes through this store."""

    def __init__(self, database: Database, codec: Codec, clock: Clock) -> None:
        super().__init__(name="limpet-writer", daemon=True)
        self.cache = Cache()
        self.conn: apsw.Connection
        self.reader: Reader
        self._database, self._codec, self._clock = database, codec, clock
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._taken: list[Job] = []  # out of the queue, and perhaps not answered yet
        self._entropy = Entropy(os.urandom)
        self.wal: Wal
        self._due: dict[Key, Live] = {}
        self._purging = True  # there may be purges that an earlier process left unfinished
        self._crowd = 1  # how many the last batch served
        self._waiting = 0
        self._room = asyncio.Event()
        self._ending = False
        self._failed: LimpetError | None = None

    # --- for callers, on their event loop ------------------------------------------------------

    async def submit(self, job: Job) -> Any:
        """The answer to a job. Cancelled, it is taken back or waited for, never left in doubt."""
        while self._waiting >= WAITING_MAX and not self._ending:
            self._room.clear()  # back-pressure: memory for the queue is bounded
            await self._room.wait()
        if self._ending:
            raise StoreClosed
        self._waiting += 1
        self._jobs.put(job)
        try:
            if self._failed is not None and job.claim():  # put after the last look at the queue
                raise self._failed
            return await job.future
        except asyncio.CancelledError:
            if not job.claim():
                await self._outcome(job)
            raise  # if claimed, the writer had not begun: it never happened
        finally:
            self._waiting -= 1
            if self._waiting < WAITING_MAX:
                self._room.set()

    async def _outcome(self, job: Job) -> None:
        """Wait until the writer is done with a job whose caller was cancelled, however often."""
        while not job.answered:
            job.future = job.loop.create_future()
            try:
                await job.future
            except asyncio.CancelledError:
                continue
            except Exception:
                return  # the cancellation is what is told

    @property
    def failed(self) -> bool:
        """Whether the thread is gone and another must take its place."""
        return self._failed is not None

    async def end(self) -> None:
        """Let the writer finish everything and wait until its thread is gone."""
        self._ending = True
        self._room.set()  # those who wait for room are told, not left behind the end
        self._jobs.put(None)
        await in_thread(self.join)

    # --- the thread ----------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._begin()
            self._loop()
        except BaseException as error:
            self._failed = self._told(error, "read")  # those who wait were not begun
            self._refuse_all()
            if hasattr(self, "conn"):
                close(self.conn)  # its locks go with it
            self._log(SQLITE.error, "writer stopped: store=%s error=%s", error)

    def _begin(self) -> None:
        self.conn = self._database.connect()
        # What is deleted is overwritten: an erased session must not linger in free pages.
        self.conn.pragma("secure_delete", True)
        self.reader = Reader(self.conn, self._codec)
        patience, brief = self._database.patience(), self._database.patience(RESTART_SECONDS_MAX)
        self.wal = Wal(self.conn, patience, brief, grow=self._database.plain)

    def _loop(self) -> None:
        while True:
            self._rest()
            job = self._jobs.get()
            if job is None:
                break
            while job is not None:
                job = self._work(job)
        self._finish()

    def _work(self, first: Job) -> Job | None:
        """Do `first` and what waits behind it; a job that must run alone is handed back."""
        self._taken = [first]
        if first.call is not None:
            self._run_call(first)
            return None
        self._gather()
        batch, size, alone = [first], _size(first), None
        while len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                self._jobs.put(None)  # the end comes after this batch
                break
            self._taken.append(job)
            if job.call is not None:
                alone = job
                break
            batch.append(job)
            size += _size(job)
        self._crowd = len(batch)
        self._run_batch([job for job in batch if job.claim()])
        return alone

    def _gather(self) -> None:
        """Let a crowd come together: where many wrote a moment ago many will again, and one fsync
        serves them all. Ends when as many wait as last time, or when no one joined for a moment;
        a lone writer is never made to wait."""
        waiting = -1
        while waiting < self._jobs.qsize() < self._crowd - 1:
            waiting = self._jobs.qsize()
            time.sleep(GATHER_SECONDS)

    def _run_batch(self, jobs: list[Job]) -> None:
        began = time.monotonic()
        try:
            batch, answers = self._commit(jobs)
        except apsw.Error as error:  # the database refused: nobody's commit in particular
            self._tell_failed(error, len(jobs))
            self._cache_lost()
            _answer([(job, None, self._told(error)) for job in jobs])
        except Exception as error:  # one of them cannot be written (its seal fails, say)
            self._cache_lost()
            if len(jobs) > 1:  # each alone, so that it fails nobody else
                text = "batch split: store=%s error=%s commits=%d"
                self._log(SQLITE.info, text, error, len(jobs))
                for job in jobs:
                    self._run_batch([job])
                return
            self._tell_failed(error, len(jobs))
            _answer([(job, None, self._told(error)) for job in jobs])
        else:
            self._settle(batch)  # first: who is answered reads next, and finds it remembered
            _answer(answers)
            logs.slow_commit(SQLITE, self._database.path, time.monotonic() - began, jobs)
        self._check_connection()

    def _commit(self, jobs: list[Job]) -> tuple[Batch, list[Answer]]:
        """One transaction for all of them. If it raises, nothing was written."""
        answers: list[Answer] = []
        with self.transaction():
            batch = Batch(self.reader, self.cache, self._clock(), self._salt)
            for job in jobs:
                try:
                    answers.append((job, batch.plan.add(job.commits), None))
                except LimpetError as error:
                    answers.append((job, None, error))
            batch.write()
            self._write_snapshots(SNAPSHOTS_PER_BATCH)
        return batch, answers

    def _settle(self, batch: Batch) -> None:
        """What was committed stays committed: if remembering it fails, it is read again."""
        try:
            self._note_due(batch.settle())
        except Exception:
            self._cache_lost()

    def _salt(self) -> bytes:
        return self._entropy.take(SALT_BYTES)

    def _check_connection(self) -> None:
        """A transaction that could not be ended would keep everybody else out: begin anew."""
        if self.conn.in_transaction:
            close(self.conn)
            self._begin()
            SQLITE.warning("connection replaced: store=%s", self._database.path)

    def _run_call(self, job: Job) -> None:
        if not job.claim():
            return
        assert job.call is not None
        failure: BaseException | None
        try:
            result, failure = job.call(self), None
        except SessionError as error:  # refused, and rolled back: what is remembered holds
            result, failure = None, error
        except Exception as error:
            self._tell_failed(error, 0)
            self._cache_lost()
            result, failure = None, self._told(error, job.asked)
        _answer([(job, result, failure)])
        self._check_connection()

    def transaction(self) -> _Transaction:
        """The write lock, from BEGIN IMMEDIATE to a durable COMMIT or a ROLLBACK."""
        return _Transaction(self.conn, self.cache)

    # --- when there is time --------------------------------------------------------------------

    def _rest(self) -> None:
        """Housekeeping between batches. What fails here failed for nobody and is tried again."""
        try:
            self.wal.tend(idle=self._jobs.empty())
            while self._jobs.empty() and self._chore():
                pass
        except apsw.Error as error:
            self._tell_unkept(error)
            self._check_connection()
        except Exception as error:
            self._tell_unkept(error)
            self._due.clear()  # a fold that cannot be encoded: its session goes without a snapshot
            self._check_connection()

    def _chore(self) -> bool:
        """One piece of work that nobody waits for; False if there is none."""
        if self._due:
            with self.transaction():
                self._write_snapshots(SNAPSHOTS_PER_BATCH)
            return True
        if self._purging:
            self._purging = self.purge_some()
            return True
        return False

    def purge_some(self) -> bool:
        """Remove some rows of deleted logs. False if none are left."""
        with self.transaction():
            row = self.conn.execute(SQL["next_purge"]).fetchone()
            if row is None:
                return False
            self.conn.execute(SQL["purge_some"], (row[0], PURGE_ROWS))
            if self.conn.changes() < PURGE_ROWS:
                self.conn.execute(SQL["drop_snapshot"], row)
                self.conn.execute(SQL["drop_purge"], row)
            return True

    def note_purge(self) -> None:
        self._purging = True

    def _note_due(self, touched: Iterable[tuple[Key, Live]]) -> None:
        for key, live in touched:
            if live.delta_bytes >= max(SNAPSHOT_FLOOR_BYTES, live.snapshot_bytes):
                self._due[key] = live

    def _write_snapshots(self, most: int) -> None:
        """Inside a transaction, from the cache's folds, as far as they are still the newest."""
        for key in list(self._due)[:most]:
            live = self._due.pop(key)
            current = self.cache.peek(key) is live and live.era == self.cache.era
            if current and not live.damaged:  # a snapshot must not launder a damaged log
                with suppress(RecursionError, ValueError, TypeError):  # it only costs time
                    self._write_snapshot(live)

    def _write_snapshot(self, live: Live) -> None:
        fold = live.fold
        seq = fold.head.version
        raw = bodies.snapshot_body(fold.fields, fold.versions)
        place = Place("snapshot", fold.head.uid, str(seq))
        packed = self._codec.pack(raw, place, bound=True)
        self.conn.execute(SQL["put_snapshot"], (live.sid, seq, *packed))
        live.snapshot_bytes, live.delta_bytes = len(raw), 0

    # --- ends ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """A clean end: purges, and snapshots, so that the next process starts fast; then close."""
        for key, live in self.cache.sessions():
            if live.delta_bytes >= CLOSE_SNAPSHOT_BYTES_MIN:
                self._due[key] = live
        try:
            while self._purging:
                self._purging = self.purge_some()
            while self._due:
                with self.transaction():
                    self._write_snapshots(64)
        except Exception:
            self._due.clear()  # what was not done costs the next process time, nothing else
        close(self.conn)

    def _tell_failed(self, error: BaseException, commits: int) -> None:
        self._log(SQLITE.warning, "write failed: store=%s error=%s commits=%d", error, commits)

    def _tell_unkept(self, error: BaseException) -> None:
        self._log(SQLITE.warning, "housekeeping failed: store=%s error=%s", error)

    def _log(self, log: Callable[..., None], text: str, error: BaseException, *more: int) -> None:
        log(text, self._database.path, logs.named(error), *more)

    def _cache_lost(self) -> None:
        self.cache.clear()
        self._due.clear()

    def _told(self, error: BaseException, asked: Asked = "write") -> LimpetError:
        """An error for one caller: never the same object for two."""
        if isinstance(error, LimpetError):
            return error
        told: LimpetError = StoreFailed(self._database.where, repr(error), asked)
        if isinstance(error, apsw.Error):
            told = translate(error, self._database.where, asked)
        elif isinstance(error, (Damaged, UnicodeDecodeError)):
            told = StoreCorrupt(self._database.where, str(error))
        told.__cause__ = error
        return told

    def _refuse_all(self) -> None:
        """The writer cannot go on: nobody may wait for it for ever. Who was answered is not told
        again."""
        _answer([(job, None, self._failed) for job in self._taken])
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None and job.claim():
                _answer([(job, None, self._failed)])


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT, and the question whether another process was here before."""

    __slots__ = ("_cache", "_conn")

    def __init__(self, conn: apsw.Connection, cache: Cache) -> None:
        self._conn, self._cache = conn, cache

    def __enter__(self) -> None:
        # IMMEDIATE: the write lock comes first, so nothing read inside can be overtaken.
        self._conn.execute("BEGIN IMMEDIATE")
        try:
            self._cache.tell(self._conn.execute("PRAGMA data_version").get)
        except BaseException:
            self._roll_back()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._conn.execute("COMMIT")  # durable here: the WAL is synced
                return
            except BaseException:
                self._roll_back()
                raise
        self._roll_back()

    def _roll_back(self) -> None:
        if self._conn.in_transaction:
            self._conn.execute("ROLLBACK")


def _size(job: Job) -> int:
    return sum([len(draft.raw) for commit in job.commits for draft in commit.drafts])


def _answer(answers: list[Answer]) -> None:
    """Tell the callers, one crossing of threads for all that share a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, told in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(_deliver, told)


def _deliver(answers: list[Answer]) -> None:
    for job, result, error in answers:
        job.answered = True  # whether or not anybody waits: a caller may have been cancelled
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)
