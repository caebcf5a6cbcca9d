"""Jobs for the one who writes: a bounded queue from event loops to a writer's thread.

A caller on an event loop submits a job and awaits its answer; the stores that have a writer of
their own, SQLite and the log store, share this. A few small commits are made on the loop that asked
for them, while the disk is quick (see `Pace`). A commit is never left in doubt: a caller that is
cancelled takes its job back, or waits for the end of it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import get_ident
from time import perf_counter
from typing import Any, Final, TypeAlias

from limpet.errors import Asked, LimpetError, StoreClosed, StoreForked
from limpet.model import Commit
from limpet.store.system import PROCESS

BATCH_MAX: Final = 512
BATCH_BYTES_MAX: Final = 8 * 2**20
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


class WriteJob:
    """Commits of one caller."""

    __slots__ = ("answered", "commits", "future", "loop", "size", "ticket")
    run: Callable[[Any], Any] | None = None  # see `WriterCall`
    asked: Asked = "write"

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = commits
        self.loop = loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = loop.create_future()
        # The writer or the cancelled caller pops it, and that one decides. While it is there and
        # the future is not done, the caller was not cancelled, as far as its loop knows. Its one
        # item is a byte: the garbage collector would follow a list in every job that waits.
        self.ticket = bytearray(1)
        self.answered = False
        if len(commits) == 1 and len(commits[0].drafts) == 1:
            self.size = len(commits[0].drafts[0].raw)
        else:  # the bytes of its events' bodies
            self.size = sum([len(draft.raw) for commit in commits for draft in commit.drafts])

    def claim(self) -> bool:
        """Take the job: True for the first, the writer or its cancelled caller."""
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True


class WriterCall(WriteJob):
    """A function to run alone between two batches, on what its writer writes to."""

    __slots__ = ("asked", "run")

    def __init__(self, run: Callable[[Any], Any], asked: Asked = "change") -> None:
        super().__init__(())
        self.run, self.asked = run, asked


JobAnswer: TypeAlias = tuple[WriteJob, Any, BaseException | None]


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

    def admits(self, jobs: Sequence[WriteJob]) -> bool:
        """True if these may be committed on the loop."""
        if not self.enabled or self.crowd > HERE_JOBS_MAX or self.average > HERE_SECONDS_MAX:
            return False
        return _are_small(jobs)

    def note(self, jobs: Sequence[WriteJob], seconds: float) -> None:
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

    def held(self, jobs: Sequence[WriteJob], seconds: float) -> None:
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

    def __init__(self, here: Callable[[list[WriteJob]], None], pace: Pace) -> None:
        self._here, self._pace = here, pace
        # Jobs that were handed over together; None at the end. Out of it, they wait in `_next`.
        self._turns_over: SimpleQueue[list[WriteJob] | None] = SimpleQueue()
        self._next: deque[WriteJob] = deque()
        self._ended = False  # the last turn is in `_next`
        self._turns: dict[asyncio.AbstractEventLoop, list[WriteJob]] = {}
        self._gate = threading.Lock()  # loops of several threads may share a store
        self._handed, self._finished = 0, 0  # to the thread, and by it
        self._waiting = 0
        self._crowded = False  # somebody waits for room
        self._free = asyncio.Event()
        self._ending = False
        self._forks = PROCESS.forks
        self.failure: LimpetError | None = None  # why the writer is gone

    # --- for event loops -----------------------------------------------------------------------

    async def submit(self, job: WriteJob) -> Any:
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

    def wake(self, job: WriteJob) -> None:
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

    def _is_alone(self, job: WriteJob) -> bool:
        """True if nothing else is scheduled in this turn of the job's loop, and the turn has run
        for less than a millisecond: no other job could share the commit."""
        if self._handed != self._finished or self._turns or self._ending or job.run is not None:
            return False
        # Callbacks that wait on an asyncio loop. Other loops do not tell: their turns end.
        ready = getattr(job.loop, "_ready", True)
        return not ready and self._pace.is_turn_young() and self._forks == PROCESS.forks

    def _join(self, job: WriteJob) -> None:
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
        jobs: list[WriteJob] = []
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

    def _put(self, jobs: list[WriteJob]) -> None:
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

    @property
    def is_ending(self) -> bool:
        """True if no more jobs come, because the store is being closed."""
        return self._ending

    def get(self) -> WriteJob | None:
        """The next job, waited for; None at the end."""
        while not self._next and not self._ended:
            self._take(self._turns_over.get())
        return self._next.popleft() if self._next else None

    def waiting(self) -> deque[WriteJob]:
        """The jobs that wait now. The caller takes out those that it does."""
        with suppress(Empty):
            while not self._ended:
                self._take(self._turns_over.get_nowait())
        return self._next

    def _take(self, turn: list[WriteJob] | None) -> None:
        if turn is None:
            self._ended = True
        else:
            self._next.extend(turn)

    def finished(self, count: int) -> None:
        """Note that so many jobs are done: if these were all, a loop may do the next ones
        itself."""
        self._finished += count

    def batch(
        self, first: WriteJob, taken: list[WriteJob]
    ) -> tuple[list[WriteJob], WriteJob | None]:
        """Return the jobs that share a commit with `first`, and one that ended the batch because
        it must run alone. Each is in `taken` as soon as it has left the queue."""
        self._gather()
        jobs, size, waiting = [first], first.size, self.waiting()
        alone: WriteJob | None = None
        while waiting and alone is None and len(jobs) < BATCH_MAX and size < BATCH_BYTES_MAX:
            job = waiting.popleft()
            taken.append(job)
            if job.run is not None:
                alone = job
            else:
                jobs.append(job)
                size += job.size
        self._pace.crowd = len(jobs)
        return jobs, alone

    def _gather(self) -> None:
        """Let a crowd come together: where many wrote a moment ago many will again, and one sync
        serves them all. Ends when as many wait as last time, or when no one joined for a moment;
        a lone writer is never made to wait."""
        waiting = -1
        while waiting < self.count() < self._pace.crowd - 1:
            waiting = self.count()
            time.sleep(GATHER_SECONDS)

    def count(self) -> int:
        """The number of jobs that wait now."""
        return len(self.waiting())

    def refuse(self, failure: LimpetError, taken: Sequence[WriteJob]) -> None:
        """The writer cannot go on: answer those it has taken and those that wait, so that nobody
        waits for it. A job that was answered is not answered again."""
        self.failure = failure
        answer([(job, None, failure) for job in taken])
        with suppress(Empty):
            while True:  # also what came after the end
                self._take(self._turns_over.get_nowait())
        answer([(job, None, failure) for job in self._next if job.claim()])
        self._next.clear()


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


async def _outcome(job: WriteJob) -> None:
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


def nothing(_: object) -> None:
    """A job that only wakes the thread."""


def _are_small(jobs: Sequence[WriteJob]) -> bool:
    if len(jobs) == 1:
        return jobs[0].size <= HERE_BYTES_MAX
    return len(jobs) <= HERE_JOBS_MAX and sum([job.size for job in jobs]) <= HERE_BYTES_MAX
