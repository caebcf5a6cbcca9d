"""The writer: one thread that turns a queue of jobs into few transactions.

A caller on an event loop submits a job and awaits its answer. All commits that wait are planned and
written together and made durable by one fsync; then each caller is answered. Snapshots, purges and
checkpoints run when nobody waits, or ride along when they must.

A few small commits are made on the event loop that asked for them, while the disk is quick (see
`Pace`) and nothing is in the way. Whoever uses the connection, thread or loop, holds
`SQLiteWriter._hold`; a loop never waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import apsw

from limpet.errors import Asked, LimpetError, SessionError, StoreClosed
from limpet.model import Key
from limpet.model.limits import SNAPSHOT_FLOOR_BYTES, SNAPSHOT_SHARE
from limpet.store import logs
from limpet.store.cache import CachedSession
from limpet.store.coding import bodies
from limpet.store.coding.seal import Awaited, Unready
from limpet.store.jobs import (
    SNAPSHOTS_PER_BATCH,
    JobAnswer,
    JobQueue,
    Pace,
    WriteJob,
    WriterCall,
    answer,
    answer_here,
    nothing,
)
from limpet.store.logs import SQLITE
from limpet.store.sqlite import blobs, erasure
from limpet.store.sqlite.batch import SQLiteBatch
from limpet.store.sqlite.failures import write_failure
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import SQLiteWriteConnection
from limpet.store.system import PROCESS, in_thread, join

CLOSE_SNAPSHOTS_PER_TRANSACTION: Final = 64
CLOSE_SNAPSHOT_BYTES_MIN: Final = 8 * 2**10


class SQLiteWriter(threading.Thread):
    """The only one who writes through this store."""

    def __init__(self, writes: SQLiteWriteConnection, clock: Callable[[], int], pace: Pace) -> None:
        super().__init__(name="limpet-writer", daemon=True)
        self._writes, self._clock, self._pace = writes, clock, pace
        self.cache = writes.cache  # readers borrow folds from it
        self._snapshots = SQLiteSnapshots(self._writes)
        self.jobs = JobQueue(self._do_here, pace)  # where callers ask for what is to be written
        # Reentrant only so that who does not hold it can find out by letting go: see `_do_here`.
        self._hold = threading.RLock()
        PROCESS.fork_waits_for(self._hold)
        self._ready = False  # the connection is open
        self._under_way: tuple[SQLiteBatch, list[JobAnswer]] | None = None  # planned, on a loop
        # The cache may be older than the file: two interrupts in a row on a loop.
        self._unsettled = False
        self._taken: list[WriteJob] = []  # out of the queue, and perhaps not answered yet

    # --- for callers, on their event loop ------------------------------------------------------

    async def end(self) -> None:
        """Let the writer finish everything and wait until its thread is gone."""
        self.jobs.end()
        await in_thread(lambda: join(self))

    def _do_here(self, jobs: list[WriteJob]) -> None:
        """Commit on this loop, if that is quick. What has no answer then is for the thread.

        An interrupt may come out of any call. So what was acquired is let go by a call that is
        refused if it was not, and nothing is remembered in between.
        """
        if not self._pace.admits(jobs):
            return
        jobs = [job for job in jobs if job.ticket and not job.future.done()]
        if not jobs or any([job.run for job in jobs]):
            return
        try:
            # Inside a transaction it is asked for by what runs there, a seal say, with eager tasks.
            held = self._hold.acquire(blocking=False) and self._ready
            if held and not self._writes.conn.in_transaction:
                self._commit_here(jobs)
        finally:
            try:  # noqa: SIM105  # no call before it, from which an interrupt could come
                self._hold.release()
            except RuntimeError:  # the thread, or another loop, has it
                pass

    def _commit_here(self, jobs: list[WriteJob]) -> None:
        self._under_way = None
        try:
            began = self._pace.timer()
            batch, answers = self._commit(jobs, here=True)
            seconds = self._pace.timer() - began
            self._settle(batch)
            answer_here(answers)
            self._pace.held(jobs, seconds)
            logs.slow_commit(SQLITE, self._writes.path, seconds, jobs)
            if self._writes.wal.neglected or self._snapshots.due:
                self.jobs.wake(WriterCall(nothing))  # the thread sees to it, before the next commit
        except BaseException as error:
            self._fail_here(jobs, error)
            if not isinstance(error, Exception):
                raise

    def _fail_here(self, jobs: list[WriteJob], error: BaseException) -> None:
        """Leave no transaction open, and no doubt. What was recorded, though the error came out of
        COMMIT or later, is answered; what the thread would refuse is refused; the thread gets the
        rest. Whatever is next reads again: what is remembered is unsettled."""
        under_way = self._under_way
        if under_way is None and isinstance(error, (apsw.BusyError, apsw.LockedError)):
            self._unsettled = False
            return  # another process writes, and nothing was begun: the thread waits for it
        try:
            recorded = under_way is not None and under_way[0].is_recorded()
        except apsw.Error as unknown:  # callers may send it again
            recorded, error = False, unknown
        if recorded and under_way is not None:
            answer_here(under_way[1])
        elif isinstance(error, Unready) and len(jobs) == 1:
            self._unsettled = False
            answer_here([(jobs[0], None, error)])
        elif isinstance(error, apsw.Error) or (isinstance(error, Exception) and len(jobs) == 1):
            self._log_failed(error, len(jobs))
            answer_here([(job, None, self._failure(error)) for job in jobs])
        if self._writes.conn.in_transaction:
            self.jobs.wake(WriterCall(nothing))  # the thread connects again

    # --- the thread ----------------------------------------------------------------------------

    def run(self) -> None:
        try:
            with self._hold:
                self._writes.open()
                self._ready = True
            self._loop()
            self.jobs.refuse(StoreClosed(), ())  # who came too late, from another loop
        except BaseException as error:
            # Those who wait were not begun, so nothing was written for them.
            self.jobs.refuse(self._failure(error, "read"), self._taken)
            with self._hold:
                self._ready = False
                self._writes.close()
            self._log(SQLITE.error, "writer stopped: store=%s error=%s", error)

    def _loop(self) -> None:
        with self._hold:
            self._rest()
        while (job := self.jobs.get()) is not None:
            with self._hold:
                count, alone = self._work(job)
                if alone is not None:
                    count += self._work(alone)[0]
                self._rest()
                self.jobs.finished(count)
        with self._hold:
            self._ready = False
            self._finish()

    def _work(self, first: WriteJob) -> tuple[int, WriteJob | None]:
        """Do `first` and what waits behind it: how many; a job that must run alone is handed
        back."""
        self._taken = [first]
        if first.run is not None:
            self._run_alone(first)
            return 1, None
        batch, alone = self.jobs.batch(first, self._taken)
        self._check_connection()  # an interrupt on a loop may have left a transaction open
        self._run_batch([job for job in batch if job.claim()])
        return len(batch), alone

    def _run_batch(self, jobs: list[WriteJob]) -> None:
        began = self._pace.timer()
        try:
            batch, answers = self._commit(jobs)
        except apsw.Error as error:  # the database refused: nobody's commit in particular
            self._refuse(jobs, error)
        except Unready as error:  # and nothing is wrong with what is remembered
            if len(jobs) == 1:
                self._unsettled = False
                answer([(jobs[0], None, error)])
            else:
                self._split(jobs, error)
                return
        except Exception as error:  # one of them cannot be written (its seal fails, say)
            if len(jobs) == 1:
                self._refuse(jobs, error)
            else:
                self._split(jobs, error)
                return
        else:
            self._settle(batch)  # first: who is answered reads next, and finds it remembered
            answer(answers)
            seconds = self._pace.timer() - began
            self._pace.note(jobs, seconds)
            logs.slow_commit(SQLITE, self._writes.path, seconds, jobs)
        self._check_connection()

    def _refuse(self, jobs: list[WriteJob], error: BaseException) -> None:
        self._log_failed(error, len(jobs))
        self._forget()
        answer([(job, None, self._failure(error)) for job in jobs])

    def _split(self, jobs: list[WriteJob], error: BaseException) -> None:
        """Each job alone, so that the one that cannot be written fails nobody else."""
        self._forget()
        text = "batch split: store=%s error=%s commits=%d"
        self._log(SQLITE.info, text, error, len(jobs))
        for job in jobs:
            self._run_batch([job])

    def _commit(
        self, jobs: list[WriteJob], *, here: bool = False
    ) -> tuple[SQLiteBatch, list[JobAnswer]]:
        """One transaction for all of them. If it raises an Exception, nothing was written."""
        answers: list[JobAnswer] = []
        if self._unsettled:
            self._forget()
        self._unsettled = True
        with self._writes.transaction():
            batch = SQLiteBatch(self._writes, self._clock())
            batch.look_up([commit for job in jobs for commit in job.commits])
            for job in jobs:
                try:
                    answers.append((job, batch.plan.add(job.commits), None))
                except (LimpetError, Unready) as error:
                    answers.append((job, None, error))
                except (apsw.Error, MemoryError):  # nobody's commit in particular
                    raise
                except Exception as error:  # it cannot be planned: it fails alone
                    self._log_failed(error, 1)
                    answers.append((job, None, self._failure(error)))
            batch.write()
            if here:
                self._under_way = (batch, answers)
            else:
                self._snapshots.write()
        return batch, answers

    def _settle(self, batch: SQLiteBatch) -> None:
        """Update the cache. What was committed stays committed: if this fails, it is read again."""
        try:
            self._snapshots.note(batch.settle())
            self._unsettled = False
        except BaseException as error:
            self._forget()
            if not isinstance(error, Exception):
                raise

    def _check_connection(self) -> None:
        if self._writes.replace_stuck():
            SQLITE.warning("connection replaced: store=%s", self._writes.path)

    def _run_alone(self, job: WriteJob) -> None:
        if not job.claim():
            return
        assert job.run is not None
        if self._unsettled:
            self._forget()
        failure: BaseException | None
        try:
            result, failure = job.run(self._writes), None
        except (SessionError, Awaited) as error:  # refused, rolled back: what is remembered holds
            result, failure = None, error
        except Exception as error:
            self._log_failed(error, 0)
            self._forget()
            result, failure = None, self._failure(error, job.asked)
        answer([(job, result, failure)])
        self._check_connection()

    # --- when there is time --------------------------------------------------------------------

    def _rest(self) -> None:
        """Housekeeping between batches. What fails here fails for nobody and is tried again."""
        try:
            self._writes.wal.tend(idle=not self.jobs.count())
            while not self.jobs.count() and self._chore():
                pass
        except apsw.Error as error:
            self._log_unkept(error)
            self._check_connection()
        except Exception as error:
            self._log_unkept(error)
            self._snapshots.forget()  # one cannot be encoded: its session goes without a snapshot
            self._check_connection()

    def _chore(self) -> bool:
        """One piece of work that nobody waits for; False if there is none."""
        if self._snapshots.due:
            with self._writes.transaction():
                self._snapshots.write()
            return True
        if self._writes.purging:
            self._writes.purging = erasure.purge_some(self._writes)
            return True
        if self._writes.sweeping:
            self._writes.sweeping = blobs.sweep(self._writes, self._clock())
            return True
        return False

    # --- ends ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """A clean end: purges, and snapshots, so that the next process starts fast; then close."""
        self._snapshots.note_all()
        try:
            while self._writes.purging:
                self._writes.purging = erasure.purge_some(self._writes)
            while self._writes.sweeping:
                self._writes.sweeping = blobs.sweep(self._writes, self._clock())
            while self._snapshots.due:
                with self._writes.transaction():
                    self._snapshots.write(CLOSE_SNAPSHOTS_PER_TRANSACTION)
        except Exception:
            self._snapshots.forget()  # what was not done costs the next process time, nothing else
        self._writes.close()

    def _log_failed(self, error: BaseException, commits: int) -> None:
        self._log(SQLITE.warning, "write failed: store=%s error=%s commits=%d", error, commits)

    def _log_unkept(self, error: BaseException) -> None:
        self._log(SQLITE.warning, "housekeeping failed: store=%s error=%s", error)

    def _log(self, log: Callable[..., None], text: str, error: BaseException, *more: int) -> None:
        log(text, self._writes.path, logs.error_name(error), *more)

    def _forget(self) -> None:
        """Clear the cache, which may differ from what is stored: everything is read again."""
        self.cache.clear()
        self._snapshots.forget()
        self._unsettled = False

    def _failure(self, error: BaseException, asked: Asked = "write") -> LimpetError:
        return write_failure(error, self._writes.where, asked)


class SQLiteSnapshots:
    """Snapshots: folds written beside the log, so that a load need not read the whole log.

    One is due when the log since the last has grown as large as the snapshot. It is written from
    the writer's cache, inside a transaction. Older ones are kept, a ladder by which any version is
    near, as long as they take less than an eighth of the log: where a state grows like its log,
    reading that is as quick. Losing one costs time and never data.
    """

    def __init__(self, writes: SQLiteWriteConnection) -> None:
        self._writes = writes
        self._due: dict[Key, CachedSession] = {}

    @property
    def due(self) -> bool:
        return bool(self._due)

    def note(self, touched: Iterable[tuple[Key, CachedSession]]) -> None:
        """Sessions that a batch wrote to."""
        for key, live in touched:
            if live.delta_bytes >= SNAPSHOT_FLOOR_BYTES and live.delta_bytes >= live.snapshot_bytes:
                self._due[key] = live

    def note_all(self) -> None:
        """Note, before a clean end, every session in memory that the next process would load
        slowly. If each of many short processes wrote a large state again, the file would be full
        of it."""
        for key, live in self._writes.cache.sessions():
            if live.delta_bytes >= max(CLOSE_SNAPSHOT_BYTES_MIN, live.snapshot_bytes // 2):
                self._due[key] = live

    def forget(self) -> None:
        self._due.clear()

    def write(self, most: int = SNAPSHOTS_PER_BATCH) -> None:
        """Inside a transaction, from the cache's folds, as far as they are still the newest."""
        cache = self._writes.cache
        for key in list(self._due)[:most]:
            live = self._due.pop(key)
            current = cache.peek(key) is live and live.era == cache.era
            if current and not live.fold.damaged:  # a snapshot must not hide that damage
                with suppress(RecursionError, ValueError, TypeError, Unready):  # it costs time
                    self._write(live)

    def _write(self, live: CachedSession) -> None:
        seq, packed, size = bodies.packed_snapshot(live.fold, self._writes.codec)
        # First: the new one takes the pages of the one that goes.
        self._writes.conn.execute(SQL["thin_snapshots"], (live.sid, seq, SNAPSHOT_SHARE))
        self._writes.conn.execute(SQL["keep_snapshot"], (live.sid, seq, *packed))
        live.snapshot_bytes, live.delta_bytes = size, 0
