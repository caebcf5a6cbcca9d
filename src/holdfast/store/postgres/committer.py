"""The committer: one task that sends all waiting commits to the server in one call.

Commits are planned here, on what is known of their sessions, and checked there: the function
`holdfast.commit` writes what still holds and says what does not. What does not is read anew and
planned again, after a few times under the rows' locks, so that every writer gets its turn. If the
connection breaks while an answer is awaited, the same events are sent again under their ids, and
those that had been recorded are found, not doubled.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import asyncpg
import msgspec

from holdfast.errors import (
    HoldfastError,
    SessionDeleted,
    SessionErased,
    SessionNotFound,
    StoreBusy,
    StoreFailed,
)
from holdfast.model.chain import SALT_BYTES
from holdfast.model.events import Commit, Event
from holdfast.model.fold import Fold, ScopeKey, ScopeValue
from holdfast.model.head import PROCESSED
from holdfast.model.ids import Entropy
from holdfast.model.keys import Key
from holdfast.model.limits import SNAPSHOT_FLOOR_BYTES
from holdfast.model.ops import scope_of
from holdfast.store import bodies
from holdfast.store.plan import Plan
from holdfast.store.postgres.call import SOON, Call, Reply
from holdfast.store.postgres.connect import (
    BROKEN,
    LOST_PAUSE_SECONDS,
    LOST_SECONDS_MAX,
    Connection,
    Pool,
    translate,
)
from holdfast.store.postgres.reader import Reader
from holdfast.store.postgres.rows import SQL
from holdfast.store.protocol import Committed, Place
from holdfast.store.sqlite.cache import Cache, Live, LiveScope

BATCH_MAX: Final = 256
BATCH_BYTES_MAX: Final = 8 * 2**20
WAITING_MAX: Final = 16_384
TRIES_MAX: Final = 30
LOCK_AFTER_TRIES: Final = 3
_HURRY: Final = "SET LOCAL lock_timeout = '100ms'"  # they have waited once already


class Unit:
    """One caller's commits on their way."""

    __slots__ = ("commits", "fresh", "future", "judged_us", "lost", "taken", "tries")

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = commits
        self.future: asyncio.Future[tuple[Committed, ...]] = (
            asyncio.get_running_loop().create_future()
        )
        self.taken = False
        self.fresh = False  # planned on what was read after it was asked for
        self.lost = False  # it may have been recorded before: look its ids up
        self.judged_us = 0  # the server's time at which it refused the unit's fence
        self.tries = 0

    def size(self) -> int:
        return sum([len(draft.raw) for commit in self.commits for draft in commit.drafts])


class Sent(NamedTuple):
    """A call and its reply, with the units that were in it and those the planner refused."""

    call: Call
    reply: Reply
    planned: list[tuple[Unit, int, tuple[Committed, ...]]]
    refused: list[tuple[Unit, HoldfastError]]


