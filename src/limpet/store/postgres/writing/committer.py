"""The committer: gathers the commits of all callers and hands them, in batches, to its lanes.

One batch is one call and one flush of the server's log, however many commits are in it. Two lanes
take turns: while the server works on one batch, the next is planned here. What a batch touches, a
session or a scope name, is touched by no other batch until it is settled; what has to wait for
that keeps its place in the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Coroutine, Sequence, Set
from typing import Any, Final

from limpet.model import Commit, Key
from limpet.store.cache import Cache, CachedSession
from limpet.store.coding.seal import Unready, owners_of
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.server.pool import PostgresWriteConnection
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.postgres.writing.jobs import PostgresJob, TouchedKey
from limpet.store.postgres.writing.lane import Flight, Lane, PostgresSnapshots
from limpet.store.protocol import Committed

LANES: Final = 2
BATCH_MAX: Final = 256
BATCH_BYTES_MAX: Final = 8 * 2**20
BATCH_SPLIT_MIN: Final = 16  # a batch up to this size is not worth a second flush
WAITING_MAX: Final = 16_384
SNAPSHOTS_EVERY: Final = 256  # batches
_CROWDS: Final = 8
_LOOKED_AT_MAX: Final = 4 * BATCH_MAX  # of the queue, for a batch


class Committer:
    """Belongs to one store and one event loop."""

    def __init__(
        self,
        writers: Sequence[PostgresWriteConnection],
        reader: PostgresReader,
        clock: ServerClock,
        notify: Callable[[], None],
    ) -> None:
        self.cache, self._codec = Cache(), reader.codec
        shared = (self.cache, clock, PostgresSnapshots(self.cache, reader.codec))
        self._lanes = [Lane(writer, reader, *shared, notify) for writer in writers]
        self._waiting: deque[PostgresJob] = deque()
        self._flights: dict[Lane, Flight] = {}
        self._idle: list[asyncio.Future[None]] = []  # of lanes that have nothing to do
        self._waking = False  # a lane was woken and has not looked at the queue yet
        self._crowds: deque[int] = deque(maxlen=_CROWDS)  # jobs on their way, as the last takes saw
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []  # one for each lane
        self._started = False  # all of them are running
        self._closing = False

    def commit(self, commits: Sequence[Commit]) -> Coroutine[Any, Any, tuple[Committed, ...]]:
        return (
            self._commit_sealed(commits)
            if self._codec.seals
            else self._submit(PostgresJob(commits))
        )

    async def _commit_sealed(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        await self._codec.sealer.ready(owners_of(commits, self._uid))
        job = PostgresJob(commits)
        while True:
            try:
                return await self._submit(job)
            except Unready as needed:  # nothing was written, and no connection waits meanwhile
                await self._codec.sealer.ready(needed.owners)
                job = job.again()

    def _uid(self, key: Key) -> str | None:
        live = self.cache.peek(key)
        return None if live is None else live.fold.head.uid

    async def _submit(self, job: PostgresJob) -> tuple[Committed, ...]:
        while len(self._waiting) >= WAITING_MAX:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(job)
        if not self._started:
            self._start()
        self._wake_lane()
        try:
            return await job.answer
        except asyncio.CancelledError:
            if job.taken:
                await job.known()
            else:
                self._waiting.remove(job)  # it never happened
            raise

    def remember(self, live: CachedSession) -> None:
        """Take over a session that a reader loaded, if it is leased: its holder writes next.

        It may be out of date by now. Then the server refuses what is planned on it.
        """
        head = live.fold.head
        if head.worker is not None and self.cache.peek(head.key) is None:
            self.cache.keep(head.key, live)

    async def close(self) -> None:
        """Wait until everything that was asked for has its answer."""
        self._closing = True
        self._wake_lane()
        while running := self._running():
            await asyncio.gather(*map(asyncio.shield, running), return_exceptions=True)
        for lane in self._lanes:
            await lane.close()

    # --- private -------------------------------------------------------------------------------

    def _start(self, *, lasting: bool = True) -> None:
        """Start the lanes, and again those whose task was cancelled from outside."""
        self._started = True
        for place, task in enumerate(self._tasks):
            if task.done():
                self._tasks[place] = self._task(self._lanes[place], lasting=lasting)
        if not self._tasks:
            self._tasks = [self._task(lane, lasting=lasting) for lane in self._lanes]

    def _task(self, lane: Lane, *, lasting: bool) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run(lane, lasting=lasting))
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, _: asyncio.Task[None]) -> None:
        self._started = False
        self._restart()

    def _restart(self) -> None:
        """Serve what is queued if the lanes were cancelled. The next commit would start them again,
        but there may be none. They do not outlast the queue: whoever cancels all tasks of a loop
        may be about to close it."""
        if self._waiting and not self._flights:  # else whoever is on its way looks at the queue
            self._start(lasting=False)

    def _running(self) -> list[asyncio.Task[None]]:
        """The tasks of lanes that have not ended: at least one, as long as a commit is queued."""
        self._restart()
        return [task for task in self._tasks if not task.done()]

    def _wake_lane(self) -> None:
        """Wake one lane, unless one is on its way to the queue already. It wakes the next."""
        while self._idle and not self._waking:
            waiter = self._idle.pop()
            if not waiter.done():  # else its lane was ended from outside, and is about to notice
                self._waking = True
                waiter.set_result(None)

    async def _rest(self) -> None:
        """Wait to be woken."""
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        try:
            await waiter
            self._waking = False
        except BaseException:  # ended from outside, maybe just as it was woken
            if waiter in self._idle:
                self._idle.remove(waiter)
            elif not waiter.cancelled():
                self._waking = False
                self._wake_lane()
            raise

    async def _run(self, lane: Lane, *, lasting: bool) -> None:
        served = 0
        while True:
            flight = self._take()
            if flight is not None:
                await self._serve(lane, flight)
                served += 1
                if served % SNAPSHOTS_EVERY == 0:  # in a crowd that never lets up, too
                    await lane.write_snapshots()
            elif lane.has_snapshots:
                await lane.write_snapshots()
            elif not lasting or (self._closing and not self._waiting):
                self._wake_lane()  # the other lane is to end too
                return
            else:
                await self._rest()

    async def _serve(self, lane: Lane, flight: Flight) -> None:
        self._flights[lane] = flight
        if self._waiting:
            self._wake_lane()  # there is more than this lane took
        try:
            await lane.serve(flight)
        except BaseException:
            self._wake_lane()  # this lane ends: what waited for its batch is for the other
            raise
        finally:
            del self._flights[lane]
            flight.end()

    def _take(self) -> Flight | None:
        """The next batch: the first jobs of the queue that touch nothing that is on its way. If
        there is none, those that can be planned on top of what is."""
        if not self._waiting:
            return None
        before = next(iter(self._flights.values()), None)
        self._crowds.append(len(self._waiting) + (0 if before is None else len(before.jobs)))
        most = min(max(BATCH_SPLIT_MIN, (max(self._crowds) + 1) // LANES), BATCH_MAX)
        if before is None:
            return self._pick(most, _LOOKED_AT_MAX)
        left = before.leaves()
        flight = self._pick(most, most if left else _LOOKED_AT_MAX, before.touched)
        if flight is None and left:
            flight = self._pick(most, _LOOKED_AT_MAX, before.touched, left, before)
        return flight

    def _pick(
        self,
        most: int,
        in_vain: int,
        busy: Set[TouchedKey] = frozenset(),
        left: Container[TouchedKey] = (),
        after: Flight | None = None,
    ) -> Flight | None:
        """Take jobs that touch nothing busy, or only sessions of which it is known how they will be
        `left`. Looks at so many before the first is found."""
        jobs: list[PostgresJob] = []
        passed: list[PostgresJob] = []
        blocked: set[TouchedKey] = set()
        size = looked_at = 0
        while self._waiting and len(jobs) < most and size < BATCH_BYTES_MAX:
            if looked_at >= (_LOOKED_AT_MAX if jobs else in_vain):
                break
            job = self._waiting.popleft()
            looked_at += 1
            if (not blocked or blocked.isdisjoint(job.touches)) and _is_free(job, busy, left):
                job.taken = True
                jobs.append(job)
                size += job.size
            else:
                blocked.update(job.touches)  # nobody behind it may overtake it
                passed.append(job)
        self._waiting.extendleft(reversed(passed))
        self._room.set()
        return Flight(jobs, after) if jobs else None


def _is_free(job: PostgresJob, busy: Set[TouchedKey], left: Container[TouchedKey]) -> bool:
    if busy.isdisjoint(job.touches):
        return True
    return job.simple and all([thing in left or thing not in busy for thing in job.touches])
