"""A lane: one connection over which batches go to the server, one after the other.

Jobs are planned here, on what is known of their sessions, and checked there: the function
`limpet.commit` writes what still holds and says what does not. What does not is read and
planned again; after a few attempts under the rows' locks, so that every writer gets its turn. If
the connection breaks while an answer is awaited, the same events are sent again under their ids,
and those that had been recorded are found, not doubled.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import asyncpg
import msgspec

from limpet.errors import LimpetError, StoreBusy
from limpet.model import CREATED, SALT_BYTES, Key, Noise
from limpet.model.limits import EVENT_OVERHEAD_BYTES, SNAPSHOT_FLOOR_BYTES, SNAPSHOT_SHARE
from limpet.store import logs
from limpet.store.cache import Cache, CachedSession
from limpet.store.coding import bodies
from limpet.store.coding.codec import Codec
from limpet.store.coding.seal import Unready
from limpet.store.logs import POSTGRES
from limpet.store.plan import Plan
from limpet.store.postgres.failures import BROKEN, translate
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.server import settings
from limpet.store.postgres.server.pool import Outage, PostgresWriteConnection
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.postgres.writing.batch import CommitReply, PostgresBatch
from limpet.store.postgres.writing.clock import ServerClock
from limpet.store.postgres.writing.jobs import PostgresJob, TouchedKey, keys_of
from limpet.store.postgres.writing.view import PostgresView
from limpet.store.protocol import Committed

TRIES_MAX: Final = 30
LOCK_AFTER_TRIES: Final = 3
_AGAIN: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_HURRIED_LOCK_TIMEOUT: Final = "100ms"  # these jobs have waited once already

# With its place in the batch.
PlannedJob: TypeAlias = tuple[PostgresJob, int, tuple[Committed, ...]]
RefusedJob: TypeAlias = tuple[PostgresJob, LimpetError]
PackedBatch: TypeAlias = tuple[PostgresBatch, list[PlannedJob], list[RefusedJob]]


class Unwritable(Exception):  # no error of the tree: it never leaves the lane
    """One job cannot be put into bytes; what was planned with it must be planned again."""

    def __init__(self, job: PostgresJob, reason: Exception) -> None:
        self.job, self.reason = job, reason
        super().__init__("cannot be encoded or sealed")


class Unplanned(Exception):  # nor does this one
    """Something in a batch cannot be planned, before anything of it was sent."""


class SentBatch(NamedTuple):
    """A batch and its reply, with the jobs that were in it and those the planner refused."""

    batch: PostgresBatch
    reply: CommitReply
    planned: list[PlannedJob]
    refused: list[RefusedJob]
    token: str  # of a transaction that sees all of it


class Lane:
    """Belongs to one committer. While it serves a batch nobody else touches what is in it."""

    def __init__(
        self,
        writer: PostgresWriteConnection,
        reader: PostgresReader,
        cache: Cache,
        clock: ServerClock,
        snapshots: PostgresSnapshots,
        notify: Callable[[], None],
    ) -> None:
        self._writer, self._reader, self._cache, self._notify = writer, reader, cache, notify
        self._clock, self._snapshots = clock, snapshots
        self._outage = Outage(writer.place, "writer")
        self._salt = Noise(os.urandom, SALT_BYTES)
        self._flight: Flight  # that it serves
        self._after: Flight | None = None  # on its way still, when its jobs were taken

    async def serve(self, flight: Flight) -> None:
        """Bring every job to an answer."""
        self._flight, self._after = flight, flight.after
        jobs = waiting = flight.jobs
        began = time.monotonic()
        try:
            while waiting:
                slow = [job for job in waiting if job.tries >= LOCK_AFTER_TRIES]
                quick = [job for job in waiting if job.tries < LOCK_AFTER_TRIES]
                again = await self._attempt(quick, locked=False) if quick else []
                for job in slow:
                    again += await self._attempt([job], locked=True)
                waiting = again
                if again:
                    tries = max([job.tries for job in again])
                    text = "commits retried: store=%s commits=%d tries=%d"
                    POSTGRES.debug(text, self._writer.place, len(again), tries)
        except BaseException as error:
            self._fail(jobs, error)  # those that have an answer keep it
            self._writer.drop()  # cut short: it may be inside a transaction
            raise
        logs.slow_commit(POSTGRES, self._writer.place, time.monotonic() - began, jobs)

    @property
    def has_snapshots(self) -> bool:
        """True if any is due."""
        return self._snapshots.due

    async def write_snapshots(self) -> None:
        """Off the critical path; one that is not written costs a later reader time."""
        await self._snapshots.write(self._writer.get)

    async def close(self) -> None:
        await self._writer.close()

    # --- private -------------------------------------------------------------------------------

    async def _attempt(
        self, jobs: Sequence[PostgresJob], *, locked: bool, hurried: bool = False
    ) -> list[PostgresJob]:
        """Plan and send; the jobs that must be tried again. Those that fail get their error."""
        try:
            sent = await self._deliver(jobs, locked=locked, hurried=hurried)
            self._flight.answer(held=not sent.refused and not sent.reply.refused)
            try:
                if self._flight.followed:  # the next batch is ready: the server need not wait
                    await asyncio.sleep(0)
            finally:  # it is durable, even if this lane is cancelled here; answers follow
                again = self._settle(sent)
            return again
        except Unwritable as error:
            if isinstance(error.reason, Unready):
                error.job.fail(error.reason)
            else:
                self._fail([error.job], error.reason)
            return [job for job in jobs if job is not error.job]
        except Unready as error:  # met on the way to a plan, by one of them
            return await self._each_alone(jobs, error, locked=locked)
        except Unplanned as error:
            if len(jobs) > 1:
                return await self._each_alone(jobs, error, locked=locked)
            self._fail(jobs, error.__cause__ or error)
        except _AGAIN as error:
            self._cache.clear()
            return [job for job in jobs if not self._gives_up(job, error)]
        except asyncpg.ReadOnlySQLTransactionError as error:
            self._writer.drop()  # the server may have become a standby: look for the primary again
            self._fail(jobs, error)
        except asyncpg.TooManyConnectionsError as error:
            self._fail(
                jobs, error
            )  # whoever is in the batch: there is no connection to send it over
        except asyncpg.PostgresError as error:
            self._cache.clear()
            if len(jobs) > 1:
                return await self._retry_apart(jobs)
            self._fail(jobs, error)
        except Exception as error:
            self._fail(jobs, error)
        return []

    async def _each_alone(
        self, jobs: Sequence[PostgresJob], error: Exception, *, locked: bool
    ) -> list[PostgresJob]:
        """Each alone, so that only those fail that cannot be planned, and only those wait for keys
        that need them. The committer asks for the keys: here others would wait for them too."""
        if len(jobs) == 1:
            jobs[0].fail(error)
            return []
        self._flight.answer(held=False)  # that the first of them did says nothing of the others
        again: list[PostgresJob] = []
        for job in jobs:
            again += await self._attempt([job], locked=locked)
        return again

    def _gives_up(self, job: PostgresJob, error: Exception) -> bool:
        """Count one more try in vain."""
        job.tries += 1
        if job.tries > TRIES_MAX:
            self._fail([job], error)
        return job.tries > TRIES_MAX

    async def _deliver(
        self, jobs: Sequence[PostgresJob], *, locked: bool, hurried: bool
    ) -> SentBatch:
        """Send until there is an answer, on new connections if need be, or no hope of one."""
        deadline = asyncio.get_running_loop().time() + settings.LOST_SECONDS_MAX
        while True:
            try:
                conn = await self._writer.get()
                if not locked:
                    sent = await self._writer.acknowledged(self._send(conn, jobs))
                else:
                    await self._let_pass()
                    sent = await self._writer.acknowledged(
                        self._send_locked(conn, jobs, hurried=hurried)
                    )
                self._outage.over()
                return sent
            except BROKEN as error:
                # Unknown whether it was recorded: ask again under the same ids.
                self._outage.lost(error)
                self._writer.drop()
                self._cache.clear()
                if asyncio.get_running_loop().time() > deadline:
                    raise translate(error, self._writer.place, "write") from error
                for job in jobs:
                    job.resend()
                await asyncio.sleep(settings.LOST_PAUSE_SECONDS)

    async def _send_locked(
        self, conn: Connection, jobs: Sequence[PostgresJob], *, hurried: bool
    ) -> SentBatch:
        async with conn.transaction():
            if hurried:
                await conn.execute(SQL["lock_timeout"], _HURRIED_LOCK_TIMEOUT)
            await self._lock(conn, jobs[0])
            return await self._send(conn, jobs)

    async def _retry_apart(self, jobs: Sequence[PostgresJob]) -> list[PostgresJob]:
        """The server refused a batch as a whole: each alone, so that only the culprit fails.

        Somebody else's transaction holds one of the rows, or a value cannot be stored.
        """
        POSTGRES.info("batch split: store=%s commits=%d", self._writer.place, len(jobs))
        self._flight.answer(held=False)  # as above: it may have been refused before it was planned
        again: list[PostgresJob] = []
        held: set[Key] = set()
        for job in jobs:
            keys = {commit.key for commit in job.commits}
            if keys & held:
                self._fail([job], StoreBusy(self._writer.place))
                continue
            again += await self._attempt([job], locked=True, hurried=True)
            if isinstance(job.failure, StoreBusy):
                held |= keys
        return again

    def _fail(self, jobs: Sequence[PostgresJob], error: BaseException) -> None:
        self._cache.clear()
        if waiting := [job for job in jobs if not job.settled]:
            self._log_failure(error, len(waiting))
        if not isinstance(error, LimpetError):
            error = translate(error, self._writer.place, "write")
        for job in jobs:
            job.fail(error)

    async def _lock(self, conn: Connection, job: PostgresJob) -> None:
        """Take the rows and names of a job that others keep being faster to."""
        await self._lock_rows(conn, [job])
        if job.names:
            owners = {(*name[:2], "") for name in job.written}  # it may add to their names
            columns = [list(column) for column in zip(*sorted(job.names | owners), strict=True)]
            await conn.execute(SQL["lock_names"], *columns)
        self._forget(job)

    async def _lock_rows(self, conn: Connection, jobs: Sequence[PostgresJob]) -> str:
        """Lock the sessions of these jobs; the token of the transaction that does."""
        touched = {key for job in jobs for commit in job.commits for key in keys_of(commit)}
        keys = [(key.app, key.user, key.id) for key in touched]
        columns = [list(column) for column in zip(*keys, strict=True)]
        rows = await conn.fetch(SQL["lock"], *columns)
        return rows[0]["token"] if rows else ""

    async def _send(self, conn: Connection, jobs: Sequence[PostgresJob]) -> SentBatch:
        """Plan on what is known, and have it checked and written. Changes no job."""
        batch, planned, refused = await self._plan_ahead(conn, jobs)
        self._flight.plan(batch)
        asked_us = self._clock.local_us()
        batch.cluster = self._writer.cluster
        reply = await batch.send(conn)
        token = reply.token
        if reply.now_us:
            self._clock.learn(asked_us, reply.now_us)
        if any([job.search_ids for job in jobs]) and not batch.recorded():
            # Found recorded, which does not yet mean durable: the first answer may have been lost
            # while the server waited for a standby. A lock waits as a commit does.
            token = await self._lock_rows(conn, jobs)
        return SentBatch(batch, reply, planned, refused, token)

    async def _plan_ahead(self, conn: Connection, jobs: Sequence[PostgresJob]) -> PackedBatch:
        """A plan, while another batch is on its way if need be.

        It stands if all of that batch held. If not, everything in it is settled before these jobs
        are planned again: an earlier commit of their sessions may be on its second attempt.
        """
        if self._after is not None:
            with suppress(Exception):  # it is met again
                ready = await self._pack(conn, jobs, self._after.leaves())
                if await self._after.holds():
                    self._after = None
                    return ready
            await self._let_pass()
        return await self._pack(conn, jobs, {})

    async def _let_pass(self) -> None:
        """Wait for the batch that was on its way when these jobs were taken.

        Before rows are locked, too: it may be going to wait for the same ones.
        """
        after, self._after = self._after, None
        if after is not None:
            await after.ended

    async def _pack(
        self, conn: Connection, jobs: Sequence[PostgresJob], left: Mapping[Key, CachedSession]
    ) -> PackedBatch:
        view = PostgresView(self._cache, self._reader, left)
        await view.fetch(conn, jobs)
        now_us = self._clock.now_us()
        ready = self._plan(view, jobs, now_us)
        try:
            # A job that took too long once is not refused again, or it would never be recorded.
            ready[0].pack(now_us, late=any([job.tries for job in jobs]))
        except LimpetError:
            raise
        except Exception as error:
            raise Unplanned from error
        return ready

    def _plan(self, view: PostgresView, jobs: Sequence[PostgresJob], now_us: int) -> PackedBatch:
        """The jobs as a batch, each with the answer that it gets if the server finds it good."""
        # The server judges leases; after a refusal its time shows the planner which had ended.
        plan = Plan(
            view,
            now_us,
            self._salt,
            lease_now_us=max([job.judged_us for job in jobs]),
        )
        batch = PostgresBatch(plan, view, self._reader)
        planned: list[PlannedJob] = []
        refused: list[RefusedJob] = []
        for job in jobs:
            try:
                answers = plan.add(job.commits)
            except LimpetError as error:
                refused.append((job, error))
                continue
            except Unready:
                raise
            except Exception as error:  # it cannot be planned: it fails alone
                failure = translate(error, self._writer.place, "write")
                failure.__cause__ = error
                refused.append((job, failure))
                continue
            try:
                planned.append((job, batch.take(job.commits), answers))
            except Exception as error:  # a seal, which is not ours, may fail with anything
                raise Unwritable(job, error) from error
        return batch, planned, refused

    def _settle(self, sent: SentBatch) -> list[PostgresJob]:
        """Answer the callers, now that it is durable; the jobs that must be tried again."""
        again: list[PostgresJob] = []
        for job, error in sent.refused:
            # Refused on what was read before the job came, or on top of something that came to
            # nothing: look again first.
            if (job.fresh and not sent.reply.refused) or job.tries > TRIES_MAX:
                job.fail(error)
            else:
                job.tries += job.fresh
                job.fresh = job.search_ids = True
                again.append(job)
        for key, live in sent.batch.settle(sent.reply).items():
            self._keep(key, live)
        for scope_key, scope in sent.batch.scopes().items():
            self._cache.keep_scope(scope_key, scope)
        if sent.reply.has_listeners and sent.batch.recorded():
            self._notify()
        for job, place, answers in sent.planned:
            self._answer(job, place, answers, sent, again)
        for job in again:
            self._forget(job)
        return again

    def _answer(
        self,
        job: PostgresJob,
        place: int,
        answers: tuple[Committed, ...],
        sent: SentBatch,
        again: list[PostgresJob],
    ) -> None:
        reason = sent.reply.refused.get(place)
        answered = None
        if reason is None:
            answered = sent.batch.answers(answers, sent.reply, sent.token)
        if answered is not None:
            job.succeed(
                tuple([_as_first(answer) for answer in answered]) if job.resent else answered
            )
            return
        job.tries += 1
        job.fresh = job.search_ids = True
        if reason == "fenced":
            job.judged_us = sent.reply.now_us
        if job.tries > TRIES_MAX:
            busy = StoreBusy(self._writer.place)
            self._log_failure(busy, 1)
            job.fail(busy)
        else:
            again.append(job)

    def _log_failure(self, error: BaseException, commits: int) -> None:
        text = "write failed: store=%s error=%s commits=%d"
        POSTGRES.warning(text, self._writer.place, logs.error_name(error), commits)

    def _keep(self, key: Key, live: CachedSession) -> None:
        self._cache.keep(key, live)
        self._snapshots.note(key, live)

    def _forget(self, job: PostgresJob) -> None:
        for commit in job.commits:
            for key in keys_of(commit):
                self._cache.forget(key)
        for name in job.names:
            self._cache.forget_scope(name)


class Flight:
    """A batch on its way, and what may be planned on top of it before its answer is there.

    While the server works on one batch, the next is planned as if every job of the first will hold,
    and sent as soon as it is known that they did. If one did not, the plan is dropped: its jobs
    wait until the first batch is settled, so that no commit overtakes an earlier one of its
    session. `after` is the flight that these jobs were planned on top of.
    """

    __slots__ = ("_batch", "after", "ended", "followed", "held", "jobs", "touched")

    def __init__(self, jobs: Sequence[PostgresJob], after: Flight | None = None) -> None:
        self.jobs, self.after = jobs, after
        self.touched: set[TouchedKey] = {thing for job in jobs for thing in job.touches}
        self._batch: PostgresBatch | None = None
        self.followed = False  # another waits to know whether this one holds
        loop = asyncio.get_running_loop()
        self.held: asyncio.Future[bool] = loop.create_future()  # whether all of them did, at once
        self.ended: asyncio.Future[None] = loop.create_future()  # every job has its answer

    def leaves(self) -> Mapping[Key, CachedSession]:
        """The sessions as they will be if all holds; empty while that is unknown."""
        if self._batch is None or self.held.done():
            return {}
        return self._batch.leaves()

    async def holds(self) -> bool:
        """Wait for its jobs; True if all of them held, for those who planned on top of it."""
        self.followed = True
        return await self.held

    def plan(self, batch: PostgresBatch) -> None:
        """The batch is about to be sent. A second attempt makes another: nothing holds at once."""
        if self._batch is not None:
            self.answer(held=False)
        self._batch = batch

    def answer(self, *, held: bool) -> None:
        """The server has answered, and what it recorded is durable."""
        if not self.held.done():
            self.held.set_result(held)

    def end(self) -> None:
        self.answer(held=False)
        self.after = None  # or each would keep the one before it
        if not self.ended.done():  # cancelled with the lane that waited for it
            self.ended.set_result(None)


class PostgresSnapshots:
    """Snapshots: folds written beside the log, so that a load need not read the whole log.

    One is due when the log since the last has grown as large as the snapshot. Older ones are kept,
    a ladder by which any version is near, as long as they take less than an eighth of the log. They
    are written off the critical path, by a lane that has nothing else to do, or now and then;
    losing one costs time and never data. Shared by the lanes of a committer.
    """

    def __init__(self, cache: Cache, codec: Codec) -> None:
        self._cache, self._codec = cache, codec
        self._due: dict[Key, CachedSession] = {}
        self._written: set[Key] = set()  # on their way: no second rung beside the first

    @property
    def due(self) -> bool:
        """True if there is one to write."""
        return bool(self._due)

    def note(self, key: Key, live: CachedSession) -> None:
        """A session that a batch wrote to."""
        delta = live.delta_bytes
        due = delta >= SNAPSHOT_FLOOR_BYTES and delta >= live.snapshot_bytes
        if due and key not in self._written:
            self._due[key] = live

    async def write(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        """Write what is due. What fails is left out: it becomes due again."""
        while self._due:
            key, live = self._due.popitem()
            self._written.add(key)
            try:
                await self._write(connect, key, live)
            except Exception:  # a seal may fail with anything, and nobody waits for this
                self._due.clear()
            finally:
                self._written.discard(key)

    async def _write(
        self, connect: Callable[[], Awaitable[Connection]], key: Key, live: CachedSession
    ) -> None:
        if live.fold.damaged:  # a snapshot must not hide that the log is damaged
            return
        seq, packed, size = bodies.packed_snapshot(live.fold, self._codec)
        conn = await connect()
        await conn.execute(SQL["put_snapshot"], live.sid, seq, *packed)
        await conn.execute(
            SQL["thin_snapshots"], live.sid, seq, SNAPSHOT_SHARE, EVENT_OVERHEAD_BYTES
        )
        now = self._cache.peek(key)  # others may have been recorded meanwhile
        if now is not None and now.sid == live.sid:
            now.snapshot_bytes, now.delta_bytes = size, max(0, now.delta_bytes - live.delta_bytes)


def _as_first(answer: Committed) -> Committed:
    """Sent twice because the first answer was lost: to the caller it happened once, and now.

    But for a creation, whose caller must know that not all was sent again.
    """
    if answer.events[0].type == CREATED:
        return answer
    events = tuple([msgspec.structs.replace(event, repeated=False) for event in answer.events])
    return msgspec.structs.replace(answer, events=events, repeated=0)
