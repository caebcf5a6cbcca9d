"""The writer: one thread that turns a queue of jobs into few transactions.

A caller on an event loop submits a job and awaits its answer. All commits that wait are planned and
written together and made durable by one fsync; then each caller is answered. Snapshots, purges and
checkpoints run when nobody waits, or ride along when they must.

A few small commits are made on the event loop that asked for them, while the disk is quick (see
`Pace`) and nothing is in the way. Whoever uses the connection, thread or loop, holds
`SQLiteWriter._hold`; a loop never waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import get_ident
from time import perf_counter
from typing import Any, Final, TypeAlias

import apsw

from limpet.errors import Asked, LimpetError, SessionError, StoreClosed, StoreForked
from limpet.model import Commit, Key
from limpet.model.limits import SNAPSHOT_FLOOR_BYTES, SNAPSHOT_SHARE
from limpet.store import logs
from limpet.store.cache import CachedSession
from limpet.store.coding import bodies
from limpet.store.coding.seal import Awaited, Unready
from limpet.store.logs import SQLITE
from limpet.store.sqlite import blobs, erasure
from limpet.store.sqlite.batch import SQLiteBatch
from limpet.store.sqlite.failures import write_failure
from limpet.store.sqlite.sql import SQL
from limpet.store.sqlite.write_connection import SQLiteWriteConnection
from limpet.store.system import PROCESS, in_thread

BATCH_MAX: Final = 512
BATCH_BYTES_MAX: Final = 8 * 2**20
CLOSE_SNAPSHOTS_PER_TRANSACTION: Final = 64
GATHER_SECONDS: Final = 0.0001
WAITING_MAX: Final = 16_384
TURN_MAX: Final = 512  # jobs that are gathered before the thread begins with them
HERE_JOBS_MAX: Final = 16
HERE_BYTES_MAX: Final = 64 * 2**10
HERE_SECONDS_MAX: Final = 0.001  # on average
_WEIGHT: Final = 0.25  # of the newest commit in the average
# One commit counts for no more: after a single stall a few quick ones are enough to come back.
_SECONDS_COUNTED_MAX: Final = 0.005
SNAPSHOTS_PER_BATCH: Final = 4
CLOSE_SNAPSHOT_BYTES_MIN: Final = 8 * 2**10


class SQLiteJob:
    """Commits of one caller."""

    __slots__ = ("answered", "commits", "future", "loop", "size", "ticket")
    run: Callable[[SQLiteWriteConnection], Any] | None = None  # see `WriterCall`
    asked: Asked = "write"

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = commits
        self.loop = loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        # Whoever pops it, writer or cancelled caller, decides. While it is there and the future is
        # not done, the caller was not cancelled, as far as its loop knows.
        self.ticket = [None]
        self.answered = False
        if len(commits) == 1 and len(commits[0].drafts) == 1:
            self.size = len(commits[0].drafts[0].raw)
        else:  # the bytes of its events' bodies
            self.size = sum([len(draft.raw) for commit in commits for draft in commit.drafts])

    def claim(self) -> bool:
        """Take the job: True for whoever comes first, the writer or its cancelled caller."""
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True


class WriterCall(SQLiteJob):
    """A function to run alone between two batches."""

    __slots__ = ("asked", "run")

    def __init__(
        self, run: Callable[[SQLiteWriteConnection], Any], asked: Asked = "change"
    ) -> None:
        super().__init__(())
        self.run, self.asked = run, asked


JobAnswer: TypeAlias = tuple[SQLiteJob, Any, BaseException | None]


class Pace:
    """Decides whether the next commits are few and quick enough for the event loop itself.

    Handing a commit to the writer's thread wakes a sleeping core twice, which takes a good part of
    the time that a quick disk needs. On the loop, a commit keeps everybody else waiting. So only
    small ones are made there, and only while small ones are quick. Every small commit counts,
    wherever it was made: a slow disk moves them to the thread within two commits, and back once it
    is quick again. `enabled` False: the thread makes all of them.
    """

    __slots__ = ("_turn", "average", "commits", "crowd", "enabled", "longest", "timer")

    def __init__(self, *, enabled: bool = True, timer: Callable[[], float] = perf_counter) -> None:
        self.enabled, self.timer = enabled, timer
        self.crowd = 1  # how many callers the last commit served
        self.average = 0.0  # seconds of small commits
        self.longest = 0.0  # seconds for which a loop was held
        self.commits = 0  # made on a loop
        # The last turn that began to commit: the thread of its loop, and when. Others are not
        # known to be young.
        self._turn = (0, 0.0)

    def admits(self, jobs: Sequence[SQLiteJob]) -> bool:
        """True if these may be committed on the loop."""
        if not self.enabled or self.crowd > HERE_JOBS_MAX or self.average > HERE_SECONDS_MAX:
            return False
        return _are_small(jobs)

    def note(self, jobs: Sequence[SQLiteJob], seconds: float) -> None:
        """The thread has made a commit for these callers, which took so long."""
        self.crowd = len(jobs)
        if _are_small(jobs):
            self._count(seconds)

    def begin_turn(self) -> None:
        """A loop is about to commit what one of its turns has gathered."""
        self._turn = (get_ident(), self.timer())

    def is_turn_young(self) -> bool:
        """True if this loop did so such a short time ago that it may make one more commit before it
        looks after anybody else."""
        thread, began = self._turn
        if not self.enabled or self.crowd > HERE_JOBS_MAX or thread != get_ident():
            return False
        return self.timer() - began < HERE_SECONDS_MAX

    def held(self, jobs: Sequence[SQLiteJob], seconds: float) -> None:
        """A loop has made a commit for these callers, which took so long, and was held since its
        turn began."""
        self.crowd = len(jobs)
        self._count(seconds)  # whoever is admitted is small
        self.commits += 1
        thread, began = self._turn
        if thread == get_ident():  # else another loop has begun one meanwhile
            seconds = self.timer() - began
        if seconds > self.longest:
            self.longest = seconds

    def _count(self, seconds: float) -> None:
        counted = seconds if seconds < _SECONDS_COUNTED_MAX else _SECONDS_COUNTED_MAX
        self.average += (counted - self.average) * _WEIGHT


class JobQueue:
    """The writer's queue, bounded. `submit` and `end` are for event loops, the rest for the thread.

    Jobs of one turn of a loop are gathered. When the turn is over, `here` may do all of them on the
    loop, if nothing was handed to the thread before; else the thread gets them. A caller that is
    cancelled takes its job back if nobody has begun it, and waits for the end if somebody has: a
    commit is never in doubt.
    """

    def __init__(self, here: Callable[[list[SQLiteJob]], None], pace: Pace) -> None:
        self._here, self._pace = here, pace
        # What was handed over together; None at the end. Out of it, they wait in `_next`.
        self._turns_over: SimpleQueue[list[SQLiteJob] | None] = SimpleQueue()
        self._next: deque[SQLiteJob] = deque()
        self._ended = False  # the last turn is in `_next`
        self._turns: dict[asyncio.AbstractEventLoop, list[SQLiteJob]] = {}
        self._gate = threading.Lock()  # loops of several threads may share a store
        self._handed, self._finished = 0, 0  # to the thread, and by it
        self._waiting = 0
        self._crowded = False  # somebody waits for room
        self._free = asyncio.Event()
        self._ending = False
        self._forks = PROCESS.forks
        self.failure: LimpetError | None = None  # why the writer is gone

    # --- for event loops -----------------------------------------------------------------------

    async def submit(self, job: SQLiteJob) -> Any:
        """The answer to a job. Cancelled, it is taken back or waited for, never left in doubt."""
        while self._waiting >= WAITING_MAX and not self._ending:
            self._crowded = True
            self._free.clear()  # back-pressure: memory for the queue is bounded
            await self._free.wait()
        if not self._is_alone(job):
            self._join(job)
        else:
            # Do it now: at the end of the turn it would wake the loop twice. An interrupt is the
            # loop's, as it is there, and not the caller's.
            try:
                self._here([job])
                if not job.answered:
                    self._put([job])
            except BaseException as error:
                # Out of the loop first; what is left is done when it goes on.
                job.loop.call_soon(_raise, error)
                job.loop.call_soon(self._put, [job])
        self._waiting += 1
        try:
            return await job.future
        except asyncio.CancelledError:
            if not job.claim():
                await _outcome(job)
            raise  # if claimed, nobody had begun it: it never happened
        finally:
            self._waiting -= 1
            if self._crowded and self._waiting < WAITING_MAX:
                self._crowded = False
                self._free.set()

    def wake(self, job: SQLiteJob) -> None:
        """Hand a job to the thread that nobody waits for."""
        self._put([job])

    def end(self) -> None:
        """Take no more jobs; the writer finishes those that are in, also those of turns that are
        not over."""
        with self._gate:
            self._ending = True
            turns = list(self._turns.values())
            self._turns.clear()
        for turn in turns:
            self._put(turn)
        self._free.set()  # callers that wait for space are refused, not left waiting
        self._turns_over.put(None)

    def _is_alone(self, job: SQLiteJob) -> bool:
        """True if nothing else is scheduled in this turn of the job's loop, and the turn has run
        for less than a millisecond: no other job could share the commit."""
        if self._handed != self._finished or self._turns or self._ending or job.run is not None:
            return False
        # What waits to run on an event loop of asyncio's. Others do not say: they end their turns.
        ready = getattr(job.loop, "_ready", True)
        return not ready and self._pace.is_turn_young() and self._forks == PROCESS.forks

    def _join(self, job: SQLiteJob) -> None:
        """Add a job to this turn of its loop."""
        loop = job.loop
        with self._gate:
            if self._ending:
                raise StoreClosed
            turn = self._turns.get(loop)
            if turn is None:  # in this order: a turn that nobody ends would never be done
                loop.call_soon(self._end_turn, loop)
                self._turns[loop] = [job]
                return
            turn.append(job)
            if len(turn) < TURN_MAX:
                return
        self._end_turn(loop)  # a crowd: the thread begins, and the others follow

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do what was gathered. An interrupt may come between any two steps: what has no answer
        then is handed over in the next turn."""
        jobs: list[SQLiteJob] = []
        if self._forks != PROCESS.forks:  # forked: they are the parent's, and so is the file
            return answer([(job, None, StoreForked()) for job in self._turns.pop(loop, ())])
        try:
            with self._gate:
                if loop in self._turns:  # else the store is closing, and its thread was given it
                    jobs = self._turns[loop]
                    del self._turns[loop]
            self._pace.begin_turn()
            if jobs and self._handed == self._finished:  # the thread has nothing left to do
                self._here(jobs)
            self._put(jobs)
        except BaseException:
            loop.call_soon(self._put, jobs)
            raise

    def _put(self, jobs: list[SQLiteJob]) -> None:
        """Hand over what was not answered. Once more does no harm: a job is claimed once.

        An interrupt may come out of any call: what was counted stays counted, even if it is handed
        over again. With too many counted, the loop makes no more commits itself; with too few it
        would overtake a job that waits.
        """
        left = [j for j in jobs if j.ticket and not j.answered and not j.future.done()]
        if left:
            with self._gate:
                self._handed += len(left)
            self._turns_over.put(left)
        if self.failure is not None:  # put after the last look at the queue
            answer([(job, None, self.failure) for job in jobs if job.claim()])

    # --- for the thread ------------------------------------------------------------------------

    def get(self) -> SQLiteJob | None:
        """The next job, waited for; None at the end."""
        while not self._next and not self._ended:
            self._take(self._turns_over.get())
        return self._next.popleft() if self._next else None

    def waiting(self) -> deque[SQLiteJob]:
        """The jobs that wait now. Whoever does one takes it out."""
        with suppress(Empty):
            while not self._ended:
                self._take(self._turns_over.get_nowait())
        return self._next

    def _take(self, turn: list[SQLiteJob] | None) -> None:
        if turn is None:
            self._ended = True
        else:
            self._next.extend(turn)

    def finished(self, count: int) -> None:
        """So many jobs are done, and what followed from them: if these were all, a loop may do the
        next ones itself."""
        self._finished += count

    def count(self) -> int:
        """The number of jobs that wait now."""
        return len(self.waiting())

    def refuse(self, failure: LimpetError, taken: Sequence[SQLiteJob]) -> None:
        """The writer cannot go on: answer those it has taken and those that wait, so that nobody
        waits for it. A job that was answered is not answered again."""
        self.failure = failure
        answer([(job, None, failure) for job in taken])
        with suppress(Empty):
            while True:  # also what came after the end
                self._take(self._turns_over.get_nowait())
        answer([(job, None, failure) for job in self._next if job.claim()])
        self._next.clear()


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
        self._ready = False  # the connection is open
        self._under_way: tuple[SQLiteBatch, list[JobAnswer]] | None = None  # planned, on a loop
        # What is remembered may be older than what is stored: two interrupts in a row on a loop.
        self._unsettled = False
        self._taken: list[SQLiteJob] = []  # out of the queue, and perhaps not answered yet

    # --- for callers, on their event loop ------------------------------------------------------

    async def end(self) -> None:
        """Let the writer finish everything and wait until its thread is gone."""
        self.jobs.end()
        await in_thread(self.join)

    def _do_here(self, jobs: list[SQLiteJob]) -> None:
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

    def _commit_here(self, jobs: list[SQLiteJob]) -> None:
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
                self.jobs.wake(
                    WriterCall(_nothing)
                )  # the thread sees to it, before the next commit
        except BaseException as error:
            self._fail_here(jobs, error)
            if not isinstance(error, Exception):
                raise

    def _fail_here(self, jobs: list[SQLiteJob], error: BaseException) -> None:
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
            self.jobs.wake(WriterCall(_nothing))  # the thread connects again

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

    def _work(self, first: SQLiteJob) -> tuple[int, SQLiteJob | None]:
        """Do `first` and what waits behind it: how many; a job that must run alone is handed
        back."""
        self._taken = [first]
        if first.run is not None:
            self._run_alone(first)
            return 1, None
        self._gather()
        batch, size, alone = [first], first.size, None
        waiting = self.jobs.waiting()
        while waiting and len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            job = waiting.popleft()
            self._taken.append(job)
            if job.run is not None:
                alone = job
                break
            batch.append(job)
            size += job.size
        self._pace.crowd = len(batch)
        self._check_connection()  # an interrupt on a loop may have left a transaction open
        self._run_batch([job for job in batch if job.claim()])
        return len(batch), alone

    def _gather(self) -> None:
        """Let a crowd come together: where many wrote a moment ago many will again, and one fsync
        serves them all. Ends when as many wait as last time, or when no one joined for a moment;
        a lone writer is never made to wait."""
        waiting = -1
        while waiting < self.jobs.count() < self._pace.crowd - 1:
            waiting = self.jobs.count()
            time.sleep(GATHER_SECONDS)

    def _run_batch(self, jobs: list[SQLiteJob]) -> None:
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

    def _refuse(self, jobs: list[SQLiteJob], error: BaseException) -> None:
        self._log_failed(error, len(jobs))
        self._forget()
        answer([(job, None, self._failure(error)) for job in jobs])

    def _split(self, jobs: list[SQLiteJob], error: BaseException) -> None:
        """Each job alone, so that the one that cannot be written fails nobody else."""
        self._forget()
        text = "batch split: store=%s error=%s commits=%d"
        self._log(SQLITE.info, text, error, len(jobs))
        for job in jobs:
            self._run_batch([job])

    def _commit(
        self, jobs: list[SQLiteJob], *, here: bool = False
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

    def _run_alone(self, job: SQLiteJob) -> None:
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
        """Before a clean end: every session in memory that the next process would load slowly. If
        each of many short processes wrote a large state again, the file would be full of it."""
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


def answer(answers: Sequence[JobAnswer]) -> None:
    """Tell the callers: one crossing of threads for all that share a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[JobAnswer]] = {}
    for each in answers:
        by_loop.setdefault(each[0].loop, []).append(each)
    for loop, of_loop in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, of_loop)


def deliver(answers: Sequence[JobAnswer]) -> None:
    """Tell the callers, on their loop."""
    for job, result, error in answers:
        job.answered = True  # whether or not anybody waits: a caller may have been cancelled
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)


def answer_here(answers: Sequence[JobAnswer]) -> None:
    """Answer callers of this loop. If an interrupt comes, the rest are answered next."""
    try:
        deliver(answers)
    except BaseException:
        answers[0][0].loop.call_soon(deliver, answers)
        raise
    finally:
        for job, _, _ in answers:
            job.answered = True
            job.claim()  # nobody else could meanwhile: its caller is on this loop


async def _outcome(job: SQLiteJob) -> None:
    """Wait until the writer is done with a job whose caller was cancelled, however often."""
    while not job.answered:
        job.future = job.loop.create_future()
        try:
            await job.future
        except asyncio.CancelledError:
            continue
        except Exception:
            return  # the caller gets the cancellation


def _raise(error: BaseException) -> None:
    raise error


def _nothing(_: SQLiteWriteConnection) -> None:
    """A job that only wakes the thread."""


def _are_small(jobs: Sequence[SQLiteJob]) -> bool:
    if len(jobs) == 1:
        return jobs[0].size <= HERE_BYTES_MAX
    return len(jobs) <= HERE_JOBS_MAX and sum([job.size for job in jobs]) <= HERE_BYTES_MAX
