"""Jobs: what waits in the writer's queue, and how its caller gets the answer.

A caller on an event loop puts a job in and waits. Jobs of one turn of the loop are gathered; then
the loop does them itself, if they are few and that is quick, or the writer's thread takes them out
and answers. The queue is bounded. A caller that is cancelled takes its job back if nobody has begun
it, and waits for the end if somebody has: a commit is never in doubt.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from limpet.errors import Asked, LimpetError, StoreClosed, StoreForked
from limpet.model import Commit
from limpet.store.sqlite.transactions import WriteConnection

WAITING_MAX: Final = 16_384
TURN_MAX: Final = 512  # jobs that are gathered before the thread begins with them


class Job:
    """Commits of one caller, or a function to run alone between two batches."""

    __slots__ = ("answered", "asked", "commits", "future", "loop", "run", "size", "ticket")

    def __init__(
        self,
        commits: Sequence[Commit],
        run: Callable[[WriteConnection], Any] | None = None,
        asked: Asked = "write",
    ) -> None:
        self.commits, self.run, self.asked = commits, run, asked
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.ticket = [None]  # whoever pops it, writer or cancelled caller, decides
        self.answered = False
        # The bytes of its events' bodies.
        self.size = sum([len(draft.raw) for commit in commits for draft in commit.drafts])

    @property
    def wanted(self) -> bool:
        """Whether its caller was not cancelled, as far as its loop knows."""
        return bool(self.ticket) and not self.future.done()

    def claim(self) -> bool:
        """Take the job: True for whoever comes first, the writer or its cancelled caller."""
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True


Answer: TypeAlias = tuple[Job, Any, BaseException | None]


class JobQueue:
    """The writer's queue. `submit` and `end` are for event loops, the rest for the thread.

    What comes in one turn of a loop is gathered. When the turn is over, `here` may do all of it on
    the loop, if nothing was handed to the thread before; else the thread is given it.
    """

    def __init__(self, here: Callable[[list[Job]], None]) -> None:
        self._here = here
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._turns: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        self._gate = threading.Lock()  # loops of several threads may share a store
        self._handed, self._finished = 0, 0  # to the thread, and by it
        self._waiting = 0
        self._crowded = False  # somebody waits for room
        self._free = asyncio.Event()
        self._ending = False
        self._pid = os.getpid()
        self.failure: LimpetError | None = None  # why the writer is gone

    # --- for event loops -----------------------------------------------------------------------

    async def submit(self, job: Job) -> Any:
        """The answer to a job. Cancelled, it is taken back or waited for, never left in doubt."""
        while self._waiting >= WAITING_MAX and not self._ending:
            self._crowded = True
            self._free.clear()  # back-pressure: memory for the queue is bounded
            await self._free.wait()
        self._join(job)
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

    def wake(self, job: Job) -> None:
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
        self._jobs.put(None)

    def _join(self, job: Job) -> None:
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
        jobs: list[Job] = []
        if self._pid != os.getpid():  # forked: they are the parent's, and so is the file
            return answer([(job, None, StoreForked()) for job in self._turns.pop(loop, ())])
        try:
            with self._gate:
                if loop in self._turns:  # else the store is closing, and its thread was given it
                    jobs = self._turns[loop]
                    del self._turns[loop]
            if jobs and self._handed == self._finished:  # the thread has nothing left to do
                self._here([job for job in jobs if job.wanted])
            self._put(jobs)
        except BaseException:
            loop.call_soon(self._put, jobs)
            raise

    def _put(self, jobs: list[Job]) -> None:
        """Hand over what was not answered. Once more does no harm: a job is claimed once.

        An interrupt may come out of any call: what was counted stays counted, even if it is handed
        over again. With too many counted, the loop makes no more commits itself; with too few it
        would overtake a job that waits.
        """
        left = [job for job in reversed(jobs) if job.wanted and not job.answered]
        with self._gate:
            self._handed += len(left)
        while left:
            self._jobs.put(left[-1])
            left.pop()
        if self.failure is not None:  # put after the last look at the queue
            answer([(job, None, self.failure) for job in jobs if job.claim()])

    # --- for the thread ------------------------------------------------------------------------

    def get(self) -> Job | None:
        """The next job, waited for; None at the end."""
        return self._jobs.get()

    def waiting(self) -> Iterator[Job]:
        """The jobs that wait now, each taken out when it is asked for."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is None:
                self._jobs.put(None)  # the end comes after these
                return
            yield job

    def finished(self, count: int) -> None:
        """So many jobs are done, and what followed from them: if these were all, a loop may do the
        next ones itself."""
        self._finished += count

    def count(self) -> int:
        return self._jobs.qsize()

    def refuse(self, failure: LimpetError, taken: Sequence[Job]) -> None:
        """The writer cannot go on: answer those it has taken and those that wait, so that nobody
        waits for it. A job that was answered is not answered again."""
        self.failure = failure
        answer([(job, None, failure) for job in taken])
        answer([(job, None, failure) for job in self.waiting() if job.claim()])


def answer(answers: Sequence[Answer]) -> None:
    """Tell the callers: one crossing of threads for all that share a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for each in answers:
        by_loop.setdefault(each[0].loop, []).append(each)
    for loop, of_loop in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, of_loop)


def deliver(answers: Sequence[Answer]) -> None:
    """Tell the callers, on their loop."""
    for job, result, error in answers:
        job.answered = True  # whether or not anybody waits: a caller may have been cancelled
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)


async def _outcome(job: Job) -> None:
    """Wait until the writer is done with a job whose caller was cancelled, however often."""
    while not job.answered:
        job.future = job.loop.create_future()
        try:
            await job.future
        except asyncio.CancelledError:
            continue
        except Exception:
            return  # the caller gets the cancellation
