"""Jobs: what waits in the writer's queue, and how its caller gets the answer.

A caller on an event loop puts a job in and waits; the writer's thread takes it out and answers. The
queue is bounded. A caller that is cancelled takes its job back if the writer has not begun it, and
waits for the end if it has: a commit is never in doubt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from limpet.errors import Asked, LimpetError, StoreClosed
from limpet.model import Commit
from limpet.store.sqlite.transactions import WriteConnection

WAITING_MAX: Final = 16_384


class Job:
    """Commits of one caller, or a function to run alone between two batches."""

    __slots__ = ("answered", "asked", "commits", "future", "loop", "run", "ticket")

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

    def claim(self) -> bool:
        """Take the job: True for whoever comes first, the writer or its cancelled caller."""
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True

    def size(self) -> int:
        """The bytes of its events' bodies."""
        return sum([len(draft.raw) for commit in self.commits for draft in commit.drafts])


Answer: TypeAlias = tuple[Job, Any, BaseException | None]


class JobQueue:
    """The writer's queue. `submit` and `end` are for event loops, the rest for the thread."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._waiting = 0
        self._free = asyncio.Event()
        self._ending = False
        self.failure: LimpetError | None = None  # why the writer is gone

    async def submit(self, job: Job) -> Any:
        """The answer to a job. Cancelled, it is taken back or waited for, never left in doubt."""
        while self._waiting >= WAITING_MAX and not self._ending:
            self._free.clear()  # back-pressure: memory for the queue is bounded
            await self._free.wait()
        if self._ending:
            raise StoreClosed
        self._waiting += 1
        self._jobs.put(job)
        try:
            if self.failure is not None and job.claim():  # put after the last look at the queue
                raise self.failure
            return await job.future
        except asyncio.CancelledError:
            if not job.claim():
                await _outcome(job)
            raise  # if claimed, the writer had not begun: it never happened
        finally:
            self._waiting -= 1
            if self._waiting < WAITING_MAX:
                self._free.set()

    def end(self) -> None:
        """Take no more jobs; the writer finishes those that are in."""
        self._ending = True
        self._free.set()  # callers that wait for space are refused, not left waiting
        self._jobs.put(None)

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
            loop.call_soon_threadsafe(_deliver, of_loop)


def _deliver(answers: list[Answer]) -> None:
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
