"""The sweep: transitions that are made because time has passed.

Sessions come from the index of deadlines, page by page. Each is locked by a lease, read, judged by
the store's clock on its newest head, and moved on in one commit that also ends the lease. Of many
sweeps at once one does it, and one that dies leaves a lease that expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import (
    InvalidQuery,
    SessionArchived,
    SessionDeleted,
    SessionErased,
    SessionFenced,
    SessionLocked,
    SessionMoved,
    SessionNotFound,
)
from limpet.model import Deadline, DefaultActor, Head, Key, Lease, deadlines
from limpet.model.facts.phases import ACTIVE, PhaseEvent
from limpet.model.limits import PAGE_MAX
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.history.retention import evict
from limpet.session.life.archive import archive_session, end_session, finish_all
from limpet.session.life.memory import forget_memory
from limpet.session.life.transitions import PhaseChange
from limpet.session.loggers import SESSION
from limpet.session.move.mover import finish_moves, remove_departed
from limpet.session.services import MetricName, Services
from limpet.session.writer import writer_of
from limpet.store.leases import Deadlines, Leases, Place
from limpet.store.protocol import plural

if TYPE_CHECKING:
    from limpet.session.session import Session

ACTOR: Final = DefaultActor("system:sweep")
LEASE_SECONDS: Final = 120.0  # and as long as the hooks of an app may take
AT_ONCE: Final = 16
Done: TypeAlias = Literal[
    "suspended", "terminated", "resumed", "deleted", "archived", "removed", "left", "nothing"
]
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased, SessionArchived)
# The order of checks where several times have passed.
_ORDER: Final[tuple[Deadline, ...]] = (
    "expiry",
    "archive",
    "absolute",
    "deadline",
    "grace",
    "input",
    "idle",
)
_MOVES: Final[dict[Deadline, tuple[tuple[PhaseEvent, ...], Done]]] = {
    "absolute": (("terminate",), "terminated"),
    "deadline": (("terminate",), "terminated"),
    "grace": (("expire",), "terminated"),
    "input": (("resume", "reactivate"), "resumed"),
    "idle": (("timeout",), "suspended"),
}


_METRICS: Final[dict[Deadline, MetricName]] = {
    "absolute": "session.absolute_timeout",
    "deadline": "session.deadline_reached",
    "grace": "session.grace_expired",
    "input": "session.resumed_by_input",
    "idle": "session.idle_timeout",
}


class Unswept(msgspec.Struct, frozen=True):
    """A session that a sweep could not process, and why."""

    key: Key
    reason: str


class Swept(msgspec.Struct, frozen=True):
    """The counts of one sweep."""

    suspended: int = 0
    terminated: int = 0
    resumed: int = 0
    deleted: int = 0
    left: int = 0  # held by a worker just now
    failed: tuple[Unswept, ...] = ()
    more: bool = False  # there is more to do: sweep again
    evicted: int = 0  # events beyond the limits of their app or session, now in cold segments
    archived: int = 0
    moves: int = 0  # that were interrupted, and are finished now
    removed: int = 0  # sessions whose rows went here, some time after they had moved
    expired: int = 0  # items of memories whose time had come

    def __str__(self) -> str:
        counts = [f"{getattr(self, name)} {name}" for name in self.__struct_fields__[:5]]
        counts += [f"{self.archived} archived"] if self.archived else []
        counts += [f"{plural(self.moves, 'move')} finished"] if self.moves else []
        counts += [f"{self.removed} that had moved removed"] if self.removed else []
        counts += [f"{self.evicted} events evicted"] if self.evicted else []
        counts += [f"{plural(self.expired, 'item')} expired"] if self.expired else []
        return ", ".join([*counts, f"{len(self.failed)} failed"])


class Sweep:
    """One sweep under way."""

    def __init__(self, services: Services, within: Callable[[Key], bool] | None = None) -> None:
        """`within` selects sessions; None is all of them, and what belongs to none."""
        self._services, self._journal = services, services.journal
        self._within = within
        self._worker = f"sweep:{self._journal.new_id()}"
        self._counts: dict[Done, int] = {}
        self._failed: list[Unswept] = []
        self._moves = 0

    async def run(self, limit: int) -> Swept:
        """Deal with at most `limit` sessions whose time has come."""
        store = self._journal.store
        if not isinstance(store, Deadlines):
            raise InvalidQuery("this store does not support sweeping")
        after: Place | None = None
        left, more = limit, True
        while left and more:
            page = min(left, PAGE_MAX)
            keys, after = await store.expired(limit=page, after=after)
            left, more = left - len(keys), after is not None
            if self._within is not None:
                keys = tuple(filter(self._within, keys))
            for start in range(0, len(keys), AT_ONCE):
                async with asyncio.TaskGroup() as group:
                    for key in keys[start : start + AT_ONCE]:
                        group.create_task(self._one(key))
        if self._within is not None:
            return self._report(more=more)
        # Not before: an archive that does not answer would keep those waiting whose time has come.
        tried = {each.key for each in self._failed}
        for key, error in await finish_all(self._services, self._session, tried=tried):
            self._fail(key, error)
        self._moves, unfinished = await finish_moves(self._services)
        for key, error in unfinished:
            self._fail(key, error)
        from limpet.session.runs.promotion import expire_items

        evicted, more_events = await evict(self._journal, limit)
        expired, more_items = await expire_items(self._services, limit)
        more = more or more_events or more_items
        return self._report(more=more, evicted=evicted.events, expired=expired)

    async def _one(self, key: Key) -> None:
        try:
            done = await self._locked(key)
        except Exception as error:  # one session must not stop the others
            return self._fail(key, error)
        self._counts[done] = self._counts.get(done, 0) + 1

    def _fail(self, key: Key, error: Exception) -> None:
        SESSION.warning("not swept: session=%s error=%s", key, type(error).__name__)
        self._failed.append(Unswept(key, f"{type(error).__name__}: {error}"))

    async def _locked(self, key: Key) -> Done:
        store = self._journal.store
        assert isinstance(store, Leases)
        try:
            lease = await store.acquire(key, self._worker, self._seconds(key.app))
        except SessionLocked:
            return "left"
        except SessionMoved:
            return "removed" if await remove_departed(self._services, key) else "nothing"
        except _GONE:
            return "nothing"
        session = self._session(key, lease)
        try:
            return await self._judge(session, lease)
        except (SessionFenced, *_GONE):  # another has it by now
            return "nothing"
        finally:
            if writer_of(session).lease is not None:
                await store.release(lease)

    async def _judge(self, session: Session[Any], lease: Lease) -> Done:
        """Do what the newest head says, at the time when the lease was granted."""
        await writer_of(session).load(tail=1, stub=True)
        head = writer_of(session).known.head
        why = overdue(head, lease.claimed_us)
        if why is None:
            return "nothing"
        if why == "expiry":
            return await self._delete(session)
        if why == "archive":
            await archive_session(session, ACTOR, reason="retention", release=lease)
            return "archived"
        events, done = _MOVES[why]
        if why == "absolute" and head.phase == ACTIVE:
            events = ("timeout", "terminate")
        more: dict[str, Any] = {}
        if why == "idle":
            policy = self._services.lifecycle(head.key.app)
            more = {"resumes": policy.resume_on_input}
        await PhaseChange(session, events, reason=why, actor=ACTOR, more=more, release=lease).run()
        self._services.metrics.record(_METRICS[why], session=head.key)
        return done

    def _seconds(self, app: str) -> float:
        """Return the lease time of a session: long enough for every hook of its app."""
        policy = self._services.lifecycle(app)
        hooks = len(policy.compensate) + len(policy.cleanup)
        return LEASE_SECONDS + hooks * policy.cleanup_seconds

    async def _delete(self, session: Session[Any]) -> Done:
        key = session.key
        tiers = store_checkpoints(self._journal).tiers
        await tiers.forget(key.app, key.user, key.id)
        await forget_memory(self._journal, key)
        deleted = await end_session(self._services, key)
        writer_of(session).lease = None  # it went with the session
        await tiers.forget(key.app, key.user, key.id)  # made meanwhile
        self._journal.hub.touch(key)
        SESSION.info("session permanently deleted: session=%s", key)
        self._services.metrics.record("session.permanently_deleted", session=key)
        return "deleted" if deleted else "nothing"

    def _session(self, key: Key, lease: Lease | None = None) -> Session[Any]:
        from limpet.session.session import Session

        return Session(self._services, key, actor=ACTOR, lease=lease, untyped=True)

    def _report(self, *, more: bool, evicted: int = 0, expired: int = 0) -> Swept:
        counts = {name: n for name, n in self._counts.items() if name != "nothing"}
        return Swept(
            **counts,
            failed=tuple(self._failed),
            more=more,
            evicted=evicted,
            expired=expired,
            moves=self._moves,
        )


def overdue(head: Head, now_us: int) -> Deadline | None:
    """Return why the session should move on now; the gravest reason if there are several."""
    passed = {why for why, at_us in deadlines(head) if at_us <= now_us}
    return next((why for why in _ORDER if why in passed), None)