class Committer:
    """Belongs to one store and one event loop. Implements the planner's View."""

    def __init__(self, lane: Pool, reader: Reader, place: str, tell: Callable[[], None]) -> None:
        self._lane, self._reader, self._place, self._tell = lane, reader, place, tell
        self._entropy = Entropy(os.urandom)
        self.cache = Cache()
        self._waiting: deque[Unit] = deque()
        self._bell = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._gone: dict[Key, HoldfastError | None] = {}
        self._recorded: dict[tuple[Key, str], Event] = {}
        self._pending: set[tuple[Key, int]] = set()
        self._seen: dict[tuple[str, str], dict[str, ScopeValue]] = {}
        self._due: dict[Key, Live] = {}

    # --- for callers ---------------------------------------------------------------------------

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        while len(self._waiting) >= WAITING_MAX:
            self._room.clear()
            await self._room.wait()
        unit = Unit(commits)
        self._waiting.append(unit)
        self._bell.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            return await asyncio.shield(unit.future)
        except asyncio.CancelledError:
            if not unit.taken:
                self._waiting.remove(unit)  # it never happened
            while unit.taken and not unit.future.done():
                try:
                    await asyncio.shield(unit.future)
                except asyncio.CancelledError:
                    continue
                except Exception:
                    break
            if unit.future.done():
                unit.future.exception()
            raise

    async def close(self) -> None:
        self._closing = True
        self._bell.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    # --- the task ------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._waiting:
                await self._serve(self._take())
            await self._write_snapshots()
            if self._closing and not self._waiting:
                return

    def _take(self) -> list[Unit]:
        batch: list[Unit] = []
        size = 0
        while self._waiting and len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            unit = self._waiting.popleft()
            unit.taken = True
            batch.append(unit)
            size += unit.size()
        self._room.set()
        return batch

    async def _serve(self, units: list[Unit]) -> None:
        """Bring every unit to an answer."""
        try:
            while units:
                slow = [unit for unit in units if unit.tries >= LOCK_AFTER_TRIES]
                quick = [unit for unit in units if unit.tries < LOCK_AFTER_TRIES]
                again = await self._attempt(quick, locked=False) if quick else []
                for unit in slow:
                    again += await self._attempt([unit], locked=True)
                units = again
        except BaseException as error:
            self._fail(units, error)
            raise

    async def _attempt(
        self, units: list[Unit], *, locked: bool, hurried: bool = False
    ) -> list[Unit]:
        """Plan and send; the units that must be tried again. Whoever fails is told."""
        try:
            sent = await self._deliver(units, locked=locked, hurried=hurried)
            return self._settle(sent)  # only now is it durable: nobody is told before
        except asyncpg.PostgresError as error:
            self.cache.clear()
            if len(units) > 1:
                return await self._apart(units)
            self._fail(units, error)
        except Exception as error:
            self._fail(units, error)
        return []

    async def _deliver(self, units: list[Unit], *, locked: bool, hurried: bool) -> Sent:
        """Send over whatever connection there is, until there is an answer or no hope of one."""
        deadline = asyncio.get_running_loop().time() + LOST_SECONDS_MAX
        while True:
            try:
                async with self._lane.acquire() as conn:
                    if not locked:
                        return await self._send(conn, units)
                    async with conn.transaction():
                        if hurried:
                            await conn.execute(_HURRY)
                        await self._lock(conn, units[0])
                        sent = await self._send(conn, units)
                    return sent
            except BROKEN as error:
                # Unknown whether it was recorded: ask again under the same ids.
                self.cache.clear()
                if asyncio.get_running_loop().time() > deadline:
                    raise StoreFailed(self._place, f"{type(error).__name__}: {error}") from error
                for unit in units:
                    unit.lost = True
                    unit.commits = [_with_given_ids(commit) for commit in unit.commits]
                await asyncio.sleep(LOST_PAUSE_SECONDS)

    async def _apart(self, units: list[Unit]) -> list[Unit]:
        """The server refused a batch as a whole: each alone, so that only the culprit fails.

        Somebody else's transaction holds one of the rows, or a value cannot be stored.
        """
        again: list[Unit] = []
        held: set[Key] = set()
        for unit in units:
            keys = {commit.key for commit in unit.commits}
            if keys & held:
                self._fail([unit], StoreBusy(self._place))
                continue
            again += await self._attempt([unit], locked=True, hurried=True)
            if unit.future.done() and isinstance(unit.future.exception(), StoreBusy):
                held |= keys
        return again

    def _fail(self, units: list[Unit], error: BaseException) -> None:
        self.cache.clear()
        told = error if isinstance(error, HoldfastError) else translate(error, self._place)
        for unit in units:
            if not unit.future.done():
                unit.future.set_exception(told)

    async def _lock(self, conn: Connection, unit: Unit) -> None:
        """Take the rows and names of a unit that others keep being faster to."""
        keys = [(c.key.app, c.key.user, c.key.id) for c in unit.commits]
        await conn.fetch(SQL["lock"], *[list(column) for column in zip(*keys, strict=True)])
        names = sorted(_names_of(unit))
        if names:
            columns = [list(column) for column in zip(*names, strict=True)]
            await conn.execute("SELECT holdfast.lock_names($1, $2, $3)", *columns)
        self._forget(unit)

    async def _send(self, conn: Connection, units: list[Unit]) -> Sent:
        """Plan on what is known, and have it checked and written. Changes no unit."""
        await self._fetch(conn, units)
        # The server judges leases; after a refusal its time tells the planner which had ended.
        plan = Plan(
            self,
            SOON,
            lambda: self._entropy.take(SALT_BYTES),
            lease_now_us=max([unit.judged_us for unit in units]),
        )
        call = Call(plan, self.cache, self._reader.codec)
        refused: list[tuple[Unit, HoldfastError]] = []
        planned: list[tuple[Unit, int, tuple[Committed, ...]]] = []
        for unit in units:
            try:
                answers = plan.add(unit.commits)
            except HoldfastError as error:
                refused.append((unit, error))
                continue
            planned.append((unit, call.take(unit.commits), answers))
        return Sent(call, await call.send(conn), planned, refused)

    def _settle(self, sent: Sent) -> list[Unit]:
        """Tell the callers what is durable now; the units that must be tried again."""
        again: list[Unit] = []
        for unit, error in sent.refused:
            # Refused on what was read before the unit came, or on top of something that came to
            # nothing: look again first.
            if (unit.fresh and not sent.reply.refused) or unit.tries > TRIES_MAX:
                unit.future.set_exception(error)
            else:
                unit.tries += unit.fresh
                unit.fresh = unit.lost = True
                again.append(unit)
        for key, live in sent.call.settle(sent.reply).items():
            self._keep(key, live)
        for scope_key, scope in sent.call.scopes(sent.reply).items():
            self.cache.keep_scope(scope_key, scope)
        if sent.reply.events:
            self._tell()
        for unit, place, answers in sent.planned:
            self._answer(unit, place, answers, sent.call, sent.reply, again)
        for unit in again:
            self._forget(unit)
        return again

    def _answer(
        self,
        unit: Unit,
        place: int,
        answers: tuple[Committed, ...],
        call: Call,
        reply: Reply,
        again: list[Unit],
    ) -> None:
        reason = reply.refused.get(place)
        told = call.answers(answers, reply) if reason is None else None
        if told is not None:
            unit.future.set_result(told)
            return
        unit.tries += 1
        unit.fresh = unit.lost = True
        if reason == "fenced":
            unit.judged_us = reply.judged_us
        if unit.tries > TRIES_MAX:
            unit.future.set_exception(translate(TimeoutError(), self._place))
        else:
            again.append(unit)

    def _keep(self, key: Key, live: Live) -> None:
        self.cache.keep(key, live)
        if live.delta_bytes >= max(SNAPSHOT_FLOOR_BYTES, live.snapshot_bytes):
            self._due[key] = live

    def _forget(self, unit: Unit) -> None:
        for commit in unit.commits:
            self.cache.forget(commit.key)
        for name in _names_of(unit):
            self.cache.forget_scope(name)

    # --- what the planner needs, fetched before it asks ----------------------------------------

    async def _fetch(self, conn: Connection, units: list[Unit]) -> None:
        self._gone.clear()
        self._recorded.clear()
        self._pending.clear()
        self._seen.clear()
        names: set[ScopeKey] = set()
        for unit in units:
            for commit in unit.commits:
                await self._fetch_session(conn, commit)
            names |= {n for n in _names_of(unit) if self.cache.scope(n) is None}
            if unit.lost:
                await self._fetch_recorded(conn, unit)
        if names:
            found = await self._reader.names(conn, list(names))
            for key, name in found.items():
                if name.value is not None:
                    live = LiveScope(name.value, name.base, name.since_base, self.cache.era)
                    self.cache.keep_scope(key, live)

    async def _fetch_session(self, conn: Connection, commit: Commit) -> None:
        key = commit.key
        if self.cache.session(key) is None and key not in self._gone:
            try:
                found = await self._reader.load(conn, key)
                self.cache.keep(key, found.live)
            except SessionNotFound:
                self._gone[key] = None
            except (SessionDeleted, SessionErased) as error:
                self._gone[key] = error
        if key in self._gone and (key.app, key.user) not in self._seen:
            seen = await self._reader.scopes(conn, key.app, key.user)
            self._seen[key.app, key.user] = {
                k[2]: name.value for k, name in seen.items() if name.value is not None
            }
        live = self.cache.session(key)
        for draft in commit.drafts:
            if draft.type == PROCESSED and live is not None:
                seqs = list(draft.data["seqs"])
                rows = await conn.fetch(SQL["pending"], [live.sid] * len(seqs), seqs)
                self._pending |= {(key, seqs[row["i"] - 1]) for row in rows}

    async def _fetch_recorded(self, conn: Connection, unit: Unit) -> None:
        wanted = [
            (live, draft.id)
            for commit in unit.commits
            if (live := self.cache.session(commit.key)) is not None
            for draft in commit.drafts
            if draft.given
        ]
        if wanted:
            self._recorded |= await self._reader.recorded(conn, wanted)

    def fold(self, key: Key) -> Fold | None:
        live = self.cache.session(key)
        if live is not None:
            return live.fold
        error = self._gone[key]
        if error is not None:
            raise error
        return None

    def recorded(self, key: Key, id: str) -> Event | None:
        return self._recorded.get((key, id))

    def pending(self, key: Key, seq: int) -> bool:
        return (key, seq) in self._pending

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        live = self.cache.scope(key)
        return None if live is None else live.value

    def scopes(self, app: str, user: str) -> dict[str, ScopeValue]:
        return dict(self._seen.get((app, user), {}))

    # --- when there is time --------------------------------------------------------------------

    async def _write_snapshots(self) -> None:
        """Off the critical path; one that is not written costs a later reader time."""
        due, self._due = self._due, {}
        for live in due.values():
            if live.damaged:
                continue
            fold = live.fold
            raw = bodies.snapshot_body(fold.fields, fold.versions)
            seq = fold.head.version
            place = Place("snapshot", fold.head.uid, str(seq))
            packed = self._reader.codec.pack(raw, place, bound=True)
            try:
                await self._lane.execute(SQL["put_snapshot"], live.sid, seq, *packed)
            except (*BROKEN, asyncpg.PostgresError):
                return
            live.snapshot_bytes, live.delta_bytes = len(raw), 0


def _names_of(unit: Unit) -> set[ScopeKey]:
    """The scope names that a unit writes or guards."""
    found: set[ScopeKey] = set()
    for commit in unit.commits:
        key = commit.key
        names = {str(op.path[0]) for d in commit.drafts if d.scoped for op in d.plain_ops}
        for name in names.union(commit.guards):
            kind = scope_of(name)
            if kind in ("app", "user"):
                found.add((key.app, "" if kind == "app" else key.user, name))
    return found


def _with_given_ids(commit: Commit) -> Commit:
    drafts = tuple(msgspec.structs.replace(draft, given=True) for draft in commit.drafts)
    return msgspec.structs.replace(commit, drafts=drafts)
