"""Jobs: what waits in the writer's queue, and how its caller gets the answer.

A caller on an event loop puts a job in and waits. Jobs of one turn of the loop are gathered; then
the loop does them itself, if they are few and that is quick, or the writer's thread takes them out
and answers. The queue is bounded. A caller that is cancelled takes its job back if nobody has begun
it, and waits for the end if somebody has: a commit is never in doubt.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from limpet.errors import Asked, LimpetError, StoreClosed, StoreForked
from limpet.model import Commit
from limpet.store.sqlite.file.pace import Pace
from limpet.store.sqlite.transactions import SQLiteWriteConnection
from limpet.store.threads import PROCESS

WAITING_MAX: Final = 16_384
TURN_MAX: Final = 512  # jobs that are gathered before the thread begins with them


class SQLiteJob:
    """Commits of one caller."""

    __slots__ = ("answered", "commits", "future", "loop", "size", "ticket")
    run: Callable[[SQLiteWriteConnection], Any] | None = None  # see `Errand`
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


class JobQueue:
    """The writer's queue. `submit` and `end` are for event loops, the rest for the thread.

    What comes in one turn of a loop is gathered. When the turn is over, `here` may do all of it on
    the loop, if nothing was handed to the thread before; else the thread is given it.
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
            self._do_alone(job)
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
        """Whether a job is the last thing that runs in this turn of its loop, and the turn is
        young: nobody could join it."""
        if self._handed != self._finished or self._turns or self._ending or job.run is not None:
            return False
        # What waits to run on an event loop of asyncio's. Others do not say: they end their turns.
        ready = getattr(job.loop, "_ready", True)
        return not ready and self._pace.is_turn_young() and self._forks == PROCESS.forks

    def _do_alone(self, job: SQLiteJob) -> None:
        """Do it now: at the end of the turn it would wake the loop twice. An interrupt is the
        loop's, as it is there, and not the caller's."""
        try:
            self._here([job])
            if not job.answered:
                self._put([job])
        except BaseException as error:
            # Out of the loop first; what is left is done when it goes on.
            job.loop.call_soon(_raise, error)
            job.loop.call_soon(self._put, [job])

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
        """How many jobs wait now."""
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


def _raise(error: BaseException) -> None:
    raise error


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
