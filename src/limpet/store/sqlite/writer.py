"""The writer: one thread that turns a queue of jobs into few transactions.

All commits that wait are planned and written together and made durable by one fsync; then each
caller is answered. Snapshots, purges and checkpoints are done when nobody waits, or ride along when
they must.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import apsw

from limpet.errors import Asked, LimpetError, SessionError
from limpet.store import logs
from limpet.store.coding import Awaited, Unready
from limpet.store.logs import SQLITE
from limpet.store.sqlite import blobs, erasure
from limpet.store.sqlite.batch import Batch
from limpet.store.sqlite.failures import write_failure
from limpet.store.sqlite.jobs import Answer, Job, JobQueue, answer
from limpet.store.sqlite.snapshots import Snapshots
from limpet.store.sqlite.transactions import WriteConnection
from limpet.store.threads import in_thread

BATCH_MAX: Final = 512
BATCH_BYTES_MAX: Final = 8 * 2**20
CLOSE_SNAPSHOTS_PER_TRANSACTION: Final = 64
GATHER_SECONDS: Final = 0.0001


class Writer(threading.Thread):
    """The only one who writes through this store."""

    def __init__(self, writes: WriteConnection, clock: Callable[[], int]) -> None:
        super().__init__(name="limpet-writer", daemon=True)
        self._writes, self._clock = writes, clock
        self.cache = writes.cache  # readers borrow folds from it
        self._snapshots = Snapshots(self._writes)
        self._jobs = JobQueue()
        self._taken: list[Job] = []  # out of the queue, and perhaps not answered yet
        self._crowd = 1  # how many the last batch served

    # --- for callers, on their event loop ------------------------------------------------------

    async def submit(self, job: Job) -> Any:
        """The answer to a job. Cancelled, it is taken back or waited for, never left in doubt."""
        return await self._jobs.submit(job)

    @property
    def failed(self) -> bool:
        """Whether the thread is gone and another must take its place."""
        return self._jobs.failure is not None

    async def end(self) -> None:
        """Let the writer finish everything and wait until its thread is gone."""
        self._jobs.end()
        await in_thread(self.join)

    # --- the thread ----------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._writes.open()
            self._loop()
        except BaseException as error:
            # Those who wait were not begun, so nothing was written for them.
            self._jobs.refuse(self._failure(error, "read"), self._taken)
            self._writes.close()
            self._log(SQLITE.error, "writer stopped: store=%s error=%s", error)

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
        if first.run is not None:
            self._run_alone(first)
            return None
        self._gather()
        batch, size, alone = [first], first.size(), None
        waiting = self._jobs.waiting()
        while len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            job = next(waiting, None)
            if job is None:
                break
            self._taken.append(job)
            if job.run is not None:
                alone = job
                break
            batch.append(job)
            size += job.size()
        self._crowd = len(batch)
        self._run_batch([job for job in batch if job.claim()])
        return alone

    def _gather(self) -> None:
        """Let a crowd come together: where many wrote a moment ago many will again, and one fsync
        serves them all. Ends when as many wait as last time, or when no one joined for a moment;
        a lone writer is never made to wait."""
        waiting = -1
        while waiting < self._jobs.count() < self._crowd - 1:
            waiting = self._jobs.count()
            time.sleep(GATHER_SECONDS)

    def _run_batch(self, jobs: list[Job]) -> None:
        began = time.monotonic()
        try:
            batch, answers = self._commit(jobs)
        except apsw.Error as error:  # the database refused: nobody's commit in particular
            self._refuse(jobs, error)
        except Unready as error:  # and nothing is wrong with what is remembered
            if len(jobs) == 1:
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
            logs.slow_commit(SQLITE, self._writes.path, time.monotonic() - began, jobs)
        self._check_connection()

    def _refuse(self, jobs: list[Job], error: BaseException) -> None:
        self._log_failed(error, len(jobs))
        self._forget()
        answer([(job, None, self._failure(error)) for job in jobs])

    def _split(self, jobs: list[Job], error: BaseException) -> None:
        """Each job alone, so that the one that cannot be written fails nobody else."""
        self._forget()
        text = "batch split: store=%s error=%s commits=%d"
        self._log(SQLITE.info, text, error, len(jobs))
        for job in jobs:
            self._run_batch([job])

    def _commit(self, jobs: list[Job]) -> tuple[Batch, list[Answer]]:
        """One transaction for all of them. If it raises, nothing was written."""
        answers: list[Answer] = []
        with self._writes.transaction():
            batch = Batch(self._writes.reader, self.cache, self._clock(), self._writes.salt)
            for job in jobs:
                try:
                    answers.append((job, batch.plan.add(job.commits), None))
                except (LimpetError, Unready) as error:
                    answers.append((job, None, error))
            batch.write()
            self._snapshots.write()
        return batch, answers

    def _settle(self, batch: Batch) -> None:
        """What was committed stays committed: if remembering it fails, it is read again."""
        try:
            self._snapshots.note(batch.settle())
        except Exception:
            self._forget()

    def _check_connection(self) -> None:
        if self._writes.replace_stuck():
            SQLITE.warning("connection replaced: store=%s", self._writes.path)

    def _run_alone(self, job: Job) -> None:
        if not job.claim():
            return
        assert job.run is not None
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
            self._writes.wal.tend(idle=not self._jobs.count())
            while not self._jobs.count() and self._chore():
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
        """What is remembered may not be what is stored: everything is read again."""
        self.cache.clear()
        self._snapshots.forget()

    def _failure(self, error: BaseException, asked: Asked = "write") -> LimpetError:
        return write_failure(error, self._writes.where, asked)
